"""A process that is killed while it sets up a sandbox leaves no process behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from retinue.sandbox.guardian import Guardian
from retinue.sandbox.subprocess import wait_for_exit

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("sandbox")]

HOLDER = """
import asyncio, os, sys, time
from retinue.core.ports import Program
from retinue.sandbox import bubblewrap, subprocess
from retinue.sandbox.probe import choose, sandbox_verdict

point, mark, folder = sys.argv[1:]

async def main():
    sandbox = choose("required")
    await sandbox_verdict()
    stop = lambda *args, **kwargs: (print("here", flush=True), time.sleep(600))
    if point == "started":
        bubblewrap.finish = stop
    elif point == "first process":
        bubblewrap.check_readable = stop
    elif point == "limits":
        bubblewrap.wait_for_excess = stop
    else:
        asyncio.get_running_loop().call_later(1, stop)
    argv = ("/bin/sh", "-c", f"sleep 600; : {mark}")
    await sandbox.run(Program(argv=argv, folder=folder, writable=(folder,), seconds=600))

asyncio.run(main())
"""


def marked(mark: str) -> list[int]:
    """Processes that have this word in their command line, each held by a descriptor."""
    found: list[int] = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(int(entry))
            if mark.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                found.append(descriptor)
            else:
                os.close(descriptor)
    return found


@pytest.mark.parametrize("point", ["started", "first process", "limits", "running"])
async def test_nothing_is_left_of_a_sandbox_whose_process_is_killed(point: str, tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}-{point.replace(' ', '-')}"
    os.chmod(tmp_path, 0o777)
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, point, mark, str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await asyncio.wait_for(holder.stdout.readline(), 60) == b"here\n"
    processes = marked(mark)
    assert len(processes) > 1, "the holder and its sandbox"
    holder.kill()
    await holder.wait()
    try:
        for process in processes:
            await asyncio.wait_for(wait_for_exit(process), 20)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
    assert marked(mark) == []


async def test_a_guardian_that_was_killed_is_replaced() -> None:
    guardian = Guardian()
    sleeping = await asyncio.create_subprocess_exec("/bin/sleep", "600", start_new_session=True)
    guardian.add(-sleeping.pid)
    guardian.add(2**22 + 1)
    guardian.remove(2**22 + 1)
    os.close(guardian._pipe)  # pyright: ignore[reportPrivateUsage]: as if this process had ended

    assert await asyncio.wait_for(sleeping.wait(), 20) == -signal.SIGKILL
    guardian._pipe = os.open(os.devnull, os.O_RDONLY)  # pyright: ignore[reportPrivateUsage]: a pipe without a reader
    guardian.add(2**22 + 2)
    assert os.readlink(f"/proc/self/fd/{guardian._pipe}").startswith("pipe:")  # pyright: ignore[reportPrivateUsage]
    os.close(guardian._pipe)  # pyright: ignore[reportPrivateUsage]
