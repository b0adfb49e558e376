"""Going on with a job's run that another process seems to drive: one that runs, or one of a machine that is gone."""

from __future__ import annotations

import asyncio

from retinue.app.handle import RunHandle
from retinue.app.retinue import Retinue
from retinue.cli.event_loop import first_of
from retinue.core.commands import DriverRow
from retinue.core.errors import NotAdoptable

POLL = 0.5


async def go_on(retinue: Retinue, live: NotAdoptable, asked_to_stop: asyncio.Event) -> RunHandle | None:
    """The run, once it is over or can be driven here; None if somebody asked to stop before.

    A driver that has not stirred for its whole lease is declared dead. After a restart of the machine all of them are,
    and nobody can tell by their process: numbers of processes mean nothing across restarts.
    """
    beat, still_since = -1, 0.0
    while not asked_to_stop.is_set():
        driver = await _driver_of(retinue, live.run_id)
        if driver is None:
            raise live
        now = asyncio.get_running_loop().time()
        if driver.beat != beat:
            beat, still_since = driver.beat, now
        elif now - still_since >= driver.lease:
            await retinue.supervisor.drivers.declare_dead(driver.driver_id, beat=beat)
        await first_of(asyncio.sleep(POLL), asked_to_stop)
        try:
            return await retinue.resume(live.run_id)
        except NotAdoptable as still:
            live = still
    return None


async def _driver_of(retinue: Retinue, run_id: str) -> DriverRow | None:
    row = await retinue.supervisor.stored.run(run_id)
    return None if row is None else await retinue.supervisor.drivers.find(row.driver_id)
