"""Memory backend in a SQLite file of its own, with a full-text index.

The file is opened for each call and closed after it, so that the backend needs no `close`. It has SQLite's rollback
journal: writes are few, and the write-ahead log of SQLite before 3.51.3 can be damaged by two writers at one instant.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import threading
import uuid
import weakref
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from retinue.core.checksum import checksum
from retinue.local.private_folder import create_private
from retinue.tools.memory import backend

FILE: Final = "memory.db"

_FORMAT: Final = 2
"""Format 2 has checksums of rows; a row that format 1 has written has none."""

_BUSY_SECONDS: Final = 30.0
_CANDIDATES: Final = 200
"""Rows with the largest weights, of which the scores are computed."""

# AUTOINCREMENT: numbers are never used again, because the index may still have a deleted one.
_ROWS: Final = """
    CREATE TABLE memories (
        no INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        agent TEXT NOT NULL,
        key TEXT NOT NULL,
        content TEXT NOT NULL,
        category TEXT NOT NULL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        run_id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        indexed INTEGER NOT NULL DEFAULT 0,
        crc INTEGER,
        UNIQUE (agent, key)
    )
"""
_ADD_CHECKSUMS: Final = "ALTER TABLE memories ADD COLUMN crc INTEGER"
_UNINDEXED: Final = "CREATE INDEX unindexed_memories ON memories (no) WHERE indexed = 0"
TABLE: Final = "memories"
CREATE: Final = (_ROWS, _UNINDEXED)
COLUMNS: Final = (
    *("id", "agent", "key", "content", "category", "created_at", "updated_at", "run_id", "session_id"),
    "crc",
)
"""The table of memories, the statements that create it, and the columns that a copy of it needs."""
FORMAT: Final = _FORMAT

OPEN_CHECK_SIZE: Final = 1024 * 1024
"""Size in bytes up to which the whole file is checked when it was changed by another process."""

_checked: dict[str, tuple[int, ...]] = {}
"""Files that were checked, each with what its state was after the last use here."""

_INDEX: Final = "CREATE VIRTUAL TABLE IF NOT EXISTS memory_words USING fts5 (words)"
_INDEX_EXISTS: Final = "SELECT 1 FROM sqlite_master WHERE name = 'memory_words'"
_FIELDS: Final = "id, agent, key, content, category, created_at, updated_at, run_id, session_id"
_STORE: Final = f"""
    INSERT INTO memories ({_FIELDS}, crc)
    VALUES (:id, :agent, :key, :content, :category, :at, :at, :run_id, :session_id,
            checksum(:id, :agent, :key, :content, :category, :at, :at, :run_id, :session_id))
    ON CONFLICT (agent, key) DO UPDATE SET
        content = :content, category = :category, updated_at = :at, run_id = :run_id, session_id = :session_id,
        indexed = 0,
        crc = checksum(id, agent, key, :content, :category, created_at, :at, :run_id, :session_id)
    WHERE NOT :again OR updated_at <= :at
