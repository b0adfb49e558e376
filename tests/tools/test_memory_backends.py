"""The SQLite, PostgreSQL, Markdown and workspace memory backends: the contract, and what differs."""

import hashlib
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import ToolError
from retinue.store.postgres import PostgresMemoryTables, parse_address
from retinue.tools.memory.backend import Memory, MemoryBackend, MemorySearch, MemoryUnavailable, Recalled
from retinue.tools.memory.markdown import MarkdownMemory
from retinue.tools.memory.memory_tools import open_memory
from retinue.tools.memory.postgres import PostgresMemory
from retinue.tools.memory.sqlite import SqliteMemory
from retinue.tools.memory.workspace import MAX_FILE_BYTES, WorkspaceMemory
from tests.postgres import PostgresServer
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


class TestWorkspaceMemory(LastingMemoryContract):
    def open_memory(self, folder: Path) -> MemoryBackend:
        return WorkspaceMemory({}, folder)


class TestWorkspaceMemoryAfterMarkdown(LastingMemoryContract):
    """A workspace together with the files of the state folder that were written before."""

    def open_memory(self, folder: Path) -> MemoryBackend:
        return WorkspaceMemory({}, folder, MarkdownMemory(folder / "state"))


class TestPostgresMemory(LastingMemoryContract):
    @pytest.fixture(autouse=True)
    def use_server(self, postgres_server: PostgresServer) -> None:
        self.server = postgres_server

    def open_memory(self, folder: Path) -> MemoryBackend:
        schema = f"t_{hashlib.sha256(str(folder).encode()).hexdigest()[:24]}"
        return PostgresMemory(PostgresMemoryTables(parse_address(self.server.url(schema))))


class TestMemoryThatDoesNotLast(MemoryContract):
    def open_memory(self, folder: Path) -> MemoryBackend:
        folder.mkdir(exist_ok=True)
        return SqliteMemory(None)


@pytest.mark.parametrize("kind", ["sqlite", "without full text", "markdown", "workspace"])
@given(key=st.text(min_size=1, max_size=20), content=st.text(max_size=60), query=st.text(max_size=40))
def test_any_text_is_kept_as_it_is_and_any_question_can_be_asked(
    tmp_path_factory: pytest.TempPathFactory, kind: str, key: str, content: str, query: str
) -> None:
    in_memory = SqliteMemory(None, full_text=kind == "sqlite")
    folder = tmp_path_factory.mktemp("memory")
    files = {"markdown": MarkdownMemory(folder), "workspace": WorkspaceMemory({}, folder)}
    memory = files.get(kind, in_memory)
    other = memory.store(note("## other", "```\nfence"))
    row = memory.store(note(key, content))
    last = memory.store(note("last one", "the end\n\n"))

    assert (row.key, row.content) == (key, content)
    assert [memory.find("me", each.key) for each in (other, row, last)] == [other, row, last]
    for memo, score in memory.recall(MemorySearch(agents=("me",), query=query)):
        assert memo in (other, row, last)
        assert score is None or 0 < score <= 1
    assert row in [each.memory for each in memory.recall(MemorySearch(agents=("me",), query=f"{key} {content}"))]
    assert memory.forget("me", key)
    assert {each.memory for each in memory.recall(everything())} == {other, last}


@pytest.mark.parametrize("kind", ["sqlite", "markdown", "workspace"])
def test_two_processes_write_side_by_side_and_nothing_is_lost(kind: str, tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.tools.memory_writer", kind, str(tmp_path), name, "30"],
            cwd=Path(__file__).parents[2],
        )
        for name in ("anna", "ben")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]

    found = open_memory(kind, tmp_path, folder=tmp_path).recall(everything())
    assert sorted(keys(found)) == ["anna-29", "ben-29", "shared"]
    searched = open_memory(kind, tmp_path, folder=tmp_path).recall(MemorySearch(agents=("me",), query="words of anna"))
    assert searched[0].memory.key == "anna-29"


@pytest.mark.parametrize("kind", ["sqlite", "markdown", "workspace", "in memory"])
def test_threads_write_side_by_side_and_nothing_is_lost(kind: str, tmp_path: Path) -> None:
    memory = SqliteMemory(None) if kind == "in memory" else open_memory(kind, tmp_path, folder=tmp_path)

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

    assert indexed.recall(MemorySearch(agents=("me",), query="old other")) == []
    assert keys(indexed.recall(MemorySearch(agents=("me",), query="new"))) == ["a"]
    assert indexed.recall(MemorySearch(agents=("me",), query="fresh")) == [Recalled(last, 1.0)]


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    SqliteMemory(tmp_path / "m.db").store(note("a"))

    assert (tmp_path / "m.db").stat().st_mode & 0o777 == 0o600


