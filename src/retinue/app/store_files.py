"""The databases of the state folder as files: check, backup, restore, repair and compact, for every front end.

They are the store (`retinue.db`) and the memories of agents (`memory.db`). Every function blocks, and stops when its
`LongWork` is stopped.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import Struct

from retinue.app.open import STORE, default_home
from retinue.app.state_folder import chosen_url, is_postgres, is_sqlite, sqlite_path
from retinue.core.errors import BadInput, StoreCorrupt
from retinue.store.sqlite.backup import Attached, DamagedStore, backup, restore, write_attached
from retinue.store.sqlite.check import CheckReport, Damage, check_file, check_structure, open_snapshot
from retinue.store.sqlite.repair import RepairReport, copy_readable, repair
from retinue.store.sqlite.replace import check_unused, replace_file, temporary_beside
from retinue.store.sqlite.space import Space, compact, free_space
from retinue.store.sqlite.work import LongWork, WorkStopped

__all__ = [
    "CheckReport",
    "Damage",
    "DamagedStore",
    "LongWork",
    "RepairReport",
    "Space",
    "StoreCheck",
    "WorkStopped",
    "backup_store",
    "check_store",
    "compact_store",
    "repair_store",
    "restore_store",
    "unreleased_space",
]


MIN_NOTICE = 1_000_000
"""Bytes of free space inside the file from which a notice says how to give them back."""


class StoreCheck(Struct, frozen=True):
    """The reports about all databases of a state folder that exist."""

    reports: tuple[CheckReport, ...]

    @property
    def ok(self) -> bool:
        return all(report.ok for report in self.reports)


def check_store(work: LongWork, *, quick: bool = False, home: Path | None = None) -> StoreCheck:
    """Check the databases of a state folder. A store that does not exist is fine: nothing is stored yet."""
    store, memories = _files(home)
    reports: list[CheckReport] = []
    if _exists(store):
        reports.append(check_file(store, work, quick=quick))
    if _exists(memories.path):
        reports.append(_check_memories(memories, work, quick=quick))
    return StoreCheck(tuple(reports))


def backup_store(target: Path, work: LongWork, *, replace: bool = False, home: Path | None = None) -> CheckReport:
    """Write a backup of the databases of a state folder into one file; see `store.sqlite.backup.backup`."""
    store, memories = _files(home)
    if _exists(memories.path):
        report = _check_memories(memories, work, quick=False)
        if not report.ok:
            raise DamagedStore(f"{memories.path} is damaged: no backup was written", report)
    return backup(store, target, work, attached=(memories,), replace=replace)


def restore_store(source: Path, work: LongWork, *, home: Path | None = None) -> dict[Path, Path | None]:
    """Replace the databases of a state folder by those of a backup; returns where the old files are kept."""
    store, memories = _files(home)
    return restore(store, source, work, attached=(memories,))


def repair_store(work: LongWork, *, home: Path | None = None) -> list[RepairReport]:
    """Repair the databases of a state folder that are damaged; a report about each of them."""
    store, memories = _files(home)
    reports: list[RepairReport] = []
    if _exists(store) and not check_file(store, work).ok:
        reports.append(repair(store, work))
    if _exists(memories.path) and not _check_memories(memories, work, quick=False).ok:
        reports.append(_repair_memories(memories, work))
    return reports


def compact_store(work: LongWork, *, home: Path | None = None) -> Space:
    """Give the free pages of the store back to the disk, while no other process uses it."""
    return compact(_files(home)[0], work)


def unreleased_space(home: Path | None = None) -> str | None:
    """A notice about space that prune cannot give back, because a file was created by version 0.1; None if little."""
    if home is None and is_postgres(chosen_url()):
        return None
    path, _ = _files(home)
    free = free_space(path)
    if free.released or free.bytes < MIN_NOTICE:
        return None
    return (
        f"{free.bytes / 1_000_000:.0f} MB are free inside {path}; retinue store compact gives them back to the disk; "
        "afterwards prune does so itself"
    )


def _files(home: Path | None) -> tuple[Path, Attached]:
    """The file of the store, and the memories in the state folder; raises `BadInput` for a PostgreSQL store."""
    url = chosen_url() if home is None else None
    if url is not None and not is_sqlite(url):
        raise BadInput(
            "this command is for a store in a file: back up a PostgreSQL database with pg_dump and restore it with "
            "pg_restore, or copy it with: retinue store copy"
        )
    folder = home or default_home()
    return folder / STORE if url is None else sqlite_path(url), _memories(folder)


def _exists(path: Path) -> bool:
    return path.exists() or Path(f"{path}-wal").exists()


def _memories(home: Path) -> Attached:
    from retinue.tools.memory import sqlite

    return Attached(
        path=home / sqlite.FILE,
        table=sqlite.TABLE,
        columns=sqlite.COLUMNS,
        create=sqlite.CREATE,
        version=sqlite.FORMAT,
    )


def _check_memories(memories: Attached, work: LongWork, *, quick: bool) -> CheckReport:
    from retinue.tools.memory import sqlite

    damages: list[Damage] = []
    rows: list[tuple[Any, ...]] = []
    try:
        with open_snapshot(memories.path) as connection, work.watching(connection):
            check_structure(
                connection, lambda table, run_id, what: damages.append(Damage(table, run_id, what)), work, quick=quick
            )
            if not quick and _columns(connection, memories.table):
                rows = connection.execute(f"SELECT {_readable(connection, memories)} FROM {memories.table}").fetchall()
                _check_words(connection)
    except (sqlite3.DatabaseError, UnicodeDecodeError, StoreCorrupt) as error:
        damages.append(Damage(memories.table, None, str(error)))
    damages += [
        Damage(memories.table, None, f"agent {row[1]}, key {row[2]}: the checksum does not match")
        for row in rows
        if not sqlite.is_intact(row)
    ]
    unsummed = sum(row[-1] is None for row in rows)
    return CheckReport(
        file=str(memories.path),
        damages=tuple(damages),
        rows={} if quick else {memories.table: len(rows)},
        without_checksum=unsummed,
    )


def _check_words(connection: sqlite3.Connection) -> None:
    """Check the index of words in a copy: the check is a command that SQLite takes for a write."""
    from retinue.tools.memory import sqlite

    with closing(sqlite3.connect("")) as copy:  # in memory as far as it fits into the cache, else in a temporary file
        connection.backup(copy)
        if sqlite.has_full_text():
            sqlite.check_words(copy)


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})").fetchall()}


def _readable(connection: sqlite3.Connection, memories: Attached) -> str:
    """The columns of a copy; NULL in place of a checksum that an older format does not have."""
    there = _columns(connection, memories.table)
    return ", ".join(column if column in there else f"NULL AS {column}" for column in memories.columns)


def _repair_memories(memories: Attached, work: LongWork) -> RepairReport:
    """Save the memories that match their checksums into a new file; their index is made again when it is needed."""
    from retinue.tools.memory import sqlite

    check_unused(memories.path)
    lost: list[Damage] = []
    saved: list[tuple[Any, ...]] = []
    with temporary_beside(memories.path.with_name(f"{memories.path.name}.read")) as copy:
        copy_readable(memories.path, copy)
        connection = sqlite3.connect(copy, isolation_level=None)
        try:
            connection.execute("PRAGMA writable_schema = ON")
            query = f"SELECT {_readable(connection, memories)} FROM {memories.table}"
            for row in connection.execute(query):
                work.report(memories.table, len(saved))
                if sqlite.is_intact(row):
                    saved.append(row)
                else:
                    lost.append(Damage(memories.table, None, f"agent {row[1]}, key {row[2]}"))
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            lost.append(Damage(memories.table, None, f"memories after the first {len(saved)} ({error})"))
        finally:
            connection.close()
    with temporary_beside(memories.path) as new:
        write_attached(new, memories, saved)
        check_unused(memories.path)
        kept = replace_file(memories.path, new, "damaged", unchanged=True)
    return RepairReport(
        file=str(memories.path),
        lost=tuple(lost),
        saved={memories.table: len(saved)},
        kept=None if kept is None else str(kept),
    )
