"""A run survives its process: stopped after any write, it ends as if nothing had happened."""

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
from tests.engine import story


class Told:
    """One telling of the story with a crash in it, and what was seen."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.answer = ""
        self.crashed = True
        self.asked_again: set[tuple[str, int]] = set()
        self.writes = 0


async def tell_with_a_crash(folder: Path, after: int | None) -> tuple[Told, SqliteStore]:
    told = Told()
    store = SqliteStore(folder / "retinue.db", threaded=False)
    outside = open_retinue(
        provider=ScriptedProvider(story.script()),
        store=SqliteStore(folder / "retinue.db", threaded=False),
        clock=VirtualClock(),
        tools=story.tools(told.effects.append),
        **story.OPTIONS,
    )
    async with outside as second:
        owner = Harness(
            store=store,
            provider=ScriptedProvider(story.script()),
            tools=story.tools(told.effects.append),
            **story.OPTIONS,
        )
        helper = asyncio.create_task(story.be_the_second_process(second, pause=0.1))
        try:
            with suppress(StoreError):
                await owner.open(killed_after=after)
                told.answer = (await story.tell(owner.retinue)).text
                told.crashed = False
            told.writes = owner.written
            if told.crashed:
                await owner.kill()
                replies = owner.replies()
                paths = {row.run_id: row.path for row in store.runs(RunQuery())}
                before = len(owner.provider.asked)
                await owner.open(adopt=True)
                told.answer = (await story.tell(owner.retinue)).text
                asked = {(one.path, one.turn) for one in owner.provider.asked[before:]}
                told.asked_again = asked & {(paths[run_id], turn) for run_id, turn in replies}
            with suppress(StoreError):
                await owner.close()
        finally:
            helper.cancel()
            with suppress(asyncio.CancelledError):
                await helper
    return told, store


async def test_the_scenario_completes_without_a_crash(tmp_path: Path) -> None:
    told, store = await tell_with_a_crash(tmp_path, None)
    assert (told.answer, told.effects) == (story.ANSWER, ["deployed 2", "notified we know more"])
    assert Counter(row.progress.phase for row in store.runs(RunQuery())) == {"ended": 4}
    store.close()


async def test_the_scenario_gives_the_same_answer_after_a_crash_at_any_write(tmp_path: Path) -> None:
    after = 0
    crashed = True
    while crashed:
        after += 1
        folder = tmp_path / str(after)
        told, store = await tell_with_a_crash(folder, after)
        crashed = told.crashed
        rows = store.runs(RunQuery())
        where = f"stopped after write {after}"
        assert told.answer == story.ANSWER, where
        assert sorted(row.label for row in rows) == ["", "deeper", "dig", "scan"], where
        assert {row.progress.phase for row in rows} == {"ended"}, where
        assert {row.progress.outcome.result for row in rows if row.progress.outcome} == {"completed"}, where
        assert told.asked_again == set(), where
        # What must not happen twice does not; what may have happened is said to the model.
        for effect in ("deployed 2", "notified we know more"):
            assert told.effects.count(effect) <= 1, where
        interrupted = sum(
            isinstance(event, CallReturned) and event.text == INTERRUPTED
            for row in rows
            for _, event in store.events(row.run_id)
        )
        assert interrupted + len(told.effects) >= 2, where
        store.close()
    assert after > 30
