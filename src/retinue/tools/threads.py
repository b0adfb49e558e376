"""Daemon threads for synchronous tool functions, at most `AT_ONCE` of them awaited at a time.

The event loop's default executor has few threads, and a function that hangs keeps its thread: after a handful of hung
tools nothing else would be read, resolved or closed. Here a cancelled call gives its place to the next one, and a
thread that never ends does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

P = ParamSpec("P")
T = TypeVar("T")

AT_ONCE = 128
"""Calls of one event loop that are awaited at the same time."""


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of a function in a thread with the caller's context variables; cancelling only ends the wait."""
    loop = asyncio.get_running_loop()
    slots = _slots.setdefault(loop, asyncio.Semaphore(AT_ONCE))
    call = partial(contextvars.copy_context().run, function, *args, **kwargs)
    async with slots:
        return await loop.run_in_executor(_THREADS, call)


class _Threads(Executor):
    """A new daemon thread for every call."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        call = partial(fn, *args, **kwargs)
        threading.Thread(target=_perform, args=(future, call), name="retinue-tool", daemon=True).start()
        return future


def _perform(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # raised in the awaiting task, SystemExit too
        future.set_exception(error)
    else:
        future.set_result(result)


_THREADS = _Threads()
_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
