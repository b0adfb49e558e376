"""`retinue daemon`: real processes that execute jobs, continue runs left behind, and are stopped or killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from retinue.app.open import open_read_only
from retinue.providers.scripted import Line, calls, hangs, says
from retinue.testing.fake_chat import ChatScript, FakeChat, count_replies
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.conftest import Cli as InThisProcess
from tests.cli.stage import Command, Ended, retinue

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("folder")]

Cli: TypeAlias = Callable[..., Awaitable[Ended]]

NOT_RUNNING = 3
PAST = "2020-01-01T00:00:00Z"

AGENTS = """
[agents.lead]
system_prompt = "You lead."

[agents.reviewer]
system_prompt = "You review."
"""


@pytest.fixture(name="cli")
def _cli(cli: InThisProcess) -> Cli:
    """The command line in a thread of this process, with a loop of its own, which is faster than a process."""

    async def call(*arguments: str) -> Ended:
        return await asyncio.to_thread(cli, *arguments)

    return call


class SilentOnce:
    """A model that answers a first turn, hangs in the second, and answers when called again."""

    def __init__(self, first: Line) -> None:
        self._first = first
        self.fell_silent = asyncio.Event()

    def __call__(self, heard: ReceivedRequest) -> Line:
        if count_replies(heard) == 0:
            return self._first
        if not self.fell_silent.is_set():
            self.fell_silent.set()
            return hangs("It was ")
        return says("It was the pool.")


@asynccontextmanager
async def running_daemon(cli: Cli, log: str = "") -> AsyncGenerator[Command]:
    """A daemon that has started; it is killed with the block if it still runs."""
    daemon = await Command.start("daemon", env={"RETINUE_LOG": log} if log else None)
    try:
        await daemon.expect_stderr("daemon: ")
        yield daemon
    finally:
        if (await cli("daemon", "status")).code == 0:
            daemon.signal(signal.SIGKILL)
        await daemon.ended()


async def state_of(cli: Cli, run_id: str) -> dict[str, Any]:
    (row,) = [row for row in (await cli("runs", "--all", "--json")).json if row["run_id"] == run_id]
    return row


async def pid_of_driver(run_id: str) -> int:
    async with open_read_only() as client:
        driver = await client.driver_of(run_id)
    assert driver is not None
    return int(driver.process.partition(":")[0])


async def killed_detached_run(cli: Cli, vendor: FakeChat, silent: SilentOnce) -> str:
    """A detached run whose process was killed in the middle of its second turn, with the first one stored; its id."""
    started = await retinue("run", "--detach", "--base-url", vendor.base_url, "--model", "m", "Why?")
    run_id = started.stdout.strip()
    await silent.fell_silent.wait()
    while (await state_of(cli, run_id))["turns"] < 1:  # the request of the second turn does not wait for the commit
        pass
    os.kill(await pid_of_driver(run_id), signal.SIGKILL)
    while (await state_of(cli, run_id))["state"] != "interrupted":  # until the kernel has ended it
        pass
    return run_id


async def test_a_daemon_is_started_shown_and_stopped(cli: Cli, home: Path, folder: Path) -> None:
    before = await cli("daemon", "status")
    async with running_daemon(cli) as daemon:
        during = await cli("daemon", "status")
        as_json = (await cli("daemon", "status", "--json")).json
        stopped = await cli("daemon", "stop")
        ended = await daemon.ended()
    after = await cli("daemon", "status", "--json")
    again = await cli("daemon", "stop")

    assert (before.code, before.stdout) == (NOT_RUNNING, f"no daemon runs for {home}\n")
    assert during.code == 0
    facts = dict(line.split(maxsplit=1) for line in during.stdout.splitlines())
    assert facts == {
        "pid": str(as_json["pid"]),
        "since": as_json["since"],
        "store": str(home / "retinue.db"),
        "settings": "-",
        "jobs": "0",
        "runs": "0",
    }
    assert as_json | {"pid": 0, "since": ""} == {
        "running": True,
        "home": str(home),
        "pid": 0,
        "since": "",
        "stopping": False,
        "store": str(home / "retinue.db"),
        "settings": None,
        "jobs": 0,
        "jobs_running": [],
        "runs": [],
    }
    assert (stopped.code, stopped.stderr) == (0, f"stopped the daemon, process {as_json['pid']}\n")
    assert (ended.code, ended.stdout) == (0, "")
    assert ended.stderr == "daemon: 0 jobs, 0 runs to keep going; Ctrl-C stops it\ndaemon: stopped\n"
    assert (after.code, after.json) == (NOT_RUNNING, {"running": False, "home": str(home)})
    assert (again.code, again.stderr) == (0, f"no daemon runs for {home}\n")


async def test_a_second_daemon_is_refused_and_names_the_first(cli: Cli, home: Path) -> None:
    async with running_daemon(cli):
        pid = (await cli("daemon", "status", "--json")).json["pid"]
        second = await retinue("daemon")
        still = await cli("daemon", "status")

    assert (second.code, second.stdout) == (1, "")
    assert second.stderr == (f"error: a daemon runs already for {home}: process {pid}; see: retinue daemon status\n")
    assert still.code == 0


async def test_a_killed_daemon_leaves_no_lock_behind(cli: Cli) -> None:
    async with running_daemon(cli) as daemon:
        daemon.signal(signal.SIGKILL)
        await daemon.ended()
        killed = await cli("daemon", "status")
        stopped = await cli("daemon", "stop")
        async with running_daemon(cli):
            next_one = await cli("daemon", "status")

    assert (killed.code, stopped.code, next_one.code) == (NOT_RUNNING, 0, 0)


async def test_a_process_of_a_killed_daemon_does_not_hold_its_lock(cli: Cli) -> None:
    silent = SilentOnce(calls("shared_context", action="list_keys"))
    async with FakeChat(ChatScript().play(silent, silent)) as vendor:
        run_id = await killed_detached_run(cli, vendor, silent)
        silent.fell_silent.clear()
        async with running_daemon(cli) as daemon:
            await silent.fell_silent.wait()  # a process of the daemon drives the run
            daemon.signal(signal.SIGKILL)
            await daemon.ended()
            status = await cli("daemon", "status")
            driver = await pid_of_driver(run_id)
            os.kill(driver, signal.SIGKILL)

    assert status.code == NOT_RUNNING


async def test_a_daemon_executes_jobs_that_are_due(cli: Cli, folder: Path) -> None:
    await cli("cron", "add", "s", "--at", PAST, "--shell", "echo s >> counted.txt", "--no-sandbox")
    async with running_daemon(cli) as daemon:
        await daemon.expect_stderr("s: done")
        stopped = await cli("daemon", "stop")

    assert stopped.code == 0
    assert (folder / "counted.txt").read_text() == "s\n"
    (firing,) = (await cli("cron", "log", "--json")).json
    assert (firing["due"], firing["status"]) == (PAST, "ok")


async def test_a_daemon_executes_a_job_of_an_agent(cli: Cli, folder: Path) -> None:
    (folder / "retinue.toml").write_text(AGENTS)
    (folder / "notes.txt").write_text("The pool is too small.\n")
    script = ChatScript().play(calls("file_read", path="notes.txt"), says("It is the pool."))
    async with FakeChat(script) as vendor:
        where = ("--base-url", vendor.base_url, "--model", "m")
        await cli("cron", "add", "a", "--at", PAST, "--agent", "reviewer", "--prompt", "Review it.", *where)
        async with running_daemon(cli) as daemon:
            await daemon.expect_stderr("a: done")
            stopped = await cli("daemon", "stop")
        first, second = (heard.body["messages"] for heard in vendor.requests)
    (firing,) = (await cli("cron", "log", "--json")).json
    (row,) = (await cli("runs", "--json")).json

    assert (stopped.code, firing["due"], firing["status"]) == (0, PAST, "ok")
    assert "You review." in first[0]["content"]
    assert first[-1]["content"].endswith("Review it.")
    assert "The pool is too small." in second[-1]["content"]
    assert (firing["run_id"], row["agent"], row["outcome"]) == (row["run_id"], "reviewer", "completed")
    assert (await cli("runs", "show", row["run_id"], "--json")).json["text"] == "It is the pool."


async def test_a_detached_run_left_by_a_killed_process_is_finished(cli: Cli, home: Path) -> None:
    silent = SilentOnce(calls("shared_context", action="list_keys"))
    async with FakeChat(ChatScript().play(silent, silent)) as vendor:
        run_id = await killed_detached_run(cli, vendor, silent)
        async with running_daemon(cli, log="retinue.daemon=info") as daemon:
            await daemon.expect_stderr(f"run {run_id}: done")
            stopped = await cli("daemon", "stop")
            ended = await daemon.ended()
        turns = [count_replies(heard) + 1 for heard in vendor.requests]
    result = await cli("runs", "resume", run_id)

    assert (stopped.code, result.code, result.stdout) == (0, 0, "It was the pool.\n")
    assert turns == [1, 2, 2]
    assert (home / "logs" / f"{run_id}.log").read_text().endswith("It was the pool.\n")
    logged = [line.partition("retinue.daemon ")[2] for line in ended.stderr.splitlines() if "retinue.daemon" in line]
    assert logged == [
        "event=started jobs=0 runs=1",
        f"event=run_continued run_id={run_id}",
        f"event=run_ended run_id={run_id} exit_code=0",
        "event=stopping",
        "event=stopped",
    ]


async def test_a_stopped_daemon_leaves_its_runs_to_the_next_one(cli: Cli) -> None:
    silent = SilentOnce(calls("shared_context", action="list_keys"))
    async with FakeChat(ChatScript().play(silent, silent)) as vendor:
        run_id = await killed_detached_run(cli, vendor, silent)
        silent.fell_silent.clear()
        async with running_daemon(cli) as daemon:
            await silent.fell_silent.wait()
            during = (await cli("daemon", "status", "--json")).json
            stopped = await cli("daemon", "stop")
            ended = await daemon.ended()
        left = await state_of(cli, run_id)
        async with running_daemon(cli) as daemon:
            await daemon.expect_stderr(f"run {run_id}: done")
    result = await cli("runs", "resume", run_id)

    assert during["runs"] == [{"run_id": run_id, "running": True}]
    assert (stopped.code, ended.code, left["state"], left["turns"]) == (0, 0, "interrupted", 1)
    assert f"run {run_id}: ended with exit code 130\n" in ended.stderr
    assert (result.code, result.stdout) == (0, "It was the pool.\n")


async def test_a_run_that_was_interrupted_in_the_foreground_is_left_alone(cli: Cli) -> None:
    silent = SilentOnce(calls("shared_context", action="list_keys"))
    detached = SilentOnce(calls("shared_context", action="list_keys"))
    script = ChatScript().play(silent, silent, words="Why?").play(detached, detached, words="What else?")
    async with FakeChat(script) as vendor:
        foreground = await Command.start("run", "--base-url", vendor.base_url, "--model", "m", "Why?")
        await silent.fell_silent.wait()
        foreground.signal(signal.SIGKILL)
        await foreground.ended()
        (row,) = (await cli("runs", "--json")).json
        started = await retinue("run", "--detach", "--base-url", vendor.base_url, "--model", "m", "What else?")
        run_id = started.stdout.strip()
        await detached.fell_silent.wait()
        os.kill(await pid_of_driver(run_id), signal.SIGKILL)
        async with running_daemon(cli) as daemon:
            await daemon.expect_stderr(f"run {run_id}: done")  # it has looked at every run by now
            left = await state_of(cli, row["run_id"])

    assert left["state"] == "interrupted"


DELEGATE = calls("delegate", agent="reviewer", prompt="Review it.", background=True)


@asynccontextmanager
async def background_delegate(
    cli: Cli, folder: Path, ended_by: signal.Signals
) -> AsyncGenerator[tuple[SilentOnce, str]]:
    """The delegate of a root that has ended, left behind by a process that a signal ended; its model, and the root."""
    (folder / "retinue.toml").write_text(AGENTS)
    silent = SilentOnce(calls("memory_recall"))
    script = ChatScript().play(DELEGATE, says("It is under way."), words="Start.")
    async with FakeChat(script.play(silent, silent, words="Review it.")) as vendor:
        flags = ("--dialect", "zeroclaw", "--agent", "lead", "--base-url", vendor.base_url, "--model", "m")
        command = await Command.start("run", *flags, "Start.")
        await silent.fell_silent.wait()
        (root,) = (await cli("runs", "--json")).json
        while (await state_of(cli, root["run_id"]))["state"] != "ended":
            pass
        command.signal(ended_by)  # it waits for its background run
        interrupted = await command.ended()
        assert interrupted.code == (130 if ended_by is signal.SIGINT else -ended_by)
        yield silent, root["run_id"]


def delegate_result(folder: Path) -> tuple[str, str]:
    """The status and the output of the one delegate."""
    (file,) = (folder / "delegate_results").glob("*.json")
    result = json.loads(file.read_text())
    return result["status"], result["output"]


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGKILL])
async def test_a_background_delegate_of_an_ended_run_is_finished(
    cli: Cli, folder: Path, ended_by: signal.Signals
) -> None:
    async with background_delegate(cli, folder, ended_by) as (_, root_id), running_daemon(cli) as daemon:
        await daemon.expect_stderr(f"run {root_id}: done")

    status, output = delegate_result(folder)
    assert (status, output.endswith("It was the pool.")) == ("Completed", True)


async def test_a_background_delegate_is_finished_by_the_daemon_after_a_killed_one(cli: Cli, folder: Path) -> None:
    async with background_delegate(cli, folder, signal.SIGKILL) as (silent, root_id):
        silent.fell_silent.clear()
        async with running_daemon(cli) as killed:
            await silent.fell_silent.wait()  # a process of the daemon drives the delegate
            (delegate,) = [row for row in (await cli("runs", "--all", "--json")).json if row["run_id"] != root_id]
            driver = await pid_of_driver(delegate["run_id"])
            for pid in ((await cli("daemon", "status", "--json")).json["pid"], driver):
                os.kill(pid, signal.SIGKILL)
            await killed.ended()
        async with running_daemon(cli) as daemon:
            await daemon.expect_stderr(f"run {root_id}: done")

    status, output = delegate_result(folder)
    assert (status, output.endswith("It was the pool.")) == ("Completed", True)


async def test_stop_gives_up_after_its_timeout_and_says_so(cli: Cli) -> None:
    async with running_daemon(cli) as daemon:
        pid = (await cli("daemon", "status", "--json")).json["pid"]
        os.kill(pid, signal.SIGSTOP)
        waited = await cli("daemon", "stop", "--timeout", "0.2")
        os.kill(pid, signal.SIGCONT)
        ended = await daemon.ended()

    assert (waited.code, waited.stderr) == (
        1,
        f"error: the daemon, process {pid}, has not ended within 0.2 s; it is still stopping: "
        "wait for it with the same command\n",
    )
    assert ended.code == 0


async def test_ctrl_c_stops_a_quiet_daemon_without_a_word(cli: Cli) -> None:
    daemon = await Command.start("daemon", "--quiet")
    async with asyncio.timeout(30):
        while (await cli("daemon", "status")).code != 0:
            pass
    daemon.signal(signal.SIGINT)

    assert await daemon.ended() == Ended(0, "", "")


@pytest.mark.parametrize("command", [["daemon"], ["daemon", "status"]])
async def test_a_state_folder_that_cannot_be_used_is_named_with_what_to_do(
    cli: Cli, folder: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("RETINUE_HOME", str(folder / "file"))

    ended = await cli(*command)

    assert ended.code == 1
    assert f"the store cannot be opened: {folder / 'file'}: " in ended.stderr
    assert "; choose another place with RETINUE_HOME" in ended.stderr
    assert "bug" not in ended.stderr
