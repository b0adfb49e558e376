"""Bounds on how long tasks may wait: `asyncio.timeout` as a plain `with` block, for what happens in every turn.

Hardly any of them is ever met, so they share one timer, which is set for the first of them: a timer for each would have
to be made and thrown away several times a turn.
"""

from __future__ import annotations

import asyncio
from math import inf
from types import TracebackType
from typing import Self

RESOLUTION = 1e-5
"""Seconds by which time may be up too early: timers fire a little early, by the resolution of their loop's clock, and
must not be set again for that.
"""


class Deadlines:
    """The deadlines under way on one event loop."""

    __slots__ = ("_alarm", "_alarm_at", "_unbounded", "_under_way")

    def __init__(self) -> None:
        self._unbounded = Deadline(self, None)
        self._under_way: dict[Deadline, None] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = inf

    def within(self, seconds: float | None) -> Deadline:
        """A bound of so many seconds on a `with` block; None is no bound."""
        return self._unbounded if seconds is None else Deadline(self, seconds)

    def add(self, deadline: Deadline) -> None:
        """A block was entered."""
        self._under_way[deadline] = None
        if deadline.due < self._alarm_at:
            self._set_alarm(deadline.due)

    def remove(self, deadline: Deadline) -> None:
        """A block was left. The alarm stays, even if it was set for this one: to set it again would cost more."""
        self._under_way.pop(deadline, None)
        if not self._under_way:
            self._set_alarm(inf)

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = asyncio.get_running_loop().call_at(at, self._ring) if at < inf else None

    def _ring(self) -> None:
        now = asyncio.get_running_loop().time() + RESOLUTION
        try:
            for deadline in [each for each in self._under_way if each.due <= now]:
                deadline.is_due()
        finally:
            # Also when somebody waits for what cannot be cancelled: without an alarm no other deadline would be met.
            self._set_alarm(min((each.due for each in self._under_way), default=inf))


class Deadline:
    """Cancels what its task waits for once time is up, and says so with a `TimeoutError` when the block is left.

    The rules are those of `asyncio.timeout`: a cancel that somebody else asked for at the same time stays a cancel.
    """

    __slots__ = ("_cancels_before", "_deadlines", "_seconds", "_task", "due", "expired")

    def __init__(self, deadlines: Deadlines, seconds: float | None) -> None:
        self._deadlines = deadlines
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._cancels_before = 0
        self.due = inf
        """When `is_due` wants to be called, by the clock of the loop."""
        self.expired = False
        """Whether time was up before the block was left."""

    def __enter__(self) -> Self:
        if self._seconds is not None:
            self._task = asyncio.current_task()
            assert self._task is not None
            self._cancels_before = self._task.cancelling()
            self.due = asyncio.get_running_loop().time() + self._seconds
            self._deadlines.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = self._task
        if task is not None:
            self._task = None  # a task that held its own deadline would be garbage only in a circle
            self._deadlines.remove(self)
            if self.expired and task.uncancel() <= self._cancels_before and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def is_due(self) -> None:
        """Time is up."""
        if self._task is not None:
            self.expired, self.due = True, inf
            self._task.cancel()


class LoopTicks:
    """Counts the rounds of the event loop in which somebody asks."""

    __slots__ = ("_count", "_counting")

    def __init__(self) -> None:
        self._count = 0
        self._counting = False

    def current(self) -> int:
        """The number of this round; another number later means that everybody else had a turn in between."""
        if not self._counting:
            self._counting = True
            asyncio.get_running_loop().call_soon(self._end)
        return self._count

    def _end(self) -> None:
        self._count += 1
        self._counting = False
