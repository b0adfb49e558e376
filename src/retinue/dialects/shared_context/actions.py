"""Shared context: the small working memory that the participants of a session read and write together.

This file holds what the actions mean, as pure decisions about the entries of one session. Who may call, where entries
are kept and what is logged is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import assert_never

from retinue.core.commands import Decision
from retinue.core.ids import SessionId
from retinue.core.text import rfc3339
from retinue.dialects.arguments import Coded, JsonObject, encoded
from retinue.dialects.shared_context import entries as kept
from retinue.dialects.shared_context.entries import EVERYONE, Entry, Snapshot, entries_of, entry_in, tokens
from retinue.dialects.shared_context.requests import (
    Change,
    Delete,
    ListKeys,
    Look,
    Read,
    ReadBatch,
    ReadHistory,
    TakeSnapshot,
    Write,
)
from retinue.dialects.shared_context.schema import MAX_KEY_CHARACTERS, MAX_VALUE_TOKENS

WARN_VALUE_TOKENS = 800
MAX_STORE_TOKENS = 10_000
MAX_SNAPSHOTS = 10

_KEY = re.compile(r"[a-z0-9_]+")


def space_of(session_id: SessionId) -> str:
    """The shelf on which a session's entries stand."""
    return f"context/{session_id}"


def look(action: Look, key_value: Mapping[str, bytes], *, participant: str, at: float) -> JsonObject:
    """The answer to an action that reads; raises `Coded`.

    `participant` and `at` come from the caller of this function, not from the model: no participant can sign as
    another one. An entry that has expired at that time is not there.
    """
    match action:
        case ListKeys():
            return _listing(entries_of(key_value, at))
        case Read(key=key):
            return _reading(key, readable(key_value, key, participant, at))
        case ReadBatch(keys=keys):
            return _batch(key_value, keys, participant, at)
        case ReadHistory(key=key, versions=versions):
            return _history(key_value, key, versions, participant, at)
        case _:
            assert_never(action)


def decide(action: Change, key_value: Mapping[str, bytes], *, participant: str, at: float) -> Decision:
    """What an action changes in the entries, and its answer; a refusal is an answer that changes nothing.

    The next change of any entry removes the entries that have expired.
    """
    try:
        match action:
            case Write():
                return _writing(key_value, action, participant, at)
            case Delete(key=key):
                return _deleting(key_value, key, participant, at)
            case TakeSnapshot(label=label):
                return _snapshot(key_value, label, participant, at)
            case _:
                assert_never(action)
    except Coded as refusal:
        return Decision(encoded(refusal.answer))


def session_not_found(session_id: SessionId) -> Coded:
    """The session does not exist, or not any more."""
    return Coded("SESSION_NOT_FOUND", f"Session {session_id!r} not found.")


def session_archived(session_id: SessionId) -> Coded:
    """The session can be read, not written."""
    return Coded("SESSION_ARCHIVED", f"Session {session_id!r} is archived (read-only).")


def entry_at(key_value: Mapping[str, bytes], key: str, at: float) -> Entry:
    """The entry under `key`; a key that is malformed or absent is refused."""
    _check_key(key)
    entry = entry_in(key_value[key]) if key in key_value else None
    if entry is None or not entry.is_there(at):
        raise Coded("KEY_NOT_FOUND", f"Key not found: {key!r}")
    return entry


def readable(key_value: Mapping[str, bytes], key: str, participant: str, at: float) -> Entry:
    """The same, for a participant that may read it."""
    entry = entry_at(key_value, key, at)
    if not entry.is_readable_by(participant):
        raise Coded("ACCESS_DENIED", f"Entry {key!r} may not be read by {participant!r}.")
    return entry


def touched(action: Change, key_value: Mapping[str, bytes], decision: Decision) -> Entry | None:
    """The entry that a decision about `shelf` puts under the action's key or takes away from there, if it does."""
    match action:
        case Write(key=key) if key in decision.puts:
            return entry_in(decision.puts[key])
        case Delete(key=key) if key in decision.drops:
            return entry_in(key_value[key])
        case _:
            return None


def _listing(entries: Mapping[str, Entry]) -> dict[str, object]:
    """Keys are for everyone to see: a participant that could not would write over what it must not read."""
    return {
        "keys": [_signature(key, entry) for key, entry in entries.items()],
        "total_size_tokens": sum(entry.size for entry in entries.values()),
    }


def _reading(key: str, entry: Entry) -> dict[str, object]:
    return {**_signature(key, entry), "value": entry.value}


