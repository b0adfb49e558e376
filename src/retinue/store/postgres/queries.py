"""Queries of the PostgreSQL store, on a connection of their own; each sees everything committed before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from retinue.core.agent import RunSpec
from retinue.core.commands import Charge, DriverRow, Progress, RunQuery, RunRow, SessionRow
from retinue.core.errors import StoreCorrupt, UnknownFormat
from retinue.core.events import Event, RunAccepted
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Item
from retinue.core.run import HandleRef
from retinue.core.usage import Usage
from retinue.store.codec import Codec, InboxDecoder, blob_name, checked_blob
from retinue.store.postgres.database import Database, Row

_RUN: Final = """
    SELECT run_id, session_id, root_id, parent_id, depth, path, agent, label, dialect, key, handle_space, handle_name,
           awaited, run_spec, driver_id, accepted_at, cancelled_at, format, seq,
           phase, turns, input, output, cached, reasoning, cost, outcome, ended_at
    FROM runs
"""

_LAST: Final = "\U0010ffff"
"""The last character; ids are compared by bytes."""


class PostgresQueries:
    """Queries from any thread, one at a time."""

    def __init__(self, reader: Database, codec: Codec) -> None:
        self._reader = reader
        self._codec = codec
        self._inboxes = InboxDecoder(codec)

    def read(self, query: str, *values: object) -> list[Row]:
        """The rows of a query."""
        return self._reader.read(query, *values)

    def run(self, run_id: RunId) -> RunRow | None:
        return next(iter(self._run_rows(self.read(f"{_RUN} WHERE run_id = %s", run_id))), None)

    def run_by_key(self, key: Key) -> RunRow | None:
        return next(iter(self._run_rows(self.read(f"{_RUN} WHERE key = %s", key))), None)

    def runs(self, query: RunQuery) -> list[RunRow]:
        where, values = _conditions(query)
        newest_first = f"{_RUN}{where} ORDER BY accepted_at DESC, run_id DESC{_limit(query)}"
        return self._run_rows(self.read(newest_first, *values))

    def count(self, query: RunQuery) -> int:
        where, values = _conditions(query)
        rows = self.read(f"SELECT count(*) FROM (SELECT 1 FROM runs {where}{_limit(query)}) AS matching", *values)
        return int(rows[0][0])

    def events(self, run_id: RunId, after: int = 0) -> list[tuple[int, Event]]:
        query = """
            SELECT runs.seq, events.seq, events.body
            FROM runs LEFT JOIN events ON events.run_no = runs.no AND events.seq > %s
            WHERE runs.run_id = %s ORDER BY events.seq
        """
        rows = self.read(query, after, run_id)
        if not rows:
            return []
        last = rows[0][0]
        found = [(seq, body) for _, seq, body in rows if seq is not None]
        if [seq for seq, _ in found] != list(range(after + 1, last + 1)):
            there = f"{len(found)} of its events after {after}"
            raise StoreCorrupt(
                f"events of run {run_id} are missing or too many: there are {there}, and its last is {last}"
            )
        bodies = self._load([body for _, body in found])
        events: list[tuple[int, Event]] = []
        for (seq, _), body in zip(found, bodies, strict=True):
            try:
                events.append((seq, self._codec.event(body)))
            except UnknownFormat as newer:
                raise newer.named(f"event {seq} of run {run_id}") from newer
        return events

    def tasks(self, run_ids: Sequence[RunId]) -> dict[RunId, str]:
        """The tasks of runs; see `core.ports.TasksOf`."""
        query = """
            SELECT runs.run_id, events.body FROM runs JOIN events ON events.run_no = runs.no
            WHERE events.seq = 1 AND runs.run_id = ANY(%s)
        """
        tasks: dict[RunId, str] = {}
        for run_id, stored in self.read(query, list(run_ids)):
            with suppress(UnknownFormat, StoreCorrupt):
                (body,) = self._load([stored])
                accepted = self._codec.event(body)
                if isinstance(accepted, RunAccepted):
                    tasks[run_id] = accepted.task
        return tasks

    def log_lengths(self, root_id: RunId) -> dict[RunId, int]:
        """The number of the last event of each run of a tree; see `core.ports.LogLengths`."""
        return dict(self.read("SELECT run_id, seq FROM runs WHERE root_id = %s", root_id))

    def run_spec(self, digest: str) -> RunSpec:
        (body,) = self._load([b"@" + digest.encode()])
        return self._codec.run_spec(body)

    def inbox(self, run_id: RunId) -> list[Item]:
        query = """
            SELECT inbox.body FROM runs JOIN inbox ON inbox.run_no = runs.no
            WHERE runs.run_id = %s AND inbox.body IS NOT NULL ORDER BY inbox.id
        """
        bodies = self._load([body for (body,) in self.read(query, run_id)])
        return [item for body in bodies if (item := self._inboxes.item(run_id, body)) is not None]

    def inbox_for(self, driver_id: DriverId) -> list[tuple[RunId, Item]]:
        query = """
            SELECT runs.run_id, inbox.body FROM runs JOIN inbox ON inbox.run_no = runs.no
            WHERE runs.driver_id = %s AND NOT runs.ended AND inbox.body IS NOT NULL ORDER BY runs.no, inbox.id
        """
        rows = self.read(query, driver_id)
        bodies = self._load([body for _, body in rows])
        items = [(run_id, self._inboxes.item(run_id, body)) for (run_id, _), body in zip(rows, bodies, strict=True)]
        return [(run_id, item) for run_id, item in items if item is not None]

    def handles(self, session_id: SessionId, space: str) -> list[tuple[str, RunId, Key | None]]:
        query = "SELECT name, run_id, retired_by FROM handles WHERE session_id = %s AND space = %s ORDER BY n"
        return [(name, run_id, retired_by) for name, run_id, retired_by in self.read(query, session_id, space)]

    def drivers(self) -> list[DriverRow]:
        query = """
            SELECT driver_id, host, process, beat, dead, lease FROM drivers
            WHERE NOT dead OR EXISTS (SELECT 1 FROM runs WHERE runs.driver_id = drivers.driver_id AND NOT ended)
            ORDER BY no
        """
        names = ("driver_id", "host", "process", "beat", "dead", "lease")
        return [DriverRow(**dict(zip(names, row, strict=True))) for row in self.read(query)]

    def session(self, session_id: SessionId) -> SessionRow | None:
        rows = self.read("SELECT session_id, created_at, state FROM sessions WHERE session_id = %s", session_id)
        return _session_row(rows[0]) if rows else None

    def sessions(self) -> list[SessionRow]:
        query = "SELECT session_id, created_at, state FROM sessions ORDER BY created_at, no"
        return [_session_row(row) for row in self.read(query)]

    def key_value(self, space: str) -> Mapping[str, bytes]:
        rows = self.read("SELECT name, value FROM key_values WHERE space = %s ORDER BY no", space)
        return dict(rows)

    def answered(self, key: Key) -> bytes | None:
        rows = self.read("SELECT answer FROM answers WHERE key = %s", key)
        return rows[0][0] if rows else None

    def charges(self, window: str, since: float) -> list[Charge]:
        columns = "account, at, until, input, output, cost, calls"
        query = f"SELECT {columns} FROM charges WHERE account = %s AND at >= %s ORDER BY at, id"
        return [Charge(*row) for row in self.read(query, window, float(since))]

    def _load(self, stored: Iterable[bytes | None]) -> list[bytes]:
        """The bodies that these are or refer to; blobs are read by one query."""
        bodies = [body or b"" for body in stored]
        digests = {digest for body in bodies if (digest := blob_name(body)) is not None}
        if not digests:
            return bodies
        rows = self.read("SELECT digest, body FROM blobs WHERE digest = ANY(%s)", sorted(digests))
        blobs = {digest: checked_blob(digest, body) for digest, body in rows}
        for digest in digests - set(blobs):
            checked_blob(digest, None)
        return [body if (digest := blob_name(body)) is None else blobs[digest] for body in bodies]

    def _run_rows(self, rows: list[Row]) -> list[RunRow]:
        outcomes = iter(self._load([row[26] for row in rows if row[26] is not None]))
        return [self._run_row(row, None if row[26] is None else next(outcomes)) for row in rows]

    def _run_row(self, row: Row, outcome: bytes | None) -> RunRow:
        space, name = row[10:12]
        phase, turns, input_, output, cached, reasoning, cost, _, ended_at = row[19:]
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
            awaited=row[12],
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
                outcome=None if outcome is None else self._codec.outcome_if_known(outcome),
                ended_at=ended_at,
            ),
        )


def _conditions(query: RunQuery) -> tuple[str, list[object]]:
    filters = {
        "session_id = %s": query.session_id,
        "root_id = %s": query.root_id,
        "parent_id = %s": query.parent_id,
        "driver_id = %s": query.driver_id,
        "handle_space = %s": query.handle_space,
        "dialect = %s": query.dialect,
        "phase = %s": query.phase,
        "phase <> %s": query.except_phase,
    }
    conditions = [condition for condition, value in filters.items() if value is not None]
    values: list[object] = [value for value in filters.values() if value is not None]
    if query.id_part is not None:
        # As ranges, for which there are indexes: of the beginning of an id, and of its end.
        beginning, end = query.id_part, query.id_part[::-1]
        conditions.append("(run_id >= %s AND run_id < %s OR reverse(run_id) >= %s AND reverse(run_id) < %s)")
        values += [beginning, beginning + _LAST, end, end + _LAST]
    if query.before is not None:
        conditions.append("(accepted_at, run_id) < (%s, %s)")
        values += query.before
    if query.run_ids is not None:
        conditions.append("run_id = ANY(%s)")
        values.append(list(query.run_ids))
    if query.roots_only:
        conditions.append("parent_id IS NULL")
    if query.unfinished_only or query.phase not in (None, "ended"):
        conditions.append("NOT ended")
    if query.undriven_only:
        conditions.append("driver_id IS NULL")
    if query.limit is not None:
        values.append(query.limit)
    return f"WHERE {' AND '.join(conditions)}" if conditions else "", values


def _limit(query: RunQuery) -> str:
    return "" if query.limit is None else " LIMIT %s"


def _session_row(row: Row) -> SessionRow:
    session_id, created_at, state = row
    return SessionRow(session_id=session_id, created_at=created_at, state=state)
