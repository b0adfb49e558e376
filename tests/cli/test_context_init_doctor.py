"""The small commands: sessions, a first settings file, and a look at what is there."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from retinue.testing.fake_server import Answer, FakeServer
from tests.cli.conftest import Cli
from tests.cli.stage import retinue


def test_a_session_is_created_archived_and_deleted(cli: Cli) -> None:
    created, twice = cli("context", "create", "wells"), cli("context", "create", "wells")
    listed = cli("context", "list", "--json").json
    archived = cli("context", "archive", "wells")
    table = cli("context", "list")
    deleted, gone = cli("context", "delete", "wells"), cli("context", "show", "wells")

    assert (created.code, twice.code) == (0, 2)
    assert listed == [{"session_id": "wells", "archived": False, "key_count": 0, "total_size_tokens": 0}]
    assert archived.code == 0
    assert table.stdout.splitlines()[1].split() == ["wells", "archived", "0", "0"]
    assert (deleted.code, gone.code, gone.stderr) == (0, 2, "error: unknown session: 'wells'\n")


def test_show_prints_an_empty_context_too(cli: Cli) -> None:
    cli("context", "create", "wells")

    assert cli("context", "show", "wells") == (0, "session wells, 0 entries\n", "")
    assert cli("context", "show", "wells", "--json").json == {"session_id": "wells", "archived": False, "entries": []}


def test_a_snapshot_is_taken_and_shown(cli: Cli) -> None:
    cli("context", "create", "wells")

    taken = cli("context", "snapshot", "wells", "--label", "dry")
    shown = cli("context", "show", "wells", "--snapshot", "dry", "--json").json

    assert taken == (0, "", "kept 0 entries of session wells as dry\n")
    assert (shown["snapshot"], shown["taken_by"], shown["entries"]) == ("dry", "operator", [])
    assert cli("context", "show", "wells").stdout == "session wells, 0 entries\nsnapshots: dry\n"
    assert cli("context", "show", "wells", "--snapshot", "dry").stdout.startswith("session wells, snapshot dry of 20")
    assert cli("context", "show", "wells", "--json").json["snapshots"] == ["dry"]


def test_a_snapshot_that_cannot_be_taken_or_shown_is_an_error(cli: Cli) -> None:
    cli("context", "create", "wells")
    cli("context", "create", "old")
    cli("context", "archive", "old")

    failed = [
        cli("context", "snapshot", "nowhere", "--label", "x"),
        cli("context", "snapshot", "old", "--label", "x"),
        cli("context", "snapshot", "wells", "--label", ""),
        cli("context", "show", "wells", "--snapshot", "x"),
    ]

    assert [(each.code, each.stdout) for each in failed] == [(2, "")] * 4
    assert [each.stderr for each in failed] == [
        "error: unknown session: 'nowhere'\n",
        "error: session 'old' is archived: nothing can be added to it\n",
        "error: Field 'label' must be 1-64 printable characters, got 0: ''\n",
        "error: unknown snapshot: 'x'\n",
    ]


def test_init_writes_settings_that_are_valid_and_never_writes_over_a_file(cli: Cli, folder: Path) -> None:
    first, second = cli("init"), cli("init")
    (folder / "retinue.toml").write_text("# mine")
    third, forced = cli("init"), cli("init", "--force")

    assert (first.code, second.code, third.code, forced.code) == (0, 2, 2, 0)
    assert "--force" in second.stderr
    assert tomllib.loads((folder / "retinue.toml").read_text()) == {}
    assert "[agents." in (folder / "retinue.toml").read_text()
    assert next(each for each in cli("doctor", "--json").json["findings"] if each["name"] == "settings")["ok"]


def test_doctor_finds_nothing_wrong_with_an_empty_machine_and_leaves_it_empty(cli: Cli, home: Path) -> None:
    ended = cli("doctor", "--json", env={"OPENAI_API_KEY": "tell-nobody"})

    found = {each["name"]: each["found"] for each in ended.json["findings"]}
    assert (ended.code, ended.json["ok"]) == (0, True)
    assert "lock file" in found["sqlite"]
    assert found["key OPENAI_API_KEY"] == "set"
    assert found["settings"].startswith("no retinue.toml here")
    assert "tell-nobody" not in ended.stdout
    assert not home.exists()


def test_doctor_counts_runs_and_says_what_is_broken(cli: Cli, folder: Path) -> None:
    cli("context", "create", "wells")
    (folder / "retinue.toml").write_text('[agents.dig]\nmax_turns = "ten"\n')

    ended = cli("doctor")

    assert ended.code == 1
    assert "0 runs" in ended.stdout
    assert "retinue.toml:2: agents.dig.max_turns" in ended.stdout


@pytest.mark.real_time
@pytest.mark.usefixtures("folder")
async def test_a_local_server_is_found_and_its_first_model_asked(folder: Path) -> None:
    def play(heard: object) -> Answer:
        listing = b'{"object":"list","data":[{"id":"qwen3"},{"id":"other"}]}'
        return Answer(headers={"Content-Type": "application/json"}, pieces=(listing,))

    async with FakeServer(play) as server:
        (folder / "retinue.toml").write_text(f'[providers.ollama]\nbase_url = "{server.url}/v1"\n')
        ended = await retinue("doctor", "--json")

    found = {each["name"]: each["found"] for each in ended.json["findings"]}
    assert found["local servers"] == f"ollama at {server.url}/v1 (2 models)"
