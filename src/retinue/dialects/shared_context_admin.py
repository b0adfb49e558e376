"""Shared context as an operator sees it: sessions in a list, and everything that one of them holds.

Never a tool of an agent: participants read entries one by one and see no other session.
"""

from __future__ import annotations

from collections.abc import Mapping

from retinue.core.records import SessionRow
from retinue.dialects.render import rfc3339
from retinue.dialects.shared_context import entries_of


def overview(session: SessionRow, shelf: Mapping[str, bytes]) -> dict[str, object]:
    """A session as a row of a list."""
    entries = entries_of(shelf)
    return {
        "session_id": session.session_id,
        "archived": session.state == "archived",
        "key_count": len(entries),
        "total_size_tokens": sum(entry.size for entry in entries.values()),
    }


def contents(session: SessionRow, shelf: Mapping[str, bytes]) -> dict[str, object]:
    """Everything in a session, values included."""
    return {
        "session_id": session.session_id,
        "archived": session.state == "archived",
        "entries": [
            {
                "key": key,
                "value": entry.value,
                "written_by": entry.written_by,
                "written_at": rfc3339(entry.written_at),
                "version": entry.version,
            }
            for key, entry in entries_of(shelf).items()
        ],
    }
