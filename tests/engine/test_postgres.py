"""Runs on PostgreSQL: wake-ups by notifications and by polls, and a server that is restarted meanwhile."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

import pytest

import retinue
from retinue.engine import driver
from retinue.providers.scripted import Script, ScriptedProvider, calls, says
from retinue.store.postgres import PostgresStore
from tests.postgres import running_server

pytestmark = pytest.mark.real_time

PATIENCE = 30.0


@pytest.mark.parametrize("by", ["notification", "poll"])
async def test_a_message_of_another_process_reaches_a_run(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "notification":
        monkeypatch.setattr(driver, "POLL_INTERVAL", 600.0)
    else:
        monkeypatch.setattr(PostgresStore, "on_change", None)
    lines = Script().play("main", says("hello"), says("I am fine"))
    async with (
        retinue.open(provider=ScriptedProvider(lines), store=postgres_url) as first,
        retinue.open(provider=ScriptedProvider(Script()), store=postgres_url) as second,
    ):
        run = await first.spawn("chat", keep_alive=True)
        async for event in run.events():
            if type(event).__name__ == "ExchangeEnded":
                break

        await second.send(run.run_id, "how are you?")
        await second.handle(run.run_id).close()
        async with asyncio.timeout(PATIENCE):
            outcome = await run.wait()
            seen = await second.handle(run.run_id).wait()

    assert (outcome.text, outcome.exchanges) == ("I am fine", 2)
    assert seen == outcome


async def test_a_run_goes_on_when_the_server_is_restarted_during_its_calls() -> None:
    with running_server(synchronous_commit="on") as server:
        stops = (signal.SIGINT, signal.SIGQUIT, signal.SIGINT)
        restarts: list[signal.Signals] = []

        @retinue.tool(kind="pure")
        async def restart(how: str) -> str:
            """Restart the server."""
            await asyncio.to_thread(server.restart, signal.Signals[how])
            restarts.append(signal.Signals[how])
            return f"after {how}"

        model = ScriptedProvider(
            Script().play("main", *(calls("restart", how=how.name) for how in stops), says("done"))
        )
        async with retinue.open(
            provider=model, store=server.url("mine"), tools=[restart], dialects=(), lease=30.0
        ) as r:
            outcome = await r.run("Go on.")

        assert (outcome.result, outcome.text, outcome.turns) == ("completed", "done", 4)
        assert restarts == list(stops)
        assert Counter((asked.path, asked.turn) for asked in model.asked).most_common(1)[0][1] == 1
