"""The engine's log lines in a live run of every dialect: each begins with the fields of the run that it is about."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from retinue.providers.scripted import ScriptedReply, calls, says
from retinue.testing.fake_chat import count_replies
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.conftest import Cli
from tests.cli.stage import serving

MODULE = '''
import retinue


@retinue.tool(kind="pure")
def break_it() -> str:
    """Break."""
    raise RuntimeError("broken")
'''
SETTINGS = """
[tools]
modules = ["mytools.py"]

[agents.dig]
description = "Digs."
system_prompt = "You dig."
tools = ["break_it"]

[buzzllm]
warm_processes = 0
"""
BREAK = calls("break_it")
SAID = "tool break_it failed unexpectedly: RuntimeError"


class Case(NamedTuple):
    """How a lead delegates, and the fields of its lines and of its child's; none for a child in another process."""

    delegation: tuple[ScriptedReply, ...]
    lead: str
    child: str

    def answer(self, heard: ReceivedRequest) -> ScriptedReply:
        """The next line of a run, each of which breaks the tool first."""
        task = next(message["content"] for message in heard.body["messages"] if message["role"] == "user")
        lines = [BREAK, *self.delegation, says("Done."), says("Done.")]
        if task.endswith("Dig."):
            lines = [*[BREAK] * bool(self.child), says("Broken."), says("Sum.")]
        return lines[count_replies(heard)]


CASES = {
    "none": Case((), "run_id={lead}", ""),
    "buzzllm": Case((calls("call_subagent", prompt="Dig."),), "run_id={lead}", ""),
    "meerkat": Case((calls("agent_spawn", prompt="Dig."),), "run_id={lead}", "run_id={child}"),
    "xzatoma": Case(
        (calls("subagent", label="dig", task_prompt="Dig."),),
        "run_id={lead}",
        "run_id={child} subagent.label=dig subagent.depth=1",
    ),
    "zeroclaw": Case(
        (calls("delegate", agent="dig", prompt="Dig."),),
        "agent_alias=main session_key={lead}",
        "agent_alias=dig session_key={child}",
    ),
    "spec": Case(
        (
            calls("subagent", action="spawn", agent="dig", task="Dig."),
            calls("subagent", action="wait", task_ids=["t_01"]),
        ),
        "session_id={session} agent=main",
        "session_id={session} task_id=t_01 agent=dig",
    ),
}


@pytest.mark.parametrize("dialect", CASES)
def test_the_lines_of_the_engine_begin_with_the_fields_of_their_run(cli: Cli, folder: Path, dialect: str) -> None:
    case = CASES[dialect]
    (folder / "mytools.py").write_text(MODULE)
    (folder / "retinue.toml").write_text(SETTINGS)
    with serving(case.answer) as vendor:
        where = ("--base-url", vendor.base_url, "--model", "m", "--dialect", dialect, "--tools", "break_it", "--quiet")
        ended = cli("run", *where, "Go.", env={"RETINUE_LOG": "warning"})
    rows = cli("runs", "--all", "--json").json

    lines = [line for line in ended.stderr.splitlines() if SAID in line]
    ids = {"lead" if row["parent_id"] is None else "child": row["run_id"] for row in rows}
    ids["session"] = rows[0]["session_id"]
    expected = [fields.format(**ids) for fields in (case.lead, case.child) if fields]
    assert (ended.code, len(rows)) == (0, 2 if case.delegation else 1)
    said = [line.partition(" retinue.engine ")[2].partition(" at ")[0] for line in lines]
    assert said == [f"{fields} {SAID}" for fields in expected]
