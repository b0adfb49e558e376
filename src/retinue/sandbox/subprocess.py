"""One child process on the event loop: fed, read with a bound, waited for, and killed when its time is over.

Made of readers and a process descriptor alone, so that it works the same on every loop and in every thread; asyncio's
own subprocesses know no `user=` under uvloop. What killing means is the caller's business.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from retinue.core.ports import Ended, Program

CHUNK = 64 * 1024


async def finish(
    process: subprocess.Popen[bytes], program: Program, kill: Callable[[], None], *, patience: float | None = None
) -> Ended:
    """Wait for the end of a process whose three streams are pipes, and say how it ended.

    `kill` is called in any case, at the end too, and ends what else could hold the pipes; where it cannot be sure of
    that, `patience` says how many seconds to wait for them. Being cancelled, this kills, waits for the process and lets
    the cancellation through.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr = _Reading(process.stdout, program.max_output), _Reading(process.stderr, program.max_output)
    stdin = _Writing(process.stdin, program.stdin)
    timed_out = False
    try:
        try:
            async with asyncio.timeout(program.seconds):
                await _exited(process)
        except TimeoutError:
            timed_out = True
        # Before its number is given back: a group that is killed by number must still be the same one.
        kill()
        await asyncio.wait((stdout.ended, stderr.ended), timeout=patience)
    finally:
        kill()
        await _exited(process)
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


async def _exited(process: subprocess.Popen[bytes]) -> None:
    """Return when the process has ended; its number stays taken until somebody waits for it."""
    if process.returncode is not None:
        return
    if sys.platform == "linux":
        descriptor = os.pidfd_open(process.pid)
        try:
            await gone(descriptor)
        finally:
            os.close(descriptor)
    else:
        await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and its group, as long as nobody has waited for it.

    Once somebody has, its number may be another's.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


async def gone(descriptor: int) -> None:
    """Return when the process behind a process descriptor has ended."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(descriptor, _settle, ended)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Reading:
    """Reads a pipe to its end and keeps the beginning; the rest is thrown away, so that the program never blocks."""

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
            _settle(self.ended)
            return
        room = self._keep - len(self.kept)
        self.kept += data[:room]
        self.cut = self.cut or len(data) > room

    def close(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()


class _Writing:
    """Writes to a pipe what fits, until all is written or nobody reads, and closes it."""

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
        except OSError:  # Nobody reads any more.
            written = len(self._left)
        self._left = self._left[written:]
        if not self._left:
            self.close()

    def close(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_writer(self._pipe.fileno())
            self._pipe.close()
