"""Writes of the SQLite store, events, blobs and pruning included: each is checked and applied in one transaction.

The SQL statements are constants, so that SQLite's statement cache finds them again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import chain, groupby
from math import nan
from types import MappingProxyType
from typing import Any, Final, assert_never, cast

from msgspec import Struct
from msgspec.structs import replace

from retinue.core import commands
from retinue.core.checksum import check_row, checksum, damaged_row, event_checksum, is_intact_event
from retinue.core.commands import Progress, Record
from retinue.core.errors import Fenced
from retinue.core.events import Event, RunAccepted, RunLeft
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Cancel, Item
from retinue.core.run import HandleRef, Outcome
from retinue.core.text import utf8_safe
from retinue.core.usage import Usage
from retinue.store import rules
from retinue.store.codec import BLOB_THRESHOLD, Codec, blob_name, checked_blob, split_large


class BlobTable:
    """Encodes values and stores large bodies as blobs, inside the caller's transaction."""

    __slots__ = ("_encode", "_execute")

    def __init__(self, connection: sqlite3.Connection, codec: Codec) -> None:
        self._execute = connection.execute
        self._encode = codec.encode

    def store(self, value: Event | Item | Outcome) -> bytes:
        """The bytes to store for a value; a large body is stored as a blob, and the bytes refer to it."""
        body = self._encode(value)
        if len(body) < BLOB_THRESHOLD:
            return body
        stored, digest = split_large(body)
        if digest is not None:
            self.put_blob(digest, body)
        return stored

    def put_blob(self, digest: str, body: bytes) -> None:
        self._execute("INSERT OR IGNORE INTO blobs (digest, body) VALUES (?, ?)", (digest, body))

    def load(self, stored: bytes) -> bytes:
        """The body that `stored` is or refers to."""
        digest = blob_name(stored)
        if digest is None:
            return stored
        row = self._execute("SELECT body FROM blobs WHERE digest = ?", (digest,)).fetchone()
        return checked_blob(digest, row[0] if row else None)


INSERT_EVENT: Final = "INSERT INTO events (run_no, seq, body, crc) VALUES (?, ?, ?, ?)"
_GROUP: Final = 20
# A failure ends the transaction, so `OR FAIL` takes nothing from it, and SQLite need not prepare to undo the statement.
_INSERT_GROUP: Final = (
    f"INSERT OR FAIL INTO events (run_no, seq, body, crc) VALUES {', '.join(['(?, ?, ?, ?)'] * _GROUP)}"
)
"""Adds so many events at once: the statement is begun, and its tables are opened, once for all of them."""

_NULL: Final = nan
"""SQLite stores it as NULL. The module sqlite3 looks for an adapter of None, which takes as long as ten numbers."""

# One statement checks every condition of a record and updates the row; only a rejection needs further queries.
_IF_NEXT: Final = "WHERE no = ? AND run_id = ? AND driver_id IS ? AND seq = ? AND ended = 0"
_MOVE_SEQ: Final = f"UPDATE runs SET seq = ? {_IF_NEXT}"
_COUNTS: Final = "seq = ?, phase = ?, turns = ?, input = ?, output = ?, cached = ?, reasoning = ?, cost = ?"
_PROGRESS: Final = f"{_COUNTS}, outcome = ?, ended_at = ?, progress_crc = ?"
# A run that has not ended has no outcome.
_MOVE: Final = f"UPDATE runs SET {_COUNTS}, progress_crc = ? {_IF_NEXT}"
_MOVE_TO_OUTCOME: Final = f"UPDATE runs SET ended = ?, {_PROGRESS} {_IF_NEXT}"
_END: Final = f"UPDATE runs SET ended = 1, {_PROGRESS} WHERE no = ?"
_MAX_CACHED_NUMBERS: Final = 20_000


def _bound(values: Iterable[object]) -> list[object]:
    """The same values for the module sqlite3, without those for which it looks for an adapter: None and bytes.

    The search takes longer than a copy of the bytes.

    >>> _bound(["a", 1, b"b", None])
    ['a', 1, bytearray(b'b'), nan]
    """
    return [_NULL if value is None else bytearray(value) if type(value) is bytes else value for value in values]


