"""Take over a job's run from another driver, once that has ended or its lease has expired."""

from __future__ import annotations

import asyncio

from retinue.app.follow import unless_stopped
from retinue.app.handle import RunHandle
from retinue.app.retinue import Retinue
from retinue.core.commands import DriverRow
from retinue.core.errors import NotAdoptable

POLL = 0.5
"""Seconds between two attempts."""


async def take_over(retinue: Retinue, live: NotAdoptable, stop: asyncio.Event) -> RunHandle | None:
    """The run, once it has ended or can be driven here; None if `stop` was set before.

    A driver without a heartbeat for its whole lease is declared dead. After a restart of the machine the process ids of
    older drivers mean nothing, and the lease alone shows that they are dead.
    """
    beat, still_since = -1, 0.0
    while not stop.is_set():
        driver = await _driver_of(retinue, live.run_id)
        if driver is None:
            raise live
        now = asyncio.get_running_loop().time()
        if driver.beat != beat:
            beat, still_since = driver.beat, now
        elif now - still_since >= driver.lease:
            await retinue.supervisor.drivers.declare_dead(driver.driver_id, beat=beat)
        await unless_stopped(asyncio.sleep(POLL), stop)
        try:
            return await retinue.resume(live.run_id)
        except NotAdoptable as still:
            live = still
    return None


async def _driver_of(retinue: Retinue, run_id: str) -> DriverRow | None:
    row = await retinue.supervisor.stored.run(run_id)
    return None if row is None else await retinue.supervisor.drivers.find(row.driver_id)
