"""This process as a driver: heartbeat, inbox poll, watch over other drivers, adoption; and `build_engine`.

Every run points to its driver. A driver that is declared dead loses all its runs at once, and none of its later writes
is accepted. Reading runs never starts any: a process adopts runs only on request. A tree is adopted as a whole or not
at all, and only by a process that has every tool and provider that its runs need.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from retinue.core.budget import Amount
from retinue.core.commands import (
    DEFAULT_LEASE,
    Adopt,
    Change,
    DriverRow,
    Heartbeat,
    RegisterDriver,
    RunQuery,
    RunRow,
    UnregisterDriver,
)
from retinue.core.errors import BadInput, Fenced, NotAdoptable, StoreError, StoreUnavailable
from retinue.core.events import FORMAT, RunAdopted, RunLeft
from retinue.core.ids import DriverId, RandomIds, RunId
from retinue.core.inbox import Item
from retinue.core.log_context import logger
from retinue.core.policy import Policy, Rules
from retinue.core.ports import (
    Clock,
    Hooks,
    Ids,
    OnChange,
    OutputValidator,
    Providers,
    Store,
    Toolbox,
    Tracing,
    WorkspaceFolders,
)
from retinue.core.state import Run
from retinue.core.workspace import WorkspaceUnavailable, is_address
from retinue.engine.admission import current_policy, current_windows, with_readable_memory
from retinue.engine.budgets import Budgets
from retinue.engine.context import Approver, EngineContext, Tuning, WorkerRole
from retinue.engine.driver_table import (
    DriverTable,
    RequestGate,
    begin_of_marking,
    end_of_interruption,
    end_of_signs,
    interruption,
    sign_of_life,
    this_host,
    this_process,
)
from retinue.engine.hooks import NO_HOOKS, HookSet
from retinue.engine.journal_writer import CommitTimes, Journal
from retinue.engine.live_run import LiveRun
from retinue.engine.loop import Executor
from retinue.engine.rate_limiter import SYNC_SECONDS, RateLimiters, SharedRateLimits
from retinue.engine.registry import EndedRun, RunRegistry
from retinue.engine.run_view import view_of_row
from retinue.engine.store_access import Handles, OpenSessions, Replay
from retinue.engine.supervisor import Supervisor

log = logger("retinue.engine")

REMEMBERED_IN_TREE = 256
"""Runs that ended before their tree was adopted and are remembered; older ones are read from the store."""


class Recovery:
    """Continues runs that this driver did not start, or had to stop."""

    def __init__(
        self, engine: EngineContext, registry: RunRegistry, executor: Executor, replay: Replay, driver_id: DriverId
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._executor = executor
        self._replay = replay
        self._driver_id = driver_id

    async def adopt(self, root_id: RunId | None = None) -> list[RunId]:
        """Adopt trees without a driver; the ids of their runs. With `root_id` that tree, or raise if it cannot be."""
        query = RunQuery(unfinished_only=True, undriven_only=True, root_id=root_id)
        rows = await self._engine.journal.read(self._engine.store.runs, query)
        adopted: list[RunId] = []
        for tree in _trees(rows):
            try:
                adopted += await self.adopt_runs(tree)
            except (NotAdoptable, StoreError) as obstacle:
                if root_id is not None or self._engine.journal.broken is not None:
                    raise
                log.warning("%s", obstacle)
        return adopted

    async def resume_own(self, *, stopped_at: float | None = None) -> list[RunId]:
        """Continue this driver's own runs from what the store knows; their time stood still since `stopped_at`."""
        query = RunQuery(unfinished_only=True, driver_id=self._driver_id)
        rows = await self._engine.journal.read(self._engine.store.runs, query)
        stopped = [row for row in rows if row.run_id not in self._registry.live]  # others were started meanwhile
        for tree in _trees(stopped):
            await self._continue_tree(tree, await self._replay.runs([row.run_id for row in tree]), stopped_at)
        return [row.run_id for row in stopped]

    async def adopt_runs(self, rows: Sequence[RunRow]) -> list[RunId]:
        """Adopt these runs of one tree; the ids of those that were adopted. Raises `NotAdoptable` if one cannot be."""
        rows = list({row.run_id: row for row in rows}.values())  # a run that is given twice is driven once
        await self.check_runs(rows)
        ids = tuple(row.run_id for row in rows)
        runs = await self._replay.runs(ids)  # a run that cannot be read is not claimed either
        await self._check_placed(rows)
        ends = (end_of_interruption({row.root_id for row in rows}),) if self._engine.store.shared else ()
        worker, has_root = self._engine.worker, any(row.parent_id is None for row in rows)
        max_trees = worker.max_trees if worker is not None and has_root else None
        adopt = Adopt(driver_id=self._driver_id, run_ids=ids, max_trees=max_trees)
        answer, *_ = await self._engine.journal.commit(adopt, *ends)
        mine = set(answer) if isinstance(answer, tuple) else set[RunId]()
        await self._continue_tree([row for row in rows if row.run_id in mine], runs)
        return [run_id for run_id in ids if run_id in mine]

    def check_formats(self, rows: Sequence[RunRow]) -> None:
        """Raise if one of these runs has a newer format."""
        for row in rows:
            if row.format > FORMAT:
                reason = f"its events have format {row.format}; this retinue knows up to {FORMAT}"
                raise NotAdoptable(row.run_id, reason)

    async def check_runs(self, rows: Sequence[RunRow]) -> None:
        """Raise if one of these runs cannot be continued here."""
        self.check_formats(rows)
        checked = set[str]()
        for row in rows:
            await self._check(row, checked)

    async def _check(self, row: RunRow, checked: set[str]) -> None:
        """Raise if a run cannot be continued here; `checked` are the run specs that can."""
        if row.run_spec in checked:
            return
        run_spec = await self._engine.journal.read(self._engine.store.run_spec, row.run_spec)
        try:
            provider = self._engine.providers.find(run_spec.provider)
        except BadInput as wrong:
            raise NotAdoptable(row.run_id, str(wrong)) from wrong
        if provider is None:
            raise NotAdoptable(row.run_id, f"no provider named {run_spec.provider!r} here")
        found = {name: self._engine.toolbox.find(name, run_spec.dialects) for name in run_spec.offered}
        missing = [name for name, tool in found.items() if tool is None]
        if missing:
            raise NotAdoptable(row.run_id, f"no tool named {', '.join(missing)} here")
        worker = self._engine.worker
        if worker is not None and (lacking := sorted(set(run_spec.tags) - worker.tags)):
            raise NotAdoptable(row.run_id, f"this worker has no tag {', '.join(lacking)}")
        if is_address(run_spec.workspace):
            await self._check_workspace(row.run_id, run_spec.workspace)
        checked.add(row.run_spec)

    async def _check_workspace(self, run_id: RunId, workspace: str) -> None:
        # Before the run is adopted: once it is, a workspace that cannot be fetched ends it as failed.
        if self._engine.folders is None:
            raise NotAdoptable(run_id, f"this process does not fetch workspaces, and the run needs {workspace}")
        try:
            await self._engine.folders.check(workspace)
        except WorkspaceUnavailable as obstacle:
            raise NotAdoptable(run_id, str(obstacle)) from obstacle

    async def _check_placed(self, rows: Sequence[RunRow]) -> None:
        """Raise if a run below these, which other processes drive, cannot be read, as one of a newer version."""
        if all(row.seq == 1 for row in rows):
            return  # nothing is below new ones
        tree = await self._tree_of(rows)
        ended = {row.run_id: row for row in tree if row.progress.phase == "ended"}
        mine = {row.run_id for row in rows}
        below = [row.run_id for row in _with_placed(rows, tree, ended) if row.run_id not in mine]
        await self._replay.runs(below)

    async def _continue_tree(self, rows: list[RunRow], runs: dict[RunId, Run], stopped_at: float | None = None) -> None:
        """Rebuild a tree from the root down, then start all its runs; `runs` are as they were read before."""
        if not rows:
            return
        tree = await self._tree_of(rows)
        ended = {row.run_id: row for row in tree if row.progress.phase == "ended"}
        lengths = {row.run_id: row.seq for row in tree}
        inboxes = await self._inboxes(rows)
        if isinstance(self._engine.ids, RandomIds):
            self._engine.ids.follow(max(row.run_id for row in tree))
        continued: list[LiveRun] = []
        policies: dict[RunId, Policy] = {}
        mine = {row.run_id for row in rows}
        for row in sorted(_with_placed(rows, tree, ended), key=lambda row: (row.depth, row.accepted_at, row.run_id)):
            self._executor.take_back(row.run_id)
            if row.run_id not in mine:
                await self._place(row, _live_ancestor(row, ended))
                continue
            run = runs[row.run_id]
            if run.seq != lengths[row.run_id]:  # another process has driven it meanwhile
                run = await self._replay.run(row.run_id)
            ancestor = _live_ancestor(row, ended)
            run.policy = await current_policy(run, policies, self._engine.rules, self._replay)
            run.run_spec = with_readable_memory(run.run_spec, run.accepted.agent, self._engine.rules)
            windows = current_windows(run, self._engine.rules)
            await self._engine.budgets.load_windows(windows)
            live = self._executor.prepare(run)
            live.ancestor = ancestor
            self._engine.budgets.open(replace(run.accepted, windows=windows), above=ancestor)
            for item in inboxes[row.run_id]:
                live.deliver(item)
            continued.append(live)
        # All accounts are open by now: what was reserved for a child stays reserved, whatever its parent has used.
        for live in continued:
            run = live.run
            spent = Amount.of(run.usage + run.estimated, (run.cost or 0) + run.estimated_cost, turns=0)
            self._engine.budgets.recharge(live.run_id, spent)
        self._charge_ended(ended, mine)
        for live in continued:
            if (spent_before := live.run.spent_before) is not None:
                self._engine.budgets.credit(live.run_id, spent_before)
        self._remember(ended)
        for live in continued:
            handle = live.run.accepted.handle
            if stopped_at is not None:
                live.record(RunLeft(at=stopped_at))
            live.record(RunAdopted(at=self._engine.clock.now(), driver_id=self._driver_id))
            self._executor.start(live, handle_space=handle.space if handle else None)
        for live in continued:
            await self._executor.await_missing_dependencies(live)
        created = Counter(row.parent_id for row in tree)
        owns_tree = all(row.run_id in mine or row.run_id in ended for row in tree)
        for live in continued:
            live.children_created = created[live.run_id]
            live.owns_tree = owns_tree and live.run.accepted.parent_id is None
        await self._cancel_orphans(continued, ended)
        for callback in self._engine.on_adopt:
            await callback([live.run for live in continued])

    async def _tree_of(self, rows: Sequence[RunRow]) -> list[RunRow]:
        """The rows that matter for continuing these runs of a tree: all, or of new placed children those above them."""
        read, store = self._engine.journal.read, self._engine.store
        if all(row.parent_id is not None and row.seq == 1 for row in rows):
            found = {row.run_id: row for row in await read(store.runs, _these(row.run_id for row in rows))}
            above = {row.parent_id for row in rows if row.parent_id is not None} - set(found)
            while above:
                parents = await read(store.runs, _these(above))
                found.update((row.run_id, row) for row in parents)
                above = {row.parent_id for row in parents if row.parent_id is not None} - set(found)
            if all(found[row.run_id].seq == 1 for row in rows):  # no process has driven them: nothing is below them
                return list(found.values())
        return await read(store.runs, RunQuery(root_id=rows[0].root_id))

    async def _inboxes(self, rows: Sequence[RunRow]) -> dict[RunId, list[Item]]:
        """What waits for runs that this process drives."""
        store = self._engine.store
        if len(rows) == 1:
            (row,) = rows
            return {row.run_id: await self._engine.journal.read(store.inbox, row.run_id)}
        inboxes: dict[RunId, list[Item]] = {row.run_id: [] for row in rows}
        for run_id, item in await self._engine.journal.read(store.inbox_for, self._driver_id):
            if run_id in inboxes:
                inboxes[run_id].append(item)
        return inboxes

    def _remember(self, ended: dict[RunId, RunRow]) -> None:
        latest = sorted(ended.values(), key=lambda row: (row.progress.ended_at or 0.0, row.run_id))
        for row in latest[-REMEMBERED_IN_TREE:]:
            outcome = row.progress.outcome
            if outcome is not None and row.run_id not in self._registry.ended:
                self._registry.remember(EndedRun(None, view_of_row(row, alive=False), None, outcome.exchanges))

    async def _place(self, row: RunRow, ancestor: RunId | None) -> None:
        """Keep account of a child of a continued run that another process drives."""
        run = await self._replay.run(row.run_id)
        self._engine.budgets.open(run.accepted, above=ancestor)
        self._executor.place(run.accepted, run.run_spec, ancestor)

    def _charge_ended(self, ended: dict[RunId, RunRow], mine: set[RunId]) -> None:
        """Charge what ended runs used to those of their ancestors that are continued here."""
        for row in ended.values():
            if (ancestor := _live_ancestor(row, ended)) is not None and ancestor in mine:
                spent = Amount.of(row.progress.usage, row.progress.cost, turns=0)
                self._engine.budgets.recharge(ancestor, spent)

    async def _cancel_orphans(self, continued: list[LiveRun], ended: dict[RunId, RunRow]) -> None:
        """Cancel children of ended parents: a crash may come between a parent's end and the cancel of its children."""
        for live in continued:
            accepted = live.run.accepted
            if accepted.parent_id in ended and accepted.lifecycle.on_parent_end != "keep":
                await self._executor.cancel(accepted.run_id, "parent_ended", "its parent has ended")


