"""The dialect `xzatoma`: blocking, nested and parallel subagents, quotas, and `retinue replay`."""

from __future__ import annotations

from tests.compatibility.catalog import scenario
from tests.compatibility.model_server import Line, calls, calls_text, fails, says, together
from tests.compatibility.scenarios.common import LOGGED, SETTINGS, TOOLS, at
from tests.compatibility.stage import Stage

KEEPS = '\n[agent.subagent]\npersistence_enabled = true\npersistence_path = "copies.db"\nmax_depth = 2\n'


def subagent(label: str, task: str, **more: object) -> Line:
    """A call of the tool `subagent`."""
    return calls("subagent", label=label, task_prompt=task, **more)


@scenario()
def xzatoma_nested(stage: Stage) -> None:
    """Nested subagents, one at its turn limit, one that fails, one whose output is truncated, and their replay."""
    stage.write("retinue.toml", SETTINGS + KEEPS)
    stage.write("mytools.py", TOOLS)
    server = stage.server()
    server.play(
        subagent("dig", "Find it.", allowed_tools=["look"], summary_prompt="Sum it up."),
        subagent("short", "Look once.", max_turns=1),
        subagent("bad", "Break."),
        subagent("long", "Say much."),
        says("It was the pool."),
    )
    server.play(subagent("below", "Look below."), says("Below is the pool."), says("The pool."), words="Find it.")
    server.play(
        together(says("Let me see."), calls("look", where="below")),
        subagent("deeper", "Look deeper."),
        says("It is below."),
        says("Summary: below."),
        words="Look below.",
    )
    server.play(calls("look", where="once"), says("Enough."), words="Look once.")
    server.play(fails(400, "no such model"), words="Break.")
    server.play(says("Much."), says("word " * 850), words="Say much.")
    debug = {"RETINUE_LOG": "info,retinue.tools.subagent=debug"}
    stage.run(*at(server, "--tools", "look", "--json", dialect="xzatoma"), "Why?", env=debug)
    stage.forked("runs", "--all")
    rows = stage.query("runs", "--all", "--json").json
    below = next(row["run_id"] for row in rows if row["label"] == "below")
    stage.forked("replay", "--list")
    stage.forked("replay", "-l", "--limit", "1", "--offset", "1")
    stage.forked("replay", "--id", below)
    stage.forked("replay", "--tree")
    stage.forked("replay", "--tree", "--id", rows[-1]["run_id"])
    stage.forked("replay")
    stage.forked("replay", "--id", "00000000-0000-7000-8000-000000000000")
    stage.show_requests()


@scenario()
def xzatoma_parallel(stage: Stage) -> None:
    """Parallel tasks with failing and invalid ones; without persistence their messages are deleted."""
    server = stage.server()
    tasks = [
        {"label": "a", "task_prompt": "First task."},
        {"label": "b", "task_prompt": "Second task.", "summary_prompt": "Sum it up."},
        {"label": "c", "task_prompt": "Broken task."},
        {"label": "d", "task_prompt": "x", "allowed_tools": ["nonsense"]},
        {"label": "", "task_prompt": "x"},
    ]
    server.play(
        calls("parallel_subagent", tasks=tasks, max_concurrent=2),
        calls("parallel_subagent", tasks=[tasks[2], *tasks[:1]], fail_fast=True, max_concurrent=1),
        calls("parallel_subagent", tasks=[]),
        calls_text("parallel_subagent", '{"tasks": 7}'),
        says("All done."),
    )
    server.play(says("First."), words="First task.")
    server.play(says("Second."), says("Summary."), words="Second task.")
    server.play(fails(400, "broken"), words="Broken task.")
    stage.forked(*at(server, "--quiet", dialect="xzatoma"), "Go.", env=LOGGED, ordered=False)
    stage.forked("replay", "--list")
    stage.show_requests()


@scenario()
def xzatoma_refusals(stage: Stage) -> None:
    """Invalid calls, exceeded quotas, and settings out of range."""
    stage.write("retinue.toml", "[agent.subagent]\nmax_executions = 2\nmax_total_tokens = 100000\n")
    server = stage.server()
    server.play(
        calls_text("subagent", "{"),
        calls_text("subagent", "{}"),
        subagent("", "x"),
        subagent("a", " "),
        subagent("a", "x", max_turns=0),
        subagent("a", "x", max_turns="many"),
        subagent("a", "x", allowed_tools=["subagent"]),
        subagent("a", "x", allowed_tools=["nonsense"]),
        subagent("a", "One."),
        subagent("b", "Two."),
        subagent("c", "Three."),
        says("So be it."),
    )
    for words in ("One.", "Two.", "Three."):
        server.play(says("Yes."), says("Yes, in short."), words=words)
    stage.forked(*at(server, "--quiet", dialect="xzatoma"), "Go.", env=LOGGED)
    stage.forked("replay", "--list")
    for setting in ("max_depth = 0", "default_max_turns = 101", "output_max_size = 1", "max_executions = 0"):
        stage.write("retinue.toml", f"[agent.subagent]\n{setting}\n")
        stage.forked(*at(server, "--quiet", dialect="xzatoma"), "Go.")
