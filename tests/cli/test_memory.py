"""`retinue memory`: list, show and remove memories of agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.tools.memory.backend import Note
from retinue.tools.memory.memory_tools import open_memory
from tests.cli.conftest import Cli

STYLE = {
    "agent": "writer",
    "key": "style",
    "category": "core",
    "content": "plain\nwords",
    "created_at": "1970-01-01T00:00:05Z",
    "updated_at": "1970-01-01T00:00:05Z",
    "run_id": "r",
    "session_id": "s",
}


def remember(home: Path, kind: str) -> None:
    memory = open_memory(kind, home)
    memory.store(Note(agent="writer", key="style", content="plain\nwords", at=5.0, run_id="r", session_id="s"))
    memory.store(Note(agent="dig", key="color", content="blue \x1b[31m", category="daily", at=6.0))


@pytest.mark.parametrize("kind", ["sqlite", "markdown"])
def test_memories_are_listed_printed_and_removed(cli: Cli, home: Path, kind: str) -> None:
    remember(home, kind)

    table = cli("memory", "list")
    assert [line.split() for line in table.stdout.splitlines()] == [
        ["AGENT", "KEY", "CATEGORY", "STORED", "CONTENT"],
        ["dig", "color", "daily", "1970-01-01T00:00:06Z", "blue", "␛[31m"],
        ["writer", "style", "core", "1970-01-01T00:00:05Z", "plain", "words"],
    ]
    assert cli("memory", "list", "writer", "--json").json == [STYLE]
    assert cli("memory", "show", "writer", "style") == (0, "plain\nwords\n", "")
    assert cli("memory", "show", "writer", "style", "--json").json == STYLE
    assert cli("memory", "forget", "writer", "style") == (0, "", "forgot style of writer\n")
    for verb in ("show", "forget"):
        assert cli("memory", verb, "writer", "style") == (2, "", "error: unknown memory of writer: 'style'\n")
    assert cli("memory", "list", "writer") == (0, "", "no memories of writer\n")


def test_both_memory_backends_are_read(cli: Cli, home: Path) -> None:
    remember(home, "sqlite")
    open_memory("markdown", home).store(Note(agent="writer", key="style", content="old", at=1.0))
    open_memory("markdown", home).store(Note(agent="writer", key="tone", content="calm", at=9.0))

    assert [(row["key"], row["content"]) for row in cli("memory", "list", "writer", "--json").json] == [
        ("tone", "calm"),
        ("style", "plain\nwords"),
        ("style", "old"),
    ]
    assert cli("memory", "forget", "writer", "style").code == 0
    assert [row["key"] for row in cli("memory", "list", "writer", "--json").json] == ["tone"]


def test_listing_memories_creates_no_files(cli: Cli, home: Path) -> None:
    assert cli("memory", "list") == (0, "", "no memories\n")
    assert cli("memory", "list", "--json").json == []
    assert not (home / "memory.db").exists()
    assert not (home / "memory").exists()


def test_a_memory_that_was_written_by_hand_has_no_time(cli: Cli, folder: Path) -> None:
    (folder / "retinue.toml").write_text('[memory]\nbackend = "workspace"\n')
    (folder / "MEMORY.md").write_text("- **k1**: the first one\n")

    listed = cli("memory", "list", "--config", "retinue.toml")

    (row,) = [line.split() for line in listed.stdout.splitlines() if "k1" in line]
    assert (row[1], row[3], " ".join(row[4:])) == ("k1", "-", "the first one")
