"""Workers start scheduled jobs: each due moment once, with the settings of the worker, whichever of them stops."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.app.settings_file import load_settings
from retinue.config.settings import Settings
from retinue.core.commands import RunQuery
from retinue.dispatch.cron.jobs import AgentWork, Job, JobPlace, JobWork, ShellWork
from retinue.dispatch.cron.schedule import At
from retinue.dispatch.cron.table import CronTable
from retinue.providers.scripted import Script, ScriptedProvider, calls, says
from tests.dispatch.worker.stage import LONG, PATIENCE, at, until, worker
from tests.internals import engine_of

pytestmark = [pytest.mark.real_time, LONG]

PAST = 1_000_000.0
SETTINGS = """
model = "house:fake-1"
[providers.house]
wire = "openai-chat"
base_url = "http://127.0.0.1:9/v1"
[agents.writer]
description = "Writes."
tools = []
[agents.looker]
description = "Looks."
tools = ["look"]
"""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder for a SQLite store, or the address of a PostgreSQL store."""
    return str(tmp_path / "home") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "retinue.toml").write_text(SETTINGS)
    return load_settings(str(tmp_path / "retinue.toml"))


def job(name: str, work: JobWork, where: JobPlace | None = None) -> Job:
    return Job(name=name, creation_id="1", schedule=At(PAST), work=work, place=where or JobPlace(), next_run=PAST)


def ask(agent: str) -> AgentWork:
    return AgentWork(agent=agent, prompt="Report.", uses_memory=False)


def opening(settings: Settings, lines: Script, **more: Any) -> dict[str, Any]:
    """What a worker with these settings opens, with a scripted model."""
    model = ScriptedProvider(lines)
    return {"settings": settings, "providers": {"house": model}, "agents": settings.core_agents(), **more}


def client(place: str) -> retinue.Retinue:
    return retinue.open(provider=ScriptedProvider(Script()), dialects=(), **at(place))


async def ended(cron_table: CronTable, name: str) -> str:
    """The status of a job's only execution, once it has ended."""
    async with asyncio.timeout(PATIENCE):
        while True:
            history = await cron_table.history(name)
            if history and history[0].status not in ("running", "interrupted"):
                (entry,) = history
                return entry.status
            await asyncio.sleep(0.02)


async def test_a_due_job_is_started_once_by_one_of_all_workers(place: str, settings: Settings) -> None:
    lines = Script().play("writer", says("All is well."))
    one = opening(settings, lines)
    async with client(place) as r:
        cron_table = CronTable(r.supervisor.key_value)
        await cron_table.add(job("report", ask("writer")))
        async with worker(place, Script(), **one), worker(place, Script(), **one), worker(place, Script(), **one):
            assert await ended(cron_table, "report") == "ok"

        (run,) = engine_of(r).store.runs(RunQuery())
        (entry,) = await cron_table.history("report")
        assert (entry.run_id, entry.due) == (run.run_id, PAST)
        assert len(one["providers"]["house"].asked) == 1
        assert (await cron_table.table()).claims == {}


async def test_another_worker_goes_on_with_a_job_whose_worker_stops(place: str, settings: Settings) -> None:
    hold = asyncio.Event()

    @retinue.tool(kind="pure", timeout=None)
    async def look() -> str:
        """Look."""
        await hold.wait()
        return "seen"

    lines = Script().play("looker", calls("look"), says("done"))
    one = opening(settings, lines, tools=(look,))
    async with client(place) as r:
        cron_table = CronTable(r.supervisor.key_value)
        await cron_table.add(job("look", ask("looker")))
        async with worker(place, Script(), **one) as first:
            await until(lambda: len(one["providers"]["house"].asked) == 1)
            first.stop.set()
            await until(lambda: any("stopping" in line for line in first.reports))
            hold.set()
        async with worker(place, Script(), **one):
            assert await ended(cron_table, "look") == "ok"

        assert len(engine_of(r).store.runs(RunQuery())) == 1
        assert [asked.turn for asked in one["providers"]["house"].asked] == [1, 2]


async def test_jobs_that_need_more_than_the_settings_of_the_worker_are_left_to_a_daemon(
    tmp_path: Path, settings: Settings
) -> None:
    jobs = (
        job("command", ShellWork(command="touch never")),
        job("address", ask("writer"), JobPlace(base_url="http://evil.example/v1", config="/etc/evil.toml")),
        job("key", ask("writer"), JobPlace(api_key_env="SECRET")),
        job("agent", ask("nobody")),
        job("provider", ask("writer"), JobPlace(provider="other")),
    )
    lines = Script().play("writer", says("All is well."))
    async with client(str(tmp_path)) as r:
        cron_table = CronTable(r.supervisor.key_value)
        for each in jobs:
            await cron_table.add(each)
        await cron_table.add(job("mine", ask("writer"), JobPlace(workspace="/nowhere", config="/etc/evil.toml")))
        async with worker(str(tmp_path), Script(), **opening(settings, lines)) as running:
            assert await ended(cron_table, "mine") == "ok"
            table = await cron_table.table()

        assert [(each.name, table.jobs[each.name].next_run) for each in jobs] == [(each.name, PAST) for each in jobs]
        reasons = {line for line in running.reports if "left alone" in line}
        assert reasons == {
            "job command: left alone: commands are executed by a cron daemon",
            "job address: left alone: its address, key or sandbox flag is used by a cron daemon alone",
            "job key: left alone: its address, key or sandbox flag is used by a cron daemon alone",
            "job agent: left alone: no agent named 'nobody' here",
            "job provider: left alone: no provider named 'other' here",
        }
