"""Sees a tree through to its end: progress on stderr, the answer on stdout, and an exit code that tells the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal

import msgspec

from retinue.app.engine_types import Approver
from retinue.app.handle import RunHandle
from retinue.app.retinue import Retinue
from retinue.cli.event_loop import INTERRUPTED, first_of
from retinue.cli.output.approval_prompt import AtTheTerminal
from retinue.cli.output.format import clean, dollars_in_full
from retinue.cli.output.json_rows import outcome_row
from retinue.cli.output.progress import display
from retinue.cli.output.terminal import answer, answer_json, say, write
from retinue.cli.output.tree_poll import TreeWatch, shown
from retinue.core.ids import RunId
from retinue.core.run import Outcome
from retinue.dialects.registry import cancelled_notice

Form = Literal["text", "bare", "json", "sse"]
"""How an answer is printed: for people, alone, as one object about the run, or not at all: it was told already."""

DONE = "=== [ DONE ] ==="


async def see_through(
    retinue: Retinue,
    root: RunHandle,
    asked_to_stop: asyncio.Event,
    *,
    approver: Approver = "deny",
    quiet: bool = False,
    verbose: bool = False,
) -> Outcome | None:
    """How the run ended, once everything below it is over as well; None if somebody asked to stop before."""
    earlier = await retinue.tree(root.run_id)
    watch = TreeWatch(retinue.supervisor, root.run_id, earlier)
    watch.tasks[root.run_id] = (await retinue.supervisor.replay(root.run_id)).accepted.task
    with display(quiet=quiet, verbose=verbose) as screen:
        if isinstance(approver, AtTheTerminal):
            approver.attach(retinue.supervisor, screen)
        async with shown(watch, screen):
            if not await first_of(_whole_tree(retinue, root), asked_to_stop):
                return None
    if notice := cancelled_notice(await retinue.tree(root.run_id)):
        say(notice)
    return await root.wait()


async def _whole_tree(retinue: Retinue, root: RunHandle) -> None:
    await root.wait()
    # Children that are cancelled with their parent take a moment to end, and background ones as long as they need.
    while unfinished := [view.run_id for view in await retinue.tree(root.run_id) if view.outcome is None]:
        await retinue.wait(*unfinished)


async def told_as_sse(
    root: RunHandle, work: Coroutine[Any, Any, Outcome | None], *, structured: bool, brief: bool, wire: str
) -> Outcome | None:
    """The work's outcome, with what happens in the run on stdout meanwhile; the last event is told in any case.

    If nobody reads stdout any more, the work is given up: whoever wanted it has gone.
    """
    from retinue.cli.output.sse import SseStream
    from retinue.cli.output.stdout_writer import Outlet

    outlet = Outlet(write)
    stream = SseStream(outlet.write, structured=structured, brief=brief, wire=wire)
    following = asyncio.ensure_future(stream.follow(root.events()))
    working = asyncio.ensure_future(work)
    reading = asyncio.ensure_future(outlet.gone())
    outcome = None
    try:
        await asyncio.wait({working, reading}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            outcome = await working
            if outcome is not None:
                await following
    finally:
        for task in (following, working, reading):
            task.cancel()
        await asyncio.gather(following, working, reading, return_exceptions=True)
        stream.end(outcome)
        await outlet.close()
    return outcome


def tell(run_id: RunId, outcome: Outcome, *, form: Form = "text") -> int:
    """Print how a run ended, the answer on stdout and the rest on stderr; the exit code."""
    if form == "json":
        answer_json(outcome_row(run_id, outcome))
    elif outcome.ok and form != "sse":
        answer(_answer(outcome, form))
    if not outcome.ok:
        say(what_went_wrong(outcome))
        if outcome.text and form not in ("json", "sse"):
            say(f"the answer so far:\n{clean(outcome.text)}")
    elif outcome.reason in ("length", "refusal"):
        say(f"note: the model ended with {outcome.reason!r}, so this may not be a whole answer")
    if outcome.unstopped:
        say(f"warning: could not be stopped: {', '.join(outcome.unstopped)}")
    return 0 if outcome.ok else 1


def _answer(outcome: Outcome, form: Form) -> str:
    if outcome.structured is None:
        return outcome.text
    value = msgspec.json.encode(outcome.structured).decode()
    return value if form == "bare" else f"{value}\n\n{DONE}"


def what_went_wrong(outcome: Outcome) -> str:
    """Why a run gave no answer, in one line."""
    if outcome.reason == "empty":
        return "the model gave an empty answer"
    if outcome.limit is not None:
        limit = outcome.limit
        if limit.reason == "max_cost":  # people say it in dollars, and the next call is held against what is left
            return (
                f"{outcome.result}: {dollars_in_full(limit.used)} of {dollars_in_full(limit.limit)} spent, "
                "and the next call may cost more than is left"
            )
        if limit.reason == "max_tokens" and limit.used < limit.limit:  # the next question is held against what is left
            if not outcome.turns and not limit.used:
                return f"{outcome.result}: the first question alone would need more than max_tokens {limit.limit}"
            return (
                f"{outcome.result}: {limit.used} of max_tokens {limit.limit} used, "
                "and the next question would need more than is left"
            )
        return clean(
            f"{outcome.result}: {limit.reason} {limit.limit} reached, {limit.used} used. {outcome.error}".rstrip(". ")
        )
    return clean(f"{outcome.result} ({outcome.reason}): {outcome.error or 'no reason given'}")


def tell_interrupted(run_id: RunId) -> int:
    """Say how to go on with a run that was stopped in the middle; the exit code."""
    say(f"interrupted; go on with: retinue runs resume {run_id}")
    return INTERRUPTED
