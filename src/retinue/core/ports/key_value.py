"""The key-value port: durable values by name, grouped in namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from retinue.core.commands import Decide, WriteResult
from retinue.core.ids import Key, SessionId


class KeyValue(Protocol):
    """Durable values by name, in namespaces: shared context, defined agents, memory."""

    async def look(self, space: str) -> Mapping[str, bytes]:
        """All entries of a namespace."""
        ...

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        """Change a namespace by a pure function of its content; see `commands.Change`."""
        ...
