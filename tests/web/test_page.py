"""The page in a real browser: list, tree, conversation, timeline, approvals, actions, search, themes, screens."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from retinue.cli.runs.html_page import ExportedRun
from retinue.cli.runs.html_page import page as exported
from retinue.web import routes
from retinue.web.static_files import SCRIPTS, TYPES
from tests.web.browser import Browser, Page, browser
from tests.web.harness import ACT, READ, Site, site

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(600)]

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
ANSWER = (
    "# Cause\n\nThe **pool** has `5` connections.\n\n- one\n- two\n\n```python\nprint('hi')\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    f"{HOSTILE} [bad](javascript:document.title='owned') [worse](data:text/html,x) [good](https://example.org/x)"
)
TEAM: Mapping[str, Any] = {
    "main": [
        {
            "say": "Let me look.",
            "think": "First the logs.",
            "calls": [
                {"name": "subagent", "arguments": {"action": "spawn", "agent": "dig", "task": f"Read logs {HOSTILE}"}},
                {"name": "subagent", "arguments": {"action": "spawn", "agent": "slow", "task": "Look at the pool"}},
            ],
        },
        {"call": {"name": "subagent", "arguments": {"action": "wait", "task_ids": ["t_01"]}}},
        {"call": {"name": "file_write", "arguments": {"path": "a.txt", "content": "new\nline\n"}}},
        {"say": ANSWER},
        {"say": "Once more: the pool."},
    ],
    "dig": [{"say": "one two three", "every": 0.05}],
    "slow": [{"say": "one two three", "every": 60.0}],
}
SETTINGS = """
[agents.dig]
description = "Digs"
[agents.slow]
description = "Slow"
[agents.short]
max_turns = 2
tools = ["task_list"]
[spec]
extensions = ["wait"]
"""


class Open(NamedTuple):
    """A server and a page that is on it."""

    server: Site
    page: Page
    chrome: Browser


@asynccontextmanager
async def opened(folder: Path, lines: Mapping[str, Any], *, token: str = ACT) -> AsyncGenerator[Open]:
    """A browser on the list of a server; no script may have failed, and no policy been broken, at the end."""
    (folder / "retinue.toml").write_text(SETTINGS)
    async with browser() as chrome, site(folder, lines) as server:
        page = await chrome.page()
        await page.open(f"{server.url}/?token={token}")
        yield Open(server, page, chrome)
        assert page.problems == []
        assert {address.split("/")[2] for address in page.requests if address.startswith("http")} == {
            f"127.0.0.1:{server.port}"
        }


async def parked_tree(server: Site, folder: Path) -> str:
    """A tree whose root waits for a person."""
    (folder / "a.txt").write_text("old\nline\n")
    asked = {"task": "Why did it drop?", "dialects": ["spec"], "tools": ["file_write"], "session": "audit"}
    run_id = (await server.post("/api/v1/runs", asked)).json["run_id"]
    await server.parked(run_id)
    return run_id


async def go(page: Page, place: str) -> None:
    await page.run(f"location.hash = {json.dumps('#' + place)}")


SHOWN = {
    "": "document.querySelector('.panel .conversation .entry')",
    "timeline": "document.querySelector('.panel .span')",
    "costs": "document.querySelector('.panel .chart')",
    "usage": "document.querySelector('.usage h3')",
    "settings": "[...document.querySelectorAll('main h3')].some((each) => each.textContent === 'Sections')",
    "search": "document.querySelector('.hits')",
    "approvals": "document.querySelector('.approvals .entry')",
    "cron": "document.querySelector('main table, main .dim')",
}
"""What a page has once it is complete, by the last part of its address; that of a run is the empty one."""


async def visit(page: Page, place: str) -> None:
    """Go to a page and wait until it has been drawn."""
    await go(page, place)
    if place == "/":
        await page.until("document.querySelector('.runs a.row')")
    else:
        parts = place.split("/")
        await page.until(SHOWN[next((part for part in reversed(parts) if part in SHOWN and part), "")])


async def test_a_tree_is_followed_approved_and_read_afterwards(folder: Path) -> None:
    async with opened(folder, TEAM) as (server, page, _):
        run_id = await parked_tree(server, folder)
        await page.click(".runs a.row", text="Why did it drop?")
        await page.has("waiting for approval", within="article")
        await page.until("document.querySelectorAll('.tree a.row').length === 3")
        await page.has("calls the model", within=".tree")
        await page.has("Let me look.", within=".conversation")
        await page.click("a.button", text="Answer its question")
        await page.until("document.querySelector('.question .removed')?.textContent === '- old\\n'")
        await page.until("document.querySelector('.question .added')?.textContent === '+ new\\n'")
        await page.click(".question button", text="Allow")
        await server.retinue.wait(run_id)
        await go(page, f"/runs/{run_id}")
        await page.has("completed", within="article")
        await page.until("document.querySelector('.markdown pre.code code')?.textContent === \"print('hi')\"")
        await page.until("document.querySelectorAll('details.call').length === 4")
        await page.until("document.title.startsWith('completed')")
        await page.has("its parent has ended", within=".tree")
        shown = await page.run(
            "({title: document.title, links: [...document.querySelectorAll('.markdown a')].map((each) => each.href), "
            "bold: document.querySelector('.markdown strong').textContent, images: document.images.length, "
            "cells: [...document.querySelectorAll('.markdown td')].map((each) => each.textContent), "
            "calls: [...document.querySelectorAll('details.call')].map((each) => each.open)})"
        )

    assert shown["title"].startswith("completed: Why did it drop?")
    assert (shown["links"], shown["bold"], shown["images"]) == (["https://example.org/x"], "pool", 0)
    assert (shown["cells"], shown["calls"]) == (["1", "2"], [False] * 4)
    assert (folder / "a.txt").read_text() == "new\nline\n"


FOREIGN = """
(() => {
  const inside = [...document.querySelectorAll('main *')];
  const made = inside.filter((each) => each.matches('img, script, iframe, form, style, meta, svg, object, embed'));
  const handlers = inside.filter((each) => [...each.attributes].some((one) => one.name.startsWith('on')));
  const links = inside.filter((each) => each.matches('a') && !/^(https?:|mailto:|#)/.test(each.getAttribute('href')));
  return [made.length, handlers.length, links.length];
})()
"""
"""Elements, handlers and links in the page that no text may make."""


@pytest.mark.parametrize(
    "hostile",
    [
        HOSTILE,
        "[x](javascript:document.title='owned')",
        "<javascript:document.title='owned'>",
        "![x](https://evil.example/pixel.png)",
        "</script><script>document.title='owned'</script>",
        "<a href=javascript:document.title='owned' id=go>x</a><iframe srcdoc=x></iframe><form action=//evil.example>",
        "<style>*{background:url(//evil.example/x)}</style><meta http-equiv=refresh content='0;url=//evil.example'>",
        "[x](https://evil.example/\"onmouseover=\"document.title='owned')",
        "\u202eevil\u202c \u200b<svg onload=document.title='owned'>",
        "`" * 3000 + "**" * 3000 + "[" * 3000,
    ],
    ids=["img", "link", "autolink", "image", "script", "frames", "style", "quote", "direction", "marks"],
)
async def test_hostile_texts_names_and_titles_stay_texts(folder: Path, hostile: str) -> None:
    call = {"name": hostile[:60], "arguments": {hostile: hostile}}
    lines = {"main": [{"say": hostile, "think": hostile, "call": call}, {"say": hostile}]}
    async with opened(folder, lines) as (server, page, _):
        run_id = (await server.post("/api/v1/runs", {"task": hostile})).json["run_id"]
        await server.retinue.wait(run_id)
        for place in ("/", f"/runs/{run_id}/timeline", f"/search/{quote(hostile[:20], safe='')}", f"/runs/{run_id}"):
            await visit(page, place)
            assert await page.run(FOREIGN) == [0, 0, 0]
        await page.until("document.querySelectorAll('.entry').length >= 5")
        await page.run("for (const each of document.querySelectorAll('details')) each.open = true; 0")
        found = await page.run(FOREIGN)
        await page.until("document.title.includes(': ')")
        title = await page.run("document.title")

    assert found == [0, 0, 0]
    assert title.partition(": ")[0] == "completed"


async def test_a_timeline_has_bars_a_zoom_and_the_critical_path(folder: Path) -> None:
    async with opened(folder, TEAM) as (server, page, _):
        run_id = await parked_tree(server, folder)
        await server.retinue.approve(f"{run_id}/3/0")
        await server.ended(run_id)  # later the axis does not grow any more
        await go(page, f"/runs/{run_id}/timeline")
        await page.until("document.querySelectorAll('.span.model').length >= 6")
        await page.until("document.title.startsWith('completed')")
        kinds = await page.run("[...new Set([...document.querySelectorAll('.span')].map((each) => each.classList[1]))]")
        critical = await page.run("document.querySelectorAll('.span.critical').length")
        wide = await page.run("document.querySelector('.span.approval').offsetWidth")
        await page.run("document.querySelector('.times').focus()")
        whole = await page.run("document.querySelector('.axis').innerText")
        await page.key("+")
        await page.until(f"document.querySelector('.axis').innerText !== {json.dumps(whole)}")
        await page.key("0")
        await page.until(f"document.querySelector('.axis').innerText === {json.dumps(whole)}")
        labels = await page.run("[...document.querySelectorAll('.timeline .line')].map((each) => each.ariaLabel)")

    assert set(kinds) == {"model", "tool", "wait", "approval"}
    assert (critical >= 5, wide > 0) == (True, True)
    assert labels[0].startswith("main: 4 model")


async def test_a_run_is_started_messaged_cancelled_and_continued(folder: Path) -> None:
    lines = {"main": [{"say": "one two three", "every": 60.0}] * 2}
    async with opened(folder, lines) as (server, page, _):
        await page.click("button", text="New run")
        await page.type("dialog #answer", "Count to three")
        await page.click("dialog #accept")
        await page.has("working", within="article")
        await page.has("Reply in progress", within=".conversation")
        await page.type(".say", "Faster!")
        await page.click("article button", text="Send")
        await page.until("document.querySelector('.say').value === ''")
        await page.click("article button", text="Cancel")
        await page.click("dialog #accept")
        await page.has("cancelled", within="article h2")
        await server.retinue.wait((await page.run("location.hash")).split("/")[2])
        cancelled = (await server.get("/api/v1/runs")).json["items"][0]
        await page.click("article button", text="Continue")
        await page.type("dialog #answer", "Go on")
        await page.click("dialog #accept")
        await page.has("Go on", within=".conversation")

    assert (cancelled["task"], cancelled["outcome"]) == ("Count to three", "cancelled")


async def test_an_interrupted_run_is_resumed_on_its_page(folder: Path) -> None:
    async with site(folder, {"main": [{"say": "one two three", "every": 60.0}]}) as server:
        await server.post("/api/v1/runs", {"task": "Count to three"})
    async with opened(folder, {"main": [{"say": "It is the pool."}]}) as (server, page, _):
        await page.has("1 run: 1 interrupted", within=".counters")
        await page.click(".runs a.row", text="Count to three")
        await page.has("interrupted", within="article h2")
        await page.has("no process works on it", within=".facts")
        buttons = await page.run("[...document.querySelectorAll('.actions button')].map((each) => each.textContent)")
        await page.click("article button", text="Resume")
        await page.has("It is the pool.", within=".conversation")
        await page.has("completed", within="article h2")
        await page.until("document.querySelector('.actions').textContent.includes('Continue')")
        await go(page, "/")
        await page.has("1 run: 1 completed", within=".counters")

    assert buttons == ["Send", "Resume", "Cancel", "Compare"]


async def test_an_exhausted_run_says_why_and_is_continued(folder: Path) -> None:
    look = {"call": {"name": "task_list"}}
    lines = {"short": [look, look, {"say": "That is all I have."}], "short: Go on": [{"say": "Done."}]}
    async with opened(folder, lines) as (server, page, _):
        run_id = (await server.post("/api/v1/runs", {"task": "Look", "agent": "short"})).json["run_id"]
        await server.retinue.wait(run_id)
        await page.has("1 run: 1 exhausted", within=".counters")
        await page.run(f"{CHOOSE_STATE}('exhausted'); 0")
        await page.click(".runs a.row", text="Look")
        await page.has("exhausted", within="article h2")
        reason = (await server.get(f"/api/v1/runs/{run_id}")).json["error"]
        await page.has(reason, within=".facts .failed")
        await page.has(reason, within=".tree .failed")
        await page.has("no result", within=".call:last-of-type .status")  # of the call that came too late
        await page.click("article button", text="Continue")
        await page.type("dialog #answer", "Go on")
        await page.click("dialog #accept")
        await page.has("Done.", within=".conversation")
        await page.has("completed", within="article h2")

    assert reason.startswith("the turn limit was reached")


CHOOSE_STATE = """
((state) => {
  const field = document.querySelector('select');
  field.value = state;
  field.dispatchEvent(new Event('change'));
})
"""
"""Chooses a state in the filter of the list."""


async def test_a_fork_continues_after_the_turn_of_its_button(folder: Path) -> None:
    lines = {"main": [{"say": "First.", "call": {"name": "task_list"}}, {"say": "Nothing."}]}
    async with opened(folder, lines) as (server, page, _):
        asked = {"task": "What is there?", "tools": ["task_list"]}
        run_id = (await server.post("/api/v1/runs", asked)).json["run_id"]
        await server.retinue.wait(run_id)
        await go(page, f"/runs/{run_id}")
        await page.click("button[aria-label='Fork from turn 1']")
        await page.type("dialog #answer", "Look again")
        await page.click("dialog #accept")
        await page.has("Look again", within="article")
        forked = (await page.run("location.hash")).rpartition("/")[2]
        history = (await server.retinue.supervisor.replay(forked)).history

    texts = [getattr(message, "text", "") for message in history]
    earlier = texts[: texts.index("Look again")]
    assert (earlier[0], "First." in earlier, "Nothing." in earlier) == ("What is there?", True, False)


async def test_search_filter_keys_and_theme(folder: Path) -> None:
    async with opened(folder, {"main": [{"say": "It is the pool."}]}) as (server, page, _):
        for number in range(5):
            await server.retinue.wait((await server.post("/api/v1/runs", {"task": f"task {number}"})).json["run_id"])
        await page.until("document.querySelectorAll('.runs a.row').length === 5")
        await page.has("5 runs: 5 completed", within=".counters")
        await page.key("/")
        await page.send("Input.insertText", text="task 3")
        await page.until("document.querySelectorAll('.runs a.row').length === 1")
        await page.key("Escape")
        await page.until(
            "(document.querySelector('.runs a.row').focus(), document.activeElement.matches('.runs a.row'))"
        )
        await page.key("Enter")
        await page.has("It is the pool.", within=".conversation")
        await page.key("Escape")
        await page.until("location.hash === '#/'")
        await go(page, "/search/pool")
        await page.has("5 places in 5 runs")
        marked = await page.run("[...document.querySelectorAll('mark')].map((each) => each.textContent)")
        await page.until("document.activeElement.type === 'search'")
        await page.run("document.activeElement.blur()")
        before = await page.run("getComputedStyle(document.body).backgroundColor")
        await page.key("t")
        await page.until(f"getComputedStyle(document.body).backgroundColor !== {json.dumps(before)}")
        await page.run("location.reload()")
        await page.until("document.documentElement.dataset.theme === 'dark'")
        await page.until("document.activeElement.type === 'search'")
        await page.run("document.activeElement.blur()")
        await page.key("?")
        await page.has("zoom and move a timeline", within="dialog")

    assert (marked, before) == (["pool"] * 5, "rgb(255, 255, 255)")


async def test_a_hit_far_down_the_list_stays_while_the_list_is_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "LOOKED_AT", 1)  # the first page with a filter has no run, and a cursor
    async with opened(folder, {"main": [{"say": "It is the pool."}]}) as (server, page, _):
        first = await server.retinue.spawn("needle")
        others = [await server.retinue.spawn(f"task {number}") for number in range(routes.MAX_PAGE + 10)]
        await server.retinue.wait(first.run_id, *(run.run_id for run in others))
        empty = (await server.get("/api/v1/runs?limit=100&q=needle")).json
        await page.type("input[type=search]", "needle")
        await page.has("1 run: 1 completed", within=".counters")
        await page.run(f"window.mark = document.querySelector('.runs a.row'); window.asked = 0; {COUNT_LISTS}")
        await page.until("window.asked >= 2")
        await page.has("1 run: 1 completed", within=".counters")
        stayed = await page.run("document.querySelector('.runs a.row') === window.mark")

    assert (empty["items"], empty["next"] is not None) == ([], True)
    assert stayed


async def test_the_list_counts_all_runs_of_the_store(folder: Path) -> None:
    lines = {"main": [{"say": "It is the pool."}], "slow": [{"say": "one two three", "every": 60.0}]}
    async with opened(folder, lines) as (server, page, _):
        slow = (await server.post("/api/v1/runs", {"task": "Count", "agent": "slow"})).json["run_id"]
        others = [await server.retinue.spawn(f"task {number}") for number in range(104)]
        await server.retinue.wait(*(run.run_id for run in others))
        await page.has("100 of 105 runs, 1 unfinished: 100 completed", within=".counters")
        await page.run("document.querySelector('.runs').scrollTop = 1e6")
        await page.has("105 runs: 1 working, 104 completed", within=".counters")
        await server.post(f"/api/v1/runs/{slow}/cancel")


COUNT_LISTS = """
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) window.asked += each.name.includes("limit=100&q=needle");
}).observe({type: "resource"}), 0
"""
"""Counts how often the page has read the first page of the list."""


async def test_records_have_pages_of_their_own(folder: Path) -> None:
    lines = {
        "main": [
            {"call": {"name": "shared_context", "arguments": {"action": "write", "key": "cause", "value": "the net"}}},
            {"call": {"name": "shared_context", "arguments": {"action": "write", "key": "cause", "value": "the pool"}}},
            {"say": "Noted."},
        ],
    }
    async with opened(folder, lines) as (server, page, _):
        asked = {"task": "Share", "dialects": ["spec"], "session": "audit"}
        one = (await server.post("/api/v1/runs", asked)).json["run_id"]
        await server.retinue.wait(one)
        other = (await server.post(f"/api/v1/runs/{one}/fork", {"task": "Again"})).json["run_id"]
        await server.retinue.wait(other)
        job = {"name": "nightly", "cron": "0 2 * * *", "agent": "dig", "prompt": "Dig."}
        assert (await server.post("/api/v1/cron", job)).status == 201
        await go(page, "/usage")
        await page.until("document.querySelectorAll('.chart rect').length > 0")
        await page.has("By agent")
        await go(page, "/sessions")
        await page.click("td a", text="audit")
        await page.has("version 2 by", within="main")
        await page.click("summary", text="1 earlier version")
        await page.until("document.querySelector('.diff .removed')?.textContent === '- the net\\n'")
        await go(page, "/cron")
        await page.click("button", text="Run now")  # it fails: the settings name no model
        await page.has("by hand", within="section[aria-label=Executions]")
        await page.has("failed", within="section[aria-label=Executions]")
        await page.click("button", text="Pause")
        await page.has("paused", within="main table")
        await go(page, "/settings")
        await page.has("Digs", within="main")
        await go(page, f"/compare/{one}/{other}")
        await page.has("The answers are the same.", within="main")
        await page.until("[...document.querySelectorAll('.differs th')].some((each) => each.textContent === 'Task')")
        await go(page, f"/runs/{one}/costs")
        await page.until("document.querySelector('.panel .chart')")
        await go(page, f"/runs/{one}/context")
        await page.has("the pool", within=".panel")


async def test_a_reading_token_sees_and_cannot_act(folder: Path) -> None:
    async with opened(folder, {"main": [{"say": "Fine."}]}, token=READ) as (server, page, _):
        run_id = (await server.post("/api/v1/runs", {"task": "Why?"})).json["run_id"]
        await server.retinue.wait(run_id)
        await go(page, f"/runs/{run_id}")
        await page.has("Fine.", within=".conversation")
        await page.click("article button", text="Continue")
        await page.type("dialog #answer", "More")
        await page.click("dialog #accept")
        await page.has("this token may only read", within="#message")
        problem = await page.expected_problem()  # the console reports the refused request
        listed = (await server.get("/api/v1/runs")).json["items"]

    assert len(listed) == 1
    assert "403" in problem


@pytest.mark.parametrize("width", [360, 1280])
async def test_a_page_fits_its_screen(folder: Path, width: int) -> None:
    async with opened(folder, {"main": [{"say": "word " * 300 + "x" * 400}]}) as (server, page, _):
        run_id = (await server.post("/api/v1/runs", {"task": "long " * 100 + "y" * 300})).json["run_id"]
        await server.retinue.wait(run_id)
        await page.size(width, 800)
        overflowing: list[str] = []
        for place in (
            "/",
            f"/runs/{run_id}",
            f"/runs/{run_id}/timeline",
            f"/runs/{run_id}/costs",
            "/usage",
            "/settings",
        ):
            await visit(page, place)
            if await page.run("document.documentElement.scrollWidth > innerWidth"):
                overflowing.append(place)

    assert overflowing == []


async def test_every_control_has_a_name_for_screen_readers(folder: Path) -> None:
    async with opened(folder, TEAM) as (server, page, _):
        run_id = await parked_tree(server, folder)
        nameless: dict[str, list[str]] = {}
        for place in ("/", f"/runs/{run_id}", f"/runs/{run_id}/timeline", "/approvals", "/search", "/usage", "/cron"):
            await visit(page, place)
            tree = (await page.send("Accessibility.getFullAXTree"))["nodes"]
            roles = {"button", "link", "textbox", "searchbox", "combobox", "tab", "listitem"}
            nameless[place] = [
                node["role"]["value"]
                for node in tree
                if not node.get("ignored")
                and node["role"]["value"] in roles - {"listitem"}
                and not node.get("name", {}).get("value", "").strip()
            ]
        await server.post(f"/api/v1/runs/{run_id}/cancel")
        await server.retinue.wait(run_id)

    assert nameless == {place: [] for place in nameless}


async def test_an_exported_file_is_the_page_and_asks_no_network(folder: Path, tmp_path: Path) -> None:
    async with opened(folder, TEAM) as (server, _, chrome):
        run_id = await parked_tree(server, folder)
        await server.retinue.approve(f"{run_id}/3/0")
        await server.ended(run_id)
        views = sorted(await server.client.tree(run_id), key=lambda view: (view.started_at, view.depth))
        runs = [ExportedRun(view, await server.client.events(view.run_id)) for view in views]
        file = tmp_path / "tree.html"
        file.write_text(exported(runs), encoding="utf-8")
        page = await chrome.page()
        await page.open(file.as_uri())
        await page.has("Let me look.", within=".conversation")
        await page.until("document.querySelectorAll('.tree a.row').length === 3")
        title = await page.run("document.title")
        await page.click(".tree a.row", text="t_01")
        await page.has("one two three", within=".conversation")
        await page.click(".tabs a", text="Timeline")
        await page.until("document.querySelectorAll('.span.critical').length > 2")
        controls = await page.run("[...document.querySelectorAll('article button')].map((each) => each.textContent)")

    assert title.startswith("completed: Why did it drop?")
    assert controls == ["\u2212", "+", "All"]
    assert (page.problems, page.requests) == ([], [file.as_uri()])


def test_the_list_of_scripts_has_every_file_and_imports_only_earlier_ones() -> None:
    folder = files("retinue.web") / "static"
    assert {file.name for file in folder.iterdir()} == set(TYPES)
    for place, name in enumerate(SCRIPTS):
        imports = [line for line in (folder / name).read_text().splitlines() if line.startswith("import ")]
        imported = [re.fullmatch(r'import \{ [\w, ]+ \} from "\./(\w+\.js)";', line) for line in imports]
        assert all(found is not None and found[1] in SCRIPTS[:place] for found in imported), name
