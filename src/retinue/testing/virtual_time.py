"""An asyncio event loop with virtual time: a timeout of an hour passes at once, and a deadlock is an error.

Whenever no callback is ready, time jumps to the next timer. The loop waits in real time only for external work:

- *Worker threads* started through the loop (`asyncio.to_thread`, `run_in_executor`), and `paused()` blocks: time is
  paused until they are done. A thread whose waiter was cancelled no longer counts.
- *External input*: sockets, pipes, child processes, and threads not started by the loop. The loop polls them for a
  short real time (longer for children, which start slowly), but never longer than until the next timer.
- *Nothing*: without a timer either, no task can ever continue, and `DeadlockError` lists the waiting tasks.

Time does not move while a callback is ready, so a task that spins on `sleep(0)`, or a child that floods a pipe, delays
every deadline; test those on an ordinary loop.
"""

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from math import inf, nextafter
from types import FrameType
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakSet

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Ready = list[tuple[selectors.SelectorKey, int]]

NEW_YEAR = 1767225600.0
"""2026-01-01T00:00:00Z, the time at which every virtual clock starts."""

INPUT_WAIT = 0.1
"""Real seconds to wait for external input before time jumps."""
CHILD_WAIT = 2.0
"""The same while a child process runs."""
MAX_WAIT = 10.0
"""Real seconds after which time jumps although a worker thread runs, or a loop without timers gives up."""


class DeadlockError(RuntimeError):
    """Every task waits, and nothing can wake any of them; `waiting` describes the tasks."""

    def __init__(self, *, waiting: tuple[str, ...]) -> None:
        super().__init__("\n  ".join(["nothing can wake these tasks:", *(waiting or ("(no task)",))]))
        self.waiting = waiting


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop with virtual time, which starts at 0.0."""

    def __init__(self) -> None:
        self._now = 0.0
        self._waited = 0.0  # real seconds spent on external input since time last moved
        self._pauses = 0
        self._latest_at: dict[float, float] = {}
        self._children: WeakSet[asyncio.SubprocessTransport] = WeakSet()
        self._workers: WeakSet[threading.Thread] = WeakSet()
        self._earlier_threads = frozenset(threading.enumerate())
        self._inputs = _VirtualSelector(self)
        super().__init__(self._inputs)
        # How close to now a timer must be to fire. asyncio's usual nanosecond is lost in float rounding after some
        # months of virtual time, and then a timer would never be due.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back at `when`; of two timers due at the same time, the one set first fires first."""
        # asyncio keeps timers in a heap, which does not preserve the order of equal times. A real clock hardly ever
        # shows the same time twice, a virtual one does: each equal timer is put the smallest step after the previous.
        due = round(when, 9)
        previous = self._latest_at.get(due)
        self._latest_at[due] = due if previous is None else nextafter(previous, inf)
        return super().call_at(self._latest_at[due], callback, *args, context=context)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Pause time inside the block, for external work that the loop cannot see."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run `func` in a thread or process, while time is paused."""
        if not isinstance(executor, ProcessPoolExecutor):
            future = super().run_in_executor(executor, self._as_worker, func, *args)
        else:
            future = super().run_in_executor(executor, func, *args)
        self._pauses += 1
        future.add_done_callback(self._worker_done)
        return future

    async def shutdown_default_executor(self, *timeout: float | None) -> None:
        with self.paused():
            await super().shutdown_default_executor(*timeout)

    async def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        transport, protocol = await super().subprocess_exec(*args, **options)
        self._children.add(transport)
        return transport, protocol

    async def subprocess_shell(self, *args: Any, **options: Any) -> Any:
        transport, protocol = await super().subprocess_shell(*args, **options)
        self._children.add(transport)
        return transport, protocol

    def idle(self, select: Callable[[float], Ready], timeout: float | None) -> Ready:
        """Called when no callback is ready and the next timer is due in `timeout` seconds: poll input, then jump."""
        began = time.monotonic()
        ready = select(self._real_wait(timeout))
        if ready:
            # The time spent counts: a child that writes continuously must not keep a deadline from passing.
            self._waited += 0.0 if self._pauses else time.monotonic() - began
            return ready
        if timeout is None:
            raise DeadlockError(waiting=tuple(sorted(map(describe_task, asyncio.all_tasks(self)))))
        self._now = round(self._now + timeout, 9)
        self._waited = 0.0
        return []

    def _real_wait(self, timeout: float | None) -> float:
        if self._pauses:
            return MAX_WAIT
        child = any(child.get_returncode() is None for child in self._children)
        thread = any(t not in self._earlier_threads and t not in self._workers for t in threading.enumerate())
        pipe = len(self._inputs.get_map()) > 1  # the first is the loop's own, by which threads wake it
        if not (child or thread or pipe):
            return 0.0
        if timeout is None:
            return MAX_WAIT
        return max(0.0, min(timeout - self._waited, CHILD_WAIT if child else INPUT_WAIT))

    def _worker_done(self, _: asyncio.Future[Any]) -> None:
        self._pauses -= 1

    def _as_worker(self, func: Callable[[*Ts], T], *args: *Ts) -> T:
        self._workers.add(threading.current_thread())
        return func(*args)


class _VirtualSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Ready:
        return super().select(0) if timeout == 0 else self._loop.idle(super().select, timeout)


class VirtualClock:
    """Wall clock and monotonic clock that show the time of a `VirtualTimeLoop`, by default the running loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop

    def now(self) -> float:
        """Unix time; a virtual loop starts at the beginning of 2026."""
        return NEW_YEAR + self.monotonic()

    def monotonic(self) -> float:
        """Seconds since the loop was created."""
        return (self._loop or asyncio.get_running_loop()).time()


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a new `VirtualTimeLoop`, like `asyncio.run`.

    >>> run_in_virtual_time(asyncio.sleep(3600, "an hour later"))
    'an hour later'
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def describe_task(task: asyncio.Task[Any]) -> str:
    """The name of a task, its coroutine, and the line outside asyncio at which it waits."""
    link: Any = task.get_coro()
    text, where = f"{task.get_name()}: {getattr(link, '__qualname__', link)}", ""
    while link is not None:  # a coroutine awaits another, down to a future, which awaits nothing
        frame: FrameType | None = getattr(link, "cr_frame", None)
        if frame and not frame.f_globals.get("__name__", "").startswith("asyncio."):
            where = f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        link = getattr(link, "cr_await", None)
    return text + where
