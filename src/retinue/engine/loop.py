"""The loop of a run: ask `next_step` what comes next, do it, record the facts, repeat."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, TypeAlias, assert_never

from msgspec.structs import replace

from retinue.core.errors import StoreError
from retinue.core.events import ExchangeEnded, RepairAsked, RunAccepted, RunEnded, WrapUpAsked
from retinue.core.ids import RunId
from retinue.core.inbox import ChildEnded, Deadline, DependencyEnded, Item
from retinue.core.run import Exchange, Outcome, WaitingFor
from retinue.core.step import (
    MODEL,
    AlreadyEnded,
    CallModel,
    Compact,
    EndExchange,
    EndRun,
    Repair,
    RunTools,
    TakeInbox,
    Wait,
    WaitsFor,
    WrapUp,
    next_step,
)
from retinue.engine.compaction import compact
from retinue.engine.context import EngineContext
from retinue.engine.foreign_errors import repr_of
from retinue.engine.live_run import LiveRun, Work
from retinue.engine.model_call import ask
from retinue.engine.tool_calls import perform, request_approvals

log = logging.getLogger("retinue.engine")

WRAP_UP = (
    "You have reached the {what} of this task. Do not call any tools. "
    "Give your final answer now, from what you have, and say what is left undone."
)

REPAIR = (
    "Your answer does not have the required form: {error}. "
    "Give the whole answer again as JSON of that form, and nothing else."
)

Posts: TypeAlias = tuple[tuple[RunId, Item], ...]


class Hooks(Protocol):
    """Called by the loop when something changes that concerns other runs."""

    def request_slot(self, live: LiveRun) -> None:
        """The dependencies of a run have ended; afterwards `live.needs_slot` says whether it has to wait for a slot."""

    def exchange_ended(self, live: LiveRun) -> None:
        """A kept-alive run has answered."""

    def run_ended(self, live: LiveRun, outcome: Outcome, posts: Posts) -> None:
        """A run has ended; `posts` are inbox items of other runs that were recorded with its end."""


async def drive(live: LiveRun, engine: EngineContext, hooks: Hooks) -> None:
    """Work on a run until it has ended; an unexpected error ends this run as failed and no other."""
    try:
        await _take_steps(live, engine, hooks)
    except Exception as bug:
        if isinstance(bug, StoreError) and engine.journal.broken is not None:
            raise  # not a bug: the run stays as the store knows it
        log.exception("run %s ended by a bug", live.run_id)
        failed = Exchange(result="failed", reason="bug", error=f"internal error: {repr_of(bug)}", text=live.run.text)
        await _end(live, EndRun(failed), engine, hooks)


async def _take_steps(live: LiveRun, engine: EngineContext, hooks: Hooks) -> None:
    _arm_deadline(live, engine)
    while True:
        if live.error is not None:
            raise live.error
        step = next_step(live.run, live.step_input())
        match step:
            case CallModel():
                if live.acceptance is not None and not await _is_accepted(live):
                    await _end(live, _cancelled_before_start(), engine, hooks)
                    return
                live.start(MODEL, ask(live, step, engine), _next_work)
            case Compact():
                live.start(MODEL, compact(live, step, engine), _next_work)
            case RunTools(indices=indices):
                for index in indices:
                    live.start(index, perform(live, index, engine), _next_work)
            case Wait(why="dependency") if live.needs_slot and not live.run.is_pending:
                hooks.request_slot(live)
                if live.needs_slot:
                    await live.wait("dependency")
            case Wait(why=why):
                await live.wait(_waiting_for(live, why, engine))
            case TakeInbox(items=items):
                live.take(items)
            case WrapUp(limit=limit):
                live.limit_met = None
                what = f"limit ({limit.reason.removeprefix('max_')}: {limit.limit})"
                live.record(WrapUpAsked(at=engine.clock.now(), limit=limit, text=WRAP_UP.format(what=what)))
            case Repair(error=error):
                live.record(RepairAsked(at=engine.clock.now(), error=error, text=REPAIR.format(error=error)))
            case EndExchange(exchange=exchange):
                live.record(ExchangeEnded(at=engine.clock.now(), exchange=exchange))
                hooks.exchange_ended(live)
            case EndRun():
                await _end(live, step, engine, hooks)
                return
            case AlreadyEnded():
                return
            case _:
                assert_never(step)


def _next_work(live: LiveRun, engine: EngineContext) -> tuple[int, Work] | None:
    """The next model or tool call, if the task of the last one can go on with it: a step like any other, but without
    waking the loop and without a new task. Most turns of most runs are of this kind.
    """
    if live.waiting_for is not None:
        return None  # the loop has set what the run waits for, and has to reset it
    match next_step(live.run, live.step_input()):
        case CallModel() as step:
            return MODEL, ask(live, step, engine)
        case Compact() as step:
            return MODEL, compact(live, step, engine)
        case RunTools(indices=(index,)) if not _waits(live, index):
            return index, perform(live, index, engine)
        case _:
            return None


def _waiting_for(live: LiveRun, why: WaitsFor, engine: EngineContext) -> WaitingFor | None:
    """What a run waits for, for display; None while a call of its own is at work."""
    if why in ("calls", "approval"):
        # Also while other calls are in flight: a person may take as long as they do.
        request_approvals(live, engine)
    if why == "model":
        return None
    if why == "calls":
        return "child" if _only_waits_for_children(live) else None
    return why


def _only_waits_for_children(live: LiveRun) -> bool:
    return all(_waits(live, index) for index in live.in_flight)


def _waits(live: LiveRun, index: int) -> bool:
    call = live.prepared(index)
    return call is not None and call.waits


async def _is_accepted(live: LiveRun) -> bool:
    """Whether the store has accepted the run; no model is called before that is on disk."""
    assert live.acceptance is not None
    return live.apply_acceptance(await live.acceptance.wait())


def _cancelled_before_start() -> EndRun:
    error = "cancelled before it could begin"
    return EndRun(Exchange(result="cancelled", reason="cancelled", error=error))


async def _end(live: LiveRun, end: EndRun, engine: EngineContext, hooks: Hooks) -> None:
    """Stop the calls in flight, then record how the run ended; nothing is recorded after that."""
    unstopped = await live.stop()
    accepted = live.acceptance is None or await _is_accepted(live)
    partial = "".join(live.partial)
    exchange = replace(end.exchange, text=partial) if partial else end.exchange
    outcome = live.run.outcome_as(exchange, unstopped=unstopped)
    if live.deadline is not None:
        live.deadline.cancel()
    posts: Posts = ()
    if accepted and end != _cancelled_before_start():
        live.drop(end.taken)
        at = engine.clock.now()
        taken = tuple(item.key for item in end.taken)
        posts = (*_announcement(live, outcome, engine), *_handovers(live, outcome, engine))
        live.record(RunEnded(at=at, outcome=outcome), taken=taken, posts=posts)
    hooks.run_ended(live, outcome, posts)


def _announcement(live: LiveRun, outcome: Outcome, engine: EngineContext) -> Posts:
    accepted = live.run.accepted
    if accepted.parent_id is None or not accepted.lifecycle.announce:
        return ()
    notice = engine.outcome_texts.notice(accepted, outcome)
    item = ChildEnded(key=f"ended/{accepted.run_id}", run_id=accepted.run_id, result=outcome.result, notice=notice)
    return ((accepted.parent_id, item),)


def _handovers(live: LiveRun, outcome: Outcome, engine: EngineContext) -> Posts:
    if not live.dependents:
        return ()
    return tuple((waiting, handover(live.run.accepted, outcome, name, engine)) for waiting, name in live.dependents)


def handover(accepted: RunAccepted, outcome: Outcome, name: str, engine: EngineContext) -> DependencyEnded:
    """The end of a run, as an item for a run that depends on it under that name."""
    ok, text = engine.outcome_texts.handover(accepted, outcome)
    key = f"dependency/{accepted.run_id}"
    return DependencyEnded(key=key, run_id=accepted.run_id, name=name, ok=ok, text=text)


def _arm_deadline(live: LiveRun, engine: EngineContext) -> None:
    """Deliver a `Deadline` when the run's time is up; the time it waits for a person or a driver is not counted."""
    seconds = live.run.accepted.limits.seconds
    if seconds is None:
        return
    loop = asyncio.get_running_loop()

    def check() -> None:
        run = live.run
        now = engine.clock.now()
        thinking = max(0.0, now - run.parked_since) if run.parked_since is not None else 0.0
        left = run.accepted.at + seconds + run.parked_seconds + thinking - now
        if left <= 0.001:
            live.deliver(Deadline(key="deadline", seconds=seconds))
        else:
            live.deadline = loop.call_later(max(left, 1.0) if thinking else left, check)

    check()