"""


class SqliteMemory:
    """A `MemoryBackend` in the file `path`, or with None in memory; only its owner can read the file.

    `full_text=False` reads all rows instead of using the index, as with a SQLite that lacks full-text search. Processes
    of both kinds can share a file.
    """

    def __init__(self, path: Path | None, *, full_text: bool = True) -> None:
        self._path = path
        self._full_text = full_text and has_full_text()
        self._lock = threading.Lock()
        self._in_memory: sqlite3.Connection | None = None

    def store(self, note: backend.Note, *, again: bool = False) -> backend.Memory:
        with self._open() as connection, _transaction(connection):
            fields: dict[str, Any] = {name: getattr(note, name) for name in note.__struct_fields__}
            connection.execute(_STORE, fields | {"id": uuid.uuid4().hex, "again": again, "at": float(note.at)})
            if self._full_text:
                _index_new_rows(connection)
            memory = _find(connection, note.agent, note.key)
            assert memory is not None
            return memory

    def find(self, agent: str, key: str) -> backend.Memory | None:
        with self._open() as connection:
            return _find(connection, agent, key)

    def recall(self, search: backend.MemorySearch) -> list[backend.Recalled]:
        query = backend.query_words(search.query)
        with self._open() as connection:
            if not query or not self._full_text:
                return self._read_all(connection, search)
            if connection.execute("SELECT 1 FROM memories WHERE indexed = 0 LIMIT 1").fetchone():
                with _transaction(connection):  # written by a process without full-text search
                    _index_new_rows(connection)
            where, values = _where(search)
            rows = connection.execute(
                f"SELECT {_FIELDS}, crc, memory_words.words, -bm25(memory_words) AS weight FROM memory_words "
                f"JOIN memories ON memories.no = memory_words.rowid WHERE memory_words MATCH ? AND {where} "
                f"ORDER BY weight DESC LIMIT {max(_CANDIDATES, search.limit)}",
                (_match_expression(query), *values),
            ).fetchall()
        return backend.scored(query, [(_memory(row), row[-2].split(), row[-1]) for row in rows], search.limit)

    def forget(self, agent: str, key: str, *, written_by: float | None = None) -> bool:
        with self._open() as connection, _transaction(connection):
            number = connection.execute(
                "SELECT no FROM memories WHERE agent = ? AND key = ? AND (? IS NULL OR updated_at <= ?)",
                (agent, key, written_by, written_by),
            ).fetchone()
            if number is None:
                return False
            connection.execute("DELETE FROM memories WHERE no = ?", number)
            if self._full_text:
                connection.execute("DELETE FROM memory_words WHERE rowid = ?", number)
            return True

    def agents(self) -> list[str]:
        with self._open() as connection:
            return [agent for (agent,) in connection.execute("SELECT DISTINCT agent FROM memories ORDER BY agent")]

    def all(self) -> list[backend.Memory]:
        """All memories, oldest first, for a copy."""
        with self._open() as connection:
            rows = connection.execute(f"SELECT {_FIELDS}, crc FROM memories ORDER BY created_at, id").fetchall()
            return [_memory(row) for row in rows]

    def insert_all(self, memories: Iterable[backend.Memory]) -> int:
        """Insert memories as they are, in one transaction; how many."""
        count = 0
        marks = ", ".join("?" * len(COLUMNS))
        with self._open() as connection, _transaction(connection):
            for memory in memories:
                values = [getattr(memory, field) for field in memory.__struct_fields__]
                insert = f"INSERT INTO memories ({_FIELDS}, crc) VALUES ({marks})"
                connection.execute(insert, (*values, checksum(*values)))
                count += 1
        return count

    def _read_all(self, connection: sqlite3.Connection, search: backend.MemorySearch) -> list[backend.Recalled]:
        where, values = _where(search)
        newest = "ORDER BY updated_at DESC, key, agent"
        limit = "" if backend.query_words(search.query) else f"LIMIT {search.limit}"
        rows = connection.execute(
            f"SELECT {_FIELDS}, crc FROM memories WHERE {where} {newest} {limit}", values
        ).fetchall()
        return backend.search_all([_memory(row) for row in rows], search)

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        try:
            if self._path is None:
                with self._lock:
                    if self._in_memory is None:
                        self._in_memory = self._connect(":memory:")
                        weakref.finalize(self, self._in_memory.close)
                    yield self._in_memory
                return
            create_private(self._path.parent)
            # Created before SQLite would create it, so that only its owner can read it.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            with closing(self._connect(self._path)) as connection:
                _check(connection, self._path)
                yield connection
            _checked[str(self._path)] = _state(self._path)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise backend.MemoryUnavailable(f"{error}{_remedy(error)}") from error
        except OSError as error:
            raise backend.MemoryUnavailable(error.strerror or type(error).__name__) from error

    def _connect(self, path: str | Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        connection.create_function("checksum", -1, checksum, deterministic=True)
        try:
            if _format(connection) != _FORMAT:
                with _transaction(connection):
                    _create_tables(connection)
            if self._full_text and not connection.execute(_INDEX_EXISTS).fetchone():
                with _transaction(connection):
                    connection.execute(_INDEX)
        except BaseException:
            connection.close()
            raise
        return connection


def _format(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def _state(path: Path) -> tuple[int, ...]:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `sqlite3.DatabaseError` if a small file is damaged: checksums of rows say nothing about indexes."""
    state = _state(path)
    if state[2] <= OPEN_CHECK_SIZE and _checked.get(str(path)) != state:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(str(found).partition("\n")[2] or found)
        if has_full_text():
            check_words(connection)


