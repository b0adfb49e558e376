"""Automatic pruning: ended runs by age and size, and log files by number, as the section `[store]` says.

The daemon prunes when it is due, and a command at its end for a moment. What a person may still need stays: unfinished
runs, histories that a remaining run inherited, and the newest conversation of each named session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from retinue.app.open import default_home, open_read_only
from retinue.app.read_only import ReadOnlyClient
from retinue.config.settings import Settings
from retinue.config.store import STORE, StoreSettings
from retinue.core.commands import Decide, Decision
from retinue.core.errors import RetinueError
from retinue.core.log_context import line, logger
from retinue.core.ports import PruneRequest
from retinue.telemetry import log_files

log = logger("retinue.app")

INTERVAL = 6 * 3600.0
"""Seconds between two prunes of a store, by any process."""

COMMAND_SECONDS = 2.0
"""Seconds that a command prunes at its end; the next one goes on."""

LEAST_AGE = 3600.0
"""Seconds since the end of a run before which it is not removed because of the store's size."""

SPACE, NAME = "maintenance", "pruned_at"
"""Where the time of the last prune is stored."""


def store_settings(settings: Settings) -> StoreSettings:
    return settings.section(STORE.name, StoreSettings)


def prunes(settings: StoreSettings) -> bool:
    """Whether the settings ask for automatic pruning."""
    return settings.keep_days is not None or settings.keep_mb is not None


async def prune_if_due(
    client: ReadOnlyClient, settings: StoreSettings, *, should_stop: Callable[[], bool] = lambda: False
) -> int | None:
    """Prune if the last time was long ago; the number of removed runs, or None if it was not due.

    A prune that is cut short because `should_stop` returns True stays due.
    """
    if not prunes(settings):
        return None
    now = client.supervisor.clock.now()
    last = (await client.key_value.look(SPACE)).get(NAME, b"0")
    if 0 <= now - float(last) < INTERVAL:
        return None
    removed = 0
    for request in requests(settings, now):
        removed += await client.prune(request, should_stop=should_stop)
    if not should_stop():
        await client.key_value.change(SPACE, _put(now))
    log.info("%s", line(event="pruned", runs=removed))
    return removed


def requests(settings: StoreSettings, now: float) -> list[PruneRequest]:
    """What the settings ask to remove: by age, then by size."""
    found: list[PruneRequest] = []
    if settings.keep_days is not None:
        found.append(PruneRequest(before=now - settings.keep_days * 86_400.0, keep_sessions=True))
    if settings.keep_mb is not None:
        found.append(PruneRequest(before=now - LEAST_AGE, max_bytes=settings.keep_mb * 1_000_000, keep_sessions=True))
    return found


async def prune_at_end(settings: Settings, code: int = 0) -> int:
    """Prune for a moment at the end of a command, if it is due; returns `code`. An error is logged."""
    chosen = store_settings(settings)
    if not prunes(chosen):
        return code
    try:
        async with open_read_only() as client:
            if client.unwritable is None:
                end = time.monotonic() + COMMAND_SECONDS
                await prune_if_due(client, chosen, should_stop=lambda: time.monotonic() > end)
    except RetinueError as error:
        log.warning("ended runs were not pruned: %s", error)
    return code


async def trim_logs(settings: StoreSettings) -> None:
    """Delete the oldest log files of background runs beyond the number that is kept."""
    await asyncio.to_thread(log_files.trim, default_home() / log_files.FOLDER, settings.log_files)


def _put(now: float) -> Decide:
    return lambda key_value: Decision(b"", puts={NAME: str(now).encode()})