def _signature(key: str, entry: Entry) -> dict[str, object]:
    """All about an entry but its value."""
    told: dict[str, object] = {
        "key": key,
        "written_by": entry.written_by,
        "written_at": rfc3339(entry.written_at),
        "version": entry.version,
        "value_size_tokens": entry.size,
    }
    if entry.expires_at is not None:
        told["expires_at"] = rfc3339(entry.expires_at)
    return told


def _batch(key_value: Mapping[str, bytes], keys: Iterable[str], participant: str, at: float) -> dict[str, object]:
    entries: list[dict[str, object]] = []
    missing: list[str] = []
    for key in keys:
        try:
            entries.append(_reading(key, readable(key_value, key, participant, at)))
        except Coded as refusal:
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
            for entry in kept.history(key_value, key)
            # An earlier version may have been for fewer eyes than the current one.
            if (versions is None or entry.version in versions) and entry.is_readable_by(participant)
        ],
    }


def _writing(key_value: Mapping[str, bytes], write: Write, participant: str, at: float) -> Decision:
    key = write.key
    _check_key(key)
    size = tokens(write.value)
    if size > MAX_VALUE_TOKENS:
        raise Coded("VALUE_TOO_LARGE", f"Value is ~{size} tokens, max is {MAX_VALUE_TOKENS}.")
    entries = entries_of(key_value, at)
    before = entries.get(key)
    if before is not None:
        _check_writable(key, before, participant)
    total = size + sum(entry.size for other, entry in entries.items() if other != key)
    if total > MAX_STORE_TOKENS:
        raise Coded("STORE_FULL", f"Write would bring store to ~{total} tokens, max is {MAX_STORE_TOKENS}.")
    entry = Entry(
        value=write.value,
        written_by=participant,
        written_at=at,
        version=1 if before is None else before.version + 1,
        expires_at=None if write.ttl_seconds is None else at + write.ttl_seconds,
        readable_by=_as_before(write.readable_by, None if before is None else before.readable_by),
        writable_by=_as_before(write.writable_by, None if before is None else before.writable_by),
    )
    puts, drops = ({}, ()) if before is None else kept.retired(key_value, key)
    gone = (*drops, *kept.expired(key_value, at))
    return _answer(
        _written(key, entry),
        puts={**puts, key: kept.stored(entry)},
        drops=tuple(name for name in dict.fromkeys(gone) if name != key),
    )


def _written(key: str, entry: Entry) -> dict[str, object]:
    told = _signature(key, entry)
    size = entry.size
    del told["value_size_tokens"]
    if size >= WARN_VALUE_TOKENS:
        told["warning"] = f"Value is ~{size} tokens. Consider distilling further."
    return told


def _deleting(key_value: Mapping[str, bytes], key: str, participant: str, at: float) -> Decision:
    entry = entry_at(key_value, key, at)
    _check_writable(key, entry, participant)
    gone = (key, *kept.earlier(key_value, key), *kept.expired(key_value, at))
    return _answer({"deleted": key, "previous_version": entry.version}, drops=tuple(dict.fromkeys(gone)))


def _snapshot(key_value: Mapping[str, bytes], label: str, participant: str, at: float) -> Decision:
    others = [other for other in kept.snapshots(key_value) if other != label]
    if len(others) >= MAX_SNAPSHOTS:
        raise Coded(
            "STORE_FULL", f"There are {MAX_SNAPSHOTS} snapshots, no more are kept; use one of their labels: {others}"
        )
    taken = Snapshot(taken_by=participant, taken_at=at, entries=entries_of(key_value, at))
    answer: JsonObject = {"snapshot": label, "keys": len(taken.entries)}
    return _answer(answer, puts={kept.snapshot_name(label): kept.stored(taken)}, drops=kept.expired(key_value, at))


def _as_before(asked: tuple[str, ...] | None, before: tuple[str, ...] | None) -> tuple[str, ...]:
    """Who may: as the write says, else as it was, else everyone. To change a value opens it to nobody else."""
    if asked is None:
        return EVERYONE if before is None else before
    return asked


def _check_key(key: str) -> None:
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise Coded("INVALID_KEY", f"Key must be 1-{MAX_KEY_CHARACTERS} characters, got {len(key)}.")
    if not _KEY.fullmatch(key):
        raise Coded("INVALID_KEY", f"Key must match [a-z0-9_]+, got: {key!r}")


def _check_writable(key: str, entry: Entry, participant: str) -> None:
    if not entry.is_writable_by(participant):
        raise Coded("ACCESS_DENIED", f"Entry {key!r} may not be written by {participant!r}.")


def _answer(answer: JsonObject, *, puts: Mapping[str, bytes] | None = None, drops: tuple[str, ...] = ()) -> Decision:
    return Decision(encoded(answer), puts or {}, drops)
