"""A damaged file of memories: flipped bytes are found, by the check and by every reader, or change no answer."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retinue.app.store_files import check_store
from retinue.store.sqlite.work import LongWork
from retinue.tools.memory.backend import MemorySearch, MemoryUnavailable, Note
from retinue.tools.memory.sqlite import FILE, SqliteMemory
from tests.store.damage import flip, flips, pages
from tests.store.test_damage import Whole

PARTS = (
    *("memories", "sqlite_autoindex_memories_1", "sqlite_autoindex_memories_2", "sqlite_schema", "sqlite_sequence"),
    *("memory_words_content", "memory_words_data", "memory_words_docsize", "memory_words_idx", "memory_words_config"),
)
WORDS = ("pool", "connections", "deploy", "friday", "number", "limit")


def fill(path: Path) -> None:
    memory = SqliteMemory(path)
    for agent in ("dig", "look"):
        for number in range(20):
            words = " ".join(WORDS[n % len(WORDS)] for n in range(number, number + 4))
            note = Note(agent=agent, key=f"key {number}", content=f"The {words} is {number}. " * 3, at=10.0 + number)
            memory.store(note)


def answers(path: Path) -> list[object]:
    memory = SqliteMemory(path)
    agents = ("dig", "look")
    found: list[object] = [memory.agents(), memory.all(), memory.recall(MemorySearch(agents=agents, limit=100))]
    found += [memory.find(agent, f"key {number}") for agent in agents for number in range(20)]
    found += [memory.recall(MemorySearch(agents=agents, query=word, limit=100)) for word in WORDS]
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    path = tmp_path_factory.mktemp("whole") / FILE
    fill(path)
    with closing(sqlite3.connect(path)) as connection:
        if ("ENABLE_DBSTAT_VTAB",) not in connection.execute("PRAGMA compile_options").fetchall():
            pytest.skip("this SQLite cannot say where its tables are (no dbstat)")
    return Whole(path.read_bytes(), answers(path), pages(path))


@pytest.mark.parametrize("name", PARTS)
def test_a_flipped_byte_of_the_memories_is_found_or_harmless(
    name: str, whole: Whole, tmp_path: Path, stress: bool
) -> None:
    results: dict[tuple[str, bool], int] = {}
    for position, by in flips(whole.bytes, whole.pages[name], 1000 if stress else 25, seed=14):
        damaged = flip(whole.bytes, position, by)
        (tmp_path / FILE).write_bytes(damaged)
        is_found = not check_store(LongWork(), home=tmp_path).ok
        (tmp_path / FILE).write_bytes(damaged)
        try:
            read = "equal" if answers(tmp_path / FILE) == whole.answers else "wrong"
        except MemoryUnavailable:
            read = "found"
        results[read, is_found] = results.get((read, is_found), 0) + 1
        assert read != "wrong", f"{name}: byte {position} changed by {by}: a wrong answer"
        assert (read, is_found) != ("found", False), f"{name}: byte {position} changed by {by}: the check finds nothing"
    assert any(is_found for _, is_found in results), results
