"""The event loop of a command, Ctrl-C, and exit with stuck threads; asyncio is imported late, as help needs no loop."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from retinue.cli.output.terminal import INTERRUPTED, say, show_cursor

if TYPE_CHECKING:
    import asyncio

    from retinue.app.read_only import ReadOnlyClient

PATIENCE = 0.25
"""Seconds that tasks and threads get to end at exit."""

TOOL_THREADS = 64
TOOL_THREAD = "retinue-tool"


def perform(main: Coroutine[Any, Any, int]) -> int:
    """Run a command's coroutine, on uvloop where it is installed; its exit code."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    runner = asyncio.Runner(loop_factory=_fastest_loop())
    threads = ThreadPoolExecutor(TOOL_THREADS, TOOL_THREAD)
    runner.get_loop().set_default_executor(threads)
    try:
        code = runner.run(main)
        threads.shutdown(wait=False, cancel_futures=True)
        if runner.get_loop().run_until_complete(tasks_remain()) or threads_remain(TOOL_THREAD):
            # Python would wait for a tool that cannot be stopped, perhaps forever.
            exit_now(code)
        return code
    finally:
        runner.close()


def perform_on_store(work: Callable[[ReadOnlyClient], Awaitable[None]], done: str = "") -> int:
    """Run a command that only needs the store, and print `done` on stderr; its exit code."""
    from retinue.app.open import open_read_only

    async def main() -> int:
        async with open_read_only() as client:
            await work(client)
        if done:
            say(done)
        return 0

    return perform(main())


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        uvloop: Any = import_module("uvloop")
    except ImportError:
        return None
    return uvloop.new_event_loop


async def tasks_remain() -> bool:
    """Cancel all other tasks; whether one of them ignores it."""
    import asyncio

    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if not tasks:
        return False
    _, pending = await asyncio.wait(tasks, timeout=PATIENCE)
    return bool(pending)


def threads_remain(prefix: str) -> bool:
    """Whether a thread whose name starts like this is still running after a moment."""
    until = time.monotonic() + PATIENCE
    for thread in threading.enumerate():
        if thread.name.startswith(prefix):
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                return True
    return False


@contextmanager
def ends_after(stop: asyncio.Event, seconds: float) -> Generator[None]:
    """End the process so many seconds after `stop`, if the block has not ended then, also if its event loop hangs."""
    import asyncio

    # A thread: to close a store that does not answer blocks the event loop.
    timer = threading.Timer(seconds, exit_now, (0,))
    timer.daemon = True

    async def wait() -> None:
        await stop.wait()
        timer.start()

    waiting = asyncio.ensure_future(wait())
    try:
        yield
    finally:
        waiting.cancel()
        timer.cancel()


_undos: list[Callable[[], object]] = []
"""What `exit_now` undoes: changes of the terminal's mode."""


@contextmanager
def undone_at_exit(undo: Callable[[], object]) -> Generator[None]:
    """Call `undo` at the end of the block, and if `exit_now` ends the process before."""
    _undos.append(undo)
    try:
        yield
    finally:
        _undos.remove(undo)
        undo()


def exit_now(code: int) -> NoReturn:
    """End the process immediately; output is flushed, and the terminal is as it was, with its cursor."""
    for finish in (sys.stdout.flush, show_cursor, sys.stderr.flush, *reversed(_undos)):
        with suppress(OSError, ValueError):
            finish()
    os._exit(code)


@contextmanager
def interrupts() -> Generator[asyncio.Event]:
    """An event that the first SIGINT or SIGTERM sets; the second ends the process."""
    import asyncio

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def receive() -> None:
        if stop.is_set():
            exit_now(INTERRUPTED)
        stop.set()

    handled = [signal.SIGINT, signal.SIGTERM]
    try:
        for number in handled:
            loop.add_signal_handler(number, receive)
    except (NotImplementedError, RuntimeError, ValueError):
        handled = []  # Windows, or not the main thread: Ctrl-C then ends the process, and its runs can be resumed
    try:
        yield stop
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