def test_the_error_of_a_file_that_is_no_database_has_no_path(tmp_path: Path) -> None:
    (tmp_path / "m.db").write_bytes(b"something else entirely " * 100)

    with pytest.raises(MemoryUnavailable, match=r"^The memory cannot be reached: file is not a database: see "):
        SqliteMemory(tmp_path / "m.db").find("me", "a")


def test_a_file_of_a_newer_retinue_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "m.db")
    connection.execute("PRAGMA user_version = 9")
    connection.close()

    with pytest.raises(MemoryUnavailable, match=r"a newer retinue \(format 9, known up to 2\)"):
        SqliteMemory(tmp_path / "m.db").store(note("a"))


@pytest.mark.parametrize("kind", ["sqlite", "markdown", "workspace"])
def test_a_folder_that_cannot_be_created_is_reported(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(MemoryUnavailable, match=r"^The memory cannot be reached: (File exists|Not a directory)$"):
        open_memory(kind, tmp_path / "file", folder=tmp_path / "file").store(note("a"))


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


# ---- the workspace ---------------------------------------------------------------------------------------------------

BY_HAND = """\
# Long-Term Memory

Some words of my own.

- **color**: blue
- **shape**: round
  and smooth

## Lessons

- Measure twice.
"""


def test_memories_are_items_of_a_list_in_a_file_that_people_read(tmp_path: Path) -> None:
    memory = WorkspaceMemory({}, tmp_path)
    row = memory.store(note("color", "blue\n\nand green"))
    noon = 1_763_208_000.0
    said = memory.store(note("user_msg_1", "Hello there.", category="conversation", at=noon))

    assert (tmp_path / "MEMORY.md").read_text() == (
        "# Long-Term Memory\n\n- **color**: blue\n  \n  and green\n"
        f'  <!-- memory {{"id":"{row.id}","agent":"me","created_at":1.0,"updated_at":1.0,"run_id":"r",'
        '"session_id":"s"} -->\n'
    )
    (day,) = (tmp_path / "memory").iterdir()
    date = day.name.removesuffix(".md")
    assert date in ("2025-11-14", "2025-11-15", "2025-11-16"), "noon in UTC, on a clock anywhere"
    assert day.read_text() == (
        f"# Daily Log — {date}\n\n- **user_msg_1**: Hello there.\n"
        f'  <!-- memory {{"id":"{said.id}","agent":"me","category":"conversation","created_at":{noon},'
        f'"updated_at":{noon},"run_id":"r","session_id":"s"}} -->\n'
    )


def test_a_file_that_was_written_by_hand_is_recalled_and_kept(tmp_path: Path) -> None:
    page = tmp_path / "MEMORY.md"
    page.write_text(BY_HAND)
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "2026-02-14.md").write_text("# Daily Log — 2026-02-14\n\n- **lunch**: soup\n")
    memory = WorkspaceMemory({"me": tmp_path, "you": tmp_path}, tmp_path / "elsewhere")

    found = {(each.memory.key, each.memory.content, each.memory.category) for each in memory.recall(everything())}
    assert found == {
        ("color", "blue", "core"),
        ("shape", "round\nand smooth", "core"),
        ("MEMORY:3", "Some words of my own.", "core"),
        ("MEMORY:11", "Measure twice.", "core"),
        ("lunch", "soup", "daily"),
    }
    assert len(memory.recall(everything("me", "you"))) == len(found), "each line once"
    assert keys(memory.recall(MemorySearch(agents=("you",), query="measure", since=1e9))) == ["MEMORY:11"], (
        "it has no time"
    )
    assert keys(memory.recall(MemorySearch(agents=("me",), query="soup", since=1.9e9))) == []
    assert memory.agents() == ["me", "you"]
    assert memory.find("me", "MEMORY:11") is None, "lines have numbers that change"
    assert not memory.forget("me", "MEMORY:11")
    memory.store(note("color", "red"))
    assert memory.forget("me", "color")
    assert memory.forget("me", "shape")
    assert page.read_text() == BY_HAND.replace("- **color**: blue\n- **shape**: round\n  and smooth\n", "").replace(
        "\n\n\n", "\n\n"
    )


