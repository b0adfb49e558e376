"""`retinue runs`: find, show, resume, cancel and prune runs of earlier processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench.many_runs import fill
from retinue.app.follow import seconds_worked
from retinue.app.open import open as open_retinue
from retinue.core.errors import ProviderError
from retinue.core.events import Event, MailTaken, RunAdopted, RunLeft
from retinue.core.messages import TextDelta
from retinue.core.run import Limits
from retinue.core.usage import Usage
from retinue.providers.scripted import Script, ScriptedProvider, calls, fails, hangs, says, together
from retinue.store.sqlite import SqliteStore
from tests.cli.conftest import Cli
from tests.cli.stage import finished_run, serving

USED = Usage(input=1000, output=20, cached=5)


def delegating() -> ScriptedProvider:
    script = Script().play(
        "main",
        calls("subagent", action="spawn", agent="dig", task="Look below."),
        calls("subagent", action="wait", task_ids=["t_01"]),
        says("Nothing there.", usage=USED),
    )
    return ScriptedProvider(script.play("dig", says("I looked.", usage=USED)))


def answering(text: str = "Found it.") -> ScriptedProvider:
    return ScriptedProvider(Script().play("main", says(text, usage=USED)))


@pytest.fixture
def tree(home: Path) -> str:
    """The root of a tree of two runs."""
    return asyncio.run(finished_run(home, delegating()))


def test_runs_lists_roots_newest_first_and_all_lists_descendants(cli: Cli, home: Path, tree: str) -> None:
    newer = asyncio.run(finished_run(home, answering()))

    roots, runs = cli("runs", "--json").json, cli("runs", "--all", "--json").json

    assert [row["run_id"] for row in roots] == [newer, tree]
    assert [row["agent"] for row in runs] == ["main", "dig", "main"]
    assert runs[1]["parent_id"] == tree
    row = dict[str, Any](roots[0])
    assert row.pop("started_at").endswith("Z")
    assert row.pop("ended_at").endswith("Z")
    assert row.pop("session_id")
    assert row == {
        "run_id": newer,
        "parent_id": None,
        "root_id": newer,
        "agent": "main",
        "label": "",
        "handle": None,
        "dialect": "spec",
        "state": "ended",
        "waiting_for": None,
        "outcome": "completed",
        "end_reason": "answered",
        "turns": 1,
        "usage": {"input": 1000, "output": 20, "cached": 5, "reasoning": 0},
        "cost": None,
        "task": "Find it.",
    }


def test_list_is_the_same_command(cli: Cli, tree: str) -> None:
    assert cli("runs", "list") == cli("runs")
    assert cli("runs", "list", "--all", "--json") == cli("runs", "--all", "--json")
    assert [row["task"] for row in cli("runs", "list", "--all", "--json").json] == ["Look below.", "Find it."]


def test_a_list_has_twenty_runs_and_says_how_many_more(cli: Cli, home: Path) -> None:
    store = SqliteStore(home / "retinue.db")
    fill(store, 23, per_tree=1)
    store.close()

    listed = cli("runs")

    assert len(listed.stdout.splitlines()) == 1 + 20
    assert listed.stderr == "the newest 20 of 23 runs; 3 more with --limit 23\n"
    assert (len(cli("runs", "--json").json), len(cli("runs", "--limit", "23").stdout.splitlines())) == (23, 24)


def test_in_a_pipe_runs_are_plain_columns_with_whole_ids(cli: Cli, tree: str) -> None:
    listed = cli("runs")

    titles, row = listed.stdout.splitlines()
    assert titles.split() == [
        "ID", "AGENT", "STATE", "TURNS", "TOKENS", "COST", "DIALECT", "STARTED", "TOOK", "TASK",
    ]  # fmt: skip
    assert row.split()[:4] == [tree, "main", "completed", "3"]
    assert row.endswith(" s  Find it.")


def test_an_empty_store_prints_a_hint_on_stderr(cli: Cli) -> None:
    assert cli("runs", "--json").json == []
    assert cli("runs") == (0, "", "no runs yet; start one with: retinue run PROMPT\n")


def test_show_prints_a_run_as_a_conversation(cli: Cli, tree: str) -> None:
    shown = cli("runs", "show", tree)

    assert shown.code == 0
    assert shown.stdout.startswith(f"run {tree}\nmain, completed, ")
    body = shown.stdout.partition("\n\n")[2]
    assert body.startswith("-- task\nFind it.\n\n-- call subagent (turn 1)\n")
    assert '-- result of subagent (turn 1)\n{"task_id":"t_01"' in body
    assert "-- reply (turn 3)\nNothing there.\n\n-- end\ncompleted (answered), " in body


def test_show_as_json_has_the_row_the_text_and_every_entry(cli: Cli, tree: str) -> None:
    shown = cli("runs", "show", tree, "--json").json

    assert (shown["state"], shown["text"], shown["error"]) == ("ended", "Nothing there.", "")
    assert [entry["kind"] for entry in shown["transcript"]] == [
        "task", "call", "result", "call", "result", "reply", "end",
    ]  # fmt: skip


def test_a_failed_run_shows_partial_text_and_reason(cli: Cli, home: Path) -> None:
    broken = ProviderError("the line is dead", fault="bad_request", partial="It is bec")
    run_id = asyncio.run(finished_run(home, ScriptedProvider(Script().play("main", fails(broken)))))

    shown = cli("runs", "show", run_id)

    assert "-- reply (turn 1), cut off\nIt is bec\n\n-- error (turn 1)\nthe line is dead\n" in shown.stdout


def test_control_codes_in_texts_are_escaped(cli: Cli, home: Path) -> None:
    run_id = asyncio.run(finished_run(home, answering("\x1b[2Jgone")))

    assert "\x1b" not in cli("runs", "show", run_id).stdout
    assert "␛[2Jgone" in cli("runs", "show", run_id).stdout


def test_tree_prints_usage_per_run_and_in_total(cli: Cli, tree: str) -> None:
    shown, told_as_json = cli("runs", "tree", tree), cli("runs", "tree", tree, "--json").json

    root, child, sums = shown.stdout.splitlines()
    child_id = told_as_json["runs"][1]["run_id"]
    assert root.split()[:5] == ["main", tree[-8:], "Find", "it.", "completed"]
    assert child.split()[:7] == ["└─", "dig", "t_01", child_id[-8:], "Look", "below.", "completed"]
    assert sums.startswith("2 runs, 4 turns, ")
    assert sums.endswith(", cost unknown")
    assert [row["agent"] for row in told_as_json["runs"]] == ["main", "dig"]
    summed = sum(row["usage"]["input"] for row in told_as_json["runs"])
    assert told_as_json["total"] == {
        "runs": 2,
        "usage": told_as_json["total"]["usage"] | {"input": summed},
        "cost": None,
    }


def test_tree_has_the_reasons_of_failures_and_counts_them(cli: Cli, home: Path) -> None:
    broken = ProviderError("the line\nis dead", fault="bad_request")
    script = Script().play(
        "main",
        together(*(calls("subagent", action="spawn", agent="dig", task=f"Look {where}.") for where in ("up", "down"))),
        calls("subagent", action="wait", task_ids=["t_01", "t_02"]),
        says("Half of it."),
    )
    script.play("dig", fails(broken)).play("dig", says("I looked."), task="down")
    run_id = asyncio.run(finished_run(home, ScriptedProvider(script)))

    shown = cli("runs", "tree", run_id).stdout.splitlines()

    assert [line.split()[:3] for line in shown[1:4]] == [
        ["├─", "dig", "t_01"],
        ["│", "!", "failed"],
        ["└─", "dig", "t_02"],
    ]
    assert shown[2] == "│  ! failed (model_error): the line is dead"
    assert shown[-1].endswith(", of 2 children 1 failed")


def test_a_task_of_a_dialect_is_found_in_its_tree(cli: Cli, home: Path, tree: str) -> None:
    other = asyncio.run(finished_run(home, delegating(), "Find another."))
    found = cli("runs", "show", "t_01", "--in", tree, "--json").json
    unknown = cli("runs", "show", "t_09", "--in", tree)

    assert (found["root_id"], found["handle"], found["task"]) == (tree, "t_01", "Look below.")
    assert cli("runs", "tree", "t_01", "--in", other, "--json").json["runs"][0]["root_id"] == other
    assert (unknown.code, unknown.stderr) == (2, "error: unknown task: 't_09'; known: t_01\n")


def test_show_all_prints_every_run_of_the_tree_in_full(cli: Cli, home: Path) -> None:
    long = "deep " * 5000
    script = Script().play(
        "main",
        calls("subagent", action="spawn", agent="dig", task="Look below."),
        calls("subagent", action="wait", task_ids=["t_01"]),
        says("Nothing there."),
    )
    run_id = asyncio.run(finished_run(home, ScriptedProvider(script.play("dig", says(long)))))

    one, everything = cli("runs", "show", run_id), cli("runs", "show", run_id, "--all")
    as_json = cli("runs", "show", run_id, "--all", "--json").json

    assert (one.stdout.count("-- task\n"), everything.stdout.count("-- task\n")) == (1, 2)
    assert long.rstrip() in everything.stdout
    assert "more characters; --all or --json has all" in cli("runs", "show", "t_01", "--in", run_id).stdout
    assert [row["text"] for row in as_json] == ["Nothing there.", long]


def test_a_run_is_found_by_an_unambiguous_prefix_or_suffix(cli: Cli, home: Path, tree: str) -> None:
    assert cli("runs", "tree", tree[-6:], "--json").json["run_id"] == tree
    child = cli("runs", "--all", "--json").json[0]["run_id"]

    many, short, none = cli("runs", "show", tree[:4]), cli("runs", "show", tree[-3:]), cli("runs", "show", "zzzzzz")

    assert (many.code, short.code, none.code) == (2, 2, 2)
    assert f"matches 2 runs: {child}, {tree}" in many.stderr
    assert "too short" in short.stderr
    assert none.stderr == "error: unknown run: 'zzzzzz'\n"
    task = cli("runs", "show", "t_01")
    assert (task.code, "found by its name with --in ID" in task.stderr) == (2, True)


def test_show_and_cancel_work_while_another_process_drives_the_run(cli: Cli, home: Path) -> None:
    script = Script().play("main", calls("shared_context", action="list_keys"), hangs("Let me th"))

    async def story() -> tuple[Any, Any, Any, str]:
        async with open_retinue(provider=ScriptedProvider(script), home=home) as owner:
            run = await owner.spawn("Think.")
            async for event in run.events():
                if isinstance(event, TextDelta):
                    break
            listed = await asyncio.to_thread(cli, "runs", "--json")
            refused = await asyncio.to_thread(cli, "runs", "resume", run.run_id)
            cancelled = await asyncio.to_thread(cli, "runs", "cancel", run.run_id)
            outcome = await run.wait()
            return listed.json, refused, cancelled, outcome.result

    listed, refused, cancelled, result = asyncio.run(story())

    assert [row["state"] for row in listed] == ["working"]
    assert (refused.code, "it is driven by process " in refused.stderr) == (1, True)
    assert (cancelled.code, cancelled.stderr, result) == (0, "cancelled 1 run\n", "cancelled")


def test_a_run_without_a_driver_is_interrupted_and_cancelled_at_once(cli: Cli, home: Path) -> None:
    async def abandoned() -> str:
        async with open_retinue(provider=ScriptedProvider(Script().play("main", hangs())), home=home) as owner:
            return (await owner.spawn("Think.")).run_id

    run_id = asyncio.run(abandoned())
    before = cli("runs", "show", run_id)
    cancelled, again = cli("runs", "cancel", run_id), cli("runs", "cancel", run_id)
    resumed = cli("runs", "resume", run_id)

    assert f"-- interrupted; go on with: retinue runs resume {run_id}\n" in before.stdout
    assert (cancelled.code, cancelled.stderr) == (0, "cancelled 1 run\n")
    assert (again.code, again.stderr) == (0, f"run {run_id} was already cancelled\n")
    assert (resumed.code, resumed.stdout) == (1, "")
    assert cli("runs", "--json").json[0]["outcome"] == "cancelled"


def test_a_run_of_a_program_resumes_with_the_flags_of_the_command(cli: Cli, home: Path) -> None:
    async def abandoned() -> str:
        provider = ScriptedProvider(Script().play("main", hangs()))
        async with open_retinue(provider=provider, model="m", home=home) as owner:
            return (await owner.spawn("Think.")).run_id

    run_id = asyncio.run(abandoned())
    keyless = cli("runs", "resume", run_id, "--provider", "openai-chat")
    with serving(says("I thought.")) as vendor:
        resumed = cli("runs", "resume", run_id, "--base-url", vendor.base_url)

    assert (keyless.code, "OPENAI_API_KEY is not set" in keyless.stderr) == (2, True)
    assert (resumed.code, resumed.stdout) == (0, "I thought.\n")
    assert [heard.body["model"] for heard in vendor.requests] == ["m"]


def test_an_ended_run_cannot_be_cancelled_and_resume_prints_its_answer(cli: Cli, home: Path, tree: str) -> None:
    cancelled, resumed = cli("runs", "cancel", tree), cli("runs", "resume", tree)

    assert (cancelled.code, cancelled.stderr) == (
        1,
        f"error: run {tree} has ended (completed) already\n",
    )
    assert resumed == (0, "Nothing there.\n", "")


def test_prune_removes_old_trees(cli: Cli, tree: str) -> None:
    kept = cli("runs", "prune", "--older-than", "1h")
    assert (kept.stderr, len(cli("runs", "--all", "--json").json)) == (
        "removed 0 runs that ended more than 1h ago\n",
        2,
    )

    pruned = cli("runs", "prune", "--older-than", "0s")
    wrong = cli("runs", "prune", "--older-than", "soon")

    assert (pruned.code, pruned.stderr) == (0, "removed 2 runs that ended more than 0s ago\n")
    assert cli("runs", "--all", "--json").json == []
    assert (wrong.code, "'soon' is not a duration" in wrong.stderr) == (2, True)


class Hand:
    """A clock that a test sets."""

    at = 1000.0

    def now(self) -> float:
        return self.at


def test_time_without_a_driver_does_not_count(cli: Cli, home: Path) -> None:
    hand = Hand()

    async def left_after_half_a_minute() -> str:
        provider = ScriptedProvider(Script().play("main", hangs("Let me th")))
        async with open_retinue(provider=provider, home=home, clock=hand) as owner:
            run = await owner.spawn("Think.", limits=Limits(timeout=3600))
            async for event in run.events():
                if isinstance(event, TextDelta):
                    break
            hand.at = 1030.0
            return run.run_id

    run_id = asyncio.run(left_after_half_a_minute())

    listed, tree = cli("runs").stdout.splitlines()[1], cli("runs", "tree", run_id).stdout.splitlines()[0]
    assert (listed.split()[2], listed[-14:], tree[-6:]) == ("interrupted", "30.0 s  Think.", "30.0 s")
    assert cli("runs", "--json").json[0]["ended_at"] is None


def heard(at: float) -> MailTaken:
    return MailTaken(at=at, items=())


def adopted(at: float) -> RunAdopted:
    return RunAdopted(at=at, driver_id="d")


@pytest.mark.parametrize(
    ("events", "until", "seconds"),
    [
        ([heard(100.0), heard(107.0)], 110.0, 10.0),
        ([heard(100.0), heard(107.0)], None, 7.0),
        ([heard(100.0), RunLeft(at=109.0)], None, 9.0),
        ([heard(100.0), RunLeft(at=109.0), adopted(500.0)], 503.0, 12.0),
        ([heard(100.0), heard(107.0), adopted(500.0), heard(502.0)], None, 9.0),
        ([heard(100.0), heard(107.0), adopted(500.0), adopted(900.0)], 901.0, 8.0),
        ([], None, 0.0),
    ],
    ids=["at work", "crashed", "left", "taken over", "crashed twice", "taken over at once", "nothing known"],
)
def test_active_time_is_the_time_with_a_driver(events: list[Event], until: float | None, seconds: float) -> None:
    assert seconds_worked(events, until=until) == seconds


def test_limit_lists_the_newest_few(cli: Cli, home: Path, tree: str) -> None:
    newer = asyncio.run(finished_run(home, answering()))

    listed = cli("runs", "--limit", "1", "--json")

    assert [row["run_id"] for row in listed.json] == [newer]
    assert (cli("runs", "--limit", "0").code, cli("runs", "--limit", "2", "show", newer).code) == (2, 2)
