"""Ports for time, new ids and metrics."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """What time it is for people; timeouts use the event loop's own time."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""


class Ids(Protocol):
    """Where new names come from."""

    def new(self) -> str:
        """A name nobody has."""


class Meter(Protocol):
    """Who counts and measures for those that watch from outside; never raises, and costs little when nobody does.

    A name stands for one instrument, always used by the same of these methods.
    """

    def count(self, name: str, **attributes: str) -> None:
        """One more."""

    def move(self, name: str, change: int, **attributes: str) -> None:
        """So many more or fewer at this moment."""

    def measure(self, name: str, value: float, **attributes: str) -> None:
        """One measured value of many."""


class NoMeter:
    """Where nobody watches."""

    def count(self, name: str, **attributes: str) -> None:
        """Nothing."""

    def move(self, name: str, change: int, **attributes: str) -> None:
        """Nothing."""

    def measure(self, name: str, value: float, **attributes: str) -> None:
        """Nothing."""
