"""Registry of the live runs of this process and of those that ended recently, and the ways to wait for them."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Protocol

from retinue.core.agent import RunSpec
from retinue.core.errors import StoreError
from retinue.core.events import RunAccepted
from retinue.core.ids import RunId, SessionId
from retinue.core.run import Outcome
from retinue.engine.journal_writer import CommitFuture
from retinue.engine.live_run import LiveRun
from retinue.engine.run_view import RunView


class EndedRun:
    """A run that has ended: its view, and the commit of its end.

    A run that ended before this process adopted its tree has no commit and, in memory, no acceptance.
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
        assert self.view.outcome is not None
        return self.view.outcome


class TreeListener(Protocol):
    """Reads the runs of a tree."""

    def join(self, live: LiveRun, *, is_new: bool) -> None:
        """Read a live run, if it belongs to the tree."""
        ...

    def join_placed(self, accepted: RunAccepted) -> None:
        """Read a run that another process drives, if it belongs to the tree."""
        ...

    def leave(self) -> None:
        """Read no run any more."""
        ...


class PlacedRun:
    """A child of a live run that another process drives, or that waits for one."""

    __slots__ = ("accepted", "ancestor", "dependents", "run_spec")

    def __init__(self, accepted: RunAccepted, run_spec: RunSpec, ancestor: RunId | None) -> None:
        self.accepted = accepted
        self.run_spec = run_spec
        self.ancestor = ancestor
        """The nearest run above it that has not ended; it is live here."""
        self.dependents: list[tuple[RunId, str]] = []
        """The runs that wait for its end, each with the name under which it reads the result."""


