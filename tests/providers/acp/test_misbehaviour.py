"""Agent programs that die, hang, flood and ask for what they are not offered, and the end of their processes."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from retinue import Policy
from retinue.core.ports import Sandbox
from retinue.core.run import Limits
from retinue.providers.acp import AgentProgram
from tests.providers.acp.harness import AGENT, PYTHON, SUPERVISED, Scene, alive, calls_of, update

pytestmark = pytest.mark.real_time  # child processes


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    return Scene(tmp_path)


async def test_an_agent_that_ignores_a_cancel_is_killed_with_its_process_group(scene: Scene) -> None:
    async with scene.open([["hang"]]) as r:
        run = await r.spawn("Go.")
        pids = await scene.pids()
        began = time.monotonic()
        await run.cancel()
        outcome = await run.wait()
        left = await asyncio.to_thread(alive, pids)

    assert (outcome.result, outcome.text, len(pids), left) == ("cancelled", "working", 2, [])
    assert time.monotonic() - began < 30


async def test_a_deadline_ends_the_program(scene: Scene) -> None:
    async with scene.open([["hang"]]) as r:
        outcome = await r.run("Go.", timeout=2.0)
        left = await asyncio.to_thread(alive, await scene.pids())

    assert (outcome.result, outcome.reason, left) == ("timed_out", "deadline", [])


async def test_an_agent_that_falls_silent_is_stopped_and_not_asked_again(scene: Scene) -> None:
    async with scene.open([["hang"]]) as r:
        outcome = await r.run("Go.", limits=Limits(idle_timeout=1.0, first_timeout=1.0))
        left = await asyncio.to_thread(alive, await scene.pids())

    assert outcome.error == "helper was stopped in the middle of its turn; what it had begun is not repeated"
    assert (outcome.result, len(scene.sent("session/prompt")), left) == ("failed", 1, [])


async def test_closing_a_retinue_ends_its_agents(scene: Scene) -> None:
    async with scene.open([["hang"]]) as r:
        await r.spawn("Go.")
        pids = await scene.pids()

    assert await asyncio.to_thread(alive, pids) == []


async def test_an_agent_that_dies_goes_on_in_its_session_once(scene: Scene, tmp_path: Path) -> None:
    turn = [["say", "Half. "], ["do", "1", "look", "read", "x"], ["say", "lost"], ["die_once", str(tmp_path / "died")]]
    async with scene.open(turn, resumed=[[["say", "And the rest."]]]) as r:
        outcome = await r.run("Go.")

    assert (outcome.ok, outcome.text) == (True, "And the rest.")
    assert [each["sessionId"] for each in scene.sent("session/load")] == ["s-1"]
    assert scene.prompts()[1].startswith("You were interrupted in the middle of your work.")


async def test_an_agent_that_dies_again_ends_the_run_with_what_was_said(scene: Scene) -> None:
    async with scene.open([["say", "Half."], ["die"]], resumed=[[["say", "More."], ["die"]]]) as r:
        outcome = await r.run("Go.")

    reason = "interrupted: helper was lost in the middle of its work: it ended; it said: the disk is gone"
    assert (outcome.result, outcome.error, outcome.text) == ("failed", reason, "More.")


async def test_an_agent_without_sessions_that_dies_ends_the_run_with_what_was_said(scene: Scene) -> None:
    async with scene.open([["say", "Half."], ["die"]], abilities={"loadSession": False}) as r:
        outcome = await r.run("Go.")

    assert (outcome.result, outcome.text, len(scene.sent("session/prompt"))) == ("failed", "Half.", 1)
    assert outcome.error.startswith("interrupted: helper was lost in the middle of its work")


async def test_an_agent_that_has_lost_its_session_ends_the_run_with_what_was_said(scene: Scene, tmp_path: Path) -> None:
    turn = [["say", "Half. "], ["do", "1", "look", "read", "x"], ["say", "lost"], ["die_once", str(tmp_path / "died")]]
    async with scene.open(turn, abilities={"loadSession": True, "_meta": {"forgets": True}}) as r:
        outcome = await r.run("Go.")

    reason = (
        "interrupted: helper was in the middle of its work, and its session could not be continued: helper answered "
        "session/load with an error: Internal error: no such session"
    )
    assert (outcome.result, outcome.error, outcome.text) == ("failed", reason, "Half. ")


async def test_files_and_programs_are_not_offered(scene: Scene) -> None:
    async with scene.open([["read", "/etc/passwd"]]) as r:
        outcome = await r.run("Read.")

    assert json.loads(outcome.text) == {"code": -32601, "message": "fs/read_text_file is not offered"}


async def test_lines_that_are_no_messages_are_skipped(scene: Scene) -> None:
    noise = [
        "{",
        "[1]",
        '"x"',
        "Debugger attached.",
        '{"jsonrpc":"2.0","method":5}',
        '{"id":{}}',
        "\x00",
        "[" * 100_000,
    ]
    odd = [
        '{"jsonrpc":"2.0","method":"session/update","params":' + params + "}"
        for params in ("[]", "null", '{"update":[]}')
    ]
    strange = update(sessionUpdate="tool_call", toolCallId={}, status=7, content=[5, {"type": "diff"}])
    async with scene.open([*(["raw", line] for line in (*noise, *odd, strange)), ["say", "Fine."]]) as r:
        outcome = await r.run("Go.")

    assert (outcome.ok, outcome.text) == (True, "Fine.")


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([["flood", 50, "x" * 100_000]], "it wrote more than 4000000 characters in one reply"),
        ([["raw", "x" * (17 << 20)]], "it sent a message of more than 16777216 bytes"),
        ([["calls", 400]], "it began more than 256 tool calls without finishing them"),
        ([["flood_garbage", 2000]], "it sent 1000 lines that are no messages"),
    ],
)
async def test_floods_end_the_program(scene: Scene, steps: list[Any], reason: str) -> None:
    if steps[0][0] == "flood_garbage":
        steps = [["raw", "\n".join(["garbage"] * steps[0][1])]]
    async with scene.open([*steps, ["wait"]], abilities={"loadSession": False}) as r:
        outcome = await r.run("Go.")

    assert outcome.error == f"interrupted: helper was lost in the middle of its work: {reason}"


async def test_progress_without_end_is_ended_by_the_limit_of_a_model_call(scene: Scene) -> None:
    thought = update(sessionUpdate="agent_thought_chunk", content={"type": "text", "text": "hm"})
    thoughts = ["raw", "\n".join([thought] * 50)]
    steps = [step for _ in range(200) for step in (thoughts, ["sleep", 0.05])]
    async with scene.open(steps) as r:
        outcome = await r.run("Go.", limits=Limits(model_timeout=2.0, idle_timeout=1.0))

    assert outcome.error.startswith("helper was stopped in the middle of its turn")


async def test_escape_codes_in_titles_and_results_are_visible_text(scene: Scene) -> None:
    async with scene.open([["do", "1", "\x1b[2Jnice\u202e", "execute", "\x1b]0;title\x07ok"]], [["say", "x"]]) as r:
        run = await r.spawn("Go.")
        events: list[Any] = [event async for event in run.events()]

    ((name, arguments, text, _),) = calls_of(events)
    assert (name, "\x1b" in arguments["title"], "\u202e" in arguments["title"], "\x1b" in text) == (
        "acp_execute",
        False,
        False,
        False,
    )


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("no-such-agent",), "helper could not be started: there is no program no-such-agent on PATH"),
        (("./agent",), "helper could not be started: the program ./agent is a relative path"),
        (("/nonexistent/agent",), "helper could not be started: /nonexistent/agent is not started: there is no such"),
    ],
)
async def test_a_program_that_cannot_be_started_is_named(scene: Scene, command: tuple[str, ...], reason: str) -> None:
    async with scene.open([], program=AgentProgram(command=command, sandbox=False)) as r:
        outcome = await r.run("Go.")

    assert outcome.error.startswith(reason), outcome.error


async def test_a_program_that_an_agent_could_have_written_is_not_started(scene: Scene) -> None:
    program = scene.folder / "agent"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    async with scene.open([], program=AgentProgram(command=(str(program),), sandbox=False)) as r:
        outcome = await r.run("Go.")

    assert "agents may write in" in outcome.error


async def test_other_versions_and_missing_logins_of_agents_are_reported(scene: Scene) -> None:
    async with scene.open([["error", -32000, "Authentication required"]]) as r:
        outcome = await r.run("Go.")

    assert outcome.error.startswith("helper is not logged in: Authentication required")


# The sandbox


def fenced(scene: Scene) -> AgentProgram:
    return scene.program(sandbox=True, readable=(str(Path(PYTHON).parent.parent), str(AGENT)))


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (SUPERVISED, "written Permission denied "),
        (Policy(autonomy="readonly"), "Read-only file system Permission denied "),  # pyright: ignore[reportArgumentType]
    ],
)
async def test_the_sandbox_holds_the_agent_in_the_folders_of_its_run(
    sandbox: Sandbox, scene: Scene, tmp_path_factory: pytest.TempPathFactory, policy: Policy, said: str
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "file"
    turn = [["write", str(scene.folder / "made.txt")], ["write", str(outside)], ["write", "/etc/made"]]
    async with scene.open(turn, program=fenced(scene), policy=policy) as r:
        outcome = await r.run("Write.")

    assert (scene.folder / "made.txt").exists() == said.startswith("written")
    assert not outside.exists()
    assert outcome.text.split(" ")[0] == said.split(" ")[0], outcome


async def test_an_agent_in_the_sandbox_is_killed_with_all_its_processes(sandbox: Sandbox, scene: Scene) -> None:
    async with scene.open([["hang"]], program=fenced(scene)) as r:
        run = await r.spawn("Go.")
        async for event in run.events():
            if getattr(event, "text", "") == "working":
                break
        before = _processes_of(AGENT)
        await run.cancel()
        await run.wait()
    for _ in range(100):
        if not _processes_of(AGENT):
            break
        await asyncio.sleep(0.05)

    assert (bool(before), _processes_of(AGENT)) == (True, [])


def _processes_of(path: Path) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(path).encode() in command:
                found.append(int(entry.name))
    return found


# A killed retinue

PROGRAM = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.providers.acp.harness import FULL, Scene
import retinue
from retinue.providers.catalog import provider_config

async def main():
    scene = Scene(Path(sys.argv[2]))
    config = provider_config("helper", wire="acp", program=scene.program())
    async with retinue.open(model="helper:default", provider_configs=[config], home=sys.argv[2] + "/home",
                            dialects=(), policy=FULL, adopt=True) as r:
        if sys.argv[3] == "start":
            await r.spawn("Go.", key="job")
            await asyncio.sleep(600)
        outcome = await r.run("Go.", key="job")
        print(outcome.result, outcome.turns, outcome.text, outcome.error, sep="|")

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        (True, "completed|2|And the rest.|"),
        (False, "failed|1|Half.|interrupted: helper was in the middle of its work, and cannot continue a session"),
    ],
)
async def test_after_kill_9_the_session_goes_on_where_it_can(scene: Scene, loads: bool, expected: str) -> None:
    turn = [["say", "Half."], ["ask", "1", "look", "read"], ["hang"]]
    scene.environment(turn, resumed=[[["say", "And the rest."]]], loadSession=loads)
    root = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", PROGRAM, root, str(scene.folder)]
    first = await asyncio.create_subprocess_exec(*command, "start", cwd=scene.folder)
    pids = await scene.pids()
    first.kill()
    await first.wait()
    left = await asyncio.to_thread(alive, pids)
    second = await asyncio.to_thread(
        subprocess.run, [*command, "resume"], cwd=scene.folder, capture_output=True, text=True, timeout=60, check=False
    )

    assert left == []
    assert second.stdout.strip() == expected, second.stderr
    assert [each["sessionId"] for each in scene.sent("session/load")] == (["s-1"] if loads else [])
    assert len(scene.sent("session/new")) == 1