class EventLog:
    """Appends to the event logs of runs on one connection, inside the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection, codec: Codec, blobs: BlobTable) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany
        # One cursor for all updates: `connection.execute` makes one for each.
        self._update = connection.cursor().execute
        self._codec = codec
        self._blobs = blobs
        self._numbers: dict[RunId, int] = {}
        """Cache of the runs' row numbers; statements compare the run id too, so a stale number is noticed."""

    def number(self, run_id: RunId) -> int | None:
        """The row number of a run, by which its events and inbox items are stored."""
        no = self._numbers.get(run_id)
        if no is None and (row := self._execute("SELECT no FROM runs WHERE run_id = ?", (run_id,)).fetchone()):
            no = int(row[0])
            self.keep_number(run_id, no)
        return no

    def keep_number(self, run_id: RunId, no: int) -> None:
        if len(self._numbers) >= _MAX_CACHED_NUMBERS:
            self._numbers.clear()
        self._numbers[run_id] = no

    def clear_numbers(self) -> None:
        self._numbers.clear()

    def add(self, driver_id: DriverId | None, records: Sequence[Record]) -> None:
        """Append the events of these records and update the rows of their runs; raises for one that does not follow.

        A group commit is mostly two or three successive records of each of many runs, so a row is updated once for all
        records of its run.
        """
        store = self._blobs.store
        moves: dict[RunId, _Move] = {}
        rows: list[tuple[int | None, int, bytearray, int]] = []
        for record in records:
            move = moves.get(record.run_id)
            if move is not None and not move.is_followed_by(record):
                # It will be rejected, but an error in an earlier record has precedence.
                self._move_rows(driver_id, moves.values())
                move, moves = None, {}
            if move is None:
                move = moves[record.run_id] = _Move(self.number(record.run_id), record, record.seq - 1)
            move.progress = rules.progress_after(record) or move.progress
            for seq, event in enumerate(record.events, record.seq):
                body = store(event)
                rows.append((move.no, seq, bytearray(body), event_checksum(record.run_id, seq, body)))
                move.last = seq
        self._move_rows(driver_id, moves.values())
        grouped = len(rows) - len(rows) % _GROUP
        for start in range(0, grouped, _GROUP):
            self._update(_INSERT_GROUP, [*chain.from_iterable(rows[start : start + _GROUP])])
        self._executemany(INSERT_EVENT, rows[grouped:])

    def insert(self, no: int, run_id: RunId, seq: int, body: bytes) -> None:
        """Add one event, as it is stored, to a run whose row says so already."""
        self._update(INSERT_EVENT, (no, seq, bytearray(body), event_checksum(run_id, seq, body)))

    def end(self, no: int, cancel: Cancel, at: float) -> None:
        row = "SELECT run_id, seq, turns, input, output, cached, reasoning, cost FROM runs WHERE no = ?"
        run_id, seq, turns, input_, output, cached, reasoning, cost = self._execute(row, (no,)).fetchone()
        before = Progress(phase="working", turns=turns, usage=Usage(input_, output, cached, reasoning), cost=cost)
        rows = self._execute("SELECT seq, body, crc FROM events WHERE run_no = ? ORDER BY seq", (no,)).fetchall()
        if not all(is_intact_event(run_id, n, body, crc) for n, body, crc in rows):
            raise damaged_row("events", f"run {run_id}")
        known = (self._codec.event_if_known(self._blobs.load(body)) for _, body, _ in rows)
        events = (event for event in known if event is not None)
        end, progress = rules.cancelled_end(before, cancel, at, events)
        body = self._blobs.store(end)
        self.insert(no, run_id, seq + 1, body)
        self._execute(_END, (*self._values(run_id, seq + 1, progress), no))

    def _move_rows(self, driver_id: DriverId | None, moves: Iterable[_Move]) -> None:
        for move in moves:
            statement, values = self._update_of(move)
            first = move.first
            if self._update(statement, (*values, move.no, first.run_id, driver_id, first.seq - 1)).rowcount != 1:
                raise self._sequence_error(driver_id, first)

    def _update_of(self, move: _Move) -> tuple[str, tuple[object, ...]]:
        """The statement that updates the row of a run, and its values but for the conditions."""
        progress = move.progress
        if progress is None:
            return _MOVE_SEQ, (move.last,)
        run_id, phase = move.first.run_id, progress.phase
        if phase == "ended" or progress.outcome is not None or progress.ended_at is not None:
            return _MOVE_TO_OUTCOME, (int(phase == "ended"), *self._values(run_id, move.last, progress))
        usage = progress.usage
        counts = (phase, progress.turns, usage.input, usage.output, usage.cached, usage.reasoning)
        cost = progress.cost
        crc = checksum(run_id, 0, *counts, cost, None, None)
        return _MOVE, (move.last, *counts, _NULL if cost is None else cost, crc)

    def _values(self, run_id: RunId, seq: int, progress: Progress) -> tuple[object, ...]:
        usage, outcome, ended_at = progress.usage, progress.outcome, progress.ended_at
        values = (
            *(progress.phase, progress.turns, usage.input, usage.output, usage.cached, usage.reasoning, progress.cost),
            *(outcome and self._blobs.store(outcome), None if ended_at is None else float(ended_at)),
        )
        return (seq, *_bound(values), checksum(run_id, int(progress.phase == "ended"), *values))

    def _sequence_error(self, driver_id: DriverId | None, record: Record) -> Exception:
        row = self._execute("SELECT driver_id, seq, ended FROM runs WHERE run_id = ?", (record.run_id,)).fetchone()
        if row is None:
            return rules.sequence_error(record.run_id, given=record.seq, last=None)
        owner, last, ended = row
        if owner != driver_id:
            return Fenced(driver_id or "(none)")
        return rules.sequence_error(record.run_id, given=record.seq, last=last, ended=bool(ended))


