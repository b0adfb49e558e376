"""Sessions as an operator sees them: created, listed, archived, deleted, and their shared context inspected."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.core.errors import BadInput, UnknownName
from retinue.core.ids import SessionId
from retinue.core.ports import Clock
from retinue.core.records import CloseSession, OpenSession, SessionRow
from retinue.dialects.shared_context import space_of
from retinue.dialects.shared_context_admin import contents, overview
from retinue.engine.supervisor import Supervisor


class Sessions:
    """The sessions of a store; these are operations of the system, never tools of an agent."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._parts = parts = supervisor.parts
        self._handles = supervisor.handles
        self._clock: Clock = parts.clock

    async def create(self, session_id: SessionId) -> None:
        """Begin an empty session; one that exists is an error."""
        if not await self.ensure(session_id):
            raise BadInput(f"session {session_id!r} already exists")

    async def ensure(self, session_id: SessionId) -> bool:
        """Begin a session unless it is there; whether it is new."""
        (new,) = await self._parts.journal.commit(OpenSession(session_id=session_id, at=self._clock.now()))
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
        rows = await self._parts.journal.read(self._parts.store.sessions)
        return [overview(row, await self._shelf(row)) for row in rows]

    async def context(self, session_id: SessionId) -> dict[str, object]:
        """A session's shared context, values included: for operators only."""
        row = await self._parts.journal.read(self._parts.store.session, session_id)
        if row is None:
            raise UnknownName("session", session_id)
        return contents(row, await self._shelf(row))

    async def _shelf(self, row: SessionRow) -> Mapping[str, bytes]:
        return await self._parts.journal.read(self._parts.store.shelf, space_of(row.session_id))

    async def _close(self, closing: CloseSession) -> None:
        (existed,) = await self._parts.journal.commit(closing)
        if not existed:
            raise UnknownName("session", closing.session_id)
