"""A real process is killed at random moments, and another continues."""

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
from tests.engine import crash_scenario

SCENARIOS = 250 if STRESS else 16
KILLED_PROCESSES = 2
MAX_SECONDS = 0.04
"""Most seconds before a process is killed; the scenario takes more than twice as long."""


async def run_process(home: Path, number: int, *, until: float | None) -> str | None:
    """Drive the scenario in a process that is killed after `until` seconds; its answer, if it gave one."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.engine.crash_scenario", str(home), str(number), stdout=asyncio.subprocess.PIPE
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
@pytest.mark.parametrize("seed", range(SCENARIOS))
async def test_the_scenario_gives_the_same_answer_after_random_kills(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    store = SqliteStore(tmp_path / "retinue.db")
    outside = open_retinue(
        provider=ScriptedProvider(crash_scenario.script()),
        store=SqliteStore(tmp_path / "retinue.db"),
        tools=crash_scenario.tools(lambda _: None),
        **crash_scenario.OPTIONS,
    )
    async with outside as second:
        helper = asyncio.create_task(crash_scenario.act_as_second_process(second, pause=0.02))
        try:
            answer = None
            for number in range(KILLED_PROCESSES + 1):
                assert answer is None, "the scenario was over before its process was killed"
                known = stored_replies(store)
                until = chance.uniform(0.0, MAX_SECONDS) if number < KILLED_PROCESSES else None
                answer = await run_process(tmp_path, number, until=until)
                asked = set(logged_turns(tmp_path / f"asked-{number}"))
                assert asked & known == set(), f"asked again in process {number}"
        finally:
            helper.cancel()
            with suppress(asyncio.CancelledError):
                await helper
    rows = store.runs(RunQuery())
    assert answer == crash_scenario.ANSWER
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
