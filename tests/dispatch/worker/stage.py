"""Workers for tests: in this process, with a scripted model, on any store."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import retinue
from retinue.app.launch.worker import as_worker
from retinue.config.settings import Settings
from retinue.dispatch.worker import Schedules, WorkerOptions, serve
from retinue.engine import WorkerRole
from retinue.providers.scripted import Script, ScriptedProvider
from retinue.store.postgres import parse_address

PATIENCE = 120.0


class RunningWorker:
    """A worker that runs as a task: what it reported, the retinue it has open, and its model."""

    def __init__(self, provider: ScriptedProvider) -> None:
        self.provider = provider
        self.stop = asyncio.Event()
        self.reports: list[str] = []
        self.opened: list[retinue.Retinue] = []

    @property
    def retinue(self) -> retinue.Retinue:
        return self.opened[-1]


@asynccontextmanager
async def worker(
    place: str,
    lines: Script,
    *,
    options: WorkerOptions | None = None,
    lease: float = 60.0,
    settings: Settings | None = None,
    **opening: Any,
) -> AsyncGenerator[RunningWorker]:
    """A worker on the store in a folder or at an address; it is stopped at the end of the block.

    With `settings` it starts the scheduled jobs that are due.
    """
    options = options or WorkerOptions()
    running = RunningWorker(ScriptedProvider(lines))
    role = WorkerRole(tags=options.tags, max_runs=options.max_runs, max_trees=options.max_trees)
    opening = {"dialects": (), **opening}

    def make() -> retinue.Retinue:
        opened = retinue.open(
            provider=running.provider, **at(place), session="worker", approvals="wait", lease=lease, **opening
        )
        running.opened.append(as_worker(opened, role))
        return running.retinue

    jobs = parse_address(place) if place.startswith("postgresql:") else None

    def schedules(opened: retinue.Retinue) -> Schedules:
        assert settings is not None
        return Schedules(settings, opened, running.reports.append)

    serving = serve(
        make,
        options,
        running.stop,
        running.reports.append,
        jobs=jobs,
        schedules=None if settings is None else schedules,
    )
    task = asyncio.create_task(serving)
    try:
        yield running
    finally:
        running.stop.set()
        await task


def at(place: str) -> dict[str, Any]:
    """Where a store is, for `retinue.open`."""
    return {"store": place} if place.startswith("postgresql:") else {"home": place}


def unused_port() -> int:
    """A port of this machine on which no server listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another task makes true."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)