def _these(run_ids: Iterable[RunId]) -> RunQuery:
    return RunQuery(run_ids=tuple(run_ids))


def _trees(rows: Sequence[RunRow]) -> Collection[list[RunRow]]:
    """Rows, newest first, by their trees, the oldest tree first."""
    trees: dict[RunId, list[RunRow]] = {row.root_id: [] for row in reversed(rows)}
    for row in rows:
        trees[row.root_id].append(row)
    return trees.values()


def _with_placed(rows: Sequence[RunRow], tree: Sequence[RunRow], ended: dict[RunId, RunRow]) -> list[RunRow]:
    """The rows of runs to continue, and those of their unfinished children that other processes drive."""
    mine = {row.run_id for row in rows}
    return [
        *rows,
        *(
            row
            for row in tree
            if row.run_id not in mine and row.run_id not in ended and _live_ancestor(row, ended) in mine
        ),
    ]


def _live_ancestor(row: RunRow, ended: dict[RunId, RunRow]) -> RunId | None:
    parent_id = row.parent_id
    while parent_id in ended:
        parent_id = ended[parent_id].parent_id
    return parent_id


POLL_INTERVAL = 0.25
"""Seconds between two looks for inbox items that other processes posted."""

WAKE_UP_PAUSE = 0.01
"""Seconds between two looks at least, however often other processes write."""

