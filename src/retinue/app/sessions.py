"""Sessions as an operator manages them: create, list, archive and delete, and inspect their shared context."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.core.commands import NamespaceClosed, SessionRow
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ids import SessionId, is_unnamed
from retinue.dialects import shared_context
from retinue.engine import Supervisor


class Sessions:
    """The sessions of a store. These are operations of the program, never tools of an agent."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._clock = supervisor.clock

    async def create(self, session_id: SessionId) -> None:
        """Create an empty session; raises `BadInput` if it exists."""
        if not await self.ensure(session_id):
            raise BadInput(f"session {session_id!r} already exists")

    async def ensure(self, session_id: SessionId) -> bool:
        """Create a session unless it exists; whether it is new."""
        return await self._supervisor.open_session(session_id)

    async def is_archived(self, session_id: SessionId) -> bool:
        """Whether a session can be read and not changed."""
        row = await self._supervisor.stored.session(session_id)
        return row is not None and row.state == "archived"

    async def archive(self, session_id: SessionId) -> None:
        """Make a session read-only; raises `UnknownName` if there is none.

        A run can be started in it, to read its shared context; such a run changes nothing there and starts no other.
        """
        if not await self._supervisor.archive_session(session_id):
            raise UnknownName("session", session_id)

    async def delete(self, session_id: SessionId) -> None:
        """Delete a session with its shared context, defined agents and handles; its runs stay in the store."""
        if not await self._supervisor.delete_session(session_id):
            raise UnknownName("session", session_id)

    async def list(self, *, everyone: bool = False) -> list[dict[str, object]]:
        """Sessions with a name, oldest first, with the size of their shared context.

        With `everyone` those that were made for a single run too.
        """
        rows = await self._supervisor.stored.sessions()
        now = self._clock.now()
        return [
            shared_context.overview(row, await self._key_value(row), now)
            for row in rows
            if everyone or not is_unnamed(row.session_id)
        ]

    async def context(self, session_id: SessionId, *, snapshot: str | None = None) -> dict[str, object]:
        """The shared context of a session with its values, now or as of the snapshot with this label."""
        row = await self._supervisor.stored.session(session_id)
        if row is None:
            raise UnknownName("session", session_id)
        if snapshot is not None:
            return shared_context.snapshot_contents(row, await self._key_value(row), snapshot)
        return shared_context.contents(row, await self._key_value(row), self._clock.now())

    async def histories(self, session_id: SessionId) -> dict[str, list[dict[str, object]]]:
        """The kept versions of each entry of a session's shared context, the current one last."""
        row = await self._supervisor.stored.session(session_id)
        if row is None:
            raise UnknownName("session", session_id)
        return shared_context.histories(await self._key_value(row), self._clock.now())

    async def snapshot(self, session_id: SessionId, label: str) -> int:
        """Store the current shared context of a session under a label; returns the number of entries."""
        change = shared_context.take_snapshot(label, self._clock.now())
        written = await self._supervisor.key_value.change(
            shared_context.space_of(session_id), change, session_id=session_id
        )
        match written:
            case bytes():
                return shared_context.snapshot_size(written)
            case NamespaceClosed(why="session_archived"):
                raise BadInput(f"session {session_id!r} is archived: nothing can be added to it")
            case _:
                raise UnknownName("session", session_id)

    async def _key_value(self, row: SessionRow) -> Mapping[str, bytes]:
        return await self._supervisor.key_value.look(shared_context.space_of(row.session_id))
