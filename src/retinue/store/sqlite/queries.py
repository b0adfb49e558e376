"""Queries of the SQLite store, on a connection of their own that never waits for a writer."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from retinue.core.agent import RunSpec
from retinue.core.checksum import check_log, check_row, damaged_row, is_intact_event
from retinue.core.commands import Charge, DriverRow, Progress, RunQuery, RunRow, SessionRow
from retinue.core.errors import StoreCorrupt, UnknownFormat
from retinue.core.events import Event, RunAccepted
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Item
from retinue.core.run import HandleRef
from retinue.core.usage import Usage
from retinue.store.codec import Codec, InboxDecoder, blob_name, checked_blob
from retinue.store.sqlite.errors import translated_error

Row: TypeAlias = tuple[Any, ...]

_IDS_PER_QUERY: Final = 500
"""Ids in one statement: SQLite limits the number of its values."""

_RUN: Final = """
    SELECT run_id, session_id, root_id, parent_id, depth, path, agent, label, dialect, key, handle_space, handle_name,
           awaited, brief, accepted_at, format, identity_crc, driver_id, cancelled_at, driver_crc, seq, ended,
           phase, turns, input, output, cached, reasoning, cost, outcome, ended_at, progress_crc
    FROM runs
"""


class SqliteQueries:
    """Queries from any thread, one at a time; each sees everything committed before it."""

    def __init__(self, connection: sqlite3.Connection, path: Path, codec: Codec) -> None:
        self._connection = connection
        self._path = path
        self._codec = codec
        self._inboxes = InboxDecoder(codec)
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
            SELECT runs.seq, events.seq, events.body, events.crc
            FROM runs LEFT JOIN events ON events.run_no = runs.no AND events.seq > ?
            WHERE runs.run_id = ? ORDER BY events.seq
        """
        rows = self._fetch(query, after, run_id)
        if not rows:
            return []
        last = rows[0][0]
        if rows[0][1] is None:
            rows = []
        check_log(run_id, [seq for _, seq, _, _ in rows], after=after, last=last)
        events: list[tuple[int, Event]] = []
        for _, seq, body, crc in rows:
            if not is_intact_event(run_id, seq, body, crc):
                raise damaged_row("events", f"run {run_id}, event {seq}")
            try:
                events.append((seq, self._codec.event(self._load(body))))
            except UnknownFormat as newer:
                raise newer.named(f"event {seq} of run {run_id}") from newer
        return events

    def tasks(self, run_ids: Sequence[RunId]) -> dict[RunId, str]:
        """The tasks of runs; see `core.ports.TasksOf`."""
        tasks: dict[RunId, str] = {}
        for start in range(0, len(run_ids), _IDS_PER_QUERY):
            chosen = run_ids[start : start + _IDS_PER_QUERY]
            query = f"""
                SELECT runs.run_id, events.body, events.crc FROM runs JOIN events ON events.run_no = runs.no
                WHERE events.seq = 1 AND runs.run_id IN ({", ".join("?" * len(chosen))})
            """
            for run_id, body, crc in self._fetch(query, *chosen):
                if is_intact_event(run_id, 1, body, crc):
                    with suppress(UnknownFormat, StoreCorrupt):
                        accepted = self._codec.event(self._load(body))
                        if isinstance(accepted, RunAccepted):
                            tasks[run_id] = accepted.task
        return tasks

    def log_lengths(self, root_id: RunId) -> dict[RunId, int]:
        """The number of the last event of each run of a tree; see `core.ports.LogLengths`."""
        return dict(self._fetch("SELECT run_id, seq FROM runs WHERE root_id = ?", root_id))

    def run_spec(self, digest: str) -> RunSpec:
        return self._codec.run_spec(self._blob(digest))

    def inbox(self, run_id: RunId) -> list[Item]:
        rows = self._fetch(
            """
            SELECT mail.key, mail.body, mail.crc FROM runs JOIN mail ON mail.run_no = runs.no
            WHERE runs.run_id = ? AND mail.body IS NOT NULL ORDER BY mail.id
            """,
            run_id,
        )
        return [item for row in rows if (item := self._item(run_id, *row)) is not None]

    def inbox_for(self, driver_id: DriverId) -> list[tuple[RunId, Item]]:
        rows = self._fetch(
            """
            SELECT runs.run_id, mail.key, mail.body, mail.crc FROM runs JOIN mail ON mail.run_no = runs.no
            WHERE runs.driver_id = ? AND runs.ended = 0 AND mail.body IS NOT NULL ORDER BY runs.no, mail.id
            """,
            driver_id,
        )
        return [(row[0], item) for row in rows if (item := self._item(*row)) is not None]

    def _item(self, run_id: RunId, key: Key, body: bytes, crc: int | None) -> Item | None:
        check_row("mail", f"run {run_id}", crc, (run_id, key, body))
        return self._inboxes.item(run_id, self._load(body))

    def handles(self, session_id: SessionId, space: str) -> list[tuple[str, RunId, Key | None]]:
        # The table is an index by itself, so that damage can hide rows: they are counted by the other index.
        query = """
            SELECT count(*), 0, NULL, NULL, NULL, NULL, NULL, NULL FROM handles INDEXED BY handles_by_name
            WHERE session_id = ? AND space = ?
            UNION ALL SELECT * FROM (
                SELECT NULL, n, session_id, space, name, run_id, retired_by, crc FROM handles NOT INDEXED
                WHERE session_id = ? AND space = ? ORDER BY n
            )
        """
        (count, *_), *rows = self._fetch(query, session_id, space, session_id, space)
        if len(rows) != count:
            raise damaged_row("handles", f"session {session_id}, {space}")
        handles: list[tuple[str, RunId, Key | None]] = []
        for _, n, session, kind, name, run_id, retired_by, crc in rows:
            check_row("handles", f"session {session_id}, {space}", crc, (session, kind, n, name, run_id, retired_by))
            handles.append((name, run_id, retired_by))
        return handles

    def drivers(self) -> list[DriverRow]:
        # Filtered here and not by SQL: a damaged row must not be left out before its checksum is compared.
        columns = "driver_id, host, process, beat, dead, lease"
        rows = self._checked("drivers", f"SELECT {columns}, crc FROM drivers ORDER BY rowid")
        owners = set[DriverId]()
        if any(dead for _, _, _, _, dead, _ in rows):
            owners = {owner for (owner,) in self._fetch("SELECT DISTINCT driver_id FROM runs WHERE ended = 0")}
        return [
            DriverRow(driver_id=driver_id, host=host, process=process, beat=beat, dead=bool(dead), lease=lease)
            for driver_id, host, process, beat, dead, lease in rows
            if not dead or driver_id in owners
        ]

    def session(self, session_id: SessionId) -> SessionRow | None:
        query = "SELECT session_id, created_at, state, crc FROM sessions WHERE session_id = ?"
        rows = self._checked("sessions", query, session_id)
        return _session_row(rows[0]) if rows else None

    def sessions(self) -> list[SessionRow]:
        query = "SELECT session_id, created_at, state, crc FROM sessions ORDER BY created_at, rowid"
        return [_session_row(row) for row in self._checked("sessions", query)]

    def key_value(self, space: str) -> Mapping[str, bytes]:
        query = "SELECT space, name, value, crc FROM shelves WHERE space = ? ORDER BY rowid"
        return {name: value for _, name, value in self._checked("shelves", query, space)}

    def answered(self, key: Key) -> bytes | None:
        rows = self._checked("answers", "SELECT key, answer, crc FROM answers WHERE key = ?", key)
        return rows[0][1] if rows else None

    def charges(self, window: str, since: float) -> list[Charge]:
        columns = "account, at, until, input, output, cost, calls"
        query = f"SELECT {columns}, crc FROM charges WHERE account = ? AND at >= ? ORDER BY at, id"
        return [Charge(*row) for row in self._checked("charges", query, window, since)]

    def _fetch(self, query: str, *values: str | float) -> list[Row]:
        with self._lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise translated_error(self._path, error) from error

    def _checked(self, table: str, query: str, *values: str | float) -> list[Row]:
        """The rows without their last column, which is their checksum; raises `StoreCorrupt` if one does not match."""
        rows: list[Row] = []
        for *row, crc in self._fetch(query, *values):
            check_row(table, str(row[0]), crc, row)
            rows.append(tuple(row))
        return rows

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
        run_id, space, name = row[0], *row[10:12]
        identity_crc, driver_id, cancelled_at, driver_crc, seq, ended = row[16:22]
        *progress, progress_crc = row[22:]
        check_row("runs", f"run {run_id}", identity_crc, row[:16])
        check_row("runs", f"run {run_id}", driver_crc, (run_id, driver_id, cancelled_at))
        check_row("runs", f"run {run_id}", progress_crc, (run_id, ended, *progress))
        phase, turns, input_, output, cached, reasoning, cost, outcome, ended_at = progress
        return RunRow(
            run_id=run_id,
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
            driver_id=driver_id,
            accepted_at=row[14],
            cancelled_at=cancelled_at,
            format=row[15],
            seq=seq,
            progress=Progress(
                phase=phase,
                turns=turns,
                usage=Usage(input_, output, cached, reasoning),
                cost=cost,
                outcome=None if outcome is None else self._codec.outcome_if_known(self._load(outcome)),
                ended_at=ended_at,
            ),
        )


