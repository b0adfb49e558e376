"""Pruning in small steps: what can go is found without a lock, and removed in short transactions.

A crash between two steps leaves a whole store: the runs of a tree go from the last to the first, its root at the end,
and the next prune goes on.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from math import inf
from typing import Final, Protocol, TypeVar

from retinue.core.events import RunAccepted
from retinue.core.ids import RunId, SessionId, is_of_job, is_unnamed
from retinue.core.ports import PruneRequest
from retinue.store import rules
from retinue.store.codec import Codec, blob_name, checked_blob
from retinue.store.sqlite.commands import IDLE_DEAD_DRIVERS, REFERENCES

RUNS_PER_STEP: Final = 50
ROWS_PER_STEP: Final = 500
"""Runs, and rows of other tables, that one transaction removes at most."""
STEP_SECONDS: Final = 0.02
"""Seconds after which a transaction removes no further run: on a slow or busy machine steps are smaller."""
PAGES_PER_STEP: Final = 128
"""Free pages that one step gives back to the disk."""
SESSION_SECONDS: Final = 86_400.0
"""The least age of a session without runs that is removed: a younger one may belong to a process that just began."""

T = TypeVar("T")

_TREES: Final = """
    SELECT root_id, max(ended_at) AS at FROM runs GROUP BY root_id
    HAVING min(ended) = 1 AND count(ended_at) = count(*) AND at < ? ORDER BY at
"""
# The text is searched before it is decoded: few runs inherit. A large first event is in a blob.
_HEIRS: Final = """
    SELECT runs.no, runs.root_id, events.body, blobs.body
    FROM runs JOIN events ON events.run_no = runs.no AND events.seq = 1
    LEFT JOIN blobs ON substr(events.body, 1, 1) = x'40' AND blobs.digest = CAST(substr(events.body, 2) AS TEXT)
    WHERE runs.no > ? AND (instr(events.body, CAST('"inherits":' AS BLOB)) OR substr(events.body, 1, 1) = x'40')
"""
_NEWEST_OF_SESSIONS: Final = """
    SELECT runs.session_id, runs.run_id, max(runs.accepted_at) FROM runs JOIN sessions USING (session_id)
    WHERE runs.parent_id IS NULL AND sessions.state = 'open' GROUP BY runs.session_id
"""
_RECENT_REFERENCES: Final = """
    SELECT brief FROM runs WHERE no > :run
    UNION SELECT CAST(substr(body, 2) AS TEXT) FROM events WHERE id > :event AND substr(body, 1, 1) = x'40'
    UNION SELECT CAST(substr(body, 2) AS TEXT) FROM mail WHERE id > :mail AND substr(body, 1, 1) = x'40'
    UNION SELECT CAST(substr(outcome, 2) AS TEXT) FROM runs
    WHERE no IN (SELECT run_no FROM events WHERE id > :event) AND substr(outcome, 1, 1) = x'40'
"""
_UNUSED_SESSIONS: Final = """
    SELECT session_id FROM sessions WHERE created_at < ? AND state = 'open'
    AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.session_id = sessions.session_id)
