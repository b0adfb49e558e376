"""The file tools: texts for the model, and the files on disk afterwards."""

import asyncio
import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.core.attachments import File, Image
from retinue.core.policy import Policy, Risk
from retinue.core.ports import CallRisk, Tool, ToolResult
from retinue.tools.files import atomic_write, file_tools
from retinue.tools.files.file_tools import MAX_FILE, MAX_MEDIA
from retinue.tools.files.paths import PathTarget
from tests.cli.capabilities import as_plain_user
from tests.tools.tool_calls import ToolCaller, dependencies


@pytest.fixture
def call(tmp_path: Path) -> ToolCaller:
    (tmp_path / "ws").mkdir()
    (tmp_path / "outside").write_text("secret")
    return ToolCaller(file_tools.tools(dependencies()), tmp_path / "ws")


def put(call: ToolCaller, path: str, content: bytes | str) -> Path:
    file = call.workspace / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def names(call: ToolCaller) -> list[str]:
    return sorted(path.relative_to(call.workspace).as_posix() for path in call.workspace.rglob("*"))


# ---- what the tools are ----------------------------------------------------------------------------------------------


def test_kind_timeout_and_risk_of_each_tool() -> None:
    assert {
        tool.spec.name: (tool.kind, tool.timeout, tool.prepare("{}").risk) for tool in file_tools.tools(dependencies())
    } == {
        "file_read": ("pure", 60.0, CallRisk(Risk.LOW)),
        "file_write": ("idempotent", 60.0, CallRisk(Risk.MEDIUM, acts=True)),
        "file_edit": ("once", 60.0, CallRisk(Risk.MEDIUM, acts=True)),
        "file_ops": ("once", 60.0, CallRisk(Risk.MEDIUM, acts=True)),
        "bash_read": ("pure", 60.0, CallRisk(Risk.LOW)),
    }


def test_the_arguments_are_those_of_the_published_tools() -> None:
    def arguments(tool: Tool) -> tuple[list[str], list[str]]:
        schema = msgspec.json.decode(tool.spec.parameters)
        assert all(said.get("description") for said in schema["properties"].values())
        return list(schema["properties"]), schema["required"]

    assert {tool.spec.name: arguments(tool) for tool in file_tools.tools(dependencies())} == {
        "file_read": (["path", "offset", "limit"], ["path"]),
        "file_write": (["path", "content"], ["path", "content"]),
        "file_edit": (["path", "old_string", "new_string", "replace_all"], ["path", "old_string", "new_string"]),
        "file_ops": (
            ["operation", "path", "content", "destination", "offset", "limit"],
            ["operation", "path"],
        ),
        "bash_read": (["filepath", "limit", "offset"], ["filepath"]),
    }


@pytest.mark.parametrize(
    ("arguments", "call_risk"),
    [
        *((json.dumps({"operation": look}), CallRisk(Risk.LOW)) for look in ("read", "list", "exists", "info")),
        *(
            (json.dumps({"operation": act}), CallRisk(Risk.MEDIUM, acts=True))
            for act in ("write", "append", "delete", "move", "copy", "mkdir", "format", 1)
        ),
        ('{"operation": "read", "operation": "delete"}', CallRisk(Risk.MEDIUM, acts=True)),
        ("not json", CallRisk(Risk.MEDIUM, acts=True)),
        ("\ud800", CallRisk(Risk.MEDIUM, acts=True)),
        ("[" * 100_000, CallRisk(Risk.MEDIUM, acts=True)),
    ],
)
def test_reading_file_ops_are_of_low_risk(arguments: str, call_risk: CallRisk) -> None:
    (tool,) = (tool for tool in file_tools.tools(dependencies()) if tool.spec.name == "file_ops")
    assert tool.prepare(arguments).risk == call_risk


# ---- file_read and bash_read -----------------------------------------------------------------------------------------


async def test_file_read_numbers_lines_and_names_the_next_offset(call: ToolCaller) -> None:
    put(call, "poem", "one\ntwo\r\nthree\nfour")
    assert await call("file_read", path="poem") == "1: one\n2: two\n3: three\n4: four"
    assert await call("file_read", path="poem", limit=2) == "1: one\n2: two\n[Lines 1-2 of 4; go on with offset=3]"
    assert await call("file_read", path="poem", offset=3) == "3: three\n4: four\n[Lines 3-4 of 4]"
    assert await call("file_read", path="poem", offset=9) == "[No lines in range: poem has 4 lines]"


