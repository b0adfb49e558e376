"""Queries of the SQLite store, on a connection of their own that never waits for a writer."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from retinue.core.agent import RunSpec
from retinue.core.commands import Charge, DriverRow, Progress, RunQuery, RunRow, SessionRow
from retinue.core.events import Event
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Item
from retinue.core.run import HandleRef
from retinue.core.usage import Usage
from retinue.store.codec import Codec, blob_name, checked_blob
from retinue.store.sqlite.errors import translated_error

Row: TypeAlias = tuple[Any, ...]

_RUN: Final = """
    SELECT run_id, session_id, root_id, parent_id, depth, path, agent, label, dialect, key, handle_space, handle_name,
           awaited, brief, driver_id, accepted_at, cancelled_at, format, seq,
           phase, turns, input, output, cached, reasoning, cost, outcome, ended_at
    FROM runs
"""


class SqliteQueries:
    """Queries from any thread, one at a time; each sees everything committed before it."""

    def __init__(self, connection: sqlite3.Connection, path: Path, codec: Codec) -> None:
        self._connection = connection
        self._path = path
        self._codec = codec
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connection, after a query in progress."""
        with self._lock:
            self._connection.close()

    def run(self, run_id: RunId) -> RunRow | None:
        return self._one_run(_RUN + "WHERE run_id = ?", run_id)

    def run_by_key(self, key: Key) -> RunRow | None:
        return self._one_run(_RUN + "WHERE key = ?", key)

    def runs(self, query: RunQuery) -> list[RunRow]:
        where, values = _conditions(query)
        rows = self._fetch(f"{_RUN}{where} ORDER BY {_order(query)}{_limit(query)}", *values)
        return [self._run_row(row) for row in rows]

    def count(self, query: RunQuery) -> int:
        where, values = _conditions(query)
        rows = self._fetch(f"SELECT count(*) FROM (SELECT 1 FROM runs {where}{_limit(query)})", *values)
        return int(rows[0][0])

    def events(self, run_id: RunId, after: int = 0) -> list[tuple[int, Event]]:
        query = """
            SELECT events.seq, events.body FROM runs JOIN events ON events.run_no = runs.no
            WHERE runs.run_id = ? AND events.seq > ? ORDER BY events.seq
        """
        return [(seq, self._codec.event(self._load(body))) for seq, body in self._fetch(query, run_id, after)]

    def run_spec(self, digest: str) -> RunSpec:
        return self._codec.run_spec(self._blob(digest))

    def inbox(self, run_id: RunId) -> list[Item]:
        rows = self._fetch(
            """
            SELECT mail.body FROM runs JOIN mail ON mail.run_no = runs.no
            WHERE runs.run_id = ? AND mail.body IS NOT NULL ORDER BY mail.id
            """,
            run_id,
        )
        return [self._codec.item(self._load(body)) for (body,) in rows]

    def inbox_for(self, driver_id: DriverId) -> list[tuple[RunId, Item]]:
        rows = self._fetch(
            """
            SELECT runs.run_id, mail.body FROM runs JOIN mail ON mail.run_no = runs.no
            WHERE runs.driver_id = ? AND runs.ended = 0 AND mail.body IS NOT NULL ORDER BY runs.no, mail.id
            """,
            driver_id,
        )
        return [(run_id, self._codec.item(self._load(body))) for run_id, body in rows]

    def handles(self, session_id: SessionId, space: str) -> list[tuple[str, RunId, Key | None]]:
        query = "SELECT name, run_id, retired_by FROM handles WHERE session_id = ? AND space = ? ORDER BY n"
        return [(name, run_id, retired_by) for name, run_id, retired_by in self._fetch(query, session_id, space)]

    def drivers(self) -> list[DriverRow]:
        rows = self._fetch(
            """
            SELECT driver_id, host, process, beat, dead, lease FROM drivers
            WHERE dead = 0 OR driver_id IN (SELECT driver_id FROM runs WHERE ended = 0) ORDER BY rowid
            """
        )
        return [
            DriverRow(driver_id=driver_id, host=host, process=process, beat=beat, dead=bool(dead), lease=lease)
            for driver_id, host, process, beat, dead, lease in rows
        ]

    def session(self, session_id: SessionId) -> SessionRow | None:
        rows = self._fetch("SELECT session_id, created_at, state FROM sessions WHERE session_id = ?", session_id)
        return _session_row(rows[0]) if rows else None

    def sessions(self) -> list[SessionRow]:
        return [
            _session_row(row)
            for row in self._fetch("SELECT session_id, created_at, state FROM sessions ORDER BY created_at, rowid")
        ]

    def key_value(self, space: str) -> Mapping[str, bytes]:
        return dict(self._fetch("SELECT name, value FROM shelves WHERE space = ? ORDER BY rowid", space))

    def answered(self, key: Key) -> bytes | None:
        rows = self._fetch("SELECT answer FROM answers WHERE key = ?", key)
        return rows[0][0] if rows else None

    def charges(self, window: str, since: float) -> list[Charge]:
        columns = "account, at, until, input, output, cost, calls"
        query = f"SELECT {columns} FROM charges WHERE account = ? AND at >= ? ORDER BY at, id"
        return [Charge(*row) for row in self._fetch(query, window, since)]

    def _fetch(self, query: str, *values: str | float) -> list[Row]:
        with self._lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise translated_error(self._path, error) from error

    def _load(self, stored: bytes) -> bytes:
        digest = blob_name(stored)
        return stored if digest is None else self._blob(digest)

    def _blob(self, digest: str) -> bytes:
        rows = self._fetch("SELECT body FROM blobs WHERE digest = ?", digest)
        return checked_blob(digest, rows[0][0] if rows else None)

    def _one_run(self, query: str, name: str) -> RunRow | None:
        rows = self._fetch(query, name)
        return self._run_row(rows[0]) if rows else None

    def _run_row(self, row: Row) -> RunRow:
        space, name = row[10:12]
        phase, turns, input_, output, cached, reasoning, cost, outcome, ended_at = row[19:]
        return RunRow(
            run_id=row[0],
            session_id=row[1],
            root_id=row[2],
            parent_id=row[3],
            depth=row[4],
            path=row[5],
            agent=row[6],
            label=row[7],
            dialect=row[8],
            key=row[9],
            handle=None if space is None else HandleRef(space, name),
            awaited=bool(row[12]),
            run_spec=row[13],
            driver_id=row[14],
            accepted_at=row[15],
            cancelled_at=row[16],
            format=row[17],
            seq=row[18],
            progress=Progress(
                phase=phase,
                turns=turns,
                usage=Usage(input_, output, cached, reasoning),
                cost=cost,
                outcome=None if outcome is None else self._codec.outcome_if_known(self._load(outcome)),
                ended_at=ended_at,
            ),
        )


