"""The dialect `spec`: define, spawn, wait, status, progress, collect, cancel, and shared context."""

from __future__ import annotations

from tests.compatibility.catalog import scenario
from tests.compatibility.model_server import Line, calls, calls_text, fails, says
from tests.compatibility.scenarios.common import LOGGED, SETTINGS, TOOLS, at
from tests.compatibility.stage import Stage

AGENTS = """
[agents.researcher]
description = "Investigates technical issues"
system_prompt = "You are a researcher."
tools = ["look", "shared_context"]
model = "m2"

[agents.writer]
description = "Drafts reports"
system_prompt = "You are a writer."
tools = ["shared_context"]
max_turns = 5
"""


def subagent(action: str, **fields: object) -> Line:
    """A call of the tool `subagent`."""
    return calls("subagent", action=action, **fields)


def context(action: str, **fields: object) -> Line:
    """A call of the tool `shared_context`."""
    return calls("shared_context", action=action, **fields)


@scenario()
def spec_story(stage: Stage) -> None:
    """Configured and defined agents, a dependency between tasks, shared context, and all requests to models."""
    stage.write("retinue.toml", SETTINGS + AGENTS)
    stage.write("mytools.py", TOOLS)
    server = stage.server()
    server.play(
        context("write", key="problem_summary", value="Throughput dropped on Feb 18."),
        subagent("list_agents"),
        subagent("spawn", agent="researcher", task="Investigate problem_summary."),
        subagent("wait", task_ids=["t_01"]),
        subagent("status", task_id="t_01"),
        subagent("progress", task_id="t_01"),
        subagent("collect", task_id="t_01"),
        subagent("collect", task_id="t_01"),
        context("read", key="findings_summary"),
        subagent(
            "define",
            name="remediator",
            description="Executes fixes",
            system_prompt="You fix.",
            tools=["shared_context"],
            max_turns=15,
        ),
        subagent("define", name="careful", extends="remediator", system_prompt_append="Be careful."),
        subagent("redefine", name="remediator", description="Fixes", system_prompt="You fix it.", tools=[]),
        subagent("spawn", agent="careful", task="Revert the change."),
        subagent("spawn", agent="writer", task="Draft a report.", depends_on=["t_02"]),
        server.releasing("revert", subagent("wait", task_ids=["t_02", "t_03"], mode="all")),
        subagent("collect", task_id="t_03"),
        subagent("collect", task_id="t_02"),
        context("list_keys"),
        says("All is well again."),
    )
    server.play(
        context("read", key="problem_summary"),
        calls("look", where="pool"),
        context("write", key="findings_summary", value="The pool went from 200 to 20."),
        says("It is the pool."),
        words="Investigate",
    )
    server.play(context("delete", key="problem_summary"), says("Reverted.", hold="revert"), words="Revert")
    server.play(says("The pool was too small."), words="Draft")
    stage.run(*at(server, "--session", "incident", "--quiet", dialect="spec"), "Why?", env=LOGGED, ordered=False)
    stage.forked("runs", "--all", "--session", "incident")
    stage.show_requests()


@scenario()
def spec_running(stage: Stage) -> None:
    """Tasks that run, wait for a dependency, are cancelled, fail, or are left running at the end."""
    stage.write("retinue.toml", SETTINGS + AGENTS)
    stage.write("mytools.py", TOOLS)
    server = stage.server()
    server.play(
        subagent("spawn", agent="writer", task="Never end."),
        subagent("status", task_id="t_01"),
        subagent("collect", task_id="t_01"),
        subagent("spawn", agent="writer", task="Wait for it.", depends_on=["t_01"]),
        subagent("status", task_id="t_02"),
        subagent("wait", task_ids=["t_01", "t_02"], mode="any", timeout_ms=10),
        subagent("progress", task_id="t_01"),
        server.after("first", subagent("cancel", task_id="t_01")),
        subagent("wait", task_ids=["t_02"]),
        subagent("collect", task_id="t_02"),
        subagent("spawn", agent="researcher", task="Fail at it."),
        subagent("wait", task_ids=["t_03"]),
        subagent("collect", task_id="t_03"),
        subagent("spawn", agent="researcher", task="Go round."),
        subagent("wait", task_ids=["t_04"]),
        subagent("collect", task_id="t_04"),
        subagent("spawn", agent="writer", task="Use too much.", max_input_tokens=150),
        subagent("wait", task_ids=["t_05"]),
        subagent("collect", task_id="t_05"),
        subagent("spawn", agent="writer", task="Never end either."),
        server.after("last", says("Enough.")),
    )
    server.play(says("Never.", hold="first"), words="Never end.")
    server.play(says("Never.", hold="last"), words="Never end either.")
    server.play(fails(400, "no such model"), words="Fail at it.")
    server.play(*[calls("look", where=f"place {number}") for number in range(10)], words="Go round.")
    server.play(*[context("list_keys")] * 5, words="Use too much.")
    stage.forked(*at(server, "--quiet", dialect="spec"), "Go.", env=LOGGED, ordered=False)
    stage.show_requests()


@scenario()
def spec_refusals(stage: Stage) -> None:
    """Invalid calls, and the settings of the dialect."""
    server = stage.server()
    bad = (
        calls_text("subagent", "{"),
        calls_text("subagent", "[]"),
        calls_text("subagent", "{}"),
        subagent("explode"),
        subagent("spawn", agent="unknown", task="x"),
        subagent("spawn", agent="unknown"),
        subagent("spawn", agent=7, task="x"),
        subagent("define", name="Bad Name", description="d", system_prompt="s"),
        subagent("define", name="ok", description="d", system_prompt="s", max_turns=99, tools=["subagent"]),
        subagent("define", name="ok", description="d", system_prompt="s"),
        subagent("define", name="other", extends="unknown"),
        subagent("redefine", name="unknown", description="d", system_prompt="s"),
        subagent("status", task_id="t_99"),
        subagent("wait", task_ids=[]),
        subagent("wait", task_ids=["t_01"], mode="some"),
        subagent("cancel", task_id="t_99"),
        subagent("progress"),
        calls_text("shared_context", '{"action": "write", "key": "Not A Key", "value": "x"}'),
        context("write", key="a", value="x" * 4100),
        context("read", key="nowhere"),
        context("delete", key="nowhere"),
        context("explode"),
        context("read_history", key="nowhere"),
        context("write", key="mine", value="secret", readable_by=["unknown"], ttl_seconds=-1),
    )
    server.play(*bad, says("So be it."))
    stage.forked(*at(server, "--quiet", dialect="spec"), "Go.", env=LOGGED)
    stage.write("retinue.toml", '[spec]\nextensions = ["cancel"]\nmax_running = 1\n')
    server.play(
        subagent("define", name="one", description="d", system_prompt="s"),
        subagent("spawn", agent="one", task="Never end."),
        subagent("spawn", agent="one", task="Never end."),
        subagent("wait", task_ids=["t_01"]),
        context("snapshot", label="x"),
        server.after("never", says("So be it.")),
        words="Less.",
    )
    server.play(says("Never.", hold="never"), words="Never end.")
    stage.forked(*at(server, "--quiet", dialect="spec"), "Less.")
    stage.show_requests()
