"""Backup of a store into one file while other processes write, and restore from it.

The backup is an ordinary SQLite database: the tables of the store, and beside them those of other databases of the
state folder, under names of their own. `attached` names these databases.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace as replace_struct

from retinue.core.errors import BadInput, StoreCorrupt, StoreError
from retinue.store.sqlite.check import FOREIGN, CheckReport, check_file, check_kind, is_table, open_snapshot
from retinue.store.sqlite.errors import translated_error
from retinue.store.sqlite.migrations import STEPS, migrate
from retinue.store.sqlite.replace import check_unused, replace_file, sync_file, sync_folder, temporary_beside, unused
from retinue.store.sqlite.work import LongWork

PAGES: Final = 256
"""Pages that are copied between two looks at the request to stop: 1 MiB."""
ROWS: Final = 500
"""Rows that are copied between two looks at the request to stop."""


class Attached(Struct, frozen=True, kw_only=True):
    """Another database that a backup contains: a table of it, with its columns, and how an empty one is created."""

    path: Path
    table: str
    columns: tuple[str, ...]
    create: tuple[str, ...]
    version: int

    @property
    def name(self) -> str:
        """The name of its table in the backup."""
        return f"{self.path.stem}_{self.table}_backup"


class DamagedStore(StoreCorrupt):
    """A database is damaged, and nothing was made from it; `report` lists the damage."""

    def __init__(self, message: str, report: CheckReport) -> None:
        super().__init__(message)
        self.report = report


class NotWritten(StoreError):
    """A copy could not be written, for example because the disk is full; what was there before is unchanged."""

    def __init__(self, target: Path, details: str) -> None:
        super().__init__(
            f"{target} cannot be written ({details}): make room or choose another place; nothing was changed"
        )
        self.target = target


def copy_error(source: Path, target: Path, error: sqlite3.Error | OSError) -> Exception:
    """The error for a copy that failed: damage of its source, or an obstacle at its target."""
    if isinstance(error, OSError):
        return NotWritten(target, error.strerror or str(error))
    translated = translated_error(source, error)
    return translated if isinstance(translated, StoreCorrupt) else NotWritten(target, str(error))


def backup(
    path: Path, target: Path, work: LongWork, *, attached: Sequence[Attached] = (), replace: bool = False
) -> CheckReport:
    """Copy a store into `target`, check the copy, and give it its name only then; returns the check's report.

    The copy is one snapshot: writers are not blocked, and what they write meanwhile is not in it. Raises `BadInput` if
    the target exists and `replace` is not set, `DamagedStore` if the copy has damage, and `WorkStopped`.
    """
    if os.path.lexists(target) and not replace:
        raise BadInput(f"{target} exists: choose another name, or replace it with --force")
    if target.is_dir() or not target.parent.is_dir():
        wrong = target if target.is_dir() else target.parent
        raise BadInput(f"{wrong} is {'a' if target.is_dir() else 'no'} folder: give the name of a file in a folder")
    try:
        with temporary_beside(target) as copy:
            with open_snapshot(path) as source, closing(sqlite3.connect(copy, isolation_level=None)) as into:
                check_kind(source, path)
                _copy_pages(source, into, work)
                into.execute("PRAGMA journal_mode = DELETE")
                for each in attached:
                    _add(into, each)
            report = check_file(copy, work)
            if not report.ok:
                raise DamagedStore(f"{path} is damaged: no backup was written", replace_struct(report, file=str(path)))
            sync_file(copy)
            if replace:
                os.replace(copy, target)
            else:
                _link(copy, target)
            sync_folder(target.parent)
            return report
    except (sqlite3.Error, OSError) as error:
        raise copy_error(path, target, error) from error


def _copy_pages(source: sqlite3.Connection, into: sqlite3.Connection, work: LongWork) -> None:
    def progress(status: int, remaining: int, total: int) -> None:
        work.report("pages", total - remaining, total)

    # The source is in a read transaction, so that all steps copy one snapshot.
    source.backup(into, pages=PAGES, progress=progress, sleep=0.0)


def _add(into: sqlite3.Connection, each: Attached) -> None:
    """Copy the table of another database into the backup; nothing if there is no such database."""
    columns = ", ".join(each.columns)
    into.execute(f"CREATE TABLE {each.name} ({columns})")
    if not each.path.exists() or each.path.stat().st_size == 0:
        return
    with open_snapshot(each.path) as source:
        there = {row[1] for row in source.execute(f"PRAGMA table_info({each.table})").fetchall()}
        # An older format may lack a column.
        read = ", ".join(column if column in there else f"NULL AS {column}" for column in each.columns)
        rows = source.execute(f"SELECT {read} FROM {each.table}").fetchall() if there else []
    into.execute("BEGIN")
    into.executemany(f"INSERT INTO {each.name} VALUES ({', '.join('?' * len(each.columns))})", rows)
    into.execute("COMMIT")


def _link(copy: Path, target: Path) -> None:
    """Give the copy its name, and never replace a file that was created meanwhile."""
    try:
        os.link(copy, target)
    except FileExistsError as error:
        raise BadInput(f"{target} exists: choose another name, or replace it with --force") from error
    except OSError:  # a file system without links
        os.rename(copy, target)


def restore(path: Path, source: Path, work: LongWork, *, attached: Sequence[Attached] = ()) -> dict[Path, Path | None]:
    """Replace a store by a backup; returns where the old files are kept, by the names of the new ones.

    The rows are copied into a new file with the schema of a store; triggers, views and other tables of the backup are
    left behind. The new file is checked before it is used. Raises `BadInput` if the backup is none, `DamagedStore` if
    it is damaged, `StoreInUse` while a process has the store open, and `WorkStopped`; then nothing has changed.
    """
    if not source.is_file():
        raise BadInput(f"there is no file {source}")
    if path.exists() and os.path.samefile(path, source):
        raise BadInput(f"{source} is the store itself")
    report = check_file(source, work)
    if any(damage.table != FOREIGN for damage in report.damages):
        raise DamagedStore(f"{source} is damaged or no backup: nothing was changed", report)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept: dict[Path, Path | None] = {}
    try:
        with temporary_beside(path) as copy:
            with open_snapshot(source) as stored, closing(sqlite3.connect(copy, isolation_level=None)) as into:
                _copy_rows(stored, into, check_kind(stored, source), work)
                others = {each: _rows_of(stored, each, source) for each in attached}
            report = check_file(copy, work)
            if not report.ok:  # the backup was changed meanwhile
                raise DamagedStore(f"{source} is damaged or no backup: nothing was changed", report)
            sync_file(copy)
            with unused(path):
                work.report("replace")
                # Others first: a crash between the two leaves the old store, and the restore can be made again.
                kept |= _replace_others(others)
                kept[path] = replace_file(path, copy, "before-restore")
    except (sqlite3.Error, OSError) as error:
        raise copy_error(source, path, error) from error
    return kept


def _copy_rows(stored: sqlite3.Connection, into: sqlite3.Connection, version: int, work: LongWork) -> None:
    """Create a store of a version in an empty file, with the rows of another one."""
    into.execute("PRAGMA auto_vacuum = INCREMENTAL")
    migrate(into, Path("the copy"), STEPS[:version])
    into.execute("BEGIN")
    for name in [row[0] for row in into.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]:
        columns = [row[1] for row in into.execute(f"PRAGMA table_info({name})").fetchall()]
        rows = stored.execute(f"SELECT {', '.join(columns)} FROM {name}")
        insert = f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        done = 0
        while batch := rows.fetchmany(ROWS):
            work.report(name, done)
            into.executemany(insert, batch)
            done += len(batch)
    into.execute("COMMIT")


def _rows_of(stored: sqlite3.Connection, each: Attached, source: Path) -> list[tuple[object, ...]] | None:
    """The rows of another database in a backup, or None if the backup has none."""
    if not stored.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (each.name,)).fetchone():
        return None
    there = {row[1] for row in stored.execute(f"PRAGMA table_info({each.name})").fetchall()}
    if not is_table(stored, each.name) or not there.issuperset(each.columns):
        raise BadInput(f"{source}: {each.name} is not a table as in a backup; nothing was changed")
    return stored.execute(f"SELECT {', '.join(each.columns)} FROM {each.name}").fetchall()


def _replace_others(others: Mapping[Attached, list[tuple[object, ...]] | None]) -> dict[Path, Path | None]:
    kept: dict[Path, Path | None] = {}
    for each, rows in others.items():
        if rows is None or (not rows and not each.path.exists()):
            continue
        with temporary_beside(each.path) as copy:
            write_attached(copy, each, rows)
            check_unused(each.path)
            kept[each.path] = replace_file(each.path, copy, "before-restore")
    return kept


def write_attached(file: Path, each: Attached, rows: Sequence[tuple[object, ...]]) -> None:
    """Create another database in an empty file, with these rows."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for statement in each.create:
            connection.execute(statement)
        connection.execute("BEGIN")
        columns = ", ".join(each.columns)
        marks = ", ".join("?" * len(each.columns))
        connection.executemany(f"INSERT INTO {each.table} ({columns}) VALUES ({marks})", rows)
        connection.execute(f"PRAGMA user_version = {each.version}")
        connection.execute("COMMIT")
    sync_file(file)
