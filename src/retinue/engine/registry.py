"""Who is alive in this process and who ended lately, and the ways to wait for them."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import TracebackType

from retinue.core.errors import StoreError
from retinue.core.events import RunAccepted
from retinue.core.ids import RunId, SessionId
from retinue.core.run import Outcome
from retinue.engine.journal import CommitFuture
from retinue.engine.live_run import LiveRun
from retinue.engine.run_view import RunView, of_live_run

REMEMBERED = 4096
"""Ended runs whose view is answered from memory; older ones are read from the store."""


class Ended:
    """A run that is over: its view, and the ticket of its end.

    One that ended before this process took over its tree has neither a ticket nor, in memory, its acceptance.
    """

    __slots__ = ("accepted", "commit_future", "exchanges", "view")

    def __init__(
        self, accepted: RunAccepted | None, view: RunView, commit_future: CommitFuture | None, exchanges: int
    ) -> None:
        self.accepted = accepted
        self.view = view
        self.commit_future = commit_future
        self.exchanges = exchanges

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        assert self.view.outcome is not None
        return self.view.outcome


class RunRegistry:
    """The live runs of a process; who is whose child is data."""

    def __init__(self) -> None:
        self.live: dict[RunId, LiveRun] = {}
        self.ended: OrderedDict[RunId, Ended] = OrderedDict()
        self._ended_in: dict[tuple[RunId, str], dict[RunId, Ended]] = {}
        self._most: dict[str, int] = {}
        self._running: Counter[tuple[SessionId, str]] = Counter()
        self._spaces: dict[RunId, str] = {}
        self._pending: dict[RunId, None] = {}
        self._places: dict[str, int] = {}
        self._watches: dict[RunId, list[Watch]] = {}

    def add(self, live: LiveRun, handle_space: str | None) -> None:
        """A run begins here."""
        accepted = live.run.accepted
        self.live[accepted.run_id] = live
        if handle_space is not None:
            self._spaces[accepted.run_id] = handle_space
            self._running[accepted.session_id, handle_space] += 1
            if accepted.after:
                self._pending[accepted.run_id] = None
                live.held = handle_space in self._places and not live.run.turns
        above = self.live.get(live.above) if live.above else None
        if above is not None:
            is_parent = live.above == accepted.parent_id
            above.children_created += is_parent
            above.children[accepted.run_id] = is_parent and _holds_its_parent(live)

    def hold(self, live: LiveRun) -> None:
        """A run that stays has begun or ended an exchange: its parent's end waits for it while it is at work."""
        accepted = live.run.accepted
        above = self.live.get(live.above) if live.above else None
        if above is not None and live.above == accepted.parent_id:
            above.children[accepted.run_id] = _holds_its_parent(live)
            above.wake()

    def remove(self, live: LiveRun, outcome: Outcome, ended_at: float) -> None:
        """A run has ended here."""
        accepted = live.run.accepted
        live.run.outcome = outcome
        self._leave(live)
        view = of_live_run(live, ended_at=ended_at)
        self.remember(Ended(accepted, view, live.last_write, len(live.run.exchanges)))
        above = self.live.get(live.above) if live.above else None
        for child_id in live.children:
            # Who outlives its parent is still below everyone above it, where a cancel has to find it.
            if (child := self.live.get(child_id)) is not None:
                child.above = live.above
                if above is not None:
                    above.children[child_id] = False
        if above is not None and above.children.pop(accepted.run_id, None) is not None:
            above.wake()
        self.tell(accepted.run_id)

    def remember(self, ended: Ended) -> None:
        """A run is over, here or before this process took over; only the last ones are remembered."""
        view = ended.view
        tree = self._ended_in.setdefault((view.root_id, view.dialect), {})
        self.ended[view.run_id] = tree[view.run_id] = ended
        if len(tree) > self._most.get(view.dialect, REMEMBERED):
            self._forget(next(iter(tree)))
        if len(self.ended) > REMEMBERED:
            self._forget(next(iter(self.ended)))

    def keep_at_most(self, dialect: str, count: int) -> None:
        """Remember only so many ended runs of a tree that this dialect started."""
        self._most[dialect] = count

    def ended_in(self, root_id: RunId, dialect: str) -> Mapping[RunId, Ended]:
        """The runs of a tree that a dialect started, that are over and remembered, in the order of their ends."""
        return self._ended_in.get((root_id, dialect), {})

    def _forget(self, run_id: RunId) -> None:
        """From now on this run, which is over, is read from the store."""
        view = self.ended.pop(run_id).view
        tree = view.root_id, view.dialect
        del self._ended_in[tree][run_id]
        if not self._ended_in[tree]:
            del self._ended_in[tree]

    def lose(self, live: LiveRun) -> None:
        """A run is no longer driven here, without having ended."""
        self._leave(live)

    def _leave(self, live: LiveRun) -> None:
        accepted = live.run.accepted
        self.live.pop(accepted.run_id, None)
        space = self._spaces.pop(accepted.run_id, None)
        if space is not None:
            self._running[accepted.session_id, space] -= 1
            if self._pending:
                self._give_places(accepted.session_id, space)

    def run_at_most(self, handle_space: str, count: int) -> None:
        """Let runs with a handle in that space that waited for others begin only while fewer of their session run."""
        self._places[handle_space] = count

    def ask_for_place(self, live: LiveRun) -> None:
        """A run that waited for others could begin."""
        self._give_places(live.run.accepted.session_id, self._spaces[live.run_id])

    def _give_places(self, session_id: SessionId, handle_space: str) -> None:
        """Let those begin that could, in the order of their births, while there is room."""
        free = self._places.get(handle_space, 0) - self.running(session_id, handle_space)
        if free <= 0:
            return
        waiting = (self.live[run_id] for run_id in self._pending if self._spaces.get(run_id) == handle_space)
        could = (each for each in waiting if each.held and not each.run.is_pending)
        for live in tuple(islice((each for each in could if each.run.accepted.session_id == session_id), free)):
            live.held = False
            live.wake()

    def running(self, session_id: SessionId, handle_space: str) -> int:
        """How many runs with a handle in that space are running; those that wait for others to begin are not."""
        for run_id in tuple(self._pending):
            live = self.live.get(run_id)
            if live is None or not live.is_pending:
                del self._pending[run_id]
        waiting = sum(
            self._spaces.get(run_id) == handle_space and self.live[run_id].run.accepted.session_id == session_id
            for run_id in self._pending
        )
        return self._running[session_id, handle_space] - waiting

    def subtree(self, run_id: RunId) -> Iterator[LiveRun]:
        """A live run and all its live descendants, parents before children; trees may be deeper than Python's stack."""
        below = [run_id]
        while below:
            live = self.live.get(below.pop())
            if live is not None:
                yield live
                below.extend(live.children)

    # Waiting

    def watch(self, run_ids: Iterable[RunId]) -> Watch:
        """Hear of every exchange or end of these runs, for as long as the `with` block lasts."""
        return Watch(self._watches, tuple(dict.fromkeys(run_ids)))

    def tell(self, run_id: RunId) -> None:
        """Let those who watch a run look again."""
        for watch in self._watches.get(run_id, ()):
            watch.hear(run_id)

    def fail(self, error: StoreError) -> None:
        """Nothing more will be heard of any run here."""
        for watches in self._watches.values():
            for watch in watches:
                watch.fail(error)

    @property
    def watched(self) -> tuple[RunId, ...]:
        """Runs that somebody here waits for."""
        return tuple(self._watches)


