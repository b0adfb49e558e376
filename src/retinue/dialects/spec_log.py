"""One line in the log for everything that an orchestrator does with a task, without contents unless somebody asks."""

from __future__ import annotations

import logging

from retinue.core.ports import CallContext, Clock
from retinue.dialects.lines import line, with_payloads
from retinue.dialects.render import rfc3339
from retinue.dialects.spec_tasks import Task

log = logging.getLogger("retinue.spec")


class SpecLog:
    """Tells what was done or refused, and when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def tell(
        self,
        action: str,
        context: CallContext,
        seen: Task | None = None,
        *,
        task_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        error: str | None = None,
        **contents: object,
    ) -> None:
        """One line for an action, with what was seen of the task."""
        if not log.isEnabledFor(logging.INFO):
            return
        told = line(
            session_id=context.session_id,
            task_id=seen.task_id if seen else task_id,
            agent=seen.agent if seen else agent,
            action=action,
            status=status or (seen.status if seen else None),
            turns_used=seen.turns_used if seen and action != "spawn" else None,
            error=error,
            timestamp=rfc3339(self._clock.now()),
        )
        log.info("%s", with_payloads(told, **contents))
