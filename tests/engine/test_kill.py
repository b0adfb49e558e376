"""A real process is killed at random instants, and another goes on."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from retinue.app.open import open as open_retinue
from retinue.core.commands import RunQuery
from retinue.core.events import CallReturned, ReplyReceived
from retinue.engine.tool_calls import INTERRUPTED
from retinue.providers.scripted import ScriptedProvider, logged_turns
from retinue.store.sqlite.store import SqliteStore
from tests.conftest import STRESS
from tests.engine import story

STORIES = 250 if STRESS else 16
LIVES_CUT_SHORT = 2
LONGEST = 0.04
"""Seconds after which a life is killed at the latest; the story takes more than twice as long."""


async def live(home: Path, life: int, *, until: float | None) -> str | None:
    """One life of the owner, in a process of its own, killed `until` seconds after it came alive; its last words."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.engine.story", str(home), str(life), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"alive\n"
    rest = asyncio.create_task(process.stdout.read())
    done, _ = await asyncio.wait({rest}, timeout=until)
    if not done:
        process.send_signal(signal.SIGKILL)
    said = (await rest).decode()
    await process.wait()
    return said.removeprefix("answer: ").strip() or None


def stored_replies(store: SqliteStore) -> set[tuple[str, int]]:
    return {
        (row.path, event.turn)
        for row in store.runs(RunQuery())
        for _, event in store.events(row.run_id)
        if isinstance(event, ReplyReceived)
    }


@pytest.mark.real_time
@pytest.mark.parametrize("seed", range(STORIES))
async def test_the_scenario_gives_the_same_answer_after_random_kills(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    store = SqliteStore(tmp_path / "retinue.db")
    outside = open_retinue(
        provider=ScriptedProvider(story.script()),
        store=SqliteStore(tmp_path / "retinue.db"),
        tools=story.tools(lambda _: None),
        **story.OPTIONS,
    )
    async with outside as second:
        helper = asyncio.create_task(story.be_the_second_process(second, pause=0.02))
        try:
            answer = None
            for life in range(LIVES_CUT_SHORT + 1):
                assert answer is None, "the story was over before its process was killed"
                known = stored_replies(store)
                until = chance.uniform(0.0, LONGEST) if life < LIVES_CUT_SHORT else None
                answer = await live(tmp_path, life, until=until)
                asked = set(logged_turns(tmp_path / f"asked-{life}"))
                assert asked & known == set(), f"asked again in life {life}"
        finally:
            helper.cancel()
            with suppress(asyncio.CancelledError):
                await helper
    rows = store.runs(RunQuery())
    assert answer == story.ANSWER
    assert sorted(row.label for row in rows) == ["", "deeper", "dig", "scan"]
    assert {row.progress.outcome.result for row in rows if row.progress.outcome} == {"completed"}
    effects = (tmp_path / "effects").read_text().splitlines() if (tmp_path / "effects").exists() else []
    interrupted = [
        event
        for row in rows
        for _, event in store.events(row.run_id)
        if isinstance(event, CallReturned) and event.text == INTERRUPTED
    ]
    assert len(effects) == len(set(effects))
    assert len(effects) + len(interrupted) >= 2
    store.close()
