"""`retinue cron`: adding, listing and changing jobs, and executing them with `run-now`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.core.text import rfc3339
from retinue.providers.scripted import calls, says
from retinue.testing.fake_chat import ChatScript, FakeChat
from retinue.tools.memory.backend import Note
from retinue.tools.memory.memory_tools import open_memory
from tests.cli.conftest import Cli
from tests.cli.stage import serving

SETTINGS = """
[agents.dig]
description = "Digs."
system_prompt = "You dig."

[agents.reader]
system_prompt = "You read."
risk_profile = "careful"

[agents.rare]
system_prompt = "You rarely act."
risk_profile = "free"
runtime_profile = "rare"

[agents.asleep]
enabled = false

[risk_profiles.careful]
level = "readonly"

[risk_profiles.free]
level = "full"

[runtime_profiles.rare]
max_actions_per_hour = 2
"""
PAST = "2020-01-01T00:00:00Z"


@pytest.fixture(autouse=True)
def _settings(folder: Path) -> None:
    (folder / "retinue.toml").write_text(SETTINGS)


@pytest.fixture
def vendor() -> Iterator[FakeChat]:
    script = ChatScript().play(says("Found it."))
    script.play(calls("spawn_subagent", prompt="Dig there."), says("Both dug."), words="Dig twice.")
    script.play(calls("spawn_subagent", prompt="Deeper."), says("I could not."), words="Dig there.")
    with serving(script) as vendor:
        yield vendor


@pytest.fixture
def at_vendor(vendor: FakeChat) -> tuple[str, ...]:
    return "--base-url", vendor.base_url, "--model", "m"


def listed(cli: Cli, name: str) -> dict[str, Any]:
    (row,) = [row for row in cli("cron", "list", "--json").json if row["name"] == name]
    return row


# ---- adding and listing ----------------------------------------------------------------------------------------------


def test_jobs_are_listed_as_they_were_added(cli: Cli, folder: Path) -> None:
    assert cli("cron", "list") == (
        0,
        "",
        "no jobs yet; add one with: retinue cron add NAME --every 1h --agent A --prompt P\n",
    )
    added = cli(
        "cron", "add", "b", "--cron", "0 9 1 1 *", "--tz", "Europe/Berlin", "--agent", "dig", "--prompt", "Dig."
    )
    assert (added.code, added.stdout) == (0, "")
    assert added.stderr.startswith("added b, due at 20")
    assert cli("cron", "add", "a", "--at", "2100-07-01T09:00:00", "--tz", "Europe/Berlin", "--shell", "df -h").code == 0
    assert cli("cron", "add", "c", "--every", "90m", "--agent", "dig", "--shell", "ls", "--missed", "skip").code == 0

    a, b, c = cli("cron", "list", "--json").json

    never = {"paused": False, "last_run": None, "last_status": None, "workspace": str(folder)}
    assert a == never | {
        **{"name": "a", "type": "shell", "kind": "at", "schedule": "2100-07-01T07:00:00Z", "tz": "Europe/Berlin"},
        **{"agent": None, "prompt": None, "command": "df -h", "missed": "once", "next_run": "2100-07-01T07:00:00Z"},
    }
    assert b | {"next_run": b["next_run"][4:]} == never | {
        **{"name": "b", "type": "agent", "kind": "cron", "schedule": "0 9 1 1 *", "tz": "Europe/Berlin"},
        **{"agent": "dig", "prompt": "Dig.", "command": None, "missed": "once", "next_run": "-01-01T08:00:00Z"},
    }
    assert {**c, "next_run": ""} == never | {
        **{"name": "c", "type": "shell", "kind": "every", "schedule": "90m", "tz": None},
        **{"agent": "dig", "prompt": None, "command": "ls", "missed": "skip", "next_run": ""},
    }
    assert [line.split()[0] for line in cli("cron", "list").stdout.splitlines()] == ["JOB", "a", "b", "c"]


WHEN = ("--every", "1h")
WHAT = ("--agent", "dig", "--prompt", "Dig.")
BAD = {
    "no schedule": (WHAT, "the job has no schedule: write --cron EXPR, --at T or --every D"),
    "two schedules": ((*WHEN, "--at", PAST, *WHAT), "--at and --every exclude each other"),
    "a bad expression": (("--cron", "61 * * * *", *WHAT), "'61 * * * *' is not a cron expression"),
    "an empty expression": (("--cron", "", *WHAT), "'' is not a cron expression"),
    "a bad zone": (("--cron", "* * * * *", "--tz", "Mars", *WHAT), "unknown time zone: 'Mars'"),
    "a zone for a length": ((*WHEN, "--tz", "UTC", *WHAT), "--tz needs --cron or --at"),
    "a bad moment": (("--at", "tomorrow", *WHAT), "'tomorrow' is not a date and time"),
    "a bad length": (("--every", "5", *WHAT), "'5' is not an interval: write 30s, 5m, 1h or 1d"),
    "no work": (WHEN, "the job has no work: write --agent A --prompt P, or --shell CMD"),
    "no prompt": ((*WHEN, "--agent", "dig"), "the job has no work: write --prompt P"),
    "no agent": ((*WHEN, "--prompt", "Dig."), "--prompt needs an agent: write --agent A as well"),
    "a blank prompt": ((*WHEN, "--agent", "dig", "--prompt", " \n"), "--prompt is empty"),
    "a blank command": ((*WHEN, "--shell", " "), "--shell is empty"),
    "both works": ((*WHEN, *WHAT, "--shell", "ls"), "--prompt and --shell exclude each other"),
    "an unknown agent": (
        (*WHEN, "--agent", "dog", "--prompt", "Dig."),
        "unknown agent: 'dog'; known: dig, reader",
    ),
    "a sleeping agent": ((*WHEN, "--agent", "asleep", "--prompt", "Dig."), "unknown agent: 'asleep'"),
    "a bad type": ((*WHEN, *WHAT, "--type", "x"), "Invalid job type 'x'. Expected one of: 'shell', 'agent'"),
    "another type": ((*WHEN, *WHAT, "--type", "shell"), "--prompt is for jobs of type 'agent'"),
    "a key, not its variable": ((*WHEN, *WHAT, "--api-key-env", "sk-1234"), "api_key_env: found a string of 7 chara"),
    "a bad choice": ((*WHEN, *WHAT, "--missed", "twice"), "--missed 'twice': expected one of: once, skip"),
}


@pytest.mark.parametrize(("flags", "complaint"), BAD.values(), ids=BAD)
def test_an_invalid_job_is_refused_with_a_reason(cli: Cli, flags: tuple[str, ...], complaint: str) -> None:
    result = cli("cron", "add", "a", *flags)

    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {complaint}")
    assert cli("cron", "list", "--json").json == []


@pytest.mark.parametrize("name", ["", "A", "a b", "a/b", "x" * 65])
def test_invalid_job_names_are_refused(cli: Cli, name: str) -> None:
    result = cli("cron", "add", name, *WHEN, *WHAT)

    assert result.code == 2
    assert result.stderr == f"error: {name!r} is not a job name: write 1 to 64 of the characters a-z, 0-9, _ and -\n"


def test_a_name_is_given_once_unless_the_job_is_replaced(cli: Cli) -> None:
    cli("cron", "add", "a", *WHEN, *WHAT)

    again = cli("cron", "add", "a", *WHEN, "--shell", "ls")
    assert (again.code, again.stderr) == (
        2,
        "error: a job named 'a' exists: use --replace to replace it\n",
    )
    assert cli("cron", "add", "a", *WHEN, "--shell", "ls", "--replace").code == 0
    assert listed(cli, "a")["command"] == "ls"


def test_jobs_are_paused_resumed_and_removed(cli: Cli) -> None:
    cli("cron", "add", "a", *WHEN, *WHAT)

    assert cli("cron", "pause", "a") == (0, "", "paused a\n")
    assert listed(cli, "a")["paused"]
    assert cli("cron", "resume", "a") == (0, "", "resumed a\n")
    assert not listed(cli, "a")["paused"]
    assert cli("cron", "remove", "a") == (0, "", "removed a\n")
    assert cli("cron", "list", "--json").json == []
    for verb in ("pause", "resume", "remove", "run-now", "log"):
        assert cli("cron", verb, "a") == (2, "", "error: unknown job: 'a'\n")


def test_the_settings_define_the_default_for_missed_moments(cli: Cli, folder: Path) -> None:
    (folder / "retinue.toml").write_text(f'{SETTINGS}\n[cron]\nmissed = "skip"\n')
    cli("cron", "add", "a", "--at", PAST, *WHAT)
    cli("cron", "add", "b", "--every", "1h", "--missed", "once", *WHAT)

    assert [listed(cli, name)["missed"] for name in "ab"] == ["skip", "once"]
    result = cli("cron", "daemon", "--once")
    assert (result.code, result.stdout) == (0, "")
    assert result.stderr.endswith(" retinue.cron job a was due at 2020-01-01T00:00:00Z, and no daemon ran: skipped\n")
    (firing,) = cli("cron", "log", "a", "--json").json
    assert (firing["due"], firing["status"], firing["started_at"]) == (PAST, "missed", None)


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_run_now_prints_the_output_of_a_command(cli: Cli, folder: Path) -> None:
    cli("cron", "add", "a", *WHEN, "--shell", "echo one && pwd", "--no-sandbox")

    assert cli("cron", "run-now", "a") == (0, f"one\n{folder}\n", "")
    assert cli("cron", "run-now", "a", "--json").json["output"] == f"one\n{folder}"
    assert listed(cli, "a")["last_status"] == "ok"


def test_a_command_that_fails_is_a_failure(cli: Cli) -> None:
    cli("cron", "add", "a", *WHEN, "--shell", "ls nowhere-at-all", "--no-sandbox")

    result = cli("cron", "run-now", "a")

    assert (result.code, result.stdout) == (1, "")
    assert "nowhere-at-all" in result.stderr
    assert listed(cli, "a")["last_status"] == "failed"


@pytest.mark.promise("ZC-CRON-RUN")
def test_run_now_prints_the_answer_of_an_agent(cli: Cli, vendor: FakeChat, at_vendor: tuple[str, ...]) -> None:
    cli("cron", "add", "a", *WHEN, *WHAT, *at_vendor)
    due = listed(cli, "a")["next_run"]
    before = rfc3339(time.time())

    result = cli("cron", "run-now", "a", "--quiet")

    assert (result.code, result.stdout) == (0, "Found it.\n")
    (heard,) = vendor.requests
    system, user = heard.body["messages"]
    assert (system["content"], user["content"]) == ("You dig.", "[cron:a a] Dig.")
    (run,) = cli("runs", "--json").json
    assert (run["agent"], run["dialect"], run["parent_id"], run["session_id"][:5]) == ("dig", "zeroclaw", None, "cron-")
    (firing,) = cli("cron", "log", "--json").json
    assert (firing["name"], firing["due"], firing["status"], firing["run_id"]) == ("a", None, "ok", run["run_id"])
    job = listed(cli, "a")
    assert (job["next_run"], job["last_status"]) == (due, "ok")
    assert before <= job["last_run"] <= rfc3339(time.time())


@pytest.mark.promise("ZC-CRON-SPAWNS")
def test_a_job_may_spawn_one_level(cli: Cli, at_vendor: tuple[str, ...]) -> None:
    cli("cron", "add", "a", *WHEN, "--agent", "dig", "--prompt", "Dig twice.", *at_vendor)

    assert cli("cron", "run-now", "a").stdout == "Both dug.\n"
    runs = cli("runs", "--all", "--json").json
    assert sorted((run["label"], run["outcome"]) for run in runs) == [("", "completed"), ("subagent", "completed")]


@pytest.mark.promise("ZC-CRON-SPAN")
def test_every_log_line_of_a_job_has_its_span(cli: Cli, at_vendor: tuple[str, ...]) -> None:
    cli("cron", "add", "a", *WHEN, "--agent", "dig", "--prompt", "Dig twice.", *at_vendor)

    result = cli("cron", "run-now", "a", "--quiet", env={"RETINUE_LOG": "info"})

    (run,) = cli("runs", "--json").json
    lines = [line for line in result.stderr.splitlines() if " INFO " in line]
    span = f'subagent category="cron" agent_alias=dig cron_job_id=a run_id={run["run_id"]} spawn_site="cron" '
    assert len(lines) > 2
    assert [line for line in lines if span not in line] == []
    keys = {found for line in lines for found in re.findall(r"session_key=(\S+)", line)}
    assert {key for key in keys if not key.startswith("subagent-")} == {run["run_id"]}
    assert [line for line in lines if "session_key=" not in line] == []
    assert "Dig twice." not in result.stderr


def test_a_job_logs_a_cost_limit_that_cannot_be_enforced(cli: Cli, folder: Path, at_vendor: tuple[str, ...]) -> None:
    (folder / "retinue.toml").write_text(f"{SETTINGS}max_cost_per_day_cents = 100\n")
    cli("cron", "add", "dear", "--every", "1h", "--agent", "rare", "--prompt", "Dig.", *at_vendor)

    done = cli("cron", "run-now", "dear", "--quiet")

    assert (done.code, done.stdout) == (0, "Found it.\n")
    (line,) = done.stderr.splitlines()
    span = 'subagent category="cron" agent_alias=rare cron_job_id=dear spawn_site="cron"'
    assert f"{span} no price known for model m (provider openai-chat), so a limit on cost cannot be enforced; " in line


@pytest.mark.promise("ZC-CRON-RECALL")
@pytest.mark.parametrize("kind", ["sqlite", "markdown"])
def test_an_agents_memories_are_added_to_its_prompt(
    cli: Cli, home: Path, folder: Path, vendor: FakeChat, at_vendor: tuple[str, ...], kind: str
) -> None:
    (folder / "retinue.toml").write_text(f'{SETTINGS}\n[tools]\nmemory = "{kind}"\n')
    memory = open_memory(kind, home)
    memory.store(Note(agent="dig", key="where", content="Dig in the garden.", at=1.0))
    memory.store(Note(agent="dig", key="said", content="Dig, you said.", category="conversation", at=2.0))
    memory.store(Note(agent="reader", key="other", content="Dig elsewhere.", at=3.0))
    cli("cron", "add", "a", *WHEN, *WHAT, *at_vendor)
    cli("cron", "add", "b", *WHEN, *WHAT, "--no-memory", *at_vendor)

    for name in "ab":
        assert cli("cron", "run-now", name).code == 0

    assert [heard.body["messages"][-1]["content"] for heard in vendor.requests] == [
        "[Memory context]\n- where: Dig in the garden.\n[/Memory context]\n\n[cron:a a] Dig.",
        "[cron:b b] Dig.",
    ]


@pytest.mark.promise("ZC-CRON-NO-SAVE")
def test_without_memories_the_prompt_is_unchanged(cli: Cli, home: Path, at_vendor: tuple[str, ...]) -> None:
    cli("cron", "add", "a", *WHEN, *WHAT, *at_vendor)
    cli("cron", "run-now", "a")

    assert cli("memory", "list", "--json").json == []


@pytest.mark.promise("ZC-CRON-BLOCKED")
def test_a_job_blocked_by_policy_is_not_executed(cli: Cli, vendor: FakeChat, at_vendor: tuple[str, ...]) -> None:
    cli("cron", "add", "a", *WHEN, "--agent", "reader", "--prompt", "Read.", *at_vendor)
    cli("cron", "add", "b", *WHEN, "--agent", "reader", "--shell", "echo hi", "--no-sandbox")
    cli("cron", "add", "c", *WHEN, "--shell", "shutdown now", "--no-sandbox")

    for name in "ab":
        result = cli("cron", "run-now", name)
        assert result == (1, "", "blocked by security policy: autonomy is read-only\n")
    result = cli("cron", "run-now", "c")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.startswith("blocked by security policy: ")
    assert vendor.requests == []
    assert [listed(cli, name)["last_status"] for name in "abc"] == ["failed"] * 3


@pytest.mark.promise("ZC-CRON-BLOCKED")
def test_jobs_of_both_types_count_as_actions_of_their_agent(cli: Cli, at_vendor: tuple[str, ...]) -> None:
    cli("cron", "add", "a", *WHEN, "--agent", "rare", "--prompt", "Act.", *at_vendor)
    cli("cron", "add", "b", *WHEN, "--agent", "rare", "--shell", "echo hi", "--no-sandbox")

    assert [cli("cron", "run-now", name, "--quiet").code for name in "ab"] == [0, 0]
    for name in "ab":
        result = cli("cron", "run-now", name, "--quiet")
        assert result == (1, "", "blocked by security policy: rate limit exceeded\n")


@pytest.mark.promise("ZC-CRON-BLOCKED")
def test_a_job_of_a_missing_agent_fails_naming_it(cli: Cli, folder: Path, at_vendor: tuple[str, ...]) -> None:
    cli("cron", "add", "a", *WHEN, *WHAT, *at_vendor)
    (folder / "retinue.toml").write_text("")

    result = cli("cron", "run-now", "a")

    assert result == (1, "", 'subagent spawn failed: no agent configured under alias "dig"\n')
    assert cli("cron", "log", "a", "--json").json[0]["error"] == result.stderr.strip()


def test_a_model_that_refuses_is_a_failure(cli: Cli, home: Path) -> None:
    with serving(ChatScript().play(says("x"), words="something else")) as vendor:
        cli("cron", "add", "a", *WHEN, *WHAT, "--base-url", vendor.base_url, "--model", "m")
        result = cli("cron", "run-now", "a", "--json")

    assert (result.code, result.json["status"]) == (1, "failed")
    assert listed(cli, "a")["last_status"] == "failed"


def test_a_job_stores_environment_variables_but_no_keys(cli: Cli, home: Path, vendor: FakeChat) -> None:
    said = {"RETINUE_BASE_URL": vendor.base_url, "RETINUE_MODEL": "m", "RETINUE_API_KEY_ENV": "MY_KEY"}
    cli("cron", "add", "a", *WHEN, *WHAT, env=said | {"MY_KEY": "sk-very-secret"})

    assert cli("cron", "run-now", "a", env={"MY_KEY": "sk-other"}).code == 0

    assert vendor.requests[0].headers["authorization"] == "Bearer sk-other"
    assert all(b"sk-" not in file.read_bytes() for file in home.rglob("*") if file.is_file())


def test_the_history_of_a_job_keeps_a_hundred_entries(cli: Cli) -> None:
    from retinue.app.open import open_read_only
    from retinue.cli.event_loop import perform
    from retinue.dispatch.cron.jobs import HistoryEntry
    from retinue.dispatch.cron.table import CronTable

    cli("cron", "add", "a", *WHEN, *WHAT)

    async def remember() -> int:
        async with open_read_only() as client:
            for due in range(105):
                await CronTable(client.key_value).remember(HistoryEntry(name="a", due=due, status="ok"))
        return 0

    perform(remember())
    assert len(cli("cron", "log", "a", "--limit", "1000", "--json").json) == 100
    assert [row["due"] for row in cli("cron", "log", "--limit", "2", "--json").json] == [rfc3339(104), rfc3339(103)]
    assert json.loads(cli("cron", "log", "--json").stdout)[19]["due"] == rfc3339(85)
