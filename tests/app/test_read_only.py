"""The read-only client of a store, and detached runs."""

from __future__ import annotations

import pytest

from retinue.app.open import open_read_only
from retinue.app.run_spec import LaunchConfig
from retinue.core.errors import SessionClosed, UnknownName
from retinue.core.messages import TextDelta
from retinue.providers.scripted import Script, ScriptedProvider, hangs, says
from retinue.store.memory.store import MemoryStore
from retinue.testing.harness import Harness


async def test_a_read_only_client_registers_no_driver_and_starts_nothing() -> None:
    store = MemoryStore()
    async with Harness(store=store, dialects=()) as harness:
        harness.retinue.launch_config = LaunchConfig(model="m", workspace="/somewhere")
        run = await harness.retinue.spawn("Wait.", detached=True)
        drivers = store.drivers()
        client = open_read_only(store=store)

        (view,) = await client.list()
        assert (view.run_id, view.state, view.turns) == (run.run_id, "interrupted", 0)
        assert await client.look(run.run_id) == view
        assert await client.tree(run.run_id) == [view]
        assert [type(event).__name__ for event in await client.events(run.run_id)] == ["RunAccepted"]
        assert await client.launch_config(run.run_id) == LaunchConfig(model="m", workspace="/somewhere")
        assert await client.driver_of(run.run_id) is None
        assert store.drivers() == drivers


async def test_unknown_ids_raise_unknown_name() -> None:
    client = open_read_only(store=MemoryStore())

    with pytest.raises(UnknownName):
        await client.look("unknown")
    with pytest.raises(UnknownName):
        await client.launch_config("unknown")


async def test_a_detached_run_starts_on_resume() -> None:
    provider = ScriptedProvider(Script().play("main", says("Begun.")))
    async with Harness(provider=provider, dialects=()) as harness:
        run = await harness.retinue.spawn("Wait.", detached=True)
        assert (await run.look()).turns == 0

        resumed = await harness.retinue.resume(run.run_id)

        assert (await resumed.wait()).text == "Begun."


async def test_driver_of_returns_the_live_driver() -> None:
    store = MemoryStore()
    async with Harness(store=store, dialects=()) as harness:
        harness.script("main", hangs("Let me th"))
        run = await harness.retinue.spawn("Think.")
        async for event in run.events():
            if isinstance(event, TextDelta):
                break
        client = open_read_only(store=store)

        driver = await client.driver_of(run.run_id)

        assert driver is not None
        assert driver in store.drivers()
        await run.cancel()
        await run.wait()


async def test_a_root_run_can_be_spawned_in_an_archived_session_and_not_in_a_deleted_one() -> None:
    async with Harness(dialects=()) as harness:
        harness.script("main", says("Read."))
        await harness.retinue.sessions.archive("session")

        assert (await harness.run("Read it.")).text == "Read."

        await harness.retinue.sessions.delete("session")
        with pytest.raises(SessionClosed):
            await harness.retinue.spawn("Wait.", detached=True)
