"""`retinue demo`: in a pipe, on terminals, interrupted, and with a failing worker."""

from __future__ import annotations

import io
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from retinue.app.settings_file import load_settings
from retinue.app.tool_modules import load_tools
from retinue.cli.demo import print_end, story
from retinue.cli.demo.crash_and_resume import FAST, DemoFailed, DemoScreen, last_line, play, worker_command
from retinue.cli.demo.story import log_of
from retinue.core.errors import ToolError
from retinue.providers.scripted import says
from tests.cli.conftest import Cli
from tests.cli.screen import on_screen
from tests.cli.stage import Ended, serving

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "incident"
CALLS = re.compile(
    r"(\d+) model calls were finished before the kill; none was made again\."
    r"(?: \d+ answers? came too late to be kept\.)? (\d+) followed\."
)
PROCESS = re.compile(r"Process (\d+) ")


def is_gone(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """The demo in a pipe, run in the folder of the repository, and its folder of temporary files."""
    temporary = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "retinue", "demo", "--fast"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary), "FORCE_COLOR": ""},
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr), temporary


def test_in_a_pipe_the_demo_prints_plain_lines_and_names_the_model(
    piped: tuple[Ended, Path],
) -> None:
    ended, _ = piped

    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[0] == (
        "The model is scripted (scripted:incident-story): its replies are prepared."
    )
    assert "\x1b" not in ended.stdout


def test_the_story_delegates_to_defined_agents_with_shared_context(
    piped: tuple[Ended, Path],
) -> None:
    result = [line[8:] for line in piped[0].stdout.splitlines()]
    wanted = [
        f"user             {story.TASK}",
        "main             spawns researcher: Investigate the problem",
        "researcher t_01  reads problem_summary, scope",
        "researcher t_01  calls search_logs(query='config pool timeout')",
        "researcher t_01  shares findings_summary: Config change 4711",
        "main             says: Was the pool size change of Feb 18 intentional?",
        f"user             {story.ANSWER}",
        "main             defines a new agent, remediator: Executes remediation",
        "main             spawns remediator: Execute the approved revert",
        "main             spawns writer: Draft an incident summary",
        "remediator t_02  reads findings_summary, decisions_made",
        "remediator t_02  calls update_config(environment='staging', setting='connection_pool.size', value=200)",
        "remediator t_02  interrupted: 4 turns, ",
        "remediator t_02  continues after turn 4 in another process",
        "remediator t_02  shares remediation_status: Staging is reverted",
        "main             collects t_02",
    ]

    found = [next((place for place, line in enumerate(result) if line.startswith(start)), None) for start in wanted]
    assert None not in found, wanted[found.index(None)]
    assert found == sorted(place for place in found if place is not None)
    assert any(line.startswith("writer t_03      interrupted: ") for line in result)
    assert not any("gets an error" in line or "failed" in line for line in result)


def test_the_demo_ends_with_answer_tree_call_counts_and_command(piped: tuple[Ended, Path]) -> None:
    _, _, end = piped[0].stdout.partition("\nThe answer\n")
    report, status, tree, proof, command = (part.strip().splitlines() for part in end.split("\n\n"))

    assert report[0].startswith("On Feb 18 an accidental config change reduced the connection pool from 200 to 20.")
    assert status[0].startswith("Staging is reverted: with 200 connections throughput is back at 1450 requests/s.")
    heading, *rows, total = tree
    assert heading == "The runs"
    assert [re.split(r"  +", row)[1] for row in rows] == ["completed"] * 4
    assert [row.split()[1] for row in rows[1:]] == ["researcher", "remediator", "writer"]
    assert all(re.search(r" \$0\.\d+ ", row) for row in rows)
    counted = CALLS.fullmatch(proof[0])
    assert counted is not None
    assert total.startswith(f"4 runs, {int(counted[1]) + int(counted[2])} turns, ")
    assert command == [
        "The same with a real model:",
        "retinue run --model anthropic:claude-sonnet-4-5 \\",
        "  --config examples/incident/retinue.toml \\",
        f'  "{story.TASK}"',
    ]


