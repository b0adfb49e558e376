"""Runs that another process drives, on SQLite and PostgreSQL: streams, states, the page, a restart of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import retinue
from retinue.app.handle import RunHandle
from retinue.engine.driver_table import DriverTable
from retinue.engine.store_access import StoreReader
from retinue.engine.tree_events import TreeReader
from retinue.testing import Script, ScriptedProvider, calls, says
from tests.web.browser import browser
from tests.web.harness import ACT, Site, site

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(600)]

LINES = {"main": [{"say": "unused"}]}


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the store of the server, in a file or at a PostgreSQL server."""
    url = f"sqlite:{folder / 'runs.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    monkeypatch.setenv("RETINUE_STORE", url)
    return url


class Other:
    """Another process at work: a retinue of its own on the same store, whose tools wait for `go`."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.opened: list[retinue.Retinue] = []

    @property
    def retinue(self) -> retinue.Retinue:
        return self.opened[0]

    async def spawn(self) -> RunHandle:
        return await self.retinue.spawn("Why is it slow?")


@asynccontextmanager
async def other_process(place: str) -> AsyncGenerator[Other]:
    """A root that delegates and waits, and a child that works before and after `go`."""
    other = Other()

    @retinue.tool(kind="pure", timeout=None)
    async def look() -> str:
        """Look."""
        await other.go.wait()
        return "seen"

    script = Script().play("main", calls("run_agent", agent="dig", task="Find it."), says("It was the pool."))
    script.play("dig", calls("look"), says("Found it."))
    agents = [retinue.Agent(name="dig", tools=("look",))]
    opened = retinue.open(
        provider=ScriptedProvider(script), store=place, dialects=["native"], agents=agents, tools=[look]
    )
    async with opened as r:
        other.opened.append(r)
        yield other


async def stored(server: Site, run_id: str) -> dict[str, Any]:
    """The ids and events of a tree as the store has them."""
    found: dict[str, Any] = {}
    for view in await server.client.tree(run_id):
        for seq, event in await server.retinue.supervisor.stored.events(view.run_id):
            found[f"{view.run_id}/{seq}"] = type(event).__name__
    return found


async def test_a_stream_has_the_events_of_a_tree_that_another_process_drives(folder: Path, place: str) -> None:
    async with other_process(place) as other, site(folder, LINES) as server:
        run = await other.spawn()
        following = asyncio.create_task(server.events(f"/api/v1/runs/{run.run_id}/events?tree=1"))
        changes = asyncio.create_task(server.named_events(f"/api/v1/runs/{run.run_id}/changes"))
        async for item in other.retinue.events(run, tree=True):
            if item.parent is not None and type(item.event).__name__ == "ReplyReceived":
                break
        other.go.set()
        await run.wait()
        events, named = await following, await changes
        known = await stored(server, run.run_id)

    assert [number for number, _ in events] == list(dict.fromkeys(number for number, _ in events))
    assert {number for number, _ in events} == known.keys()
    rows = [row for name, value in named if name == "rows" for row in value]
    last = {row["run_id"]: row["outcome"] for row in rows}
    texts = [entry.get("text") for name, value in named if name == "entries" for entry in value["items"]]
    assert (list(last.values()), texts.count("It was the pool."), named[-1]) == (["completed"] * 2, 1, ("end", {}))


async def test_streams_have_an_end_that_arrives_during_the_search_for_its_driver(
    folder: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_driven, release, held = TreeReader._is_driven, asyncio.Event(), list[TreeReader]()
    both_are_held = asyncio.Event()

    async def after_the_end(self: TreeReader, stored: StoreReader, drivers: DriverTable) -> bool:
        held.append(self)
        if len(held) == 2:
            both_are_held.set()
        await release.wait()
        return await is_driven(self, stored, drivers)

    monkeypatch.setattr(TreeReader, "_is_driven", after_the_end)
    async with other_process(place) as other, site(folder, LINES) as server:
        run = await other.retinue.spawn("Why is it slow?", detached=True)
        following = asyncio.create_task(server.events(f"/api/v1/runs/{run.run_id}/events?tree=1"))
        changes = asyncio.create_task(server.named_events(f"/api/v1/runs/{run.run_id}/changes"))
        await asyncio.wait_for(both_are_held.wait(), 120)
        other.go.set()
        await (await other.retinue.resume(run.run_id)).wait()
        release.set()
        events, named = await following, await changes
        known = await stored(server, run.run_id)

    assert {number for number, _ in events} == known.keys()
    texts = [entry.get("text") for name, value in named if name == "entries" for entry in value["items"]]
    assert (texts.count("It was the pool."), named[-1]) == (1, ("end", {}))


async def test_a_parent_of_another_process_is_shown_as_waiting_with_the_calls_of_both(folder: Path, place: str) -> None:
    async with other_process(place) as other, site(folder, LINES) as server:
        run = await other.spawn()
        async for item in other.retinue.events(run, tree=True):
            if item.parent is not None and type(item.event).__name__ == "ReplyReceived":
                break
        async with aclosing(server.rows(run.run_id)) as changes:
            await anext(rows async for rows in changes if "calls look" in {row["doing"] for row in rows.values()})
        tree = (await server.get(f"/api/v1/runs/{run.run_id}/tree")).json["items"]
        async with aclosing(server.rows(run.run_id)) as changes:
            first = await anext(changes)
        listed = (await server.get("/api/v1/runs")).json["items"][0]
        shown = (await server.get(f"/api/v1/runs/{run.run_id}")).json
        other.go.set()
        await run.wait()

    assert [(each["state"], each["waiting_for"]) for each in (listed, shown)] == [("waiting", "child")] * 2
    for rows in (tree, first.values()):
        assert [(row["agent"], row["doing"]) for row in rows] == [("main", "calls run_agent"), ("dig", "calls look")]


async def lines_of(url: str, last: str, wanted: int) -> list[str]:
    """The ids of the first events of a stream, which is left then."""
    headers = {"Authorization": f"Bearer {ACT}", **({"Last-Event-ID": last} if last else {})}
    found: list[str] = []
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        async for line in answer.content:
            if line.startswith(b"id: "):
                found.append(line[4:].decode().strip())
                if len(found) == wanted:
                    break
    return found


async def test_a_stream_goes_on_at_the_next_server(folder: Path, place: str) -> None:
    async with other_process(place) as other:
        async with site(folder, LINES) as server:
            run = await other.spawn()
            path = f"/api/v1/runs/{run.run_id}/events?tree=1"
            first = await asyncio.wait_for(lines_of(server.url + path, "", 3), 120)
        other.go.set()  # while no server runs
        await run.wait()
        async with site(folder, LINES) as server:
            rest = [number for number, _ in await server.events(path, last=first[-1])]
            known = await stored(server, run.run_id)

    assert {*first, *rest} == known.keys()
    of_last = [number for number in rest if number.startswith(first[-1].partition("/")[0])]
    assert first[-1] not in of_last, "what the client has of that run is not sent again"


async def test_a_page_follows_and_cancels_a_tree_of_another_process(folder: Path, place: str) -> None:
    async with other_process(place) as other, browser() as chrome, site(folder, LINES) as server:
        run = await other.spawn()
        page = await chrome.page()
        await page.open(f"{server.url}/?token={ACT}")
        await page.click(".runs a.row", text="Why is it slow?")
        await page.until("document.querySelectorAll('.tree a.row').length === 2")
        await page.has("waiting for child", within="article h2")
        await page.has("calls look", within=".tree")
        await page.click("article button", text="Cancel")
        await page.click("dialog #accept")
        await page.has("cancelled", within="article h2")
        await page.until(
            "[...document.querySelectorAll('.tree .state')].every((one) => one.textContent === 'cancelled')"
        )
        outcome = await run.wait()

    assert (outcome.result, page.problems) == ("cancelled", [])


async def test_a_question_of_another_process_has_the_diff_of_what_it_writes(folder: Path, place: str) -> None:
    (folder / "a.txt").write_text("old\nline\n")
    write = calls("file_write", path="a.txt", content="new\nline\n")
    model = ScriptedProvider(Script().play("main", write, says("Written.")))
    opened = retinue.open(provider=model, store=place, approvals="wait")
    async with opened as r, site(folder, LINES) as server:
        run = await r.spawn("Write", tools=("file_write",))
        async with aclosing(server.rows(run.run_id)) as changes:
            await anext(rows async for rows in changes if rows[run.run_id]["waiting_for"] == "approval")
        (question,) = (await server.get("/api/v1/approvals")).json["items"]
        answer = await server.post(f"/api/v1/approvals/{question['id']}", {"allow": True})
        outcome = await run.wait()

    assert question["details"] == 'path: "a.txt" (the file exists)\n- old\n+ new\n  line'
    assert (answer.json["first"], outcome.text) == (True, "Written.")


async def test_a_relative_workspace_of_another_process_is_not_looked_for_here(folder: Path, place: str) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "a.txt").write_text("a file of this process\n")
    write = calls("file_write", path="a.txt", content="new\n")
    model = ScriptedProvider(Script().play("dig", write, says("Written.")))
    agents = [retinue.Agent(name="dig", workspace="below", tools=("file_write",))]
    async with retinue.open(provider=model, store=place, approvals="wait", agents=agents) as r:
        async with site(folder, LINES) as server:
            run = await r.spawn("Write", agent="dig")
            async with aclosing(server.rows(run.run_id)) as changes:
                await anext(rows async for rows in changes if rows[run.run_id]["waiting_for"] == "approval")
            (question,) = (await server.get("/api/v1/approvals")).json["items"]
        await run.cancel()

    assert question["details"] == 'path: "a.txt" (not compared with what is there)\n+ new'