def _holds_its_parent(live: LiveRun) -> bool:
    return live.run.accepted.lifecycle.on_parent_end == "wait" and (live.run.in_exchange or bool(live.inbox))


class Watch:
    """One watcher's news, of some runs and for the length of a `with` block."""

    __slots__ = ("_all", "_error", "_future", "_heard", "_run_ids")

    def __init__(self, all_watches: dict[RunId, list[Watch]], run_ids: tuple[RunId, ...]) -> None:
        self._all = all_watches
        self._run_ids = run_ids
        self._heard: list[RunId] = []
        self._future: asyncio.Future[None] | None = None
        self._error: StoreError | None = None

    def __enter__(self) -> Watch:
        for run_id in self._run_ids:
            self._all.setdefault(run_id, []).append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for run_id in self._run_ids:
            watches = self._all[run_id]
            watches.remove(self)
            if not watches:
                del self._all[run_id]

    def hear(self, run_id: RunId) -> None:
        """Something ended in that run."""
        self._heard.append(run_id)
        self._wake()

    def fail(self, error: StoreError) -> None:
        """There will be no more news."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def news(self) -> list[RunId]:
        """The runs heard of since the last time; waits until there is one."""
        if not self._heard and self._error is None:
            self._future = asyncio.get_running_loop().create_future()
            await self._future
        if self._error is not None:
            raise self._error
        heard, self._heard = self._heard, []
        return heard