class RunRegistry:
    """The live runs of a process, by id; parents and children are linked by ids too."""

    def __init__(self, remembered_runs: int) -> None:
        self.live: dict[RunId, LiveRun] = {}
        self.placed: dict[RunId, PlacedRun] = {}
        """Children of live runs that other processes drive."""
        self.ended: OrderedDict[RunId, EndedRun] = OrderedDict()
        """Runs that ended recently, oldest first."""
        self._remembered_runs = remembered_runs
        self._ended_views: dict[tuple[RunId, str], dict[RunId, RunView]] = {}
        self._max_remembered: dict[str, int] = {}
        self._running: Counter[tuple[SessionId, str]] = Counter()
        self._spaces: dict[RunId, str] = {}
        self._pending: dict[RunId, None] = {}
        self._max_running: dict[str, int] = {}
        self._watches: dict[RunId, list[Watch]] = {}
        self._tree_listeners: list[TreeListener] = []

    def add(self, live: LiveRun, handle_space: str | None) -> None:
        accepted = live.run.accepted
        self.live[accepted.run_id] = live
        if handle_space is not None:
            self._spaces[accepted.run_id] = handle_space
            self._running[accepted.session_id, handle_space] += 1
            if accepted.after:
                self._pending[accepted.run_id] = None
                live.needs_slot = handle_space in self._max_running and not live.run.turns
        ancestor = self.live.get(live.ancestor) if live.ancestor else None
        if ancestor is not None:
            is_parent = live.ancestor == accepted.parent_id
            ancestor.children_created += is_parent
            ancestor.children[accepted.run_id] = is_parent and _holds_parent(live)
        for listener in self._tree_listeners:
            listener.join(live, is_new=live.acceptance is not None)

    def add_placed(self, placed: PlacedRun) -> None:
        """Add a child of a live run that another process drives: the run above knows it like one of its own."""
        accepted = placed.accepted
        self.placed[accepted.run_id] = placed
        ancestor = self.live.get(placed.ancestor) if placed.ancestor else None
        if ancestor is not None:
            is_parent = placed.ancestor == accepted.parent_id
            ancestor.children_created += is_parent
            ancestor.children[accepted.run_id] = is_parent and accepted.lifecycle.on_parent_end == "wait"
        for listener in self._tree_listeners:
            listener.join_placed(accepted)

    def remove_placed(self, run_id: RunId) -> PlacedRun | None:
        """Remove a placed run, because it has ended, was not created, or is driven here from now on."""
        placed = self.placed.pop(run_id, None)
        if placed is not None:
            ancestor = self.live.get(placed.ancestor) if placed.ancestor else None
            if ancestor is not None and ancestor.children.pop(run_id, None) is not None:
                ancestor.wake()
        return placed

    def update_parent(self, live: LiveRun) -> None:
        """An exchange of a kept-alive run has started or ended: its parent's end waits for it while it works."""
        accepted = live.run.accepted
        ancestor = self.live.get(live.ancestor) if live.ancestor else None
        if ancestor is not None and live.ancestor == accepted.parent_id:
            ancestor.children[accepted.run_id] = _holds_parent(live)
            ancestor.wake()

    def remove(self, live: LiveRun, outcome: Outcome, ended_at: float) -> None:
        """Move a run that has ended here to the ended ones, and notify those that wait for it."""
        accepted = live.run.accepted
        live.run.outcome = outcome
        self.drop(live)
        view = live.view(ended_at=ended_at)
        self.remember(EndedRun(accepted, view, live.last_write, len(live.run.exchanges)))
        ancestor = self.live.get(live.ancestor) if live.ancestor else None
        for child_id in live.children:
            # A run that outlives its parent stays below the runs above it, where a cancel has to find it.
            if (child := self.live.get(child_id)) is not None:
                child.ancestor = live.ancestor
                if ancestor is not None:
                    ancestor.children[child_id] = False
            elif (placed := self.placed.get(child_id)) is not None:
                placed.ancestor = live.ancestor
                if ancestor is not None:
                    ancestor.children[child_id] = False
        self.release_ancestor(live)
        self.notify(accepted.run_id)

    def release_ancestor(self, live: LiveRun) -> None:
        """Remove a run from the children of the run above it."""
        ancestor = self.live.get(live.ancestor) if live.ancestor else None
        if ancestor is not None and ancestor.children.pop(live.run_id, None) is not None:
            ancestor.wake()

    def remember(self, ended: EndedRun) -> None:
        """Remember an ended run; the oldest is dropped when there are too many."""
        view = ended.view
        tree = self._ended_views.setdefault((view.root_id, view.dialect), {})
        self.ended[view.run_id] = ended
        tree[view.run_id] = view
        if len(tree) > self._max_remembered.get(view.dialect, self._remembered_runs):
            self._forget(next(iter(tree)))
        if len(self.ended) > self._remembered_runs:
            self._forget(next(iter(self.ended)))

    def limit_remembered(self, dialect: str, count: int) -> None:
        """Remember at most `count` ended runs of a dialect in each tree."""
        self._max_remembered[dialect] = count

    def ended_in(self, root_id: RunId, dialect: str) -> Mapping[RunId, RunView]:
        """The remembered runs of a tree that a dialect started, in the order of their ends."""
        return self._ended_views.get((root_id, dialect), {})

    def _forget(self, run_id: RunId) -> None:
        """Drop an ended run; from now on it is read from the store."""
        view = self.ended.pop(run_id).view
        tree = view.root_id, view.dialect
        del self._ended_views[tree][run_id]
        if not self._ended_views[tree]:
            del self._ended_views[tree]

    def drop(self, live: LiveRun) -> None:
        accepted = live.run.accepted
        self.live.pop(accepted.run_id, None)
        space = self._spaces.pop(accepted.run_id, None)
        if space is not None:
            self._running[accepted.session_id, space] -= 1
            if self._pending:
                self._grant_slots(accepted.session_id, space)

    def limit_running(self, handle_space: str, count: int) -> None:
        """Let a run with dependencies and a handle in that space start only while fewer runs of its session run."""
        self._max_running[handle_space] = count

    def request_slot(self, live: LiveRun) -> None:
        self._grant_slots(live.run.accepted.session_id, self._spaces[live.run_id])

    def _grant_slots(self, session_id: SessionId, handle_space: str) -> None:
        """Start the runs whose dependencies have ended, oldest first, while there are free slots."""
        free = self._max_running.get(handle_space, 0) - self.running(session_id, handle_space)
        if free <= 0:
            return
        waiting = (self.live[run_id] for run_id in self._pending if self._spaces.get(run_id) == handle_space)
        ready = (each for each in waiting if each.needs_slot and not each.run.is_pending)
        for live in tuple(islice((each for each in ready if each.run.accepted.session_id == session_id), free)):
            live.needs_slot = False
            live.wake()

    def running(self, session_id: SessionId, handle_space: str) -> int:
        """How many runs of a session with a handle in that space run; those that wait for dependencies do not count."""
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
        """A live run and its live descendants, parents first; iterative, because trees may be deeper than the stack."""
        below = [run_id]
        while below:
            live = self.live.get(below.pop())
            if live is not None:
                yield live
                below.extend(live.children)

    @contextmanager
    def tree_listener(self, listener: TreeListener) -> Generator[None]:
        """Let `listener` join all live runs and, for the length of the block, each run that is added."""
        for live in tuple(self.live.values()):
            listener.join(live, is_new=False)
        self._tree_listeners.append(listener)
        try:
            yield
        finally:
            self._tree_listeners.remove(listener)
            listener.leave()

    def watch(self, run_ids: Iterable[RunId], *, ends_only: bool = False) -> Watch:
        """Receive every end of an exchange or of one of these runs, for the length of a `with` block.

        With `ends_only`, of a placed run only its end: a caller that waits for thousands does not look at each of them
        whenever another process writes.
        """
        return Watch(self._watches, tuple(dict.fromkeys(run_ids)), ends_only=ends_only)

    def notify(self, run_id: RunId) -> None:
        for watch in self._watches.get(run_id, ()):
            watch.notify(run_id)

    def notify_change(self, run_id: RunId) -> None:
        """Another process may have changed a run."""
        is_placed = run_id in self.placed
        for watch in self._watches.get(run_id, ()):
            if not (is_placed and watch.ends_only):
                watch.notify(run_id)

    def fail(self, error: StoreError) -> None:
        """Raise `error` in everything that waits: no run can change here any more."""
        for watches in self._watches.values():
            for watch in watches:
                watch.fail(error)

    @property
    def watched(self) -> tuple[RunId, ...]:
        return tuple(self._watches)


