"""Runs as their stored events tell them, whoever drives them; reading starts nothing."""

from __future__ import annotations

from retinue.core.errors import NotKept, UnknownName
from retinue.core.events import Event, RunAccepted
from retinue.core.history import History
from retinue.core.ids import RunId
from retinue.core.run import HistoryRef
from retinue.core.state import Run, fold
from retinue.engine.context import Parts
from retinue.engine.registry import Roster


class Recall:
    """Reads runs back, with the histories that they inherited."""

    def __init__(self, parts: Parts, roster: Roster) -> None:
        self._parts = parts
        self._roster = roster

    async def run(self, run_id: RunId, *, upto: int | None = None) -> Run:
        """A run as it stood after its event `upto`, or as it stands on disk."""
        # Back to the oldest history first and then forward again: a chain of continued runs may be long.
        logs = [await self._log(run_id, upto)]
        inherited: History | None = None
        while (inherits := _acceptance(logs[-1]).inherits) is not None:
            inherited = self._alive(inherits)
            if inherited is not None:
                break
            logs.append(await self._log(inherits.run_id, inherits.upto))
        while True:
            events = logs.pop()
            brief = await self._parts.journal.read(self._parts.store.brief, _acceptance(events).brief)
            run = fold(events, brief, inherited)
            if not logs:
                return run
            inherited = run.history

    async def history(self, inherits: HistoryRef | None) -> History | None:
        """The history that a run with this inheritance begins with."""
        if inherits is None:
            return None
        return self._alive(inherits) or (await self.run(inherits.run_id, upto=inherits.upto)).history

    def _alive(self, inherits: HistoryRef) -> History | None:
        """The history of a run that is alive here and has not gone on since."""
        driven = self._roster.live.get(inherits.run_id)
        return driven.run.history if driven is not None and driven.run.seq == inherits.upto else None

    async def _log(self, run_id: RunId, upto: int | None) -> list[tuple[int, Event]]:
        events = await self._parts.journal.read(self._parts.store.events, run_id)
        if not events:
            row = await self._parts.journal.read(self._parts.store.run, run_id)
            raise UnknownName("run", run_id) if row is None else NotKept(run_id)
        return events if upto is None else events[:upto]


def _acceptance(events: list[tuple[int, Event]]) -> RunAccepted:
    accepted = events[0][1]
    assert isinstance(accepted, RunAccepted)
    return accepted