async def test_an_empty_file_is_reported_as_empty(call: ToolCaller) -> None:
    put(call, "empty", b"")
    assert await call("file_read", path="empty") == "[empty is empty]"


async def test_a_long_file_comes_in_parts_that_lose_nothing(call: ToolCaller) -> None:
    lines = [f"line {number} " + "x" * 90 for number in range(1, 2001)]
    put(call, "long", "\n".join(lines))
    seen: list[str] = []
    offset = 1
    while True:
        text = await call("file_read", path="long", offset=offset)
        assert len(text) < 60_000
        *shown, last = text.split("\n")
        if "go on with offset=" not in last:
            seen += [*shown, last][: 2000 - len(seen)]
            break
        seen += shown
        offset = int(last.rpartition("=")[2].rstrip("]"))
    assert [line.partition(": ")[2] for line in seen] == lines


async def test_a_long_line_is_cut_and_the_next_one_is_there(call: ToolCaller) -> None:
    put(call, "wide", "ä" * 100_000 + "\nnext")
    shown = await call("file_read", path="wide")
    assert shown == f"1: {'ä' * 2000}… (194000 more)\n2: next"


async def test_bash_read_answers_with_a_page(call: ToolCaller) -> None:
    put(call, "poem", "one\ntwo\nthree\n")
    assert json.loads(await call("bash_read", filepath="poem")) == {
        "results": ["one", "two", "three"],
        "total": 3,
        "offset": 0,
        "limit": 0,
        "has_more": False,
        "returned": 3,
        "content": "one\ntwo\nthree",
    }
    assert json.loads(await call("bash_read", filepath="poem", limit=1, offset=1)) == {
        "results": ["two"],
        "total": 3,
        "offset": 1,
        "limit": 1,
        "has_more": True,
        "returned": 1,
        "content": "two",
    }


async def test_bash_read_of_everything_stays_bounded(call: ToolCaller) -> None:
    put(call, "long", "0123456789\n" * 20_000)
    text = await call("bash_read", filepath="long")
    page = json.loads(text)
    assert (page["total"], page["has_more"], page["returned"]) == (20_000, True, len(page["results"]))
    assert 49_900 < len(text) <= 50_000


async def test_file_read_shows_an_image(call: ToolCaller) -> None:
    put(call, "photo", b"GIF8\0\0\0\0")
    put(call, "scan.txt", b"%PDF-1.7")
    put(call, "large.png", b"\x89PNG" + bytes(MAX_MEDIA))

    assert await call.result("file_read", path="photo") == ToolResult(
        "", attachments=(Image(b"GIF8\0\0\0\0", name="photo"),)
    )
    assert await call.result("file_read", path="scan.txt") == ToolResult(
        "", attachments=(File(b"%PDF-1.7", name="scan.txt"),)
    )
    size = f"{MAX_MEDIA + 4} bytes; at most {MAX_MEDIA}"
    assert await call.error("file_read", path="large.png") == f"too large to look at ({size}): large.png"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("none", "No such file or directory"),
        ("folder", "Is a directory"),
        ("program", "binary file, 12 bytes, not shown"),
        ("huge", f"too large to read by lines ({MAX_FILE + 1} bytes); search it instead"),
        ("poem/below", "Not a directory"),
    ],
)
async def test_unreadable_files_are_reported_with_the_reason(call: ToolCaller, path: str, reason: str) -> None:
    put(call, "poem", "one")
    put(call, "program", b"\x7fELF\0\0\0\0\0\0\0\0")
    (call.workspace / "folder").mkdir()
    with put(call, "huge", b"").open("wb") as file:
        file.truncate(MAX_FILE + 1)
    assert await call.error("file_read", path=path) == f"{reason}: {path}"
    assert await call.error("file_ops", operation="read", path=path) == f"{reason}: {path}"
    assert json.loads(await call.error("bash_read", filepath=path)) == {
        "error": f"Failed to read file: {reason}: {path}"
    }


async def test_bytes_that_are_no_text_are_replaced(call: ToolCaller) -> None:
    put(call, "odd", b"caf\xe9\n")
    assert await call("file_read", path="odd") == "1: caf\ufffd"