class _Move(Struct):
    """The combined row update of successive records of one run."""

    no: int | None
    first: Record
    last: int
    progress: Progress | None = None

    def is_followed_by(self, record: Record) -> bool:
        """Whether `record`, of the same run, directly continues this one."""
        ended = self.progress is not None and self.progress.phase == "ended"
        return record.seq == self.last + 1 and not ended


_INSERT_RUN: Final = """
    INSERT INTO runs (run_id, session_id, root_id, parent_id, depth, path, agent, label, dialect, key,
                      handle_space, handle_name, awaited, brief, accepted_at, format, identity_crc,
                      driver_id, driver_crc, phase, progress_crc, seq)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)
"""
_INITIAL: Final = (0, 0, 0, 0, 0, 0, None, None)
"""The columns of a new run's progress from `turns` to `ended_at`, as the table declares their defaults."""
_COUNT_RUNNING: Final = """
    SELECT count(*) FROM runs
    WHERE session_id = ? AND handle_space = ? AND ended = 0 AND phase != 'pending'
        AND (driver_id IS NOT NULL OR phase = 'placed')
"""
_COUNT_IN_TREE: Final = """
    SELECT count(*) FROM runs
    WHERE root_id = ? AND dialect = ? AND parent_id IS NOT NULL AND (ended = 0 OR ?)
"""
_REFUSING_ANCESTOR: Final = """
    WITH RECURSIVE above (run_id, parent_id, cancelled_at, ended, level) AS (
        SELECT run_id, parent_id, cancelled_at, ended, 0 FROM runs WHERE run_id = ?
        UNION ALL
        SELECT runs.run_id, runs.parent_id, runs.cancelled_at, runs.ended, level + 1
        FROM above JOIN runs ON runs.run_id = above.parent_id
    )
    SELECT run_id FROM above WHERE cancelled_at IS NOT NULL OR (level = 0 AND ended) ORDER BY level LIMIT 1
"""
_POST: Final = """
    INSERT OR IGNORE INTO mail (run_no, key, body, crc) SELECT no, ?, ?, ? FROM runs WHERE run_id = ? AND ended = 0
"""
_TREE_TO_CANCEL: Final = """
    WITH RECURSIVE tree (no, run_id, level) AS (
        SELECT no, run_id, 0 FROM runs WHERE run_id = ?
        UNION ALL
        SELECT runs.no, runs.run_id, level + 1 FROM tree JOIN runs ON runs.parent_id = tree.run_id
    )
    SELECT runs.no, runs.run_id, runs.driver_id FROM tree JOIN runs USING (no)
    WHERE runs.ended = 0 AND runs.cancelled_at IS NULL ORDER BY level, no
"""
_REGISTER_DRIVER: Final = """
    INSERT INTO drivers (driver_id, host, process, beat, dead, lease, crc) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (driver_id) DO UPDATE
    SET host = excluded.host, process = excluded.process, beat = excluded.beat, dead = excluded.dead,
        lease = excluded.lease, crc = excluded.crc
"""
_BEAT: Final = """
    UPDATE drivers SET beat = beat + 1, crc = checksum(driver_id, host, process, beat + 1, dead, lease)
    WHERE driver_id = ?
"""
_DIE: Final = """
    UPDATE drivers SET dead = 1, crc = checksum(driver_id, host, process, beat, 1, lease) WHERE driver_id = ?
"""
_ADOPT: Final = """
    UPDATE runs SET driver_id = ?, driver_crc = checksum(run_id, ?, cancelled_at)
    WHERE run_id = ? AND driver_id IS NULL AND ended = 0 AND cancelled_at IS NULL
"""
_TREES_AT_WORK: Final = """
    SELECT count(*) FROM runs
    WHERE parent_id IS NULL AND driver_id IS NOT NULL AND ended = 0 AND phase NOT IN ('parked', 'idle')
"""
_RELEASE: Final = """
    UPDATE runs SET driver_id = NULL, driver_crc = checksum(run_id, NULL, cancelled_at)
    WHERE driver_id = ? AND ended = 0
"""
_CANCELLED_RUNS: Final = """
    SELECT no, run_id, cancelled_at FROM runs WHERE driver_id = ? AND ended = 0 AND cancelled_at IS NOT NULL
"""
_CANCEL: Final = "UPDATE runs SET cancelled_at = ?, driver_crc = checksum(run_id, driver_id, ?) WHERE no = ?"
_NAME: Final = """
    INSERT INTO handles (session_id, space, n, name, run_id, crc)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (session_id, space, name) DO UPDATE
    SET run_id = excluded.run_id, crc = checksum(session_id, space, n, name, excluded.run_id, retired_by)
"""
_RETIRE: Final = """
    UPDATE handles SET retired_by = ?, crc = checksum(session_id, space, n, name, run_id, ?)
    WHERE session_id = ? AND space = ? AND name = ?
"""
_ARCHIVE: Final = """
    UPDATE sessions SET state = 'archived', crc = checksum(session_id, created_at, 'archived') WHERE session_id = ?
"""
_OPEN_SESSION: Final = "INSERT OR IGNORE INTO sessions (session_id, created_at, state, crc) VALUES (?, ?, 'open', ?)"
_PUT: Final = """
    INSERT INTO shelves (space, name, value, crc) VALUES (?, ?, ?, ?)
    ON CONFLICT (space, name) DO UPDATE SET value = excluded.value, crc = excluded.crc
"""
_CHARGED: Final = """
    SELECT coalesce(sum(input), 0), coalesce(sum(output), 0), coalesce(sum(cost), 0), coalesce(sum(calls), 0)
    FROM charges WHERE account = ? AND at > ?
"""
_CHARGE: Final = """
    INSERT INTO charges (account, at, until, input, output, cost, calls, crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""


def _only_appends(write: commands.Write) -> bool:
    return type(write) is commands.Record and not (write.taken or write.posts or write.charges)


class SqliteCommands:
    """Applies writes on one connection; the caller manages transactions and calls `rolled_back` after a rollback."""

    def __init__(self, connection: sqlite3.Connection, codec: Codec) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._codec = codec
        self._blobs = BlobTable(connection, codec)
        self._event_log = EventLog(connection, codec, self._blobs)
        self._admitted: set[tuple[SessionId, RunId | None, str]] = set()
        """Session, parent and run spec of the runs that the last writes of this transaction have accepted."""
        connection.create_function("checksum", -1, checksum, deterministic=True)  # for SQL

    def rolled_back(self) -> None:
        """Discard cached row numbers, which may be those of rolled-back runs."""
        self._event_log.clear_numbers()

    def is_alive(self, driver_id: DriverId) -> bool:
        return self._one("SELECT 1 FROM drivers WHERE driver_id = ? AND dead = 0", driver_id) is not None

    def write_all(self, driver_id: DriverId | None, writes: Sequence[commands.Write]) -> list[commands.WriteResult]:
        self._admitted.clear()
        if len(writes) == 1:
            return [self.write(driver_id, writes[0])]
        results: list[commands.WriteResult] = []
        for only_events, group in groupby(writes, _only_appends):
            if only_events:
                results.extend(self._append(driver_id, cast("Iterable[commands.Record]", group)))
            else:
                results.extend(self.write(driver_id, write) for write in group)
        return results

    def _append(self, driver_id: DriverId | None, records: Iterable[commands.Record]) -> list[commands.WriteResult]:
        """Add the events of records that change no other table, but for those whose run has unread items."""
        self._admitted.clear()
        appended: list[commands.Record] = []
        results: list[commands.WriteResult] = []
        for record in records:
            unread = record.known is not None and self._unread(self._event_log.number(record.run_id), {*record.known})
            if unread:
                results.append(commands.Unread(unread))
            else:
                results.append(None)
                appended.append(record)
        self._event_log.add(driver_id, appended)
        return results

    def write(self, driver_id: DriverId | None, write: commands.Write) -> commands.WriteResult:
        if type(write) is not commands.Accept:
            self._admitted.clear()
        match write:
            case commands.Record():
                return self._record(driver_id, write)
            case commands.Accept():
                return self._accept(write)
            case commands.Post():
                return self._post(write.run_id, write.item)
            case commands.CancelTree():
                return self._cancel(write)
            case commands.Retire():
                return self._retire(write)
            case commands.Change():
                return self._change(write)
            case commands.RegisterDriver(driver=driver):
                dead, lease = int(driver.dead), float(driver.lease)
                values = (driver.driver_id, driver.host, driver.process, driver.beat, dead, lease)
                self._execute(_REGISTER_DRIVER, (*values, checksum(*values)))
            case commands.Heartbeat():
                self._execute(_BEAT, (write.driver_id,))
            case commands.DeclareDead():
                return self._declare_dead(write)
            case commands.Adopt():
                return self._adopt(write)
            case commands.UnregisterDriver():
                self._execute("DELETE FROM drivers WHERE driver_id = ?", (write.driver_id,))
                self._release_runs(write.driver_id)
            case commands.OpenSession():
                created = (write.session_id, float(write.at))
                return self._execute(_OPEN_SESSION, (*created, checksum(*created, "open"))).rowcount == 1
            case commands.CloseSession():
                return self._close(write)
            case commands.Prune():
                self._event_log.clear_numbers()
                return prune(self._execute, self._codec, write.before)
            case commands.Forget():
                return forget(self._execute, write.root_id, write.dialect)
            case _:
                assert_never(write)
        return None

    def _one(self, question: str, *values: object) -> tuple[Any, ...] | None:
        return self._execute(question, values).fetchone()

    def _accept(self, write: commands.Accept) -> commands.Accepted | commands.NotCreated:
        accepted = write.accepted
        if accepted.key is not None and (before := self._by_key(accepted.key)):
            return before
        # A reply may start a hundred runs: what was found for the first holds for the others, until something else is
        # written.
        alike = (accepted.session_id, accepted.parent_id, accepted.run_spec)
        is_first = alike not in self._admitted
        if refusal := (self._rejection(accepted) if is_first else None) or self._too_many(write):
            return refusal
        if is_first:
            if not self._one("SELECT 1 FROM blobs WHERE digest = ?", accepted.run_spec):
                rules.check_run_spec(write)
                self._blobs.put_blob(accepted.run_spec, self._codec.encode(write.run_spec))
            self._admitted.add(alike)
        if handle := self._handle(write):
            accepted = replace(accepted, handle=handle)
        run_id, phase = accepted.run_id, rules.initial_progress(accepted, write.driver_id).phase
        identity = (
            *(run_id, accepted.session_id, accepted.root_id, accepted.parent_id, accepted.depth),
            *map(utf8_safe, (accepted.path, accepted.agent, accepted.label)),
            *(accepted.dialect, accepted.key, handle and handle.space, handle and handle.name),
            *(int(accepted.lifecycle.awaited), accepted.run_spec, float(accepted.at), accepted.format),
        )
        values = (
            *(*identity, checksum(*identity), write.driver_id, checksum(run_id, write.driver_id, None)),
            *(phase, checksum(run_id, 0, phase, *_INITIAL)),
        )
        try:
            no = self._execute(_INSERT_RUN, _bound(values)).lastrowid
        except sqlite3.IntegrityError as error:
            if self._one("SELECT 1 FROM runs WHERE run_id = ?", run_id) is None:
                raise
            raise rules.duplicate_run(run_id) from error
        assert no is not None
        self._event_log.keep_number(run_id, no)
        body = self._blobs.store(accepted)
        self._event_log.insert(no, run_id, 1, body)
        return commands.Accepted(accepted.run_id, handle)

    def _by_key(self, key: Key) -> commands.Accepted | None:
        row = self._one("SELECT run_id, handle_space, handle_name FROM runs WHERE key = ?", key)
        if row is None:
            return None
        run_id, space, name = row
        return commands.Accepted(run_id, None if space is None else HandleRef(space, name), existed=True)

    def _rejection(self, accepted: RunAccepted) -> commands.NotCreated | None:
        match self._session_state(accepted.session_id):
            case None:
                return commands.NotCreated("session_unknown", accepted.session_id)
            case "archived" if accepted.parent_id is not None:
                return commands.NotCreated("session_archived", accepted.session_id)
            case _:
                pass
        if accepted.parent_id is None:
            return None
        ancestor = self._one(_REFUSING_ANCESTOR, accepted.parent_id)
        return commands.NotCreated("cancelled", ancestor[0]) if ancestor else None

    def _too_many(self, write: commands.Accept) -> commands.NotCreated | None:
        if write.limit is not None and (counted := self._count(write.limit)) >= write.limit.runs:
            return commands.NotCreated("too_many", str(counted))
        if write.max_running is None:
            return None
        row = self._one(_COUNT_RUNNING, write.accepted.session_id, write.handle_space)
        running = row[0] if row else 0
        return commands.NotCreated("too_many", str(running)) if running >= write.max_running else None

    def _count(self, limit: commands.RunLimit) -> int:
        of_each = (limit.dialect, limit.with_ended)
        counts = (self._execute(_COUNT_IN_TREE, (root_id, *of_each)).fetchone() for root_id in limit.root_ids)
        return sum(count for (count,) in counts)

    def _handle(self, write: commands.Accept) -> HandleRef | None:
        """The next handle of the space, or the one that the run brings along, which then refers to it."""
        session_id, handle = write.accepted.session_id, write.accepted.handle
        if write.handle_space is not None:
            n = self._next_n(session_id, write.handle_space)
            handle = HandleRef(write.handle_space, write.handle_format.format(n))
        elif handle is not None:
            n = self._next_n(session_id, handle.space)
        else:
            return None
        values = (session_id, handle.space, n, handle.name, write.accepted.run_id)
        self._execute(_NAME, (*values, checksum(*values, None)))
        return handle

    def _next_n(self, session_id: SessionId, space: str) -> int:
        row = self._one("SELECT max(n) FROM handles WHERE session_id = ? AND space = ?", session_id, space)
        return 1 if row is None or row[0] is None else row[0] + 1

    def _record(self, driver_id: DriverId | None, write: commands.Record) -> commands.Unread | None:
        no = self._event_log.number(write.run_id)
        if write.known is not None and (unread := self._unread(no, {*write.known, *write.taken})):
            return commands.Unread(unread)
        self._event_log.add(driver_id, (write,))
        for key in write.taken:
            taken = (checksum(write.run_id, key, None), no, key)
            self._execute("UPDATE mail SET body = NULL, crc = ? WHERE run_no = ? AND key = ?", taken)
        for other, item in write.posts:
            self._execute(_POST, self._posted(other, item))
        self._charge(write.charges)
        return None

    def _unread(self, no: int | None, known: Set[Key]) -> tuple[Item, ...]:
        untaken = "SELECT key, body FROM mail WHERE run_no = ? AND body IS NOT NULL ORDER BY id"
        rows = self._execute(untaken, (no,)).fetchall()
        items = (self._codec.item_if_known(self._blobs.load(body)) for key, body in rows if key not in known)
        return tuple(item for item in items if item is not None)

    def _charge(self, charges: Sequence[commands.Charge]) -> None:
        for charge in charges:
            period = (charge.window, float(charge.at), float(charge.until))
            values = (*period, charge.input, charge.output, charge.cost, charge.calls)
            self._execute(_CHARGE, (*values, checksum(*values)))

    def _post(self, run_id: RunId, item: Item) -> commands.Posted:
        if self._execute(_POST, self._posted(run_id, item)).rowcount == 1:
            return "posted"
        known = "SELECT EXISTS (SELECT 1 FROM mail WHERE run_no = runs.no AND key = ?) FROM runs WHERE run_id = ?"
        row = self._one(known, item.key, run_id)
        if row is None:
            return "unknown"
        return "duplicate" if row[0] else "ended"

    def _posted(self, run_id: RunId, item: Item) -> tuple[Key, bytes, int, RunId]:
        body = self._blobs.store(item)
        return item.key, body, checksum(run_id, item.key, body), run_id

    def _cancel(self, write: commands.CancelTree) -> tuple[RunId, ...] | None:
        if not self._one("SELECT 1 FROM runs WHERE run_id = ?", write.run_id):
            return None
        fresh = self._execute(_TREE_TO_CANCEL, (write.run_id,)).fetchall()
        at = float(write.at)
        self._executemany(_CANCEL, [(at, at, no) for no, _, _ in fresh])
        live = [self._posted(run_id, write.item) for _, run_id, driver_id in fresh if driver_id is not None]
        self._executemany(_POST, live)
        for no, _, driver_id in fresh:
            if driver_id is None:
                self._event_log.end(no, write.item, write.at)
        return tuple(run_id for _, run_id, _ in fresh)

    def _declare_dead(self, write: commands.DeclareDead) -> bool:
        row = self._one("SELECT beat, dead FROM drivers WHERE driver_id = ?", write.driver_id)
        if row is not None:
            beat, dead = row
            if not dead and write.beat is not None and write.beat != beat:
                return False
            self._execute(_DIE, (write.driver_id,))
        if write.left_at is not None:
            self._leave_runs(write.driver_id, RunLeft(at=write.left_at))
        self._release_runs(write.driver_id)
        return True

    def _leave_runs(self, driver_id: DriverId, left: RunLeft) -> None:
        unfinished = "SELECT run_id, seq FROM runs WHERE driver_id = ? AND ended = 0 ORDER BY no"
        rows = self._execute(unfinished, (driver_id,)).fetchall()
        self._event_log.add(driver_id, [Record(run_id=run_id, seq=seq + 1, events=(left,)) for run_id, seq in rows])

    def _release_runs(self, driver_id: DriverId) -> None:
        """Remove the driver from its unfinished runs, and end those that are cancelled: no driver will."""
        cancelled = self._execute(_CANCELLED_RUNS, (driver_id,)).fetchall()
        self._execute(_RELEASE, (driver_id,))
        for no, run_id, at in cancelled:
            untaken = "SELECT key, body, crc FROM mail WHERE run_no = ? AND body IS NOT NULL ORDER BY id"
            items: list[Item] = []
            for key, body, crc in self._execute(untaken, (no,)).fetchall():
                check_row("mail", f"run {run_id}", crc, (run_id, key, body))
                item = self._codec.item_if_known(self._blobs.load(body))
                items += () if item is None else (item,)
            self._event_log.end(no, rules.pending_cancel(items), at)

    def _adopt(self, write: commands.Adopt) -> tuple[RunId, ...]:
        if not self.is_alive(write.driver_id):
            return ()
        if write.max_trees is not None and self._execute(_TREES_AT_WORK).fetchone()[0] >= write.max_trees:
            return ()
        driver_id = write.driver_id
        return tuple(
            run_id for run_id in write.run_ids if self._execute(_ADOPT, (driver_id, driver_id, run_id)).rowcount == 1
        )

    def _session_state(self, session_id: SessionId) -> str | None:
        row = self._one("SELECT created_at, state, crc FROM sessions WHERE session_id = ?", session_id)
        if row is None:
            return None
        created_at, state, crc = row
        check_row("sessions", f"session {session_id}", crc, (session_id, created_at, state))
        return state

    def _close(self, write: commands.CloseSession) -> bool:
        session_id = write.session_id
        if write.how == "archive":
            return self._execute(_ARCHIVE, (session_id,)).rowcount == 1
        if self._execute("DELETE FROM sessions WHERE session_id = ?", (session_id,)).rowcount == 0:
            return False
        self._execute("DELETE FROM handles WHERE session_id = ?", (session_id,))
        spaces = self._execute("SELECT DISTINCT space FROM shelves").fetchall()
        for (space,) in spaces:
            if rules.is_of_session(space, session_id):
                self._execute("DELETE FROM shelves WHERE space = ?", (space,))
        return True

    def _retire(self, write: commands.Retire) -> RunId | None:
        place = (write.session_id, write.space, write.name)
        row = self._one(
            "SELECT run_id, retired_by FROM handles WHERE session_id = ? AND space = ? AND name = ?", *place
        )
        if row is None or row[1] not in (None, write.key):
            return None
        self._execute(_RETIRE, (write.key, write.key, *place))
        return row[0]

    def _charged(self, window: str, after: float) -> rules.Charged:
        row = self._one(_CHARGED, window, after)
        return rules.Charged(*(row or (0, 0, 0, 0)))

    def _change(self, write: commands.Change) -> bytes | commands.NamespaceClosed | commands.WindowFull:
        if write.key is not None and (before := self._one("SELECT answer, crc FROM answers WHERE key = ?", write.key)):
            answer, crc = before
            check_row("answers", f"key {write.key}", crc, (write.key, answer))
            return answer
        if write.session_id is not None:
            state = self._session_state(write.session_id)
            if state != "open":
                return commands.NamespaceClosed("session_unknown" if state is None else "session_archived")
        key_value: dict[str, bytes] = {}
        query = "SELECT name, value, crc FROM shelves WHERE space = ? ORDER BY rowid"
        for name, value, crc in self._execute(query, (write.space,)).fetchall():
            check_row("shelves", f"{write.space}, {name}", crc, (write.space, name, value))
            key_value[name] = value
        decision = write.decide(MappingProxyType(key_value))
        if full := rules.full_window(decision, self._charged):
            return full
        drops = [(write.space, name) for name in decision.drops]
        self._executemany("DELETE FROM shelves WHERE space = ? AND name = ?", drops)
        puts = [(write.space, name, bytes(value)) for name, value in decision.puts.items()]
        self._executemany(_PUT, [(*put, checksum(*put)) for put in puts])
        self._charge(decision.charges)
        if write.key is not None:
            answered = (write.key, bytes(decision.answer))
            self._execute("INSERT INTO answers (key, answer, crc) VALUES (?, ?, ?)", (*answered, checksum(*answered)))
        return decision.answer


_FIRST_EVENTS = """
    SELECT runs.run_id, events.body, blobs.body FROM runs JOIN events ON events.run_no = runs.no AND events.seq = 1
    LEFT JOIN blobs ON blobs.digest = CAST(substr(events.body, 2) AS TEXT)
