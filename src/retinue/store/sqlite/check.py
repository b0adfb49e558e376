"""Check of a whole store: SQLite's structures, the schema, every row, references between tables, and every run.

Nothing is written, and other processes can go on writing: the check reads one snapshot.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from retinue.core.agent import RunSpec
from retinue.core.errors import StoreCorrupt, StoreError, UnknownFormat
from retinue.core.events import Event, RunAccepted
from retinue.core.run import Outcome
from retinue.core.state import History, Run, fold
from retinue.store.codec import Codec, blob_name, checked_blob
from retinue.store.sqlite.errors import damaged_file, translated_error
from retinue.store.sqlite.migrations import APPLICATION_ID, STEPS, foreign_objects
from retinue.store.sqlite.rows import TABLES, TypedRow, is_intact, row_name, scan
from retinue.store.sqlite.work import LongWork

MAX_DAMAGES: Final = 1000
"""Damages that a report lists; further ones are counted."""

_CACHED_HISTORIES: Final = 64
_CHECKSUMS_SINCE: Final = 2
"""The number of the migration that added checksums."""


class Damage(Struct, frozen=True):
    """Something that is damaged: its table, its run if it belongs to one, and what was found."""

    table: str
    run_id: str | None
    what: str


class CheckReport(Struct, frozen=True, kw_only=True):
    """The result of a check: the damages, the number of rows by table, and the rows without a checksum."""

    file: str
    damages: tuple[Damage, ...]
    more: int = 0
    """Damages that are not listed."""
    rows: dict[str, int] = {}
    without_checksum: int = 0
    folded: int = 0
    """Runs whose events were folded into a state that agrees with their rows."""

    @property
    def ok(self) -> bool:
        return not self.damages


class _Findings:
    def __init__(self) -> None:
        self.listed: list[Damage] = []
        self.more = 0

    def add(self, table: str, run_id: str | None, what: str) -> None:
        if len(self.listed) < MAX_DAMAGES:
            self.listed.append(Damage(table, run_id, what))
        else:
            self.more += 1


def check_file(path: Path, work: LongWork, *, quick: bool = False, codec: Codec | None = None) -> CheckReport:
    """Check the store in a file; `quick` checks SQLite's structures and the schema, and no rows.

    Raises `StoreUnavailable` if the file cannot be read at all, `UnknownFormat` for a newer version, and `WorkStopped`.
    """
    findings = _Findings()
    rows: dict[str, int] = {}
    whole = _Rows(findings, codec or Codec(), work)
    try:
        with open_snapshot(path) as connection, work.watching(connection):
            version = check_kind(connection, path)
            _check_schema(connection, version, findings)
            check_structure(connection, findings.add, work, quick=quick)
            if not quick:
                rows = whole.check(connection, has_sums=version >= _CHECKSUMS_SINCE)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        translated = translated_error(path, error)
        if not isinstance(translated, StoreCorrupt):
            raise translated from error
        findings.add("", None, str(translated))
    except StoreCorrupt as error:
        findings.add("", None, str(error))
    return CheckReport(
        file=str(path),
        damages=tuple(findings.listed),
        more=findings.more,
        rows=rows,
        without_checksum=whole.without_checksum,
        folded=whole.folded,
    )


@contextmanager
def open_snapshot(path: Path) -> Generator[sqlite3.Connection]:
    """A read-only connection to an existing database, in one read transaction.

    If SQLite cannot use the write-ahead log there, as on a read-only disk, and there is none, the file alone is read.
    """
    wal = Path(f"{path}-wal")
    if not path.exists():
        raise StoreCorrupt(f"{path} does not exist" + (", but its write-ahead log does" if wal.exists() else ""))
    if path.stat().st_size == 0:
        raise damaged_file(path, "it is empty")
    options = ["mode=ro"] + ([] if wal.exists() and wal.stat().st_size > 0 else ["immutable=1"])
    for number, option in enumerate(options):
        connection = sqlite3.connect(f"file:{quote(str(path))}?{option}", uri=True, isolation_level=None)
        with closing(connection):
            connection.execute("PRAGMA trusted_schema = OFF")  # the file may come from elsewhere
            try:
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            except sqlite3.OperationalError:
                if number + 1 < len(options):
                    continue
                raise
            yield connection
            return


def check_kind(connection: sqlite3.Connection, path: Path) -> int:
    """The version of a store's tables; raises `StoreCorrupt` if it is no store, and `UnknownFormat` if it is newer."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID or version == 0:
        raise StoreCorrupt(f"{path} is not a store of retinue, or the header of its file is damaged")
    if version > len(STEPS):
        raise UnknownFormat(f"the store {path}", found=version, known=len(STEPS))
    return version


