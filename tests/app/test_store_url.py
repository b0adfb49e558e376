"""`retinue.open(store=...)` with an address: which store it is, and runs and memories on PostgreSQL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import retinue
from retinue.app.open import open_read_only
from retinue.app.state_folder import open_url
from retinue.core.errors import BadInput
from retinue.core.events import CallReturned
from retinue.dispatch.cron.jobs import ClaimOwner, Job, ShellWork
from retinue.dispatch.cron.schedule import At
from retinue.dispatch.cron.table import CronTable
from retinue.providers.scripted import Line, Script, ScriptedProvider, calls, says
from retinue.store.postgres import PostgresMemoryTables, parse_address
from retinue.tools.memory.postgres import PostgresMemory
from tests.tools.tool_calls import StoreKeyValue


def model(*lines: Line) -> ScriptedProvider:
    return ScriptedProvider(Script().play("main", *lines))


@pytest.mark.real_time
async def test_a_run_on_postgres_is_seen_by_another_process(postgres_url: str) -> None:
    async with retinue.open(provider=model(says("42")), store=postgres_url, session="s") as r:
        run = await r.spawn("What is 6 times 7?")
        outcome = await run.wait()

    async with open_read_only(store=open_url(postgres_url)) as client:
        (row,) = await client.list()
    assert (outcome.text, row.run_id, row.state) == ("42", run.run_id, "ended")


@pytest.mark.real_time
async def test_agents_remember_in_the_postgres_store(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path))
    store = calls("memory_store", key="style", content="Write short sentences.")
    async with retinue.open(
        provider=model(store, calls("memory_recall", query="style sentences"), says("Done.")),
        tools=["memory_store", "memory_recall"],
        store=postgres_url,
    ) as r:
        outcome = await r.run("Remember my style.")

    memories = PostgresMemory(PostgresMemoryTables(parse_address(postgres_url))).all()
    assert outcome.text == "Done."
    assert [(memory.agent, memory.key, memory.content) for memory in memories] == [
        ("main", "style", "Write short sentences.")
    ]
    assert not (tmp_path / "memory.db").exists()


@pytest.mark.real_time
@pytest.mark.parametrize("where", ["settings", "agent"])
async def test_memory_with_the_backend_postgres_is_in_the_database_of_the_store(
    postgres_url: str, tmp_path: Path, where: str
) -> None:
    settings = tmp_path / "retinue.toml"
    section = "memory" if where == "settings" else "agents.main.memory"
    settings.write_text(f'[agents.main]\ntools = ["memory_store"]\n\n[{section}]\nbackend = "postgres"\n')
    remember = calls("memory_store", key="style", content="Write short sentences.")
    async with retinue.open(
        provider=model(remember, says("Done.")), tools=["memory_store"], store=postgres_url, config=settings
    ) as r:
        assert (await r.run("Remember my style.", agent="main" if where == "agent" else None)).text == "Done."

    (memory,) = PostgresMemory(PostgresMemoryTables(parse_address(postgres_url))).all()
    assert (memory.agent, memory.key) == ("main", "style")


async def test_the_backend_postgres_without_a_postgres_store_is_an_error() -> None:
    with pytest.raises(BadInput, match=r"the memory backend postgres .* name one with --store"):
        async with retinue.open(
            provider=model(says("Done.")),
            tools=["memory_store"],
            store="memory:",
            tool_options=retinue.ToolOptions(memory="postgres"),
        ) as r:
            await r.run("Remember my style.")


@pytest.mark.real_time
async def test_processes_share_context_through_the_postgres_store(postgres_url: str) -> None:
    write = calls("shared_context", action="write", key="finding", value="the pool")
    read = calls("shared_context", action="read", key="finding")
    async with (
        retinue.open(provider=model(write, says("1")), store=postgres_url, session="s", dialects=["spec"]) as first,
        retinue.open(provider=model(read, says("2")), store=postgres_url, session="s", dialects=["spec"]) as second,
    ):
        await first.run("Write.")
        run = await second.spawn("Read.")
        await run.wait()
        results = [event.text async for event in run.events() if isinstance(event, CallReturned)]

    assert len(results) == 1
    assert "the pool" in results[0]


@pytest.mark.real_time
async def test_a_due_job_is_claimed_by_one_of_several_processes(postgres_url: str) -> None:
    due = Job(name="j", creation_id="1", schedule=At(at=10.0), work=ShellWork(command="true"), next_run=10.0)
    stores = [open_url(postgres_url) for _ in range(4)]
    tables = [CronTable(StoreKeyValue(store)) for store in stores]
    await tables[0].add(due)

    claims = [
        table.claim_due(now=11.0, owner=ClaimOwner(f"host{n}", "1"), max_running=9) for n, table in enumerate(tables)
    ]
    verdicts = await asyncio.gather(*(asyncio.to_thread(asyncio.run, claim) for claim in claims))
    found = [each.claims for each in verdicts]

    assert sorted(map(len, found)) == [0, 0, 0, 1]
    for store in stores:
        store.close()


@pytest.mark.real_time
async def test_the_variable_names_the_store_unless_a_home_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_STORE", f"sqlite:{tmp_path}/variable/runs.db")
    async with retinue.open(provider=model(says("1"))) as r:
        await r.run("One.")
    async with retinue.open(provider=model(says("2")), home=tmp_path / "home") as r:
        await r.run("Two.")

    assert (tmp_path / "variable" / "runs.db").exists()
    assert (tmp_path / "home" / "retinue.db").exists()


async def test_a_store_in_memory_has_an_address() -> None:
    async with retinue.open(provider=model(says("42")), store="memory:") as r:
        assert (await r.run("What is 6 times 7?")).text == "42"


@pytest.mark.real_time
async def test_the_settings_name_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETINUE_STORE", raising=False)
    settings = tmp_path / "retinue.toml"
    settings.write_text('[store]\nurl = "sqlite:data/runs.db"\n')

    async with retinue.open(provider=model(says("42")), config=settings) as r:
        await r.run("What is 6 times 7?")

    assert (tmp_path / "data" / "runs.db").exists()


@pytest.mark.parametrize("address", ["runs.db", "mysql://me:hidden@db/x", "sqlite:", "postgresql://db/x?schema=A"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(BadInput) as refused:
        retinue.open(provider=model(says("42")), store=address)

    assert "hidden" not in str(refused.value)
