"""The example project of a move from xzatoma: its commands, run in its folder with its own settings file."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from retinue.providers.scripted import Line, calls, says
from retinue.testing.fake_chat import count_replies
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.conftest import Cli
from tests.cli.stage import Ended, serving

PROJECT = Path(__file__).parents[2] / "examples" / "moving-from-xzatoma"
SERVER = "http://localhost:11434"
COMMAND = re.compile(r"^\$ (?:printf \"(.*)\\n\" \| )?retinue (.+)\n((?:[^$`\n].*\n)*)", re.MULTILINE)
TASK = "Search the notes for a chip."


def answer(request: ReceivedRequest) -> Line:
    """A root that delegates a search, and the subagent that makes it with grep."""
    messages = request.body["messages"]
    asked = [each["content"] for each in messages if each["role"] == "user"]
    replies = count_replies(request)
    if asked[0] != TASK:
        if replies == 0:
            return calls("subagent", label="search_notes", task_prompt=TASK, allowed_tools=["grep"])
        assert '"output":"It is Willow."' in messages[-1]["content"]
        return says("The notes name the Willow chip.")
    if replies == 0:
        return calls("grep", pattern="chip")
    if len(asked) == 1:
        assert "The Willow chip corrects errors" in messages[-1]["content"]
        return says("Willow.")
    return says("It is Willow.")


def typed(cli: Cli, stdin: str, arguments: str) -> Ended:
    return cli(*shlex.split(arguments), stdin=f"{stdin}\n".encode() if stdin else b"")


def test_the_commands_of_the_readme_print_what_it_shows(cli: Cli, folder: Path) -> None:
    for file in ("config.yaml", "notes.txt"):
        shutil.copy(PROJECT / file, folder)
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    commands = COMMAND.findall(text)
    assert [arguments.split()[0] for _, arguments, _ in commands] == ["run", "chat", "replay"]

    with serving(answer) as vendor:
        settings = (folder / "config.yaml").read_text(encoding="utf-8")
        assert SERVER in settings
        (folder / "config.yaml").write_text(settings.replace(SERVER, vendor.url), encoding="utf-8")
        ended = [typed(cli, stdin, arguments) for stdin, arguments, _ in commands]

    for each, (_, arguments, shown) in zip(ended, commands, strict=True):
        assert each.code == 0, f"{arguments}: {each.stderr}"
        assert each.stdout.startswith(shown), arguments
    (warning,) = re.findall(r"^WARNING retinue\.config (.*)$", text, re.MULTILINE)
    assert [warning in each.stderr for each in ended] == [True, True, False]
    assert ended[2].stdout.count("Label:  search_notes") == 2
    assert {request.body["model"] for request in vendor.requests} == {"llama3.2:3b"}
