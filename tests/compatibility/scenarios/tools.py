"""The built-in tools: files, search, programs, memory, to-do list, long results, web, and `retinue tools`."""

from __future__ import annotations

import os
import shutil

from tests.compatibility.catalog import scenario
from tests.compatibility.model_server import Line, calls, calls_text, says
from tests.compatibility.scenarios.common import SETTINGS, TOOLS, at
from tests.compatibility.stage import Stage

FREE = """
[agents.free]
system_prompt = "You are free."
risk_profile = "free"
runtime_profile = "busy"

[risk_profiles.free]
level = "full"
require_approval_for_medium_risk = false

[runtime_profiles.busy]
max_actions_per_hour = 200
"""


def play(stage: Stage, *lines: Line, flags: tuple[str, ...] = (), task: str = "Go.", started: bool = False) -> None:
    """Run an agent that makes these calls, one per turn."""
    server = stage.server()
    server.play(*lines, says("Done."))
    names = ",".join(dict.fromkeys(name for line in lines for name, _ in line.calls))
    command = (*at(server, "--agent", "free", "--tools", names, "--quiet", *flags), task)
    (stage.run if started else stage.forked)(*command)


def folder(stage: Stage) -> None:
    """Write files for the tools to read."""
    stage.write("retinue.toml", FREE)
    stage.write("notes/pool.txt", "size = 20\nidle = 3\n" + "".join(f"line {number}\n" for number in range(3, 60)))
    stage.write("notes/Read Me.md", "# Pool\nThe pool is *small*.\n")
    stage.write("src/main.py", "def main():\n    return pool\n")
    stage.write("src/.hidden/pool.py", "pool = 1\n")
    stage.write("node_modules/x.js", "pool\n")


@scenario()
def tools_files(stage: Stage) -> None:
    """Operations on files, permitted and refused ones."""
    folder(stage)
    play(
        stage,
        calls("file_read", path="notes/Read Me.md"),
        calls("file_read", path="notes/pool.txt", offset=50, limit=3),
        calls("file_read", path="nowhere"),
        calls("file_read", path="/etc/passwd"),
        calls("file_read", path="../outside"),
        calls("file_write", path="made/new.txt", content="one\ntwo\n"),
        calls("file_edit", path="made/new.txt", old_string="two", new_string="2"),
        calls("file_edit", path="made/new.txt", old_string="three", new_string="3"),
        calls("file_write", path="retinue.toml", content="x"),
        calls("file_ops", operation="append", path="made/new.txt", content="three\n"),
        calls("file_ops", operation="copy", path="made/new.txt", destination="made/copy.txt"),
        calls("file_ops", operation="move", path="made/copy.txt", destination="made/moved.txt"),
        calls("file_ops", operation="list", path="made"),
        calls("file_ops", operation="exists", path="made/copy.txt"),
        calls("file_ops", operation="mkdir", path="made/folder"),
        calls("file_ops", operation="delete", path="made/moved.txt"),
        calls("file_ops", operation="delete", path="nowhere"),
        calls("file_ops", operation="explode", path="made"),
        calls("bash_read", filepath="notes/pool.txt", limit=2, offset=1),
        calls("bash_read", filepath="nowhere"),
        calls_text("file_read", '{"path": 7}'),
        started=True,
    )


SEARCHES = (
    calls("bash_find", path=".", name="*.py"),
    calls("bash_find", path=".", type_filter="d"),
    calls("bash_find", path="nowhere"),
    calls("bash_find", path=".", extra_args="-delete"),
    calls("grep", pattern="pool", context=1, limit=4),
    calls("grep", pattern="POOL", ignore_case=True, include="*.md"),
    calls("grep", pattern="nothing like it"),
    calls("bash_ripgrep", pattern="line 1\\d", files="notes", limit=3),
    calls("bash_ripgrep", pattern="line 1\\d", files="notes", limit=3, offset=3),
    calls("bash_ripgrep", pattern="pool", extra_args="-l -i"),
    calls("bash_ripgrep", pattern="pool", extra_args="--pre cat"),
)


@scenario("ripgrep")
def tools_search(stage: Stage) -> None:
    """Searches on a machine with ripgrep."""
    folder(stage)
    play(stage, *SEARCHES)


@scenario()
def tools_search_alone(stage: Stage) -> None:
    """The same searches without ripgrep in the path."""
    folder(stage)
    places = [place for place in os.environ["PATH"].split(os.pathsep) if not shutil.which("rg", path=place)]
    stage.env["PATH"] = os.pathsep.join(places)
    play(stage, *SEARCHES)


@scenario("sandbox")
def tools_sandbox(stage: Stage) -> None:
    """Shell commands and Python code in a sandbox, permitted and refused ones."""
    folder(stage)
    play(
        stage,
        calls("shell", command="cat notes/pool.txt | head -n 2 && echo more | wc -l"),
        calls("shell", command="echo kept > made.txt"),
        calls("terminal", command="ls", cwd="notes"),
        calls("shell", command="cat missing.txt"),
        calls("shell", command="env"),
        calls("shell", command="rm made.txt"),
        calls("shell", command="echo $(cat made.txt)"),
        calls("shell", command="ls", working_dir="/etc"),
        calls("shell", command=""),
        calls("python_execute", code="print(6 * 7)\nprint(open('notes/pool.txt').readline())"),
        calls("python_execute", code="try:\n    open('made.txt', 'w')\nexcept OSError as error:\n    print(error)"),
        calls("python_execute", code=""),
        started=True,
    )


