"""Shared context: the small working memory that the participants of a session read and write together.

This file holds what the four actions mean, as pure decisions about the entries of one session. Who may call, where
entries are kept and what is logged is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias, assert_never

import msgspec
from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.core.ids import SessionId
from retinue.core.records import Decision
from retinue.dialects.coded import Coded, action_of, fields_of, text_of
from retinue.dialects.render import compact, rfc3339

NAME = "shared_context"
ACTIONS = ("list_keys", "read", "write", "delete")

MAX_KEY_CHARACTERS = 64
MAX_VALUE_TOKENS = 1000
WARN_VALUE_TOKENS = 800
MAX_STORE_TOKENS = 10_000

_KEY = re.compile(r"[a-z0-9_]+")

SPEC = ToolSpec(
    NAME,
    "The working memory that all participants of this session share: short texts under flat keys. Start with list_keys "
    "to see what is there, read what matters to you, write conclusions, and delete what is settled.",
    compact(
        {
            "type": "object",
            "properties": {
                "action": {
                    "type": "string",
                    "enum": ACTIONS,
                    "description": "list_keys: every key with its author, time, version and size, without values. "
                    "read: one entry with its value. write: create or overwrite an entry. delete: remove an entry.",
                },
                "key": {
                    "type": "string",
                    "description": "The entry to read, write or delete: lowercase letters, digits and underscores, "
                    f"1 to {MAX_KEY_CHARACTERS} characters.",
                },
                "value": {
                    "type": "string",
                    "description": "For write: the text to keep. Distilled conclusions, not raw data; at most "
                    f"{MAX_VALUE_TOKENS} tokens (about 4000 characters).",
                },
            },
            "required": ["action"],
        }
    ),
)


class ListKeys(Struct, frozen=True):
    """Tell what there is, without values."""


class Read(Struct, frozen=True):
    """Give one entry."""

    key: str


class Write(Struct, frozen=True):
    """Create or overwrite an entry."""

    key: str
    value: str


class Delete(Struct, frozen=True):
    """Remove an entry."""

    key: str


Action: TypeAlias = ListKeys | Read | Write | Delete


class Entry(Struct, frozen=True, kw_only=True):
    """What is kept under a key; `version` counts the writes since the key came to be."""

    value: str
    written_by: str
    written_at: float
    version: int

    @property
    def size(self) -> int:
        """The weight of the value in tokens."""
        return tokens(self.value)


def tokens(value: str) -> int:
    """How much a value weighs; even an empty one weighs something.

    >>> tokens(""), tokens("x" * 4003), tokens("x" * 4004)
    (1, 1000, 1001)
    """
    return max(1, len(value) // 4)


def space_of(session_id: SessionId) -> str:
    """The shelf on which a session's entries stand."""
    return f"context/{session_id}"


def parse(arguments: str) -> Action:
    """The action that a call asks for; raises `Coded` when it cannot be made out."""
    fields = fields_of(arguments)
    match action_of(fields, ACTIONS):
        case "list_keys":
            return ListKeys()
        case "read":
            return Read(text_of(fields, "key"))
        case "write":
            return Write(text_of(fields, "key"), text_of(fields, "value"))
        case _:
            return Delete(text_of(fields, "key"))


def decide(action: Action, shelf: Mapping[str, bytes], *, participant: str, at: float) -> Decision:
    """What the action does to the entries on `shelf`, and what its caller reads; refusals are answers too.

    `participant` and `at` come from whoever runs the tool: a caller cannot sign as somebody else.
    """
    try:
        match action:
            case ListKeys():
                return _answer(_listing(entries_of(shelf)))
            case Read(key=key):
                return _answer(_reading(key, entry_at(shelf, key)))
            case Write(key=key, value=value):
                return _writing(shelf, key, value, participant, at)
            case Delete(key=key):
                entry = entry_at(shelf, key)
                return _answer({"deleted": key, "previous_version": entry.version}, drops=(key,))
            case _:
                assert_never(action)
    except Coded as refusal:
        return Decision(refusal.answer)


def session_not_found(session_id: SessionId) -> Coded:
    """The session does not exist, or not any more."""
    return Coded("SESSION_NOT_FOUND", f"Session {session_id!r} not found.")


def session_archived(session_id: SessionId) -> Coded:
    """The session can be read, not written."""
    return Coded("SESSION_ARCHIVED", f"Session {session_id!r} is archived (read-only).")


def entries_of(shelf: Mapping[str, bytes]) -> dict[str, Entry]:
    """All entries, by key, in the order of their keys."""
    return {key: _decoded(shelf[key]) for key in sorted(shelf)}


def entry_at(shelf: Mapping[str, bytes], key: str) -> Entry:
    """The entry under `key`; a key that is malformed or absent is refused."""
    _check_key(key)
    if key not in shelf:
        raise Coded("KEY_NOT_FOUND", f"Key not found: {key!r}")
    return _decoded(shelf[key])


def touched(key: str, shelf: Mapping[str, bytes], decision: Decision) -> Entry | None:
    """The entry that a decision about `shelf` puts under `key` or takes away from there, if it does."""
    if key in decision.puts:
        return _decoded(decision.puts[key])
    return _decoded(shelf[key]) if key in decision.drops else None


def _listing(entries: Mapping[str, Entry]) -> dict[str, object]:
    return {
        "keys": [_signature(key, entry) for key, entry in entries.items()],
        "total_size_tokens": sum(entry.size for entry in entries.values()),
    }


def _reading(key: str, entry: Entry) -> dict[str, object]:
    return {**_signature(key, entry), "value": entry.value}


def _signature(key: str, entry: Entry) -> dict[str, object]:
    """All about an entry but its value."""
    return {
        "key": key,
        "written_by": entry.written_by,
        "written_at": rfc3339(entry.written_at),
        "version": entry.version,
        "value_size_tokens": entry.size,
    }


def _writing(shelf: Mapping[str, bytes], key: str, value: str, participant: str, at: float) -> Decision:
    _check_key(key)
    size = tokens(value)
    if size > MAX_VALUE_TOKENS:
        raise Coded("VALUE_TOO_LARGE", f"Value is ~{size} tokens, max is {MAX_VALUE_TOKENS}.")
    entries = entries_of(shelf)
    total = size + sum(entry.size for other, entry in entries.items() if other != key)
    if total > MAX_STORE_TOKENS:
        raise Coded("STORE_FULL", f"Write would bring store to ~{total} tokens, max is {MAX_STORE_TOKENS}.")
    version = entries[key].version + 1 if key in entries else 1
    entry = Entry(value=value, written_by=participant, written_at=at, version=version)
    answer: dict[str, object] = {
        "key": key,
        "version": version,
        "written_by": participant,
        "written_at": rfc3339(at),
    }
    if size >= WARN_VALUE_TOKENS:
        answer["warning"] = f"Value is ~{size} tokens. Consider distilling further."
    return _answer(answer, puts={key: msgspec.json.encode(entry)})


def _check_key(key: str) -> None:
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise Coded("INVALID_KEY", f"Key must be 1-{MAX_KEY_CHARACTERS} characters, got {len(key)}.")
    if not _KEY.fullmatch(key):
        raise Coded("INVALID_KEY", f"Key must match [a-z0-9_]+, got: {key!r}")


def _decoded(stored: bytes) -> Entry:
    return msgspec.json.decode(stored, type=Entry)


def _answer(answer: object, *, puts: Mapping[str, bytes] | None = None, drops: tuple[str, ...] = ()) -> Decision:
    return Decision(compact(answer).encode(), puts or {}, drops)