def check_structure(
    connection: sqlite3.Connection, add: Callable[[str, str | None, str], None], work: LongWork, *, quick: bool
) -> None:
    """Run SQLite's own check: its pages, and unless `quick` also whether the indexes agree with their tables."""
    work.report("structure")
    name = "quick_check" if quick else "integrity_check"
    for (found,) in connection.execute(f"PRAGMA {name}({MAX_DAMAGES})").fetchall():
        if found != "ok":
            add("", None, found.replace("\n", " "))


def expected_schema(version: int) -> dict[str, str]:
    """The SQL of each table and index of a store, by name."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for step in STEPS[:version]:
            for statement in step:
                connection.execute(statement)
        return _schema(connection)


def _schema(connection: sqlite3.Connection) -> dict[str, str]:
    query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    return {name: " ".join(str(sql).split()) for name, sql in connection.execute(query).fetchall()}


def _check_schema(connection: sqlite3.Connection, version: int, findings: _Findings) -> None:
    expected, found = expected_schema(version), _schema(connection)
    for name, sql in expected.items():
        if found.get(name) != sql:
            findings.add("sqlite_schema", None, f"{name} is missing, or not declared as it was created")
    for name in foreign_objects(connection):
        findings.add(FOREIGN, None, f"{name} does not belong to a store")


FOREIGN: Final = "sqlite_schema, other objects"
"""The table of damages that are objects which do not belong to a store."""


def is_table(connection: sqlite3.Connection, name: str) -> bool:
    """Whether a name is that of a plain table: to read a view or a virtual table would run what it says."""
    row = connection.execute("SELECT type, sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    return row is not None and row[0] == "table" and " ".join(str(row[1]).split()[:2]).upper() == "CREATE TABLE"


class _Rows:
    """Checks rows, references and runs on one connection."""

    def __init__(self, findings: _Findings, codec: Codec, work: LongWork) -> None:
        self._findings = findings
        self._codec = codec
        self._work = work
        self.without_checksum = 0
        self.folded = 0
        self._histories: OrderedDict[tuple[str, int], History] = OrderedDict()
        self._has_sums = True

    def check(self, connection: sqlite3.Connection, *, has_sums: bool) -> dict[str, int]:
        self._connection = connection
        self._has_sums = has_sums
        rows: dict[str, int] = {}
        for table in TABLES:
            rows[table.name] = 0
            if not is_table(connection, table.name):
                continue  # the check of the schema says so
            total = self._count(table.name)
            for row in scan(connection, table, has_sums=has_sums, damaged=self._gap(table.name)):
                if rows[table.name] % 500 == 0:
                    self._work.report(table.name, rows[table.name], total)
                rows[table.name] += 1
                self._check_row(table, row)
        if all(is_table(connection, name) for name in ("runs", "events", "blobs")):
            self._check_runs(rows["runs"])
        return rows

    def _gap(self, table: str) -> Callable[[str], None]:
        return lambda what: self._findings.add(table, None, what)

    def _count(self, table: str) -> int:
        try:
            return self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        except sqlite3.DatabaseError:
            return 0

    def _check_row(self, table: Any, row: TypedRow) -> None:
        run_id = self._run_id(row[table.of_run]) if table.of_run == "run_no" else row.get("run_id")
        of_run = run_id if table.of_run is not None else None
        if table.of_run == "run_no" and run_id is None:
            self._findings.add(table.name, None, f"{row_name(table, row)}: there is no run number {row['run_no']}")
            return
        intact = is_intact(table, row, run_id) if table.sums else True
        if intact is None:
            self.without_checksum += 1
        elif not intact:
            self._findings.add(table.name, of_run, f"{row_name(table, row)}: the checksum does not match")
            return
        try:
            self._decode(table.name, row)
        except UnknownFormat:
            pass  # written by a newer version, which can read it
        except (StoreError, TypeError, AttributeError) as error:
            self._findings.add(table.name, of_run, f"{row_name(table, row)}: {error}")

    def _decode(self, table: str, row: TypedRow) -> None:
        match table:
            case "blobs":
                checked_blob(row["digest"], row["body"])
            case "mail" if row["body"] is not None:
                self._codec.item(self._load(row["body"]))
            case "events":
                self._codec.event(self._load(row["body"]))
            case "runs" if row["outcome"] is not None:
                self._codec.outcome(self._load(row["outcome"]))
            case _:
                pass

    def _load(self, stored: Any) -> bytes:
        digest = blob_name(stored)
        return stored if digest is None else self._blob(digest)

    def _blob(self, digest: str) -> bytes:
        row = self._connection.execute("SELECT body FROM blobs WHERE digest = ?", (digest,)).fetchone()
        return checked_blob(digest, row[0] if row else None)

    def _run_id(self, no: int) -> str | None:
        row = self._connection.execute("SELECT run_id FROM runs WHERE no = ?", (no,)).fetchone()
        return None if row is None else row[0]

    def _check_runs(self, total: int) -> None:
        """Check that each run has its parent, its root and a whole log, which folds into what its row says."""
        columns = "no, run_id, parent_id, root_id, seq, ended, outcome"
        query = f"SELECT {columns} FROM runs WHERE no > ? ORDER BY no LIMIT 500"
        last, done = -1, 0
        while True:
            try:
                rows = self._connection.execute(query, (last,)).fetchall()
            except sqlite3.DatabaseError as error:
                self._findings.add("runs", None, f"runs after number {last} cannot be read ({error})")
                return
            if not rows:
                return
            for row in rows:
                if done % 100 == 0:
                    self._work.report("runs folded", done, total)
                done += 1
                if row[0] <= last:
                    self._findings.add("runs", None, f"the row after number {last} has the number {row[0]}")
                    return
                last = row[0]
                self._check_run(*row[1:])

    def _check_run(
        self, run_id: str, parent_id: str | None, root_id: str, seq: int, ended: int, outcome: bytes | None
    ) -> None:
        for kind, other in (("parent", parent_id), ("root", root_id)):
            if (
                other is not None
                and not self._connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (other,)).fetchone()
            ):
                self._findings.add("runs", run_id, f"its {kind} {other} is missing")
        try:
            events = self._events(run_id)
            if not events and seq == 0:
                return  # its messages were deleted, as configured
            if len(events) != seq or [number for number, _ in events] != list(range(1, seq + 1)):
                raise StoreCorrupt(f"it has {len(events)} events, and its last is {seq}")
            run = self._fold(run_id, None)
            stored = None if outcome is None else self._codec.outcome(self._load(outcome))
            self._compare(run, bool(ended), stored)
        except UnknownFormat:
            return  # written by a newer version, which can fold it
        except sqlite3.DatabaseError as error:
            self._findings.add("events", run_id, f"its events cannot be read ({error})")
        except (StoreError, ValueError, TypeError, AttributeError, IndexError, KeyError, RecursionError) as error:
            self._findings.add("events", run_id, f"its log does not fold: {error}")
        else:
            self.folded += 1

    def _compare(self, run: Run, ended: bool, outcome: Outcome | None) -> None:
        if (run.outcome is not None) != ended or run.outcome != outcome:
            raise StoreCorrupt("its outcome is not that of its row")

    def _events(self, run_id: str, upto: int | None = None) -> list[tuple[int, Event]]:
        limit = "" if upto is None else f" AND events.seq <= {int(upto)}"
        query = f"""
            SELECT events.seq, events.body FROM runs JOIN events ON events.run_no = runs.no
            WHERE runs.run_id = ?{limit} ORDER BY events.seq
        """
        rows = self._connection.execute(query, (run_id,)).fetchall()
        return [(seq, self._codec.event(self._load(body))) for seq, body in rows]

    def _fold(self, run_id: str, upto: int | None) -> Run:
        """Fold a run as `engine.store_access.Replay` does: from the oldest inherited history on."""
        logs = [(run_id, upto, self._events(run_id, upto))]
        inherited: History | None = None
        while (origin := _accepted(logs[-1][2], logs[-1][0]).inherits) is not None:
            inherited = self._histories.get((origin.run_id, origin.upto))
            if inherited is not None:
                break
            if any(origin.run_id == each for each, _, _ in logs):
                raise StoreCorrupt(f"run {origin.run_id} inherits from itself")
            logs.append((origin.run_id, origin.upto, self._events(origin.run_id, origin.upto)))
        while True:
            name, end, events = logs.pop()
            run = fold(events, self._run_spec(_accepted(events, name).run_spec), inherited)
            if end is not None:
                self._histories[name, end] = run.history
                if len(self._histories) > _CACHED_HISTORIES:
                    self._histories.popitem(last=False)
            if not logs:
                return run
            inherited = run.history

    def _run_spec(self, digest: str) -> RunSpec:
        return self._codec.run_spec(self._blob(digest))


def _accepted(events: list[tuple[int, Event]], run_id: str) -> RunAccepted:
    first = events[0][1] if events else None
    if not isinstance(first, RunAccepted) or first.run_id != run_id:
        raise StoreCorrupt(f"the log of run {run_id} does not begin with its acceptance")
    return first
