"""Making a run's history shorter, so that its model can be asked again: old results first, then a summary.

What to do is decided in `retinue.core.compaction`; nothing is recorded before it is done. So a process that stops in
the middle leaves the history as it was, and whoever goes on with the run finds again that it is too long.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import assert_never

from retinue.core.commands import Charge
from retinue.core.compaction import (
    CHARACTERS_PER_TOKEN,
    MAX_COMPACTIONS_PER_TURN,
    MIN_SIZE,
    SUMMARY_SYSTEM_PROMPT,
    ContextOverflow,
    Summarisation,
    Truncation,
    compacted_messages,
    plan,
    size_target,
    summary_prompt,
    total,
)
from retinue.core.errors import ProviderError
from retinue.core.events import CompactedBy, HistoryCompacted
from retinue.core.messages import Delta, Message, UserMessage
from retinue.core.ports import Provider, Request
from retinue.core.run import LimitMet
from retinue.core.step import Compact
from retinue.core.usage import NO_USAGE, Usage, add_cost
from retinue.engine.context import EngineContext
from retinue.engine.live_run import LiveRun
from retinue.engine.model_call import NoReply, Question, Replied, fail, first_reply, temperature_for

log = logging.getLogger("retinue.engine")

SHARES = (1, 4, 16)
"""A record that is too long to be summarised is cut to these parts of it, one after another."""

NOTHING_LEFT = (
    "{error} (nothing in the conversation can be made shorter any more: take a model with a larger context window, or "
    "give it fewer tools and a shorter task)"
)


@dataclass(slots=True)
class Summary:
    """A summary, or an empty one where none could be had, and what it took."""

    text: str = ""
    model: str = ""
    usage: Usage = NO_USAGE
    cost: int | None = 0
    charges: tuple[Charge, ...] = ()


async def compact(live: LiveRun, step: Compact, engine: EngineContext) -> None:
    """Make the history shorter and record how; if nothing more can be done, let the turn fail as the provider said.

    A history that only seems too long, and cannot be made shorter, is left alone: the provider decides.
    """
    run, overflow = live.run, step.overflow
    tokens, size = live.context(), total(run.history)
    free = size_target(overflow, tokens=tokens, messages=size, fixed=live.fixed, times=run.compactions)
    found = plan(run.history, free) if free is not None and run.compactions < MAX_COMPACTIONS_PER_TURN else None
    match found:
        case None:
            _give_up(live, overflow, engine)
        case Truncation():
            _record(live, found.replaced, found.messages, "shortened", Summary(), engine)
        case Summarisation():
            # What is set aside for the wrap-up turn is for its answer.
            summary = Summary() if step.wrap_up else await _summary(live, found, overflow, engine)
            if summary is not None:
                messages = compacted_messages(found, _demanded(live), summary.text)
                way = "summarised" if summary.text else "left_out"
                _record(live, found.replaced, messages, way, summary, engine)
        case _:
            assert_never(found)
    live.overflow = None


def _give_up(live: LiveRun, overflow: ContextOverflow, engine: EngineContext) -> None:
    if overflow.error:
        error = ProviderError(NOTHING_LEFT.format(error=overflow.error), fault="too_long")
        fail(live, NoReply(((live.run.run_spec.model, error),)), str(error), overflow.partial, engine)
    else:
        live.left_alone = live.run.seq


async def _summary(
    live: LiveRun, found: Summarisation, overflow: ContextOverflow, engine: EngineContext
) -> Summary | None:
    """A summary by the run's own model; None if the run cannot go on with or without one.

    A model that declines to give one, or says nothing, costs the run its older turns, but not its life.
    """
    summary = Summary()
    for share in SHARES:
        words = summary_prompt(found, _demanded(live), max(2 * found.max_size, MIN_SIZE) // share)

        def form(name: str, model: str, provider: Provider, words: str = words) -> Question:
            request = _request(name, model, live, overflow, words)
            return Question(request, lambda: len(words) // CHARACTERS_PER_TOKEN + 1, _nobody_listens)

        answer = await first_reply(live, engine, form)
        match answer:
            case Replied(reply=reply, charges=charges):
                summary.text = reply.message.text.strip() if reply.stop != "refusal" else ""
                summary.model = reply.model
                summary.usage += reply.usage or NO_USAGE
                summary.cost = add_cost(summary.cost, reply.cost)
                summary.charges += charges
                return summary
            case LimitMet():
                live.spent = answer
                return None
            case NoReply() if answer.last.fault == "too_long":
                continue
            case NoReply() if answer.last.fault == "refused":
                return summary
            case NoReply():
                fail(live, answer, f"while its history was summarised: {answer}", overflow.partial, engine)
                return None
            case ContextOverflow() | None:
                return None
            case _:
                assert_never(answer)
    return summary


def _request(name: str, model: str, live: LiveRun, overflow: ContextOverflow, words: str) -> Request:
    run, run_spec = live.run, live.run.run_spec
    return Request(
        model=model,
        system=SUMMARY_SYSTEM_PROMPT,
        messages=(UserMessage(words, "engine"),),
        max_output=run_spec.max_output if overflow.window is None else overflow.reserved,
        temperature=temperature_for(name, run_spec),
        run_id=run.accepted.run_id,
        agent=run.accepted.agent,
        path=run.accepted.path,
        turn=run.turns + 1,
        purpose="summary",
    )


def _nobody_listens(delta: Delta) -> None:
    """A summary is nothing that the run says: it is not shown as it streams in, nor kept as its last words."""


def _demanded(live: LiveRun) -> str:
    """What the run was asked to do, in the words of whoever asked."""
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
    before, size = live.context(), total(run.history) + live.fixed
    after = size - total(run.history[:replaced]) + total(messages)
    left = before * after // max(size, 1) + 1
    log.info("run %s: history %s, about %d tokens became %d", live.run_id, way.replace("_", " "), before, left)
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
        ),
        charges=summary.charges,
    )
