"""A state folder as text, in an order that does not depend on concurrency.

The tables are read with SQL: they are the format that every later version has to open. Rows of a run follow the tree: a
parent comes before its children, and children are ordered by the tool calls that created them. Row numbers are left
out, and so are checksums, which follow from the other columns.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

from retinue.engine.driver_table import MARKING
from tests.compatibility.normalise import Names

STORE = "retinue.db"
_ROW_NUMBERS = {"runs": "no", "events": "id", "mail": "id", "charges": "id"}
_OF_RUNS = ("runs", "events", "mail")
_TEMPORARY = ("-wal", "-shm")


def dump_home(home: Path, names: Names) -> str:
    """All tables and files; the ids of runs, sessions and drivers are learned first."""
    lines: list[str] = ["no store"]
    if (home / STORE).exists():
        with closing(sqlite3.connect(home / STORE)) as store:
            _learn(store, names)
            lines = [*_header(store), *_tables(store, names)]
    return "\n".join([*lines, *_files(home, names)]) + "\n"


def _learn(store: sqlite3.Connection, names: Names) -> None:
    for run_id in _ordered_runs(store):
        names.learn(run_id, "run")
    for (session_id,) in store.execute("SELECT session_id FROM sessions ORDER BY created_at, session_id").fetchall():
        if re.fullmatch(r"(?:cron-)?[0-9a-f-]{36}", session_id):
            names.learn(session_id[-36:], "session")
    for (driver_id,) in store.execute("SELECT driver_id FROM drivers ORDER BY driver_id").fetchall():
        names.learn(driver_id, "driver")


def _ordered_runs(store: sqlite3.Connection) -> list[str]:
    """The ids of all runs, in the order of their trees."""
    rows = store.execute("SELECT run_id, parent_id, key FROM runs ORDER BY no").fetchall()
    known = {run_id for run_id, _, _ in rows}
    children: dict[str | None, list[tuple[tuple[int, ...], int, str]]] = {}
    for number, (run_id, parent_id, key) in enumerate(rows):
        parent = parent_id if parent_id in known else None
        children.setdefault(parent, []).append((_call_of(key), number, run_id))
    order: list[str] = []

    def walk(parent: str | None) -> None:
        for _, _, run_id in sorted(children.get(parent, ())):
            order.append(run_id)
            walk(run_id)

    walk(None)
    return order


def _call_of(key: str | None) -> tuple[int, ...]:
    """The numbers in a key: turn and index of the tool call that created the run."""
    return tuple(int(part) for part in (key or "").split("/")[1:] if part.isdigit())


def _header(store: sqlite3.Connection) -> Iterator[str]:
    """The version of the tables, and a hash of the statements that created them."""
    (version,) = store.execute("PRAGMA user_version").fetchone()
    (application,) = store.execute("PRAGMA application_id").fetchone()
    made = store.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type, name").fetchall()
    statements = "\n".join(" ".join(sql.split()) for (sql,) in made)
    digest = hashlib.sha256(statements.encode()).hexdigest()[:16]
    yield f"user_version {version}, application_id {application:#x}, hash of the schema {digest}"


def _tables(store: sqlite3.Connection, names: Names) -> Iterator[str]:
    ranks = {run_id: rank for rank, run_id in enumerate(_ordered_runs(store))}
    run_ids: dict[int, str] = dict(store.execute("SELECT no, run_id FROM runs").fetchall())
    places = _places(store)
    tables = store.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    for (table,) in tables:
        rows: list[tuple[int, tuple[int, ...], str, str]] = []
        for values in _rows(store, table):
            if values.get("space") == MARKING:
                continue
            values.pop(_ROW_NUMBERS.get(table, ""), None)
            if "run_no" in values:
                values = {"run_id": run_ids[cast("int", values.pop("run_no"))], **values}
            if table == "blobs":
                body = values["body"]
                assert isinstance(body, bytes)
                values["is_hash"] = hashlib.sha256(body.lstrip(b"0123456789")).hexdigest() == values["digest"]
            rank = ranks.get(str(values.get("run_id")), len(ranks)) if table in _OF_RUNS else 0
            place = places[str(values["run_id"]), cast("int", values.pop("seq"))] if table == "events" else ()
            line = _line(table, values)
            rows.append((rank, place, names.masked(line), line))
        yield from (names.normal(line) for *_, line in sorted(rows))


def _places(store: sqlite3.Connection) -> dict[tuple[str, int], tuple[int, ...]]:
    """A sort key for each event of a run: concurrent tool calls of one turn return in any order, and are sorted."""
    rows = store.execute(
        "SELECT run_id, events.seq, body FROM events JOIN runs ON run_no = no ORDER BY run_no, events.seq"
    ).fetchall()
    places: dict[tuple[str, int], tuple[int, ...]] = {}
    group, first = None, 0
    for run_id, seq, body in rows:
        returned = re.match(rb'\d+\{"type":"returned","at":[\d.]+,"turn":(\d+),"index":(\d+)', body)
        if returned is None:
            group, places[run_id, seq] = None, (seq,)
            continue
        if group != (run_id, returned[1]):
            group, first = (run_id, returned[1]), seq
        places[run_id, seq] = (first, int(returned[2]))
    return places


def _rows(database: sqlite3.Connection, table: str) -> Iterator[dict[str, object]]:
    columns = [str(row[1]) for row in database.execute(f"PRAGMA table_info({table})").fetchall()]
    for row in database.execute(f"SELECT * FROM {table}").fetchall():
        values = dict(zip(columns, row, strict=True))
        yield {name: value for name, value in values.items() if not name.endswith("crc")}


def _line(table: str, values: dict[str, object]) -> str:
    fields = [f"{name}={_value(table, name, value)}" for name, value in values.items() if value is not None]
    return f"{table}: {' '.join(fields)}".replace("\n", "\\n")


def _value(table: str, name: str, value: object) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if table == "drivers" and name in ("host", "beat"):
        return f"<{name}>"
    if table == "drivers" and name == "process":
        return re.sub(r"\d+:\d+", "<pid>:<start>", str(value))
    return str(value)


def _files(home: Path, names: Names) -> Iterator[str]:
    """The files of the folder: name, mode, and content except that of the store and its lock.

    Records of programs are left out: they have devices, inodes and times.
    """
    for path in sorted(home.rglob("*")):
        if path.is_dir() or path.name.endswith(_TEMPORARY) or path.parent == home / "programs":
            continue
        yield names.normal(f"file {path.relative_to(home)} {stat.filemode(path.stat().st_mode)}")
        if path.name in (STORE, f"{STORE}.lock"):
            continue
        if path.suffix == ".db":
            yield from dump_database(path, names)
        elif path.stat().st_size:
            yield names.normal(path.read_bytes().decode("utf-8", "backslashreplace").removesuffix("\n"))


def dump_database(path: Path, names: Names) -> Iterator[str]:
    """The rows of any database, without the tables of full-text indexes: their format is that of SQLite."""
    with closing(sqlite3.connect(path)) as database:
        made = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
        if "runs" in dict(made):
            yield from (f"{path.name} {line}" for line in _tables(database, names))
            return
        virtual = tuple(name for name, sql in made if str(sql).startswith("CREATE VIRTUAL"))
        for table, _ in made:
            if not table.startswith(virtual):
                for values in _rows(database, table):
                    yield names.normal(f"{path.name} {table}: {json.dumps(values, default=repr, ensure_ascii=False)}")
