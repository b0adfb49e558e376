"""The crash scenario gives the same answer after a crash at any write."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pytest

from retinue.app.open import open as open_retinue
from retinue.core.commands import RunQuery
from retinue.core.errors import StoreError
from retinue.core.events import CallReturned
from retinue.engine.tool_calls import INTERRUPTED
from retinue.providers.scripted import ScriptedProvider
from retinue.store.postgres import PostgresStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness
from retinue.testing.virtual_time import VirtualClock
from tests.engine import crash_scenario
from tests.postgres import empty_schema


class ScenarioResult:
    """What was observed in one run of the scenario with a crash."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.answer = ""
        self.crashed = True
        self.asked_again: set[tuple[str, int]] = set()
        self.writes = 0


PARTS = 4
"""Tests that share the writes of the scenario: each takes every fourth one."""

OpenStore: TypeAlias = Callable[[int], SqliteStore | PostgresStore]
"""Opens the store of one run of the scenario, by its number; the same number gives the same content."""


@pytest.fixture(params=["sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Stores that are called on the event loop, whose time the test holds."""
    if request.param == "sqlite":
        return lambda number: SqliteStore(tmp_path / str(number) / "retinue.db", threaded=False)
    url: str = request.getfixturevalue("postgres_url")
    opened: list[int] = []

    def open_emptied(number: int) -> PostgresStore:
        if opened and number not in opened:
            empty_schema(url)  # much faster than a new one
        opened.append(number)
        return PostgresStore(url, threaded=False)

    return open_emptied


async def run_with_a_crash(
    open_store: OpenStore, number: int, after: int | None
) -> tuple[ScenarioResult, SqliteStore | PostgresStore]:
    result = ScenarioResult()
    store = open_store(number)
    outside = open_retinue(
        provider=ScriptedProvider(crash_scenario.script()),
        store=open_store(number),
        clock=VirtualClock(),
        tools=crash_scenario.tools(result.effects.append),
        **crash_scenario.OPTIONS,
    )
    async with outside as second:
        owner = Harness(
            store=store,
            provider=ScriptedProvider(crash_scenario.script()),
            tools=crash_scenario.tools(result.effects.append),
            **crash_scenario.OPTIONS,
        )
        helper = asyncio.create_task(crash_scenario.act_as_second_process(second, pause=0.1))
        try:
            with suppress(StoreError):
                await owner.open(killed_after=after)
                result.answer = (await crash_scenario.run_scenario(owner.retinue)).text
                result.crashed = False
            result.writes = owner.written
            if result.crashed:
                await owner.kill()
                replies = owner.replies()
                paths = {row.run_id: row.path for row in store.runs(RunQuery())}
                before = len(owner.provider.asked)
                await owner.open(adopt=True)
                result.answer = (await crash_scenario.run_scenario(owner.retinue)).text
                asked = {(one.path, one.turn) for one in owner.provider.asked[before:]}
                result.asked_again = asked & {(paths[run_id], turn) for run_id, turn in replies}
            with suppress(StoreError):
                await owner.close()
        finally:
            helper.cancel()
            with suppress(asyncio.CancelledError):
                await helper
    return result, store


async def test_the_scenario_completes_without_a_crash(open_store: OpenStore) -> None:
    result, store = await run_with_a_crash(open_store, 0, None)
    assert (result.answer, result.effects) == (crash_scenario.ANSWER, ["deployed 2", "notified we know more"])
    assert Counter(row.progress.phase for row in store.runs(RunQuery())) == {"ended": 4}
    store.close()


@pytest.mark.parametrize("part", range(PARTS))
async def test_the_scenario_gives_the_same_answer_after_a_crash_at_any_write(open_store: OpenStore, part: int) -> None:
    after = part + 1 - PARTS
    crashed = True
    while crashed:
        after += PARTS
        result, store = await run_with_a_crash(open_store, after, after)
        crashed = result.crashed
        rows = store.runs(RunQuery())
        where = f"stopped after write {after}"
        assert result.answer == crash_scenario.ANSWER, where
        assert sorted(row.label for row in rows) == ["", "deeper", "dig", "scan"], where
        assert {row.progress.phase for row in rows} == {"ended"}, where
        assert {row.progress.outcome.result for row in rows if row.progress.outcome} == {"completed"}, where
        assert result.asked_again == set(), where
        # No effect happens twice; the model reads that an interrupted call may have happened.
        for effect in ("deployed 2", "notified we know more"):
            assert result.effects.count(effect) <= 1, where
        interrupted = sum(
            isinstance(event, CallReturned) and event.text == INTERRUPTED
            for row in rows
            for _, event in store.events(row.run_id)
        )
        assert interrupted + len(result.effects) >= 2, where
        store.close()
    assert after > 30
