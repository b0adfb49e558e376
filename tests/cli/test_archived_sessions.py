"""An archived session, kept for audit: a run can read its shared context, and changes and starts nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retinue.providers.scripted import Line, calls, says
from retinue.testing.fake_chat import ChatScript, FakeChat
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.conftest import Cli
from tests.cli.stage import Ended, serving

pytestmark = pytest.mark.real_time

SETTINGS = '[agents.dig]\ndescription = "Digs."\nsystem_prompt = "You dig."\n'
ARCHIVED = {"error": "SESSION_ARCHIVED", "message": "Session 'audit' is archived (read-only)."}


def run(cli: Cli, vendor: FakeChat, *flags: str, command: str = "run", dialect: str = "spec") -> Ended:
    where = ("--base-url", vendor.base_url, "--model", "m", "--session", "audit", "--dialect", dialect)
    return cli(command, *where, *flags)


def results(vendor: FakeChat) -> list[str]:
    """The tool results that the last request has."""
    return [each["content"] for each in vendor.requests[-1].body["messages"] if each["role"] == "tool"]


@pytest.fixture
def audit(cli: Cli, folder: Path) -> None:
    """An archived session with one entry."""
    (folder / "retinue.toml").write_text(SETTINGS)
    write = calls("shared_context", action="write", key="scope", value="The pool.")
    with serving(ChatScript().play(write, says("Written."))) as vendor:
        assert run(cli, vendor, "Write.").code == 0
    assert cli("context", "archive", "audit").code == 0


@pytest.mark.usefixtures("audit")
@pytest.mark.promise("SC-6-ARCHIVE-RUN", "SC-6-ARCHIVE", "SC-5-SESSION-ARCHIVED")
def test_a_run_reads_an_archived_session_and_changes_nothing(cli: Cli) -> None:
    asked: list[Line] = [
        calls("shared_context", action="list_keys"),
        calls("shared_context", action="read", key="scope"),
        calls("shared_context", action="write", key="scope", value="The cache."),
        calls("shared_context", action="delete", key="scope"),
        calls("shared_context", action="snapshot", label="late"),
        calls("subagent", action="list_agents"),
        calls("subagent", action="define", name="new", description="d", system_prompt="p"),
        calls("subagent", action="spawn", agent="dig", task="Dig."),
    ]
    before = cli("context", "show", "audit", "--json").json
    with serving(ChatScript().play(*asked, says("Read."))) as vendor:
        ended = run(cli, vendor, "Read it.")
    listed, read, *changes = map(json.loads, results(vendor))

    assert (ended.code, ended.stdout) == (0, "Read.\n")
    assert "session audit is archived: it can be read, and not changed\n" in ended.stderr
    assert [each["key"] for each in listed["keys"]] == ["scope"]
    assert (read["value"], read["written_by"], read["version"]) == ("The pool.", "orchestrator", 1)
    assert changes[:3] == [ARCHIVED] * 3
    assert [agent["name"] for agent in changes[3]["agents"]] == ["dig"]
    assert changes[4:] == [ARCHIVED] * 2
    assert cli("context", "show", "audit", "--json").json == before


@pytest.mark.usefixtures("audit")
@pytest.mark.promise("SC-6-ARCHIVE-RUN")
def test_a_refused_spawn_leaves_no_run_and_no_line(cli: Cli) -> None:
    spawn = calls("subagent", action="spawn", agent="dig", task="Dig.")
    with serving(ChatScript().play(spawn, says("No."))) as vendor:
        ended = run(cli, vendor, "Dig.")
    rows: list[dict[str, Any]] = cli("runs", "--all", "--json").json

    assert [(row["agent"], row["parent_id"], row["outcome"]) for row in rows] == [("main", None, "completed")] * 2
    assert "dig" not in ended.stderr


@pytest.mark.usefixtures("audit")
@pytest.mark.parametrize(
    ("dialect", "call", "refusal"),
    [
        (
            "meerkat",
            calls("agent_spawn", prompt="Dig."),
            "Execution failed: Failed to spawn sub-agent: session 'audit' is archived",
        ),
        (
            "zeroclaw",
            calls("delegate", agent="dig", prompt="Dig.", background=True),
            "Agent 'dig' failed: session 'audit' is archived",
        ),
        ("zeroclaw", calls("delegate", agent="dig", prompt="Dig."), "Agent 'dig' failed: session 'audit' is archived"),
    ],
    ids=["meerkat", "background", "zeroclaw"],
)
def test_every_dialect_refuses_children_in_an_archived_session(
    cli: Cli, dialect: str, call: Line, refusal: str
) -> None:
    def model(heard: ReceivedRequest) -> Line:
        return says("No.") if heard.body["messages"][-1]["role"] == "tool" else call

    with serving(model) as vendor:
        ended = run(cli, vendor, "--quiet", "Dig.", dialect=dialect)

    assert (ended.stdout, ended.stderr, results(vendor)) == ("No.\n", "", [refusal])
    assert len(cli("runs", "--all", "--json").json) == 2


@pytest.mark.usefixtures("audit")
def test_a_chat_does_not_continue_an_archived_session(cli: Cli) -> None:
    with serving(ChatScript().play(says("never"))) as vendor:
        where = ("--base-url", vendor.base_url, "--model", "m", "--session", "audit", "--quiet")
        ended = cli("chat", *where, stdin=b"Hi!\n")

    assert (ended.code, ended.stdout, ended.stderr) == (1, "", "error: session 'audit' is archived\n")
    assert vendor.requests == []
