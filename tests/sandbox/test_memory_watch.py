"""The memory watch kills a program that it cannot read, and not one that has just ended."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.core.ports import Sandbox
from retinue.sandbox import memory_watch
from retinue.sandbox.memory_watch import wait_for_excess
from tests.sandbox.conftest import Calls, Line

pytestmark = [pytest.mark.real_time, pytest.mark.skipif(sys.platform != "linux", reason="there is none but on Linux")]
MUCH = 1024 * 1024 * 1024


@pytest.fixture
def ended() -> Iterator[int]:
    """A process that has ended and was not reaped."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield process.pid


def unseen(*_: object) -> None:
    raise FileNotFoundError(2, "No such file or directory")


async def test_a_program_that_ends_during_a_check_is_not_killed(ended: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "_enter", unseen)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wait_for_excess(ended, MUCH, 1), 0.5)


async def test_a_live_program_that_cannot_be_read_is_killed(
    sandbox: Sandbox, program: Calls, work: Path, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_watch, "_enter", unseen)

    ended = await sandbox.run(program("sh", "-c", "exec 3>line; sleep 20"))

    assert ended.killed_for == (
        "Killed: how much memory its processes use could not be seen any more (No such file or directory)"
    )
    assert await line.read() == b""
