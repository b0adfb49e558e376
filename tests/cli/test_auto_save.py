"""`[memory]`: messages of the user that are stored, and Markdown memory in workspaces, through the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from retinue.providers.scripted import calls, says
from retinue.testing.fake_chat import ChatScript
from tests.cli.conftest import Cli
from tests.cli.stage import serving

LONG = "Remember the pool, please."
TWENTY = "Twenty characters..."
SHORT = "Nineteen characters"
SETTINGS = """
[memory]
auto_save = true

[agents.dig]
system_prompt = "You dig."

[agents.ghost]
system_prompt = "You forget."

[agents.ghost.memory]
backend = "none"
"""


def saved(cli: Cli) -> list[dict[str, Any]]:
    return cli("memory", "list", "--json").json


def contents(cli: Cli) -> list[str]:
    return sorted(row["content"] for row in saved(cli))


@pytest.mark.promise("ZC-MEMORY-AUTO-SAVE")
def test_a_long_message_of_the_user_is_stored(cli: Cli, folder: Path) -> None:
    (folder / "retinue.toml").write_text(SETTINGS)
    with serving(says("I will.")) as vendor:
        flags = ("--quiet", "--dialect", "zeroclaw", "--base-url", vendor.base_url, "--model", "m")
        for text in (TWENTY, SHORT, " " * 30 + "x", "äöüß" * 5):
            assert cli("run", *flags, "--agent", "dig", text).code == 0
        assert cli("run", *flags, LONG).code == 0
        assert cli("run", *flags, "--agent", "ghost", LONG).code == 0
        (run,) = [row for row in cli("runs", "--json").json if row["agent"] == "main"]

    rows = saved(cli)
    assert {(row["agent"], row["content"], row["category"]) for row in rows} == {
        ("dig", TWENTY, "conversation"),
        ("dig", " " * 30 + "x", "conversation"),
        ("dig", "äöüß" * 5, "conversation"),
        ("main", LONG, "conversation"),
    }
    assert len(TWENTY) == 20
    assert all(re.fullmatch(r"user_msg_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", row["key"]) for row in rows)
    assert len({row["key"] for row in rows}) == 4
    (of_main,) = [row for row in rows if row["agent"] == "main"]
    assert (of_main["run_id"], of_main["session_id"]) == (run["run_id"], run["session_id"])


@pytest.mark.promise("ZC-MEMORY-AUTO-SAVE")
def test_every_long_message_of_a_chat_is_stored(cli: Cli, folder: Path) -> None:
    (folder / "retinue.toml").write_text(SETTINGS)
    with serving(says("I will.")) as vendor:
        flags = ("--quiet", "--dialect", "zeroclaw", "--base-url", vendor.base_url, "--model", "m")
        lines = f"{LONG}\n{SHORT}\nAnd this one is long enough.\n".encode()
        assert cli("chat", *flags, stdin=lines).code == 0
        assert cli("chat", *flags, "--agent", "dig", stdin=f"For dig: {LONG}\n".encode()).code == 0

    assert contents(cli) == ["And this one is long enough.", f"For dig: {LONG}", LONG]


@pytest.mark.parametrize(
    ("settings", "dialect"), [(SETTINGS, "spec"), (SETTINGS, "none"), (SETTINGS.replace("true", "false"), "zeroclaw")]
)
def test_nothing_is_stored_without_the_setting_and_the_dialect(
    cli: Cli, folder: Path, settings: str, dialect: str
) -> None:
    (folder / "retinue.toml").write_text(settings)
    with serving(says("I will.")) as vendor:
        flags = ("--quiet", "--dialect", dialect, "--base-url", vendor.base_url, "--model", "m")
        assert cli("run", *flags, LONG).code == 0
        assert cli("chat", *flags, stdin=f"{LONG}\n".encode()).code == 0

    assert saved(cli) == []


@pytest.mark.promise("ZC-CRON-NO-SAVE")
def test_the_prompt_of_a_job_and_the_tasks_of_subagents_are_not_stored(cli: Cli, folder: Path) -> None:
    (folder / "retinue.toml").write_text(SETTINGS)
    spawns = calls("spawn_subagent", prompt="Look at the pool, and at nothing else.")
    stores = calls("memory_store", key="pool", content="It has 20 connections.")
    script = ChatScript().play(spawns, says("Done.")).play(stores, says("Looked."), words="at nothing else")
    with serving(script) as vendor:
        job = ("--every", "1h", "--agent", "dig", "--prompt", LONG, "--base-url", vendor.base_url, "--model", "m")
        assert cli("cron", "add", "a", *job).code == 0
        assert cli("cron", "run-now", "a").code == 0

    assert [(row["agent"], row["key"]) for row in saved(cli)] == [("dig", "pool")]


def test_a_memory_that_cannot_be_written_does_not_stop_the_run(cli: Cli, folder: Path, home: Path) -> None:
    (folder / "retinue.toml").write_text(SETTINGS)
    home.mkdir()
    (home / "memory.db").mkdir()
    with serving(says("I will.")) as vendor:
        flags = ("--quiet", "--dialect", "zeroclaw", "--base-url", vendor.base_url, "--model", "m")
        result = cli("run", *flags, LONG)

    assert (result.code, result.stdout) == (0, "I will.\n")
    assert "the message is not stored as a memory: The memory cannot be reached: Is a directory" in result.stderr


WORKSPACES = """
[memory]
backend = "markdown"
auto_save = true

