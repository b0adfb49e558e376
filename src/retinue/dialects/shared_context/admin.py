"""Shared context as an operator sees it: sessions in a list, everything that one of them holds, and its snapshots.

Never a tool of an agent: participants read entries one by one and see no other session.
"""

from __future__ import annotations

from collections.abc import Mapping

from retinue.core.commands import SessionRow
from retinue.core.errors import UnknownName
from retinue.dialects.shared_context.entries import EVERYONE, Entry, entries_of, snapshots
from retinue.dialects.text import rfc3339


def overview(session: SessionRow, key_value: Mapping[str, bytes], at: float) -> dict[str, object]:
    """A session as a row of a list."""
    entries = entries_of(key_value, at)
    return {
        "session_id": session.session_id,
        "archived": session.state == "archived",
        "key_count": len(entries),
        "total_size_tokens": sum(entry.size for entry in entries.values()),
    }


def contents(session: SessionRow, key_value: Mapping[str, bytes], at: float) -> dict[str, object]:
    """Everything in a session, values included, and the labels of its snapshots, if it has any."""
    told: dict[str, object] = {
        "session_id": session.session_id,
        "archived": session.state == "archived",
        "entries": _entries(entries_of(key_value, at)),
    }
    if labels := list(snapshots(key_value)):
        told["snapshots"] = labels
    return told


def snapshot(session: SessionRow, key_value: Mapping[str, bytes], label: str) -> dict[str, object]:
    """Everything that was in a session when a snapshot was taken; raises for a label that nobody gave."""
    found = snapshots(key_value)
    if label not in found:
        raise UnknownName("snapshot", label, tuple(found))
    taken = found[label]
    return {
        "session_id": session.session_id,
        "archived": session.state == "archived",
        "snapshot": label,
        "taken_by": taken.taken_by,
        "taken_at": rfc3339(taken.taken_at),
        "entries": _entries(taken.entries),
    }


def _entries(entries: Mapping[str, Entry]) -> list[dict[str, object]]:
    return [{"key": key, **_told(entry)} for key, entry in entries.items()]


def _told(entry: Entry) -> dict[str, object]:
    told: dict[str, object] = {
        "value": entry.value,
        "written_by": entry.written_by,
        "written_at": rfc3339(entry.written_at),
        "version": entry.version,
    }
    if entry.expires_at is not None:
        told["expires_at"] = rfc3339(entry.expires_at)
    if entry.readable_by != EVERYONE:
        told["readable_by"] = entry.readable_by
    if entry.writable_by != EVERYONE:
        told["writable_by"] = entry.writable_by
    return told
