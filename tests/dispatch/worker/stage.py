"""Workers for tests: in this process, with a scripted model, on any store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import retinue
from retinue.app.launch.worker import as_worker
from retinue.config.settings import Settings
from retinue.dispatch.worker import Schedules, WorkerOptions, serve
from retinue.engine import WorkerRole
from retinue.providers.scripted import Script, ScriptedProvider
from retinue.store.postgres import parse_address

PATIENCE = 240.0
"""Seconds for what takes one: PostgreSQL is slow beside other tests. The tests have a longer timeout (`LONG`)."""

LONG = pytest.mark.timeout(300)

_serving: set[asyncio.Task[bool]] = set()
"""The workers of the running test."""


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
    _serving.add(task)
    try:
        yield running
    finally:
        _serving.discard(task)
        running.stop.set()
        await task


def at(place: str) -> dict[str, Any]:
    """Where a store is, for `retinue.open`."""
    return {"store": place} if place.startswith("postgresql:") else {"home": place}


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for a condition that another task makes true; fails at once if a worker has failed or all have left."""
    async with asyncio.timeout(PATIENCE):
        while True:
            has_workers, is_left = bool(_serving), all(task.done() for task in _serving)
            if await _holds(condition):
                return
            for task in _serving:
                if task.done() and (error := task.exception()) is not None:
                    raise AssertionError("a worker failed") from error
            assert not (has_workers and is_left), "all workers have left"
            await asyncio.sleep(0.01)


async def _holds(condition: Callable[[], bool | Awaitable[bool]]) -> bool:
    found = condition()
    return found if isinstance(found, bool) else await found
