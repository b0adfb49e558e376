"""The example project of a move from zeroclaw: its commands, run in its folder with its own settings file."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from retinue.providers.scripted import Line, calls, says
from retinue.testing.fake_chat import count_replies
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.conftest import Cli
from tests.cli.stage import Ended, serving

PROJECT = Path(__file__).parents[2] / "examples" / "moving-from-zeroclaw"
PIPED = re.compile(r'printf "(.*)" \| (.*)')
ADDRESS = "http://localhost:8000/v1"


def answers(heard: ReceivedRequest) -> Line:
    """The bot that the project's README shows."""
    messages = heard.body["messages"]
    asked = next(each["content"] for each in reversed(messages) if each["role"] == "user")
    if "Write the digest." in asked:
        return says("The digest: nothing new.")
    if asked == "What did I ask for?":
        return says("A review of the last change.")
    if asked == "Is the last change sound?":
        return says("It is sound.")
    match count_replies(heard):
        case 0:
            return calls("delegate", agent="reviewer", prompt="Is the last change sound?", background=True)
        case 1:
            (task_id,) = re.findall(r"task_id: (\S+)", messages[-1]["content"])
            return calls("delegate", action="await", task_ids=[task_id])
        case _:
            assert "It is sound." in messages[-1]["content"]
            return says("The reviewer says: it is sound.")


def commands() -> list[tuple[str, str]]:
    """The commands of the README, and what it shows of their output."""
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found = re.findall(r"^\$ (.+)\n((?:[^$\n].*\n)*)", "".join(blocks), re.MULTILINE)
    return [(command, shown) for command, shown in found]


def typed(cli: Cli, command: str) -> Ended:
    piped = PIPED.fullmatch(command)
    stdin = piped[1].replace("\\n", "\n").encode() if piped is not None else b""
    program, *arguments = shlex.split(piped[2] if piped is not None else command)
    assert program == "retinue"
    return cli(*arguments, stdin=stdin)


@pytest.fixture
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project, which is the current folder."""
    copy = folder / "project"
    shutil.copytree(PROJECT, copy)
    monkeypatch.chdir(copy)
    return copy


@pytest.mark.promise("ZC-CONFIG-FILE")
def test_the_commands_of_the_project_run_as_they_are_typed(cli: Cli, project: Path) -> None:
    assert len(commands()) == 8
    with serving(answers) as vendor:
        settings = (project / "config.toml").read_text().replace(ADDRESS, vendor.base_url)
        (project / "config.toml").write_text(settings)
        ended = [(command, shown, typed(cli, command)) for command, shown in commands()]
        listed = cli("memory", "list", "frontline", "--config", "config.toml", "--json").json

    for command, shown, result in ended:
        assert result.code == 0, f"{command}: {result.stderr}"
        if shown:
            assert result.stdout == shown, command
    assert {heard.body["model"] for heard in vendor.requests} == {"qwen3"}
    (file,) = (project / "desk" / "delegate_results").iterdir()
    assert json.loads(file.read_text())["status"] == "Completed"
    assert [row["content"] for row in listed] == ["Have the last change reviewed, please."], "others are too short"
    (day,) = (project / "desk" / "memory").iterdir()
    assert "Have the last change reviewed, please." in day.read_text()


@pytest.mark.promise("ZC-CONFIG-FILE")
def test_what_has_no_counterpart_is_named_once(cli: Cli, project: Path) -> None:
    with serving(answers) as vendor:
        settings = (project / "config.toml").read_text().replace(ADDRESS, vendor.base_url)
        (project / "config.toml").write_text(settings)
        ended = cli("run", "--config", "config.toml", "--dialect", "zeroclaw", "--agent", "frontline", "Go.")

    (warning,) = [line for line in ended.stderr.splitlines() if "ignored" in line]
    assert warning.partition("config.toml: ")[2] == (
        "ignored: agents.frontline.channels, memory.hygiene_enabled, gateway, channels"
    )
