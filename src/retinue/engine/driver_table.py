"""The drivers that are registered in the store: which of them are alive, and declaring dead those that are not."""

from __future__ import annotations

from retinue.core.commands import DeclareDead, DriverRow
from retinue.core.ids import DriverId
from retinue.core.ports import Store
from retinue.engine.journal import Journal
from retinue.engine.process_identity import is_gone


class DriverTable:
    """Reads and changes the rows of drivers. A driver that is declared dead loses its runs and can write no more."""

    def __init__(self, journal: Journal, store: Store) -> None:
        self._journal = journal
        self._store = store

    async def rows(self) -> list[DriverRow]:
        """Every driver that has not left, dead ones included as long as they own unfinished runs."""
        return await self._journal.peek(self._store.drivers)

    async def find(self, driver_id: DriverId | None) -> DriverRow | None:
        """The row of a driver, dead or alive."""
        return next((row for row in await self.rows() if row.driver_id == driver_id), None)

    async def living(self) -> frozenset[DriverId]:
        """The drivers that are not known to be dead."""
        return frozenset(
            row.driver_id for row in await self.rows() if not row.dead and not is_gone(row.host, row.process)
        )

    async def declare_dead(self, driver_id: DriverId, *, beat: int | None = None) -> bool:
        """Declare a driver dead; with `beat`, only if its heartbeat counter has that value. Whether it is dead."""
        (is_dead,) = await self._journal.commit(DeclareDead(driver_id=driver_id, beat=beat))
        return bool(is_dead)

    async def reap(self) -> None:
        """Declare those drivers dead whose process no longer exists on this host."""
        for row in await self.rows():
            if row.driver_id != self._journal.driver_id and not row.dead and is_gone(row.host, row.process):
                await self.declare_dead(row.driver_id)
