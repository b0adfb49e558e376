"""Schema migrations of the SQLite store.

`user_version` is the number of migrations a file has. Released migrations are never edited; a change is a new one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

from retinue.core.errors import StoreCorrupt, UnknownFormat

Migration: TypeAlias = Sequence[str]
"""The SQL statements of one migration."""

INITIAL: Final[Migration] = (
    # `ended` repeats `phase = 'ended'`, because an index on `phase` would be rewritten every turn.
    """
    CREATE TABLE runs (
        no INTEGER PRIMARY KEY,
        run_id TEXT NOT NULL UNIQUE,
        session_id TEXT NOT NULL,
        root_id TEXT NOT NULL,
        parent_id TEXT,
        depth INTEGER NOT NULL,
        path TEXT NOT NULL,
        agent TEXT NOT NULL,
        label TEXT NOT NULL,
        dialect TEXT NOT NULL,
        key TEXT UNIQUE,
        handle_space TEXT,
        handle_name TEXT,
        awaited INTEGER NOT NULL,
        brief TEXT NOT NULL,
        driver_id TEXT,
        accepted_at REAL NOT NULL,
        cancelled_at REAL,
        format INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        ended INTEGER NOT NULL DEFAULT 0,
        phase TEXT NOT NULL DEFAULT 'queued',
        turns INTEGER NOT NULL DEFAULT 0,
        input INTEGER NOT NULL DEFAULT 0,
        output INTEGER NOT NULL DEFAULT 0,
        cached INTEGER NOT NULL DEFAULT 0,
        reasoning INTEGER NOT NULL DEFAULT 0,
        cost INTEGER DEFAULT 0,
        outcome BLOB,
        ended_at REAL
    )
    """,
    "CREATE INDEX runs_by_session ON runs (session_id)",
    "CREATE INDEX runs_by_root ON runs (root_id)",
    "CREATE INDEX runs_by_parent ON runs (parent_id) WHERE parent_id IS NOT NULL",
    "CREATE INDEX roots_by_time ON runs (accepted_at, run_id) WHERE parent_id IS NULL",
    "CREATE INDEX runs_by_driver ON runs (driver_id) WHERE ended = 0",
    # Rows in insertion order, with an index by run: the events of a group commit then share pages. Clustered by run,
    # each event would touch a page of its own.
    "CREATE TABLE events (id INTEGER PRIMARY KEY, run_no INTEGER NOT NULL, seq INTEGER NOT NULL, body BLOB NOT NULL)",
    "CREATE UNIQUE INDEX events_by_run ON events (run_no, seq)",
    # A taken item loses its body (the MailTaken event has it) but keeps its key.
    "CREATE TABLE mail (id INTEGER PRIMARY KEY, run_no INTEGER NOT NULL, key TEXT NOT NULL, body BLOB)",
    "CREATE UNIQUE INDEX mail_by_key ON mail (run_no, key)",
    "CREATE INDEX untaken_mail ON mail (run_no) WHERE body IS NOT NULL",
    "CREATE TABLE blobs (digest TEXT PRIMARY KEY, body BLOB NOT NULL)",
    """
    CREATE TABLE handles (
        session_id TEXT NOT NULL,
        space TEXT NOT NULL,
        n INTEGER NOT NULL,
        name TEXT NOT NULL,
        run_id TEXT NOT NULL,
        retired_by TEXT,
        PRIMARY KEY (session_id, space, n)
    ) WITHOUT ROWID
    """,
    "CREATE UNIQUE INDEX handles_by_name ON handles (session_id, space, name)",
    "CREATE TABLE sessions (session_id TEXT PRIMARY KEY, created_at REAL NOT NULL, state TEXT NOT NULL)",
    """
    CREATE TABLE drivers (
        driver_id TEXT PRIMARY KEY,
        host TEXT NOT NULL,
        process TEXT NOT NULL,
        beat INTEGER NOT NULL,
        dead INTEGER NOT NULL,
        lease REAL NOT NULL
    )
    """,
    "CREATE TABLE shelves (space TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (space, name))",
    "CREATE TABLE answers (key TEXT PRIMARY KEY, answer BLOB NOT NULL)",
    # The column is not called `window`, which is an SQL keyword.
    """
    CREATE TABLE charges (
        id INTEGER PRIMARY KEY,
        account TEXT NOT NULL,
        at REAL NOT NULL,
        until REAL NOT NULL,
        input INTEGER NOT NULL,
        output INTEGER NOT NULL,
        cost INTEGER NOT NULL,
        calls INTEGER NOT NULL
    )
    """,
    "CREATE INDEX charges_by_time ON charges (account, at)",
)
"""The initial tables.

Rows that are written every turn are few and small: each page that a commit touches is copied to the WAL.
"""

CHECKSUMS: Final[Migration] = (
    "ALTER TABLE runs ADD COLUMN identity_crc INTEGER",
    "ALTER TABLE runs ADD COLUMN progress_crc INTEGER",
    "ALTER TABLE runs ADD COLUMN driver_crc INTEGER",
    "ALTER TABLE events ADD COLUMN crc INTEGER",
    "ALTER TABLE mail ADD COLUMN crc INTEGER",
    "ALTER TABLE handles ADD COLUMN crc INTEGER",
    "ALTER TABLE sessions ADD COLUMN crc INTEGER",
    "ALTER TABLE drivers ADD COLUMN crc INTEGER",
    "ALTER TABLE shelves ADD COLUMN crc INTEGER",
    "ALTER TABLE answers ADD COLUMN crc INTEGER",
    "ALTER TABLE charges ADD COLUMN crc INTEGER",
)
"""Checksums of rows, so that damaged bytes are an error and never an answer.

A row of an older version has none until it is written again. The row of a run has three, because each of its parts is
written at another time: its identity once, its progress every turn, its driver when it changes hands.
"""

LISTS: Final[Migration] = (
    "CREATE INDEX runs_by_time ON runs (accepted_at, run_id)",
    "DROP INDEX runs_by_session",
    "CREATE INDEX runs_by_session ON runs (session_id, accepted_at, run_id)",
    "CREATE INDEX runs_by_handle ON runs (handle_space, accepted_at, run_id) WHERE handle_space IS NOT NULL",
)
"""Indexes of lists of runs: newest first, of all runs, of a session, and of those with a handle.

Runs are added in the order of time, so that an entry is added at the end of an index, or of its session in it.
"""

STEPS: Final[tuple[Migration, ...]] = (INITIAL, CHECKSUMS, LISTS)

APPLICATION_ID: Final = 0x52544E55
"""Marks a file as a retinue store: `RTNU` in its header."""


def migrate(connection: sqlite3.Connection, path: Path, steps: Sequence[Migration] = STEPS) -> None:
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


def check_version(connection: sqlite3.Connection, path: Path, steps: Sequence[Migration] = STEPS) -> int:
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