@contextlib.contextmanager
def concurrent_change(change: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """After each read of a file, another writer changes it."""
    read, times = os.pread, 0

    def read_and_change(fd: int, size: int, offset: int) -> bytes:
        nonlocal times
        times += 1
        assert times < 100, "this does not come to an end"
        found = read(fd, size, offset)
        change()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", read_and_change)
        yield


async def test_a_file_that_grows_while_it_is_read_is_read_as_it_was(
    call: ToolCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = put(call, "log", "one\ntwo")

    def grow() -> None:
        with log.open("a") as file:
            file.write("more")

    with concurrent_change(grow, monkeypatch):
        assert await call("file_read", path="log") == "1: one\n2: two"
    log.write_text("one\ntwo")
    with concurrent_change(grow, monkeypatch):
        assert await call("file_ops", operation="copy", path="log", destination="copy") == (
            "Copied log to copy (7 bytes)"
        )
    for change in ({"operation": "append", "content": "!"}, {"old_string": "one", "new_string": "1"}):
        tool = "file_ops" if "operation" in change else "file_edit"
        with concurrent_change(grow, monkeypatch):
            assert await call.error(tool, path="log", **change) == (
                "the file was changed by another program meanwhile; read it again: log"
            )
    assert names(call) == ["copy", "log"]


async def test_a_file_that_shrinks_while_it_is_read_ends_where_it_ends_now(
    call: ToolCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = put(call, "log", "one\ntwo\nthree\n")
    reads = iter(range(100))

    def shrink() -> None:
        if next(reads) == 1:  # the lines are counted by now
            os.truncate(log, 4)

    with concurrent_change(shrink, monkeypatch):
        assert await call("file_read", path="log") == "1: one"


async def test_outside_each_surface_refuses_in_its_own_words(call: ToolCaller) -> None:
    assert await call.error("bash_read", filepath="../outside") == "Path outside CWD not allowed: ../outside"
    assert await call.error("file_read", path="../outside") == (
        "Security policy: cannot read ../outside: it lies outside the workspace and the allowed folders "
        "(workspace_only, allowed_roots, allowed_roots_read_only)"
    )
    assert await call.error("file_write", path="../outside", content="") == (
        "Security policy: cannot write ../outside: it lies outside the workspace and the allowed folders "
        "(workspace_only, allowed_roots, allowed_roots_write_only)"
    )


def test_missing_permissions_are_reported(call: ToolCaller) -> None:
    put(call, "locked", "secret").chmod(0)
    call.workspace.chmod(0o500)

    async def refusals() -> list[str]:
        return [
            await call.error("file_read", path="locked"),
            await call.error("file_write", path="new", content="x"),
        ]

    messages = as_plain_user(lambda: asyncio.run(refusals()))
    call.workspace.chmod(0o700)

    assert messages == ["Permission denied: locked", "Permission denied: new"]
    assert names(call) == ["locked"]


# ---- file_write and file_edit ----------------------------------------------------------------------------------------


async def test_file_write_makes_folders_and_replaces_files(call: ToolCaller) -> None:
    assert await call("file_write", path="a/b/c.txt", content="grün") == "Written 5 bytes to a/b/c.txt"
    assert await call("file_write", path="a/b/c.txt", content="") == "Written 0 bytes to a/b/c.txt"
    assert names(call) == ["a", "a/b", "a/b/c.txt"]


async def test_a_written_file_keeps_its_permissions(call: ToolCaller) -> None:
    put(call, "run.sh", "old").chmod(0o751)
    await call("file_write", path="run.sh", content="new")
    assert stat.S_IMODE((call.workspace / "run.sh").stat().st_mode) == 0o751


async def test_writing_through_a_link_inside_changes_what_it_leads_to(call: ToolCaller) -> None:
    put(call, "real", "old")
    (call.workspace / "link").symlink_to("real")
    await call("file_write", path="link", content="new")
    assert ((call.workspace / "real").read_text(), (call.workspace / "link").is_symlink()) == ("new", True)


async def test_a_failing_write_leaves_the_old_file_and_nothing_else(
    call: ToolCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(call, "a.txt", "old")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    assert await call.error("file_write", path="a.txt", content="new") == "No space left on device: a.txt"
    assert (names(call), (call.workspace / "a.txt").read_text()) == (["a.txt"], "old")


@pytest.mark.parametrize("path", ["folder", "pipe", "file/below"])
async def test_only_regular_files_are_written(call: ToolCaller, path: str) -> None:
    (call.workspace / "folder").mkdir()
    os.mkfifo(call.workspace / "pipe")
    put(call, "file", "x")
    before = names(call)
    await call.error("file_write", path=path, content="new")
    assert names(call) == before


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("file_write", {"path": "a/b/retinue.toml", "content": "x"}),
        ("file_write", {"path": "a/private", "content": "x"}),
        ("file_ops", {"operation": "write", "path": "a/b/c"}),
        ("file_ops", {"operation": "append", "path": "a/b/retinue.yaml", "content": "x"}),
        ("file_ops", {"operation": "copy", "path": "none", "destination": "a/b/c"}),
        ("file_ops", {"operation": "move", "path": "none", "destination": "a/b/c"}),
        ("file_ops", {"operation": "mkdir", "path": "a/private"}),
    ],
)
async def test_a_refused_write_creates_no_folders(call: ToolCaller, tool: str, arguments: dict[str, str]) -> None:
    call.policy = Policy(forbidden_paths=("a/private",))
    await call.error(tool, **arguments)
    assert names(call) == []


async def test_file_edit_replaces_the_only_occurrence(call: ToolCaller) -> None:
    file = put(call, "a.py", b"x = 1\ny = 1\n# caf\xe9\n")
    assert await call("file_edit", path="a.py", old_string="x = 1", new_string="x = 2") == (
        "Edited a.py: replaced 1 occurrence (19 bytes)"
    )
    assert file.read_bytes() == b"x = 2\ny = 1\n# caf\xe9\n"


async def test_file_edit_replaces_all_only_when_asked(call: ToolCaller) -> None:
    file = put(call, "a.py", "1 1 1")
    assert await call.error("file_edit", path="a.py", old_string="1", new_string="2") == (
        "old_string matches 3 times in a.py; it must match exactly once: "
        "take in more lines around it, or set replace_all"
    )
    assert await call("file_edit", path="a.py", old_string="1", new_string="2", replace_all=True) == (
        "Edited a.py: replaced 3 occurrences (5 bytes)"
    )
    assert file.read_text() == "2 2 2"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("absent", "x", "old_string not found in a.py; read the file again and copy the text exactly"),
        ("", "x", "old_string must not be empty; file_write writes a whole file"),
        ("x", "x", "old_string and new_string are the same; nothing to do"),
    ],
)
async def test_an_edit_that_does_not_match_is_an_error(call: ToolCaller, old: str, new: str, complaint: str) -> None:
    put(call, "a.py", "text")
    assert await call.error("file_edit", path="a.py", old_string=old, new_string=new) == complaint


