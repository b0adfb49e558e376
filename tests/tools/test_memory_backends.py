"""The SQLite and Markdown memory backends: the contract, and what differs."""

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.tools.memory.backend import Memory, MemoryBackend, MemoryUnavailable, Recalled, Search
from retinue.tools.memory.markdown import MarkdownMemory
from retinue.tools.memory.memory_tools import open_memory
from retinue.tools.memory.sqlite import SqliteMemory
from tests.tools.memory_contract import LastingMemoryContract, MemoryContract, everything, keys, note


class TestSqliteMemory(LastingMemoryContract):
    def open_memory(self, folder: Path) -> MemoryBackend:
        return SqliteMemory(folder / "memory.db")


class TestSqliteMemoryWithoutFullText(LastingMemoryContract):
    def open_memory(self, folder: Path) -> MemoryBackend:
        return SqliteMemory(folder / "memory.db", full_text=False)


class TestMarkdownMemory(LastingMemoryContract):
    def open_memory(self, folder: Path) -> MemoryBackend:
        return MarkdownMemory(folder)


class TestMemoryThatDoesNotLast(MemoryContract):
    def open_memory(self, folder: Path) -> MemoryBackend:
        folder.mkdir(exist_ok=True)
        return SqliteMemory(None)


@pytest.mark.parametrize("kind", ["sqlite", "without full text", "markdown"])
@given(key=st.text(min_size=1, max_size=20), content=st.text(max_size=60), query=st.text(max_size=40))
def test_any_text_is_kept_as_it_is_and_any_question_can_be_asked(
    tmp_path_factory: pytest.TempPathFactory, kind: str, key: str, content: str, query: str
) -> None:
    in_memory = SqliteMemory(None, full_text=kind == "sqlite")
    memory = MarkdownMemory(tmp_path_factory.mktemp("memory")) if kind == "markdown" else in_memory
    other = memory.store(note("## other", "```\nfence"))
    row = memory.store(note(key, content))
    last = memory.store(note("last one", "the end\n\n"))

    assert (row.key, row.content) == (key, content)
    assert [memory.find("me", each.key) for each in (other, row, last)] == [other, row, last]
    for memo, score in memory.recall(Search(agents=("me",), query=query)):
        assert memo in (other, row, last)
        assert score is None or 0 < score <= 1
    assert row in [each.memory for each in memory.recall(Search(agents=("me",), query=f"{key} {content}"))]
    assert memory.forget("me", key)
    assert {each.memory for each in memory.recall(everything())} == {other, last}


@pytest.mark.parametrize("kind", ["sqlite", "markdown"])
def test_two_processes_write_side_by_side_and_nothing_is_lost(kind: str, tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.tools.memory_writer", kind, str(tmp_path), name, "30"],
            cwd=Path(__file__).parents[2],
        )
        for name in ("anna", "ben")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]

    found = open_memory(kind, tmp_path).recall(everything())
    assert sorted(keys(found)) == ["anna-29", "ben-29", "shared"]
    searched = open_memory(kind, tmp_path).recall(Search(agents=("me",), query="words of anna"))
    assert searched[0].memory.key == "anna-29"


@pytest.mark.parametrize("kind", ["sqlite", "markdown", "in memory"])
def test_threads_write_side_by_side_and_nothing_is_lost(kind: str, tmp_path: Path) -> None:
    memory = SqliteMemory(None) if kind == "in memory" else open_memory(kind, tmp_path)

    def remember(number: int) -> None:
        memory.store(note(f"k{number}", at=number))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(remember, range(40)))

    assert keys(memory.recall(everything())) == [f"k{number}" for number in reversed(range(40))]


# ---- SQLite ----------------------------------------------------------------------------------------------------------


def test_processes_with_and_without_full_text_share_a_file(tmp_path: Path) -> None:
    indexed, plain = SqliteMemory(tmp_path / "m.db"), SqliteMemory(tmp_path / "m.db", full_text=False)
    indexed.store(note("a", "old words"))
    indexed.store(note("b", "other words"))
    plain.store(note("a", "new words"))
    plain.forget("me", "b")
    last = plain.store(note("c", "fresh"))

    assert indexed.recall(Search(agents=("me",), query="old other")) == []
    assert keys(indexed.recall(Search(agents=("me",), query="new"))) == ["a"]
    assert indexed.recall(Search(agents=("me",), query="fresh")) == [Recalled(last, 1.0)]


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    SqliteMemory(tmp_path / "m.db").store(note("a"))

    assert (tmp_path / "m.db").stat().st_mode & 0o777 == 0o600


def test_the_error_of_a_file_that_is_no_database_has_no_path(tmp_path: Path) -> None:
    (tmp_path / "m.db").write_bytes(b"something else entirely " * 100)

    with pytest.raises(MemoryUnavailable, match=r"^The memory cannot be reached: file is not a database$"):
        SqliteMemory(tmp_path / "m.db").find("me", "a")


def test_a_file_of_a_newer_retinue_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "m.db")
    connection.execute("PRAGMA user_version = 9")
    connection.close()

    with pytest.raises(MemoryUnavailable, match=r"a newer retinue \(format 9, known up to 1\)"):
        SqliteMemory(tmp_path / "m.db").store(note("a"))


@pytest.mark.parametrize("kind", ["sqlite", "markdown"])
def test_a_folder_that_cannot_be_created_is_reported(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(MemoryUnavailable, match=r"^The memory cannot be reached: (File exists|Not a directory)$"):
        open_memory(kind, tmp_path / "file").store(note("a"))


# ---- Markdown --------------------------------------------------------------------------------------------------------

PAGE = """\
# Memory of me

## color

<!-- memory {"id":"1","agent":"me","key":"color","category":"core","created_at":1.0,"updated_at":2.0,"run_id":"r",\
"session_id":"s"} -->

```text
blue
```
"""


def test_a_page_is_readable_and_can_be_edited_by_hand(tmp_path: Path) -> None:
    memory = MarkdownMemory(tmp_path)
    page = tmp_path / "me.md"
    row = Memory(
        id="1", agent="me", key="color", content="blue", created_at=1.0, updated_at=2.0, run_id="r", session_id="s"
    )
    page.write_text(PAGE + "\nA line of my own.\n")

    assert memory.recall(everything()) == [Recalled(row)]
    memory.store(note("shape", "round"))
    memory.store(note("color", "red", at=3.0))
    memory.forget("me", "shape")
    expected = PAGE.replace("blue", "red").replace('"updated_at":2.0', '"updated_at":3.0')
    assert page.read_text() == expected + "\nA line of my own.\n"


def test_what_a_hand_made_unreadable_stays_in_the_file(tmp_path: Path) -> None:
    page = tmp_path / "me.md"
    broken = PAGE.replace('"created_at":1.0', '"created_at":"yesterday"')
    page.write_text(broken)
    memory = MarkdownMemory(tmp_path)

    assert memory.recall(everything()) == []
    memory.store(note("color", "red"))
    memory.forget("me", "color")
    assert page.read_text() == broken


def test_memories_that_come_and_go_leave_no_trace(tmp_path: Path) -> None:
    memory = MarkdownMemory(tmp_path)
    memory.store(note("first"))
    memory.store(note("last"))
    before = (tmp_path / "me.md").read_text()
    for number in range(3):
        memory.store(note(f"k{number}", "a\n\n\n\nb\n"))
    for number in (1, 0, 2):
        memory.forget("me", f"k{number}")

    assert (tmp_path / "me.md").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "me.md"]
