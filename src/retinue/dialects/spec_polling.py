"""Notices an orchestrator that asks for the status of a task again and again.

What was asked when is kept in memory alone: after a restart the counting begins anew, and nobody is worse off.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from retinue.core.ids import SessionId
from retinue.core.ports import Clock

LIMIT = 10
SECONDS = 10.0
REMEMBERED = 10_000
"""Tasks whose questions are counted; of more, those that were not asked about for the longest time are forgotten."""


class Polls:
    """When each task was asked about lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked: OrderedDict[tuple[SessionId, str], deque[float]] = OrderedDict()

    def is_storm(self, session_id: SessionId, task_id: str) -> bool:
        """Count one question; whether there were more than there should be within some seconds."""
        now = self._clock.now()
        asked = self._asked.setdefault((session_id, task_id), deque(maxlen=LIMIT + 1))
        self._asked.move_to_end((session_id, task_id))
        if len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        asked.append(now)
        return len(asked) > LIMIT and asked[0] >= now - SECONDS

    def forget(self, session_id: SessionId, task_id: str) -> None:
        """Nobody can ask about the task any more."""
        self._asked.pop((session_id, task_id), None)
