"""How fast the page draws ten thousand runs and a tree of two thousand: measured, printed, compared with loose bounds.

`make stress` runs these tests; `pytest -s` shows the figures. `bench/pages.py` measures what pages cost the engine, and
how soon they show an event.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from bench.pages import SETTINGS, team
from tests.web.browser import browser
from tests.web.harness import ACT, Site, site

pytestmark = [pytest.mark.real_time, pytest.mark.stress, pytest.mark.timeout(900)]


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
    async with site(folder, team(2000, lives=0.0)) as server, browser() as chrome:
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