@scenario()
def tools_without_sandbox(stage: Stage) -> None:
    """Shell commands and Python code with --no-sandbox."""
    folder(stage)
    play(
        stage,
        calls("shell", command="cat notes/pool.txt | head -n 2 && pwd"),
        calls("shell", command="cat missing.txt"),
        calls("shell", command="rm notes/pool.txt"),
        calls("python_execute", code="import os\nprint(6 * 7, os.getcwd())"),
        flags=("--no-sandbox",),
    )


@scenario()
def tools_memory(stage: Stage) -> None:
    """Memory in SQLite and in Markdown, and the `memory` commands."""
    lines = (
        calls("memory_store", key="style", content="Plain words."),
        calls("memory_store", key="pool", content="The pool has 20 connections.", category="daily"),
        calls("memory_store", key="pool", content="The pool has 200 connections."),
        calls("memory_recall", query="pool connections"),
        calls("memory_recall"),
        calls("memory_recall", limit=0),
        calls("memory_recall", since="yesterday"),
        calls("memory_forget", key="style"),
        calls("memory_forget", key="style"),
        calls("memory_store", key="", content="x"),
        calls("memory_store", key="x", content="y", category="no such thing!"),
        calls_text("memory_store", "["),
        calls("memory_store", key="tone", content="Calm, and plain."),
    )
    stage.write("retinue.toml", FREE)
    play(stage, *lines)
    stage.write("retinue.toml", FREE + '\n[tools]\nmemory = "markdown"\n')
    play(stage, *lines[:5], task="Go on.")
    stage.forked("memory", "list")
    stage.forked("memory", "list", "free", "--json")
    stage.forked("memory", "show", "free", "pool")
    stage.forked("memory", "show", "free", "pool", "--json")
    stage.forked("memory", "show", "free", "nothing")
    stage.forked("memory", "forget", "free", "pool")
    stage.forked("memory", "list", "--json")
    stage.forked("memory", "list", "unknown")


@scenario()
def tools_todo(stage: Stage) -> None:
    """The to-do list of a session."""
    stage.write("retinue.toml", FREE)
    play(
        stage,
        calls("task_create", subject="Find the cause", priority="high", labels=["pool"]),
        calls("task_create", subject="Fix it", blocked_by=["task_1"], owner="free", metadata={"size": 20}),
        calls("task_list"),
        calls("task_update", id="task_1", status="completed"),
        calls("task_get", id="task_2"),
        calls("task_list", status="pending"),
        calls("task_get", id="task_9"),
        calls("task_create", subject=""),
        calls("task_update", id="task_1", blocked_by=["task_1"]),
        calls("task_update", id="task_1", status="done"),
        flags=("--session", "todo"),
    )


@scenario()
def tools_pages(stage: Stage) -> None:
    """Results above the maximum size, and their artifacts."""
    stage.write("mytools.py", TOOLS)
    stage.write("retinue.toml", FREE + "\n" + SETTINGS + "max_result = 2000\n")
    stage.write("long.txt", "".join(f"{number}: {'word ' * 30}\n" for number in range(16)))
    server = stage.server()

    server.play(
        calls("file_read", path="long.txt"),
        calls("look", where="everywhere", times=110),
        lambda heard: calls("artifact_read", id=heard.found(r"\ba_[0-9a-f]{16}\b")[0], offset=2000, limit=100),
        calls("artifact_read", id="nothing"),
        calls("file_ops", operation="read", path="long.txt"),
        says("Done."),
    )
    stage.forked(*at(server, "--agent", "free", "--tools", "file_read,look,file_ops,artifact_read", "--quiet"), "Read.")


@scenario()
def tools_web(stage: Stage) -> None:
    """Addresses that are refused without a network access."""
    stage.write("retinue.toml", FREE)
    play(
        stage,
        calls("fetch", url="http://127.0.0.1:8080/"),
        calls("fetch", url="http://169.254.169.254/latest/meta-data"),
        calls("fetch", url="file:///etc/passwd"),
        calls("scrape_webpage", url="http://localhost/"),
        calls("scrape_webpage", url="nonsense"),
    )


@scenario()
def tools_listed(stage: Stage) -> None:
    """`retinue tools` with a module of the user, and with modules that cannot be loaded."""
    stage.write("mytools.py", TOOLS)
    stage.write("retinue.toml", SETTINGS)
    stage.forked("tools")
    stage.forked("tools", "--json")
    stage.write("retinue.toml", '[tools]\nmodules = ["./nowhere.py"]\n')
    stage.forked("tools")
    stage.write("broken.py", "import retinue\n\nretinue.tool(7)\n")
    stage.write("retinue.toml", '[tools]\nmodules = ["./broken.py"]\n')
    stage.forked("tools")
