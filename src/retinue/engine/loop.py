"""The loop of a run: ask the state what comes next, do it, record the facts, ask again."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, TypeAlias, assert_never

from msgspec.structs import replace

from retinue.core.errors import StoreError
from retinue.core.events import ExchangeEnded, RepairAsked, RunAccepted, RunEnded, WrapUpAsked
from retinue.core.ids import RunId
from retinue.core.inbox import ChildEnded, Deadline, DependencyEnded, Item
from retinue.core.ports import does_wait
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
from retinue.engine.approvals import ask_for_approvals
from retinue.engine.compaction import compact
from retinue.engine.context import EngineContext
from retinue.engine.foreign_errors import in_code
from retinue.engine.live_run import LiveRun, Work
from retinue.engine.model_call import ask
from retinue.engine.tool_calls import perform

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
    """Who wants to know how the loop's runs fare."""

    def could_begin(self, live: LiveRun) -> None:
        """All that a run waited for is over; `driven.held` says afterwards whether it has to wait for a place."""
        ...

    def exchange_ended(self, live: LiveRun) -> None:
        """A run that stays has answered."""
        ...

    def ended(self, live: LiveRun, outcome: Outcome, posts: Posts) -> None:
        """A run is over; `posts` is the mail that its end left for others."""
        ...


async def drive(live: LiveRun, engine: EngineContext, hooks: Hooks) -> None:
    """Work on a run until it has ended; a bug ends this run as failed and nobody else's."""
    try:
        await _take_steps(live, engine, hooks)
    except Exception as bug:
        if isinstance(bug, StoreError) and engine.journal.broken is not None:
            raise  # nobody's bug: the run stays as the store knows it
        log.exception("run %s ended by a bug", live.run_id)
        failed = Exchange(result="failed", reason="bug", error=f"internal error: {in_code(bug)}", text=live.run.text)
        await _end(live, EndRun(failed), engine, hooks)


async def _take_steps(live: LiveRun, engine: EngineContext, hooks: Hooks) -> None:
    _arm_deadline(live, engine)
    while True:
        if live.trouble is not None:
            raise live.trouble
        step = next_step(live.run, live.step_input())
        match step:
            case CallModel():
                if live.acceptance is not None and not await _is_born(live):
                    await _end(live, _unborn(), engine, hooks)
                    return
                live.start(MODEL, ask(live, step, engine), _follows)
            case Compact():
                live.start(MODEL, compact(live, step, engine), _follows)
            case RunTools(indices=indices):
                for index in indices:
                    live.start(index, perform(live, index, engine), _follows)
            case Wait(why="dependency") if live.held and not live.run.is_pending:
                hooks.could_begin(live)
                if live.held:
                    await live.wait("dependency")
            case Wait(why=why):
                await live.wait(_what_for(live, why, engine))
            case TakeInbox(items=items):
                live.take(items)
            case WrapUp(limit=limit):
                live.spent = None
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


def _follows(live: LiveRun, engine: EngineContext) -> tuple[int, Work] | None:
    """The next question or call, where the task that has just finished can go on with it: a step like any other, but
    without waking the loop and without a new task. Most turns of most runs are of this kind.
    """
    if live.waits is not None:
        return None  # the loop has said what the run waits for, and has to take it back
    match next_step(live.run, live.step_input()):
        case CallModel() as step:
            return MODEL, ask(live, step, engine)
        case Compact() as step:
            return MODEL, compact(live, step, engine)
        case RunTools(indices=(index,)) if not _waits(live, index):
            return index, perform(live, index, engine)
        case _:
            return None


def _what_for(live: LiveRun, why: WaitsFor, engine: EngineContext) -> WaitingFor | None:
    """What a run waits for that has nothing else to do, in words for people; nothing, while something is at work."""
    if why in ("calls", "approval"):
        # Also while other calls go on: a person may take as long as they do.
        ask_for_approvals(live, engine)
    if why == "model":
        return None
    if why == "calls":
        return "child" if _only_waits_for_children(live) else None
    return why


def _only_waits_for_children(live: LiveRun) -> bool:
    return all(_waits(live, index) for index in live.busy)


def _waits(live: LiveRun, index: int) -> bool:
    call = live.run.open[index].call
    tool = live.tool_set.tools.get(call.name)
    return tool is not None and does_wait(tool, call.arguments)


async def _is_born(live: LiveRun) -> bool:
    """Whether the run's acceptance is on disk; nothing is asked of a model before it is."""
    assert live.acceptance is not None
    return live.hear_acceptance(await live.acceptance.wait())


def _unborn() -> EndRun:
    error = "cancelled before it could begin"
    return EndRun(Exchange(result="cancelled", reason="cancelled", error=error))


async def _end(live: LiveRun, end: EndRun, engine: EngineContext, hooks: Hooks) -> None:
    """Stop what is in flight, then record how the run ended; nothing is recorded after it."""
    unstopped = await live.stop()
    born = live.acceptance is None or await _is_born(live)
    partial = "".join(live.partial)
    exchange = replace(end.exchange, text=partial) if partial else end.exchange
    outcome = live.run.outcome_as(exchange, unstopped=unstopped)
    if live.deadline is not None:
        live.deadline.cancel()
    posts: Posts = ()
    if born and end != _unborn():
        live.drop(end.taken)
        at = engine.clock.now()
        taken = tuple(item.key for item in end.taken)
        posts = (*_announcement(live, outcome, engine), *_handovers(live, outcome, engine))
        live.record(RunEnded(at=at, outcome=outcome), taken=taken, posts=posts)
    hooks.ended(live, outcome, posts)


def _announcement(live: LiveRun, outcome: Outcome, engine: EngineContext) -> Posts:
    accepted = live.run.accepted
    if accepted.parent_id is None or not accepted.lifecycle.announce:
        return ()
    notice = engine.words.notice(accepted, outcome)
    item = ChildEnded(key=f"ended/{accepted.run_id}", run_id=accepted.run_id, result=outcome.result, notice=notice)
    return ((accepted.parent_id, item),)


def _handovers(live: LiveRun, outcome: Outcome, engine: EngineContext) -> Posts:
    """What those hear who wait for this run before they begin."""
    if not live.dependents:
        return ()
    return tuple((waiting, handover(live.run.accepted, outcome, name, engine)) for waiting, name in live.dependents)


def handover(accepted: RunAccepted, outcome: Outcome, name: str, engine: EngineContext) -> DependencyEnded:
    """The end of a run, for one that waits for it under that name."""
    ok, text = engine.words.handover(accepted, outcome)
    key = f"dependency/{accepted.run_id}"
    return DependencyEnded(key=key, run_id=accepted.run_id, name=name, ok=ok, text=text)


def _arm_deadline(live: LiveRun, engine: EngineContext) -> None:
    """The run's time runs while it works, not while a person thinks or nobody drives it."""
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
