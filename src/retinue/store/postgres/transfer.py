"""The rows of a store in a PostgreSQL schema, for a copy to another kind of store and from it.

Rows are given and taken with the names of tables and columns that `store.sqlite` has.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Final, TypeAlias

import psycopg
from msgspec import Struct

from retinue.core.errors import BadInput, Refused, StoreCorrupt
from retinue.core.events import RunAccepted
from retinue.store.codec import Codec, blob_name, checked_blob
from retinue.store.postgres.address import PostgresAddress
from retinue.store.postgres.database import Connection, connect
from retinue.store.postgres.errors import translated_error
from retinue.store.postgres.migrations import check_version, lock_commits, migrate

NamedRow: TypeAlias = tuple[str, dict[str, Any]]

_BATCH: Final = 500


class _Table(Struct, frozen=True):
    """A table: its name here, its columns as the rows name them, its order, and columns that are 0 or 1 in rows."""

    name: str
    columns: tuple[str, ...]
    order: str
    booleans: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    number: str | None = None
    """The column that is numbered by the server for new rows."""


_RENAMED: Final = {"brief": "run_spec"}
_TABLES: Final = {
    "blobs": _Table("blobs", ("digest", "body"), "digest"),
    "runs": _Table(
        "runs",
        (
            *("no", "run_id", "session_id", "root_id", "parent_id", "depth", "path", "agent", "label", "dialect"),
            *("key", "handle_space", "handle_name", "awaited", "brief", "accepted_at", "format", "driver_id"),
            *("cancelled_at", "seq", "ended", "phase", "turns", "input", "output", "cached", "reasoning", "cost"),
            *("outcome", "ended_at"),
        ),
        "no",
        booleans=("awaited", "ended"),
        floats=("accepted_at", "cancelled_at", "ended_at"),
        number="no",
    ),
    "events": _Table("events", ("run_no", "seq", "body"), "run_no, seq"),
    "mail": _Table("inbox", ("id", "run_no", "key", "body"), "id", number="id"),
    "handles": _Table("handles", ("session_id", "space", "n", "name", "run_id", "retired_by"), "session_id, space, n"),
    "sessions": _Table("sessions", ("session_id", "created_at", "state"), "no", floats=("created_at",)),
    "drivers": _Table(
        "drivers",
        ("driver_id", "host", "process", "beat", "dead", "lease"),
        "no",
        booleans=("dead",),
        floats=("lease",),
    ),
    "shelves": _Table("key_values", ("space", "name", "value"), "no"),
    "answers": _Table("answers", ("key", "answer"), "key"),
    "charges": _Table(
        "charges",
        ("id", "account", "at", "until", "input", "output", "cost", "calls"),
        "id",
        floats=("at", "until"),
        number="id",
    ),
}
_ALIVE: Final = """
    SELECT host, process FROM drivers
    WHERE NOT dead AND beat_at > clock_timestamp() - make_interval(secs => lease) LIMIT 1
