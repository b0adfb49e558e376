"""`retinue context`, `init` and `doctor`."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from retinue.providers.catalog import WIRES
from retinue.providers.scripted import Script, ScriptedProvider, says
from retinue.testing.fake_server import FakeResponse, FakeServer
from tests.cli.conftest import Cli
from tests.cli.stage import finished_run, open_in_a_thread, retinue


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


def test_the_session_of_a_single_run_is_not_listed_and_goes_with_the_run(cli: Cli, home: Path) -> None:
    cli("context", "create", "wells")
    asyncio.run(finished_run(home, ScriptedProvider(Script().play("main", says("Dug.")))))

    listed, everything = cli("context", "list", "--json").json, cli("context", "list", "--all", "--json").json
    cli("runs", "prune", "--older-than", "0s")
    left = cli("context", "list", "--all", "--json").json

    assert [row["session_id"] for row in listed] == ["wells"]
    assert len(everything) == 2
    assert left == listed


def test_show_prints_an_empty_context_too(cli: Cli) -> None:
    cli("context", "create", "wells")

    assert cli("context", "show", "wells") == (0, "session wells, 0 entries\n", "")
    assert cli("context", "show", "wells", "--json").json == {"session_id": "wells", "archived": False, "entries": []}


def test_a_snapshot_is_stored_and_printed(cli: Cli) -> None:
    cli("context", "create", "wells")

    taken = cli("context", "snapshot", "wells", "--label", "dry")
    shown = cli("context", "show", "wells", "--snapshot", "dry", "--json").json

    assert taken == (0, "", "kept 0 entries of session wells as dry\n")
    assert (shown["snapshot"], shown["taken_by"], shown["entries"]) == ("dry", "operator", [])
    assert cli("context", "show", "wells").stdout == "session wells, 0 entries\nsnapshots: dry\n"
    assert cli("context", "show", "wells", "--snapshot", "dry").stdout.startswith("session wells, snapshot dry of 20")
    assert cli("context", "show", "wells", "--json").json["snapshots"] == ["dry"]


def test_an_impossible_snapshot_is_an_error(cli: Cli) -> None:
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


def test_init_writes_valid_settings_and_never_overwrites_a_file(cli: Cli, folder: Path) -> None:
    first, second = cli("init"), cli("init")
    (folder / "retinue.toml").write_text("# mine")
    third, forced = cli("init"), cli("init", "--force")

    assert (first.code, second.code, third.code, forced.code) == (0, 2, 2, 0)
    assert "--force" in second.stderr
    assert tomllib.loads((folder / "retinue.toml").read_text()) == {}
    assert "[agents." in (folder / "retinue.toml").read_text()
    assert next(each for each in cli("doctor", "--json").json["findings"] if each["name"] == "settings")["ok"]


def test_doctor_on_a_machine_with_a_key_is_ready_and_writes_nothing(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = FakeResponse(headers={"Content-Type": "application/json"}, pieces=(b'{"data":[{"id":"gpt-5.4"}]}',))
    with open_in_a_thread(FakeServer(lambda heard: listing)) as server:
        monkeypatch.setitem(WIRES, "openai", replace(WIRES["openai"], base_url=f"{server.url}/v1"))
        monkeypatch.setitem(WIRES, "openai-chat", replace(WIRES["openai-chat"], base_url=f"{server.url}/v1"))
        monkeypatch.setitem(WIRES, "openai-responses", replace(WIRES["openai-responses"], base_url=f"{server.url}/v1"))
        ended = cli("doctor", "--json", env={"OPENAI_API_KEY": "sk-secret"})

    found = {each["name"]: each["found"] for each in ended.json["findings"]}
    assert (ended.code, ended.json["ok"]) == (0, True)
    assert found["provider openai"] == f"1 model at {server.url}/v1, key in OPENAI_API_KEY"
    assert found["verdict"] == f"ready: model gpt-5.4 at {server.url}/v1 (openai, key in OPENAI_API_KEY)"
    assert "lock file" in found["sqlite"]
    assert found["key OPENAI_API_KEY"] == "set"
    assert found["settings"].startswith("no retinue.toml here")
    assert "sk-secret" not in ended.stdout
    assert not home.exists()


def test_doctor_counts_runs_and_reports_errors(cli: Cli, folder: Path) -> None:
    cli("context", "create", "wells")
    (folder / "retinue.toml").write_text('[agents.dig]\nmax_turns = "ten"\n')

    ended = cli("doctor")

    assert ended.code == 1
    assert "0 runs" in ended.stdout
    assert "retinue.toml:2: agents.dig.max_turns" in ended.stdout


@pytest.mark.real_time
@pytest.mark.usefixtures("folder")
async def test_a_local_server_is_found_and_its_first_model_used(folder: Path) -> None:
    def play(heard: object) -> FakeResponse:
        listing = b'{"object":"list","data":[{"id":"qwen3"},{"id":"other"}]}'
        return FakeResponse(headers={"Content-Type": "application/json"}, pieces=(listing,))

    async with FakeServer(play) as server:
        (folder / "retinue.toml").write_text(f'[providers.ollama]\nbase_url = "{server.url}/v1"\n')
        ended = await retinue("doctor", "--json")

    found = {each["name"]: each["found"] for each in ended.json["findings"]}
    assert found["provider ollama"] == f"2 models at {server.url}/v1"
    assert found["verdict"] == f"ready: model qwen3 at {server.url}/v1 (ollama)"


def test_doctor_reports_proxies_and_unusable_ones(cli: Cli, folder: Path) -> None:
    none = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "")

    def proxy(**named: str) -> tuple[int, list[tuple[bool, str]]]:
        ended = cli("doctor", "--json", env=none | named | {"RETINUE_MODEL": "scripted:script.json"})
        return ended.code, [(each["ok"], each["found"]) for each in ended.json["findings"] if each["name"] == "proxy"]

    (folder / "script.json").write_text('[{"say": "Hello."}]')
    assert proxy() == (0, [])
    assert proxy(https_proxy="https://me:secret@proxy:3128") == (0, [(True, "https://proxy:3128 (HTTPS_PROXY)")])
    assert proxy(all_proxy="socks5://proxy:1080") == (
        1,
        [
            (
                False,
                "ALL_PROXY names a proxy of the kind socks5://, and only http:// and https:// are known; set another, "
                "or name in NO_PROXY what is reached without it",
            )
        ],
    )


def test_doctor_reports_unknown_tool_names(cli: Cli, folder: Path) -> None:
    (folder / "mytools.py").write_text("import retinue\n\n@retinue.tool\ndef mine() -> str:\n    return ''\n")
    (folder / "retinue.toml").write_text(
        '[tools]\nmodules = ["./mytools.py"]\n[agents.dig]\ntools = ["file_read", "mine", "fil_read"]\n'
        '[risk_profiles.p]\nexcluded_tools = ["shel"]\nalways_ask = ["delegate", "zzz"]\nauto_approve = ["weather"]\n'
        "[risk_profiles.usual]\n"
    )

    ended = cli("doctor", "--json")

    assert ended.code == 1
    no_effect = "so this has no effect"
    assert [each["found"] for each in ended.json["findings"][:-1] if not each["ok"]] == [
        f'retinue.toml:4: agents.dig.tools[2]: there is no tool named "fil_read", {no_effect}; did you mean file_read?',
        f'retinue.toml:6: risk_profiles.p.excluded_tools[0]: there is no tool named "shel", {no_effect}; '
        "did you mean shell?",
        f'retinue.toml:7: risk_profiles.p.always_ask[1]: there is no tool named "zzz", {no_effect}',
    ]


def test_doctor_reports_an_unusable_state_folder(cli: Cli, folder: Path) -> None:
    (folder / "taken").write_text("a file")

    ended = cli("doctor", "--json", env={"RETINUE_HOME": str(folder / "taken" / "state")})

    state = next(each for each in ended.json["findings"] if each["name"] == "state")
    assert (ended.code, state["ok"], state["found"]) == (
        1,
        False,
        f"{folder}/taken/state (state cannot be stored: {folder}/taken is not a folder)",
    )


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"RETINUE_HOME": "~/mine"}, "me/mine"),
        ({"RETINUE_HOME": "", "XDG_DATA_HOME": ""}, "me/.local/share/retinue"),
    ],
    ids=["a ~ that no shell has seen", "variables that are empty"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="other platforms have other places")
def test_state_is_in_the_home_of_the_user(cli: Cli, folder: Path, variables: dict[str, str], place: str) -> None:
    ended = cli("doctor", "--json", env={"HOME": str(folder / "me")} | variables)

    state = next(each for each in ended.json["findings"] if each["name"] == "state")
    assert state["found"] == f"{folder / place} (nothing there yet)"


def test_doctor_reports_a_full_disk(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def nearly_full(_: object) -> SimpleNamespace:
        return SimpleNamespace(free=123_456)

    monkeypatch.setattr(shutil, "disk_usage", nearly_full)

    ended = cli("doctor", "--json")

    assert ended.code == 1
    assert {
        "name": "disk",
        "ok": False,
        "found": "0.1 MB are free on the disk of the state folder: free some space",
    } in ended.json["findings"]
