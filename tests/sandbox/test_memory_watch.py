"""The memory watch kills a program that it cannot read, and not one that has just ended."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.core.ports import Program, Sandbox
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


def unseen(*_: object, **__: object) -> None:
    raise FileNotFoundError(2, "No such file or directory")


async def test_a_program_that_ends_during_a_check_is_not_killed(ended: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "_enter", unseen)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wait_for_excess(ended, Program(argv=("true",), folder="/", memory=MUCH)), 0.5)


async def test_a_live_program_that_cannot_be_read_is_killed(
    sandbox: Sandbox, program: Calls, work: Path, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_watch, "_enter", unseen)

    ended = await sandbox.run(program("sh", "-c", "exec 3>line; sleep 20"))

    assert ended.killed_for == (
        "Killed: how much memory its processes use could not be seen any more (No such file or directory)"
    )
    assert await line.read() == b""


CONNECTIONS = """
import socket, time
server = socket.create_server(("127.0.0.1", 0), backlog=64)
pairs, chunk, space = [], b"x" * (1 << 20), bytearray(1 << 20)
for _ in range({count}):
    near = socket.create_connection(server.getsockname())
    far, _ = server.accept()
    near.setblocking(False), far.setblocking(False)
    pairs.append((near, far))
    for reads in [True] * {reads} + [False] * {fills}:
        try:
            near.send(chunk)
        except BlockingIOError:
            pass
        try:
            while reads and far.recv_into(space):
                pass
        except BlockingIOError:
            pass
print(len(pairs), flush=True)
time.sleep({seconds})
"""
PIPES = """
import os, time
kept = []
for _ in range(6):
    if os.fork() == 0:
        try:
            while True:
                kept.append(os.pipe())
        except OSError:
            time.sleep(20)
time.sleep(20)
"""
NAMED_PIPES = """
import os, time
for number in range(900):
    os.mkfifo(f"/tmp/{number}")
for process in range(3):
    if os.fork() == 0:
        kept = [os.open(f"/tmp/{number}", os.O_RDWR) for number in range(process * 300, process * 300 + 300)]
        time.sleep(20)
time.sleep(20)
"""
MEGABYTE = 1024 * 1024


async def test_what_connections_keep_counts_as_memory(sandbox: Sandbox, program: Calls) -> None:
    code = CONNECTIONS.format(count=200, reads=8, fills=8, seconds=20)
    ended = await sandbox.run(program("/usr/bin/python3", "-c", code, memory=128 * MEGABYTE, reserved=4096 * MEGABYTE))

    assert ended.killed_for.endswith("and may use 128 MB"), (ended.stdout, ended.stderr)


async def test_many_connections_without_data_are_not_memory(sandbox: Sandbox, program: Calls) -> None:
    code = CONNECTIONS.format(count=60, reads=1, fills=0, seconds=1)
    ended = await sandbox.run(program("/usr/bin/python3", "-c", code, memory=128 * MEGABYTE, reserved=4096 * MEGABYTE))

    assert (ended.code, ended.stdout, ended.killed_for) == (0, b"60\n", ""), ended.stderr


@pytest.mark.parametrize("code", [PIPES, NAMED_PIPES], ids=["pipes", "named pipes"])
async def test_pipes_count_as_memory(sandbox: Sandbox, program: Calls, code: str) -> None:
    limit = 48 * MEGABYTE
    ended = await sandbox.run(program("/usr/bin/python3", "-c", code, memory=limit, reserved=4096 * MEGABYTE))

    assert ended.killed_for.endswith("and may use 48 MB"), (ended.stdout, ended.stderr)


async def test_a_pipe_cannot_be_enlarged_and_a_socket_has_a_known_protocol(sandbox: Sandbox, program: Calls) -> None:
    code = (
        "import fcntl, os, socket\n"
        "for attempt in (lambda: fcntl.fcntl(os.pipe()[0], 1031, 1 << 20), lambda: socket.socket(2, 1, 262)):\n"
        "    try:\n"
        "        attempt()\n"
        "        print('done')\n"
        "    except OSError as error:\n"
        "        print(error.errno)\n"
    )
    ended = await sandbox.run(program("/usr/bin/python3", "-c", code))

    assert ended.stdout.split() == [b"%d" % errno.EPERM, b"%d" % errno.EPROTONOSUPPORT], ended.stderr


MAPPED = """
import mmap, time
with open('mapped', 'w+b') as file:
    file.truncate(200 << 20)
    view = mmap.mmap(file.fileno(), 200 << 20)
for place in range(0, len(view), 4096):
    view[place] = 1
time.sleep(20)
"""


async def test_mapped_pages_of_a_granted_folder_in_memory_count(sandbox: Sandbox) -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no /dev/shm")
    folder = tempfile.mkdtemp(dir="/dev/shm")
    os.chmod(folder, 0o777)
    try:
        ended = await sandbox.run(
            Program(
                argv=("/usr/bin/env", "python3", "-I", "-S", "-c", MAPPED),
                folder=folder,
                readable=(sys.base_prefix,),
                writable=(folder,),
                environment={"PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin"},
                memory=64 << 20,
                reserved=4 * MUCH,
                file_size=MUCH,
                seconds=60,
            )
        )
    finally:
        shutil.rmtree(folder)

    assert (ended.code, ended.killed_for.endswith("and may use 64 MB")) == (-signal.SIGKILL, True)
