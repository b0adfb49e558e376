"""Windows are kept in the store: they outlive processes, and all runs that name one share it."""

from __future__ import annotations

import asyncio

from retinue.core.agent import RunSpec
from retinue.core.budget import Caps, Window
from retinue.core.run import Outcome
from retinue.core.usage import Usage
from retinue.engine import SpawnRequest
from retinue.providers.scripted import calls, hangs, says
from retinue.testing.harness import Harness
from retinue.tools.function import tool

HOUR = Window("researcher/hour", 3600.0, Caps(tokens=100))


@tool(kind="pure")
async def look(where: str) -> str:
    """Look somewhere."""
    return "nothing"


async def start(harness: Harness, task: str) -> str:
    run_spec = RunSpec(agent="main", offered=("look",), provider="custom", model="m", max_output=20)
    spawn_request = SpawnRequest(agent="main", run_spec=run_spec, task=task, windows=(HOUR,))
    return (await harness.retinue.supervisor.spawn(spawn_request, session_id="session")).run_id


async def ended(harness: Harness, run_id: str) -> Outcome:
    return await harness.retinue.handle(run_id).wait()


async def test_runs_share_a_named_window_and_time_frees_it() -> None:
    async with Harness(dialects=(), tools=[look]) as r:
        r.script("main", says("one", usage=Usage(80, 5)), task="first")
        r.script("main", says("three"), task="third")
        first = await ended(r, await start(r, "first"))
        second = await ended(r, await start(r, "second"))
        await asyncio.sleep(3600)
        third = await ended(r, await start(r, "third"))

    assert (first.text, third.text) == ("one", "three")
    assert (second.result, second.reason, second.turns) == ("exhausted", "window", 0)
    assert second.limit is not None
    assert (second.limit.used, second.limit.limit) == (85, 100)


async def test_a_window_is_kept_across_processes_and_counts_once() -> None:
    async with Harness(dialects=(), tools=[look]) as r:
        r.script("main", calls("look", where="here"), hangs(), task="first")
        r.script("main", says("fits", usage=Usage(10, 5)), task="second")
        run_id = await start(r, "first")
        await asyncio.sleep(1)
        spent = r.retinue.supervisor.left(run_id).tokens
        await r.restart()
        await asyncio.sleep(1)
        after = r.retinue.supervisor.left(run_id).tokens
        await r.retinue.cancel(run_id)
        second = await ended(r, await start(r, "second"))

    assert spent == after
    assert second.text == "fits"


async def test_a_window_is_loaded_by_a_process_without_its_runs() -> None:
    async with Harness(dialects=(), tools=[look]) as r:
        r.script("main", says("one", usage=Usage(80, 5)), task="first")
        await ended(r, await start(r, "first"))
        await r.restart()
        second = await ended(r, await start(r, "second"))

    assert (second.result, second.reason) == ("exhausted", "window")
