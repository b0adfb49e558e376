"""Durable values by name and the names that dialects give to runs, behind the journal like everything else."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.core.commands import Change, Decide, Retire, WriteResult
from retinue.core.ids import Key, RunId, SessionId
from retinue.engine.context import EngineContext


class JournalKeyValue:
    """The `Shelf` of a process: every change is one transaction and is on disk before it is answered."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine

    async def look(self, space: str) -> Mapping[str, bytes]:
        """All that is on a shelf."""
        return await self._engine.journal.read(self._engine.store.key_value, space)

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        """Change a shelf by a pure decision; the same key answers as it did the first time."""
        change = Change(space=space, decide=decide, key=key, session_id=session_id)
        (answer,) = await self._engine.journal.commit(change)
        return answer


class Handles:
    """Which run a dialect's name stands for, until the name is retired."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._known: dict[tuple[SessionId, str, str], RunId] = {}

    def learn(self, session_id: SessionId, space: str, name: str, run_id: RunId) -> None:
        """A run was given a name."""
        self._known[session_id, space, name] = run_id

    def forget(self) -> None:
        """Others have written: a name may have been retired, or its session deleted."""
        self._known.clear()

    async def find(self, session_id: SessionId, space: str, name: str) -> RunId | None:
        """The run of that name; None when nobody has it, or nobody has it any more."""
        known = self._known.get((session_id, space, name))
        if known is not None:
            return known
        for given, run_id, retired_by in await self._engine.journal.read(self._engine.store.handles, session_id, space):
            if retired_by is None:
                self._known[session_id, space, given] = run_id
        return self._known.get((session_id, space, name))

    async def retire(self, session_id: SessionId, space: str, name: str, *, key: Key) -> RunId | None:
        """Make a name invalid; its run for whoever did it, and for the same key again, None for everyone else."""
        (answer,) = await self._engine.journal.commit(Retire(session_id=session_id, space=space, name=name, key=key))
        self._known.pop((session_id, space, name), None)
        return answer if isinstance(answer, str) else None
