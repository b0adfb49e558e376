"""The clock and the source of run ids."""

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
