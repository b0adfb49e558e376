"""Limits that several real processes share through one store are used up exactly: no action more, and none less."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest

from retinue.store.postgres import PostgresStore
from retinue.store.sqlite.store import SqliteStore
from tests.conftest import STRESS

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

ROUNDS = 50 if STRESS else 2
PATIENCE = 120.0


@asynccontextmanager
async def acting_program(place: str, actions: int, limit: int, name: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process that is ready to act; it is killed in any case."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.engine.acting_program", place, str(actions), str(limit), name),
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


async def act_together(place: str, *, processes: int, actions: int, limit: int) -> list[tuple[int, int]]:
    """Let processes act at the same moment; for each, the actions that were made and those that were refused."""
    async with AsyncExitStack() as stack:
        programs = [
            await stack.enter_async_context(acting_program(place, actions, limit, f"session-{number}"))
            for number in range(processes)
        ]
        for program in programs:
            assert program.stdin is not None
            program.stdin.write(b"go\n")
        async with asyncio.timeout(PATIENCE):
            lines = [(await program.communicate())[0].split() for program in programs]
    return [(int(made), int(refused)) for made, refused in lines]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder for a SQLite store, or the address of a PostgreSQL store."""
    return str(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def store_at(place: str) -> SqliteStore | PostgresStore:
    return PostgresStore(place) if place.startswith("postgresql:") else SqliteStore(Path(place) / "retinue.db")


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("round_", range(ROUNDS))
async def test_processes_that_act_at_one_instant_use_up_the_hourly_limit(
    round_: int, processes: int, place: str
) -> None:
    results = await act_together(place, processes=processes, actions=12, limit=5)

    assert sum(made for made, _ in results) == 5
    assert sum(refused for _, refused in results) == 12 * processes - 5
    with closing(store_at(place)) as store:
        counted = store.charges("actions/main", 0.0)
    assert [charge.calls for charge in counted] == [1] * 5
