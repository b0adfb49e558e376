"""Evals: cases are run several times against models, checked, and reported; budgets and Ctrl-C end them early."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from retinue.core.errors import BadInput, ConfigError
from retinue.core.run import Outcome
from retinue.evals import Check, read_suite
from retinue.evals.checks import failure_of
from retinue.evals.runner import DollarBudget
from retinue.providers.scripted import Line, ScriptedReply
from retinue.recording.trajectories import MadeCall
from retinue.testing import FakeChat, Trajectory, calls, hangs, says
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.stage import Command, retinue

pytestmark = pytest.mark.real_time

LOOKED = Trajectory(
    calls=(
        MadeCall(path="root", agent="main", turn=1, tool="look", arguments="{}"),
        MadeCall(path="root", agent="main", turn=2, tool="dig", arguments="{}"),
    ),
    delegations=(("main", "dig"),),
    turns=3,
    cost=0.5,
)


def answer(text: str) -> Outcome:
    return Outcome(result="completed", reason="answered", text=text)


@pytest.mark.parametrize(
    ("check", "passing", "failing"),
    [
        (Check(contains="pool"), "the pool", "the disk"),
        (Check(excludes="pool"), "the disk", "the pool"),
        (Check(equals="42"), " 42\n", "43"),
        (Check(matches=r"^\d+ ms$"), "20 ms", "20 s"),
        (Check(schema={"type": "object", "required": ["n"]}), '{"n": 1}', "{}"),
        (Check(schema={"type": "object"}), "{}", "not JSON"),
        (Check(matches=r"(a+)+$"), "aaa", "a" * 5_000 + "!"),
    ],
    ids=str,
)
def test_a_check_of_the_answer_passes_or_fails(check: Check, passing: str, failing: str) -> None:
    assert failure_of(check, answer(passing), LOOKED) is None
    failure = failure_of(check, answer(failing), LOOKED)
    assert failure is not None
    assert failure.check == str(check)
    assert len(failure.reason) < 500


@pytest.mark.parametrize(
    ("passing", "failing"),
    [
        ({"tools": ["look", "dig"]}, {"tools": ["dig", "look"]}),
        ({"exactly": ["look", "dig"]}, {"exactly": ["look"]}),
        ({"not_called": ["deploy"]}, {"not_called": ["dig"]}),
        ({"delegated": ["main", "dig"]}, {"delegated": ["dig", "main"]}),
        ({"within": {"turns": 3, "calls": 2, "runs": 1, "cost": 0.5}}, {"within": {"turns": 2}}),
        ({"within": {"cost": 0.6}}, {"within": {"cost": 0.4}}),
    ],
)
def test_a_check_of_calls_and_costs_passes_or_fails(
    passing: dict[str, Any], failing: dict[str, Any], tmp_path: Path
) -> None:
    good, bad = (suite_of(tmp_path, check) for check in (passing, failing))
    assert failure_of(good, answer(""), LOOKED) is None
    failure = failure_of(bad, answer(""), LOOKED)
    assert failure is not None
    assert failure.reason.startswith("expected")


def suite_of(folder: Path, check: dict[str, Any]) -> Check:
    """A check as it comes from a file; JSON is YAML."""
    file = folder / "suite.yaml"
    file.write_text(json.dumps({"cases": [{"name": "a", "task": "Go.", "checks": [check]}]}))
    return read_suite(file).cases[0].checks[0]


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cases: []", "Expected `array` of length >= 1"),
        ("cases: [{name: a, task: t, checks: []}]", "Expected `array` of length >= 1"),
        ("cases: [{name: a, task: t, checks: [{}]}]", "a check has exactly one of .*; found none"),
        ("cases: [{name: a, task: t, checks: [{contains: x, equals: y}]}]", "found contains, equals"),
        ("cases: [{name: a, task: t, checks: [{contain: x}]}]", "unknown field `contain`"),
        ('cases: [{name: a, task: t, checks: [{matches: "("}]}]', "is no regular expression"),
        ("cases: [{name: a, task: t, checks: [{schema: {type: 7}}]}]", "case 'a'"),
        (
            "cases: [{name: a, task: t, checks: [{contains: x}]}, {name: a, task: t, checks: [{contains: x}]}]",
            "two cases are named 'a'",
        ),
        (
            "repeat: 1000\nmodels: [a, b, c, d, e, f, g, h, i, j, k]\n"
            "cases: [{name: a, task: t, checks: [{contains: x}]}]",
            "11,000 runs",
        ),
        ("models: 7\ncases: [{name: a, task: t, checks: [{contains: x}]}]", r"\$.models"),
        ("cases: [", "suite.yaml"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(text)
    with pytest.raises((BadInput, ConfigError), match=message):
        read_suite(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_suite(tmp_path / "none.yaml")


# ---- budgets --------------------------------------------------------------------------------------------------------


def test_a_budget_is_never_exceeded_by_runs_at_once() -> None:
    budget = DollarBudget(1.0, 4)
    allowed = [budget.take(None) for _ in range(4)]
    assert allowed == pytest.approx([0.25] * 4)
    assert sum(each or 0 for each in allowed) <= 1.0
    budget.settle(allowed[0], 0.05)
    assert budget.take(0.1) == pytest.approx(0.1)
    assert budget.spent == pytest.approx(0.05)
    used_up = DollarBudget(0.1, 1)
    used_up.settle(used_up.take(None), 0.1)
    assert used_up.take(None) == 0.0


# ---- the command ----------------------------------------------------------------------------------------------------

SUITE = """
repeat: 2
judge: {max_cost: 1.0}
run: {max_turns: 4}
cases:
  - name: pool
    task: How large is the pool?
    checks:
      - contains: connections
      - within: {turns: 1, calls: 0}
      - judge: It names a number.
  - name: colour
    task: What colour is it?
    checks:
      - equals: blue
