"""`--store`, `RETINUE_STORE` and `[store] url`: which store a command uses; and `retinue store copy`."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from retinue.core.commands import RunQuery
from retinue.providers.scripted import says
from retinue.store.postgres import PostgresMemoryTables, PostgresStore, parse_address
from retinue.store.sqlite.store import SqliteStore
from retinue.tools.memory.backend import Note
from retinue.tools.memory.postgres import PostgresMemory
from retinue.tools.memory.sqlite import SqliteMemory
from tests.cli.conftest import Cli
from tests.cli.stage import serving


def run(cli: Cli, *options: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    with serving(says("42")) as vendor:
        model = ("--provider", "openai-chat", "--base-url", vendor.base_url, "--model", "m")
        ended = cli("run", "--quiet", *model, *options, "What is 6 times 7?", env=env)
    return ended.code, ended.stdout


def tasks_at(path: Path) -> int:
    with closing(SqliteStore(path)) as store:
        return len(store.runs(RunQuery()))


def test_the_flag_comes_before_the_variable_and_that_before_the_settings(cli: Cli, folder: Path, home: Path) -> None:
    (folder / "retinue.toml").write_text('[store]\nurl = "sqlite:settings.db"\n')

    assert run(cli) == (0, "42\n")
    assert run(cli, env={"RETINUE_STORE": "sqlite:variable.db"}) == (0, "42\n")
    assert run(cli, "--store", "sqlite:flag.db", env={"RETINUE_STORE": "sqlite:variable.db"}) == (0, "42\n")

    assert [tasks_at(folder / f"{name}.db") for name in ("settings", "variable", "flag")] == [1, 1, 1]
    assert not (home / "retinue.db").exists()
    assert "RETINUE_STORE" not in os.environ
    assert len(cli("runs", "--json").json) == 1
    assert len(cli("runs", "--store", f"sqlite:{folder}/none.db", "--json").json) == 0


def test_a_run_on_postgres_is_listed_shown_and_pruned(cli: Cli, home: Path, postgres_url: str) -> None:
    assert run(cli, "--store", postgres_url) == (0, "42\n")

    env = {"RETINUE_STORE": postgres_url}
    (row,) = cli("runs", "--json", env=env).json
    assert (row["state"], row["outcome"], row["turns"]) == ("ended", "completed", 1)
    assert "42" in cli("runs", "show", row["run_id"], env=env).stdout
    assert cli("runs", "--json").json == []
    assert cli("runs", "prune", "--older-than", "0s", env=env).code == 0
    assert cli("runs", "--json", env=env).json == []


def test_a_chat_and_a_scheduled_job_have_their_runs_on_postgres(cli: Cli, folder: Path, postgres_url: str) -> None:
    (folder / "retinue.toml").write_text('[agents.dig]\ndescription = "Digs"\n')
    env = {"RETINUE_STORE": postgres_url}
    with serving(says("42")) as vendor:
        model = ("--base-url", vendor.base_url, "--model", "m")
        assert "42" in cli("chat", "--quiet", *model, env=env, stdin=b"What is 6 times 7?\n").stdout
        due = ("--at", "2020-01-01T00:00:00Z", "--agent", "dig", "--prompt", "And one more?")
        assert cli("cron", "add", "later", *due, *model, env=env).code == 0
        assert cli("cron", "daemon", "--once", env=env).code == 0

    rows = cli("runs", "--json", env=env).json
    assert sorted(row["outcome"] for row in rows) == ["completed", "completed"]
    assert cli("runs", "--json").json == []


@pytest.mark.parametrize("command", [("runs",), ("runs", "show", "abcd"), ("approvals",), ("memory", "list")])
def test_no_message_has_the_password(cli: Cli, command: tuple[str, ...]) -> None:
    url = "postgresql://me:hidden@127.0.0.1:1/work"

    ended = cli(*command, "--store", url, "--json")

    assert ended.code in (1, 2)
    assert "hidden" not in ended.stdout + ended.stderr
    assert "127.0.0.1" in ended.stderr


def test_an_unknown_kind_of_store_is_bad_usage(cli: Cli) -> None:
    ended = cli("runs", "--store", "mysql://me:hidden@db/x")

    assert (ended.code, ended.stderr) == (
        2,
        "error: unknown kind of store 'mysql': expected sqlite:PATH, postgresql://... or memory:\n",
    )


def test_a_store_is_copied_to_postgres_and_back(cli: Cli, home: Path, folder: Path, postgres_url: str) -> None:
    assert run(cli) == (0, "42\n")
    SqliteMemory(home / "memory.db").store(Note(agent="dig", key="style", content="Be short.", at=5.0))
    runs = cli("runs", "--json").json

    there = cli("store", "copy", f"sqlite:{home}/retinue.db", postgres_url)
    assert there.code == 0
    shown = parse_address(postgres_url).shown
    assert there.stderr.startswith(f"copied sqlite:{home}/retinue.db to {shown}: 1 run, ")
    env = {"RETINUE_STORE": postgres_url}
    assert cli("runs", "--json", env=env).json == runs
    assert [row["key"] for row in cli("memory", "list", "--json", env=env).json] == ["style"]

    back = cli("store", "copy", postgres_url, f"sqlite:{folder}/back/retinue.db", "--json")
    assert back.json["rows"]["runs"] == 1
    assert cli("runs", "--store", f"sqlite:{folder}/back/retinue.db", "--json").json == runs
    refused = cli("store", "copy", f"sqlite:{home}/retinue.db", postgres_url)
    assert (refused.code, "is not empty: nothing was copied" in refused.stderr) == (2, True)


def test_commands_for_files_refuse_a_postgres_store(cli: Cli, postgres_url: str) -> None:
    for command in (("check",), ("backup", "x.db"), ("restore", "x.db"), ("repair",), ("compact",)):
        ended = cli("store", *command, "--store", postgres_url)

        assert (ended.code, "pg_dump" in ended.stderr) == (2, True)


def test_memories_of_agents_are_in_the_postgres_store(cli: Cli, home: Path, postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        PostgresMemory(PostgresMemoryTables(store.address)).store(Note(agent="dig", key="k", content="text", at=5.0))
    env = {"RETINUE_STORE": postgres_url}

    assert cli("memory", "show", "dig", "k", env=env).stdout == "text\n"
    assert cli("memory", "forget", "dig", "k", env=env).code == 0
    assert cli("memory", "list", "--json", env=env).json == []
    assert not (home / "memory.db").exists()


def test_doctor_names_the_store(cli: Cli, postgres_url: str) -> None:
    findings = {row["name"]: row["found"] for row in cli("doctor", "--json", "--store", postgres_url).json["findings"]}

    assert findings["store"] == parse_address(postgres_url).shown
    assert findings["runs"] == "0 runs"