def test_neither_a_process_nor_a_file_is_left_behind(piped: tuple[Ended, Path]) -> None:
    ended, temporary = piped
    workers = PROCESS.findall(ended.stdout)

    assert len(set(workers)) == 2
    assert f"kill -9 {workers[0]}: the process dies in the middle of its work." in ended.stdout
    assert all(map(is_gone, workers))
    assert list(temporary.iterdir()) == []


def test_the_command_at_the_end_works(piped: tuple[Ended, Path], cli: Cli) -> None:
    _, _, printed = piped[0].stdout.partition("The same with a real model:\n")
    words = shlex.split(printed.replace("\\\n", " "))
    assert words[:3] == ["retinue", "run", "--model"]
    config, prompt = ROOT / words[words.index("--config") + 1], words[-1]

    with serving(says("Done.")) as vendor:
        ended = cli("run", "--base-url", vendor.base_url, "--model", "m", "--config", str(config), prompt)

    assert (ended.code, ended.stdout) == (0, "Done.\n")
    system, task = (message["content"] for message in vendor.requests[0].body["messages"])
    assert "researcher - Investigates technical issues using logs and metrics" in system
    assert "writer - Drafts documentation and reports" in system
    assert task == story.TASK


@pytest.mark.parametrize("width", [80, 140])
def test_on_a_terminal_the_lines_stay_and_the_live_tree_is_gone_at_the_end(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code, lines = on_screen("demo", "--fast", width=width, NO_COLOR="")

    assert code == 0
    assert max(map(len, lines)) <= width
    assert lines[0] == "The model is scripted (scripted:incident-story): its replies are prepared."
    start = next(place for place, line in enumerate(lines) if line.endswith("Find out why; fix it."))
    crash = next(place for place, line in enumerate(lines) if line.startswith("kill -9 "))
    again = next(place for place, line in enumerate(lines) if line.endswith("the interrupted runs and continues them."))
    answer = lines.index("The answer")
    assert start < crash < again < answer
    happened = [line for line in lines[start:answer] if line and line not in (lines[crash], lines[again])]
    assert all(re.match(r" *\d+\.\d s  [a-z]", line) for line in happened), "something of the tree was left"
    tree = lines[lines.index("The runs") + 1 :][:4]
    assert [re.findall(r"(\w+) t_\d\d [0-9a-f]{8} .* completed +(\d+) t  ", line) for line in tree] == [
        [],
        [("researcher", "7")],
        [("remediator", "8")],
        [("writer", "3")],
    ]
    assert CALLS.search(" ".join(lines))
    assert lines[-1] == f'  "{story.TASK}"'
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", [False, True], ids=["forgotten", "kept"])
def test_ctrl_c_ends_the_demonstration_and_its_worker(keep: bool, tmp_path: Path, cli: Cli) -> None:
    process = started(tmp_path, *(["--keep"] if keep else []))
    worker = heard(process, PROCESS)[1]
    heard(process, re.compile("spawns researcher"))
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate()

    assert (process.returncode, said.splitlines()[0]) == (130, "interrupted")
    assert is_gone(worker)
    homes = list(tmp_path.glob("retinue-demo-*"))
    assert len(homes) == keep
    for home in homes:
        assert said.splitlines()[1:] == [f"kept in {home}; inspect it with: RETINUE_HOME={home} retinue runs"]
        (row,) = cli("runs", "--json", env={"RETINUE_HOME": str(home)}).json
        assert (row["agent"], row["state"]) == ("main", "interrupted")


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs a way to wait for a process that is not one's child")
def test_a_worker_does_not_outlive_the_demonstration(tmp_path: Path) -> None:
    process = started(tmp_path)
    worker = os.pidfd_open(int(heard(process, PROCESS)[1]))
    heard(process, re.compile("spawns researcher"))
    process.kill()
    process.communicate()

    over, _, _ = select.select([worker], [], [], 30.0)
    os.close(worker)
    assert over


def started(temporary: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "retinue", "demo", "--fast", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary), "FORCE_COLOR": ""},
        start_new_session=True,
    )


