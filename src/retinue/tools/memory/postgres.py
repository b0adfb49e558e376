"""Memory backend in the PostgreSQL database of the store, with a full-text index.

The words of a memory are split here, as for every backend, and stored as lexemes: the server neither parses nor stems.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Final

from retinue.core.errors import StoreError
from retinue.tools.dependencies import MemoryStatements, MemoryTables
from retinue.tools.memory import backend

_CANDIDATES: Final = 200
"""Rows with the largest weights, of which the scores are computed."""

_LONGEST_WORD: Final = 200
"""Characters of a word that are indexed; a lexeme has at most 2 KB."""

_FIELDS: Final = "id, agent, key, content, category, created_at, updated_at, run_id, session_id"
_INSERT: Final = f"""
    INSERT INTO memories ({_FIELDS}, words)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, array_to_tsvector(%s::text[]))
"""
_STORE: Final = f"""
    {_INSERT}
    ON CONFLICT (agent, key) DO UPDATE SET
        content = excluded.content, category = excluded.category, updated_at = excluded.updated_at,
        run_id = excluded.run_id, session_id = excluded.session_id, words = excluded.words
    WHERE NOT %s OR memories.updated_at <= excluded.updated_at
"""
_FIND: Final = f"SELECT {_FIELDS} FROM memories WHERE agent = %s AND key = %s"
_FORGET: Final = """
    DELETE FROM memories WHERE agent = %s AND key = %s AND (%s::double precision IS NULL OR updated_at <= %s)
    RETURNING 1
"""


class PostgresMemory:
    """A `MemoryBackend` in the table `memories` of a store."""

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables

    def store(self, note: backend.Note, *, again: bool = False) -> backend.Memory:
        memory = note.to_memory(None)
        with self._transaction() as statements:
            statements.send(_STORE, *_values(memory), again)
            (row,) = statements.fetch(_FIND, note.agent, note.key)
            return _memory(row)

    def find(self, agent: str, key: str) -> backend.Memory | None:
        with self._transaction() as statements:
            rows = statements.fetch(_FIND, agent, key)
        return _memory(rows[0]) if rows else None

    def recall(self, search: backend.MemorySearch) -> list[backend.Recalled]:
        query = backend.query_words(search.query)
        where, values = _where(search)
        admitted = f"SELECT count(*) FROM memories WHERE {where}"
        counted = tuple(values)
        if query:
            best = f"{where} AND words @@ %s::tsquery ORDER BY ts_rank(words, %s::tsquery) DESC, updated_at DESC, key"
            values += [_match_expression(query)] * 2
            limit = max(_CANDIDATES, search.limit)
        else:
            best, limit = f"{where} ORDER BY updated_at DESC, key, agent", search.limit
        with self._transaction() as statements:
            rows = statements.fetch(f"SELECT {_FIELDS} FROM memories WHERE {best} LIMIT %s", *values, limit)
            ((total,),) = statements.fetch(admitted, *counted)
        return backend.search_all([_memory(row) for row in rows], search, total=total)

    def forget(self, agent: str, key: str, *, written_by: float | None = None) -> bool:
        with self._transaction() as statements:
            return bool(statements.fetch(_FORGET, agent, key, written_by, written_by))

    def agents(self) -> list[str]:
        with self._transaction() as statements:
            return [agent for (agent,) in statements.fetch("SELECT DISTINCT agent FROM memories ORDER BY agent")]

    def all(self) -> list[backend.Memory]:
        """All memories, oldest first, for a copy."""
        with self._transaction() as statements:
            rows = statements.fetch(f"SELECT {_FIELDS} FROM memories ORDER BY created_at, id")
        return [_memory(row) for row in rows]

    def insert_all(self, memories: Iterable[backend.Memory]) -> int:
        """Insert memories as they are, in one transaction; how many."""
        count = 0
        with self._transaction() as statements:
            for memory in memories:
                statements.send(_INSERT, *_values(memory))
                count += 1
        return count

    @contextmanager
    def _transaction(self) -> Generator[MemoryStatements]:
        try:
            with self._tables.transaction() as statements:
                yield statements
        except StoreError as error:
            raise backend.MemoryUnavailable(str(error)) from error


def _values(memory: backend.Memory) -> tuple[object, ...]:
    words = sorted({word[:_LONGEST_WORD] for word in backend.words(f"{memory.key} {memory.content}")})
    return (
        *(memory.id, memory.agent, memory.key, memory.content, memory.category),
        *(float(memory.created_at), float(memory.updated_at), memory.run_id, memory.session_id, words),
    )


def _memory(row: tuple[Any, ...]) -> backend.Memory:
    return backend.Memory(**dict(zip(backend.Memory.__struct_fields__, row, strict=True)))


def _where(search: backend.MemorySearch) -> tuple[str, list[object]]:
    parts = ["agent = ANY(%s)", "category <> ALL(%s)"]
    values: list[object] = [list(search.agents), list(search.without)]
    if search.since is not None:
        parts.append("updated_at >= %s")
        values.append(float(search.since))
    if search.until is not None:
        parts.append("updated_at <= %s")
        values.append(float(search.until))
    return " AND ".join(parts), values


def _match_expression(query: Sequence[str]) -> str:
    """The words as a text search query: each in quotes, so that none of them is an operator."""
    cut = [word[:_LONGEST_WORD] for word in query]
    return " | ".join(f"'{word}':*" if backend.is_prefix(word) else f"'{word}'" for word in cut)
