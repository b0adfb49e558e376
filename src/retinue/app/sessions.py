"""Sessions as an operator manages them: create, list, archive and delete, and inspect their shared context."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from retinue.core.commands import Change, CloseSession, NamespaceClosed, OpenSession, SessionRow
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ids import SessionId
from retinue.core.ports import Clock
from retinue.dialects.arguments import Coded, code_of
from retinue.dialects.shared_context import TakeSnapshot, admin, decide, label_of, space_of
from retinue.engine.supervisor import Supervisor

OPERATOR = "operator"
"""The participant name of snapshots that an operator takes."""


class _Taken(msgspec.Struct):
    keys: int


class _Refusal(msgspec.Struct):
    message: str


class Sessions:
    """The sessions of a store. These are operations of the program, never tools of an agent."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._engine = engine = supervisor.engine
        self._handles = supervisor.handles
        self._clock: Clock = engine.clock

    async def create(self, session_id: SessionId) -> None:
        """Create an empty session; raises `BadInput` if it exists."""
        if not await self.ensure(session_id):
            raise BadInput(f"session {session_id!r} already exists")

    async def ensure(self, session_id: SessionId) -> bool:
        """Create a session unless it exists; whether it is new."""
        (new,) = await self._engine.journal.commit(OpenSession(session_id=session_id, at=self._clock.now()))
        return bool(new)

    async def archive(self, session_id: SessionId) -> None:
        """Make a session read-only; raises `UnknownName` if there is none."""
        await self._close(CloseSession(session_id=session_id, how="archive"))

    async def delete(self, session_id: SessionId) -> None:
        """Delete a session with its shared context, defined agents and handles; its runs stay in the store."""
        await self._close(CloseSession(session_id=session_id, how="delete"))
        self._handles.forget()

    async def list(self) -> list[dict[str, object]]:
        """All sessions, oldest first, with the size of their shared context."""
        rows = await self._engine.journal.read(self._engine.store.sessions)
        now = self._clock.now()
        return [admin.overview(row, await self._key_value(row), now) for row in rows]

    async def context(self, session_id: SessionId, *, snapshot: str | None = None) -> dict[str, object]:
        """The shared context of a session with its values, now or as of the snapshot with this label."""
        row = await self._engine.journal.read(self._engine.store.session, session_id)
        if row is None:
            raise UnknownName("session", session_id)
        if snapshot is not None:
            return admin.snapshot(row, await self._key_value(row), snapshot)
        return admin.contents(row, await self._key_value(row), self._clock.now())

    async def snapshot(self, session_id: SessionId, label: str) -> int:
        """Store the current shared context of a session under a label; returns the number of entries."""
        try:
            action = TakeSnapshot(label_of(label))
        except Coded as refusal:
            raise BadInput(refusal.message) from refusal
        at = self._clock.now()
        change = Change(
            space=space_of(session_id),
            decide=lambda key_value: decide(action, key_value, participant=OPERATOR, at=at),
            session_id=session_id,
        )
        (written,) = await self._engine.journal.commit(change)
        match written:
            case bytes() if code_of(written) is None:
                return msgspec.json.decode(written, type=_Taken).keys
            case bytes():
                raise BadInput(msgspec.json.decode(written, type=_Refusal).message)
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
