"""Child processes that answer one call each: started, kept ready, spoken to, and always brought to their end.

A child leads a process group of its own. As long as its parent holds the other end of its grant pipe it may work; when
that end is gone, also because the parent was killed, the child stops what it does and leaves.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from retinue.dispatch.worker.grant import GRANT_FD, MAY_I_ACT, NO, USAGE_FD, YES, Tally, last_tally
from retinue.sandbox.subprocess import end_group, gone

COMMAND = (sys.executable, "-P", "-m", "retinue", "call")
"""`-P`: the folder in which somebody works must not be where a child finds its modules."""

CHUNK = 64 * 1024
GRACE = 1.0
"""Seconds that a child has to stop what it started itself, before it is killed."""

KEPT_OF_STDERR = 8 * 1024


class Child:
    """One process, from its start to its burial."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        """What it was started with; if that has changed since, it is not the child that was wanted."""
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
        self._told = b""
        self._ended = _descriptor_of(self._process.pid)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            os.set_blocking(_number(pipe), False)
        os.set_blocking(self._grant, False)

    @property
    def pid(self) -> int:
        """Its number, and that of its group."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process.poll() is None

    async def tell(self, grant: bytes, order: bytes) -> None:
        """Give it its grant and its order; if it does not listen, that shows later."""
        await asyncio.gather(_pour(self._grant, grant), _pour(_number(self._process.stdin), order))
        if self._process.stdin is not None:
            self._process.stdin.close()

    def stdout(self) -> AsyncIterator[bytes]:
        """What it says, to the end."""
        return _pieces(_number(self._process.stdout))

    async def stderr(self) -> str:
        """The end of what it complains about, once it is over."""
        kept = b""
        async for piece in _pieces(_number(self._process.stderr)):
            kept = (kept + piece)[-KEPT_OF_STDERR:]
        return kept.decode("utf-8", "replace")

    def tally(self) -> Tally:
        """What it has told of its usage."""
        with suppress(BlockingIOError):
            while piece := os.read(self._usage, CHUNK):
                self._told += piece
        return last_tally(self._told)

    async def asks(self) -> AsyncIterator[None]:
        """Something for each time that it asks whether it may act; it waits for the answer."""
        half = b""
        async for piece in _pieces(self._usage):
            self._told += piece
            *lines, half = (half + piece).split(b"\n")
            for line in lines:
                if line + b"\n" == MAY_I_ACT:
                    yield

    async def answer(self, *, allow: bool) -> None:
        """Answer the next question."""
        await _pour(self._grant, YES if allow else NO)

    async def code(self) -> int:
        """Wait for its end; the exit code. Whatever is left of its group is killed."""
        await self._exit()
        # Before its number is given back: a group that is killed by number must still be the same one.
        end_group(self._process)
        return self._process.wait()

    async def declare_dead(self, *, grace: float = GRACE) -> None:
        """Bring it to its end, gently for a while; nothing of it is left then."""
        self.let_go()
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
        if self._ended is not None:
            await gone(self._ended)
        else:
            await asyncio.to_thread(os.waitid, os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    def let_go(self) -> None:
        """Close what the child reads from: so it is told that nobody wants it any more, and leaves by itself."""
        if self._grant >= 0:
            os.close(self._grant)
            self._grant = -1
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _close(self) -> None:
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        if self._ended is not None:
            os.close(self._ended)
            self._ended = None
        if self._usage >= 0:
            os.close(self._usage)
            self._usage = -1


class ProcessPool:
    """The children of a process: some kept ready, others at work or on their way out; none outlives `close`.

    A child that is ready has been started and waits for its order, and for its grant: it serves once, whoever comes
    first, and never two.
    """

    def __init__(self, *, ready: int = 1) -> None:
        self._wanted = ready
        self._ready: list[Child] = []
        self._burials: set[asyncio.Task[None]] = set()

    def take(self) -> Child:
        """A child for one call: one that is ready, else a new one. Raises OSError where none can be started."""
        environment = dict(os.environ)
        while self._ready:
            child = self._ready.pop(0)
            if child.lives and child.environment == environment:
                return child
            self._bury(child, grace=0.0)
        return Child(COMMAND, environment)

    def refill(self) -> None:
        """Have as many ready as are wanted."""
        with suppress(OSError):  # there is no room for another process now: the next call will say so
            while len(self._ready) < self._wanted:
                self._ready.append(Child(COMMAND, os.environ))

    def give_back(self, child: Child) -> None:
        """The child is not wanted any more, whatever it is doing."""
        self._bury(child, grace=GRACE)

    async def close(self) -> None:
        """End those that are ready, and wait until all are gone."""
        self._wanted = 0
        while self._ready:
            self._bury(self._ready.pop(), grace=0.0)
        while self._burials:
            await asyncio.wait(tuple(self._burials))

    def _bury(self, child: Child, *, grace: float) -> None:
        child.let_go()  # now, and not in the task: should the loop never come to it, the child leaves all the same
        task = asyncio.get_running_loop().create_task(
            child.declare_dead(grace=grace), name=f"end of process {child.pid}"
        )
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)


def _descriptor_of(pid: int) -> int | None:
    """A descriptor that tells of the end of a process; None where there is none to be had."""
    if sys.platform == "linux":
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None


def _number(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    return pipe.fileno()


async def _pour(descriptor: int, data: bytes) -> None:
    """Write all of it, unless nobody reads any more."""
    left = memoryview(data)
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while left:
            try:
                left = left[os.write(descriptor, left[:CHUNK]) :]
            except BlockingIOError:
                await _when(lambda ready: loop.add_writer(descriptor, ready), lambda: loop.remove_writer(descriptor))


async def _pieces(descriptor: int) -> AsyncIterator[bytes]:
    """What comes through a pipe, until its end."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            piece = os.read(descriptor, CHUNK)
        except BlockingIOError:
            await _when(lambda ready: loop.add_reader(descriptor, ready), lambda: loop.remove_reader(descriptor))
            continue
        if not piece:
            return
        yield piece


async def _when(watch: Callable[[Callable[[], None]], object], leave: Callable[[], object]) -> None:
    ready = asyncio.get_running_loop().create_future()
    watch(lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        leave()
