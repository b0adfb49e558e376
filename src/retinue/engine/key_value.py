"""Key-value namespaces and run handles, read and written through the journal."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.core.commands import Change, Decide, Retire, WriteResult
from retinue.core.ids import Key, RunId, SessionId
from retinue.engine.context import EngineContext


class JournalKeyValue:
    """The `KeyValue` port of a process: a change is one transaction and is on disk before it is answered."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine

    async def look(self, space: str) -> Mapping[str, bytes]:
        return await self._engine.journal.read(self._engine.store.key_value, space)

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        change = Change(space=space, decide=decide, key=key, session_id=session_id)
        (answer,) = await self._engine.journal.commit(change)
        return answer

    def queue_change(self, space: str, decide: Decide) -> None:
        """Change a namespace without waiting; the change is committed before everything that is written later."""
        self._engine.journal.write(Change(space=space, decide=decide))


class Handles:
    """The runs that dialects' names refer to, until a name is retired."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._known: dict[tuple[SessionId, str, str], RunId] = {}

    def add(self, session_id: SessionId, space: str, name: str, run_id: RunId) -> None:
        self._known[session_id, space, name] = run_id

    def clear(self) -> None:
        """Forget all names, because another process may have retired one or deleted its session."""
        self._known.clear()

    async def find(self, session_id: SessionId, space: str, name: str) -> RunId | None:
        """The run of that name; None if the name is unknown or retired."""
        known = self._known.get((session_id, space, name))
        if known is not None:
            return known
        for given, run_id, retired_by in await self._engine.journal.read(self._engine.store.handles, session_id, space):
            if retired_by is None:
                self._known[session_id, space, given] = run_id
        return self._known.get((session_id, space, name))

    async def retire(self, session_id: SessionId, space: str, name: str, *, key: Key) -> RunId | None:
        """Retire a name: its run for the first caller, and for the same key again; None for other callers."""
        (answer,) = await self._engine.journal.commit(Retire(session_id=session_id, space=space, name=name, key=key))
        self._known.pop((session_id, space, name), None)
        return answer if isinstance(answer, str) else None
