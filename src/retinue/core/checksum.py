"""Checksums (CRC-32) of stored rows and events. They find damage, not forgery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgspec

from retinue.core.errors import StoreCorrupt
from retinue.core.ids import RunId

_encode: Final = msgspec.msgpack.Encoder().encode
_MASK: Final = 0xFFFFFFFF


def checksum(*values: object) -> int:
    """The checksum of values as SQLite returns them: None, int, float, str or bytes.

    >>> checksum("s", 1.0, "open") == checksum("s", 1.0, "open")
    True
    >>> checksum("s", 1.0, "open") == checksum("s", 1, "open")
    False
    """
    return crc32(_encode(values))


def event_checksum(run_id: RunId, seq: int, body: bytes) -> int:
    """The checksum of an event: its place, and its stored bytes.

    The body is not encoded again, because events are written every turn.
    """
    return crc32(body, crc32(run_id.encode()) + seq & _MASK)


def is_intact_event(run_id: RunId, seq: int, body: object, crc: int | None) -> bool:
    return type(body) is bytes and (crc is None or crc == event_checksum(run_id, seq, body))


def damaged_row(table: str, name: str) -> StoreCorrupt:
    return StoreCorrupt(f"a row of the table {table} is damaged ({name}): its checksum does not match")


def check_row(table: str, name: str, crc: int | None, values: Sequence[object]) -> None:
    """Raise `StoreCorrupt` if the values do not match the checksum; `name` says which row it is."""
    if crc is not None and crc != checksum(*values):
        raise damaged_row(table, name)


def check_log(run_id: RunId, numbers: Sequence[int], *, after: int, last: int) -> None:
    """Raise `StoreCorrupt` unless the numbers of a run's events are all from `after` + 1 to its `last` one.

    A run whose messages were deleted has no events, and 0 as its last one.
    """
    if list(numbers) != list(range(after + 1, last + 1)):
        found = f"{len(numbers)} of its events after {after}"
        raise StoreCorrupt(f"events of run {run_id} are missing or too many: there are {found}, and its last is {last}")
