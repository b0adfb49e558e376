"""Queries of the store behind the journal, so that an answer includes everything that this process has queued."""

from __future__ import annotations

from retinue.core.agent import RunSpec
from retinue.core.commands import Charge, RunQuery, RunRow, SessionRow
from retinue.core.events import Event
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.inbox import Item
from retinue.core.ports import Store
from retinue.engine.journal import Journal


class StoreReader:
    """What is stored; reading starts nothing and changes nothing."""

    def __init__(self, journal: Journal, store: Store) -> None:
        self._journal = journal
        self._store = store

    async def run(self, run_id: RunId) -> RunRow | None:
        """The row of a run."""
        return await self._journal.read(self._store.run, run_id)

    async def runs(self, query: RunQuery) -> list[RunRow]:
        """The rows of runs, newest first."""
        return await self._journal.read(self._store.runs, query)

    async def run_by_key(self, key: Key) -> RunRow | None:
        """The run that a spawn with this key created."""
        return await self._journal.read(self._store.run_by_key, key)

    async def run_spec(self, digest: str) -> RunSpec:
        """The run spec with this digest; raises `StoreCorrupt` when it is missing."""
        return await self._journal.read(self._store.run_spec, digest)

    async def events(self, run_id: RunId, after: int = 0) -> list[tuple[int, Event]]:
        """The numbered events of a run."""
        return await self._journal.read(self._store.events, run_id, after)

    async def inbox(self, run_id: RunId) -> list[Item]:
        """The items that a run has not taken yet, in the order in which they were posted."""
        return await self._journal.read(self._store.inbox, run_id)

    async def session(self, session_id: SessionId) -> SessionRow | None:
        """The row of a session."""
        return await self._journal.read(self._store.session, session_id)

    async def sessions(self) -> list[SessionRow]:
        """All sessions, oldest first."""
        return await self._journal.read(self._store.sessions)

    async def charges(self, window: str, since: float) -> list[Charge]:
        """The charges of a named window from `since` on."""
        return await self._journal.read(self._store.charges, window, since)
