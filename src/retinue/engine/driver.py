"""This process as a driver: its heartbeat, the watch over others, and taking over what the dead leave behind.

Runs point to their driver; a driver that is declared dead loses all of them at once and none of its later writes is
accepted. Looking at runs never starts any: a process adopts only when it is told to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from retinue.core.commands import DeclareDead, DriverRow, Heartbeat, RegisterDriver, UnregisterDriver
from retinue.core.errors import Fenced, StoreError, StoreUnavailable
from retinue.core.ids import DriverId, RunId
from retinue.engine.context import EngineContext
from retinue.engine.process_identity import is_gone, this_host, this_process
from retinue.engine.recovery import Recovery
from retinue.engine.supervisor import Supervisor

log = logging.getLogger("retinue.engine")


class Driver:
    """The row of this process among the drivers, and the tasks that keep it true."""

    def __init__(
        self, supervisor: Supervisor, *, adopts: bool = False, lease: float = 10.0, pulse: float = 0.25
    ) -> None:
        self.driver_id: DriverId = supervisor.engine.ids.new()
        self.adoption = Recovery(supervisor, self.driver_id)
        self._supervisor = supervisor
        self._engine: EngineContext = supervisor.engine
        self._adopts = adopts
        self._engine.declare_dead = self.bury_the_gone
        self._lease = lease
        self._pulse = pulse
        self._tasks: list[asyncio.Task[None]] = []
        self._seen: dict[DriverId, tuple[int, float]] = {}
        self._looked = 0.0
        self._unread = False
        """There may be mail from others that has not reached its run."""
        self._refused: StoreError | None = None
        """Why memory may be ahead of the disk, until the runs go on from what the disk says."""

    async def register(self) -> None:
        """Begin to drive."""
        journal = self._engine.journal
        journal.driver_id = self.driver_id
        self._engine.living = self.living
        row = DriverRow(driver_id=self.driver_id, host=this_host(), process=this_process(), lease=self._lease)
        await journal.commit(RegisterDriver(driver=row))
        if self._engine.store.shared:
            self._every(self._lease / 3, self._beat, "heartbeat")
            self._every(self._pulse, self._look_for_mail, "pulse")
            if self._adopts:
                self._every(self._lease / 4, self._watch, "watch")
        if self._adopts:
            await self._watch()
        for begin in self._engine.on_register:
            await begin()

    async def leave(self) -> None:
        """Go in good order: what is unfinished is nobody's and can be resumed by anyone."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        why = self._engine.journal.broken or StoreUnavailable("this retinue was closed")
        await self._supervisor.stop_all(why, leaving=True)
        self._supervisor.registry.fail(why)
        errands = tuple(self._engine.errands)
        for errand in errands:
            errand.cancel()
        await asyncio.gather(*errands, return_exceptions=True)
        for lay_down in self._engine.on_leave:
            await lay_down()
        journal = self._engine.journal
        try:
            if journal.broken is None:
                await journal.commit(UnregisterDriver(driver_id=self.driver_id))
        except Fenced as gone:
            log.warning("%s", gone)  # it has left already, as far as others can tell
        finally:
            await journal.close()

    def _every(self, seconds: float, do: Callable[[], Awaitable[None]], name: str) -> None:
        async def again() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    await do()
                except StoreError as error:
                    log.warning("%s: %s", name, error)
                except Exception:
                    log.exception("%s: a bug", name)  # whoever stops beating loses all runs

        self._tasks.append(asyncio.get_running_loop().create_task(again(), name=f"retinue-{name}"))

    async def _beat(self) -> None:
        journal = self._engine.journal
        if isinstance(journal.broken, Fenced):
            return
        self._refused = journal.broken or self._refused
        if self._refused is None:
            journal.write(Heartbeat(driver_id=self.driver_id))
        elif await journal.mend(Heartbeat(driver_id=self.driver_id)):
            # What was in memory may be ahead of the disk by what was refused: begin again from what the disk says.
            log.warning("the store can be written again: runs go on")
            await self._supervisor.stop_all(self._refused)
            await self.adoption.take_back()
            self._refused = None

    async def _look_for_mail(self) -> None:
        journal, store, registry = self._engine.journal, self._engine.store, self._supervisor.registry
        self._unread = await journal.peek(store.changed) or self._unread
        if not self._unread:
            return
        waiting = await journal.peek(store.inbox_for, self.driver_id)
        for run_id, item in waiting:
            if (live := registry.live.get(run_id)) is not None:
                live.deliver(item)
        # A run that is just being taken over is not there yet: look again for it.
        self._unread = any(run_id not in registry.live for run_id, _ in waiting)
        self._supervisor.handles.forget()
        for run_id in registry.watched:
            if run_id not in registry.live and run_id not in registry.ended:
                registry.tell(run_id)

    # Others

    async def living(self) -> frozenset[DriverId]:
        """Drivers that are not known to be dead."""
        rows = await self._engine.journal.peek(self._engine.store.drivers)
        return frozenset(row.driver_id for row in rows if not row.dead and not is_gone(row.host, row.process))

    async def bury_the_gone(self) -> None:
        """Declare drivers dead whose process is gone from this host."""
        for row in await self._engine.journal.peek(self._engine.store.drivers):
            if row.driver_id != self.driver_id and not row.dead and is_gone(row.host, row.process):
                await self._engine.journal.commit(DeclareDead(driver_id=row.driver_id))

    async def _watch(self) -> None:
        """Declare drivers dead whose counter stood still for their whole lease by our own clock, and take over."""
        now = asyncio.get_running_loop().time()
        if now - self._looked > self._lease:
            self._seen.clear()  # we were stopped ourselves, perhaps together with those we watch
        self._looked = now
        for row in await self._engine.journal.peek(self._engine.store.drivers):
            if row.driver_id == self.driver_id or row.dead:
                continue
            beat, since = self._seen.get(row.driver_id, (row.beat, now))
            if beat != row.beat:
                beat, since = row.beat, now
            self._seen[row.driver_id] = (beat, since)
            if now - since >= row.lease:
                await self._engine.journal.commit(DeclareDead(driver_id=row.driver_id, beat=beat))
        await self.adopt()

    async def adopt(self, root_id: RunId | None = None) -> list[RunId]:
        """Take over unfinished trees that nobody drives: all of them, or one."""
        await self.bury_the_gone()
        return await self.adoption.adopt(root_id)
