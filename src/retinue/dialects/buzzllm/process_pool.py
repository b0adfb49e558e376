"""Child processes `retinue call` that answer one request each: started, kept ready, and always ended.

A child leads a process group of its own. It may work for as long as its parent holds the other end of its grant pipe;
when that end is closed, also because the parent was killed, the child stops and exits.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from retinue.dialects.child_process import GRANT_FD, MAY_I_ACT, NO, USAGE_FD, YES, Tally, last_tally
from retinue.sandbox.subprocess import end_group, wait_for_exit

COMMAND = (sys.executable, "-P", "-m", "retinue", "call")
"""`-P`: a child must not find its modules in the current folder."""

CHUNK = 64 * 1024
GRACE = 1.0
"""Seconds that a child has to stop what it started, before it is killed."""

MAX_STDERR_BYTES = 8 * 1024


class ChildProcess:
    """One child process, from its start until it is reaped."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        """The variables that it was started with; a child with other ones than today's is not used."""
        grant, self._grant = os.pipe()
        self._usage, usage = os.pipe()
        os.set_blocking(self._usage, False)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.environment | {GRANT_FD: str(grant), USAGE_FD: str(usage)},
                pass_fds=(grant, usage),
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            os.close(self._grant)
            os.close(self._usage)
            raise
        finally:
            os.close(grant)
            os.close(usage)
        self._written = b""
        self._exit_fd = _pid_descriptor(self._process.pid)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            os.set_blocking(_number(pipe), False)
        os.set_blocking(self._grant, False)

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not exited."""
        return self._process.poll() is None

    async def send(self, grant: bytes, request: bytes) -> None:
        """Write the grant and the request; a child that does not read them shows that by its exit."""
        await asyncio.gather(_write_all(self._grant, grant), _write_all(_number(self._process.stdin), request))
        if self._process.stdin is not None:
            self._process.stdin.close()

    def stdout(self) -> AsyncIterator[bytes]:
        """The pieces of its stdout, until the end."""
        return _pieces(_number(self._process.stdout))

    async def stderr(self) -> str:
        """The last part of its stderr, once that is closed."""
        kept = b""
        async for piece in _pieces(_number(self._process.stderr)):
            kept = (kept + piece)[-MAX_STDERR_BYTES:]
        return kept.decode("utf-8", "replace")

    def tally(self) -> Tally:
        """The usage that it has reported so far."""
        with suppress(BlockingIOError):
            while piece := os.read(self._usage, CHUNK):
                self._written += piece
        return last_tally(self._written)

    async def action_requests(self) -> AsyncIterator[None]:
        """One item each time that the child asks whether it may act; it waits for the answer."""
        half = b""
        async for piece in _pieces(self._usage):
            self._written += piece
            *lines, half = (half + piece).split(b"\n")
            for line in lines:
                if line + b"\n" == MAY_I_ACT:
                    yield

    async def answer(self, *, allow: bool) -> None:
        """Answer the oldest open question."""
        await _write_all(self._grant, YES if allow else NO)

    async def code(self) -> int:
        """Wait for the exit; the exit code. What is left of the process group is killed."""
        await self._exit()
        # Before the process is reaped: until then no other group can have its id.
        end_group(self._process)
        return self._process.wait()

    async def end(self, *, grace: float = GRACE) -> None:
        """Let the child exit by itself within `grace`, else kill its group; close everything."""
        self.close_input()
        try:
            async with asyncio.timeout(grace):
                await self._exit()
        except TimeoutError:
            pass
        finally:
            end_group(self._process)
        await self._exit()
        self._process.wait()
        self._close()

    async def _exit(self) -> None:
        if self._process.returncode is not None:
            return
        if self._exit_fd is not None:
            await wait_for_exit(self._exit_fd)
        else:
            await asyncio.to_thread(os.waitid, os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    def close_input(self) -> None:
        """Close what the child reads from: it then exits by itself."""
        if self._grant >= 0:
            os.close(self._grant)
            self._grant = -1
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _close(self) -> None:
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        if self._exit_fd is not None:
            os.close(self._exit_fd)
            self._exit_fd = None
        if self._usage >= 0:
            os.close(self._usage)
            self._usage = -1


class ProcessPool:
    """The child processes of this process: some ready, others at work or exiting; none outlives `close`.

    A child that is ready has been started and waits for its grant and its request. It serves one call.
    """

    def __init__(self, *, ready: int = 1) -> None:
        self._ready_count = ready
        self._ready: list[ChildProcess] = []
        self._endings: set[asyncio.Task[None]] = set()

    def take(self) -> ChildProcess:
        """A child for one call: one that is ready, else a new one. Raises OSError where none can be started."""
        environment = dict(os.environ)
        while self._ready:
            child = self._ready.pop(0)
            if child.is_alive and child.environment == environment:
                return child
            self._end(child, grace=0.0)
        return ChildProcess(COMMAND, environment)

    def refill(self) -> None:
        """Start children until as many are ready as the pool keeps."""
        with suppress(OSError):  # no room for another process: the next call reports it
            while len(self._ready) < self._ready_count:
                self._ready.append(ChildProcess(COMMAND, os.environ))

    def give_back(self, child: ChildProcess) -> None:
        """End a child, whatever it is doing."""
        self._end(child, grace=GRACE)

    async def close(self) -> None:
        """End the ready children, and wait until all have exited."""
        self._ready_count = 0
        while self._ready:
            self._end(self._ready.pop(), grace=0.0)
        while self._endings:
            await asyncio.wait(tuple(self._endings))

    def _end(self, child: ChildProcess, *, grace: float) -> None:
        child.close_input()  # here and not in the task: the child exits even if the loop never runs the task
        task = asyncio.get_running_loop().create_task(child.end(grace=grace), name=f"end of process {child.pid}")
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)


def _pid_descriptor(pid: int) -> int | None:
    """A descriptor that becomes readable when a process exits; None where the system has none."""
    if sys.platform == "linux":
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None


def _number(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    return pipe.fileno()


async def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, unless the reader has closed the pipe."""
    left = memoryview(data)
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while left:
            try:
                left = left[os.write(descriptor, left[:CHUNK]) :]
            except BlockingIOError:
                await _ready(lambda ready: loop.add_writer(descriptor, ready), lambda: loop.remove_writer(descriptor))


async def _pieces(descriptor: int) -> AsyncIterator[bytes]:
    """The pieces that come through a pipe, until its end."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            piece = os.read(descriptor, CHUNK)
        except BlockingIOError:
            await _ready(lambda ready: loop.add_reader(descriptor, ready), lambda: loop.remove_reader(descriptor))
            continue
        if not piece:
            return
        yield piece


async def _ready(watch: Callable[[Callable[[], None]], object], leave: Callable[[], object]) -> None:
    """Wait until a descriptor that `watch` registers is ready."""
    ready = asyncio.get_running_loop().create_future()
    watch(lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        leave()
