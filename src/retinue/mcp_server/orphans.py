"""Trees that an earlier server left unfinished: they are taken over, and end with their last run."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from retinue.app.retinue import Retinue
from retinue.core.errors import NotAdoptable, RunIsOver, StoreError
from retinue.core.inbox import Close
from retinue.core.log_context import logger
from retinue.core.run import MCP_HOST

log = logger("retinue.mcp")

LOOK_SECONDS = 5.0


async def adopt_orphans(retinue: Retinue) -> None:
    """Take over the trees of servers that are gone, now and every few seconds; runs until it is cancelled."""
    refused: set[str] = set()
    while True:
        try:
            for view in await retinue.list():
                if view.label == MCP_HOST and view.state == "interrupted" and view.run_id not in refused:
                    await _adopt(retinue, view.run_id, refused)
        except StoreError as error:
            log.warning("%s", error)
        await asyncio.sleep(LOOK_SECONDS)


async def _adopt(retinue: Retinue, root_id: str, refused: set[str]) -> None:
    try:
        await retinue.resume(root_id)
    except NotAdoptable as obstacle:
        refused.add(root_id)
        log.warning("%s", obstacle)
        return
    with suppress(RunIsOver):
        await retinue.supervisor.post(root_id, Close(key="close"), durable=True)
