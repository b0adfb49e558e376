"""Event logs of the SQLite store: appends events, updates run rows, stores large bodies as blobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from retinue.core.commands import Progress, Record
from retinue.core.errors import Fenced
from retinue.core.events import Event
from retinue.core.ids import DriverId, RunId
from retinue.core.inbox import Cancel, Item
from retinue.core.run import Outcome
from retinue.core.usage import Usage
from retinue.store import rules
from retinue.store.codec import Codec, blob_name, checked_blob, split_large


class BlobTable:
    """Encodes values and stores large bodies as blobs, inside the caller's transaction."""

    __slots__ = ("_encode", "_execute")

    def __init__(self, connection: sqlite3.Connection, codec: Codec) -> None:
        self._execute = connection.execute
        self._encode = codec.encode

    def store(self, value: Event | Item | Outcome) -> bytes:
        """The bytes to store for a value; a large body is stored as a blob, and the bytes refer to it."""
        body = self._encode(value)
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


INSERT_EVENT: Final = "INSERT INTO events (run_no, seq, body) VALUES (?, ?, ?)"

# One statement checks every condition of a record and updates the row; only a rejection needs further queries.
_IF_NEXT: Final = "WHERE no = ? AND run_id = ? AND driver_id IS ? AND seq = ? AND ended = 0"
_MOVE_SEQ: Final = f"UPDATE runs SET seq = ? {_IF_NEXT}"
_PROGRESS: Final = """
    seq = ?, phase = ?, turns = ?, input = ?, output = ?, cached = ?, reasoning = ?, cost = ?, outcome = ?, ended_at = ?
"""
_MOVE: Final = f"UPDATE runs SET {_PROGRESS} {_IF_NEXT}"
_MOVE_AND_END: Final = f"UPDATE runs SET ended = 1, {_PROGRESS} {_IF_NEXT}"
_END: Final = f"UPDATE runs SET ended = 1, {_PROGRESS} WHERE no = ?"
_MAX_CACHED_NUMBERS: Final = 20_000


class EventLog:
    """Appends to the event logs of runs on one connection, inside the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection, codec: Codec, blobs: BlobTable) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._codec = codec
        self._blobs = blobs
        self._numbers: dict[RunId, int] = {}
        """Cache of the runs' row numbers; statements compare the run id too, so a stale number is noticed."""

    def number(self, run_id: RunId) -> int | None:
        """The row number of a run, by which its events and inbox items are stored."""
        no = self._numbers.get(run_id)
        if no is None and (row := self._execute("SELECT no FROM runs WHERE run_id = ?", (run_id,)).fetchone()):
            if len(self._numbers) >= _MAX_CACHED_NUMBERS:
                self._numbers.clear()
            no = self._numbers[run_id] = int(row[0])
        return no

    def clear_numbers(self) -> None:
        self._numbers.clear()

    def add(self, driver_id: DriverId | None, records: Sequence[Record]) -> None:
        """Append the events of these records and update the rows of their runs; raises for one that does not follow.

        A group commit is mostly two or three successive records of each of many runs, so a row is updated once for all
        records of its run.
        """
        moves: dict[RunId, _Move] = {}
        rows: list[tuple[int | None, int, bytes]] = []
        for record in records:
            move = moves.get(record.run_id)
            if move is not None and not move.is_followed_by(record):
                # It will be rejected, but an error in an earlier record has precedence.
                self._move_rows(driver_id, moves.values())
                move, moves = None, {}
            if move is None:
                move = moves[record.run_id] = _Move(self.number(record.run_id), record)
            move.last = record.seq - 1 + len(record.events)
            move.progress = rules.progress_after(record) or move.progress
            for seq, event in enumerate(record.events, record.seq):
                rows.append((move.no, seq, self._blobs.store(event)))
        self._move_rows(driver_id, moves.values())
        self._executemany(INSERT_EVENT, rows)

    def end(self, no: int, cancel: Cancel, at: float) -> None:
        row = "SELECT seq, turns, input, output, cached, reasoning, cost FROM runs WHERE no = ?"
        seq, turns, input_, output, cached, reasoning, cost = self._execute(row, (no,)).fetchone()
        before = Progress(phase="working", turns=turns, usage=Usage(input_, output, cached, reasoning), cost=cost)
        bodies = self._execute("SELECT body FROM events WHERE run_no = ? ORDER BY seq", (no,)).fetchall()
        events = (self._codec.event(self._blobs.load(body)) for (body,) in bodies)
        end, progress = rules.cancelled_end(before, cancel, at, events)
        self._execute(INSERT_EVENT, (no, seq + 1, self._blobs.store(end)))
        self._execute(_END, (*self._values(seq + 1, progress), no))

    def _move_rows(self, driver_id: DriverId | None, moves: Iterable[_Move]) -> None:
        for move in moves:
            first, progress = move.first, move.progress
            follows = (move.no, first.run_id, driver_id, first.seq - 1)
            if progress is None:
                moved = self._execute(_MOVE_SEQ, (move.last, *follows))
            elif progress.phase == "ended":
                moved = self._execute(_MOVE_AND_END, (*self._values(move.last, progress), *follows))
            else:
                moved = self._execute(_MOVE, (*self._values(move.last, progress), *follows))
            if moved.rowcount != 1:
                raise self._sequence_error(driver_id, first)

    def _values(self, seq: int, progress: Progress) -> tuple[object, ...]:
        usage, outcome = progress.usage, progress.outcome
        return (
            *(seq, progress.phase, progress.turns, usage.input, usage.output, usage.cached, usage.reasoning),
            *(progress.cost, outcome and self._blobs.store(outcome), progress.ended_at),
        )

    def _sequence_error(self, driver_id: DriverId | None, record: Record) -> Exception:
        row = self._execute("SELECT driver_id, seq, ended FROM runs WHERE run_id = ?", (record.run_id,)).fetchone()
        if row is None:
            return rules.sequence_error(record.run_id, given=record.seq, last=None)
        owner, last, ended = row
        if owner != driver_id:
            return Fenced(driver_id or "(none)")
        return rules.sequence_error(record.run_id, given=record.seq, last=last, ended=bool(ended))


class _Move:
    """The combined row update of successive records of one run."""

    __slots__ = ("first", "last", "no", "progress")

    def __init__(self, no: int | None, first: Record) -> None:
        self.no = no
        self.first = first
        self.last = first.seq - 1
        self.progress: Progress | None = None

    def is_followed_by(self, record: Record) -> bool:
        """Whether `record`, of the same run, directly continues this one."""
        ended = self.progress is not None and self.progress.phase == "ended"
        return record.seq == self.last + 1 and not ended
