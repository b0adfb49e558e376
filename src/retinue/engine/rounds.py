"""Whether the event loop has come round: so that a task that never has to wait can tell that others want their turn."""

from __future__ import annotations

import asyncio


class Rounds:
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
