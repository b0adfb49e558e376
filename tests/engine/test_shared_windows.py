"""A window that two processes share: a call of one waits for the calls that the other has in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue
from retinue.core.agent import RunSpec
from retinue.core.budget import Caps, Window
from retinue.core.commands import DeclareDead
from retinue.core.messages import AssistantMessage, Reply
from retinue.core.ports import Publish, Request, Store
from retinue.core.run import Outcome
from retinue.core.usage import Usage
from retinue.engine import SpawnRequest
from retinue.store.postgres import PostgresStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.virtual_time import VirtualClock
from tests.internals import engine_of

OpenStore: TypeAlias = Callable[[], Store]

OUTPUT = 20
"""Output tokens that each call holds."""


class SlowModel:
    """Replies after a second with the given output tokens; `most` is the largest number of calls at one time."""

    name = "slow"

    def __init__(self, *outputs: int) -> None:
        self._outputs = list(outputs)
        self.calls = 0
        self.now = 0
        self.most = 0

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The next reply."""
        self.calls += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(1.0)
        finally:
            self.now -= 1
        return Reply(message=AssistantMessage(text="done"), usage=Usage(1, self._outputs.pop(0)))


@pytest.fixture(params=["sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens the same store again and again, on the loop whose time the test holds."""
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "retinue.db", threaded=False)
    url: str = request.getfixturevalue("postgres_url")
    return lambda: PostgresStore(url, threaded=False)


@asynccontextmanager
async def process(open_store: OpenStore, model: SlowModel) -> AsyncGenerator[Retinue]:
    """A retinue as another process would open it."""
    store = open_store()
    try:
        async with open_retinue(provider=model, store=store, clock=VirtualClock(), session="s", dialects=()) as r:
            yield r
    finally:
        store.close()


async def start(r: Retinue, window: Window) -> str:
    run_spec = RunSpec(agent="main", provider="slow", model="m", max_output=OUTPUT)
    request = SpawnRequest(agent="main", run_spec=run_spec, task="work", windows=(window,))
    return (await r.supervisor.spawn(request, session_id="s")).run_id


async def outcome(r: Retinue, run_id: str) -> Outcome:
    return await r.handle(run_id).wait()


def hour(output: int, *, soft: bool = False) -> Window:
    return Window("shared/hour", 3600.0, Caps(output=output), soft=soft)


def holds(r: Retinue) -> dict[str, bytes]:
    return dict(engine_of(r).store.key_value("holds"))


async def test_a_call_waits_for_the_calls_of_another_process(open_store: OpenStore) -> None:
    model = SlowModel(5, 5)
    async with process(open_store, model) as one, process(open_store, model) as two:
        first, second = await start(one, hour(30)), await start(two, hour(30))
        results = [await outcome(one, first), await outcome(two, second)]
        left = holds(one)

    assert [each.result for each in results] == ["completed", "completed"]
    assert (model.calls, model.most) == (2, 1)
    assert left == {}


async def test_calls_that_fit_together_go_on_side_by_side(open_store: OpenStore) -> None:
    model = SlowModel(5, 5)
    async with process(open_store, model) as one, process(open_store, model) as two:
        first, second = await start(one, hour(40)), await start(two, hour(40))
        results = [await outcome(one, first), await outcome(two, second)]

    assert [each.result for each in results] == ["completed", "completed"]
    assert model.most == 2


async def test_a_window_that_another_process_uses_up_meanwhile_is_exhausted(open_store: OpenStore) -> None:
    model = SlowModel(OUTPUT)
    async with process(open_store, model) as one, process(open_store, model) as two:
        first, second = await start(one, hour(30)), await start(two, hour(30))
        results = [await outcome(one, first), await outcome(two, second)]

    assert [(each.result, each.reason) for each in results] == [("completed", "answered"), ("exhausted", "window")]
    assert results[1].limit is not None
    assert (results[1].limit.used, results[1].limit.limit) == (OUTPUT, 30)


async def test_a_soft_window_lets_one_call_begin_at_a_time(open_store: OpenStore) -> None:
    model = SlowModel(4, 4, 4)
    async with process(open_store, model) as one, process(open_store, model) as two:
        window = hour(10, soft=True)
        runs = [(one, await start(one, window)), (two, await start(two, window)), (one, await start(one, window))]
        results = [await outcome(r, run_id) for r, run_id in runs]

    assert [each.result for each in results] == ["completed"] * 3
    assert model.most == 1


async def test_many_calls_of_two_processes_never_exceed_the_window(open_store: OpenStore) -> None:
    model = SlowModel(*[OUTPUT] * 12)
    async with process(open_store, model) as one, process(open_store, model) as two:
        runs = [(r, await start(r, hour(100))) for r in (one, two) * 6]
        results = [await outcome(r, run_id) for r, run_id in runs]

    assert sorted(each.result for each in results) == ["completed"] * 5 + ["exhausted"] * 7
    assert model.calls == 5


async def test_the_holds_of_a_dead_process_do_not_count(open_store: OpenStore) -> None:
    model = SlowModel(5, 5)
    async with process(open_store, model) as two, process(open_store, model) as one:
        await start(one, hour(30))
        await asyncio.sleep(0.1)
        assert len(holds(two)) == 1
        engine_of(two).store.commit(None, [DeclareDead(driver_id=one.supervisor.driver_id or "")])
        second = await start(two, hour(30))
        result = await outcome(two, second)

    assert result.result == "completed"


async def test_a_cancelled_call_gives_its_hold_back(open_store: OpenStore) -> None:
    model = SlowModel(5)
    async with process(open_store, model) as one, process(open_store, model) as two:
        first = await start(one, hour(30))
        await asyncio.sleep(0.1)
        await one.cancel(first)
        second = await start(two, hour(30))

        assert (await outcome(two, second)).result == "completed"
        assert holds(two) == {}
