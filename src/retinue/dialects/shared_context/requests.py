"""What a participant can ask of the `shared_context` tool: requests, parsed before anything is looked at."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TypeAlias

from msgspec import Struct

from retinue.dialects.arguments import (
    Coded,
    Members,
    action_of,
    fields_of,
    integers_of,
    mistyped,
    switched_off,
    text_of,
    texts_of,
)
from retinue.dialects.shared_context.schema import MAX_LABEL_CHARACTERS, actions_of

EXTENSIONS = ("read_batch", "read_history", "snapshot", "ttl", "access")
"""Actions and fields beyond the core of the document, by the names that settings use."""

ALL = frozenset(EXTENSIONS)

LONGEST_TTL = 100 * 365.25 * 86400.0
"""Seconds; an entry that is to live longer is cut to this."""

MAX_PATTERNS = 32
MAX_PATTERN_CHARACTERS = 200


class ListKeys(Struct, frozen=True):
    """Tell what there is, without values."""


class Read(Struct, frozen=True):
    """Give one entry."""

    key: str


class ReadBatch(Struct, frozen=True):
    """Give several entries."""

    keys: tuple[str, ...]


class ReadHistory(Struct, frozen=True):
    """Give the versions of an entry that are kept, or those of them that are named."""

    key: str
    versions: tuple[int, ...] | None = None


class Write(Struct, frozen=True):
    """Create or overwrite an entry.

    With `ttl_seconds` it is gone after so many. Who may read and write it is as before where it is None; that is
    everyone for a new one.
    """

    key: str
    value: str
    ttl_seconds: float | None = None
    readable_by: tuple[str, ...] | None = None
    writable_by: tuple[str, ...] | None = None


class Delete(Struct, frozen=True):
    """Remove an entry."""

    key: str


class TakeSnapshot(Struct, frozen=True):
    """Keep everything as it is now."""

    label: str


Look: TypeAlias = ListKeys | Read | ReadBatch | ReadHistory
Change: TypeAlias = Write | Delete | TakeSnapshot
Action: TypeAlias = Look | Change


def parse(arguments: str, extensions: AbstractSet[str] = ALL) -> Action:
    """The action that a call asks for; raises `Coded` when it cannot be made out."""
    fields = fields_of(arguments)
    match action_of(fields, actions_of(extensions)):
        case "list_keys":
            return ListKeys()
        case "read":
            return Read(text_of(fields, "key"))
        case "read_batch":
            return ReadBatch(tuple(dict.fromkeys(texts_of(fields, "keys", required=True))))
        case "read_history":
            return ReadHistory(text_of(fields, "key"), integers_of(fields, "versions"))
        case "write":
            return _write(fields, extensions)
        case "snapshot":
            return TakeSnapshot(label_of(text_of(fields, "label")))
        case _:
            return Delete(text_of(fields, "key"))


def label_of(label: str) -> str:
    """A label that a snapshot may have; any other is refused."""
    if not 1 <= len(label) <= MAX_LABEL_CHARACTERS or not label.isprintable():
        wanted = f"1-{MAX_LABEL_CHARACTERS} printable characters"
        raise Coded("INVALID_REQUEST", f"Field 'label' must be {wanted}, got {len(label)}: {label[:80]!r}")
    return label


def _write(fields: Members, extensions: AbstractSet[str]) -> Write:
    switched_off(fields, "ttl_seconds", extension="ttl", on=extensions)
    switched_off(fields, "readable_by", "writable_by", extension="access", on=extensions)
    return Write(
        text_of(fields, "key"),
        text_of(fields, "value"),
        _seconds(fields, "ttl_seconds"),
        _patterns(fields, "readable_by"),
        _patterns(fields, "writable_by"),
    )


def _seconds(fields: Members, name: str) -> float | None:
    if name not in fields:
        return None
    value = fields[name]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise mistyped(name, "a number of seconds", value)
    if not value > 0:
        raise Coded("INVALID_REQUEST", f"Field '{name}' must be above 0.")
    return float(min(value, LONGEST_TTL))


def _patterns(fields: Members, name: str) -> tuple[str, ...] | None:
    if name not in fields:
        return None
    patterns = tuple(dict.fromkeys(texts_of(fields, name)))
    if len(patterns) > MAX_PATTERNS or any(len(pattern) > MAX_PATTERN_CHARACTERS for pattern in patterns):
        most = f"at most {MAX_PATTERNS} patterns of {MAX_PATTERN_CHARACTERS} characters"
        raise Coded("INVALID_REQUEST", f"Field '{name}' must have {most}.")
    return patterns