"""


class PrunedStore(Protocol):
    """What a prune needs of `SqliteStore`."""

    def open_reader(self) -> sqlite3.Connection:
        """Another connection for long queries, which the caller closes."""
        ...

    def maintain(self, step: Callable[[sqlite3.Connection], T]) -> T:
        """Make a step in a transaction of its own."""
        ...

    def release_pages(self, pages: int) -> bool:
        """Give free pages back to the disk; whether there are more."""
        ...

    def truncate_wal(self) -> None:
        """Empty the write-ahead log."""

    def used_bytes(self) -> int:
        """The bytes that hold data."""
        ...


def prune_in_steps(store: PrunedStore, request: PruneRequest) -> Generator[int]:
    """See `core.ports.PruneInSteps`."""
    prune = _Prune(store, request)
    yield from prune.remove_trees()
    yield from prune.remove_blobs()
    yield from prune.remove_others()
    while store.release_pages(PAGES_PER_STEP):
        yield 0
    store.truncate_wal()


class _Prune:
    def __init__(self, store: PrunedStore, request: PruneRequest) -> None:
        self._store = store
        self._request = request
        self._codec = Codec()
        self._blobs = set[str]()
        """Blobs that a removed row referred to."""
        self._blob_bytes = 0
        """The size of these blobs, which are removed after the trees. A blob that is shared is not: then less goes."""
        self._newest_run = 0
        self._sessions = set[SessionId]()
        """Sessions of removed runs."""
        self._roots: dict[RunId, None] = {}

    def remove_trees(self) -> Iterator[int]:
        if self._is_small_enough():
            return
        with closing(self._store.open_reader()) as reader:
            reader.execute("BEGIN")
            self._find_trees(reader)
        while self._roots and not self._is_small_enough():
            yield self._store.maintain(self._remove_runs)

    def _is_small_enough(self) -> bool:
        limit = self._request.max_bytes
        return limit is not None and self._store.used_bytes() - self._blob_bytes <= limit

    def _find_trees(self, reader: sqlite3.Connection) -> None:
        """Find the trees that can go: ended, and without a remaining run that inherited their history."""
        (self._newest_run,) = reader.execute("SELECT coalesce(max(no), 0) FROM runs").fetchone()
        self._roots = {root_id: None for root_id, _ in reader.execute(_TREES, (self._request.before,))}
        if self._request.keep_sessions:
            for session_id, run_id, _ in reader.execute(_NEWEST_OF_SESSIONS):
                if not (is_unnamed(session_id) or is_of_job(session_id)):
                    self._roots.pop(run_id, None)
        heirs: dict[RunId, list[RunId]] = {}
        for root_id, origin_root in self._inherited(reader, 0):
            heirs.setdefault(root_id, []).append(origin_root)
        waiting = [root_id for root_id in heirs if root_id not in self._roots]
        while waiting:
            for origin in heirs.get(waiting.pop(), ()):
                if origin in self._roots:
                    del self._roots[origin]
                    waiting.append(origin)

    def _inherited(self, connection: sqlite3.Connection, after: int) -> Iterator[tuple[RunId, RunId]]:
        """The root of each run that inherited a history, and the root of the run from which; of runs after a number."""
        for _, root_id, body, blob in connection.execute(_HEIRS, (after,)).fetchall():
            digest = blob_name(body)
            accepted = self._codec.event(body if digest is None else checked_blob(digest, blob))
            if isinstance(accepted, RunAccepted) and accepted.inherits is not None:
                query = "SELECT root_id FROM runs WHERE run_id = ?"
                origin = connection.execute(query, (accepted.inherits.run_id,)).fetchone()
                if origin is not None:
                    yield root_id, origin[0]

    def _remove_runs(self, connection: sqlite3.Connection) -> int:
        """Remove up to `RUNS_PER_STEP` runs of the next trees; a run that was accepted meanwhile can still need one."""
        execute = connection.execute
        for _, origin_root in self._inherited(connection, self._newest_run):
            self._roots.pop(origin_root, None)
        (self._newest_run,) = execute("SELECT coalesce(max(no), 0) FROM runs").fetchone()
        removed = 0
        until = time.monotonic() + STEP_SECONDS
        while self._roots and removed < RUNS_PER_STEP and (not removed or time.monotonic() < until):
            root_id = next(iter(self._roots))
            query = "SELECT no, run_id, session_id, brief, outcome FROM runs WHERE root_id = ? ORDER BY no DESC LIMIT ?"
            for no, run_id, session_id, brief, outcome in execute(query, (root_id, RUNS_PER_STEP - removed)).fetchall():
                self._remove_run(connection, no, run_id)
                self._sessions.add(session_id)
                self._blobs.add(brief)
                self._note_blobs(connection, [(outcome,)])
                removed += 1
                if time.monotonic() >= until:
                    break
            if not execute("SELECT 1 FROM runs WHERE root_id = ? LIMIT 1", (root_id,)).fetchone():
                del self._roots[root_id]
                artifacts = (f"artifact/{root_id}/", f"artifact/{root_id}0")  # the character after "/" is "0"
                execute("DELETE FROM shelves WHERE space >= ? AND space < ?", artifacts)
        return removed

    def _remove_run(self, connection: sqlite3.Connection, no: int, run_id: RunId) -> None:
        execute = connection.execute
        for table in ("events", "mail"):
            bodies = f"SELECT body FROM {table} WHERE run_no = ? AND substr(body, 1, 1) = x'40'"
            self._note_blobs(connection, execute(bodies, (no,)).fetchall())
            execute(f"DELETE FROM {table} WHERE run_no = ?", (no,))
        execute("DELETE FROM runs WHERE no = ?", (no,))
        execute("DELETE FROM answers WHERE key = ?", (run_id,))
        execute("DELETE FROM answers WHERE key >= ? AND key < ?", (f"{run_id}/", f"{run_id}0"))

    def _note_blobs(self, connection: sqlite3.Connection, rows: Iterable[tuple[bytes | None]]) -> None:
        for digest in _named(rows) - self._blobs:
            self._blobs.add(digest)
            found = connection.execute("SELECT length(body) FROM blobs WHERE digest = ?", (digest,)).fetchone()
            self._blob_bytes += found[0] if found else 0

    def remove_blobs(self) -> Iterator[int]:
        """Remove the blobs of removed rows to which no other row refers."""
        if not self._blobs:
            return
        with closing(self._store.open_reader()) as reader:
            reader.execute("BEGIN")
            newest = _newest_rows(reader)
            needed = {digest for (digest,) in reader.execute(REFERENCES)}
        for digests in _chunks(sorted(self._blobs - needed), ROWS_PER_STEP // 10):
            yield self._store.maintain(lambda connection, chosen=digests: _remove_blobs(connection, chosen, newest))

    def remove_others(self) -> Iterator[int]:
        """Remove charges that count no more, idle dead drivers, and sessions without runs that have no name.

        A session that just lost its runs is removed at once, unless a driver could still start a run in it.
        """
        before = min(self._request.before, time.time())
        with closing(self._store.open_reader()) as reader:
            charges = [number for (number,) in reader.execute("SELECT id FROM charges WHERE until < ?", (before,))]
            created = min(before, time.time() - SESSION_SECONDS)
            unused = {name for (name,) in reader.execute(_UNUSED_SESSIONS, (created,))}
            if not reader.execute("SELECT 1 FROM drivers WHERE dead = 0 LIMIT 1").fetchone():
                unused |= self._sessions & {name for (name,) in reader.execute(_UNUSED_SESSIONS, (inf,))}
            unnamed = sorted(name for name in unused if is_unnamed(name) or is_of_job(name))
        for numbers in _chunks(charges, ROWS_PER_STEP):
            yield self._store.maintain(lambda connection, chosen=numbers: _remove_charges(connection, chosen))
        for chunk in _chunks(unnamed, ROWS_PER_STEP // 10):
            yield self._store.maintain(lambda connection, chosen=chunk: _remove_sessions(connection, chosen))
        yield self._store.maintain(lambda connection: (connection.execute(IDLE_DEAD_DRIVERS) and 0) or 0)


def _named(rows: Iterable[tuple[bytes | None]]) -> set[str]:
    """The blobs to which stored bodies refer."""
    return {digest for (body,) in rows if body is not None and (digest := blob_name(body)) is not None}


def _newest_rows(connection: sqlite3.Connection) -> dict[str, int]:
    tables = {"run": ("no", "runs"), "event": ("id", "events"), "mail": ("id", "mail")}
    return {
        name: connection.execute(f"SELECT coalesce(max({column}), 0) FROM {table}").fetchone()[0]
        for name, (column, table) in tables.items()
    }


def _remove_blobs(connection: sqlite3.Connection, digests: Sequence[str], newest: Mapping[str, int]) -> int:
    """Remove blobs, except those to which a row refers that was written since; only new rows can refer to them."""
    recent = {digest for (digest,) in connection.execute(_RECENT_REFERENCES, newest)}
    connection.executemany("DELETE FROM blobs WHERE digest = ?", [(each,) for each in digests if each not in recent])
    return 0


def _remove_charges(connection: sqlite3.Connection, numbers: Sequence[int]) -> int:
    connection.executemany("DELETE FROM charges WHERE id = ?", [(number,) for number in numbers])
    return 0


def _remove_sessions(connection: sqlite3.Connection, names: Sequence[str]) -> int:
    """Remove sessions with their values and handles, unless they have got a run meanwhile.

    The session of a job stays if it holds values: the next run of the job reads them.
    """
    execute = connection.execute
    spaces = [space for (space,) in execute("SELECT DISTINCT space FROM shelves")]
    for name in names:
        in_use = execute("SELECT 1 FROM runs WHERE session_id = ? LIMIT 1", (name,)).fetchone()
        held = [space for space in spaces if rules.is_of_session(space, name)]
        if in_use is None and not (held and is_of_job(name)):
            execute("DELETE FROM handles WHERE session_id = ?", (name,))
            execute("DELETE FROM sessions WHERE session_id = ?", (name,))
            connection.executemany("DELETE FROM shelves WHERE space = ?", [(space,) for space in held])
    return 0


def _chunks(values: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(values)
    while chunk := list(islice(remaining, size)):
        yield chunk
