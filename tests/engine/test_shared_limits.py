"""Limits that several real processes share through one store are used up exactly: no action more, and none less."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from retinue.store.sqlite.store import SqliteStore
from tests.conftest import STRESS

pytestmark = pytest.mark.real_time

ROUNDS = 50 if STRESS else 2
PATIENCE = 60.0


@asynccontextmanager
async def acting_program(home: Path, actions: int, limit: int, name: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process that is ready to act; it is killed in any case."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.engine.acting_program", str(home), str(actions), str(limit), name),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def act_together(home: Path, *, processes: int, actions: int, limit: int) -> list[tuple[int, int]]:
    """Let processes act at the same moment; for each, the actions that were made and those that were refused."""
    async with AsyncExitStack() as stack:
        programs = [
            await stack.enter_async_context(acting_program(home, actions, limit, f"session-{number}"))
            for number in range(processes)
        ]
        for program in programs:
            assert program.stdin is not None
            program.stdin.write(b"go\n")
        async with asyncio.timeout(PATIENCE):
            lines = [(await program.communicate())[0].split() for program in programs]
    return [(int(made), int(refused)) for made, refused in lines]


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("round_", range(ROUNDS))
async def test_processes_that_act_at_one_instant_use_up_the_hourly_limit(
    round_: int, processes: int, tmp_path: Path
) -> None:
    results = await act_together(tmp_path, processes=processes, actions=12, limit=5)

    assert sum(made for made, _ in results) == 5
    assert sum(refused for _, refused in results) == 12 * processes - 5
    store = SqliteStore(tmp_path / "retinue.db")
    counted = store.charges("actions/main", 0.0)
    store.close()
    assert [charge.calls for charge in counted] == [1] * 5
