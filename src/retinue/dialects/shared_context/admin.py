"""Shared context for an operator: a list of sessions, all entries of one session, and its snapshots.

These functions are no tools of an agent: participants read entries one by one and see no other session.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from retinue.core.commands import Decide, SessionRow
from retinue.core.errors import BadInput, UnknownName
from retinue.core.text import rfc3339
from retinue.dialects.arguments import Coded, decoded
from retinue.dialects.shared_context.actions import ALL_PARTICIPANTS, Entry, decide, entries_of, snapshots
from retinue.dialects.shared_context.requests import TakeSnapshot, label_of

OPERATOR = "operator"
"""The participant of a snapshot that an operator takes."""


class _Taken(msgspec.Struct):
    keys: int


def overview(session: SessionRow, key_value: Mapping[str, bytes], at: float) -> dict[str, object]:
    """The row of a session in a list."""
    entries = entries_of(key_value, at)
    return {
        "session_id": session.session_id,
        "archived": session.state == "archived",
        "key_count": len(entries),
        "total_size_tokens": sum(entry.size for entry in entries.values()),
    }


def contents(session: SessionRow, key_value: Mapping[str, bytes], at: float) -> dict[str, object]:
    """All entries of a session with their values, and the labels of its snapshots, if it has any."""
    answer: dict[str, object] = {
        "session_id": session.session_id,
        "archived": session.state == "archived",
        "entries": _entries(entries_of(key_value, at)),
    }
    if labels := list(snapshots(key_value)):
        answer["snapshots"] = labels
    return answer


def snapshot_contents(session: SessionRow, key_value: Mapping[str, bytes], label: str) -> dict[str, object]:
    """All entries of a session at the time of a snapshot; raises `UnknownName` for an unknown label."""
    by_label = snapshots(key_value)
    if label not in by_label:
        raise UnknownName("snapshot", label, tuple(by_label))
    taken = by_label[label]
    return {
        "session_id": session.session_id,
        "archived": session.state == "archived",
        "snapshot": label,
        "taken_by": taken.taken_by,
        "taken_at": rfc3339(taken.taken_at),
        "entries": _entries(taken.entries),
    }


def take_snapshot(label: str, at: float) -> Decide:
    """The decision that stores a session's entries under a label; raises `BadInput` for an invalid label."""
    try:
        action = TakeSnapshot(label_of(label))
    except Coded as refusal:
        raise BadInput(refusal.message) from refusal
    return lambda key_value: decide(action, key_value, participant=OPERATOR, at=at)


def snapshot_size(answer: bytes) -> int:
    """The number of stored entries, from the answer to `take_snapshot`; raises `BadInput` if it was a refusal."""
    try:
        return msgspec.convert(decoded(answer), _Taken).keys
    except Coded as refusal:
        raise BadInput(refusal.message) from refusal


def _entries(entries: Mapping[str, Entry]) -> list[dict[str, object]]:
    return [{"key": key, **_fields(entry)} for key, entry in entries.items()]


def _fields(entry: Entry) -> dict[str, object]:
    fields: dict[str, object] = {
        "value": entry.value,
        "written_by": entry.written_by,
        "written_at": rfc3339(entry.written_at),
        "version": entry.version,
    }
    if entry.expires_at is not None:
        fields["expires_at"] = rfc3339(entry.expires_at)
    if entry.readable_by != ALL_PARTICIPANTS:
        fields["readable_by"] = entry.readable_by
    if entry.writable_by != ALL_PARTICIPANTS:
        fields["writable_by"] = entry.writable_by
    return fields
