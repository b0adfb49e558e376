"""The crash scenario with each run of its tree on another worker: one answer, whichever worker dies at which write."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from msgspec.structs import replace

from retinue.app.launch.worker import as_worker
from retinue.app.open import open as open_retinue
from retinue.app.retinue import Retinue
from retinue.core.commands import RunQuery, Write, WriteResult
from retinue.core.errors import StoreError
from retinue.core.events import CallReturned, ReplyReceived
from retinue.core.ids import DriverId, RunId
from retinue.core.ports import Store
from retinue.core.run import Outcome
from retinue.dispatch.worker.worker import units_of
from retinue.engine import WorkerRole
from retinue.engine.tool_calls import INTERRUPTED
from retinue.providers.scripted import ScriptedProvider
from retinue.store.postgres import PostgresStore
from retinue.testing.crashing_store import CrashingStore, StoreKilled
from retinue.testing.virtual_time import VirtualClock
from tests.conftest import STRESS
from tests.engine import crash_scenario
from tests.postgres import empty_schema

EVERY = 1 if STRESS else 29
"""Of how many writes one is the last of its worker."""

PAUSE = 0.05


class SharedCount:
    """The writes of all workers together; the worker that makes write number `limit` dies with it."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.written = 0


class CountedStore(CrashingStore):
    """The store of one worker."""

    def __init__(self, store: Store, count: SharedCount) -> None:
        super().__init__(store)
        self._count = count
        self.killed = False

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        results: list[WriteResult] = []
        for write in writes:
            if self.killed:
                raise StoreKilled(self._count.written)
            results += self.inner.commit(driver_id, (write,), durable=durable)
            self._count.written += 1
            self.killed = self._count.written == self._count.limit
        return results


class SpreadScenario:
    """The scenario with a worker for each run, one of which dies."""

    def __init__(self, url: str, limit: int | None) -> None:
        self.url = url
        self.count = SharedCount(limit)
        self.effects: list[str] = []
        self.workers: list[tuple[Retinue, CountedStore, ScriptedProvider]] = []
        self.finished_before: set[tuple[RunId, int]] = set()
        self.asked_again: set[tuple[str, int]] = set()
        self.deaths = 0

    def options(self, provider: ScriptedProvider) -> dict[str, Any]:
        (lead,) = crash_scenario.AGENTS
        agents = (replace(lead, placement="anywhere"),)
        tools = crash_scenario.tools(self.effects.append)
        return {**crash_scenario.OPTIONS, "agents": agents, "provider": provider, "tools": tools}

    async def run(self) -> Outcome:
        store = PostgresStore(self.url, threaded=False)
        provider = ScriptedProvider(crash_scenario.script())
        async with open_retinue(store=store, clock=VirtualClock(), **self.options(provider)) as outside:
            helper = asyncio.create_task(crash_scenario.act_as_second_process(outside, pause=0.1))
            dispatcher = asyncio.create_task(self.dispatch(outside))
            try:
                root = await outside.spawn(crash_scenario.TASK, agent="lead", detached=True)
                outcome = await root.wait()
            finally:
                for task in (helper, dispatcher):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
                for worker, store, _ in self.workers:
                    with suppress(StoreError):
                        await worker.__aexit__(None, None, None)
                    store.inner.close()
            return outcome

    async def dispatch(self, outside: Retinue) -> None:
        """Give each run without a driver to a worker of its own, and the runs of a dead worker to new ones."""
        while True:
            for each in [each for each in self.workers if each[1].killed]:
                await self.bury(outside, *each)
            rows = await outside.supervisor.stored.runs(RunQuery(unfinished_only=True, undriven_only=True))
            for unit in units_of(rows):
                with suppress(StoreError):
                    worker = await self.hire()
                    await worker.driver.adopt_runs(unit.rows)
            await asyncio.sleep(PAUSE)

    async def hire(self) -> Retinue:
        provider = ScriptedProvider(crash_scenario.script())
        store = CountedStore(PostgresStore(self.url, threaded=False), self.count)
        options = self.options(provider)
        opened = open_retinue(store=cast(Store, store), clock=VirtualClock(), session="worker", **options)
        worker = as_worker(opened, WorkerRole())
        self.workers.append((worker, store, provider))
        return await worker.__aenter__()

    async def bury(self, outside: Retinue, worker: Retinue, store: CountedStore, provider: ScriptedProvider) -> None:
        """What a killed process leaves behind: a driver that others declare dead."""
        self.workers.remove((worker, store, provider))
        self.deaths += 1
        with suppress(StoreError):
            await worker.__aexit__(None, None, None)
        store.inner.close()
        if (driver_id := worker.supervisor.driver_id) is not None:
            await outside.supervisor.drivers.declare_dead(driver_id)


def replies_of(store: PostgresStore) -> Counter[tuple[str, int]]:
    """How often each turn of each run has a stored reply."""
    return Counter(
        (row.path, event.turn)
        for row in store.runs(RunQuery())
        for _, event in store.events(row.run_id)
        if isinstance(event, ReplyReceived)
    )


async def play(url: str, limit: int | None) -> tuple[SpreadScenario, Outcome]:
    scenario = SpreadScenario(url, limit)
    return scenario, await scenario.run()


async def test_the_scenario_completes_with_each_run_on_another_worker(postgres_url: str) -> None:
    scenario, outcome = await play(postgres_url, None)
    assert (outcome.text, scenario.effects) == (crash_scenario.ANSWER, ["deployed 2", "notified we know more"])
    assert len(scenario.workers) == 4
    store = PostgresStore(postgres_url, threaded=False)
    assert Counter(row.progress.phase for row in store.runs(RunQuery())) == {"ended": 4}
    store.close()


async def test_the_answer_is_the_same_whichever_worker_dies_at_which_write(postgres_url: str) -> None:
    limit, deaths = 1, 0
    while True:
        scenario, outcome = await play(postgres_url, limit)
        store = PostgresStore(postgres_url, threaded=False)
        where = f"a worker died after write {limit}"
        rows = store.runs(RunQuery())
        assert outcome.text == crash_scenario.ANSWER, where
        assert sorted(row.label for row in rows) == ["", "deeper", "dig", "scan"], where
        assert {row.progress.phase for row in rows} == {"ended"}, where
        assert {row.progress.outcome.result for row in rows if row.progress.outcome} == {"completed"}, where
        assert set(replies_of(store).values()) == {1}, where
        for effect in ("deployed 2", "notified we know more"):
            assert scenario.effects.count(effect) <= 1, where
        interrupted = sum(
            isinstance(event, CallReturned) and event.text == INTERRUPTED
            for row in rows
            for _, event in store.events(row.run_id)
        )
        assert interrupted + len(scenario.effects) >= 2, where
        store.close()
        empty_schema(postgres_url)
        if not scenario.deaths:
            break
        deaths += scenario.deaths
        limit += EVERY
    assert limit > 40
    assert deaths >= 40 // EVERY