WATCH_INTERVAL = 1.0
"""Seconds between two looks at other drivers at most: a dead one is noticed that soon after its lease."""


class Driver:
    """The row of this process among the drivers, and the tasks that maintain it."""

    def __init__(
        self,
        engine: EngineContext,
        registry: RunRegistry,
        executor: Executor,
        replay: Replay,
        handles: Handles,
        open_sessions: OpenSessions,
        *,
        adopts: bool,
        lease: float,
    ) -> None:
        self.driver_id: DriverId = engine.ids.new()
        self._engine = engine
        self._registry = registry
        self._executor = executor
        self._handles = handles
        self._open_sessions = open_sessions
        self._recovery = Recovery(engine, registry, executor, replay, self.driver_id)
        self._adopts = adopts
        self._lease = lease
        self._tasks: list[asyncio.Task[None]] = []
        self._rate_limits: SharedRateLimits | None = None
        self._stop_wake_ups: Callable[[], None] | None = None
        self._beats: dict[DriverId, tuple[int, float]] = {}
        """The heartbeat counter of each other driver, and since when it has that value."""
        self._watched_at = 0.0
        self.leave_by: float | None = None
        """The time of the loop at which `leave` gives the runs up, also if their workspaces are not handed back yet."""
        self._unread = False
        """Whether items from other processes may not have reached their run yet."""
        self.takeovers = 0
        """Drivers that this process has declared dead after their lease."""
        self._refused: StoreError | None = None
        """The refusal since which memory may be ahead of the store, until the runs continue from what is stored."""

    def work_as(self, role: WorkerRole) -> None:
        """Make this driver a worker, before it is registered.

        A worker declares other drivers dead, adopts what it is told to, leaves children to other workers as its role
        says, and hands its unfinished runs over when it leaves.
        """
        self._engine.worker = role

    async def register(self) -> None:
        journal = self._engine.journal
        journal.driver_id = self.driver_id
        row = DriverRow(driver_id=self.driver_id, host=this_host(), process=this_process(), lease=self._lease)
        shared = self._engine.store.shared
        marking = (begin_of_marking(self._engine.clock.now()),) if shared else ()
        await journal.commit(RegisterDriver(driver=row), *self._sign_of_life(), *marking)
        if shared:
            self._engine.gate.begin_lease(self._lease)
            self._repeat(self._lease / 3, self._heartbeat, "heartbeat")
            self._repeat(POLL_INTERVAL, self._poll_inboxes, "pulse", woken=self._wake_ups())
            limits = SharedRateLimits(self._engine.rate_limiters, journal, self._engine.store, self._engine.clock)
            self._rate_limits = limits
            self._repeat(SYNC_SECONDS, limits.sync, "rate limits", woken=limits.woken)
            if self._adopts or self._engine.worker is not None:
                self._repeat(min(self._lease / 4, WATCH_INTERVAL), self._watch, "watch")
        if self._adopts:
            await self._watch()
        for callback in self._engine.on_register:
            await callback()

    async def leave(self) -> None:
        """Stop all work and close the journal: unfinished runs have no driver then and can be resumed.

        A worker hands its unfinished trees over to other workers; those of any other process are left to a person.
        """
        self._engine.gate.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._stop_wake_ups is not None:
            await asyncio.to_thread(self._stop_wake_ups)
        error = self._engine.journal.broken or StoreUnavailable("this retinue was closed")
        trees = {live.run.accepted.root_id for live in self._registry.live.values()}
        await self._executor.stop_all(error, leaving=True)
        self._registry.fail(error)
        background = tuple(self._engine.background_tasks)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        limit = asyncio.timeout_at(self.leave_by)
        try:
            async with limit:
                for callback in self._engine.on_leave:
                    await callback()
        except TimeoutError:
            if not limit.expired():
                raise
            log.warning("not everything was handed back in time: other processes go on from what was")
        journal = self._engine.journal
        try:
            if journal.broken is None:
                ends = (end_of_signs(self.driver_id),) if self._engine.store.shared else ()
                ends += () if self._rate_limits is None else self._rate_limits.give_back()
                if trees and self._engine.store.shared and self._engine.worker is None:
                    ends = (*ends, interruption(trees))
                await journal.commit(UnregisterDriver(driver_id=self.driver_id), *ends)
        except Fenced as fenced:
            log.warning("%s", fenced)  # for other processes it has left already
        finally:
            await journal.close()

    def drain(self) -> None:
        """Send no request and start no call any more; those in progress go on, and are recorded."""
        self._engine.gate.close()

    @property
    def calls_in_progress(self) -> int:
        """Model requests and tool calls that could still end; those that wait for other runs are not counted."""
        return self._engine.gate.requests + self._engine.gate.calls

    @property
    def seconds_since_heartbeat(self) -> float:
        """The seconds since the last heartbeat that the store has; more than the lease if this driver may be dead."""
        return self._engine.gate.seconds_since_renewal()

    @property
    def commit_times(self) -> CommitTimes:
        return self._engine.journal.commit_times

    @property
    def lease(self) -> float:
        return self._lease

    def _wake_ups(self) -> asyncio.Event | None:
        """An event that is set when another process has written; None if the store cannot tell, and polls must do."""
        store = self._engine.store
        on_change: OnChange | None = getattr(store, "on_change", None)
        if on_change is None or not store.blocking:
            return None
        woken = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        self._stop_wake_ups = on_change(wake)
        return woken

    def _repeat(
        self, seconds: float, do: Callable[[], Awaitable[None]], name: str, *, woken: asyncio.Event | None = None
    ) -> None:
        """Call `do` every so many seconds, and soon after `woken` is set."""

        clock = asyncio.get_running_loop().time

        async def again() -> None:
            took = 0.0
            while True:
                if woken is None:
                    await asyncio.sleep(seconds)
                else:
                    # Not all the time, if there is much to read and others write often.
                    await asyncio.sleep(min(seconds, max(WAKE_UP_PAUSE, 8 * took)))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await woken.wait()
                    woken.clear()
                began = clock()
                try:
                    await do()
                except StoreError as error:
                    log.warning("%s: %s", name, error)
                except Exception:
                    log.exception("%s: a bug", name)  # without a heartbeat the driver would lose all its runs
                took = clock() - began

        self._tasks.append(asyncio.get_running_loop().create_task(again(), name=f"retinue-{name}"))

    async def _heartbeat(self) -> None:
        journal = self._engine.journal
        if isinstance(journal.broken, Fenced):
            return
        self._refused = journal.broken or self._refused
        if self._refused is None:
            self._engine.gate.renew(journal.write(Heartbeat(driver_id=self.driver_id), *self._sign_of_life()))
        elif await journal.reopen(Heartbeat(driver_id=self.driver_id)):
            # Memory may be ahead of the store by the refused writes: begin again from what is stored.
            log.warning("the store can be written again: runs go on")
            await self._executor.stop_all(self._refused)
            self._engine.gate.begin_lease(self._lease)
            await self._recovery.resume_own(stopped_at=self._executor.stopped_at)
            self._refused = None

    def _sign_of_life(self) -> tuple[Change, ...]:
        """The time, for the deadlines of the runs if this process should crash; only other processes read it."""
        return (sign_of_life(self.driver_id, self._engine.clock.now()),) if self._engine.store.shared else ()

    async def _poll_inboxes(self) -> None:
        journal, store, registry = self._engine.journal, self._engine.store, self._registry
        self._unread = await journal.peek(store.changed) or self._unread
        if not self._unread:
            return
        for callback in self._engine.on_change:
            callback()
        waiting = await journal.peek(store.inbox_for, self.driver_id)
        for run_id, item in waiting:
            if (live := registry.live.get(run_id)) is not None:
                live.deliver(item)
        # A run that is being adopted at this moment is not registered yet: look again for it.
        self._unread = any(run_id not in registry.live for run_id, _ in waiting)
        self._handles.clear()
        self._open_sessions.clear()
        self._unread = not await self._executor.settle_placed() or self._unread
        for run_id in registry.watched:
            if run_id not in registry.live and run_id not in registry.ended:
                registry.notify_change(run_id)

    async def _watch(self) -> None:
        """Declare drivers dead whose counter has not changed for their whole lease by our own clock, and adopt."""
        now = asyncio.get_running_loop().time()
        if now - self._watched_at > self._lease:
            self._beats.clear()  # this process was suspended itself, perhaps together with those that it watches
        self._watched_at = now
        for row in await self._engine.drivers.rows():
            if row.driver_id == self.driver_id or row.dead:
                continue
            beat, since = self._beats.get(row.driver_id, (row.beat, now))
            if beat != row.beat:
                beat, since = row.beat, now
            self._beats[row.driver_id] = (beat, since)
            if now - since >= row.lease:
                if await self._engine.drivers.declare_dead(row.driver_id, beat=beat):
                    self.takeovers += 1
                for callback in self._engine.on_change:
                    callback()
        if self._adopts:
            await self.adopt()

    async def adopt(self, root_id: RunId | None = None) -> list[RunId]:
        """Adopt unfinished trees without a driver: all of them, or one."""
        await self._engine.drivers.reap()
        return await self._recovery.adopt(root_id)

    def check_formats(self, rows: Sequence[RunRow]) -> None:
        """Raise `NotAdoptable` if one of these runs was written in a format of a newer version."""
        self._recovery.check_formats(rows)

    async def check_runs(self, rows: Sequence[RunRow]) -> None:
        """Raise `NotAdoptable` if one of these runs needs what this process does not have."""
        await self._recovery.check_runs(rows)

    async def adopt_runs(self, rows: Sequence[RunRow]) -> list[RunId]:
        """Adopt runs of one tree that have no driver; the ids of those that no other process was faster to adopt.

        Raises `NotAdoptable` if one of them needs what this process does not have.
        """
        return await self._recovery.adopt_runs(rows)


