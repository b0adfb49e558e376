"""Deletion in the SQLite store: old trees with everything only they need, and the messages of ended runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.store import rules
from retinue.store.codec import Codec, blob_name, checked_blob

_FIRST_EVENTS = """
    SELECT runs.run_id, events.body, blobs.body FROM runs JOIN events ON events.run_no = runs.no AND events.seq = 1
    LEFT JOIN blobs ON blobs.digest = CAST(substr(events.body, 2) AS TEXT)
"""
_REFERENCES = """
    SELECT brief FROM runs
    UNION SELECT CAST(substr(body, 2) AS TEXT) FROM events WHERE substr(body, 1, 1) = x'40'
    UNION SELECT CAST(substr(body, 2) AS TEXT) FROM mail WHERE substr(body, 1, 1) = x'40'
    UNION SELECT CAST(substr(outcome, 2) AS TEXT) FROM runs WHERE substr(outcome, 1, 1) = x'40'
"""
"""All blobs that are still referenced; a reference begins with `@` (0x40)."""
_TO_FORGET = "SELECT no FROM runs WHERE root_id = ? AND dialect = ? AND parent_id IS NOT NULL AND seq > 0"
_IDLE_DEAD_DRIVERS = """
    DELETE FROM drivers WHERE dead
    AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.driver_id = drivers.driver_id AND runs.ended = 0)
"""


def prune(do: Callable[..., sqlite3.Cursor], codec: Codec, before: float) -> int:
    """Delete trees that ended before a time, inside the caller's transaction; returns the number of deleted runs."""
    runs = do("SELECT run_id, root_id, CASE WHEN ended THEN ended_at END FROM runs").fetchall()
    gone = rules.prunable(runs, _inherited_runs(do, codec), before)
    for run_id in gone:
        (no,) = do("SELECT no FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        do("DELETE FROM events WHERE run_no = ?", (no,))
        do("DELETE FROM mail WHERE run_no = ?", (no,))
        do("DELETE FROM runs WHERE no = ?", (no,))
    keys = do("SELECT key FROM answers").fetchall()
    for (key,) in keys:
        if rules.run_of_key(key) in gone:
            do("DELETE FROM answers WHERE key = ?", (key,))
    spaces = do("SELECT DISTINCT space FROM shelves WHERE space >= 'artifact/' AND space < 'artifact0'").fetchall()
    for (space,) in spaces:
        if rules.is_artifact_of(space, gone):
            do("DELETE FROM shelves WHERE space = ?", (space,))
    do(f"DELETE FROM blobs WHERE digest NOT IN ({_REFERENCES})")
    do("DELETE FROM charges WHERE until < ?", (before,))
    do(_IDLE_DEAD_DRIVERS)
    return len(gone)


def forget(do: Callable[..., sqlite3.Cursor], root_id: RunId, dialect: str) -> int:
    """Delete the messages of a tree's runs of one dialect, inside the caller's transaction; returns their number."""
    if do("SELECT 1 FROM runs WHERE root_id = ? AND ended = 0 LIMIT 1", (root_id,)).fetchone() is not None:
        return 0
    runs = do(_TO_FORGET, (root_id, dialect)).fetchall()
    blobs = set[str]()
    for (no,) in runs:
        for table in ("events", "mail"):
            named = do(f"SELECT body FROM {table} WHERE run_no = ? AND substr(body, 1, 1) = x'40'", (no,)).fetchall()
            blobs |= {digest for (body,) in named if (digest := blob_name(body)) is not None}
            do(f"DELETE FROM {table} WHERE run_no = ?", (no,))
        do("UPDATE runs SET seq = 0 WHERE no = ?", (no,))
    if blobs:  # rare, and worth a full scan: deleted messages must not stay readable
        needed = {digest for (digest,) in do(_REFERENCES).fetchall()}
        for digest in blobs - needed:
            do("DELETE FROM blobs WHERE digest = ?", (digest,))
    return len(runs)


def _inherited_runs(do: Callable[..., sqlite3.Cursor], codec: Codec) -> dict[str, str]:
    """The run whose history each run inherited."""
    origins: dict[str, str] = {}
    for run_id, body, blob in do(_FIRST_EVENTS).fetchall():
        digest = blob_name(body)
        accepted = codec.event(body if digest is None else checked_blob(digest, blob))
        if isinstance(accepted, RunAccepted) and accepted.inherits is not None:
            origins[run_id] = accepted.inherits.run_id
    return origins
