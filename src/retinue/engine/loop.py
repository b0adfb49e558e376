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
    Ask,
    Compact,
    End,
    EndExchange,
    Perform,
    Repair,
    Rest,
    Take,
    Wait,
    WaitsFor,
    WrapUp,
    next_step,
)
from retinue.engine.approvals import ask_for_approvals
from retinue.engine.compaction import compact
from retinue.engine.context import Parts
from retinue.engine.foreign_errors import in_code
from retinue.engine.live_run import Driven, Work
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

    def could_begin(self, driven: Driven) -> None:
        """All that a run waited for is over; `driven.held` says afterwards whether it has to wait for a place."""
        ...

    def exchange_ended(self, driven: Driven) -> None:
        """A run that stays has answered."""
        ...

    def ended(self, driven: Driven, outcome: Outcome, posts: Posts) -> None:
        """A run is over; `posts` is the mail that its end left for others."""
        ...


async def drive(driven: Driven, parts: Parts, hooks: Hooks) -> None:
    """Work on a run until it has ended; a bug ends this run as failed and nobody else's."""
    try:
        await _take_steps(driven, parts, hooks)
    except Exception as bug:
        if isinstance(bug, StoreError) and parts.journal.broken is not None:
            raise  # nobody's bug: the run stays as the store knows it
        log.exception("run %s ended by a bug", driven.run_id)
        failed = Exchange(result="failed", reason="bug", error=f"internal error: {in_code(bug)}", text=driven.run.text)
        await _end(driven, End(failed), parts, hooks)


async def _take_steps(driven: Driven, parts: Parts, hooks: Hooks) -> None:
    _arm_deadline(driven, parts)
    while True:
        if driven.trouble is not None:
            raise driven.trouble
        step = next_step(driven.run, driven.situation())
        match step:
            case Ask():
                if driven.acceptance is not None and not await _is_born(driven):
                    await _end(driven, _unborn(), parts, hooks)
                    return
                driven.start(MODEL, ask(driven, step, parts), _follows)
            case Compact():
                driven.start(MODEL, compact(driven, step, parts), _follows)
            case Perform(indices=indices):
                for index in indices:
                    driven.start(index, perform(driven, index, parts), _follows)
            case Wait(why="dependency") if driven.held and not driven.run.is_pending:
                hooks.could_begin(driven)
                if driven.held:
                    await driven.wait("dependency")
            case Wait(why=why):
                await driven.wait(_what_for(driven, why, parts))
            case Take(items=items):
                driven.take(items)
            case WrapUp(limit=limit):
                driven.spent = None
                what = f"limit ({limit.reason.removeprefix('max_')}: {limit.limit})"
                driven.record(WrapUpAsked(at=parts.clock.now(), limit=limit, text=WRAP_UP.format(what=what)))
            case Repair(error=error):
                driven.record(RepairAsked(at=parts.clock.now(), error=error, text=REPAIR.format(error=error)))
            case EndExchange(exchange=exchange):
                driven.record(ExchangeEnded(at=parts.clock.now(), exchange=exchange))
                hooks.exchange_ended(driven)
            case End():
                await _end(driven, step, parts, hooks)
                return
            case Rest():
                return
            case _:
                assert_never(step)


def _follows(driven: Driven, parts: Parts) -> tuple[int, Work] | None:
    """The next question or call, where the task that has just finished can go on with it: a step like any other, but
    without waking the loop and without a new task. Most turns of most runs are of this kind.
    """
    if driven.waits is not None:
        return None  # the loop has said what the run waits for, and has to take it back
    match next_step(driven.run, driven.situation()):
        case Ask() as step:
            return MODEL, ask(driven, step, parts)
        case Compact() as step:
            return MODEL, compact(driven, step, parts)
        case Perform(indices=(index,)) if not _waits(driven, index):
            return index, perform(driven, index, parts)
        case _:
            return None


