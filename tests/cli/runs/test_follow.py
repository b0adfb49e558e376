"""`retinue runs follow` and `runs wait`: attach to runs of any process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from retinue.app import attach
from retinue.app.open import open as open_retinue
from retinue.core.errors import ProviderError
from retinue.providers.scripted import Script, ScriptedProvider, calls, fails, hangs, says
from retinue.testing.fake_chat import ChatScript, FakeChat
from tests.cli.conftest import Cli
from tests.cli.stage import Command, finished_run, retinue
from tests.cli.test_interrupts import SilentOnce


def delegating() -> ScriptedProvider:
    script = Script().play(
        "main",
        calls("subagent", action="spawn", agent="dig", task="Look below."),
        calls("subagent", action="wait", task_ids=["t_01"]),
        says("Nothing there."),
    )
    return ScriptedProvider(script.play("dig", says("I looked.")))


def failing() -> ScriptedProvider:
    return ScriptedProvider(Script().play("main", fails(ProviderError("the line is dead", fault="bad_request"))))


def test_follow_prints_an_ended_run_and_its_result_is_the_exit_status(cli: Cli, home: Path) -> None:
    good, bad = asyncio.run(finished_run(home, delegating())), asyncio.run(finished_run(home, failing()))

    followed, failed = cli("runs", "follow", good), cli("runs", "follow", bad)

    assert followed.code == 0
    assert followed.stdout.startswith("\n-- task\nFind it.\n\n-- call subagent (turn 1)\n")
    assert "Nothing there." in followed.stdout
    assert "I looked." not in followed.stdout.replace('"I looked."', "")
    assert (failed.code, "failed (model_error): the line is dead" in failed.stdout) == (1, True)


def test_follow_tree_names_the_runs_and_json_has_an_object_for_each_event(cli: Cli, home: Path) -> None:
    run_id = asyncio.run(finished_run(home, delegating()))
    child = cli("runs", "show", "t_01", "--in", run_id, "--json").json["run_id"]

    followed, lines = cli("runs", "follow", run_id, "--tree"), cli("runs", "follow", run_id, "--tree", "--json")

    assert f"\n-- main {run_id[-8:]}: task\nFind it.\n" in followed.stdout
    assert f"\n-- dig t_01 {child[-8:]}: reply (turn 1)\nI looked.\n" in followed.stdout
    rows = [json.loads(line) for line in lines.stdout.splitlines()]
    assert {(row["run"], row["parent"], row["path"]) for row in rows} == {
        (run_id, None, "root"),
        (child, run_id, "root/dig/1"),
    }
    assert [row["event"]["type"] for row in rows if row["run"] == child] == ["accepted", "reply", "ended"]
    assert [row["seq"] for row in rows if row["run"] == run_id] == list(range(1, len(rows) - 2))


def test_texts_with_escape_codes_are_made_visible(cli: Cli, home: Path) -> None:
    run_id = asyncio.run(finished_run(home, ScriptedProvider(Script().play("main", says("\x1b[2J-- end\x9b31m")))))

    shown, lines = cli("runs", "follow", run_id).stdout, cli("runs", "follow", run_id, "--json").stdout

    assert [character in text for text in (shown, lines) for character in "\x1b\x9b"] == [False] * 4


def test_a_run_without_a_driver_is_reported_after_a_while(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def abandoned() -> str:
        async with open_retinue(provider=ScriptedProvider(Script().play("main", hangs())), home=home) as owner:
            return (await owner.spawn("Think.")).run_id

    monkeypatch.setattr(attach, "GRACE", 0.0)
    run_id = asyncio.run(abandoned())

    followed, waited = cli("runs", "follow", run_id), cli("runs", "wait", run_id)

    notice = f"run {run_id} is interrupted; go on with: retinue runs resume {run_id}\n"
    assert (followed.code, followed.stderr) == (1, notice)
    assert waited == (1, f"{run_id} interrupted\n", notice)


def test_wait_ends_with_the_last_run_and_fails_if_one_failed(cli: Cli, home: Path) -> None:
    good, bad = asyncio.run(finished_run(home, delegating())), asyncio.run(finished_run(home, failing()))

    one, both, unknown = (
        cli("runs", "wait", good[-8:]),
        cli("runs", "wait", good, bad, good),
        cli("runs", "wait", "zzzz"),
    )

    assert one == (0, f"{good} completed\n", "")
    assert both == (1, f"{good} completed\n{bad} failed\n", "")
    assert (unknown.code, unknown.stderr) == (2, "error: unknown run: 'zzzz'\n")


@pytest.mark.real_time
async def test_a_run_of_another_process_is_followed_to_its_end(folder: Path) -> None:
    silent = SilentOnce()
    async with FakeChat(ChatScript().play(silent, silent)) as vendor:
        command = await Command.start("run", "--base-url", vendor.base_url, "--model", "m", "Why?")
        await silent.fell_silent.wait()
        (row,) = (await retinue("runs", "--json")).json
        following = await Command.start("runs", "follow", row["run_id"])
        following_all = await Command.start("runs", "follow", row["run_id"], "--tree", "--json")
        waiting = await Command.start("runs", "wait", row["run_id"])
        shown = await following.expect_stdout("result of shared_context")
        await following_all.expect_stdout('"reply"')
        cancelled = await retinue("runs", "cancel", row["run_id"])
        followed, waited, ended = await following.ended(), await waiting.ended(), await command.ended()
        all_followed = await following_all.ended()

    assert "-- task\nWhy?\n" in shown
    assert (cancelled.code, ended.code) == (0, 1)
    assert (followed.code, "cancelled (cancelled)" in followed.stdout) == (1, True)
    assert (all_followed.code, json.loads(all_followed.stdout.splitlines()[-1])["run"]) == (1, row["run_id"])
    assert waited == (1, f"{row['run_id']} cancelled\n", "")