"""


def model(heard: ReceivedRequest) -> Line:
    """A model that knows the pool, guesses colours, and judges by digits."""
    system, last = heard.body["messages"][0]["content"], heard.body["messages"][-1]["content"]
    if "You grade" in system:
        passes = "20" in json.loads(last)["answer"]
        return says(json.dumps({"pass": passes, "reason": "it has digits" if passes else "it has none"}))
    return says("20 connections" if "pool" in last else "green")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    (tmp_path / "suite.yaml").write_text(SUITE)
    return tmp_path


async def test_an_eval_prints_a_table_json_and_junit(folder: Path) -> None:
    async with FakeChat(model) as vendor:
        flags = ("--provider", "openai-chat", "--base-url", vendor.base_url, "--model", "m-1", "--unpriced", "ok")
        table = await retinue("eval", "suite.yaml", *flags, "--junit", "results.xml", "--quiet")
        rows = await retinue("eval", "suite.yaml", *flags, "--json", "--case", "pool")

    assert table.code == 1
    lines = [line.split() for line in table.stdout.splitlines()]
    assert [(line[0], line[2], line[3], line[4]) for line in lines] == [
        ("CASE", "RESULT", "PASSES", "TURNS"),
        ("pool", "passed", "2/2", "2"),
        ("colour", "failed", "0/2", "2"),
    ]
    tests = ElementTree.parse(folder / "results.xml").getroot().findall("testsuite/testcase")
    found = [(each.get("name"), [child.tag for child in each]) for each in tests]
    assert found == [("pool [1]", []), ("pool [2]", []), ("colour [1]", ["failure"]), ("colour [2]", ["failure"])]
    assert rows.code == 0
    (case,) = rows.json["cases"]
    assert (rows.json["passed"], case["passes"], [each["status"] for each in case["attempts"]]) == (
        True,
        2,
        ["completed", "completed"],
    )
    assert "pool [1] m-1: passed" in rows.stderr


async def test_a_judge_that_refuses_fails_the_check(folder: Path) -> None:
    (folder / "suite.yaml").write_text("cases: [{name: sky, task: What is it, checks: [{judge: It names a number.}]}]")
    async with FakeChat(model) as vendor:
        flags = ("--provider", "openai-chat", "--base-url", vendor.base_url, "--model", "m-1")
        ended = await retinue("eval", "suite.yaml", *flags, "--json")
        requests = [heard.body["messages"][-1]["content"] for heard in vendor.requests]

    assert ended.code == 1
    assert ended.json["cases"][0]["attempts"][0]["failures"] == [
        {"check": "judge It names a number.", "reason": "it has none"}
    ]
    assert json.loads(requests[-1]) == {
        "criterion": "It names a number.",
        "task": "What is it",
        "answer": "green",
    }


async def test_a_run_that_fails_is_a_failure_whatever_the_checks_say(folder: Path) -> None:
    (folder / "suite.yaml").write_text("cases: [{name: a, task: Go., checks: [{not_called: [x]}]}]")

    def endless(heard: ReceivedRequest) -> ScriptedReply:
        return calls("nothing", turn=len(heard.body["messages"]))

    async with FakeChat(endless) as vendor:
        flags = ("--provider", "openai-chat", "--base-url", vendor.base_url, "--model", "m-1")
        (folder / "suite.yaml").write_text(
            "run: {max_turns: 2, dialects: [native]}\ncases: [{name: a, task: Go., checks: [{not_called: [x]}]}]"
        )
        ended = await retinue("eval", "suite.yaml", *flags, "--json")

    assert ended.code == 1
    (failure,) = ended.json["cases"][0]["attempts"][0]["failures"]
    assert failure["check"] == "run"


async def test_ctrl_c_cancels_what_runs_and_skips_the_rest(folder: Path) -> None:
    begun = asyncio.Event()

    def silent(heard: ReceivedRequest) -> Line:
        begun.set()
        return hangs("It ")

    async with FakeChat(silent) as vendor:
        flags = ("--provider", "openai-chat", "--base-url", vendor.base_url, "--model", "m-1")
        command = await Command.start("eval", "suite.yaml", *flags, "--unpriced", "ok", "--json", "--concurrency", "1")
        await begun.wait()
        command.signal(signal.SIGINT)
        ended = await command.ended()

    assert ended.code == 130
    attempts = [attempt for case in ended.json["cases"] for attempt in case["attempts"]]
    assert {attempt["skipped"] for attempt in attempts} == {"the eval was interrupted"}
    assert sorted(attempt["status"] or "" for attempt in attempts) == ["", "", "", "cancelled"]
    assert ended.json["passed"] is False


async def test_a_budget_needs_prices_and_ends_the_eval(folder: Path) -> None:
    async with FakeChat(model) as vendor:
        (folder / "retinue.toml").write_text(
            f'[providers.house]\nwire = "openai-chat"\nbase_url = "{vendor.base_url}"\n'
            "[providers.house.prices.m-2]\ninput = 1000.0\noutput = 1000000.0\n"
        )
        unpriced = await retinue("eval", "suite.yaml", "--model", "house:m-1", "--max-cost", "1")
        flags = (
            "--model",
            "house:m-2",
            "--max-cost",
            "0.02",
            "--case",
            "colour",
            "--repeat",
            "3",
            "--concurrency",
            "1",
        )
        ended = await retinue("eval", "suite.yaml", *flags, "--json")

    assert unpriced.code == 2
    assert "no price known for model m-1" in unpriced.stderr
    attempts = ended.json["cases"][0]["attempts"]
    assert ended.code == 1
    assert not all(attempt["status"] == "completed" for attempt in attempts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.yaml",), "none.yaml cannot be read"),
        (("suite.yaml", "--case", "lake"), "suite.yaml has no such case"),
        (("suite.yaml", "--repeat", "0"), "--repeat"),
        (("suite.yaml", "--model", "openai-chat:m"), "OPENAI_API_KEY"),
    ],
)
async def test_wrong_arguments_of_an_eval_are_bad_usage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    ended = await retinue("eval", *arguments)
    assert (ended.code, message in ended.stderr) == (2, True), ended.stderr
