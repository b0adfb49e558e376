"""The crash scenario gives the same answer after a crash at any write."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path

from retinue.app.open import open as open_retinue
from retinue.core.commands import RunQuery
from retinue.core.errors import StoreError
from retinue.core.events import CallReturned
from retinue.engine.tool_calls import INTERRUPTED
from retinue.providers.scripted import ScriptedProvider
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness
from retinue.testing.virtual_time import VirtualClock
from tests.engine import crash_scenario


class ScenarioResult:
    """What was observed in one run of the scenario with a crash."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.answer = ""
        self.crashed = True
        self.asked_again: set[tuple[str, int]] = set()
        self.writes = 0


async def run_with_a_crash(folder: Path, after: int | None) -> tuple[ScenarioResult, SqliteStore]:
    result = ScenarioResult()
    store = SqliteStore(folder / "retinue.db", threaded=False)
    outside = open_retinue(
        provider=ScriptedProvider(crash_scenario.script()),
        store=SqliteStore(folder / "retinue.db", threaded=False),
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


async def test_the_scenario_completes_without_a_crash(tmp_path: Path) -> None:
    result, store = await run_with_a_crash(tmp_path, None)
    assert (result.answer, result.effects) == (crash_scenario.ANSWER, ["deployed 2", "notified we know more"])
    assert Counter(row.progress.phase for row in store.runs(RunQuery())) == {"ended": 4}
    store.close()


async def test_the_scenario_gives_the_same_answer_after_a_crash_at_any_write(tmp_path: Path) -> None:
    after = 0
    crashed = True
    while crashed:
        after += 1
        folder = tmp_path / str(after)
        result, store = await run_with_a_crash(folder, after)
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
