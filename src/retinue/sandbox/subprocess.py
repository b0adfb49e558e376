"""One child process on the event loop: its input is written, its output read up to a limit, its end awaited.

Built on file descriptors alone, so that it works on every event loop and in every thread; asyncio's own subprocesses
have no `user=` under uvloop. The caller provides the function that kills.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from retinue.core.ports import Ended, Program, Talk

CHUNK = 64 * 1024


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
    user: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command in a new session with pipes for its three streams; `user` is also its only group."""
    pipe, groups = subprocess.PIPE, None if user is None else ()
    return subprocess.Popen(
        argv,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=env,
        cwd=cwd,
        pass_fds=pass_fds,
        start_new_session=True,
        user=user,
        group=user,
        extra_groups=groups,
    )


async def finish(
    process: subprocess.Popen[bytes],
    program: Program,
    kill: Callable[[], None],
    *,
    drain_seconds: float | None = None,
    talk: Talk | None = None,
) -> Ended:
    """Wait for the end of a process made by `start`, within the time limit of `program`.

    `kill` is called in any case, also after the end, to end other processes that hold the pipes; if it may miss some,
    `drain_seconds` limits the wait for the pipes. When cancelled, kills, waits for the process and re-raises.

    With `talk`, the process is also killed when that returns. It has the pipes after `program.stdin` was written,
    which must be short, and no stdout is kept.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stderr = _PipeReader(process.stderr, program.max_output)
    if talk is not None:
        return await _finish_talk(process, program, kill, talk, stderr, drain_seconds)
    stdout = _PipeReader(process.stdout, program.max_output)
    stdin = _PipeWriter(process.stdin, program.stdin)
    timed_out = False
    try:
        try:
            async with asyncio.timeout(program.seconds):
                await _wait_unreaped(process)
        except TimeoutError:
            timed_out = True
        # Before the process is reaped: afterwards its pid may belong to another process group.
        kill()
        await asyncio.wait((stdout.ended, stderr.ended), timeout=drain_seconds)
    finally:
        kill()
        await _wait_unreaped(process)
        code = process.wait()
        for stream in (stdin, stdout, stderr):
            stream.close()
    return Ended(
        code=code,
        stdout=bytes(stdout.kept),
        stderr=bytes(stderr.kept),
        timed_out=timed_out,
        cut=stdout.cut or stderr.cut,
    )


async def _finish_talk(
    process: subprocess.Popen[bytes],
    program: Program,
    kill: Callable[[], None],
    talk: Talk,
    stderr: _PipeReader,
    drain_seconds: float | None,
) -> Ended:
    """The same for a process that is talked to."""
    assert process.stdin is not None
    assert process.stdout is not None
    pipes = (process.stdin, process.stdout)
    for pipe in pipes:
        os.set_blocking(pipe.fileno(), False)
    with suppress(OSError):  # the process has ended
        os.write(process.stdin.fileno(), program.stdin)
    talking = asyncio.ensure_future(talk(*pipes))
    ending = asyncio.ensure_future(_wait_unreaped(process))
    try:
        await asyncio.wait((talking, ending), return_when=asyncio.FIRST_COMPLETED)
        kill()
        await asyncio.wait((talking, stderr.ended), timeout=drain_seconds)
    finally:
        kill()
        talking.cancel()
        await asyncio.gather(talking, ending, return_exceptions=True)
        await _wait_unreaped(process)
        code = process.wait()
        stderr.close()
        for pipe in pipes:
            with suppress(OSError):  # what was not written yet has no reader
                pipe.close()
    return Ended(code=code, stderr=bytes(stderr.kept), cut=stderr.cut)


async def _wait_unreaped(process: subprocess.Popen[bytes]) -> None:
    """Return when the process has ended, without reaping it, so that its pid is not reused."""
    if process.returncode is not None:
        return
    if sys.platform == "linux":
        descriptor = os.pidfd_open(process.pid)
        try:
            await wait_for_exit(descriptor)
        finally:
            os.close(descriptor)
    else:
        await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a session leader with its process group, unless it was reaped: its pid may be reused then."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


async def wait_for_exit(descriptor: int) -> None:
    """Return when the process of a pidfd has ended."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(descriptor, _resolve, ended)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _PipeReader:
    """Reads a pipe to its end and keeps the beginning; discards the rest, so that the program never blocks."""

    def __init__(self, pipe: IO[bytes], keep: int) -> None:
        self.kept = bytearray()
        self.cut = False
        self._keep = keep
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(pipe.fileno(), False)
        self._loop.add_reader(pipe.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._pipe.fileno())
            _resolve(self.ended)
            return
        room = self._keep - len(self.kept)
        self.kept += data[:room]
        self.cut = self.cut or len(data) > room

    def close(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()


class _PipeWriter:
    """Writes data to a pipe as far as it accepts some, and closes it after all is written or the reader is gone."""

    def __init__(self, pipe: IO[bytes], data: bytes) -> None:
        self._pipe = pipe
        self._left = memoryview(data)
        self._loop = asyncio.get_running_loop()
        if not data:
            pipe.close()
            return
        os.set_blocking(pipe.fileno(), False)
        self._loop.add_writer(pipe.fileno(), self._write)

    def _write(self) -> None:
        try:
            written = os.write(self._pipe.fileno(), self._left[:CHUNK])
        except BlockingIOError:
            return
        except OSError:  # the reader has closed the pipe
            written = len(self._left)
        self._left = self._left[written:]
        if not self._left:
            self.close()

    def close(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_writer(self._pipe.fileno())
            self._pipe.close()
