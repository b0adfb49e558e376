"""Sessions as an operator sees them: created, listed, archived, deleted, and their shared context inspected."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.core.commands import CloseSession, NamespaceClosed, OpenSession, SessionRow
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ids import SessionId
from retinue.core.ports import Clock
from retinue.dialects.shared_context import (
    contents,
    overview,
    snapshot_contents,
    snapshot_size,
    space_of,
    take_snapshot,
)
from retinue.engine.supervisor import Supervisor


class Sessions:
    """The sessions of a store; these are operations of the system, never tools of an agent."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._engine = engine = supervisor.engine
        self._handles = supervisor.handles
        self._clock: Clock = engine.clock

    async def create(self, session_id: SessionId) -> None:
        """Begin an empty session; one that exists is an error."""
        if not await self.ensure(session_id):
            raise BadInput(f"session {session_id!r} already exists")

    async def ensure(self, session_id: SessionId) -> bool:
        """Begin a session unless it is there; whether it is new."""
        (new,) = await self._engine.journal.commit(OpenSession(session_id=session_id, at=self._clock.now()))
        return bool(new)

    async def archive(self, session_id: SessionId) -> None:
        """Make a session read-only."""
        await self._close(CloseSession(session_id=session_id, how="archive"))

    async def delete(self, session_id: SessionId) -> None:
        """Let a session go, with its shared context, defined agents and handles; its runs stay on record."""
        await self._close(CloseSession(session_id=session_id, how="delete"))
        self._handles.forget()

    async def list(self) -> list[dict[str, object]]:
        """All sessions, oldest first, with the size of their shared context."""
        rows = await self._engine.journal.read(self._engine.store.sessions)
        now = self._clock.now()
        return [overview(row, await self._key_value(row), now) for row in rows]

    async def context(self, session_id: SessionId, *, snapshot: str | None = None) -> dict[str, object]:
        """A session's shared context, values included: for operators only. With the label of a snapshot, as it was."""
        row = await self._engine.journal.read(self._engine.store.session, session_id)
        if row is None:
            raise UnknownName("session", session_id)
        if snapshot is not None:
            return snapshot_contents(row, await self._key_value(row), snapshot)
        return contents(row, await self._key_value(row), self._clock.now())

    async def snapshot(self, session_id: SessionId, label: str) -> int:
        """Keep a session's shared context as it is now under a label; how many entries that are."""
        change = take_snapshot(session_id, label, self._clock.now())
        (written,) = await self._engine.journal.commit(change)
        match written:
            case bytes():
                return snapshot_size(written)
            case NamespaceClosed(why="session_archived"):
                raise BadInput(f"session {session_id!r} is archived: nothing can be added to it")
            case _:
                raise UnknownName("session", session_id)

    async def _key_value(self, row: SessionRow) -> Mapping[str, bytes]:
        return await self._engine.journal.read(self._engine.store.key_value, space_of(row.session_id))

    async def _close(self, closing: CloseSession) -> None:
        (existed,) = await self._engine.journal.commit(closing)
        if not existed:
            raise UnknownName("session", closing.session_id)
