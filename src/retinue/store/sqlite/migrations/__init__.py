"""Schema migrations of the SQLite store.

`user_version` is the number of migrations a file has. Released migrations are never edited; a change is a new one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

from retinue.core.errors import StoreCorrupt, UnknownFormat
from retinue.store.sqlite.migrations import m0001_initial, m0002_checksums, m0003_lists

Step: TypeAlias = Sequence[str]
"""The SQL statements of one migration."""

STEPS: Final[tuple[Step, ...]] = (
    m0001_initial.STATEMENTS,
    m0002_checksums.STATEMENTS,
    m0003_lists.STATEMENTS,
)

APPLICATION_ID: Final = 0x52544E55
"""Marks a file as a retinue store: `RTNU` in its header."""


def migrate(connection: sqlite3.Connection, path: Path, steps: Sequence[Step] = STEPS) -> None:
    """Apply the missing migrations, all or none; the caller holds the file lock."""
    version = check_version(connection, path, steps)
    if version == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in steps[version:]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check_version(connection: sqlite3.Connection, path: Path, steps: Sequence[Step] = STEPS) -> int:
    """The number of migrations that a file has; raises for a newer one and for the database of another program."""
    version = _number(connection, "PRAGMA user_version")
    if version > len(steps):
        raise UnknownFormat(f"the store {path}", found=version, known=len(steps))
    if not _is_ours(connection, version):
        raise StoreCorrupt(f"{path} is the database of another program: choose another place for retinue's")
    if foreign := foreign_objects(connection):
        raise StoreCorrupt(
            f"{path} was changed by another program: {foreign[0]} does not belong to a store; "
            "save what belongs to it with: retinue store repair"
        )
    return version


def foreign_objects(connection: sqlite3.Connection) -> list[str]:
    """Triggers, views and virtual tables, by kind and name: a store has none, and SQLite would obey them."""
    query = "SELECT type, name, sql FROM sqlite_master WHERE type IN ('trigger', 'view', 'table') ORDER BY name"
    return [
        f"the {kind if kind != 'table' else 'virtual table'} {name}"
        for kind, name, sql in connection.execute(query).fetchall()
        if kind != "table" or " ".join(str(sql).split()[:2]).upper() == "CREATE VIRTUAL"
    ]


def is_older(connection: sqlite3.Connection) -> bool:
    """Whether a store of an older version has to be migrated; False for an empty file and for other programs' files."""
    version = _number(connection, "PRAGMA user_version")
    return 0 < version < len(STEPS) and _is_ours(connection, version)


def _is_ours(connection: sqlite3.Connection, version: int) -> bool:
    if version > 0:
        return _number(connection, "PRAGMA application_id") == APPLICATION_ID
    return _number(connection, "SELECT count(*) FROM sqlite_master") == 0


def _number(connection: sqlite3.Connection, query: str) -> int:
    (number,) = connection.execute(query).fetchone()
    return int(number)
