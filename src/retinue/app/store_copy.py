"""Copy of a store with the memories of agents from one kind of database to another: SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from retinue.app.state_folder import checked_url, is_postgres, is_sqlite, postgres_address, shown_url, sqlite_path
from retinue.core.errors import BadInput
from retinue.store.sqlite.work import LongWork

if TYPE_CHECKING:
    from retinue.tools.memory.postgres import PostgresMemory
    from retinue.tools.memory.sqlite import SqliteMemory


class CopyReport(Struct, frozen=True):
    """A finished copy: both addresses without secrets, and the number of rows by table."""

    source: str
    target: str
    rows: dict[str, int]


def copy_store(source: str, target: str, work: LongWork) -> CopyReport:
    """Copy a whole store to an empty one, runs and memories; raises `BadInput` if the target has content.

    No process may use the source meanwhile. Rows are copied in one transaction, so a target is complete or empty.
    """
    source, target = checked_url(source), checked_url(target)
    for url in (source, target):
        if not is_sqlite(url) and not is_postgres(url):
            raise BadInput(f"the store {url} cannot be copied: expected sqlite:PATH or postgresql://...")
    if source == target:
        raise BadInput("a store cannot be copied to itself")
    _check_target(target)
    with _rows_of(source, work) as rows:
        counts = _write(target, rows)
    counts["memories"] = _copy_memories(source, target)
    return CopyReport(shown_url(source), shown_url(target), counts)


def _check_target(target: str) -> None:
    if is_postgres(target):
        from retinue.store.postgres import transfer

        transfer.check_empty(postgres_address(target))
    elif _memory_file(target).exists():
        raise BadInput(f"{_memory_file(target)} exists: nothing was copied; choose another folder")


@contextmanager
def _rows_of(source: str, work: LongWork) -> Generator[Iterator[tuple[str, dict[str, Any]]]]:
    if is_postgres(source):
        from retinue.store.postgres import transfer as postgres

        with postgres.read_rows(postgres_address(source)) as rows:
            yield _reported(rows, work)
    else:
        from retinue.store.sqlite import transfer as sqlite

        with sqlite.read_rows(sqlite_path(source), work) as rows:
            yield rows


def _reported(rows: Iterator[tuple[str, dict[str, Any]]], work: LongWork) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, (name, row) in enumerate(rows):
        if number % 500 == 0:
            work.report(name)
        yield name, row


def _write(target: str, rows: Iterator[tuple[str, dict[str, Any]]]) -> dict[str, int]:
    if is_postgres(target):
        from retinue.store.postgres import transfer as postgres

        return postgres.write_rows(postgres_address(target), rows)
    from retinue.store.sqlite import transfer as sqlite

    return sqlite.write_rows(sqlite_path(target), rows)


def _copy_memories(source: str, target: str) -> int:
    if is_sqlite(source) and not _memory_file(source).exists():
        return 0
    memories = _memories_at(source).all()
    return _memories_at(target).insert_all(memories) if memories else 0


def _memories_at(url: str) -> PostgresMemory | SqliteMemory:
    from retinue.tools.memory import postgres, sqlite

    if is_postgres(url):
        address = postgres_address(url)
        from retinue.store.postgres import PostgresMemoryTables

        return postgres.PostgresMemory(PostgresMemoryTables(address))
    return sqlite.SqliteMemory(_memory_file(url))


def _memory_file(url: str) -> Path:
    """The file with memories beside a store."""
    from retinue.tools.memory import sqlite

    return sqlite_path(url).parent / sqlite.FILE