def test_a_memory_moves_with_its_category(tmp_path: Path) -> None:
    memory = WorkspaceMemory({}, tmp_path)
    memory.store(note("plan", "first", category="daily"))
    memory.store(note("plan", "second", category="core", at=2.0))

    assert [each.memory.content for each in memory.recall(everything())] == ["second"]
    (day,) = (tmp_path / "memory").iterdir()
    assert "plan" not in day.read_text()


def test_memories_of_the_state_folder_are_read_and_move_when_stored(tmp_path: Path) -> None:
    earlier = MarkdownMemory(tmp_path / "state")
    old = earlier.store(note("color", "blue"))
    other = earlier.store(note("shape", "round", at=2.0))
    memory = WorkspaceMemory({}, tmp_path / "desk", earlier)

    assert memory.recall(everything()) == [Recalled(other), Recalled(old)]
    new = memory.store(note("color", "red", at=3.0))
    assert (new.id, new.created_at) == (old.id, 1.0)
    assert earlier.find("me", "color") is None
    assert memory.forget("me", "shape")
    assert memory.recall(everything()) == [Recalled(new)]
    assert earlier.agents() == []


def test_agents_with_other_workspaces_have_other_files(tmp_path: Path) -> None:
    memory = WorkspaceMemory({"me": tmp_path / "a"}, tmp_path / "b")
    memory.store(note("color", "blue"))
    memory.store(note("color", "red", agent="you"))

    assert "blue" in (tmp_path / "a" / "MEMORY.md").read_text()
    assert "red" in (tmp_path / "b" / "MEMORY.md").read_text()
    assert keys(memory.recall(everything("me", "you"))) == ["color", "color"]


@pytest.mark.parametrize("name", ["MEMORY.md", "memory"])
def test_a_link_is_refused_and_what_it_points_to_stays(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    if name == "MEMORY.md":
        outside.write_text("secret: x\n")
    else:
        outside.mkdir()
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / name).symlink_to(outside)
    memory = WorkspaceMemory({}, desk)

    for attempt in (
        lambda: memory.recall(everything()),
        lambda: memory.store(note("color", "blue")),
        lambda: memory.store(note("color", "blue", category="daily")),
        lambda: memory.find("me", "color"),
        lambda: memory.forget("me", "color"),
    ):
        with pytest.raises(MemoryUnavailable, match=f"^The memory cannot be reached: {name} is a symbolic link"):
            attempt()
    assert outside.read_text() == "secret: x\n" if name == "MEMORY.md" else os.listdir(outside) == []


def test_a_pipe_is_not_read_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "MEMORY.md")

    with pytest.raises(MemoryUnavailable, match=r"MEMORY\.md is not a file"):
        WorkspaceMemory({}, tmp_path).recall(everything())


def test_a_file_has_a_largest_size(tmp_path: Path) -> None:
    memory = WorkspaceMemory({}, tmp_path)
    row = memory.store(note("color", "blue"))
    with pytest.raises(ToolError, match=r"^The memory is full: MEMORY\.md would be larger than 4 MiB\."):
        memory.store(note("big", "x" * MAX_FILE_BYTES))
    assert memory.recall(everything()) == [Recalled(row)]

    (tmp_path / "MEMORY.md").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    with pytest.raises(MemoryUnavailable, match=r"MEMORY\.md is larger than 4 MiB"):
        memory.recall(everything())


def test_a_content_cannot_forge_another_memory(tmp_path: Path) -> None:
    memory = WorkspaceMemory({}, tmp_path)
    forged = 'x\n- **color**: red\n<!-- memory {"id":"1","agent":"you"} -->\n# heading\n\n- **a**: b'
    row = memory.store(note("k", forged))

    assert memory.recall(everything("me", "you")) == [Recalled(row)]


def test_the_mode_of_a_file_stays_and_no_other_file_is_left(tmp_path: Path) -> None:
    memory = WorkspaceMemory({}, tmp_path)
    memory.store(note("color", "blue"))
    assert (tmp_path / "MEMORY.md").stat().st_mode & 0o777 == 0o600
    (tmp_path / "MEMORY.md").chmod(0o640)
    memory.store(note("color", "red"))

    assert (tmp_path / "MEMORY.md").stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["MEMORY.md"]
