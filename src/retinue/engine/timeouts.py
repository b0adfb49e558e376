"""Timeouts for code that runs every turn: `asyncio.timeout` as a plain `with` block, and a count of loop iterations.

Timeouts rarely expire, so all of them share one timer, which is set for the earliest. A timer for each would be created
and discarded several times a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from math import inf
from time import monotonic
from types import TracebackType
from typing import Self

RESOLUTION = 1e-5
"""Seconds by which a timer may fire early, by the resolution of the loop's clock; it counts as due then."""


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock of a loop, without the method around it where the loop has the usual one: it is read for each delta."""
    return monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time


class KnownLoop:
    """The event loop that runs when it is first asked for, and its clock.

    On Python 3.11 `asyncio.get_running_loop` makes a system call, and a turn would use it some twenty times.
    """

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @cached_property
    def time(self) -> Callable[[], float]:
        """The clock of the loop."""
        return clock_of(self.loop)


class Timeouts(KnownLoop):
    """The pending timeouts of one event loop."""

    def __init__(self) -> None:
        self._unbounded = Timeout(self, None)
        self._pending: dict[Timeout, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def within(self, seconds: float | None) -> Timeout:
        """A time limit for a `with` block; None is no limit."""
        return self._unbounded if seconds is None else Timeout(self, seconds)

    def add(self, timeout: Timeout) -> None:
        self._pending[timeout] = None
        if timeout.due < self._timer_at:
            self._set_timer(timeout.due)

    def remove(self, timeout: Timeout) -> None:
        """Unregister a timeout whose block was left. The timer stays as it is: setting it again would cost more."""
        self._pending.pop(timeout, None)
        if not self._pending:
            self._set_timer(inf)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_at(at, self._fire) if at < inf else None

    def _fire(self) -> None:
        now = self.time() + RESOLUTION
        try:
            for timeout in [each for each in self._pending if each.due <= now]:
                timeout.is_due()
        finally:
            # Also when `is_due` raises: without a timer no other timeout would expire.
            self._set_timer(min((each.due for each in self._pending), default=inf))


class Timeout:
    """Cancels the current task when the time is up, and raises `TimeoutError` when the block is left.

    The rules are those of `asyncio.timeout`: a cancellation by other code at the same time stays a cancellation.
    """

    __slots__ = ("_cancels_before", "_seconds", "_task", "_timeouts", "due", "expired")

    def __init__(self, timeouts: Timeouts, seconds: float | None) -> None:
        self._timeouts = timeouts
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._cancels_before = 0
        self.due = inf
        """When `is_due` is to be called, by the clock of the loop."""
        self.expired = False
        """Whether the time was up before the block was left."""

    def __enter__(self) -> Self:
        if self._seconds is not None:
            timeouts = self._timeouts
            self._task = asyncio.current_task(timeouts.loop)
            assert self._task is not None
            self._cancels_before = self._task.cancelling()
            self.due = timeouts.time() + self._seconds
            timeouts.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = self._task
        if task is not None:
            self._task = None  # otherwise task and timeout would form a reference cycle
            self._timeouts.remove(self)
            if self.expired and task.uncancel() <= self._cancels_before and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def is_due(self) -> None:
        """The time is up: cancel the task."""
        if self._task is not None:
            self.expired, self.due = True, inf
            self._task.cancel()


class LoopTicks(KnownLoop):
    """Detects event-loop iterations, so that a task that never blocks yields once per turn."""

    def __init__(self) -> None:
        self._count = 0
        self._counting = False

    def current(self) -> int:
        """The number of this iteration; another number later means that every other ready task has run in between."""
        if not self._counting:
            self._counting = True
            self.loop.call_soon(self._end)
        return self._count

    def _end(self) -> None:
        self._count += 1
        self._counting = False
