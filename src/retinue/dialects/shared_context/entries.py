"""What stands on the shelf of a session: entries, their earlier versions, and snapshots of them all.

Entries stand under their keys. Everything else stands under names that no key can have: the third version of `scope`
under `scope@3`, a snapshot under `@snapshot/<label>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

EVERYONE = ("*",)

KEPT_VERSIONS = 10
"""Versions of an entry that can be read, the current one included."""

HISTORY_BYTES = 1_000_000
"""What the earlier versions of all entries may take together; beyond it the oldest go first."""

_SNAPSHOT = "@snapshot/"


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept under a key; `version` counts the writes since the key came to be."""

    value: str
    written_by: str
    written_at: float
    version: int
    expires_at: float | None = None
    readable_by: tuple[str, ...] = EVERYONE
    writable_by: tuple[str, ...] = EVERYONE

    @property
    def size(self) -> int:
        """The weight of the value in tokens."""
        return tokens(self.value)

    def is_readable_by(self, participant: str) -> bool:
        """Whether a participant may read the value."""
        return any(fnmatchcase(participant, pattern) for pattern in self.readable_by)

    def is_writable_by(self, participant: str) -> bool:
        """Whether a participant may overwrite or delete the entry."""
        return any(fnmatchcase(participant, pattern) for pattern in self.writable_by)

    def is_there(self, at: float) -> bool:
        """Whether it has not expired by then."""
        return self.expires_at is None or at < self.expires_at


class Snapshot(Struct, frozen=True, kw_only=True):
    """All entries of a session as they once were."""

    taken_by: str
    taken_at: float
    entries: dict[str, Entry]


def tokens(value: str) -> int:
    """How much a value weighs; even an empty one weighs something.

    >>> tokens(""), tokens("x" * 4003), tokens("x" * 4004)
    (1, 1000, 1001)
    """
    return max(1, len(value) // 4)


def entries_of(key_value: Mapping[str, bytes], at: float) -> dict[str, Entry]:
    """All entries that are there at that time, by key, in the order of their keys."""
    entries = {key: entry_in(key_value[key]) for key in sorted(key_value) if "@" not in key}
    return {key: entry for key, entry in entries.items() if entry.is_there(at)}


def expired(key_value: Mapping[str, bytes], at: float) -> tuple[str, ...]:
    """What stands on the shelf for entries that are no longer there, and can go."""
    gone = [key for key, stored in key_value.items() if "@" not in key and not entry_in(stored).is_there(at)]
    return tuple(name for key in gone for name in (key, *earlier(key_value, key)))


def earlier(key_value: Mapping[str, bytes], key: str) -> list[str]:
    """The names under which earlier versions of an entry stand, oldest first."""
    found = (name.rpartition("@") for name in key_value if name.startswith(f"{key}@"))
    return [f"{key}@{number}" for number in sorted(int(number) for _, _, number in found)]


def entry_in(stored: bytes) -> Entry:
    """What stands there."""
    return msgspec.json.decode(stored, type=Entry)


def stored(thing: Entry | Snapshot) -> bytes:
    """A thing as it stands on the shelf."""
    return msgspec.json.encode(thing)


def history(key_value: Mapping[str, bytes], key: str) -> list[Entry]:
    """The versions of an entry that are kept, the current one last."""
    return [entry_in(key_value[name]) for name in (*earlier(key_value, key), key)]


def retired(key_value: Mapping[str, bytes], key: str) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """What an overwritten entry leaves behind on the shelf, and what goes to make room for it."""
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


def snapshot_name(label: str) -> str:
    """Where a snapshot stands."""
    return f"{_SNAPSHOT}{label}"


def snapshots(key_value: Mapping[str, bytes]) -> dict[str, Snapshot]:
    """All snapshots by their labels, oldest first."""
    found = {
        name.removeprefix(_SNAPSHOT): msgspec.json.decode(kept, type=Snapshot)
        for name, kept in key_value.items()
        if name.startswith(_SNAPSHOT)
    }
    return dict(sorted(found.items(), key=lambda item: (item[1].taken_at, item[0])))