[agents.dig]
system_prompt = "You dig."

[agents.dig.workspace]
path = "desk"

[agents.reader]
system_prompt = "You read."

[agents.reader.workspace]
read_memory_from = ["dig"]

[agents.plain]
system_prompt = "You are plain."

[agents.plain.memory]
backend = "sqlite"
"""


@pytest.mark.promise("ZC-MEMORY-WORKSPACE")
@pytest.mark.parametrize("backend", ["markdown", "workspace"])
def test_markdown_memory_is_in_the_workspace_of_the_agent_and_its_subagents(
    cli: Cli, folder: Path, home: Path, backend: str
) -> None:
    (folder / "retinue.toml").write_text(WORKSPACES.replace('"markdown"', f'"{backend}"'))
    spawns = calls("spawn_subagent", prompt="Keep it for later.")
    stores = calls("memory_store", key="pool", content="It has 20 connections.")
    script = (
        ChatScript()
        .play(spawns, says("Done."), words="You dig.")
        .play(stores, says("Kept."), words="Keep it for later.")
        .play(calls("memory_recall", query="connections"), says("Read."), words="You read.")
        .play(calls("memory_store", key="style", content="plain"), says("Stored."), words="You are plain.")
    )
    with serving(script) as vendor:
        flags = ("--quiet", "--dialect", "zeroclaw", "--base-url", vendor.base_url, "--model", "m")
        for agent, text in (("dig", LONG), ("reader", "Read it."), ("plain", "Store it.")):
            assert cli("run", *flags, "--agent", agent, text).code == 0
        (recalled,) = [
            message["content"]
            for heard in vendor.requests
            for message in heard.body["messages"]
            if message["role"] == "tool" and "Found" in message["content"]
        ]

    lasting = (folder / "desk" / "MEMORY.md").read_text()
    assert lasting.startswith("# Long-Term Memory\n\n- **pool**: It has 20 connections.\n  <!-- memory {")
    (day,) = (folder / "desk" / "memory").iterdir()
    assert re.match(rf"# Daily Log — {day.stem}\n\n- \*\*user_msg_[0-9a-f-]+\*\*: {LONG}\n", day.read_text())
    assert recalled.startswith("Found 1 memories:\n- [core] pool: It has 20 connections.")
    assert not (home / "memory").exists()
    assert sorted((row["agent"], row["content"]) for row in saved(cli)) == [
        ("dig", "It has 20 connections."),
        ("dig", LONG),
        ("plain", "plain"),
    ]
    assert cli("memory", "forget", "dig", "pool").code == 0
    assert (folder / "desk" / "MEMORY.md").read_text() == "# Long-Term Memory\n"


def test_a_linked_memory_file_is_an_error_that_the_model_reads(cli: Cli, folder: Path) -> None:
    (folder / "retinue.toml").write_text(WORKSPACES)
    (folder / "secret.txt").write_text("- **key**: sesame\n")
    (folder / "MEMORY.md").symlink_to(folder / "secret.txt")
    script = ChatScript().play(calls("memory_recall"), says("I see."))
    with serving(script) as vendor:
        flags = ("--quiet", "--dialect", "zeroclaw", "--base-url", vendor.base_url, "--model", "m")
        assert cli("run", *flags, "--agent", "reader", "Read it.").code == 0
        result = vendor.requests[-1].body["messages"][-1]["content"]

    assert "The memory cannot be reached: MEMORY.md is a symbolic link" in result
    assert "sesame" not in result


def test_memories_are_listed_with_settings_that_have_errors(cli: Cli, folder: Path) -> None:
    (folder / "retinue.toml").write_text("[agents.dig]\nmax_turns = 0\n")

    listed = cli("memory", "list", "--json")

    assert (listed.code, listed.json) == (0, [])
    assert listed.stderr.startswith("warning: the memories in workspaces are not shown: retinue.toml:2: ")


@pytest.mark.promise("ZC-MEMORY-AUTO-SAVE")
@pytest.mark.parametrize(
    ("memory", "stored"),
    [
        ("", [("main", LONG)]),
        ('[memory]\nbackend = "sqlite.default"\n', [("main", LONG)]),
        ("[memory]\nauto_save = false\n", []),
        ('[memory]\nbackend = "none"\n', []),
    ],
)
def test_a_config_toml_stores_messages_unless_it_says_no(
    cli: Cli, folder: Path, memory: str, stored: list[tuple[str, str]]
) -> None:
    """That program stores them by default; a `retinue.toml` does not."""
    with serving(says("I will.")) as vendor:
        provider = f'[providers.models.custom.work]\nuri = "{vendor.base_url}"\nmodel = "m"\n'
        (folder / "config.toml").write_text(f"{memory}\n{provider}")
        flags = ("--config", "config.toml", "--quiet", "--dialect", "zeroclaw", "--provider", "work")
        result = cli("run", *flags, LONG)

    assert (result.code, result.stdout) == (0, "I will.\n"), result.stderr
    assert [(row["agent"], row["content"]) for row in saved(cli)] == stored