def _holds_parent(live: LiveRun) -> bool:
    return live.run.accepted.lifecycle.on_parent_end == "wait" and (live.run.in_exchange or bool(live.inbox))


class Watch:
    """Notifications about some runs, for the length of a `with` block."""

    __slots__ = ("_all", "_changed", "_error", "_future", "_run_ids", "ends_only")

    def __init__(
        self, all_watches: dict[RunId, list[Watch]], run_ids: tuple[RunId, ...], *, ends_only: bool = False
    ) -> None:
        self._all = all_watches
        self.ends_only = ends_only
        self._run_ids = run_ids
        self._changed: list[RunId] = []
        self._future: asyncio.Future[None] | None = None
        self._error: StoreError | None = None

    def __enter__(self) -> Watch:
        for run_id in self._run_ids:
            self._all.setdefault(run_id, []).append(self)
        return self

    def __exit__(self, *_: object) -> None:
        for run_id in self._run_ids:
            watches = self._all[run_id]
            watches.remove(self)
            if not watches:
                del self._all[run_id]

    def notify(self, run_id: RunId) -> None:
        self._changed.append(run_id)
        self._wake()

    def fail(self, error: StoreError) -> None:
        """There will be no more notifications."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def changed(self) -> list[RunId]:
        """The runs of the notifications since the last call; waits until there is one."""
        if not self._changed and self._error is None:
            self._future = asyncio.get_running_loop().create_future()
            await self._future
        if self._error is not None:
            raise self._error
        changed, self._changed = self._changed, []
        return changed
