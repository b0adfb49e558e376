"""`retinue batch`: tasks of a file in the vendor's batches, their status and results, Ctrl-C, crashes, wrong inputs."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from retinue.testing.fake_server import FakeResponse, FakeServer
from tests.cli.conftest import Cli
from tests.cli.stage import Command, open_in_a_thread
from tests.providers.fakes.batches import Answer, FakeBatches

pytestmark = pytest.mark.real_time

WIRES = {"anthropic": "anthropic", "responses": "openai-responses", "chat": "openai-chat", "gemini": "gemini"}
NEVER = 10**9
"""Looks at a batch that does not end."""

TASKS = '2\n\n{"id": "three", "task": "3", "system": "Be exact."}\n'


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of one process are collected for a moment, and batches are looked at often."""
    monkeypatch.setattr("retinue.providers.batch.queue.WINDOW", 0.05)
    monkeypatch.setattr("retinue.providers.batch.queue.FIRST_PAUSE", 0.05)


@pytest.fixture(autouse=True)
def tasks(folder: Path) -> None:
    """A file with two tasks in the current folder."""
    (folder / "tasks.txt").write_text(TASKS)


def squares(text: str) -> Answer:
    return str(int(text) ** 2)


def place(server: FakeServer, wire: str = "anthropic") -> tuple[str, ...]:
    """The flags that name a fake vendor."""
    address = f"{server.url}/v1" if wire in ("responses", "chat") else server.url
    return "--provider", WIRES[wire], "--base-url", address, "--model", "m"


def results_of(text: str) -> list[tuple[str, str, str]]:
    rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    return [(row["id"], row["status"], row["text"]) for row in rows]


@pytest.mark.parametrize("wire", WIRES)
def test_a_file_is_one_batch_whose_results_are_fetched_later(cli: Cli, wire: str) -> None:
    vendor = FakeBatches(wire, squares, looks=NEVER)
    with open_in_a_thread(vendor.server()) as server:
        submitted = cli("batch", "submit", "tasks.txt", "--name", "nightly", *place(server, wire))
        before = cli("batch", "status", "nightly", "--json").json
        early = cli("batch", "results", "nightly")
        vendor.looks = 0
        waited = cli("batch", "wait", "nightly")
        after = cli("batch", "status", "nightly")

    assert (submitted.code, submitted.stdout) == (0, "nightly\n")
    assert (before["state"], before["tasks"], before["ended"], before["hours"]) == ("waiting", 2, 0, 24.0)
    assert [(each["id"], each["calls"], each["ended"]) for each in before["vendor_batches"]] == [
        (next(iter(vendor.batches)), 2, False)
    ]
    assert (early.code, early.stdout) == (1, "")
    assert (waited.code, results_of(waited.stdout)) == (0, [("1", "completed", "4"), ("three", "completed", "9")])
    assert after.stdout.startswith("nightly: ended, 2 of 2 tasks ended, 0 failed, ")
    assert [len(batch.requests) for batch in vendor.batches.values()] == [2]


def test_with_wait_the_results_of_this_process_are_in_the_file(cli: Cli, folder: Path) -> None:
    with open_in_a_thread(FakeBatches("anthropic", squares).server()) as server:
        ended = cli("batch", "submit", "-", "--wait", "-o", "results.jsonl", *place(server), stdin=b"4\n5\n")

    assert (ended.code, ended.stdout) == (0, "")
    assert results_of((folder / "results.jsonl").read_text()) == [("1", "completed", "16"), ("2", "completed", "25")]


def test_a_task_that_fails_is_a_result_and_an_exit_status(cli: Cli) -> None:
    with open_in_a_thread(FakeBatches("anthropic", {"2": "Two.", "3": 400}.__getitem__).server()) as server:
        ended = cli("batch", "submit", "tasks.txt", "--name", "mixed", "--wait", *place(server))
        status = cli("batch", "list", "--json").json

    assert (ended.code, results_of(ended.stdout)) == (1, [("1", "completed", "Two."), ("three", "failed", "")])
    assert "told 400" in json.loads(ended.stdout.splitlines()[1])["error"]
    assert [(each["name"], each["state"], each["completed"], each["failed"]) for each in status] == [
        ("mixed", "ended", 1, 1)
    ]


def test_options_of_a_task_are_its_own(cli: Cli, folder: Path) -> None:
    (folder / "tasks.txt").write_text('{"task": "2", "model": "other"}\n{"task": "3", "system": "Be exact."}\n4\n')
    vendor = FakeBatches("anthropic", squares)
    with open_in_a_thread(vendor.server()) as server:
        ended = cli("batch", "submit", "tasks.txt", "--system", "Be brief.", "--wait", *place(server))

    sent = {
        (body["messages"][-1]["content"][-1]["text"], body["model"], body["system"][0]["text"])
        for batch in vendor.batches.values()
        for body in batch.requests.values()
    }
    assert ended.code == 0
    assert sent == {("2", "other", "Be brief."), ("3", "m", "Be exact."), ("4", "m", "Be brief.")}


def test_the_same_file_goes_on_and_another_one_is_refused(cli: Cli, folder: Path) -> None:
    vendor = FakeBatches("anthropic", squares)
    with open_in_a_thread(vendor.server()) as server:
        where = ("--name", "nightly", *place(server))
        cli("batch", "submit", "tasks.txt", *where)
        again = cli("batch", "submit", "tasks.txt", *where, "--wait")
        (folder / "tasks.txt").write_text("5\n")
        other = cli("batch", "submit", "tasks.txt", *where)

    assert (again.code, results_of(again.stdout)) == (0, [("1", "completed", "4"), ("three", "completed", "9")])
    assert (other.code, other.stderr.splitlines()[-1]) == (
        2,
        "error: the batch 'nightly' has other tasks: choose another name, or see retinue batch list",
    )
    assert len(vendor.batches) == 1