async def test_an_edit_keeps_the_line_ends_of_the_file(call: ToolCaller) -> None:
    file = put(call, "dos.txt", b"one\r\ntwo\r\nthree\r\n")
    await call("file_edit", path="dos.txt", old_string="one\ntwo", new_string="1\n2")
    assert file.read_bytes() == b"1\r\n2\r\nthree\r\n"


async def test_edits_side_by_side_lose_nothing(call: ToolCaller) -> None:
    file = put(call, "list", "".join(f"<{number}>\n" for number in range(40)))
    await asyncio.gather(
        *(call("file_edit", path="list", old_string=f"<{number}>", new_string=f"{number}") for number in range(40))
    )
    assert file.read_text() == "".join(f"{number}\n" for number in range(40))


async def test_an_edit_of_a_concurrently_changed_file_fails(call: ToolCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    file = put(call, "a.py", "old")
    check = atomic_write._check_unchanged

    def late(target: PathTarget, seen: os.stat_result | None) -> None:
        file.write_text("another writer's")
        check(target, seen)

    monkeypatch.setattr(atomic_write, "_check_unchanged", late)
    assert await call.error("file_edit", path="a.py", old_string="old", new_string="new") == (
        "the file was changed by another program meanwhile; read it again: a.py"
    )
    assert (names(call), file.read_text()) == (["a.py"], "another writer's")


# ---- file_ops --------------------------------------------------------------------------------------------------------


async def test_file_ops_writes_appends_and_reads(call: ToolCaller) -> None:
    assert await call("file_ops", operation="write", path="a/log", content="1\n") == "Written 2 bytes to a/log"
    assert await call("file_ops", operation="append", path="a/log", content="2\n") == (
        "Appended 2 bytes to a/log (4 bytes now)"
    )
    assert await call("file_ops", operation="append", path="b/log", content="3") == (
        "Appended 1 bytes to b/log (1 bytes now)"
    )
    assert await call("file_ops", operation="read", path="a/log") == "1\n2"
    assert await call("file_ops", operation="read", path="a/log", limit=1) == "1\n[Lines 1-1 of 2; go on with offset=1]"


async def test_file_ops_lists_entries_that_are_not_forbidden(call: ToolCaller) -> None:
    call.policy = Policy(forbidden_paths=(f"{call.workspace}/key",))
    put(call, "b/inner", "")
    put(call, "a", "")
    put(call, "key", "")
    put(call, os.fsdecode(b"\xff"), "")
    (call.workspace / "link").symlink_to("/etc")
    assert await call("file_ops", operation="list", path=".") == "a\nb/\nlink@\n?"
    assert await call("file_ops", operation="list", path=".", offset=1, limit=2) == (
        "b/\nlink@\n[Entries 2-3 of 4; go on with offset=3]"
    )
    assert await call("file_ops", operation="list", path=".", offset=9) == "[No entries in range: . has 4]"


async def test_a_folder_with_very_many_entries_comes_in_parts(call: ToolCaller) -> None:
    for number in range(1100):
        put(call, f"{number:04}", "")
    *_, last = (await call("file_ops", operation="list", path=".")).split("\n")
    assert last == "[Entries 1-1000 of 1100; go on with offset=1000]"


async def test_file_ops_deletes_files_links_and_empty_folders(call: ToolCaller) -> None:
    put(call, "full/inner", "")
    (call.workspace / "empty").mkdir()
    (call.workspace / "link").symlink_to("../outside")
    for path in ("empty", "link"):
        assert await call("file_ops", operation="delete", path=path) == f"Deleted {path}"
    assert await call.error("file_ops", operation="delete", path="full") == "Directory not empty: full"
    assert await call.error("file_ops", operation="delete", path="none") == "No such file or directory: none"
    assert (names(call), (call.workspace.parent / "outside").exists()) == (["full", "full/inner"], True)


async def test_the_workspace_itself_stays(call: ToolCaller) -> None:
    for path in (".", str(call.workspace), "../ws"):
        await call.error("file_ops", operation="delete", path=path)
        await call.error("file_ops", operation="move", path=path, destination="x")
    assert call.workspace.exists()


async def test_file_ops_moves_and_copies_and_never_overwrites(call: ToolCaller) -> None:
    put(call, "a", "A").chmod(0o744)
    put(call, "b", "B")
    assert await call("file_ops", operation="copy", path="a", destination="sub/c") == "Copied a to sub/c (1 bytes)"
    assert await call("file_ops", operation="move", path="a", destination="d") == "Moved a to d"
    taken = "something of that name is there already; delete it first or choose another name: b"
    assert await call.error("file_ops", operation="move", path="d", destination="b") == taken
    assert await call.error("file_ops", operation="copy", path="d", destination="b") == taken
    assert {file.name: file.read_text() for file in call.workspace.rglob("*") if file.is_file()} == {
        "b": "B",
        "c": "A",
        "d": "A",
    }
    assert stat.S_IMODE((call.workspace / "sub" / "c").stat().st_mode) == 0o744


@pytest.mark.parametrize("operation", ["move", "copy"])
async def test_nothing_is_moved_or_copied_across_the_border(call: ToolCaller, operation: str) -> None:
    put(call, "a", "A")
    (call.workspace / "out").symlink_to("..")
    for path, destination in (("a", "../b"), ("../outside", "b"), ("a", "out/b"), ("out/outside", "b")):
        text = await call.error("file_ops", operation=operation, path=path, destination=destination)
        assert text.startswith("Security policy: "), text
    assert sorted(path.name for path in call.workspace.parent.iterdir()) == ["outside", "ws"]
    assert names(call) == ["a", "out"]


async def test_what_may_only_be_written_is_not_read_by_moving_it(call: ToolCaller) -> None:
    drop = call.workspace.parent / "drop"
    drop.mkdir()
    (drop / "letter").write_text("sealed")
    call.policy = Policy(allowed_roots_write_only=(str(drop),))
    for operation in ("move", "copy"):
        await call.error("file_ops", operation=operation, path=f"{drop}/letter", destination="letter")
    assert names(call) == []


async def test_a_folder_with_something_forbidden_in_it_is_not_moved_away(call: ToolCaller) -> None:
    put(call, "sub/key", "secret")
    call.policy = Policy(forbidden_paths=("sub/key",))
    await call.error("file_ops", operation="move", path="sub", destination="free")
    assert names(call) == ["sub", "sub/key"]


async def test_settings_are_neither_moved_nor_deleted_nor_put_in_place(call: ToolCaller) -> None:
    put(call, "retinue.toml", "strict")
    put(call, "mine.toml", "loose")
    await call.error("file_ops", operation="delete", path="retinue.toml")
    await call.error("file_ops", operation="move", path="retinue.toml", destination="old.toml")
    await call.error("file_ops", operation="move", path="mine.toml", destination="sub/retinue.yaml")
    await call.error("file_ops", operation="append", path="retinue.toml", content="loose")
    await call.error("file_edit", path="retinue.toml", old_string="strict", new_string="loose")
    assert {file.name: file.read_text() for file in call.workspace.iterdir() if file.is_file()} == {
        "mine.toml": "loose",
        "retinue.toml": "strict",
    }


async def test_file_ops_makes_folders(call: ToolCaller) -> None:
    assert await call("file_ops", operation="mkdir", path="a/b") == "Made folder a/b"
    assert await call("file_ops", operation="mkdir", path="a/b") == "a/b exists already"
    assert names(call) == ["a", "a/b"]


async def test_file_ops_exists_and_info(call: ToolCaller) -> None:
    os.utime(put(call, "a", "12345"), (1767225600, 1767225600))
    (call.workspace / "a").chmod(0o644)
    (call.workspace / "link").symlink_to("nowhere")
    assert await call("file_ops", operation="exists", path="a") == "a exists: file"
    assert await call("file_ops", operation="exists", path="link") == "link exists: symbolic link"
    assert await call("file_ops", operation="exists", path=".") == ". exists: folder"
    assert await call("file_ops", operation="exists", path="a/b") == "a/b does not exist"
    assert await call("file_ops", operation="exists", path="none") == "none does not exist"
    assert json.loads(await call("file_ops", operation="info", path="a")) == {
        "path": "a",
        "type": "file",
        "size": 5,
        "mode": "-rw-r--r--",
        "modified": "2026-01-01T00:00:00+00:00",
    }
    assert await call.error("file_ops", operation="info", path="none") == "No such file or directory: none"
    assert (await call.error("file_ops", operation="exists", path="../outside")).startswith("Security policy: ")


async def test_a_file_of_any_year_can_be_looked_at(call: ToolCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    put(call, "a", "")
    look = os.stat

    def of_another_time(path: Any, **options: Any) -> os.stat_result:
        found = look(path, **options)
        return os.stat_result((*found[:8], 10**12, found[9])) if path == "a" else found

    monkeypatch.setattr(os, "stat", of_another_time)
    assert json.loads(await call("file_ops", operation="info", path="a"))["modified"] == (
        "1000000000000 seconds after 1970"
    )


async def test_a_move_to_another_disk_that_cannot_remove_the_file_leaves_it_where_it_was(
    call: ToolCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(call, "a", "x")
    rename, unlink = os.rename, os.unlink

    def to_another_disk(source: str, target: str, **options: Any) -> None:
        if source == "a":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(source, target, **options)

    def on_a_disk_that_is_read_only(name: str, **options: Any) -> None:
        if name == "a":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        unlink(name, **options)

    monkeypatch.setattr(os, "rename", to_another_disk)
    monkeypatch.setattr(os, "unlink", on_a_disk_that_is_read_only)
    assert await call.error("file_ops", operation="move", path="a", destination="b") == "Read-only file system: a"
    assert names(call) == ["a"]


async def test_an_operation_without_its_argument_is_an_error_that_names_it(call: ToolCaller) -> None:
    put(call, "a", "A")
    assert await call.error("file_ops", operation="write", path="a") == "file_ops: write needs the argument 'content'"
    assert await call.error("file_ops", operation="move", path="a") == (
        "file_ops: move needs the argument 'destination'"
    )
    assert (call.workspace / "a").read_text() == "A"