def heard(process: subprocess.Popen[str], words: re.Pattern[str]) -> re.Match[str]:
    """Wait for a line that contains these words."""
    assert process.stdout is not None
    return next(found for line in process.stdout if (found := words.search(line)))


def nowhere() -> DemoScreen:
    return DemoScreen(Console(file=io.StringIO()), None)


@pytest.mark.real_time
async def test_a_repeated_model_call_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def asks_everything_again(home: Path, life: int, pace: float) -> Sequence[str]:
        if life == 2:
            log_of(home, 2).write_bytes(log_of(home, 1).read_bytes())
        return worker_command(home, life, pace)

    played = await play(tmp_path, nowhere(), FAST, asks_everything_again)

    assert played.repeated
    assert print_end(played) == 1
    assert f"error: {len(played.repeated)} model calls were answered and made again\n" in capsys.readouterr().err


@pytest.mark.real_time
async def test_a_failing_worker_is_reported_with_its_last_line(tmp_path: Path) -> None:
    def gives_up(home: Path, life: int, pace: float) -> Sequence[str]:
        return [sys.executable, "-c", "import sys; sys.exit('I cannot work like this')"]

    with pytest.raises(DemoFailed, match="ended before the question to the user"):
        await play(tmp_path, nowhere(), FAST, gives_up)

    assert last_line(tmp_path) == ": I cannot work like this"


def test_the_example_has_the_agents_and_tools_of_the_story() -> None:
    settings = load_settings(EXAMPLE / "retinue.toml")
    tools = {tool.spec.name: tool for tool in load_tools(settings.tool_modules)}

    assert story.SETTINGS.samefile(EXAMPLE / "retinue.toml")
    assert list(settings.agents) == ["researcher", "writer"]
    assert [(name, tool.kind) for name, tool in tools.items()] == [
        ("search_logs", "pure"),
        ("query_metrics", "pure"),
        ("run_staging_command", "pure"),
        ("update_config", "idempotent"),
    ]
    named = {name for agent in settings.core_agents() for name in agent.tools}
    assert named - {"shared_context"} <= tools.keys()


def example_tools() -> Any:
    (module,) = load_settings(EXAMPLE / "retinue.toml").tool_modules
    return SimpleNamespace(**{tool.spec.name: tool for tool in load_tools([module])})


def test_the_tools_of_the_example_return_invented_data() -> None:
    tools = example_tools()

    assert tools.search_logs("CONFIG", limit=1) == (
        "Feb 18 09:12:04 deploy    config change 4711 rolled out: connection_pool.size 200 -> 20"
    )
    assert tools.search_logs("dragons") == "no lines about 'dragons'"
    assert tools.query_metrics("connection_pool_size") == "connection_pool_size: Feb 17: 200; Feb 18: 20"
    assert tools.run_staging_command("load-test 20") == "pool size 20: 1015 requests/s (baseline 1450)"
    assert tools.run_staging_command("load-test 200") == "pool size 200: 1450 requests/s (baseline 1450)"
    assert tools.run_staging_command("threads 200") == "pool size 200: 41% of threads blocked"
    assert tools.update_config("staging", "connection_pool.size", 200) == "staging: connection_pool.size is 200 now"


def test_the_tools_of_the_example_report_unknown_names() -> None:
    tools = example_tools()

    with pytest.raises(ToolError, match="no metric named 'mood'; there are: throughput, "):
        tools.query_metrics("mood")
    with pytest.raises(ToolError, match="cannot run 'rm -r' in staging; there are: load-test POOL_SIZE"):
        tools.run_staging_command("rm -r")
    with pytest.raises(ToolError, match="production has to be approved by a person"):
        tools.update_config("production", "connection_pool.size", 200)
    with pytest.raises(ToolError, match="staging has no setting 'mood'"):
        tools.update_config("staging", "mood", 1)


@pytest.mark.parametrize("columns", ["40", "100"])
def test_the_command_explains_itself_with_an_example(cli: Cli, columns: str) -> None:
    result = cli("demo", "--help", env={"COLUMNS": columns})

    assert (result.code, result.stderr) == (0, "")
    assert "Example: retinue demo" in " ".join(result.stdout.split())
    assert "--fast" in result.stdout
