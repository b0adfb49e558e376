"""The initial tables.

Rows that are written every turn are few and small: each page that a commit touches is copied to the WAL.
"""

from __future__ import annotations

STATEMENTS = (
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
