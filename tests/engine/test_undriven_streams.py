"""Streams of runs that get a driver, and perhaps their end, while a reader looks whether a process drives them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.app.attach import stored_events
from retinue.app.read_only import ReadOnlyClient
from retinue.core.ids import DriverId, RunId
from retinue.events import TreeEvent
from retinue.testing import Script, ScriptedProvider, calls, says
from tests.engine.memory_stores import SharedMemory

pytestmark = pytest.mark.real_time

PATIENCE = 120.0


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A store that two retinues share."""
    if request.param == "memory":
        return SharedMemory()
    return f"sqlite:{tmp_path / 'runs.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def opened(store: Any) -> retinue.Retinue:
    script = Script().play("main", calls("run_agent", agent="dig", task="Find it."), says("It was the pool."))
    script.play("dig", says("Found it."))
    agents = [retinue.Agent(name="dig")]
    return retinue.open(provider=ScriptedProvider(script), store=store, dialects=["native"], agents=agents)


async def tree_of(r: retinue.Retinue, run_id: RunId) -> AsyncIterator[TreeEvent]:
    async for item in r.events(run_id, tree=True):
        yield item


async def run_of(r: retinue.Retinue, run_id: RunId) -> AsyncIterator[Any]:
    async for event in r.events(run_id):
        yield event


async def followed(r: retinue.Retinue, run_id: RunId) -> AsyncIterator[TreeEvent]:
    """What `retinue runs follow` reads."""
    client = ReadOnlyClient(r.supervisor)
    async for item in stored_events(client, await client.look(run_id), tree=True):
        yield item


class Pause:
    """Reads a stream in a task that is held after it has read the living drivers for the `number`-th time."""

    def __init__(self, r: retinue.Retinue, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left = number
        self._living = r.supervisor.drivers.living
        self._is_held, self._release = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[list[Any]] | None = None
        monkeypatch.setattr(r.supervisor.drivers, "living", self._held)

    async def _held(self) -> frozenset[DriverId]:
        living = await self._living()
        if asyncio.current_task() is self._task:
            self._left -= 1
            if self._left == 0:
                self._is_held.set()
                await self._release.wait()
        return living

    async def hold(self, events: AsyncIterator[Any]) -> None:
        async def collect() -> list[Any]:
            return [item async for item in events]

        self._task = asyncio.create_task(collect())
        async with asyncio.timeout(PATIENCE):
            await self._is_held.wait()

    async def rest(self) -> list[Any]:
        assert self._task is not None
        self._release.set()
        async with asyncio.timeout(PATIENCE):
            return await self._task


async def logs_of(r: retinue.Retinue, run_id: RunId) -> dict[RunId, list[int]]:
    """The numbers of the events of each run of a tree, as the store has them."""
    stored = r.supervisor.stored
    return {view.run_id: [seq for seq, _ in await stored.events(view.run_id)] for view in await r.tree(run_id)}


def numbers_of(items: list[TreeEvent]) -> dict[RunId, list[int]]:
    found: dict[RunId, list[int]] = {}
    for item in items:
        if item.seq:
            found.setdefault(item.run, []).append(item.seq)
    return found


@pytest.mark.parametrize("read", [tree_of, followed])
async def test_a_tree_that_ends_while_its_drivers_are_read_is_read_to_its_end(
    store: Any, read: Callable[[retinue.Retinue, RunId], AsyncIterator[TreeEvent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store) as other, opened(store) as reading:
        run = await other.spawn("Why is it slow?", detached=True)
        pause = Pause(reading, 1, monkeypatch)
        await pause.hold(read(reading, run.run_id))
        await (await other.resume(run.run_id)).wait()
        items = await pause.rest()
        logs = await logs_of(reading, run.run_id)

    assert len(logs) == 2
    assert numbers_of(items) == logs


async def test_a_run_that_ends_while_its_drivers_are_read_is_read_to_its_end(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store) as other, opened(store) as reading:
        run = await other.spawn("Why is it slow?", detached=True)
        pause = Pause(reading, 1, monkeypatch)
        await pause.hold(run_of(reading, run.run_id))
        await (await other.resume(run.run_id)).wait()
        events = await pause.rest()
        stored = [event for _, event in await reading.supervisor.stored.events(run.run_id)]

    assert events == stored
    assert type(events[-1]).__name__ == "RunEnded"


@pytest.mark.parametrize("number", [1, 2])
async def test_a_tree_that_is_adopted_here_while_its_drivers_are_read_is_read_to_its_end(
    store: Any, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store) as reading:
        run = await reading.spawn("Why is it slow?", detached=True)
        pause = Pause(reading, number, monkeypatch)
        await pause.hold(tree_of(reading, run.run_id))
        await (await reading.resume(run.run_id)).wait()
        items = await pause.rest()
        logs = await logs_of(reading, run.run_id)

    assert len(logs) == 2
    assert numbers_of(items) == logs
