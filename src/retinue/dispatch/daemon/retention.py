"""Automatic pruning by the daemon: looks now and then whether it is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from retinue.app.read_only import ReadOnlyClient
from retinue.app.retention import prune_if_due, trim_logs
from retinue.config.store import StoreSettings
from retinue.core.errors import StoreError
from retinue.core.log_context import logger
from retinue.core.text import plural

log = logger("retinue.daemon")

POLL = 600.0
"""Seconds between two looks."""


class RetentionDaemon:
    """Prunes ended runs and log files for as long as `run` runs; `report` gets a line for each prune."""

    def __init__(self, client: ReadOnlyClient, settings: StoreSettings, report: Callable[[str], None]) -> None:
        self._client = client
        self._settings = settings
        self._report = report
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Prune no more."""
        self._stopping.set()

    async def run(self) -> None:
        """Prune when due, until `stop`."""
        while not self._stopping.is_set():
            try:
                await trim_logs(self._settings)
                removed = await prune_if_due(self._client, self._settings, should_stop=self._stopping.is_set)
                if removed:
                    self._report(f"pruned {plural(removed, 'run')}")
            except StoreError as error:
                log.warning("%s", error)  # it may be temporary: a full disk, a lock
            except Exception:
                log.exception("unexpected error while pruning")
            try:
                async with asyncio.timeout(POLL):
                    await self._stopping.wait()
            except TimeoutError:
                pass
