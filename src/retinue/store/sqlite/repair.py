"""Repair of a damaged store: a new file with everything that can be read and trusted, and a list of what is lost.

A row counts as saved if it matches its checksum and can be decoded. A run whose row is damaged gets it again from its
events. An ended run whose events are damaged keeps its row with its outcome; an unfinished one ends as failed, because
it cannot be continued.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from retinue.core.checksum import checksum, event_checksum
from retinue.core.errors import StoreCorrupt, StoreError, UnknownFormat
from retinue.core.events import Event, RunAccepted, RunEnded
from retinue.core.run import Outcome
from retinue.store.codec import Codec, blob_name, checked_blob
from retinue.store.sqlite.backup import copy_error
from retinue.store.sqlite.check import Damage, check_file, is_table
from retinue.store.sqlite.migrations import STEPS, migrate
from retinue.store.sqlite.replace import replace_file, sync_file, temporary_beside, unused
from retinue.store.sqlite.rows import DRIVER, IDENTITY, PROGRESS, TABLES, Table, TypedRow, is_intact, row_name, scan
from retinue.store.sqlite.work import LongWork

_MAGIC: Final = b"SQLite format 3\x00"
_COUNTS: Final = ("turns", "input", "output", "cached", "reasoning", "cost")
_LOST: Final = "its messages were lost when the store was damaged"


class RepairReport(Struct, frozen=True, kw_only=True):
    """The result of a repair: the rows that were saved by table, what was lost, and where the damaged file is kept."""

    file: str
    lost: tuple[Damage, ...]
    saved: dict[str, int]
    kept: str | None


def repair(path: Path, work: LongWork, *, codec: Codec | None = None) -> RepairReport:
    """Replace a damaged store by one with what can be saved.

    Raises `StoreInUse` while a process has the store open, `NotWritten` if there is no room for two copies of the
    store, `UnknownFormat` for events of a newer version, and `WorkStopped`; then nothing has changed.
    """
    with unused(path):  # before the long work, and again when the file is replaced
        pass
    try:
        with temporary_beside(path.with_name(f"{path.name}.read")) as copy, temporary_beside(path) as new:
            copy_readable(path, copy)
            with (
                closing(sqlite3.connect(copy, isolation_level=None)) as source,
                closing(sqlite3.connect(new, isolation_level=None)) as into,
                work.watching(source),
            ):
                source.execute("PRAGMA trusted_schema = OFF")
                source.execute("PRAGMA writable_schema = ON")  # SQLite then reads on after errors in the schema
                into.execute("PRAGMA auto_vacuum = INCREMENTAL")
                migrate(into, new)
                into.execute("BEGIN")
                salvage = _Salvage(source, into, codec or Codec(), work)
                salvage.save()
                into.execute("COMMIT")
            report = check_file(new, work)
            if not report.ok:
                raise StoreCorrupt(f"the repaired store is not intact, and was not used: {report.damages[0].what}")
            sync_file(new)
            with unused(path):
                work.report("replace")
                kept = replace_file(path, new, "damaged", unchanged=True)
    except (sqlite3.Error, OSError) as error:
        raise copy_error(path, path.with_name(f".{path.name}.new"), error) from error
    return RepairReport(
        file=str(path), lost=tuple(salvage.lost), saved=report.rows, kept=None if kept is None else str(kept)
    )


def copy_readable(path: Path, copy: Path) -> None:
    """Copy a database with its log, and mend the copy so far that SQLite opens it: its header, and a missing end."""
    if not path.exists():
        raise StoreCorrupt(f"{path} does not exist: restore a backup with: retinue store restore FILE")
    shutil.copyfile(path, copy)
    if os.path.lexists(f"{path}-wal"):
        shutil.copyfile(f"{path}-wal", f"{copy}-wal")
    with open(copy, "r+b") as file:
        header = bytearray(file.read(100).ljust(100, b"\0"))
        if not header.startswith(_MAGIC + b"\x10\x00") or bytes(header[21:24]) != b"\x40\x20\x20":
            # The constant part of the header, as every store has it.
            header[:24] = _MAGIC + b"\x10\x00\x02\x02\x00\x40\x20\x20"
            header[44:48] = (4).to_bytes(4, "big")
            header[56:60] = (1).to_bytes(4, "big")
            file.seek(0)
            file.write(header)
        size = int.from_bytes(header[16:18], "big") * int.from_bytes(header[28:32], "big")
        length = file.seek(0, os.SEEK_END)
        if length < size <= max(4 * length, 1 << 20):
            file.truncate(size)


class _Salvage:
    def __init__(self, source: sqlite3.Connection, into: sqlite3.Connection, codec: Codec, work: LongWork) -> None:
        self._source = source
        self._into = into
        self._codec = codec
        self._work = work
        self.lost: list[Damage] = []
        self._tables = {table.name: table for table in TABLES}
        self._blobs = set[str]()
        (version,) = self._try("PRAGMA user_version") or (len(STEPS),)
        self._has_sums = version != 1

    def _try(self, query: str) -> tuple[Any, ...] | None:
        try:
            return self._source.execute(query).fetchone()
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            return None

    def save(self) -> None:
        for row in self._rows("blobs"):
            with suppress(StoreError, TypeError, AttributeError):
                checked_blob(row["digest"], row["body"])
                self._insert("blobs", row)
                self._blobs.add(row["digest"])
                continue
            self._lose("blobs", None, f"digest {row['digest']}")
        self._save_runs()
        for name in ("handles", "sessions", "drivers", "shelves", "answers", "charges"):
            table = self._tables[name]
            for row in self._rows(name):
                if is_intact(table, row, None) is not False and self._insert(name, _summed(table, row)):
                    continue
                self._lose(name, row.get("run_id"), row_name(table, row))

    def _rows(self, name: str) -> Iterable[TypedRow]:
        self._work.report(name)
        table = self._tables[name]
        if not self._can_be_read(name):
            self._lose(name, None, "the table, which is another kind of object")
            return
        for number, row in enumerate(
            scan(self._source, table, has_sums=self._has_sums, damaged=lambda what: self._lose(name, None, what))
        ):
            if number % 500 == 0:
                self._work.report(name, number)
            yield row

    def _can_be_read(self, name: str) -> bool:
        try:
            return is_table(self._source, name)
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            return True  # the schema is damaged; SQLite says what can be read

    def _lose(self, table: str, run_id: str | None, what: str) -> None:
        self.lost.append(Damage(table, run_id, what))

    def _insert(self, name: str, row: TypedRow) -> bool:
        columns = [column for column in row if row[column] is not None]
        marks = ", ".join("?" * len(columns))
        try:
            self._into.execute(
                f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({marks})", [row[column] for column in columns]
            )
        except (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError):
            return False
        return True

    def _save_runs(self) -> None:
        """Save runs with their events and inboxes, in the order of their numbers: parents come before children."""
        table = self._tables["runs"]
        rows: dict[int, TypedRow] = {}
        ids: dict[int, str] = {}
        damaged: dict[int, str] = {}
        for row in self._rows("runs"):
            if is_intact(table, row, None) is not False and isinstance(row["no"], int):
                rows[row["no"]] = row
                ids[row["no"]] = row["run_id"]
            elif isinstance(row["run_id"], str):
                damaged[row["no"]] = row["run_id"]
            else:
                self._lose("runs", None, f"run number {row['no']}")
        logs: dict[int, dict[int, TypedRow]] = {}
        for row in self._rows("events"):
            if isinstance(row["run_no"], int) and isinstance(row["seq"], int):
                logs.setdefault(row["run_no"], {})[row["seq"]] = row
            else:
                self._lose("events", None, f"event with number {row['id']}")
        folded = set[str]()
        saved = set[str]()
        for no in sorted(rows.keys() | logs.keys() | damaged.keys()):
            self._work.report("runs", no)
            row, log = rows.get(no), logs.get(no, {})
            events = self._events(ids.get(no), log)
            if row is None:
                row = self._rebuilt(no, events)
            if row is None or row["run_id"] in saved:
                self._lose("runs", ids.get(no) or damaged.get(no), f"run number {no} with {len(log)} events")
                continue
            run_id = row["run_id"]
            if any(other is not None and other not in saved for other in (row["parent_id"], _root_above(row))):
                self._lose("runs", run_id, "the run, because its parent or its root is lost")
                continue
            whole = bool(events) and len(events) == len(log) == row["seq"] and self._can_fold(events, row, folded)
            if whole:
                folded.add(run_id)
            elif row["seq"] != 0 or log:
                self._lose("events", run_id, "its messages" + ("" if row["ended"] else "; it has ended as failed"))
                row = self._without_messages(row)
            if row["outcome"] is not None and not self._can_load(row["outcome"]):
                end = events[len(events)] if whole else None
                if isinstance(end, RunEnded):
                    row = row | self._progress(end.outcome, end.at)
                else:
                    self._lose("runs", run_id, "its outcome")
                    row = self._without_messages(row | {"ended": 0, "outcome": None})
                    whole = False
                    folded.discard(run_id)
            # A default of the table would not be covered by the checksum.
            row = row | {column: 0 for column in _COUNTS if row[column] is None}
            if not self._insert("runs", _summed(table, row)):
                self._lose("runs", run_id, "the run")
                continue
            saved.add(run_id)
            if whole:
                for seq, event in log.items():
                    self._insert("events", event | {"crc": event_checksum(run_id, seq, event["body"])})
        self._save_mail(self._numbers(), folded)

    def _numbers(self) -> dict[int, str]:
        return dict(self._into.execute("SELECT no, run_id FROM runs").fetchall())

    def _save_mail(self, ids: dict[int, str], folded: set[str]) -> None:
        table = self._tables["mail"]
        for row in self._rows("mail"):
            run_id = ids.get(row["run_no"])
            if run_id is None or run_id not in folded:
                if row["body"] is not None:
                    self._lose("mail", run_id, f"an inbox item of run number {row['run_no']}")
                continue
            if is_intact(table, row, run_id) is not False and self._is_item(row["body"]):
                sealed = row | {"crc": checksum(run_id, row["key"], row["body"])}
                if self._insert("mail", sealed):
                    continue
            self._lose("mail", run_id, row_name(table, row))

    def _is_item(self, body: bytes | None) -> bool:
        if body is None:
            return True
        with suppress(StoreError, TypeError, AttributeError):
            self._codec.item(self._load(body))
            return True
        return False

    def _events(self, run_id: str | None, log: dict[int, TypedRow]) -> dict[int, Event]:
        """The events of a run that are intact, without those after a gap.

        Raises `UnknownFormat` for an intact event of a newer version, whose repair saves more of the store.
        """
        events: dict[int, Event] = {}
        for seq in range(1, len(log) + 1):
            row = log.get(seq)
            if row is None:
                break
            try:
                event = self._codec.event(self._load(row["body"]))
                if run_id is None:
                    if not isinstance(event, RunAccepted):
                        break
                    run_id = event.run_id
                if is_intact(self._tables["events"], row, run_id) is False:
                    break
            except UnknownFormat as newer:
                if run_id is None or is_intact(self._tables["events"], row, run_id) is not True:
                    break  # damage, as far as this version can tell
                raise newer.named(f"event {seq} of run {run_id}") from newer
            except (StoreError, TypeError, AttributeError):
                break
            events[seq] = event
        return events

    def _load(self, stored: Any) -> bytes:
        digest = blob_name(stored)
        if digest is None:
            return stored
        if digest not in self._blobs:
            raise StoreCorrupt(f"blob {digest} is missing")
        (body,) = self._into.execute("SELECT body FROM blobs WHERE digest = ?", (digest,)).fetchone()
        return body

    def _can_load(self, stored: Any) -> bool:
        try:
            self._codec.outcome(self._load(stored))
        except UnknownFormat:
            return True
        except (StoreError, TypeError, AttributeError):
            return False
        return True

    def _can_fold(self, events: dict[int, Event], row: TypedRow, folded: set[str]) -> bool:
        first, last = events[1], events[len(events)]
        return (
            isinstance(first, RunAccepted)
            and first.run_id == row["run_id"]
            and first.run_spec in self._blobs
            and (first.inherits is None or first.inherits.run_id in folded)
            and isinstance(last, RunEnded) == bool(row["ended"])
        )

    def _rebuilt(self, no: int, events: dict[int, Event]) -> TypedRow | None:
        """The row of a run from its events; None without its acceptance."""
        accepted = events.get(1)
        if not isinstance(accepted, RunAccepted):
            return None
        end = events[len(events)]
        outcome = end.outcome if isinstance(end, RunEnded) else None
        handle = accepted.handle
        return {
            "no": no,
            "run_id": accepted.run_id,
            "session_id": accepted.session_id,
            "root_id": accepted.root_id,
            "parent_id": accepted.parent_id,
            "depth": accepted.depth,
            "path": accepted.path,
            "agent": accepted.agent,
            "label": accepted.label,
            "dialect": accepted.dialect,
            "key": accepted.key,
            "handle_space": None if handle is None else handle.space,
            "handle_name": None if handle is None else handle.name,
            "awaited": int(accepted.lifecycle.awaited),
            "brief": accepted.run_spec,
            "accepted_at": float(accepted.at),
            "format": accepted.format,
            "driver_id": None,
            "cancelled_at": None,
            "seq": len(events),
            **self._progress(outcome, end.at),
        }

    def _progress(self, outcome: Outcome | None, at: float) -> TypedRow:
        usage = None if outcome is None else outcome.usage
        return {
            "ended": int(outcome is not None),
            "phase": "working" if outcome is None else "ended",
            "turns": 0 if outcome is None else outcome.turns,
            "input": 0 if usage is None else usage.input,
            "output": 0 if usage is None else usage.output,
            "cached": 0 if usage is None else usage.cached,
            "reasoning": 0 if usage is None else usage.reasoning,
            "cost": 0 if outcome is None else outcome.cost,
            "outcome": None if outcome is None else self._codec.encode(outcome),
            "ended_at": None if outcome is None else float(at),
        }

    def _without_messages(self, row: TypedRow) -> TypedRow:
        """The row of a run whose events are lost: as after `Forget`, and ended."""
        row = row | {"seq": 0, "driver_id": None}
        if row["ended"]:
            return row
        outcome = Outcome(result="failed", reason="bug", error=_LOST, turns=_count(row["turns"]))
        return row | self._progress(outcome, row["accepted_at"])


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _root_above(row: TypedRow) -> str | None:
    return None if row["root_id"] == row["run_id"] else row["root_id"]


def _summed(table: Table, row: TypedRow) -> TypedRow:
    """The row with fresh checksums."""
    covered: dict[str, tuple[str, ...]] = dict(table.sums)
    if table.name == "runs":
        covered = {"identity_crc": IDENTITY, "driver_crc": DRIVER, "progress_crc": PROGRESS}
    return row | {crc: checksum(*(row[column] for column in columns)) for crc, columns in covered.items()}