def _conditions(query: RunQuery) -> tuple[str, list[str | int]]:
    filters = {
        "session_id = ?": query.session_id,
        "root_id = ?": query.root_id,
        "parent_id = ?": query.parent_id,
        "driver_id = ?": query.driver_id,
        "handle_space = ?": query.handle_space,
        "dialect = ?": query.dialect,
        "phase = ?": query.phase,
    }
    conditions = [condition for condition, value in filters.items() if value is not None]
    values: list[str | int] = [value for value in filters.values() if value is not None]
    if query.id_part is not None:
        # The inner query reads the index of ids alone: there is no other way to find the end of an id.
        ids = "SELECT no FROM runs WHERE substr(run_id, 1, ?) = ? OR substr(run_id, -?) = ?"
        conditions.append(f"no IN ({ids})")
        values += [len(query.id_part), query.id_part] * 2
    if query.roots_only:
        conditions.append("parent_id IS NULL")
    if query.unfinished_only or query.phase not in (None, "ended"):
        conditions.append("ended = 0")
    if query.undriven_only:
        conditions.append("driver_id IS NULL")
    if query.limit is not None:
        values.append(query.limit)
    return f"WHERE {' AND '.join(conditions)}" if conditions else "", values


def _order(query: RunQuery) -> str:
    """Newest first: in the order of an index where runs are many, and sorted where a filter leaves few.

    A term with a `+` does not tempt SQLite to read all runs in the order of an index instead of those that match.
    """
    few = query.root_id or query.parent_id or query.driver_id or query.id_part or query.dialect
    if few or query.unfinished_only or query.undriven_only or query.phase not in (None, "ended"):
        return "+accepted_at DESC, +run_id DESC"
    return "accepted_at DESC, run_id DESC"


def _limit(query: RunQuery) -> str:
    return "" if query.limit is None else " LIMIT ?"


def _session_row(row: Row) -> SessionRow:
    session_id, created_at, state = row
    return SessionRow(session_id=session_id, created_at=created_at, state=state)
