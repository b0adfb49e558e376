"""An event loop whose time the test holds: a timeout of an hour passes at once, and a deadlock is an error.

Nothing here waits for a clock. Whenever no callback is ready, time jumps to the next timer. The loop waits for real
only for what it cannot hurry, and what that is depends on who might still speak:

- *Threads* started through the loop (`asyncio.to_thread`, `run_in_executor`), and blocks of `standing_still()`: time
  stands still until they are done. A thread whose waiter was cancelled no longer counts.
- *The outside*: sockets, pipes, child processes, and threads that the loop did not start. They are listened to for a
  moment (longer for children, which start slowly), yet never longer than the next timer would take in real time.
- *Nobody*: when there is no timer either, nothing can ever happen again, and `NothingLeftToWaitFor` says who waits.

As long as something is ready time does not move, so a task that spins on `sleep(0)`, or a child that floods a pipe
without a pause, keeps every deadline away; a test about those belongs on an ordinary loop.
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
"""2026-01-01T00:00:00Z, the moment at which every held loop starts."""

PATIENCE_WITH_OUTSIDE = 0.1
PATIENCE_WITH_CHILDREN = 2.0
PATIENCE_AT_MOST = 10.0
"""Real seconds of silence, after which time jumps although a thread is at work, or a loop without timers gives up."""


class NothingLeftToWaitFor(RuntimeError):
    """Every task waits, and nothing is left that could wake one of them."""

    def __init__(self, *, waiting: tuple[str, ...]) -> None:
        super().__init__("\n  ".join(["nothing is left that could wake these tasks:", *(waiting or ("(no task)",))]))
        self.waiting = waiting


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop that starts at time 0.0 and never sleeps when it can jump."""

    def __init__(self) -> None:
        self._now = 0.0
        self._listened = 0.0  # real seconds spent on the outside since time last moved
        self._holds = 0
        self._latest_at: dict[float, float] = {}
        self._children: WeakSet[asyncio.SubprocessTransport] = WeakSet()
        self._workers: WeakSet[threading.Thread] = WeakSet()
        self._bystanders = frozenset(threading.enumerate())
        self._inputs = _HeldSelector(self)
        super().__init__(self._inputs)
        # How close to now a timer must be to fire. A nanosecond, the usual value, is lost in the rounding of floats
        # after some months of held time, and then a timer would never be due.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """The held time, in seconds since the loop was made."""
        return self._now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back at `when`; of two timers due at the same time, the one set first fires first."""
        # asyncio keeps timers in a heap, which forgets the order of equals. Real clocks never show the same time twice;
        # a held one does, so each equal is put the smallest step behind the one before.
        due = round(when, 9)
        behind = self._latest_at.get(due)
        self._latest_at[due] = due if behind is None else nextafter(behind, inf)
        return super().call_at(self._latest_at[due], callback, *args, context=context)

    @contextmanager
    def standing_still(self) -> Generator[None]:
        """Keep time from moving inside the block, for work outside that the loop cannot see."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run `func` in a thread or process, while time stands still."""
        if not isinstance(executor, ProcessPoolExecutor):
            future = super().run_in_executor(executor, self._as_worker, func, *args)
        else:
            future = super().run_in_executor(executor, func, *args)
        self._holds += 1
        future.add_done_callback(self._worker_is_done)
        return future

    async def shutdown_default_executor(self, *timeout: float | None) -> None:
        """Wait for the threads of `asyncio.to_thread`, while time stands still."""
        with self.standing_still():
            await super().shutdown_default_executor(*timeout)

    async def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        """Start a program, and remember it as a child to be patient with."""
        transport, protocol = await super().subprocess_exec(*args, **options)
        self._children.add(transport)
        return transport, protocol

    async def subprocess_shell(self, *args: Any, **options: Any) -> Any:
        """Start a shell command, and remember it as a child to be patient with."""
        transport, protocol = await super().subprocess_shell(*args, **options)
        self._children.add(transport)
        return transport, protocol

    def idle(self, listen: Callable[[float], Ready], timeout: float | None) -> Ready:
        """What to do when no callback is ready and the next timer is due in `timeout` seconds: listen, then jump."""
        began = time.monotonic()
        heard = listen(self._patience(timeout))
        if heard:
            # What was spent on listening is gone: a child that goes on talking must not keep a deadline from passing.
            self._listened += 0.0 if self._holds else time.monotonic() - began
            return heard
        if timeout is None:
            raise NothingLeftToWaitFor(waiting=tuple(sorted(map(describe_task, asyncio.all_tasks(self)))))
        self._now = round(self._now + timeout, 9)
        self._listened = 0.0
        return []

    def _patience(self, timeout: float | None) -> float:
        if self._holds:
            return PATIENCE_AT_MOST
        child = any(child.get_returncode() is None for child in self._children)
        thread = any(t not in self._bystanders and t not in self._workers for t in threading.enumerate())
        pipe = len(self._inputs.get_map()) > 1  # the first is the loop's own, by which threads wake it
        if not (child or thread or pipe):
            return 0.0
        if timeout is None:
            return PATIENCE_AT_MOST
        return max(0.0, min(timeout - self._listened, PATIENCE_WITH_CHILDREN if child else PATIENCE_WITH_OUTSIDE))

    def _worker_is_done(self, _: asyncio.Future[Any]) -> None:
        self._holds -= 1

    def _as_worker(self, func: Callable[[*Ts], T], *args: *Ts) -> T:
        self._workers.add(threading.current_thread())
        return func(*args)


class _HeldSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Ready:
        return super().select(0) if timeout == 0 else self._loop.idle(super().select, timeout)


class VirtualClock:
    """The wall clock and the steady clock of a test: both show the time of a held loop, by default the running one."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop

    def now(self) -> float:
        """Seconds since the epoch; a held loop starts at the beginning of 2026."""
        return NEW_YEAR + self.monotonic()

    def monotonic(self) -> float:
        """Seconds since the loop was made."""
        return (self._loop or asyncio.get_running_loop()).time()


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a loop of its own whose time is held, like `asyncio.run`.

    >>> run_in_virtual_time(asyncio.sleep(3600, "an hour later"))
    'an hour later'
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def describe_task(task: asyncio.Task[Any]) -> str:
    """The name of a task, what it runs, and the line of ours at which it waits."""
    link: Any = task.get_coro()
    text, where = f"{task.get_name()}: {getattr(link, '__qualname__', link)}", ""
    while link is not None:  # a coroutine awaits another, down to a future, which awaits nothing
        frame: FrameType | None = getattr(link, "cr_frame", None)
        if frame and not frame.f_globals.get("__name__", "").startswith("asyncio."):
            where = f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        link = getattr(link, "cr_await", None)
    return text + where
