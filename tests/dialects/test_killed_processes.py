"""A real process with children of five dialects, tools and a sandbox is killed at random moments, and another goes on.

The end is compared with that of an undisturbed process: answers, results, usage, what is left of every limit; no action
happens twice, no reply that was stored is requested again, and no process is left, of a half-made sandbox neither.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from retinue.core.commands import RunQuery
from retinue.core.events import CallReturned, ReplyReceived
from retinue.core.ports import Sandbox
from retinue.engine.tool_calls import INTERRUPTED
from retinue.store.sqlite.store import SqliteStore
from tests.conftest import STRESS
from tests.dialects.killed_program import AGENTS, killed_tree
from tests.dialects.mixed_scenario import TREES, MixedHarness

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

KILLS_IN_A_TEST = 20 if STRESS else 2
TESTS = 25 if STRESS else 1
"""Tests for each of the two trees: 1,000 kills at full size."""
MOST_KILLS = 3
"""Kills in one folder."""
PATIENCE = 300.0
FIRST_SEED = int(os.environ.get("RETINUE_KILL_SEED", "1"))


class Forks:
    """The program that forks the processes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def life(self, home: Path, tree: str, number: int, *, until: float | None) -> bool:
        """Let a process drive the tree, and kill it after `until` seconds; whether it was killed before its end."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{home} {tree} {number}\n".encode())
        started = (await asyncio.wait_for(stdout.readline(), PATIENCE)).split()
        assert started[0] == b"started", started
        end = asyncio.ensure_future(stdout.readline())
        done, _ = await asyncio.wait({end}, timeout=until if until is not None else PATIENCE)
        if not done:
            with suppress(ProcessLookupError):
                os.kill(int(started[1]), signal.SIGKILL)
        word, status = (await end).split()
        assert word == b"ended"
        assert until is not None or done, f"{home} was not finished within {PATIENCE:g} s"
        assert int(status) in (0, signal.SIGKILL), f"the process in {home} failed with status {int(status)}"
        return int(status) == signal.SIGKILL


@asynccontextmanager
async def forks() -> AsyncGenerator[Forks]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.dialects.killed_program"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        yield Forks(process)
    finally:
        process.kill()
        await process.communicate()


def processes_of(home: Path) -> list[str]:
    """The processes that name the folder, those of sandboxes that were being set up included; nothing is ended here."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if str(home).encode() in line:
                    found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def record_of(home: Path, tree: str) -> tuple[dict[str, Any], list[str], set[tuple[str, int]]]:
    """Every run as it ended; the interrupted calls, by tool; and the replies that are stored."""
    store = SqliteStore(home / "retinue.db")
    harness = MixedHarness(killed_tree(tree), store, agents=AGENTS)
    record = harness.record()
    replies = {
        (row.path, event.turn)
        for row in store.runs(RunQuery())
        for event in harness.events(row.run_id)
        if isinstance(event, ReplyReceived)
    }
    interrupted = [
        "notify"
        for row in store.runs(RunQuery())
        for event in harness.events(row.run_id)
        if isinstance(event, CallReturned) and event.text == INTERRUPTED
    ]
    store.close()
    return record, interrupted, replies


def without_notification(record: dict[str, Any]) -> dict[str, Any]:
    """A record without the result of the call that is made at most once: after a crash it may be interrupted."""
    for facts in record.values():
        facts["results"] = [result for result in facts["results"] if result[2] not in ("sent", INTERRUPTED)]
    return record


@pytest.mark.timeout(900)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + TESTS))
async def test_random_kills_change_neither_the_answer_nor_the_limits(
    seed: int, tree: str, tmp_path: Path, sandbox: Sandbox
) -> None:
    chance = random.Random(f"{tree}/{seed}")
    async with forks() as program:
        calm = tmp_path / "calm"
        calm.mkdir()
        began = time.monotonic()
        assert not await program.life(calm, tree, 0, until=None)
        seconds = time.monotonic() - began
        expected, interrupted, _ = record_of(calm, tree)
        assert (calm / "answer").read_text() == killed_tree(tree).answer
        assert (interrupted, (calm / "work" / "sent").read_text()) == ([], "measured\n")
        expected = without_notification(expected)

        kills = scenario = 0
        while kills < KILLS_IN_A_TEST:
            scenario += 1
            home = tmp_path / f"killed-{scenario}"
            home.mkdir()
            number, known = 1, set[tuple[str, int]]()
            while await program.life(home, tree, number, until=_moment(chance, seconds, number)):
                kills += 1
                number += 1
                known = record_of(home, tree)[2] if (home / "retinue.db").exists() else known
            record, interrupted, _ = record_of(home, tree)
            where = f"{tree}, seed {seed}, scenario {scenario}, {number - 1} kills"

            assert (where, (home / "answer").read_text()) == (where, killed_tree(tree).answer)
            record = without_notification(record)
            assert record.keys() == expected.keys(), where
            if interrupted:  # the run reads another text than without a crash, and pays for it
                record["measure"] |= {name: expected["measure"][name] for name in ("usage", "cost")}
            for task, facts in expected.items():
                assert {"where": where, "task": task, **record[task]} == {"where": where, "task": task, **facts}
            asked = {(path, turn) for path, turn in json.loads((home / f"asked-{number}").read_text())}
            assert asked & known == set(), where
            left = (home / "left").read_text()
            # What the root has left is noted in its last turn, which an earlier process may have stored.
            assert left == (calm / "left").read_text() or (left == "{}" and known) or interrupted, where
            sent = (home / "work" / "sent").read_text() if (home / "work" / "sent").exists() else ""
            assert sent in ("", "measured\n"), where
            assert sent or interrupted == ["notify"], where
            assert processes_of(home) == [], where


def _moment(chance: random.Random, seconds: float, number: int) -> float | None:
    """When to kill a process: at any moment of an undisturbed one; the last one is not killed."""
    return chance.uniform(0.0, seconds) if number <= MOST_KILLS else None
