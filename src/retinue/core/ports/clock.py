"""Ports for time, new ids and metrics."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A wall clock, for timestamps and deadlines that are stored; timeouts use the time of the event loop."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        ...


class Ids(Protocol):
    """A source of ids for new runs and sessions."""

    def new(self) -> str:
        """An id that was never returned before, in any process."""
        ...


class Meter(Protocol):
    """Counters and measurements for an external monitoring system; never raises, and costs little without one.

    A name stands for one instrument, which is always used through the same method.
    """

    def count(self, name: str, **attributes: str) -> None:
        """Add one to a counter."""

    def move(self, name: str, change: int, **attributes: str) -> None:
        """Add `change`, which may be negative, to a gauge."""

    def measure(self, name: str, value: float, **attributes: str) -> None:
        """Record one value of a distribution."""


class NoMeter:
    """A `Meter` that records nothing."""

    def count(self, name: str, **attributes: str) -> None: ...
    def move(self, name: str, change: int, **attributes: str) -> None: ...
    def measure(self, name: str, value: float, **attributes: str) -> None: ...
