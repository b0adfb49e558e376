"""Shared context as pure decisions: what each action returns and changes, given the stored entries of one session.

Entries are stored under their keys. Everything else has names that no key can have: the third version of `scope` is
`scope@3`, a snapshot `@snapshot/<label>`. Access to the store, the caller's name and logs are in `tool`. The last
section has the operations for an operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import assert_never

import msgspec
from msgspec import Struct

from retinue.core.commands import Decide, Decision, SessionRow
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ids import SessionId
from retinue.core.text import rfc3339
from retinue.dialects.arguments import decoded, encoded
from retinue.dialects.error_codes import CodedRefusal, JsonObject
from retinue.dialects.shared_context import requests

ALL_PARTICIPANTS = ("*",)

KEPT_VERSIONS = 10
"""Versions of an entry that are kept, the current one included."""

HISTORY_BYTES = 1_000_000
"""The size of the earlier versions of all entries together; beyond it the oldest are dropped."""

_SNAPSHOT = "@snapshot/"


class ContextEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value under a key; `version` counts the writes since the key was created."""

    value: str
    written_by: str
    written_at: float
    version: int
    expires_at: float | None = None
    readable_by: tuple[str, ...] = ALL_PARTICIPANTS
    writable_by: tuple[str, ...] = ALL_PARTICIPANTS

    @property
    def size(self) -> int:
        """The estimated tokens of the value."""
        return tokens(self.value)

    def is_readable_by(self, participant: str) -> bool:
        return any(fnmatchcase(participant, pattern) for pattern in self.readable_by)

    def is_writable_by(self, participant: str) -> bool:
        return any(fnmatchcase(participant, pattern) for pattern in self.writable_by)

    def exists_at(self, at: float) -> bool:
        """Whether it has not expired by then."""
        return self.expires_at is None or at < self.expires_at


class Snapshot(Struct, frozen=True, kw_only=True):
    """All entries of a session at one time."""

    taken_by: str
    taken_at: float
    entries: dict[str, ContextEntry]