def check_words(connection: sqlite3.Connection) -> None:
    """Raise `sqlite3.DatabaseError` if the index of words is damaged; the connection has to allow writes."""
    if connection.execute(_INDEX_EXISTS).fetchone():
        connection.execute("INSERT INTO memory_words (memory_words) VALUES ('integrity-check')")
        for _ in connection.execute("SELECT words FROM memory_words"):  # raises for bytes that are no text
            pass
        query = "SELECT count(*) FROM memories WHERE indexed AND no NOT IN (SELECT rowid FROM memory_words)"
        (missing,) = connection.execute(query).fetchone()
    else:
        (missing,) = connection.execute("SELECT count(*) FROM memories WHERE indexed").fetchone()
    if missing:
        raise sqlite3.DatabaseError(f"{missing} memories are missing in the index of words")


def _create_tables(connection: sqlite3.Connection) -> None:
    found = _format(connection)
    if found > _FORMAT:
        raise backend.MemoryUnavailable(f"it was written by a newer retinue (format {found}, known up to {_FORMAT})")
    if found == 0:  # else another process has created them meanwhile
        connection.execute(_ROWS)
        connection.execute(_UNINDEXED)
    elif found == 1:
        connection.execute(_ADD_CHECKSUMS)
    connection.execute(f"PRAGMA user_version = {_FORMAT}")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite may have ended it by itself, for example when the disk is full
            connection.execute("ROLLBACK")
        raise


def _index_new_rows(connection: sqlite3.Connection) -> None:
    rows = connection.execute("SELECT no, key, content FROM memories WHERE indexed = 0").fetchall()
    for no, key, content in rows:
        text = " ".join(backend.words(f"{key} {content}"))
        connection.execute("DELETE FROM memory_words WHERE rowid = ?", (no,))
        connection.execute("INSERT INTO memory_words (rowid, words) VALUES (?, ?)", (no, text))
    connection.execute("UPDATE memories SET indexed = 1 WHERE indexed = 0")


def _find(connection: sqlite3.Connection, agent: str, key: str) -> backend.Memory | None:
    query = f"SELECT {_FIELDS}, crc FROM memories WHERE agent = ? AND key = ?"
    row = connection.execute(query, (agent, key)).fetchone()
    return None if row is None else _memory(row)


def _memory(row: tuple[Any, ...]) -> backend.Memory:
    """The memory in a row, whose checksum follows its fields."""
    fields = backend.Memory.__struct_fields__
    values = row[: len(fields)]
    if not is_intact(row):
        raise backend.MemoryUnavailable(f"the memory {values[2]!r} of {values[1]!r} is damaged{_REMEDY}")
    return backend.Memory(**dict(zip(fields, values, strict=True)))


def is_intact(row: Sequence[Any]) -> bool:
    """Whether the fields of a memory match the checksum behind them; format 1 has written none."""
    *values, crc = row[: len(COLUMNS)]
    return crc is None or crc == checksum(*values)


_REMEDY: Final = ": see retinue store check, and retinue store repair"


def _remedy(error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return _REMEDY if code in (0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) else ""


def _where(search: backend.MemorySearch) -> tuple[str, list[object]]:
    agents, categories = (", ".join("?" * len(values)) for values in (search.agents, search.without))
    parts = [f"agent IN ({agents})", f"category NOT IN ({categories})"]
    values: list[object] = [*search.agents, *search.without]
    if search.since is not None:
        parts.append("updated_at >= ?")
        values.append(search.since)
    if search.until is not None:
        parts.append("updated_at <= ?")
        values.append(search.until)
    return " AND ".join(parts), values


def _match_expression(query: list[str]) -> str:
    """The words as an FTS5 expression: each in quotes, so that none of them is an operator."""
    return " OR ".join(f'"{word}"*' if backend.is_prefix(word) else f'"{word}"' for word in query)


@functools.cache
def has_full_text() -> bool:
    """Whether this SQLite has full-text search."""
    with closing(sqlite3.connect(":memory:")) as connection, suppress(sqlite3.Error):
        connection.execute(_INDEX)
        return True
    return False
