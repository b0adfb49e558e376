"""The clock and the source of run ids."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """What time it is for people; timeouts use the event loop's own time."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        ...


class Ids(Protocol):
    """Where new names come from."""

    def new(self) -> str:
        """A name nobody has."""
        ...
