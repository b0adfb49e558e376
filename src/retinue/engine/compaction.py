"""Compaction of a run's history before the next model call: old tool results are shortened first, then a summary.

`retinue.core.compaction` decides what to do; nothing is recorded before it is done. So a process that stops in the
middle leaves the history as it was, and the next driver of the run finds again that it is too long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from retinue.core import compaction
from retinue.core.commands import Charge
from retinue.core.errors import ProviderError
from retinue.core.events import CompactedBy, HistoryCompacted
from retinue.core.log_context import logger
from retinue.core.messages import Delta, Message, UserMessage
from retinue.core.ports import Provider, Request
from retinue.core.run import LimitMet
from retinue.core.step import Compact
from retinue.core.usage import NO_USAGE, Usage, add_cost
from retinue.engine.budgets import InputEstimate
from retinue.engine.context import EngineContext
from retinue.engine.live_run import LiveRun
from retinue.engine.model_call import (
    ModelCall,
    NoReply,
    Replied,
    fail,
    first_reply,
    sampling_for,
    seconds_since,
)

log = logger("retinue.engine")

SHARES = (1, 4, 16)
"""Divisors for the length of the text to be summarised, tried in this order while it is too long."""

NOTHING_LEFT = (
    "{error} (nothing in the conversation can be made shorter any more: take a model with a larger context window, or "
    "give it fewer tools and a shorter task)"
)


@dataclass(slots=True)
class Summary:
    """A summary, empty if the model gave none, with its usage, cost and charges."""

    text: str = ""
    model: str = ""
    usage: Usage = NO_USAGE
    cost: int | None = 0
    charges: tuple[Charge, ...] = ()
    duration: float | None = None
    estimated: Usage = NO_USAGE
    estimated_cost: int = 0

    def add_failed(self, answer: NoReply) -> None:
        """Add what a call without a summary used."""
        self.usage += answer.used
        self.cost = add_cost(self.cost, answer.cost)
        self.charges += answer.charges


async def compact_history(live: LiveRun, step: Compact, engine: EngineContext) -> None:
    """Compact the history and record how; if that is impossible, record the failure that the provider reported.

    A history that is too long only by our own estimate, and cannot be compacted, is sent as it is.
    """
    run, overflow = live.run, step.overflow
    tokens, size = live.context_tokens(), compaction.total_tokens(run.history)
    free = compaction.size_target(overflow, tokens=tokens, messages=size, fixed=live.fixed_size, times=run.compactions)
    found = (
        compaction.plan(run.history, free)
        if free is not None and run.compactions < compaction.MAX_COMPACTIONS_PER_TURN
        else None
    )
    match found:
        case None:
            _give_up(live, overflow, engine)
        case compaction.Truncation():
            _record(live, found.replaced, found.messages, "shortened", Summary(), engine)
        case compaction.Summarisation():
            # The amount that is set aside for the wrap-up turn is for its answer, not for a summary.
            summary = Summary() if step.wrap_up else await _summary(live, found, overflow, engine)
            if summary is not None:
                messages = compaction.compacted_messages(found, _task_of(live), summary.text)
                way = "summarised" if summary.text else "left_out"
                _record(live, found.replaced, messages, way, summary, engine)
        case _:
            assert_never(found)
    live.overflow = None


def _give_up(live: LiveRun, overflow: compaction.ContextOverflow, engine: EngineContext) -> None:
    if overflow.error:
        error = ProviderError(NOTHING_LEFT.format(error=overflow.error), fault="too_long")
        fail(live, NoReply(((live.run.run_spec.model, error),)), str(error), overflow.partial, engine)
    else:
        live.not_compactable_at = live.run.seq


async def _summary(
    live: LiveRun, found: compaction.Summarisation, overflow: compaction.ContextOverflow, engine: EngineContext
) -> Summary | None:
    """A summary by the run's own model; None if the run cannot continue because of a limit or a failed call.

    If the model refuses or answers with nothing, the summary is empty: the older turns are left out, and the run
    continues.
    """
    summary, began = Summary(), engine.clock.now()
    for share in SHARES:
        text = compaction.summary_prompt(found, _task_of(live), max(2 * found.max_size, compaction.MIN_SIZE) // share)

        def make_call(name: str, model: str, provider: Provider, text: str = text) -> ModelCall:
            request = _request(name, model, live, overflow, text)
            tokens = len(text) // compaction.CHARACTERS_PER_TOKEN + 1
            return ModelCall(request, lambda: InputEstimate(tokens, tokens), _discard)

        answer = await first_reply(live, engine, make_call)
        match answer:
            case Replied(reply=reply, charges=charges, failed=failed, failed_cost=failed_cost):
                summary.estimated = answer.estimated or NO_USAGE
                summary.estimated_cost = answer.estimated_cost or 0
                summary.text = reply.message.text.strip() if reply.stop != "refusal" else ""
                summary.model = reply.model
                summary.usage += (reply.usage or NO_USAGE) + failed
                summary.cost = add_cost(summary.cost, add_cost(reply.cost, failed_cost))
                summary.charges += charges
                summary.duration = seconds_since(began, engine.clock.now())
                return summary
            case LimitMet():
                live.limit_met = answer
                return None
            case NoReply() if answer.last.fault == "too_long":
                summary.add_failed(answer)
                continue
            case NoReply() if answer.last.fault == "refused":
                summary.add_failed(answer)
                return summary
            case NoReply():
                error = f"while its history was summarised: {answer}"
                fail(live, answer, error, overflow.partial, engine, began=began)
                return None
            case compaction.ContextOverflow() | None:
                return None
            case _:
                assert_never(answer)
    return summary


def _request(name: str, model: str, live: LiveRun, overflow: compaction.ContextOverflow, text: str) -> Request:
    run, run_spec = live.run, live.run.run_spec
    return Request(
        model=model,
        system=compaction.SUMMARY_SYSTEM_PROMPT,
        messages=(UserMessage(text, "engine"),),
        max_output=run_spec.max_output if overflow.window is None else overflow.reserved,
        **sampling_for(name, run_spec),
        run_id=run.accepted.run_id,
        agent=run.accepted.agent,
        path=run.accepted.path,
        turn=run.turns + 1,
        purpose="summary",
    )


def _discard(delta: Delta) -> None:
    """A summary is not part of the run's answer: its deltas are not published, and not kept as partial text."""


def _task_of(live: LiveRun) -> str:
    run = live.run
    latest = run.latest_input
    return f"{run.accepted.task}\n\nThe latest input:\n{latest}" if latest else run.accepted.task


def _record(
    live: LiveRun,
    replaced: int,
    messages: tuple[Message, ...],
    way: CompactedBy,
    summary: Summary,
    engine: EngineContext,
) -> None:
    run = live.run
    before, size = live.context_tokens(), compaction.total_tokens(run.history) + live.fixed_size
    after = size - compaction.total_tokens(run.history[:replaced]) + compaction.total_tokens(messages)
    left = before * after // max(size, 1) + 1
    shown = way.replace("_", " ")
    log.info("%shistory %s, about %d tokens became %d", engine.id_field(run), shown, before, left)
    live.record(
        HistoryCompacted(
            at=engine.clock.now(),
            replaced=replaced,
            messages=messages,
            way=way,
            before=before,
            after=left,
            model=summary.model,
            usage=summary.usage,
            cost=summary.cost,
            duration=summary.duration,
            estimated=summary.estimated,
            estimated_cost=summary.estimated_cost,
        ),
        charges=summary.charges,
    )
