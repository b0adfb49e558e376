"""The rows of a store in a SQLite file, for a copy to another kind of store and from it.

A row is copied as it is, without its checksums: these are compared when it is read and made when it is written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from retinue.core.checksum import checksum, event_checksum
from retinue.core.errors import BadInput, StoreCorrupt
from retinue.store.sqlite.check import check_kind, open_snapshot
from retinue.store.sqlite.errors import damaged_file, translated_error
from retinue.store.sqlite.replace import check_unused
from retinue.store.sqlite.rows import TABLES, Table, TypedRow, is_intact, row_name, scan
from retinue.store.sqlite.store import SqliteStore
from retinue.store.sqlite.work import LongWork

_BY_NAME: Final = {table.name: table for table in TABLES}
_CHECKSUMS_SINCE: Final = 2


@contextmanager
def read_rows(path: Path, work: LongWork) -> Generator[Iterator[tuple[str, TypedRow]]]:
    """All rows with the names of their tables; raises `StoreInUse` while a process has the store open."""
    if not path.exists():
        raise BadInput(f"there is no store at {path}")
    check_unused(path)
    try:
        with open_snapshot(path) as connection, work.watching(connection):
            version = check_kind(connection, path)
            yield _rows(connection, path, work, has_sums=version >= _CHECKSUMS_SINCE)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise translated_error(path, error) from error


def _rows(
    connection: sqlite3.Connection, path: Path, work: LongWork, *, has_sums: bool
) -> Iterator[tuple[str, TypedRow]]:
    run_ids: dict[int, str] = {}

    def damaged(what: str) -> NoReturn:
        raise StoreCorrupt(f"{damaged_file(path, what)}: repair it first with: retinue store repair")

    for table in TABLES:
        for number, row in enumerate(scan(connection, table, has_sums=has_sums, damaged=damaged)):
            if number % 500 == 0:
                work.report(table.name, number)
            if table.name == "runs":
                run_ids[row["no"]] = row["run_id"]
            if is_intact(table, row, run_ids.get(row[table.of_run]) if table.of_run else None) is False:
                damaged(f"{table.name}: {row_name(table, row)}")
            yield table.name, {column: row[column] for column in table.columns}


def write_rows(path: Path, rows: Iterable[tuple[str, TypedRow]]) -> dict[str, int]:
    """Write rows into a new or empty store, in one transaction; how many there are in each table."""
    store = SqliteStore(path)
    try:
        return store.maintain(lambda connection: _insert(connection, path, rows))
    finally:
        store.close()


def _insert(connection: sqlite3.Connection, path: Path, rows: Iterable[tuple[str, TypedRow]]) -> dict[str, int]:
    for table in TABLES:
        if connection.execute(f"SELECT 1 FROM {table.name} LIMIT 1").fetchone() is not None:
            raise BadInput(f"the store {path} is not empty: nothing was copied; choose another file")
    counts = {table.name: 0 for table in TABLES}
    run_ids: dict[int, str] = {}
    for name, row in rows:
        table = _BY_NAME[name]
        if name == "runs":
            run_ids[row["no"]] = row["run_id"]
        summed = row | _checksums(table, row, run_ids)
        marks = ", ".join("?" * len(summed))
        connection.execute(f"INSERT INTO {name} ({', '.join(summed)}) VALUES ({marks})", list(summed.values()))
        counts[name] += 1
    return counts


def _checksums(table: Table, row: TypedRow, run_ids: dict[int, str]) -> dict[str, Any]:
    match table.name:
        case "events":
            return {"crc": event_checksum(run_ids[row["run_no"]], row["seq"], row["body"])}
        case "mail":
            return {"crc": checksum(run_ids[row["run_no"]], row["key"], row["body"])}
        case _:
            return {crc: checksum(*(row[column] for column in columns)) for crc, columns in table.sums.items()}
