"""The dialect `zeroclaw`: spawn_subagent, delegate, background tasks with result files, and profiles."""

from __future__ import annotations

from collections.abc import Callable

from tests.compatibility.catalog import scenario
from tests.compatibility.model_server import Conversation, Line, calls, calls_text, fails, says
from tests.compatibility.scenarios.common import LOGGED, at
from tests.compatibility.stage import Stage

SETTINGS = """
[risk_profiles.frontline]
allowed_tools = ["file_read", "memory_recall", "spawn_subagent", "delegate"]

[risk_profiles.alone]
allowed_tools = ["file_read"]

[risk_profiles.careful]
level = "readonly"

[runtime_profiles.quick]
delegation_timeout_secs = 1
max_delegation_depth = 1
max_actions_per_hour = 12

[runtime_profiles.plain]
agentic = false

[agents.frontline]
system_prompt = "You are at the front."
risk_profile = "frontline"
runtime_profile = "quick"
workspace = { path = "./desk" }

[agents.reviewer]
system_prompt = "You review."
risk_profile = "alone"

[agents.plain]
system_prompt = "You answer."
runtime_profile = "plain"

[agents.sleeper]
runtime_profile = "quick"
tools = []

[agents.careful]
system_prompt = "You look only."
risk_profile = "careful"
"""
TASK_IDS = r"task_id: ([0-9a-f-]{36})"


def delegate(agent: str, prompt: str, **more: object) -> Line:
    """A call of the tool `delegate`."""
    return calls("delegate", agent=agent, prompt=prompt, **more)


def about(action: str, nth: int) -> Callable[[Conversation], Line]:
    """A call with the id of the background task that was started as the `nth`."""
    return lambda heard: calls("delegate", action=action, task_id=heard.found(TASK_IDS)[nth])


def awaits(*nth: int, **more: object) -> Callable[[Conversation], Line]:
    """A call that awaits the background tasks that were started as these."""
    return lambda heard: calls("delegate", action="await", task_ids=[heard.found(TASK_IDS)[n] for n in nth], **more)


@scenario()
def zeroclaw_delegate(stage: Stage) -> None:
    """Subagents, delegation with context and in parallel, an agent without tools, failing and empty answers."""
    stage.write("retinue.toml", SETTINGS)
    stage.write("desk/notes.txt", "The pool has 20 connections.\n")
    server = stage.server()
    server.play(
        calls("file_read", path="notes.txt"),
        calls("spawn_subagent", prompt="Dig there."),
        delegate("reviewer", "Look at it.", context="It is late."),
        delegate("plain", "Say it."),
        calls("delegate", parallel=["reviewer", "plain"], prompt="Say it together."),
        calls("delegate", parallel=["reviewer", "plain"], prompt="Fail at it."),
        delegate("reviewer", "Be silent."),
        says("All is said."),
    )
    server.play(calls("spawn_subagent", prompt="Deeper."), says("Dug."), words="Dig there.")
    server.play(calls("file_read", path="desk/notes.txt"), says("Looked."), words="Look at it.")
    server.play(says("Said."), words="Say it.")
    server.play(says("Said together."), words="Say it together.")
    server.play(fails(400, "no such model"), words="Fail at it.")
    server.play(Line(), words="Be silent.")
    flags = at(server, "--agent", "frontline", "--quiet", dialect="zeroclaw")
    stage.run(*flags, "Go.", env=LOGGED, ordered=False)
    stage.forked("runs", "--all")
    stage.show_requests()


@scenario()
def zeroclaw_background(stage: Stage) -> None:
    """Background tasks that complete, fail, are cancelled or outlive the root, and their result files."""
    stage.write("retinue.toml", SETTINGS)
    (stage.work / "desk").mkdir()
    server = stage.server()
    server.play(
        delegate("reviewer", "Look at it.", background=True),
        awaits(0),
        about("check_result", 0),
        delegate("reviewer", "Fail at it.", background=True),
        awaits(0, 1),
        about("check_result", 1),
        delegate("reviewer", "Never end.", background=True),
        about("check_result", 2),
        awaits(2, timeout_ms=1),
        server.after("never", about("cancel_task", 2)),
        awaits(2),
        about("check_result", 2),
        calls("delegate", action="list_results"),
        delegate("reviewer", "Outlive me.", background=True),
        says("Handed out."),
    )
    server.play(says("Looked."), words="Look at it.")
    server.play(fails(400, "no such model"), words="Fail at it.")
    server.play(says("Never.", hold="never"), words="Never end.")
    server.play(says("Outlived."), words="Outlive me.")
    flags = at(server, "--agent", "frontline", "--quiet", dialect="zeroclaw")
    stage.forked(*flags, "Go.", env=LOGGED, ordered=False)
    stage.forked("runs", "--all")
    stage.show_requests()


@scenario()
def zeroclaw_refusals(stage: Stage) -> None:
    """Refused calls: arguments, unknown agents, task ids, timeout and profiles."""
    stage.write("retinue.toml", SETTINGS)
    (stage.work / "desk").mkdir()
    server = stage.server()
    server.play(
        calls_text("spawn_subagent", "{"),
        calls("spawn_subagent", prompt=""),
        calls("delegate", action="explode"),
        calls("delegate"),
        delegate(" ", "x"),
        delegate("reviewer", " "),
        delegate("unknown", "x"),
        delegate("frontline", "x"),
        calls("delegate", parallel=[], prompt="x"),
        calls("delegate", parallel=["unknown", "reviewer"], prompt="x"),
        calls("delegate", action="check_result"),
        calls("delegate", action="check_result", task_id="x"),
        calls("delegate", action="check_result", task_id="00000000-0000-7000-8000-000000000000"),
        calls("delegate", action="cancel_task", task_id="00000000-0000-7000-8000-000000000000"),
        calls("delegate", action="await", task_ids=[]),
        calls("delegate", action="list_results"),
        delegate("sleeper", "Rest."),
        says("So be it."),
    )
    server.play(says("Never.", hold="never"), words="Rest.")
    flags = at(server, "--quiet", dialect="zeroclaw")
    stage.forked(*flags, "--agent", "frontline", "Go.", env=LOGGED)
    server.play(calls("spawn_subagent", prompt="dig"), says("Alone."), words="Alone?")
    stage.forked(*flags, "--agent", "reviewer", "Alone?")
    server.play(calls("spawn_subagent", prompt="dig"), delegate("reviewer", "x"), says("Looked."), words="Look only.")
    stage.forked(*flags, "--agent", "careful", "Look only.")
    stage.show_requests()