def _what_for(driven: Driven, why: WaitsFor, parts: Parts) -> WaitingFor | None:
    """What a run waits for that has nothing else to do, in words for people; nothing, while something is at work."""
    if why in ("calls", "approval"):
        # Also while other calls go on: a person may take as long as they do.
        ask_for_approvals(driven, parts)
    if why == "model":
        return None
    if why == "calls":
        return "child" if _only_waits_for_children(driven) else None
    return why


def _only_waits_for_children(driven: Driven) -> bool:
    return all(_waits(driven, index) for index in driven.busy)


def _waits(driven: Driven, index: int) -> bool:
    call = driven.run.open[index].call
    tool = driven.bench.tools.get(call.name)
    return tool is not None and does_wait(tool, call.arguments)


async def _is_born(driven: Driven) -> bool:
    """Whether the run's acceptance is on disk; nothing is asked of a model before it is."""
    assert driven.acceptance is not None
    return driven.hear_acceptance(await driven.acceptance.wait())


def _unborn() -> End:
    error = "cancelled before it could begin"
    return End(Exchange(result="cancelled", reason="cancelled", error=error))


async def _end(driven: Driven, end: End, parts: Parts, hooks: Hooks) -> None:
    """Stop what is in flight, then record how the run ended; nothing is recorded after it."""
    unstopped = await driven.stop()
    born = driven.acceptance is None or await _is_born(driven)
    partial = "".join(driven.partial)
    exchange = replace(end.exchange, text=partial) if partial else end.exchange
    outcome = driven.run.outcome_as(exchange, unstopped=unstopped)
    if driven.deadline is not None:
        driven.deadline.cancel()
    posts: Posts = ()
    if born and end != _unborn():
        driven.drop(end.taken)
        at = parts.clock.now()
        taken = tuple(item.key for item in end.taken)
        posts = (*_announcement(driven, outcome, parts), *_handovers(driven, outcome, parts))
        driven.record(RunEnded(at=at, outcome=outcome), taken=taken, posts=posts)
    hooks.ended(driven, outcome, posts)


def _announcement(driven: Driven, outcome: Outcome, parts: Parts) -> Posts:
    accepted = driven.run.accepted
    if accepted.parent_id is None or not accepted.manner.announce:
        return ()
    notice = parts.words.notice(accepted, outcome)
    item = ChildEnded(key=f"ended/{accepted.run_id}", run_id=accepted.run_id, result=outcome.result, notice=notice)
    return ((accepted.parent_id, item),)


def _handovers(driven: Driven, outcome: Outcome, parts: Parts) -> Posts:
    """What those hear who wait for this run before they begin."""
    if not driven.dependents:
        return ()
    return tuple((waiting, handover(driven.run.accepted, outcome, name, parts)) for waiting, name in driven.dependents)


def handover(accepted: RunAccepted, outcome: Outcome, name: str, parts: Parts) -> DependencyEnded:
    """The end of a run, for one that waits for it under that name."""
    ok, text = parts.words.handover(accepted, outcome)
    key = f"dependency/{accepted.run_id}"
    return DependencyEnded(key=key, run_id=accepted.run_id, name=name, ok=ok, text=text)


def _arm_deadline(driven: Driven, parts: Parts) -> None:
    """The run's time runs while it works, not while a person thinks or nobody drives it."""
    seconds = driven.run.accepted.limits.seconds
    if seconds is None:
        return
    loop = asyncio.get_running_loop()

    def check() -> None:
        run = driven.run
        now = parts.clock.now()
        thinking = max(0.0, now - run.parked_since) if run.parked_since is not None else 0.0
        left = run.accepted.at + seconds + run.parked_seconds + thinking - now
        if left <= 0.001:
            driven.deliver(Deadline(key="deadline", seconds=seconds))
        else:
            driven.deadline = loop.call_later(max(left, 1.0) if thinking else left, check)

    check()
