"""Follow runs without a terminal: wait for a tree, poll its rows, describe a failure, compute the active time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from retinue.app.handle import RunHandle
from retinue.app.read_only import ReadOnlyClient
from retinue.app.retinue import Retinue
from retinue.core.errors import UnknownFormat
from retinue.core.events import Event, RunAccepted, RunAdopted, RunLeft
from retinue.core.ids import RunId
from retinue.core.limit_text import limit_text
from retinue.core.run import LimitMet, Outcome, State, WaitingFor
from retinue.core.text import clean
from retinue.core.usage import dollar_text
from retinue.engine import RunView, Supervisor

POLL = 0.1
"""Seconds between two polls of a tree."""

Show: TypeAlias = Callable[[Sequence[RunView], Mapping[RunId, str]], None]
"""Receives all rows of a tree, the root first, and the tasks of the runs as far as they are known."""


async def tree_outcome(retinue: Retinue, root: RunHandle, stop: asyncio.Event) -> Outcome | None:
    """The outcome of a root run once its whole tree has ended; None if `stop` was set before."""
    return await root.wait() if await unless_stopped(_whole_tree(retinue, root), stop) else None


async def unless_stopped(work: Coroutine[Any, Any, Any], stop: asyncio.Event) -> bool:
    """Await `work`, or cancel it when `stop` is set; whether it finished. Raises what `work` raised."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


async def _whole_tree(retinue: Retinue, root: RunHandle) -> None:
    await root.wait()
    # Children that are cancelled with their parent take a moment to end, and background ones as long as they need.
    while unfinished := [view.run_id for view in await retinue.tree(root.run_id) if view.outcome is None]:
        await retinue.wait(*unfinished)


_Shown: TypeAlias = tuple[RunAccepted, int, State, WaitingFor | None]


class TreeWatch:
    """The rows of one tree that this process drives, ended runs included, in the order in which they started.

    Read from memory: a poll costs nothing per turn and nothing per streamed delta.
    """

    def __init__(self, supervisor: Supervisor, root_id: RunId, earlier: Iterable[RunView] = ()) -> None:
        self._supervisor = supervisor
        self._root_id = root_id
        self._views = {view.run_id: view for view in earlier}
        self._seen: dict[RunId, _Shown] = {}
        """What the views of live runs follow from: a view is made when that has changed."""
        self._order: list[RunId] = []
        self.tasks: dict[RunId, str] = {}

    def look(self) -> list[RunView]:
        for live in self._supervisor.live_runs():
            accepted = live.run.accepted
            if accepted.root_id == self._root_id:
                run_id, before = accepted.run_id, self._seen.get(accepted.run_id)
                now: _Shown = (accepted, live.run.seq, live.state, live.waiting_for)
                if before is None or before[0] is not accepted or before[1:] != now[1:]:
                    self._seen[run_id] = now
                    self.tasks[run_id] = accepted.task
                    self._views[run_id] = live.view()
        # The latest end comes first: what ended before a known end is known, too.
        for view in self._supervisor.recent_ends():
            if view.root_id != self._root_id:
                continue
            if (known := self._views.get(view.run_id)) is not None and known.outcome is not None:
                break
            self._views[view.run_id] = view
            self._seen.pop(view.run_id, None)
        views = self._views
        if len(self._order) != len(views):
            self._order = sorted(views, key=lambda run_id: (views[run_id].started_at, run_id))
        return [views[run_id] for run_id in self._order]


@asynccontextmanager
async def polled(watch: TreeWatch, show: Show, *, every: float = POLL) -> AsyncGenerator[None]:
    """Call `show` with the tree for as long as the block lasts, and once more at its end."""

    async def poll() -> None:
        while True:
            show(watch.look(), watch.tasks)
            await asyncio.sleep(every)

    polling = asyncio.get_running_loop().create_task(poll(), name="retinue-progress")
    try:
        yield
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        show(watch.look(), watch.tasks)


def failure_text(outcome: Outcome) -> str:
    """Why a run gave no answer, in one line."""
    if outcome.reason == "empty":
        return "the model gave an empty answer"
    if outcome.limit is not None:
        limit = outcome.limit
        if limit.reason in ("max_turns", "max_calls"):
            reached = f"{outcome.result}: {limit.reason} {limit.limit} reached, {limit.used} used"
            # The text about the limit has the same figures.
            more = "" if outcome.error in ("", limit_text(limit)) else f". {outcome.error}"
            return clean(f"{reached}{more}".rstrip(". "))
        if limit.dimension is None and limit.reason not in ("window", "looping"):
            return _old_failure_text(outcome, limit)
        return clean(f"{outcome.result}: {outcome.error}")
    return clean(f"{outcome.result} ({outcome.reason}): {outcome.error or 'no reason given'}")


def _old_failure_text(outcome: Outcome, limit: LimitMet) -> str:
    """The text about a limit on tokens or cost that an earlier version stored, without what the next call needed."""
    if limit.reason == "max_cost":
        used, whole = dollar_text(limit.used), dollar_text(limit.limit)
        return f"{outcome.result}: {used} of {whole} spent, and the next call may cost more than is left"
    if limit.used >= limit.limit:
        return clean(f"{outcome.result}: {outcome.error}")
    if not outcome.turns and not limit.used:
        return f"{outcome.result}: the first request alone needs more than max_tokens {limit.limit}"
    return (
        f"{outcome.result}: {limit.used} of max_tokens {limit.limit} used, and the next request needs more than is left"
    )


NO_TIMES: Mapping[RunId, float] = {}


async def times_of(client: ReadOnlyClient, views: Sequence[RunView], *, now: float) -> Mapping[RunId, float]:
    """Seconds by run: from start to end of an ended run, else the active time by its events.

    A run written by a newer version has no readable events here and is left out.
    """
    times: dict[RunId, float] = {}
    for view in views:
        if view.ended_at is not None:
            times[view.run_id] = view.ended_at - view.started_at
            continue
        try:
            events = await client.events(view.run_id)
        except UnknownFormat:
            continue
        times[view.run_id] = seconds_worked(events, until=None if view.state == "interrupted" else now)
    return times


def seconds_worked(events: Sequence[Event], *, until: float | None) -> float:
    """The sum of the periods in which a driver had the run; `until` is the current time if it has one now.

    The period of a driver ends with `RunLeft`: of one that crashed with its last heartbeat or the run's last event.

    >>> left = [RunAdopted(at=100.0, driver_id="a"), RunLeft(at=130.0)]
    >>> seconds_worked(left, until=None), seconds_worked([*left, RunAdopted(at=500.0, driver_id="b")], until=502.0)
    (30.0, 32.0)
    """
    worked = 0.0
    began: float | None = None
    last = 0.0
    for event in events:
        if isinstance(event, RunAdopted) and began is not None:
            worked += max(0.0, last - began)
            began = None
        if began is None:
            began = event.at
        last = max(last, event.at) if isinstance(event, RunLeft) else event.at
        if isinstance(event, RunLeft):
            worked += max(0.0, last - began)
            began = None
    if began is None:
        return worked
    return worked + max(0.0, (last if until is None else until) - began)
