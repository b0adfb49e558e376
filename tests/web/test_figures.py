"""How fast the page is, and what it costs: measured at full size, printed, and compared with loose bounds.

`make stress` runs these tests; `pytest -s` shows the figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from retinue.events import ReplyReceived
from tests.web.browser import browser
from tests.web.harness import ACT, Site, site

pytestmark = [pytest.mark.real_time, pytest.mark.stress, pytest.mark.timeout(900)]

SETTINGS = '[agents.dig]\ndescription = "Digs"\n[spec]\nextensions = ["wait"]\nmax_running = 2000\n'


def report(text: str) -> None:
    print(f"\nmeasured: {text}")


async def many_runs(server: Site, number: int) -> None:
    """Runs that have ended, started a hundred at a time."""
    for first in range(0, number, 100):
        handles = [await server.retinue.spawn(f"task {first + place}") for place in range(min(100, number - first))]
        await server.retinue.wait(*(handle.run_id for handle in handles))


SCROLL = """
new Promise((done) => {
  const box = document.querySelector('.runs'), begun = performance.now();
  let worst = 0, last = begun;
  (function step() {
    const now = performance.now(), text = document.querySelector('.counters').textContent;
    worst = Math.max(worst, now - last);
    last = now;
    box.scrollTop = box.scrollHeight;
    if (!text.startsWith('10000 runs') && now - begun < 60000) requestAnimationFrame(step);
    else done([text, worst, document.querySelectorAll('.runs a.row').length]);
  })();
})
"""


async def test_the_first_paint_of_ten_thousand_runs_and_a_scroll_through_them(folder: Path) -> None:
    async with site(folder, {"main": [{"say": "It is the pool."}]}) as server, browser() as chrome:
        await many_runs(server, 10_000)
        paints: list[float] = []
        page = await chrome.page()
        for _ in range(5):
            page = await chrome.page()
            began = time.perf_counter()
            await page.send("Page.navigate", url=f"{server.url}/?token={ACT}")
            await page.until("document.querySelectorAll('.runs a.row').length > 10")
            paints.append(time.perf_counter() - began)
        counters, worst, rows = await page.run(SCROLL)
    median = statistics.median(paints)
    report(f"first rows of 10,000 runs after {median:.3f} s (median of 5), at most {max(paints):.3f} s")
    report(f"scroll through 10,000 runs: longest frame {worst:.0f} ms, {rows} rows drawn")

    assert median < 1.0
    assert counters.startswith("10000 runs")
    assert rows < 200


TREE = """
new Promise((done) => {
  const box = document.querySelector('.tree'), begun = performance.now();
  let worst = 0, last = begun, steps = 0;
  (function step() {
    const now = performance.now();
    if (steps) worst = Math.max(worst, now - last);
    last = now;
    box.scrollTop = (++steps % 40) * box.scrollHeight / 40;
    if (steps < 200) requestAnimationFrame(step); else done([worst, box.querySelectorAll('a.row').length]);
  })();
})
"""


async def test_a_tree_of_two_thousand_children_is_drawn_at_once_and_scrolls(folder: Path) -> None:
    (folder / "retinue.toml").write_text(SETTINGS)
    async with site(folder, team(2000, every=0.0)) as server, browser() as chrome:
        asked = {"task": "All", "dialects": ["spec"], "tools": ["task_list"]}
        run_id = (await server.post("/api/v1/runs", asked)).json["run_id"]
        await server.retinue.wait(run_id)
        page = await chrome.page()
        await page.open(f"{server.url}/?token={ACT}")
        began = time.perf_counter()
        await page.run(f"location.hash = '#/runs/{run_id}'")
        await page.until("document.querySelector('.counts')?.textContent.startsWith('2001 runs')")
        drawn = time.perf_counter() - began
        worst, rows = await page.run(TREE)
        began = time.perf_counter()
        await page.run(f"location.hash = '#/runs/{run_id}/timeline'")
        await page.until("document.querySelectorAll('.span.model').length > 10")
        timeline = time.perf_counter() - began
    report(
        f"a tree of 2,000 children: {drawn:.2f} s to the first rows, longest frame {worst:.0f} ms, {rows} rows drawn"
    )
    report(f"its timeline after {timeline:.2f} s")

    assert rows < 200
    assert worst < 200


def team(children: int, *, every: float) -> dict[str, object]:
    """A root that starts many children in steps of fifty, and waits for them."""
    steps = [
        {
            "calls": [
                {"name": "subagent", "arguments": {"action": "spawn", "agent": "dig", "task": f"part {first + place}"}}
                for place in range(50)
            ]
        }
        for first in range(0, children, 50)
    ]
    ids = [f"t_{number:02d}" for number in range(1, children + 1)]
    wait = {"call": {"name": "subagent", "arguments": {"action": "wait", "task_ids": ids}}}
    read = {"name": "task_list"}
    child = [{"say": "one two", "call": read, "every": every}, {"say": "one two three", "every": every}]
    return {"main": [*steps, wait, {"say": "Done."}], "dig": child}


WATCH = """
window.seen = {};
new MutationObserver(() => {
  const now = Date.now() / 1000;
  for (const each of document.querySelectorAll('.entry.reply .markdown')) seen[each.textContent.trim()] ??= now;
}).observe(document.body, {childList: true, subtree: true});
0
"""


async def test_an_event_is_on_the_page_soon(folder: Path) -> None:
    """From the time of an event, as it is recorded, to the moment when the page has it in its document."""
    replies: list[object] = [
        {"say": f"reply {n}", "call": {"name": "file_read", "arguments": {"path": f"{n}.txt"}}, "every": 0.15}
        for n in range(45)
    ]
    async with site(folder, {"main": [*replies, {"say": "end"}]}) as server, browser() as chrome:
        page = await chrome.page()
        await page.open(f"{server.url}/?token={ACT}")
        asked = {"task": "Count", "tools": ["file_read"]}
        run_id = (await server.post("/api/v1/runs", asked)).json["run_id"]
        await page.run(WATCH)
        await page.run(f"location.hash = '#/runs/{run_id}'")
        await server.retinue.wait(run_id)
        await page.has("end", within=".conversation")
        seen = await page.run("seen")
        times = [
            (event.reply.message.text, event.at)
            for event in await server.client.events(run_id)
            if isinstance(event, ReplyReceived)
        ]
    delays = sorted(seen[text] - at for text, at in times[5:] if text in seen)
    median, p95 = statistics.median(delays), delays[int(len(delays) * 0.95)]
    report(f"{len(delays)} events are on the page after {median * 1000:.0f} ms (median), {p95 * 1000:.0f} ms (p95)")

    assert len(delays) > 30
    assert p95 < 0.2


class Process:
    """`retinue serve` in a process of its own, so that its CPU time is that of the engine and the server alone."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, session: aiohttp.ClientSession) -> None:
        self._process = process
        self.url = url
        self._session = session

    def cpu(self) -> float:
        """CPU seconds that the process has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def post(self, path: str, body: object) -> Any:
        async with self._session.post(f"{self.url}{path}", json=body) as answer:
            return await answer.json()

    async def get(self, path: str) -> Any:
        async with self._session.get(f"{self.url}{path}") as answer:
            return await answer.json()

    @asynccontextmanager
    async def followed(self, path: str, number: int) -> AsyncGenerator[list[int]]:
        """Clients that read a stream, as open pages do; the list counts the bytes of each."""
        sizes = [0] * number

        async def read(place: int) -> None:
            with suppress(aiohttp.ClientError):
                timeout = aiohttp.ClientTimeout(total=None)
                async with self._session.get(f"{self.url}{path}", timeout=timeout) as answer:
                    async for part in answer.content.iter_any():
                        sizes[place] += len(part)

        tasks = [asyncio.create_task(read(place)) for place in range(number)]
        try:
            yield sizes
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def ended(self, run_id: str) -> Any:
        while True:
            run = await self.get(f"/api/v1/runs/{run_id}")
            if run["outcome"] is not None:
                return run
            await asyncio.sleep(0.25)


@asynccontextmanager
async def process(folder: Path, lines: object) -> AsyncGenerator[Process]:
    (folder / "retinue.toml").write_text(SETTINGS)
    (folder / "lines.json").write_text(json.dumps(lines))
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "retinue", "serve", "--port", "0", "--provider", "scripted", "--model", "lines.json",
        cwd=folder, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert started.stderr is not None
    try:
        url = ""
        while not url.startswith("http"):
            url = (await asyncio.wait_for(started.stderr.readline(), 30)).decode().strip()
        address, _, token = url.partition("/?token=")
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Process(started, address, session)
    finally:
        started.send_signal(signal.SIGINT)
        await started.wait()


async def tree_cost(folder: Path, children: int, pages: int, *, every: float, name: str) -> tuple[float, float]:
    """CPU seconds of the server and seconds that a tree takes while this many pages follow it."""
    place = folder / name
    place.mkdir()
    os.environ["RETINUE_HOME"] = str(place / "home")
    async with process(place, team(children, every=every)) as server:
        started = await server.post("/api/v1/runs", {"task": "All", "dialects": ["spec"], "tools": ["task_list"]})
        run_id = started["run_id"]
        before, begun = server.cpu(), time.perf_counter()
        async with server.followed(f"/api/v1/runs/{run_id}/changes", pages) as sizes:
            run = await server.ended(run_id)
            took = time.perf_counter() - begun
            used = server.cpu() - before
        assert (run["outcome"], run["error"]) == ("completed", "")
        assert len((await server.get(f"/api/v1/runs/{run_id}/tree"))["items"]) == children + 1
        assert all(sizes)
    return used, took


async def test_following_a_thousand_children_costs_the_engine_little(folder: Path) -> None:
    alone, took = await tree_cost(folder, 1000, 0, every=5.0, name="alone")
    followed, took_followed = await tree_cost(folder, 1000, 1, every=5.0, name="followed")
    share = (followed - alone) / took_followed * 100
    report(
        f"a tree of 1,000 children: {alone:.2f} CPU seconds in {took:.1f} s; followed by one page {followed:.2f} in "
        f"{took_followed:.1f} s, {share:.1f} % of a core"
    )

    assert share < 5


async def test_two_hundred_open_pages_do_not_slow_runs_down(folder: Path) -> None:
    alone = [(await tree_cost(folder, 100, 0, every=4.0, name=f"alone{n}"))[1] for n in range(2)]
    followed = [(await tree_cost(folder, 100, 200, every=4.0, name=f"followed{n}"))[1] for n in range(2)]
    slower = (min(followed) / min(alone) - 1) * 100
    report(f"a tree of 100 children: {min(alone):.2f} s; with 200 pages {min(followed):.2f} s, {slower:+.1f} %")

    assert slower < 10