def build_engine(
    store: Store,
    toolbox: Toolbox,
    providers: Providers,
    *,
    clock: Clock,
    ids: Ids,
    validate_output: OutputValidator,
    rules: Rules | None = None,
    approver: Approver = "deny",
    durable: bool = False,
    adopts: bool = False,
    lease: float = DEFAULT_LEASE,
    tuning: Tuning | None = None,
    hooks: Sequence[Hooks] = (),
    folders: WorkspaceFolders | None = None,
    tracing: Tracing | None = None,
) -> tuple[Supervisor, Driver]:
    """The supervisor and the driver of this process; the driver has to be registered before runs are started.

    With `durable`, every commit is synced to the disk. With `adopts`, the driver adopts runs whose driver is gone;
    `lease` is the number of seconds without a heartbeat after which other processes may declare it dead. `folders` has
    the workspaces that are fetched. `tracing` makes traces of runs.
    """
    tuning = tuning or Tuning()
    journal = Journal(store, durable=durable, commit_delay=tuning.commit_delay)
    engine = EngineContext(
        store=store,
        journal=journal,
        budgets=Budgets(clock, journal, store),
        drivers=DriverTable(journal, store),
        rate_limiters=RateLimiters(),
        gate=RequestGate(journal),
        toolbox=toolbox,
        providers=providers,
        clock=clock,
        ids=ids,
        rules=rules or Rules(),
        validate_output=validate_output,
        approver=approver,
        folders=folders,
        tracing=tracing,
        on_event=[] if tracing is None else [tracing.record],
        tuning=tuning,
        hooks=HookSet(hooks) if hooks else NO_HOOKS,
    )
    registry = RunRegistry(tuning.remembered_runs)
    replay = Replay(engine, registry)
    executor = Executor(engine, registry, replay)
    journal.on_broken = executor.journal_broken
    handles = Handles(engine)
    open_sessions = OpenSessions(engine)
    driver = Driver(engine, registry, executor, replay, handles, open_sessions, adopts=adopts, lease=lease)
    return Supervisor(engine, registry, executor, replay, handles, open_sessions), driver