def tokens(value: str) -> int:
    """The estimated tokens of a value, at least 1.

    >>> tokens(""), tokens("x" * 4003), tokens("x" * 4004)
    (1, 1000, 1001)
    """
    return max(1, len(value) // 4)


def entries_of(key_value: Mapping[str, bytes], at: float) -> dict[str, ContextEntry]:
    """All entries that exist at that time, in the order of their keys."""
    entries = {key: entry_in(key_value[key]) for key in sorted(key_value) if "@" not in key}
    return {key: entry for key, entry in entries.items() if entry.exists_at(at)}


def expired(key_value: Mapping[str, bytes], at: float) -> tuple[str, ...]:
    """The names of expired entries and of their earlier versions."""
    gone = [key for key, stored in key_value.items() if "@" not in key and not entry_in(stored).exists_at(at)]
    return tuple(name for key in gone for name in (key, *earlier(key_value, key)))


def earlier(key_value: Mapping[str, bytes], key: str) -> list[str]:
    """The names of the earlier versions of an entry, oldest first."""
    versions = (name.rpartition("@")[2] for name in key_value if name.startswith(f"{key}@"))
    return [f"{key}@{version}" for version in sorted(map(int, versions))]


def entry_in(stored: bytes) -> ContextEntry:
    return msgspec.json.decode(stored, type=ContextEntry)


def history(key_value: Mapping[str, bytes], key: str) -> list[ContextEntry]:
    """The versions of an entry that are kept, the current one last."""
    return [entry_in(key_value[name]) for name in (*earlier(key_value, key), key)]


def retired(key_value: Mapping[str, bytes], key: str) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The stored earlier version of an entry that is overwritten, and the names that are dropped to make room."""
    name = f"{key}@{entry_in(key_value[key]).version}"
    versions = earlier(key_value, key)
    drops = versions[: max(0, len(versions) + 2 - KEPT_VERSIONS)]  # the one that is retired now, and the new one
    others = [each for each in key_value if "@" in each and not each.startswith(_SNAPSHOT) and each not in drops]
    room = HISTORY_BYTES - len(key_value[key]) - sum(len(key_value[each]) for each in others)
    if room < 0:
        for oldest in sorted(others, key=lambda each: entry_in(key_value[each]).written_at):
            drops.append(oldest)
            room += len(key_value[oldest])
            if room >= 0:
                break
    return {name: key_value[key]}, tuple(drops)


def snapshots(key_value: Mapping[str, bytes]) -> dict[str, Snapshot]:
    """All snapshots by their labels, oldest first."""
    decoded = {
        name.removeprefix(_SNAPSHOT): msgspec.json.decode(stored, type=Snapshot)
        for name, stored in key_value.items()
        if name.startswith(_SNAPSHOT)
    }
    return dict(sorted(decoded.items(), key=lambda item: (item[1].taken_at, item[0])))


WARN_VALUE_TOKENS = 800
MAX_STORE_TOKENS = 10_000
MAX_SNAPSHOTS = 10

_KEY = re.compile(r"[a-z0-9_]+")


def space_of(session_id: SessionId) -> str:
    """The key-value namespace of a session's entries."""
    return f"context/{session_id}"


def look(action: requests.Look, key_value: Mapping[str, bytes], *, participant: str, at: float) -> JsonObject:
    """The answer to an action that reads; raises `CodedRefusal`.

    `participant` and `at` come from the caller of this function, not from the model: no participant can act as another
    one. An entry that has expired at that time does not exist.
    """
    match action:
        case requests.ListKeys():
            return _listing(entries_of(key_value, at))
        case requests.Read(key=key):
            return _reading(key, readable(key_value, key, participant, at))
        case requests.ReadBatch(keys=keys):
            return _batch(key_value, keys, participant, at)
        case requests.ReadHistory(key=key, versions=versions):
            return _history(key_value, key, versions, participant, at)
        case _:
            assert_never(action)


def decide(action: requests.ChangingAction, key_value: Mapping[str, bytes], *, participant: str, at: float) -> Decision:
    """The changes of an action, with the removal of expired entries, and its answer; a refusal changes nothing."""
    try:
        match action:
            case requests.WriteEntry():
                return _writing(key_value, action, participant, at)
            case requests.Delete(key=key):
                return _deleting(key_value, key, participant, at)
            case requests.TakeSnapshot(label=label):
                return _snapshot(key_value, label, participant, at)
            case _:
                assert_never(action)
    except CodedRefusal as refusal:
        return Decision(encoded(refusal.answer))


def session_not_found(session_id: SessionId) -> CodedRefusal:
    """The refusal if the session does not exist."""
    return CodedRefusal("SESSION_NOT_FOUND", f"Session {session_id!r} not found.")


def session_archived(session_id: SessionId) -> CodedRefusal:
    """The refusal of a change to a session that is read-only."""
    return CodedRefusal("SESSION_ARCHIVED", f"Session {session_id!r} is archived (read-only).")


def entry_at(key_value: Mapping[str, bytes], key: str, at: float) -> ContextEntry:
    """The entry under `key`; raises `CodedRefusal` for a malformed or absent key."""
    _check_key(key)
    entry = entry_in(key_value[key]) if key in key_value else None
    if entry is None or not entry.exists_at(at):
        raise CodedRefusal("KEY_NOT_FOUND", f"Key not found: {key!r}")
    return entry


def readable(key_value: Mapping[str, bytes], key: str, participant: str, at: float) -> ContextEntry:
    """The same, if the participant may read it."""
    entry = entry_at(key_value, key, at)
    if not entry.is_readable_by(participant):
        raise CodedRefusal("ACCESS_DENIED", f"Entry {key!r} may not be read by {participant!r}.")
    return entry


def touched(action: requests.ChangingAction, key_value: Mapping[str, bytes], decision: Decision) -> ContextEntry | None:
    """The entry that a decision writes or deletes under the action's key; None if it does neither."""
    match action:
        case requests.WriteEntry(key=key) if key in decision.puts:
            return entry_in(decision.puts[key])
        case requests.Delete(key=key) if key in decision.drops:
            return entry_in(key_value[key])
        case _:
            return None


def _listing(entries: Mapping[str, ContextEntry]) -> dict[str, object]:
    # Keys are listed to all participants: one that did not see a key would overwrite what it must not read.
    return {
        "keys": [_signature(key, entry) for key, entry in entries.items()],
        "total_size_tokens": sum(entry.size for entry in entries.values()),
    }


def _reading(key: str, entry: ContextEntry) -> dict[str, object]:
    return {**_signature(key, entry), "value": entry.value}


def _signature(key: str, entry: ContextEntry) -> dict[str, object]:
    """The fields of an entry without its value."""
    fields: dict[str, object] = {
        "key": key,
        "written_by": entry.written_by,
        "written_at": rfc3339(entry.written_at),
        "version": entry.version,
        "value_size_tokens": entry.size,
    }
    if entry.expires_at is not None:
        fields["expires_at"] = rfc3339(entry.expires_at)
    return fields


def _batch(key_value: Mapping[str, bytes], keys: Iterable[str], participant: str, at: float) -> dict[str, object]:
    entries: list[dict[str, object]] = []
    missing: list[str] = []
    for key in keys:
        try:
            entries.append(_reading(key, readable(key_value, key, participant, at)))
        except CodedRefusal as refusal:
            if refusal.code != "KEY_NOT_FOUND":
                raise
            missing.append(key)
    return {"entries": entries, "missing": missing}


def _history(
    key_value: Mapping[str, bytes], key: str, versions: tuple[int, ...] | None, participant: str, at: float
) -> dict[str, object]:
    readable(key_value, key, participant, at)
    return {
        "key": key,
        "versions": [
            {
                "version": entry.version,
                "value": entry.value,
                "written_by": entry.written_by,
                "written_at": rfc3339(entry.written_at),
            }
            for entry in history(key_value, key)
            # An earlier version may have been readable by fewer participants than the current one.
            if (versions is None or entry.version in versions) and entry.is_readable_by(participant)
        ],
    }


def _writing(key_value: Mapping[str, bytes], write: requests.WriteEntry, participant: str, at: float) -> Decision:
    key = write.key
    _check_key(key)
    size = tokens(write.value)
    if size > requests.MAX_VALUE_TOKENS:
        raise CodedRefusal("VALUE_TOO_LARGE", f"Value is ~{size} tokens, max is {requests.MAX_VALUE_TOKENS}.")
    entries = entries_of(key_value, at)
    before = entries.get(key)
    if before is not None:
        _check_writable(key, before, participant)
    total = size + sum(entry.size for other, entry in entries.items() if other != key)
    if total > MAX_STORE_TOKENS:
        raise CodedRefusal("STORE_FULL", f"Write would bring store to ~{total} tokens, max is {MAX_STORE_TOKENS}.")
    entry = ContextEntry(
        value=write.value,
        written_by=participant,
        written_at=at,
        version=1 if before is None else before.version + 1,
        expires_at=None if write.ttl_seconds is None else at + write.ttl_seconds,
        readable_by=_as_before(write.readable_by, None if before is None else before.readable_by),
        writable_by=_as_before(write.writable_by, None if before is None else before.writable_by),
    )
    puts, drops = ({}, ()) if before is None else retired(key_value, key)
    gone = (*drops, *expired(key_value, at))
    return _answer(
        _written(key, entry),
        puts={**puts, key: msgspec.json.encode(entry)},
        drops=tuple(name for name in dict.fromkeys(gone) if name != key),
    )


def _written(key: str, entry: ContextEntry) -> dict[str, object]:
    fields = _signature(key, entry)
    size = fields.pop("value_size_tokens")
    if entry.size >= WARN_VALUE_TOKENS:
        fields["warning"] = f"Value is ~{size} tokens. Consider distilling further."
    return fields


def _deleting(key_value: Mapping[str, bytes], key: str, participant: str, at: float) -> Decision:
    entry = entry_at(key_value, key, at)
    _check_writable(key, entry, participant)
    gone = (key, *earlier(key_value, key), *expired(key_value, at))
    return _answer({"deleted": key, "previous_version": entry.version}, drops=tuple(dict.fromkeys(gone)))


def _snapshot(key_value: Mapping[str, bytes], label: str, participant: str, at: float) -> Decision:
    others = [other for other in snapshots(key_value) if other != label]
    if len(others) >= MAX_SNAPSHOTS:
        raise CodedRefusal(
            "STORE_FULL", f"There are {MAX_SNAPSHOTS} snapshots, no more are kept; use one of their labels: {others}"
        )
    taken = Snapshot(taken_by=participant, taken_at=at, entries=entries_of(key_value, at))
    answer: JsonObject = {"snapshot": label, "keys": len(taken.entries)}
    return _answer(answer, puts={f"{_SNAPSHOT}{label}": msgspec.json.encode(taken)}, drops=expired(key_value, at))


def _as_before(asked: tuple[str, ...] | None, before: tuple[str, ...] | None) -> tuple[str, ...]:
    """The patterns of a write, else those of the entry before it, else all: a new value keeps its access rules."""
    if asked is None:
        return ALL_PARTICIPANTS if before is None else before
    return asked


def _check_key(key: str) -> None:
    if not 1 <= len(key) <= requests.MAX_KEY_CHARACTERS:
        raise CodedRefusal("INVALID_KEY", f"Key must be 1-{requests.MAX_KEY_CHARACTERS} characters, got {len(key)}.")
    if not _KEY.fullmatch(key):
        raise CodedRefusal("INVALID_KEY", f"Key must match [a-z0-9_]+, got: {key!r}")


def _check_writable(key: str, entry: ContextEntry, participant: str) -> None:
    if not entry.is_writable_by(participant):
        raise CodedRefusal("ACCESS_DENIED", f"Entry {key!r} may not be written by {participant!r}.")


def _answer(answer: JsonObject, *, puts: Mapping[str, bytes] | None = None, drops: tuple[str, ...] = ()) -> Decision:
    return Decision(encoded(answer), puts or {}, drops)


# ---- for an operator; participants read entries one by one and see no other session ----------------------------------

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


def histories(key_value: Mapping[str, bytes], at: float) -> dict[str, list[dict[str, object]]]:
    """The versions of each entry that are kept, the current one last."""
    return {key: [_all_fields(entry) for entry in history(key_value, key)] for key in entries_of(key_value, at)}


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
        action = requests.TakeSnapshot(requests.label_of(label))
    except CodedRefusal as refusal:
        raise BadInput(refusal.message) from refusal
    return lambda key_value: decide(action, key_value, participant=OPERATOR, at=at)


def snapshot_size(answer: bytes) -> int:
    """The number of stored entries, from the answer to `take_snapshot`; raises `BadInput` if it was a refusal."""
    try:
        return msgspec.convert(decoded(answer), _Taken).keys
    except CodedRefusal as refusal:
        raise BadInput(refusal.message) from refusal


def _entries(entries: Mapping[str, ContextEntry]) -> list[dict[str, object]]:
    return [{"key": key, **_all_fields(entry)} for key, entry in entries.items()]


def _all_fields(entry: ContextEntry) -> dict[str, object]:
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
