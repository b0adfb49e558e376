"""`meerkat` on the command line: a process that is interrupted, killed and resumed, with a settings file."""

import asyncio
import re
import signal
from pathlib import Path

import pytest

from retinue.providers.scripted import Line, calls, hangs, says, together
from retinue.testing.fake_chat import FakeChat, count_replies
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.stage import VARIABLES, Command, retinue

pytestmark = pytest.mark.real_time

SETTINGS = """
[sub_agents]
enable_comms = true
default_model = "inherit"
"""


class Team:
    """A lead with a digger, which is silent as long as it is night, and a bookkeeper, which stays alive."""

    def __init__(self) -> None:
        self.night = True
        self.fell_silent = asyncio.Event()

    def __call__(self, request: ReceivedRequest) -> Line:
        messages = request.body["messages"]
        said = "\n".join(str(message["content"]) for message in messages)
        if "# Task\n\ndig" in said:
            if self.night:
                self.fell_silent.set()
                return hangs("It is ")
            return says("The pool.")
        if "# Task\n\nkeep" in said:
            unread = messages[-1]["role"] == "user" and "[message from parent]" in str(messages[-1]["content"])
            return calls("send_message", to="parent", body="Booked.") if unread else says("Ready.")
        return self._lead(said, count_replies(request))

    def _lead(self, said: str, turn: int) -> Line:
        names = re.findall(r'"name":"(sub-agent-[0-9a-f]{12})"', said)
        if turn == 0:
            return together(calls("agent_spawn", prompt="dig"), calls("agent_spawn", prompt="keep", host_mode=True))
        if turn == 1:
            return calls("send_message", to=names[1], body="Book it.")
        return says("All in." if "The pool." in said and "Booked." in said else "Waiting.")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands are given, with settings and a state of its own."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "retinue.toml").write_text(SETTINGS)
    return tmp_path


@pytest.mark.promise("MK-CRASH", "MK-RESTART", "MK-SETTINGS", "MK-HOST")
async def test_an_interrupted_and_killed_tree_is_resumed_from_any_folder(folder: Path) -> None:
    team = Team()
    async with FakeChat(team) as vendor:
        command = await Command.start(
            "run", "--base-url", vendor.base_url, "--model", "m", "--dialect", "meerkat", "Go."
        )
        await team.fell_silent.wait()
        command.signal(signal.SIGINT)
        interrupted = await command.ended()
        run_id = interrupted.stderr.split()[-1]

        team.fell_silent.clear()
        again = await Command.start("runs", "resume", run_id)
        await team.fell_silent.wait()
        again.signal(signal.SIGKILL)
        await again.ended()

        team.night = False
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        resumed = await retinue("runs", "resume", run_id, cwd=elsewhere)
        listed = (await retinue("runs", "--all", "--json")).json

    assert (interrupted.code, interrupted.stdout) == (130, "")
    assert interrupted.stderr.endswith(f"interrupted; go on with: retinue runs resume {run_id}\n")
    assert (resumed.code, resumed.stdout) == (0, "All in.\n")
    assert sorted((row["agent"], row["outcome"]) for row in listed) == [
        ("host", "cancelled"),
        ("main", "completed"),
        ("sub-agent", "completed"),
    ]
    last = vendor.requests[-1].body["messages"]
    words = [message["content"] for message in last if message["role"] == "user"]
    assert sum("Booked." in text for text in words) == sum("The pool." in text for text in words) == 1


@pytest.mark.promise("MK-WAITS", "MK-DEFAULT-MODEL")
@pytest.mark.usefixtures("folder")
async def test_the_answer_as_an_object_comes_when_all_children_are_done() -> None:
    team = Team()
    team.night = False
    async with FakeChat(team) as vendor:
        flags = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "meerkat", "--json")
        ended = await retinue("run", *flags, "Go.")

    assert ended.code == 0
    assert (ended.json["status"], ended.json["text"]) == ("completed", "All in.")
    assert {request.body["model"] for request in vendor.requests} == {"m"}
