"""The conversations of subagents that were kept, for whoever wants to read them again."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.core.commands import RunQuery, RunRow
from retinue.core.ids import RunId
from retinue.dialects.xzatoma import SPACE, Conversation, conversation, kept
from retinue.engine import Supervisor


class Conversations:
    """A view of a store; nothing is changed from here."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._stored = supervisor.stored
        self._key_value = supervisor.key_value

    async def rows(self) -> list[RunRow]:
        """All of them, newest first, as far as a list needs it."""
        trees = await self._key_value.look(SPACE)
        return kept(await self._stored.runs(RunQuery()), trees)

    async def whole(self, rows: Sequence[RunRow]) -> list[Conversation]:
        """These, with all that was said."""
        return [await self._whole(row) for row in rows]

    async def find(self, run_id: RunId) -> Conversation | None:
        """The one of that id."""
        row = next((row for row in await self.rows() if row.run_id == run_id), None)
        return None if row is None else await self._whole(row)

    async def _whole(self, row: RunRow) -> Conversation:
        events = await self._stored.events(row.run_id)
        return conversation(row, events, await self._stored.run_spec(row.run_spec))
