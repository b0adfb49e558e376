"""Checksums (CRC-32) of rows: computed when a row is written, compared when it is read.

They find damage, not forgery. A row without a checksum was written by an older version and is not compared.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from retinue.core.checksum import checksum
from retinue.core.errors import StoreCorrupt
from retinue.core.ids import RunId

_MASK: Final = 0xFFFFFFFF


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


def register_function(connection: sqlite3.Connection) -> None:
    """Make `checksum(...)` available to the SQL statements of a connection."""
    connection.create_function("checksum", -1, checksum, deterministic=True)
