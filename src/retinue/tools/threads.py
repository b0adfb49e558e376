"""Threads for the work of tools that is not async: as many as are needed, and none that anybody has to wait for.

The event loop's own threads are few, and whatever hangs in one of them keeps it: after a handful of hung tools nothing
else would be read, resolved or closed. Here a call that nobody waits for any more gives its place to the next, and a
thread that never ends does not keep the process from ending.
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
"""Calls of one event loop that are waited for at the same time."""


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """What the function returns, called in a thread with the caller's context variables.

    Being cancelled means that nobody waits for it any more; the function itself goes on until it ends.
    """
    loop = asyncio.get_running_loop()
    room = _rooms.setdefault(loop, asyncio.Semaphore(AT_ONCE))
    call = partial(contextvars.copy_context().run, function, *args, **kwargs)
    async with room:
        return await loop.run_in_executor(_THREADS, call)


class _Threads(Executor):
    """A thread for every call; it is no reason for the process to stay."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin the call."""
        future: Future[T] = Future()
        call = partial(fn, *args, **kwargs)
        threading.Thread(target=_perform, args=(future, call), name="retinue-tool", daemon=True).start()
        return future


def _perform(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # it belongs to whoever waits, SystemExit too
        future.set_exception(error)
    else:
        future.set_result(result)


_THREADS = _Threads()
_rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
