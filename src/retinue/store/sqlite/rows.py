"""The tables of a store as rows that are checked one by one, for the check, the repair and the copy of whole stores."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from retinue.core.checksum import checksum, event_checksum

TypedRow: TypeAlias = dict[str, Any]

IDENTITY: Final = (
    *("run_id", "session_id", "root_id", "parent_id", "depth", "path", "agent", "label", "dialect", "key"),
    *("handle_space", "handle_name", "awaited", "brief", "accepted_at", "format"),
)
DRIVER: Final = ("run_id", "driver_id", "cancelled_at")
PROGRESS: Final = (
    *("run_id", "ended", "phase", "turns", "input", "output", "cached", "reasoning", "cost", "outcome", "ended_at"),
)


class Table(Struct, frozen=True, kw_only=True):
    """A table: its columns without checksums, the columns that each checksum covers, and the columns that name a row.

    `of_run` is the column with the number of the run to which a row belongs.
    """

    name: str
    columns: tuple[str, ...]
    sums: Mapping[str, tuple[str, ...]]
    names: tuple[str, ...]
    of_run: str | None = None
    has_rowid: bool = True

    def crc_columns(self) -> tuple[str, ...]:
        return tuple(self.sums)


def _plain(name: str, columns: tuple[str, ...], names: tuple[str, ...], *, has_rowid: bool = True) -> Table:
    sums = {"crc": tuple(column for column in columns if column != "id")}
    return Table(name=name, columns=columns, sums=sums, names=names, has_rowid=has_rowid)


TABLES: Final = (
    Table(name="blobs", columns=("digest", "body"), sums={}, names=("digest",)),
    Table(
        name="runs",
        columns=("no", *IDENTITY, "driver_id", "cancelled_at", "seq", *PROGRESS[1:]),
        sums={"identity_crc": IDENTITY, "driver_crc": DRIVER, "progress_crc": PROGRESS},
        names=("run_id",),
        of_run="no",
    ),
    # The checksums of these two cover the id of the run, which is in the table of runs.
    Table(name="events", columns=("id", "run_no", "seq", "body"), sums={"crc": ()}, names=("seq",), of_run="run_no"),
    Table(name="mail", columns=("id", "run_no", "key", "body"), sums={"crc": ()}, names=("key",), of_run="run_no"),
    _plain("handles", ("session_id", "space", "n", "name", "run_id", "retired_by"), ("space", "name"), has_rowid=False),
    _plain("sessions", ("session_id", "created_at", "state"), ("session_id",)),
    _plain("drivers", ("driver_id", "host", "process", "beat", "dead", "lease"), ("driver_id",)),
    _plain("shelves", ("space", "name", "value"), ("space", "name")),
    _plain("answers", ("key", "answer"), ("key",)),
    _plain("charges", ("id", "account", "at", "until", "input", "output", "cost", "calls"), ("account", "id")),
)


def is_intact(table: Table, row: TypedRow, run_id: str | None) -> bool | None:
    """Whether a row matches its checksums; None if it has none, as rows of older versions.

    `run_id` is that of the run to which an event or an inbox item belongs, or None if there is no such run.
    """
    if all(row[crc] is None for crc in table.sums):
        return None
    if table.name == "events":
        body, seq = row["body"], row["seq"]
        known = run_id is not None and type(body) is bytes and type(seq) is int
        return known and row["crc"] == event_checksum(run_id or "", seq, body)
    if table.name == "mail":
        return run_id is not None and row["crc"] == checksum(run_id, row["key"], row["body"])
    return all(
        row[crc] is None or row[crc] == checksum(*(row[column] for column in columns))
        for crc, columns in table.sums.items()
    )


def row_name(table: Table, row: TypedRow) -> str:
    """A row in words, by the columns that name it."""
    return ", ".join(f"{column} {row[column]}" for column in table.names)


def scan(
    connection: sqlite3.Connection,
    table: Table,
    *,
    has_sums: bool,
    damaged: Callable[[str], None],
    size: int = 500,
) -> Iterator[TypedRow]:
    """All rows of a table that SQLite can read, in the order of their numbers; `damaged` gets each gap in words.

    After a page that cannot be read, the scan goes on behind it.
    """
    sums = table.crc_columns() if has_sums else tuple(f"NULL AS {crc}" for crc in table.crc_columns())
    columns = ", ".join((*table.columns, *sums))
    names = (*table.columns, *table.crc_columns())
    if not table.has_rowid:
        yield from _scan_whole(connection, f"SELECT {columns} FROM {table.name}", names, table, damaged)
        return
    query = f"SELECT rowid, {columns} FROM {table.name} WHERE rowid > ? ORDER BY rowid LIMIT {size}"
    one = f"SELECT rowid FROM {table.name} WHERE rowid > ? ORDER BY rowid LIMIT 1"
    last = -(2**62)
    step = size
    while True:
        try:
            rows = connection.execute(query, (last,)).fetchall()
        except sqlite3.DatabaseError as error:
            if _was_interrupted(error):
                raise
            single = f"SELECT rowid, {columns} FROM {table.name} WHERE rowid > ? ORDER BY rowid LIMIT 1"
            found = _next_readable(connection, single, one, last)
            if found is None:
                damaged(f"rows after number {max(last, 0)} cannot be read ({error})")
                return
            rows, begin = found
            if begin > last:
                damaged(f"rows between the numbers {max(last, 0)} and {rows[0][0]} cannot be read ({error})")
            step = 1
        if not rows:
            return
        for rowid, *values in rows:
            if rowid <= last:  # a damaged tree can lead back to rows that were read before
                damaged(f"rows after number {last} cannot be read (their order is damaged)")
                return
            yield dict(zip(names, values, strict=True))
            last = rowid
        if len(rows) < step:
            return
        step = size


def _scan_whole(
    connection: sqlite3.Connection,
    query: str,
    names: Sequence[str],
    table: Table,
    damaged: Callable[[str], None],
) -> Iterator[TypedRow]:
    if not _can_prepare(connection, query, damaged):
        return
    cursor: sqlite3.Cursor | None = None
    while True:
        try:
            cursor = cursor or connection.execute(query)  # reads the first row already
            values = cursor.fetchone()
        except sqlite3.DatabaseError as error:
            if _was_interrupted(error):
                raise
            damaged(f"rows cannot be read ({error})")
            return
        if values is None:
            return
        yield dict(zip(names, values, strict=True))


def _can_prepare(connection: sqlite3.Connection, query: str, damaged: Callable[[str], None]) -> bool:
    try:
        connection.execute(f"EXPLAIN {query}")
    except sqlite3.DatabaseError as error:
        damaged(f"the table cannot be read ({error})")
        return False
    return True


def _next_readable(
    connection: sqlite3.Connection, single: str, number: str, last: int
) -> tuple[list[tuple[Any, ...]], int] | None:
    """The first readable row after `last`, and the number behind which it was found; None if there is none."""

    def row_after(begin: int) -> list[tuple[Any, ...]] | None:
        try:
            return connection.execute(single, (begin,)).fetchall()
        except sqlite3.DatabaseError as error:
            if _was_interrupted(error):
                raise
            return None

    if rows := row_after(last):
        return rows, last
    begin, distance = max(last, 0), 1
    while distance < 2**48:
        rows = row_after(begin + distance)
        if rows is not None:
            break
        distance *= 2
    else:
        return None
    low, high = begin + distance // 2, begin + distance
    while high - low > 1:  # the smallest number behind which a row can be read
        middle = (low + high) // 2
        found = row_after(middle)
        if found is None:
            low = middle
        else:
            high, rows = middle, found
    return (rows, high) if rows else None


def _was_interrupted(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT
