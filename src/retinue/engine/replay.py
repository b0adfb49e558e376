"""Rebuild runs from their stored events, together with the histories that they inherited; starts nothing."""

from __future__ import annotations

from retinue.core.errors import NotKept, UnknownName
from retinue.core.events import Event, RunAccepted
from retinue.core.history import History
from retinue.core.ids import RunId
from retinue.core.run import HistoryRef
from retinue.core.state import Run, fold
from retinue.engine.context import EngineContext
from retinue.engine.registry import RunRegistry


class Replay:
    """Folds stored events into runs."""

    def __init__(self, engine: EngineContext, registry: RunRegistry) -> None:
        self._engine = engine
        self._registry = registry

    async def run(self, run_id: RunId, *, upto: int | None = None) -> Run:
        """A run as it stood after its event `upto`, or after its last stored event.

        Raises `UnknownName` for an unknown run and `NotKept` for one whose events were dropped.
        """
        # Back to the oldest history first and then forward again: a chain of continued runs may be long.
        logs = [await self._log(run_id, upto)]
        inherited: History | None = None
        while (inherits := _acceptance(logs[-1]).inherits) is not None:
            inherited = self._live_history(inherits)
            if inherited is not None:
                break
            logs.append(await self._log(inherits.run_id, inherits.upto))
        while True:
            events = logs.pop()
            run_spec = await self._engine.journal.read(self._engine.store.run_spec, _acceptance(events).run_spec)
            run = fold(events, run_spec, inherited)
            if not logs:
                return run
            inherited = run.history

    async def history(self, inherits: HistoryRef | None) -> History | None:
        """The history with which a run begins that inherits `inherits`."""
        if inherits is None:
            return None
        return self._live_history(inherits) or (await self.run(inherits.run_id, upto=inherits.upto)).history

    def _live_history(self, inherits: HistoryRef) -> History | None:
        """The history of a run that is live here and has recorded nothing since."""
        live = self._registry.live.get(inherits.run_id)
        return live.run.history if live is not None and live.run.seq == inherits.upto else None

    async def _log(self, run_id: RunId, upto: int | None) -> list[tuple[int, Event]]:
        events = await self._engine.journal.read(self._engine.store.events, run_id)
        if not events:
            row = await self._engine.journal.read(self._engine.store.run, run_id)
            raise UnknownName("run", run_id) if row is None else NotKept(run_id)
        return events if upto is None else events[:upto]


def _acceptance(events: list[tuple[int, Event]]) -> RunAccepted:
    accepted = events[0][1]
    assert isinstance(accepted, RunAccepted)
    return accepted
