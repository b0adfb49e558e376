"""`retinue cron daemon`: processes on one state folder, stopped and killed at any time, execute nothing twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
from msgspec.structs import replace

from retinue.app.open import open_read_only
from retinue.core.commands import Adopt, Decision, DriverRow, RegisterDriver
from retinue.core.text import rfc3339
from retinue.dispatch.cron.jobs import SPACE, ClaimOwner
from retinue.dispatch.cron.table import CronTable
from retinue.providers.scripted import Line, hangs, says
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.fake_chat import ChatScript, FakeChat
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.conftest import Cli as InThisProcess
from tests.cli.stage import Command, Ended, retinue

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("folder")]

PAST = "2020-01-01T00:00:00Z"
COUNTED = "counted.txt"
FREE = """
[agents.dig]
system_prompt = "You dig."

[cron]
max_running = 3
"""


Cli: TypeAlias = Callable[..., Awaitable[Ended]]


@pytest.fixture(name="cli")
def _cli(cli: InThisProcess) -> Cli:
    """The command line in a thread of this process, with a loop of its own."""

    async def call(*arguments: str) -> Ended:
        return await asyncio.to_thread(cli, *arguments)

    return call


@pytest.fixture(autouse=True)
def _settings(folder: Path) -> None:
    (folder / "retinue.toml").write_text(FREE)


async def add_commands(cli: Cli, many: int) -> list[str]:
    names = [f"s{number}" for number in range(many)]
    for name in names:
        command = f"echo {name} >> {COUNTED}"
        assert (await cli("cron", "add", name, "--at", PAST, "--shell", command, "--no-sandbox")).code == 0
    return names


async def add_agents(cli: Cli, many: int, vendor: FakeChat) -> list[str]:
    names = [f"a{number}" for number in range(many)]
    for name in names:
        work = ("--agent", "dig", "--prompt", f"Dig {name}.")
        whom = ("--base-url", vendor.base_url, "--model", "m")
        assert (await cli("cron", "add", name, "--at", PAST, *work, *whom)).code == 0
    return names


def counted(folder: Path) -> Counter[str]:
    file = folder / COUNTED
    return Counter(file.read_text().split() if file.exists() else ())


def statuses(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["name"]: row["last_status"] for row in rows}


async def owners() -> list[int]:
    """The processes that execute jobs now."""
    async with open_read_only() as client:
        table = await CronTable(client.key_value).table()
    return [int(claim.owner.process.partition(":")[0]) for claim in table.claims.values() if claim.state == "started"]


async def all_ended() -> None:
    """Wait for processes that outlived their daemon."""
    while await owners():
        last = await retinue("cron", "daemon", "--once")
        assert last.code == 0


async def until_idle(daemon: Command, many: int) -> None:
    for _ in range(many):
        await daemon.expect_stderr(": done")


async def test_two_daemons_execute_each_job_once(cli: Cli, folder: Path, stress: bool) -> None:
    names = await add_commands(cli, 20 if stress else 6)

    ended = await asyncio.gather(*(retinue("cron", "daemon", "--once") for _ in range(2)))

    assert [each.code for each in ended] == [0, 0]
    assert counted(folder) == dict.fromkeys(names, 1)
    assert statuses((await cli("cron", "list", "--json")).json) == dict.fromkeys(names, "ok")


async def test_a_job_added_while_a_daemon_runs_is_executed_repeatedly(cli: Cli, folder: Path) -> None:
    daemon = await Command.start("cron", "daemon")
    await daemon.expect_stderr("cron daemon: 0 jobs")
    await cli("cron", "add", "s", "--every", "1s", "--shell", f"echo s >> {COUNTED}", "--no-sandbox")

    await until_idle(daemon, 2)
    daemon.signal(signal.SIGTERM)
    ended = await daemon.ended()

    assert (ended.code, ended.stdout) == (0, "")
    firings = (await cli("cron", "log", "s", "--json")).json
    done = [firing for firing in firings if firing["status"] == "ok"]
    assert len(done) >= 2
    assert len({firing["due"] for firing in firings}) == len(firings)
    assert counted(folder)["s"] == len(firings)


class SilentOnce:
    """A model that hangs in its first answer, and answers when called again."""

    def __init__(self) -> None:
        self.fell_silent = asyncio.Event()

    def __call__(self, heard: ReceivedRequest) -> Line:
        if self.fell_silent.is_set():
            return says("Found it.")
        self.fell_silent.set()
        return hangs("Fou")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_an_agents_run_continues_with_the_next_daemon(cli: Cli, how: signal.Signals) -> None:
    silent = SilentOnce()
    async with FakeChat(ChatScript().play(silent)) as vendor:
        await add_agents(cli, 1, vendor)
        daemon = await Command.start("cron", "daemon")
        await silent.fell_silent.wait()
        daemon.signal(how)
        stopped = await daemon.ended()
        (left,) = (await cli("cron", "list", "--json")).json
        (firing,) = (await cli("cron", "log", "--json")).json
        (run,) = (await cli("runs", "--json")).json
        again = await retinue("cron", "daemon", "--once")

    assert (stopped.code, left["last_status"], run["state"]) == (0, "interrupted", "interrupted")
    assert (firing["status"], firing["error"]) == ("interrupted", "stopped; the next daemon continues it")
    assert again.code == 0
    (same,) = (await cli("runs", "--json")).json
    assert (same["run_id"], same["outcome"]) == (run["run_id"], "completed")
    (done,) = (await cli("cron", "log", "--json")).json
    assert (done["due"], done["status"], done["run_id"]) == (PAST, "ok", run["run_id"])


async def test_a_job_with_a_killed_process_continues_as_the_same_run(cli: Cli) -> None:
    silent = SilentOnce()
    async with FakeChat(ChatScript().play(silent)) as vendor:
        await add_agents(cli, 1, vendor)
        daemon = await Command.start("cron", "daemon", "--once")
        await silent.fell_silent.wait()
        (pid,) = await owners()
        os.kill(pid, signal.SIGKILL)
        ended = await daemon.ended()

    assert ended.code == 0
    (run,) = (await cli("runs", "--json")).json
    assert (run["outcome"], len(vendor.requests)) == ("completed", 2)
    assert statuses((await cli("cron", "list", "--json")).json) == {"a0": "ok"}


async def test_a_run_that_ended_before_the_kill_is_not_repeated(cli: Cli) -> None:
    async with FakeChat(ChatScript().play(says("Found it."))) as vendor:
        await add_agents(cli, 1, vendor)
        async with open_read_only() as client:
            cron_table = CronTable(client.key_value)
            (claim,) = (await cron_table.claim_due(now=time.time(), owner=ClaimOwner("host", ""), max_running=1)).claims
        assert (await retinue("cron", "fire", claim.name, claim.creation_id, "1")).code == 0
        async with open_read_only() as client:  # as if its last write had been lost
            place = f"claim/{claim.place}"
            started = msgspec.json.encode(replace(claim, owner=ClaimOwner(), state="started"))
            await client.key_value.change(SPACE, lambda _: Decision(b"", puts={place: started}))
        again = await retinue("cron", "daemon", "--once")

    assert (again.code, len(vendor.requests)) == (0, 1)
    assert statuses((await cli("cron", "list", "--json")).json) == {"a0": "ok"}
    assert [run["outcome"] for run in (await cli("runs", "--json")).json] == ["completed"]


async def test_a_run_of_a_dead_machine_is_taken_over(cli: Cli, home: Path) -> None:
    silent = SilentOnce()
    async with FakeChat(ChatScript().play(silent)) as vendor:
        await add_agents(cli, 1, vendor)
        daemon = await Command.start("cron", "daemon")
        await silent.fell_silent.wait()
        daemon.signal(signal.SIGTERM)
        await daemon.ended()
        (run,) = (await cli("runs", "--json")).json
        gone = DriverRow(driver_id="gone", host="another start of this machine", process="1", lease=0.5)
        store = SqliteStore(home / "retinue.db")
        store.commit(None, [RegisterDriver(driver=gone), Adopt(driver_id="gone", run_ids=(run["run_id"],))])
        store.close()
        again = await retinue("cron", "daemon", "--once")

    assert again.code == 0
    (same,) = (await cli("runs", "--json")).json
    assert (same["run_id"], same["outcome"]) == (run["run_id"], "completed")


async def test_a_command_with_a_killed_process_is_not_repeated(cli: Cli, folder: Path) -> None:
    begun, end = folder / "begun", folder / "end"
    os.mkfifo(begun)
    os.mkfifo(end)
    command = f"echo s >> {COUNTED}; echo begun > begun; cat end"
    await cli("cron", "add", "s", "--at", PAST, "--shell", command, "--no-sandbox")
    daemon = await Command.start("cron", "daemon", "--once")
    await asyncio.to_thread(begun.read_text)

    (pid,) = await owners()
    os.kill(pid, signal.SIGKILL)
    ended = await daemon.ended()
    os.close(os.open(end, os.O_RDWR))  # ends the command, if it outlived its process

    assert ended.code == 0
    assert counted(folder) == {"s": 1}
    (firing,) = (await cli("cron", "log", "--json")).json
    assert firing["status"] == "interrupted"
    assert "is not repeated" in firing["error"]
    assert statuses((await cli("cron", "list", "--json")).json) == {"s": "interrupted"}


async def test_daemons_killed_at_any_time_execute_nothing_twice(cli: Cli, folder: Path, stress: bool) -> None:
    chance = random.Random(7)
    rounds, many = (12, 6) if stress else (3, 2)
    async with FakeChat(ChatScript().play(says("Found it."))) as vendor:
        agents = await add_agents(cli, many, vendor)
        commands = await add_commands(cli, many)
        for _ in range(rounds):
            daemons = [await Command.start("cron", "daemon") for _ in range(2)]
            await asyncio.sleep(chance.uniform(0.3, 2.0))  # killed at any time
            victims = [] if chance.random() < 0.5 else await owners()
            for daemon in daemons:
                daemon.signal(signal.SIGKILL)
            for victim in victims[:1]:
                os.kill(victim, signal.SIGKILL)
            await asyncio.gather(*(daemon.ended() for daemon in daemons))
        last = await retinue("cron", "daemon", "--once")
        await all_ended()

    assert last.code == 0
    assert [name for name, times in counted(folder).items() if times > 1] == []
    result = statuses((await cli("cron", "list", "--json")).json)
    assert {name: result[name] for name in agents} == dict.fromkeys(agents, "ok")
    runs = (await cli("runs", "--json")).json
    assert Counter(run["outcome"] for run in runs) == {"completed": many}
    assert {name for name in commands if result[name] == "ok"} <= set(counted(folder))
    firings = (await cli("cron", "log", "--limit", "1000", "--json")).json
    assert Counter(firing["name"] for firing in firings) == dict.fromkeys([*agents, *commands], 1)


async def test_a_job_that_cannot_be_executed_fails_with_a_reason(cli: Cli, folder: Path) -> None:
    await add_commands(cli, 1)
    (folder / "elsewhere").mkdir()
    (folder / "retinue.toml").write_text("[agents.dig]\nmax_turns = 0\n")

    ended = await retinue("cron", "daemon", "--once", cwd=folder / "elsewhere")

    assert ended.code == 0
    (firing,) = (await cli("cron", "log", "--json")).json
    assert firing["status"] == "failed"
    assert "max_turns" in firing["error"]
    assert counted(folder) == {}


async def test_a_job_is_executed_in_the_folder_it_was_added_in(cli: Cli, folder: Path, home: Path) -> None:
    await add_commands(cli, 1)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()

    relative = os.path.join("..", "..", home.name)
    ended = await retinue("cron", "daemon", "--once", cwd=elsewhere, env={"RETINUE_HOME": relative})

    assert (ended.code, counted(folder)) == (0, {"s0": 1})


async def test_moments_without_a_daemon_are_executed_once(cli: Cli, folder: Path) -> None:
    await cli("cron", "add", "s", "--every", "1s", "--shell", f"echo s >> {COUNTED}", "--no-sandbox")
    async with open_read_only() as client:
        cron_table = CronTable(client.key_value)
        job = await cron_table.job("s")
        assert job.next_run is not None
        long_ago = job.next_run - 3600
        await cron_table.add(replace(job, next_run=long_ago), instead=True)

    assert (await retinue("cron", "daemon", "--once")).code == 0

    assert counted(folder) == {"s": 1}
    (firing,) = (await cli("cron", "log", "--json")).json
    assert (firing["due"], firing["status"]) == (rfc3339(long_ago), "ok")
