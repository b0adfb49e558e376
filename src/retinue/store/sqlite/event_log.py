"""How a SQLite store adds to the logs of runs, and moves their rows along."""

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


class Bodies:
    """Bodies on one connection, inside the transaction of whoever calls."""

    __slots__ = ("_do", "_encode")

    def __init__(self, connection: sqlite3.Connection, codec: Codec) -> None:
        self._do = connection.execute
        self._encode = codec.encode

    def of(self, value: Event | Item | Outcome) -> bytes:
        """What stands for a value; a large one is stored with this."""
        body = self._encode(value)
        stored, digest = split_large(body)
        if digest is not None:
            self.keep(digest, body)
        return stored

    def keep(self, digest: str, body: bytes) -> None:
        """Store a blob, if it is not there."""
        self._do("INSERT OR IGNORE INTO blobs (digest, body) VALUES (?, ?)", (digest, body))

    def whole(self, stored: bytes) -> bytes:
        """The bytes of a value, whatever stands for it."""
        digest = blob_name(stored)
        if digest is None:
            return stored
        row = self._do("SELECT body FROM blobs WHERE digest = ?", (digest,)).fetchone()
        return checked_blob(digest, row[0] if row else None)


INSERT_EVENT: Final = "INSERT INTO events (run_no, seq, body) VALUES (?, ?, ?)"

# One statement checks all that a record depends on and moves the row; only a refusal has to ask why.
_IF_IT_FOLLOWS: Final = "WHERE no = ? AND run_id = ? AND driver_id IS ? AND seq = ? AND ended = 0"
_MOVE_SEQ: Final = f"UPDATE runs SET seq = ? {_IF_IT_FOLLOWS}"
_PROGRESS: Final = """
    seq = ?, phase = ?, turns = ?, input = ?, output = ?, cached = ?, reasoning = ?, cost = ?, outcome = ?, ended_at = ?
"""
_MOVE: Final = f"UPDATE runs SET {_PROGRESS} {_IF_IT_FOLLOWS}"
_MOVE_TO_THE_END: Final = f"UPDATE runs SET ended = 1, {_PROGRESS} {_IF_IT_FOLLOWS}"
_END: Final = f"UPDATE runs SET ended = 1, {_PROGRESS} WHERE no = ?"
_MOST_NUMBERS: Final = 20_000


class Logs:
    """Logs on one connection, inside the transaction of whoever calls."""

    def __init__(self, connection: sqlite3.Connection, codec: Codec, bodies: Bodies) -> None:
        self._do = connection.execute
        self._do_each = connection.executemany
        self._codec = codec
        self._bodies = bodies
        self._numbers: dict[RunId, int] = {}
        """The numbers of runs, once looked up; a number that stays here for too long is noticed by its run's id."""

    def number(self, run_id: RunId) -> int | None:
        """The number under which a run's events and mail are found."""
        no = self._numbers.get(run_id)
        if no is None and (row := self._do("SELECT no FROM runs WHERE run_id = ?", (run_id,)).fetchone()):
            if len(self._numbers) >= _MOST_NUMBERS:
                self._numbers.clear()
            no = self._numbers[run_id] = int(row[0])
        return no

    def forget_numbers(self) -> None:
        """Runs may have gone, and their numbers with them."""
        self._numbers.clear()

    def add(self, driver_id: DriverId | None, records: Sequence[Record]) -> None:
        """Add the events of these records and move the rows of their runs; raises for one that does not follow.

        Most of a group commit is two or three successive records of each of many runs, so a row is moved once for all
        of its run's.
        """
        moves: dict[RunId, _Move] = {}
        rows: list[tuple[int | None, int, bytes]] = []
        for record in records:
            move = moves.get(record.run_id)
            if move is not None and not move.goes_on_with(record):
                # It will be refused, but what comes before it has the first word.
                self._make(driver_id, moves.values())
                move, moves = None, {}
            if move is None:
                move = moves[record.run_id] = _Move(self.number(record.run_id), record)
            move.last = record.seq - 1 + len(record.events)
            move.progress = rules.progress_after(record) or move.progress
            for seq, event in enumerate(record.events, record.seq):
                rows.append((move.no, seq, self._bodies.of(event)))
        self._make(driver_id, moves.values())
        self._do_each(INSERT_EVENT, rows)

    def end(self, no: int, cancel: Cancel, at: float) -> None:
        """End a run that was cancelled and that nobody drives."""
        told = "SELECT seq, turns, input, output, cached, reasoning, cost FROM runs WHERE no = ?"
        seq, turns, input_, output, cached, reasoning, cost = self._do(told, (no,)).fetchone()
        before = Progress(phase="working", turns=turns, usage=Usage(input_, output, cached, reasoning), cost=cost)
        bodies = self._do("SELECT body FROM events WHERE run_no = ? ORDER BY seq", (no,)).fetchall()
        events = (self._codec.event(self._bodies.whole(body)) for (body,) in bodies)
        end, progress = rules.cancelled(before, cancel, at, events)
        self._do(INSERT_EVENT, (no, seq + 1, self._bodies.of(end)))
        self._do(_END, (*self._values(seq + 1, progress), no))

    def _make(self, driver_id: DriverId | None, moves: Iterable[_Move]) -> None:
        for move in moves:
            first, progress = move.first, move.progress
            follows = (move.no, first.run_id, driver_id, first.seq - 1)
            if progress is None:
                moved = self._do(_MOVE_SEQ, (move.last, *follows))
            elif progress.phase == "ended":
                moved = self._do(_MOVE_TO_THE_END, (*self._values(move.last, progress), *follows))
            else:
                moved = self._do(_MOVE, (*self._values(move.last, progress), *follows))
            if moved.rowcount != 1:
                raise self._why_it_does_not_follow(driver_id, first)

    def _values(self, seq: int, progress: Progress) -> tuple[object, ...]:
        usage, outcome = progress.usage, progress.outcome
        return (
            *(seq, progress.phase, progress.turns, usage.input, usage.output, usage.cached, usage.reasoning),
            *(progress.cost, outcome and self._bodies.of(outcome), progress.ended_at),
        )

    def _why_it_does_not_follow(self, driver_id: DriverId | None, record: Record) -> Exception:
        row = self._do("SELECT driver_id, seq, ended FROM runs WHERE run_id = ?", (record.run_id,)).fetchone()
        if row is None:
            return rules.cannot_follow(record.run_id, given=record.seq, last=None)
        owner, last, ended = row
        if owner != driver_id:
            return Fenced(driver_id or "(none)")
        return rules.cannot_follow(record.run_id, given=record.seq, last=last, ended=bool(ended))


class _Move:
    """How far successive records move the row of their run."""

    __slots__ = ("first", "last", "no", "progress")

    def __init__(self, no: int | None, first: Record) -> None:
        self.no = no
        self.first = first
        self.last = first.seq - 1
        self.progress: Progress | None = None

    def goes_on_with(self, record: Record) -> bool:
        """Whether a record of the same run comes next."""
        ended = self.progress is not None and self.progress.phase == "ended"
        return record.seq == self.last + 1 and not ended
