"""Export the last spans of a process that was killed, when its runs are adopted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from retinue.core.commands import RunQuery
from retinue.core.errors import RetinueError
from retinue.core.events import Event, RunAccepted, RunAdopted, RunLeft
from retinue.core.log_context import logger
from retinue.core.state import Run, apply
from retinue.engine import Supervisor

if TYPE_CHECKING:
    from retinue.telemetry.spans import OtelTracing

log = logger("retinue.app")

UNSENT_SECONDS = 60.0
"""Seconds for which an ended span may stay in the memory of its process: ten times the pause between two exports."""


class SpansOfTheDead:
    """Exports again what the last driver of a tree may have taken with it.

    Without that, spans below an ended one that was lost would have no parent. Spans that did arrive are sent a second
    time, with the same ids and times.
    """

    def __init__(self, supervisor: Supervisor, tracing: OtelTracing) -> None:
        self._supervisor = supervisor
        self._tracing = tracing

    async def export(self, adopted: Sequence[Run]) -> None:
        """Export spans of the trees of these runs that ended shortly before their driver was gone."""
        for root_id in dict.fromkeys(run.accepted.root_id for run in adopted):
            try:
                await self._export(root_id, {run.run_id for run in adopted})
            except RetinueError as error:  # a run of an unknown format, or one whose events were dropped
                log.warning("spans of the tree %s were not exported again: %s", root_id, error)

    async def _export(self, root_id: str, adopted: set[str]) -> None:
        stored = self._supervisor.stored
        rows = await stored.runs(RunQuery(root_id=root_id))
        logs = {row.run_id: await stored.events(row.run_id) for row in rows}
        ends = [end for run_id in adopted & logs.keys() if (end := _last_sign(logs[run_id])) is not None]
        if not ends:
            return
        since = min(ends) - UNSENT_SECONDS
        for row in rows:
            events = logs[row.run_id]
            if events and isinstance(accepted := events[0][1], RunAccepted):
                inherits = accepted.inherits
                history = None
                if inherits is not None:
                    history = (await self._supervisor.replay(inherits.run_id, upto=inherits.upto)).history
                run = Run(accepted, await stored.run_spec(accepted.run_spec), history)
                for seq, event in events[1:]:
                    if row.run_id in adopted and isinstance(event, RunAdopted) and seq == _adoption(events):
                        break  # what follows is exported as it happens
                    self._tracing.record_again(run, event, since=since)
                    apply(run, seq, event)


def _adoption(events: Sequence[tuple[int, Event]]) -> int:
    """The number of the last adoption in a log."""
    return max(seq for seq, event in events if isinstance(event, RunAdopted))


def _last_sign(events: Sequence[tuple[int, Event]]) -> float | None:
    """When the last driver of a run left or was last alive."""
    left = [event.at for _, event in events if isinstance(event, RunLeft)]
    return left[-1] if left else max((event.at for _, event in events[:-1]), default=None)
