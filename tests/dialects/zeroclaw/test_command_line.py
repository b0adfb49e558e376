"""`zeroclaw` on the command line: profiles in a settings file, and background tasks that outlive an answer."""

import json
import signal
from pathlib import Path

import pytest

from retinue.providers.scripted import Line, calls, says, together
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.stage import VARIABLES, Command, retinue, serving
from tests.dialects.zeroclaw.harness import files

pytestmark = pytest.mark.real_time

SETTINGS = """
[risk_profiles.frontline]
allowed_tools = ["file_read", "memory_recall", "spawn_subagent", "delegate"]

[risk_profiles.alone]
allowed_tools = ["file_read"]

[runtime_profiles.quick]
delegation_timeout_secs = 1
max_delegation_depth = 1

[agents.frontline]
system_prompt = "You are at the front."
risk_profile = "frontline"
runtime_profile = "quick"
workspace = { path = "./desk" }

[agents.reviewer]
system_prompt = "You review."
risk_profile = "alone"

[agents.sleeper]
runtime_profile = "quick"
tools = []
"""

SILENT: dict[str, object] = {"say": "Hm", "ending": "silence"}
SLOWLY: dict[str, object] = {"say": "one two three four five six seven eight nine ten", "every": 0.15}


def hands(agent: str, prompt: str, **more: object) -> dict[str, object]:
    """A line that delegates."""
    return {"call": {"name": "delegate", "arguments": {"agent": agent, "prompt": prompt, **more}}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with settings, and a store that no other test has."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "retinue.toml").write_text(SETTINGS)
    return work


def plays(folder: Path, **lines: list[dict[str, object]]) -> tuple[str, ...]:
    """The flags with which these lines are played, by agent."""
    (folder / "lines.json").write_text(json.dumps(lines))
    return ("run", "--provider", "scripted", "--model", str(folder / "lines.json"), "--dialect", "zeroclaw", "--quiet")


@pytest.mark.promise("ZC-COMMAND", "ZC-FILE")
async def test_the_command_waits_for_background_tasks_and_prints_the_answer_of_the_root(folder: Path) -> None:
    flags = plays(
        folder, frontline=[hands("reviewer", "look", background=True), {"say": "Handed out."}], reviewer=[SLOWLY]
    )
    ended = await retinue(*flags, "--agent", "frontline", "Go.")

    assert (ended.code, ended.stdout) == (0, "Handed out.\n")
    (written,) = files(folder / "desk").values()
    assert (written["status"], written["output"]) == (
        "Completed",
        f"[Agent 'reviewer' (scripted/{folder / 'lines.json'})]\n{SLOWLY['say']}",
    )


@pytest.mark.promise("ZC-COMMAND", "ZC-INTERRUPTED", "ZC-RESUMED")
@pytest.mark.parametrize("named", ["root", "task"])
async def test_ctrl_c_parks_background_tasks_and_resume_goes_on_with_them(folder: Path, named: str) -> None:
    lead: list[dict[str, object]] = [hands("reviewer", "look", background=True), {"say": "Handed out."}]
    flags = plays(folder, frontline=lead, reviewer=[SILENT])
    command = await Command.start(*flags, "--agent", "frontline", "Go.")
    row = await _ended_root()
    command.signal(signal.SIGINT)
    stopped = await command.ended()
    plays(folder, frontline=lead, reviewer=[SLOWLY])
    ((task_id, parked),) = files(folder / "desk").items()
    resumed = await retinue(
        "runs", "resume", row["run_id"] if named == "root" else task_id, "--quiet", cwd=folder.parent
    )

    assert (stopped.code, stopped.stdout) == (130, "")
    assert (parked["status"], str(parked["error"]).endswith(f"retinue runs resume {task_id}")) == ("Failed", True)
    assert (resumed.code, resumed.stdout) == (0, "Handed out.\n")
    assert files(folder / "desk")[task_id]["status"] == "Completed"


async def _ended_root() -> dict[str, str]:
    """The root, once it has given its answer; its background task is at work then."""
    while True:
        rows = (await retinue("runs", "--json")).json
        if rows and rows[0]["outcome"]:
            return rows[0]


@pytest.mark.promise("ZC-TIMEOUT", "ZC-DEPTH", "ZC-HIDDEN", "ZC-SPAWN-GATE")
async def test_profiles_of_the_settings_apply_to_agents_that_name_them(folder: Path) -> None:
    spawns: dict[str, object] = {"call": {"name": "spawn_subagent", "arguments": {"prompt": "dig"}}}
    flags = plays(folder, frontline=[hands("sleeper", "rest"), {"say": "Thanks."}], sleeper=[SILENT])
    late = await retinue(*flags, "--agent", "frontline", "Go.")
    flags = plays(folder, reviewer=[spawns, {"say": "Alone."}])
    alone = await retinue(*flags, "--agent", "reviewer", "Go.")
    shown = [json.dumps((await retinue("runs", "show", row, "--json")).json) for row in await _roots()]

    assert (late.stdout, alone.stdout) == ("Thanks.\n", "Alone.\n")
    assert "Agent 'sleeper' timed out after 1s" in shown[1]
    refusal = "agent 'reviewer' risk_profile does not list spawn_subagent in allowed_tools"
    assert f"spawn_subagent: refused \\u2014 {refusal}" in shown[0] or f"refused — {refusal}" in shown[0]


async def _roots() -> list[str]:
    return [row["run_id"] for row in (await retinue("runs", "--json")).json]


@pytest.mark.promise("ZC-MODEL-PROVIDER")
async def test_model_provider_decides_server_and_temperature_of_agents(
    folder: Path,
) -> None:
    def answers(request: ReceivedRequest) -> Line:
        task = request.body["messages"][1]["content"]
        if request.body["messages"][-1]["role"] == "tool" or task in ("dig", "look"):
            return says("Done.")
        return together(calls("spawn_subagent", prompt="dig"), calls("delegate", agent="reviewer", prompt="look"))

    with serving(answers) as warm, serving(answers) as cold:
        (folder / "retinue.toml").write_text(
            f"""
            [agents.frontline]
            system_prompt = "You are at the front."
            model = "big"
            model_provider = "openai-chat.warm"

            [agents.reviewer]
            system_prompt = "You review."
            model = "small"
            model_provider = "openai-chat.cold"

            [providers.warm]
            wire = "openai-chat"
            base_url = "{warm.base_url}"
            temperature = 0.9

            [providers.cold]
            wire = "openai-chat"
            base_url = "{cold.base_url}"
            temperature = 0.1
            """
        )
        ended = await retinue("run", "--dialect", "zeroclaw", "--agent", "frontline", "--quiet", "Go.")

    assert (ended.code, ended.stdout) == (0, "Done.\n")
    assert [_asked(request) for request in warm.requests] == [
        ("big", 0.9, "Go."),
        ("big", 0.9, "dig"),
        ("big", 0.9, "Go."),
    ]
    assert [_asked(request) for request in cold.requests] == [("small", 0.1, "look")]


def _asked(request: ReceivedRequest) -> tuple[str, float, str]:
    return request.body["model"], request.body["temperature"], request.body["messages"][1]["content"]
