"""This process as a driver: heartbeat, inbox poll, watch over other drivers, adoption; and `build_engine`.

Every run points to its driver. A driver that is declared dead loses all its runs at once, and none of its later writes
is accepted. Reading runs never starts any: a process adopts runs only on request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from retinue.core.commands import DEFAULT_LEASE, Change, DriverRow, Heartbeat, RegisterDriver, UnregisterDriver
from retinue.core.errors import Fenced, StoreError, StoreUnavailable
from retinue.core.ids import DriverId, RunId
from retinue.core.log_context import logger
from retinue.core.policy import Rules
from retinue.core.ports import (
    Clock,
    Hooks,
    Ids,
    OutputValidator,
    Providers,
    Store,
    Toolbox,
    WorkspaceFolders,
    on_change_of,
)
from retinue.engine.budgets import Budgets
from retinue.engine.context import Approver, EngineContext, Tuning
from retinue.engine.driver_table import DriverTable, end_of_signs, sign_of_life, this_host, this_process
from retinue.engine.hooks import NO_HOOKS, HookSet
from retinue.engine.journal_writer import Journal
from retinue.engine.loop import Executor
from retinue.engine.rate_limiter import RateLimiters
from retinue.engine.recovery import Recovery
from retinue.engine.registry import RunRegistry
from retinue.engine.shared_rate_limits import SYNC_SECONDS, SharedRateLimits
from retinue.engine.stored import Handles, OpenSessions, Replay
from retinue.engine.supervisor import Supervisor

log = logger("retinue.engine")

POLL_INTERVAL = 0.25
"""Seconds between two looks for inbox items that other processes posted."""

WAKE_UP_PAUSE = 0.01
"""Seconds between two looks at least, however often other processes write."""


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
        self._unread = False
        """Whether items from other processes may not have reached their run yet."""
        self._refused: StoreError | None = None
        """The refusal since which memory may be ahead of the store, until the runs continue from what is stored."""

    async def register(self) -> None:
        journal = self._engine.journal
        journal.driver_id = self.driver_id
        row = DriverRow(driver_id=self.driver_id, host=this_host(), process=this_process(), lease=self._lease)
        await journal.commit(RegisterDriver(driver=row), *self._sign_of_life())
        if self._engine.store.shared:
            self._repeat(self._lease / 3, self._heartbeat, "heartbeat")
            self._repeat(POLL_INTERVAL, self._poll_inboxes, "pulse", woken=self._wake_ups())
            limits = SharedRateLimits(self._engine.rate_limiters, journal, self._engine.store, self._engine.clock)
            self._rate_limits = limits
            self._repeat(SYNC_SECONDS, limits.sync, "rate limits", woken=limits.woken)
            if self._adopts:
                self._repeat(self._lease / 4, self._watch, "watch")
        if self._adopts:
            await self._watch()
        for callback in self._engine.on_register:
            await callback()

    async def leave(self) -> None:
        """Stop all work and close the journal: unfinished runs have no driver then and can be resumed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._stop_wake_ups is not None:
            await asyncio.to_thread(self._stop_wake_ups)
        error = self._engine.journal.broken or StoreUnavailable("this retinue was closed")
        await self._executor.stop_all(error, leaving=True)
        self._registry.fail(error)
        background = tuple(self._engine.background_tasks)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        for callback in self._engine.on_leave:
            await callback()
        journal = self._engine.journal
        try:
            if journal.broken is None:
                ends = (end_of_signs(self.driver_id),) if self._engine.store.shared else ()
                ends += () if self._rate_limits is None else self._rate_limits.give_back()
                await journal.commit(UnregisterDriver(driver_id=self.driver_id), *ends)
        except Fenced as fenced:
            log.warning("%s", fenced)  # for other processes it has left already
        finally:
            await journal.close()

    def _wake_ups(self) -> asyncio.Event | None:
        """An event that is set when another process has written; None if the store cannot tell, and polls must do."""
        store = self._engine.store
        on_change = on_change_of(store)
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

        async def again() -> None:
            while True:
                if woken is None:
                    await asyncio.sleep(seconds)
                else:
                    await asyncio.sleep(WAKE_UP_PAUSE)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await woken.wait()
                    woken.clear()
                try:
                    await do()
                except StoreError as error:
                    log.warning("%s: %s", name, error)
                except Exception:
                    log.exception("%s: a bug", name)  # without a heartbeat the driver would lose all its runs

        self._tasks.append(asyncio.get_running_loop().create_task(again(), name=f"retinue-{name}"))

    async def _heartbeat(self) -> None:
        journal = self._engine.journal
        if isinstance(journal.broken, Fenced):
            return
        self._refused = journal.broken or self._refused
        if self._refused is None:
            journal.write(Heartbeat(driver_id=self.driver_id), *self._sign_of_life())
        elif await journal.reopen(Heartbeat(driver_id=self.driver_id)):
            # Memory may be ahead of the store by the refused writes: begin again from what is stored.
            log.warning("the store can be written again: runs go on")
            await self._executor.stop_all(self._refused)
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
        waiting = await journal.peek(store.inbox_for, self.driver_id)
        for run_id, item in waiting:
            if (live := registry.live.get(run_id)) is not None:
                live.deliver(item)
        # A run that is being adopted at this moment is not registered yet: look again for it.
        self._unread = any(run_id not in registry.live for run_id, _ in waiting)
        self._handles.clear()
        self._open_sessions.clear()
        for run_id in registry.watched:
            if run_id not in registry.live and run_id not in registry.ended:
                registry.notify(run_id)

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
                await self._engine.drivers.declare_dead(row.driver_id, beat=beat)
        await self.adopt()

    async def adopt(self, root_id: RunId | None = None) -> list[RunId]:
        """Adopt unfinished trees without a driver: all of them, or one."""
        await self._engine.drivers.reap()
        return await self._recovery.adopt(root_id)


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
) -> tuple[Supervisor, Driver]:
    """The supervisor and the driver of this process; the driver has to be registered before runs are started.

    With `durable`, every commit is synced to the disk. With `adopts`, the driver adopts runs whose driver is gone;
    `lease` is the number of seconds without a heartbeat after which other processes may declare it dead. `folders` has
    the workspaces that are fetched.
    """
    tuning = tuning or Tuning()
    journal = Journal(store, durable=durable, commit_delay=tuning.commit_delay)
    engine = EngineContext(
        store=store,
        journal=journal,
        budgets=Budgets(clock, journal, store),
        drivers=DriverTable(journal, store),
        rate_limiters=RateLimiters(),
        toolbox=toolbox,
        providers=providers,
        clock=clock,
        ids=ids,
        rules=rules or Rules(),
        validate_output=validate_output,
        approver=approver,
        folders=folders,
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