def _conditions(query: RunQuery) -> tuple[str, list[str | int | float]]:
    filters = {
        "session_id = ?": query.session_id,
        "root_id = ?": query.root_id,
        "parent_id = ?": query.parent_id,
        "driver_id = ?": query.driver_id,
        "handle_space = ?": query.handle_space,
        "dialect = ?": query.dialect,
        "phase = ?": query.phase,
        "phase <> ?": query.except_phase,
    }
    conditions = [condition for condition, value in filters.items() if value is not None]
    values: list[str | int | float] = [value for value in filters.values() if value is not None]
    if query.id_part is not None:
        # The inner query reads the index of ids alone: there is no other way to find the end of an id.
        ids = "SELECT no FROM runs WHERE substr(run_id, 1, ?) = ? OR substr(run_id, -?) = ?"
        conditions.append(f"no IN ({ids})")
        values += [len(query.id_part), query.id_part] * 2
    if query.before is not None:
        conditions.append("(accepted_at, run_id) < (?, ?)")
        values += query.before
    if query.run_ids is not None:
        conditions.append("run_id IN (SELECT value FROM json_each(?))")
        values.append(msgspec.json.encode(query.run_ids).decode())
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
    few = query.root_id or query.parent_id or query.driver_id or query.id_part or query.dialect or query.run_ids
    if few or query.unfinished_only or query.undriven_only or query.phase not in (None, "ended"):
        return "+accepted_at DESC, +run_id DESC"
    return "accepted_at DESC, run_id DESC"


def _limit(query: RunQuery) -> str:
    return "" if query.limit is None else " LIMIT ?"


def _session_row(row: Row) -> SessionRow:
    session_id, created_at, state = row
    return SessionRow(session_id=session_id, created_at=created_at, state=state)
