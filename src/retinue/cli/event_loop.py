"""The life of a command's process: its event loop, what Ctrl-C does to it, and leaving although a thread goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

INTERRUPTED = 130
PATIENCE = 0.25
"""Seconds that tasks and threads get to notice that the process is leaving."""

TOOL_THREADS = 64
TOOL_THREAD = "retinue-tool"
_SHOW_CURSOR = "\x1b[?25h"


def perform(main: Coroutine[Any, Any, int]) -> int:
    """Run a command's coroutine to its end, on uvloop where it is installed; its exit code."""
    runner = asyncio.Runner(loop_factory=_fastest_loop())
    threads = ThreadPoolExecutor(TOOL_THREADS, TOOL_THREAD)
    runner.get_loop().set_default_executor(threads)
    try:
        code = runner.run(main)
        threads.shutdown(wait=False, cancel_futures=True)
        if _tasks_go_on(runner.get_loop()) or threads_go_on(TOOL_THREAD):
            # A tool that cannot be stopped is nobody's any more. Python would wait for it, perhaps for ever.
            leave_at_once(code)
        return code
    finally:
        runner.close()


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        uvloop: Any = import_module("uvloop")
    except ImportError:
        return None
    return uvloop.new_event_loop


def _tasks_go_on(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a task is left that does not let itself be cancelled."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if not tasks:
        return False
    _, pending = loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE))
    return bool(pending)


def threads_go_on(prefix: str) -> bool:
    """Whether a thread of that name is still at work a moment after it was told that there is no more."""
    until = time.monotonic() + PATIENCE
    for thread in threading.enumerate():
        if thread.name.startswith(prefix):
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                return True
    return False


def leave_at_once(code: int) -> NoReturn:
    """End the process here and now; what was said is flushed, and the terminal has its cursor back."""
    for stream in (sys.stdout, sys.__stderr__):
        if stream is None:
            continue
        try:
            if stream is sys.__stderr__ and stream.isatty():
                stream.write(_SHOW_CURSOR)
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)


@contextmanager
def interrupts() -> Generator[asyncio.Event]:
    """An event that the first Ctrl-C sets (or a request to terminate); the second leaves at once."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear() -> None:
        if asked.is_set():
            leave_at_once(INTERRUPTED)
        asked.set()

    heard = [signal.SIGINT, signal.SIGTERM]
    try:
        for number in heard:
            loop.add_signal_handler(number, hear)
    except (NotImplementedError, RuntimeError, ValueError):
        heard = []  # Windows, or not the main thread: Ctrl-C then ends the process, and its runs can be resumed
    try:
        yield asked
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


async def first_of(work: Coroutine[Any, Any, Any], asked: asyncio.Event) -> bool:
    """Wait for the work, or until somebody asked to stop, which stops it; whether it was done."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(asked.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()  # raises what it raised
        return True
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