"""


class DatabaseInUse(Refused):
    """A process drives runs in the schema, so that it is not copied."""

    def __init__(self, address: PostgresAddress, host: str, process: str) -> None:
        pid = process.partition(":")[0]
        super().__init__(f"process {pid} on {host.partition('/')[0]} uses {address}: end it and try again")
        self.host = host
        self.process = process


@contextmanager
def read_rows(address: PostgresAddress) -> Generator[Iterator[NamedRow]]:
    """All rows with the names of their tables, as of one moment; raises `DatabaseInUse` while a process drives runs."""
    try:
        with connect(address) as connection:
            if check_version(connection, address) == 0:
                raise BadInput(f"there is no store at {address}")
            migrate(connection, address)
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                alive = connection.execute(_ALIVE).fetchone()
                if alive is not None:
                    raise DatabaseInUse(address, *alive)
                yield _rows(connection)
    except psycopg.Error as error:
        raise translated_error(address, error) from error


def _rows(connection: Connection) -> Iterator[NamedRow]:
    for name, table in _TABLES.items():
        columns = ", ".join(_RENAMED.get(column, column) for column in table.columns)
        with connection.cursor(name="copied", binary=True) as cursor:
            cursor.itersize = _BATCH
            cursor.execute(f"SELECT {columns} FROM {table.name} ORDER BY {table.order}".encode())
            for values in cursor:
                row = dict(zip(table.columns, values, strict=True))
                for column in table.booleans:
                    row[column] = int(row[column])
                yield name, row


def write_rows(address: PostgresAddress, rows: Iterable[NamedRow], codec: Codec | None = None) -> dict[str, int]:
    """Write rows, grouped by table, into an empty schema, in one transaction; how many there are in each table."""
    counts = dict.fromkeys(_TABLES, 0)
    heirs = _Heirs()
    try:
        with connect(address) as connection:
            migrate(connection, address)
            with connection.transaction():
                lock_commits(connection)
                _check_empty(connection, address)
                for name, group in groupby(rows, lambda named: named[0]):
                    counts[name] += _copy_table(connection, _TABLES[name], (row for _, row in group), heirs)
                connection.execute("UPDATE drivers SET beat_at = '-infinity'")  # none of them has beaten here
                _set_inherits(connection, heirs, codec or Codec())
                for table in _TABLES.values():
                    if table.number is not None:
                        last = f"(SELECT max({table.number}) FROM {table.name})"
                        sequence = f"pg_get_serial_sequence('{table.name}', '{table.number}')"
                        connection.execute(f"SELECT setval({sequence}, {last}) WHERE {last} IS NOT NULL".encode())
    except psycopg.Error as error:
        raise translated_error(address, error) from error
    return counts


def check_empty(address: PostgresAddress) -> None:
    """Raise `BadInput` if a schema has a store with content."""
    try:
        with connect(address) as connection:
            if check_version(connection, address) > 0:
                _check_empty(connection, address)
    except psycopg.Error as error:
        raise translated_error(address, error) from error


def _check_empty(connection: Connection, address: PostgresAddress) -> None:
    for name in (*(table.name for table in _TABLES.values()), "memories"):
        if connection.execute(f"SELECT 1 FROM {name} LIMIT 1".encode()).fetchone() is not None:
            raise BadInput(f"the store {address} is not empty: nothing was copied; choose another one (?schema=NAME)")


class _Heirs:
    """First events of runs that may have inherited a history: those that say so, and those in blobs."""

    def __init__(self) -> None:
        self.bodies: list[tuple[int, bytes]] = []

    def note(self, row: dict[str, Any]) -> None:
        body = row["body"]
        if row["seq"] == 1 and (b'"inherits":' in body or blob_name(body) is not None):
            self.bodies.append((row["run_no"], body))


def _copy_table(connection: Connection, table: _Table, rows: Iterable[dict[str, Any]], heirs: _Heirs) -> int:
    columns = ", ".join(_RENAMED.get(column, column) for column in table.columns)
    count = 0
    with connection.cursor() as cursor, cursor.copy(f"COPY {table.name} ({columns}) FROM STDIN".encode()) as copy:
        for row in rows:
            if table.name == "events":
                heirs.note(row)
            copy.write_row([_value(table, column, row[column]) for column in table.columns])
            count += 1
    return count


def _value(table: _Table, column: str, value: Any) -> Any:
    if column in table.booleans:
        return bool(value)
    return float(value) if column in table.floats and value is not None else value


def _set_inherits(connection: Connection, heirs: _Heirs, codec: Codec) -> None:
    for no, body in heirs.bodies:
        digest = blob_name(body)
        if digest is not None:
            row = connection.execute("SELECT body FROM blobs WHERE digest = %s", (digest,), binary=True).fetchone()
            body = checked_blob(digest, None if row is None else row[0])
        accepted = codec.event(body)
        if not isinstance(accepted, RunAccepted):
            raise StoreCorrupt(f"the first event of run number {no} is not its acceptance")
        if accepted.inherits is not None:
            connection.execute("UPDATE runs SET inherits = %s WHERE no = %s", (accepted.inherits.run_id, no))