"""
REFERENCES = """
    SELECT brief FROM runs
    UNION SELECT CAST(substr(body, 2) AS TEXT) FROM events WHERE substr(body, 1, 1) = x'40'
    UNION SELECT CAST(substr(body, 2) AS TEXT) FROM mail WHERE substr(body, 1, 1) = x'40'
    UNION SELECT CAST(substr(outcome, 2) AS TEXT) FROM runs WHERE substr(outcome, 1, 1) = x'40'
"""
"""All blobs that are still referenced; a reference begins with `@` (0x40)."""
_TO_FORGET = "SELECT no FROM runs WHERE root_id = ? AND dialect = ? AND parent_id IS NOT NULL AND seq > 0"
IDLE_DEAD_DRIVERS = """
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
    do(f"DELETE FROM blobs WHERE digest NOT IN ({REFERENCES})")
    do("DELETE FROM charges WHERE until < ?", (before,))
    do(IDLE_DEAD_DRIVERS)
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
        needed = {digest for (digest,) in do(REFERENCES).fetchall()}
        for digest in blobs - needed:
            do("DELETE FROM blobs WHERE digest = ?", (digest,))
    return len(runs)


def _inherited_runs(do: Callable[..., sqlite3.Cursor], codec: Codec) -> dict[str, str]:
    origins: dict[str, str] = {}
    for run_id, body, blob in do(_FIRST_EVENTS).fetchall():
        digest = blob_name(body)
        accepted = codec.event(body if digest is None else checked_blob(digest, blob))
        if isinstance(accepted, RunAccepted) and accepted.inherits is not None:
            origins[run_id] = accepted.inherits.run_id
    return origins