def test_a_cancelled_batch_is_cancelled_at_the_vendor(cli: Cli) -> None:
    vendor = FakeBatches("anthropic", squares, looks=NEVER)
    with open_in_a_thread(vendor.server()) as server:
        cli("batch", "submit", "tasks.txt", "--name", "nightly", *place(server))
        cancelled = cli("batch", "cancel", "nightly")
        ended = cli("batch", "wait", "nightly")

    assert (cancelled.code, [batch.was_cancelled for batch in vendor.batches.values()]) == (0, [True])
    assert (ended.code, results_of(ended.stdout)) == (1, [("1", "cancelled", ""), ("three", "cancelled", "")])


async def test_after_ctrl_c_the_same_command_waits_again(cli: Cli) -> None:
    vendor = FakeBatches("anthropic", squares, looks=NEVER)
    with open_in_a_thread(vendor.server()) as server:
        await asyncio.to_thread(cli, "batch", "submit", "tasks.txt", "--name", "nightly", *place(server))
        command = await Command.start("batch", "wait", "nightly")
        await command.expect_stderr("0 of 2 tasks ended")
        command.signal(signal.SIGINT)
        interrupted = await command.ended()
        vendor.looks = 0
        waited = await asyncio.to_thread(cli, "batch", "wait", "nightly")

    assert (interrupted.code, interrupted.stdout) == (130, "")
    assert interrupted.stderr.endswith("wait again with: retinue batch wait nightly\n")
    assert (waited.code, results_of(waited.stdout)) == (0, [("1", "completed", "4"), ("three", "completed", "9")])
    assert [(len(batch.requests), batch.was_cancelled) for batch in vendor.batches.values()] == [(2, False)]


async def test_two_processes_may_wait_for_one_batch(cli: Cli) -> None:
    vendor = FakeBatches("anthropic", squares, looks=NEVER)
    with open_in_a_thread(vendor.server()) as server:
        await asyncio.to_thread(cli, "batch", "submit", "tasks.txt", "--name", "nightly", *place(server))
        first = await Command.start("batch", "wait", "nightly")
        await first.expect_stderr("0 of 2 tasks ended")
        second = await Command.start("batch", "wait", "nightly")
        await second.expect_stderr("another process drives it")
        vendor.looks = 0
        ends = [await each.ended() for each in (first, second)]

    assert [(end.code, results_of(end.stdout)) for end in ends] == [
        (0, [("1", "completed", "4"), ("three", "completed", "9")])
    ] * 2
    assert len(vendor.batches) == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\n \n", "stdin has no task: write one in each line"),
        (b'{"task": 3}', "stdin, line 1: Expected `str`, got `int` - at `$.task`"),
        (b'a\n{"task": "b", "tsk": 1}', "stdin, line 2: Object contains unknown field `tsk`"),
        (b'{"task": " "}', "stdin, line 1: the task is empty"),
        (b'{"task": "a", "id": "x"}\n{"task": "b", "id": "x"}', "stdin, line 2: the id 'x' is that of another task"),
        (b'{"task": "a", "id": "../x y"}', "stdin, line 1: Expected `str` matching regex"),
        (b'{"task": "a", "agent": "zoe"}', "unknown agent: 'zoe'"),
        (b"\xff\xfe", "stdin is not UTF-8 text"),
    ],
)
def test_a_file_with_a_mistake_starts_nothing(cli: Cli, content: bytes, complaint: str) -> None:
    refused = cli("batch", "submit", "-", "--provider", "anthropic", "--model", "m", stdin=content)

    assert refused.code == 2
    assert complaint in refused.stderr
    assert cli("batch", "list", "--json").json == []


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--name", "../x"), "the name '../x' of a batch"),
        (("--hours", "721"), "--hours: found 721; expected a number above 0 and up to 720"),
        (("--hours", "nan"), "--hours: found nan"),
        (("-o", "results.jsonl"), "give --wait, too"),
        (("--provider", "groq", "--base-url", "http://127.0.0.1:9/v1"), "batch_hours: the wire groq does not have it"),
    ],
)
def test_wrong_flags_start_nothing(cli: Cli, flags: tuple[str, ...], complaint: str) -> None:
    where = ("--provider", "anthropic", "--base-url", "http://127.0.0.1:9", "--model", "m")
    refused = cli("batch", "submit", "tasks.txt", *where, *flags)

    assert (refused.code, refused.stdout) == (2, "")
    assert complaint in " ".join(refused.stderr.split())
    assert cli("batch", "list", "--json").json == []


def test_a_name_that_no_batch_has_lists_those_that_there_are(cli: Cli) -> None:
    with open_in_a_thread(FakeBatches("anthropic", squares).server()) as server:
        cli("batch", "submit", "tasks.txt", "--name", "nightly", *place(server))
    unknown = [cli("batch", command, "nightl") for command in ("status", "wait", "results", "cancel")]

    assert {(each.code, each.stderr) for each in unknown} == {(2, "error: unknown batch: 'nightl'; known: nightly\n")}


def test_a_vendor_that_refuses_the_batch_fails_its_tasks(cli: Cli) -> None:
    vendor = FakeBatches("anthropic", squares, before=lambda heard: FakeResponse(status=403))
    with open_in_a_thread(vendor.server()) as server:
        submitted = cli("batch", "submit", "tasks.txt", "--name", "nightly", *place(server))
        ended = cli("batch", "wait", "nightly")

    assert submitted.code == 0
    assert (ended.code, results_of(ended.stdout)) == (1, [("1", "failed", ""), ("three", "failed", "")])
