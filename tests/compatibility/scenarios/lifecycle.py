"""Killed, interrupted, resumed, cancelled and pruned runs, and approvals."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

from tests.compatibility.catalog import scenario
from tests.compatibility.model_server import ModelServer, calls, says
from tests.compatibility.scenarios.common import SETTINGS, TOOLS, at
from tests.compatibility.stage import Stage


def prepared(stage: Stage, more: str = "") -> ModelServer:
    """Write tools and settings, and start a model server."""
    stage.write("mytools.py", TOOLS)
    stage.write("retinue.toml", SETTINGS + more)
    return stage.server()


@scenario()
def lifecycle_killed(stage: Stage) -> None:
    """A process that is killed during a `once` call, and killed again during an `idempotent` call."""
    server = prepared(stage)
    server.play(
        calls("look", where="here"),
        calls("die_once", word="first"),
        calls("hang_once", word="second"),
        says("Still here."),
    )
    flags = at(server, "--tools", "look,die_once,hang_once", "--quiet")
    stage.run(*flags, "Live.")
    run_id = stage.forked("runs", "--json").json[0]["run_id"]
    stage.forked("runs", "show", run_id)
    command = stage.start("runs", "resume", run_id, "--quiet")
    stage.wait_for_store("SELECT seq = 8 FROM runs")  # the reply with the second call is stored
    command.signal(signal.SIGKILL)
    stage.note(command.arguments, command.ended())
    stage.run("runs", "resume", run_id, "--quiet")
    stage.forked("runs", "resume", run_id)
    stage.forked("runs", "show", run_id, "--json")
    stage.show_requests()


@scenario()
def lifecycle_killed_tree(stage: Stage) -> None:
    """A process that is killed while a child waits for its model."""
    server = stage.server()
    server.play(
        calls("subagent", label="dig", task_prompt="Find it."),
        says("Found."),
    )
    server.play(calls("file_read", path="nowhere"), says("It is below.", hold="dig"), says("Below."), words="Find it.")
    command = stage.start(*at(server, "--tools", "file_read", "--quiet", dialect="xzatoma"), "Go.")
    server.wait_for_request("dig")
    stage.wait_for_store("SELECT seq = 3 FROM runs WHERE no = 2")  # accepted, reply, result
    command.signal(signal.SIGKILL)
    stage.note(command.arguments, command.ended(), title="retinue run, killed")
    stage.keep_home("killed")
    server.release("dig")
    rows = stage.forked("runs", "--all", "--json").json
    child, root = (row["run_id"] for row in rows)
    stage.forked("runs", "tree", root)
    stage.run("runs", "resume", child, "--quiet")
    stage.forked("runs", "tree", root, "--json")


@scenario()
def lifecycle_interrupted(stage: Stage) -> None:
    """Ctrl-C during a tree of two runs, and resume by another process."""
    server = stage.server()
    define = calls("subagent", action="define", name="dig", description="Digs.", system_prompt="You dig.")
    server.play(
        define,
        calls("shared_context", action="write", key="scope", value="Everything."),
        calls("subagent", action="spawn", agent="dig", task="Find it."),
        calls("subagent", action="wait", task_ids=["t_01"]),
        calls("subagent", action="collect", task_id="t_01"),
        says("It was the pool."),
    )
    server.play(says("The pool.", hold="dig"), words="Find it.")
    command = stage.start(*at(server, "--session", "incident", "--quiet", dialect="spec"), "Why?")
    server.wait_for_request("dig")
    stage.wait_for_store("SELECT seq = 8 FROM runs WHERE no = 1")  # the reply with the call of wait is stored
    command.signal(signal.SIGINT)
    stage.note(command.arguments, command.ended(), title="retinue run, interrupted")
    stage.keep_home("interrupted")
    rows = stage.forked("runs", "--all", "--json").json
    root = rows[-1]["run_id"]
    stage.forked("runs", "tree", root)
    stage.forked("runs", "show", root)
    server.release("dig")
    stage.run("runs", "resume", root, "--quiet")
    stage.forked("context", "show", "incident", "--json")


@scenario()
def lifecycle_interrupted_tool(stage: Stage) -> None:
    """Ctrl-C during a tool call, with text and with events as output."""
    server = prepared(stage)
    server.play(calls("interrupt"), says("Not any more."))
    flags = at(server, "--tools", "interrupt")
    stage.run(*flags, "Go.")
    run_id = stage.forked("runs", "--json").json[0]["run_id"]
    stage.run("runs", "resume", run_id, "--quiet")
    (stage.work / "interrupted").unlink()
    stage.run(*flags, "--sse", "Go.")


@scenario()
def lifecycle_cancelled(stage: Stage) -> None:
    """A running tree: resume is refused, cancel by another process ends it."""
    server = prepared(stage)
    server.play(calls("subagent", label="dig", task_prompt="Find it."), says("Found."))
    server.play(says("Never.", hold="never"), words="Find it.")
    command = stage.start(*at(server, "--json", dialect="xzatoma"), "Go.")
    server.wait_for_request("never")
    rows = stage.forked("runs", "--all", "--json").json
    root = rows[-1]["run_id"]
    stage.forked("runs", "resume", root)
    stage.forked("runs", "cancel", root)
    stage.note(command.arguments, command.ended(), title="retinue run, cancelled", ordered=False)
    stage.forked("runs", "cancel", root)
    stage.forked("runs", "tree", root, "--json")
    stage.forked("runs", "show", root)


@scenario()
def lifecycle_pruned(stage: Stage) -> None:
    """Prune deletes trees that ended long ago."""
    server = stage.server()
    server.play(says("Yes."))
    for _ in range(2):
        stage.forked(*at(server, "--quiet"), "Is it?")
    stage.forked("runs", "prune", "--older-than", "1d")
    with closing(sqlite3.connect(stage.home / "retinue.db")) as store, store:
        store.execute("UPDATE runs SET ended_at = ended_at - 864000 WHERE no = 1")
    stage.forked("runs", "prune", "--older-than", "1d")
    stage.forked("runs", "prune", "--older-than", "soon")
    stage.forked("runs", "--json")


@scenario()
def approvals_denied(stage: Stage) -> None:
    """Calls that need approval: denied without a terminal, and approved with --yes."""
    server = prepared(
        stage,
        '\n[agents.careful]\ntools = ["deploy"]\nrisk_profile = "asks"\n'
        '[risk_profiles.asks]\nalways_ask = ["deploy"]\n',
    )
    server.play(calls("deploy", version=2), says("Done."))
    stage.forked(*at(server, "--tools", "deploy"), "Deploy.")
    stage.forked(*at(server, "--tools", "deploy", "--approvals", "deny", "--json"), "Deploy.")
    stage.forked(*at(server, "--tools", "deploy", "--yes"), "Deploy.")
    stage.forked(*at(server, "--agent", "careful", "--yes"), "Deploy.")
    stage.forked(*at(server, "--tools", "deploy", "--approvals", "ask"), "Deploy.")
    stage.forked("approvals")
    stage.forked("approvals", "--json")


@scenario()
def approvals_waited_for(stage: Stage) -> None:
    """An approval from another process during a run, and a denial after the interruption of a run."""
    server = stage.server()
    server.play(calls("file_write", path="1.txt", content="out\n"), says("Done."))
    flags = at(server, "--tools", "file_write", "--approvals", "wait", "--quiet")
    asked = "SELECT count(*) FROM runs WHERE phase = 'parked'"
    command = stage.start(*flags, "Write.")
    stage.wait_for_store(asked)
    (question,) = stage.forked("approvals", "--json").json
    stage.forked("approvals")
    stage.forked("runs", "--json")
    stage.forked("approve", question["id"], "--note", "go ahead")
    stage.note(command.arguments, command.ended())
    command = stage.start(*flags, "Write again.")
    stage.wait_for_store(asked)
    command.signal(signal.SIGINT)
    # The question is printed while the signal arrives, or is not.
    stage.note(command.arguments, command.ended(), stderr=None, title="retinue run, interrupted with an open question")
    stage.keep_home("asking")
    (question,) = stage.forked("approvals", "--json").json
    stage.forked("deny", question["id"], "--note", "not on a Friday")
    stage.forked("deny", question["id"])
    stage.forked("approve", "nothing/1/0")
    stage.run("runs", "resume", question["run_id"], "--quiet")
    stage.forked("runs", "show", question["run_id"])
    stage.show_requests()
