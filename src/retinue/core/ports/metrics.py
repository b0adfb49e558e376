"""The metrics port: counters and measurements for an external monitoring system."""

from __future__ import annotations

from typing import Protocol


class Meter(Protocol):
    """Who counts and measures for those that watch from outside; never raises, and costs little when nobody does.

    A name stands for one instrument, always used by the same of these methods.
    """

    def count(self, name: str, **attributes: str) -> None:
        """One more."""
        ...

    def move(self, name: str, change: int, **attributes: str) -> None:
        """So many more or fewer at this moment."""
        ...

    def measure(self, name: str, value: float, **attributes: str) -> None:
        """One measured value of many."""
        ...


class NoMeter:
    """Where nobody watches."""

    def count(self, name: str, **attributes: str) -> None:
        """Nothing."""

    def move(self, name: str, change: int, **attributes: str) -> None:
        """Nothing."""

    def measure(self, name: str, value: float, **attributes: str) -> None:
        """Nothing."""
