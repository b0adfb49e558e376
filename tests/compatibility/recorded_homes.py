"""Commands on recorded state folders: read-only commands, and commands that continue recorded work.

The working folder of the recorded runs does not exist any more, neither when a recording is made nor in tests.
"""

from __future__ import annotations

import json
import platform
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compatibility.model_server import calls, says
from tests.compatibility.stage import Stage
from tests.compatibility.store_dump import STORE

KILLED = "killed"
"""The name of state folders whose driver was killed. Only on the host of the driver its runs are `interrupted`."""

_STATE = re.compile(r'("(?:state|waiting_for)": )(?:"\w+"|null)')


def inspect(stage: Stage, home: str) -> str:
    """The output of read-only commands on the state folder of the stage, with the ids and times of that folder."""
    lines: list[str] = []

    def output_of(*words: str) -> str:
        ended = stage.query(*words)
        lines.extend([f"--- retinue {' '.join(words)}: exit status {ended.code}", ended.stdout])
        return ended.stdout

    rows = json.loads(output_of("runs", "--all", "--json"))
    for words in _read_only_commands(rows, stage.home):
        if home != KILLED or "--json" in words:
            output_of(*words)
    text = "\n".join(lines).replace(str(stage.home), "<home>")
    return _STATE.sub(r'\1"?"', text) if home == KILLED else text


def _read_only_commands(rows: Sequence[Mapping[str, Any]], home: Path) -> Iterator[tuple[str, ...]]:
    """The commands for a store with these runs."""
    roots = [row["run_id"] for row in rows if row["parent_id"] is None]
    parents = {row["parent_id"] for row in rows}
    yield "runs", "--all"
    for row in rows:
        yield "runs", "show", row["run_id"], "--json"
    for run_id in roots:
        yield "runs", "show", run_id
        if run_id in parents:
            yield "runs", "tree", run_id, "--json"
            yield "runs", "tree", run_id
    if any(row["outcome"] is None for row in rows):
        yield "approvals", "--json"
    if any(row["dialect"] == "xzatoma" for row in rows):
        yield "replay", "--list"
        yield "replay", "--tree"
        for row in rows:
            if row["label"]:
                yield "replay", "--id", row["run_id"]
    spaces = _spaces(home)
    contexts = sorted(space for space in spaces if space.startswith("context/"))
    if contexts:
        yield "context", "list", "--json"
    for space in contexts:
        yield "context", "show", space.removeprefix("context/"), "--json"
    if "cron" in spaces:
        yield "cron", "list", "--json"
        yield "cron", "log", "--json"
        yield "cron", "log"
    if (home / "memory.db").exists():
        yield "memory", "list", "--json"


def _spaces(home: Path) -> set[str]:
    with closing(sqlite3.connect(home / STORE)) as store:
        return {space for (space,) in store.execute("SELECT DISTINCT space FROM shelves").fetchall()}


# ---- continuing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Continuation:
    """Commands that continue the work in one recorded state folder."""

    scenario: str
    home: str
    play: Callable[[Stage], None]

    @property
    def name(self) -> str:
        """The name of its test."""
        return f"{self.scenario}/{self.home}"


def _oldest_root(stage: Stage) -> str:
    return json.loads(stage.query("runs", "--json").stdout)[-1]["run_id"]


def _resume_tree(stage: Stage) -> None:
    """Resume an interrupted tree, then use its session for another run."""
    server = stage.server()
    server.play(
        *[says("a turn that was recorded before the interruption")] * 4,
        calls("subagent", action="collect", task_id="t_01"),
        says("It was the pool."),
    )
    server.play(says("The pool."), words="Find it.")
    server.play(
        calls("subagent", action="list_agents"),
        calls("shared_context", action="read", key="scope"),
        calls("subagent", action="spawn", agent="dig", task="Find it."),
        calls("subagent", action="wait", task_ids=["t_02"]),
        calls("subagent", action="collect", task_id="t_02"),
        says("Again the pool."),
        words="Why again?",
    )
    flags = ("--base-url", server.url, "--quiet")
    stage.run("runs", "resume", _oldest_root(stage), *flags)
    stage.forked("run", *flags, "--model", "m", "--dialect", "spec", "--session", "incident", "Why again?")
    stage.show_requests()


def _resume_killed_tree(stage: Stage) -> None:
    """Resume a tree whose process was killed."""
    with closing(sqlite3.connect(stage.home / STORE)) as store, store:
        # The same machine before its last start: its processes are gone.
        store.execute("UPDATE drivers SET host = ?", (f"{platform.node()}/00000000-0000-0000-0000-000000000000",))
    server = stage.server()
    server.play(says("a turn that was recorded before the crash"), says("Found."))
    server.play(
        says("a turn that was recorded before the crash"), says("It is below."), says("Below."), words="Find it."
    )
    stage.run("runs", "resume", _oldest_root(stage), "--base-url", server.url, "--quiet")
    stage.show_requests()


def _answer_and_resume(stage: Stage) -> None:
    """Answer an open question, then resume its run."""
    server = stage.server()
    server.play(says("a turn that was recorded before the interruption"), says("Done."))
    (question,) = stage.forked("approvals", "--json").json
    stage.forked("approve", question["id"], "--note", "go ahead")
    stage.run("runs", "resume", question["run_id"], "--base-url", server.url, "--quiet")
    stage.show_requests()


def _continue_chat(stage: Stage) -> None:
    """Continue the conversation of a session."""
    server = stage.server()
    server.play(*[says("a turn of the recorded conversation")] * 4, says("It still does."))
    flags = ("--base-url", server.url, "--model", "m", "--session", "audit", "--quiet")
    stage.run("chat", *flags, stdin="And today?\n")
    stage.show_requests()


def _cancel_and_prune(stage: Stage) -> None:
    """Cancel an interrupted run, then delete all ended runs."""
    interrupted = next(row for row in stage.query("runs", "--json").json if row["state"] == "interrupted")
    stage.run("runs", "cancel", interrupted["run_id"])
    stage.forked("runs", "prune", "--older-than", "0s")
    stage.forked("runs", "--all", "--json")


def _recall(stage: Stage) -> None:
    """Recall and delete a memory."""
    stage.write("retinue.toml", '[agents.free]\nsystem_prompt = "You are free."\ntools = ["memory_recall"]\n')
    server = stage.server()
    server.play(calls("memory_recall", query="calm"), says("Calm."))
    flags = ("--base-url", server.url, "--model", "m", "--dialect", "none", "--quiet")
    stage.run("run", *flags, "--agent", "free", "Which tone?")
    stage.forked("memory", "forget", "free", "tone")


CONTINUATIONS = (
    Continuation("lifecycle-interrupted", "interrupted", _resume_tree),
    Continuation("lifecycle-interrupted-tool", "final", _cancel_and_prune),
    Continuation("lifecycle-killed-tree", KILLED, _resume_killed_tree),
    Continuation("approvals-waited-for", "asking", _answer_and_resume),
    Continuation("chat-conversation", "final", _continue_chat),
    Continuation("tools-memory", "final", _recall),
)
