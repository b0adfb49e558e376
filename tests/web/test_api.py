"""The API of `retinue serve`: runs, trees, events, approvals, and what it answers to nonsense."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from retinue.config.precedence import Flags
from retinue.testing.fake_server import FakeServer
from retinue.web.openapi import document
from retinue.web.routes import AdminRoutes, RunRoutes
from retinue.web.service import Service
from tests.local.test_workspaces import git
from tests.providers.test_server_tools import URL, searching
from tests.web.harness import READ, Site, site

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(600)]

LINES = {"main": [{"say": "It is the pool."}]}
SLOW = {"main": [{"say": "one two three", "every": 60.0}]}
TEAM = {
    "main": [
        {"call": {"name": "subagent", "arguments": {"action": "spawn", "agent": "dig", "task": "find it"}}},
        {"call": {"name": "subagent", "arguments": {"action": "wait", "task_ids": ["t_01"]}}},
        {"say": "Thanks."},
    ],
    "dig": [{"say": "Found."}],
}
ASKING = {
    "main": [{"call": {"name": "file_write", "arguments": {"path": "a.txt", "content": "hi"}}}, {"say": "Written."}]
}


async def ended(site: Site, run_id: str) -> dict[str, Any]:
    await site.retinue.wait(run_id)
    return (await site.get(f"/api/v1/runs/{run_id}")).json


async def test_a_run_is_started_and_its_answer_read(folder: Path) -> None:
    async with site(folder, LINES) as server:
        started = await server.post("/api/v1/runs", {"task": "Why is it slow?"})
        run_id = started.json["run_id"]
        run = await ended(server, run_id)
        transcript = (await server.get(f"/api/v1/runs/{run_id}/transcript")).json["items"]

    assert (started.status, set(started.json)) == (201, {"run_id", "state"})
    assert (run["outcome"], run["text"], run["task"], run["turns"]) == (
        "completed", "It is the pool.", "Why is it slow?", 1,
    )  # fmt: skip
    assert [(entry["kind"], entry["text"]) for entry in transcript[:2]] == [
        ("task", "Why is it slow?"),
        ("reply", "It is the pool."),
    ]


async def test_the_sources_of_an_answer_are_in_its_transcript(folder: Path) -> None:
    async with FakeServer(searching()) as vendor:
        flags = Flags(provider="anthropic", base_url=vendor.url, model="m")
        async with site(folder, {}, vendor=flags, tools=("server:web_search",)) as server:
            run_id = (await server.post("/api/v1/runs", {"task": "How large is the pool?"})).json["run_id"]
            await server.retinue.wait(run_id)
            transcript = (await server.get(f"/api/v1/runs/{run_id}/transcript")).json["items"]

    notes = [entry["text"] for entry in transcript if entry["kind"] == "note"]
    assert f"server:web_search was used 2 times\n[1] Pools <{URL}>" in notes


async def test_lists_have_pages_filters_and_a_search(folder: Path) -> None:
    async with site(folder, {"main": [{"say": "a"}]}) as server:
        ids: list[str] = []
        for number in range(5):
            run_id = (await server.post("/api/v1/runs", {"task": f"task {number}"})).json["run_id"]
            await server.retinue.wait(run_id)
            ids.insert(0, run_id)
        found: list[str] = []
        cursor = ""
        while True:
            page = (await server.get(f"/api/v1/runs?limit=2{cursor}")).json
            found += [run["run_id"] for run in page["items"]]
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"
        searched = (await server.get("/api/v1/runs?q=TASK%203")).json
        failed = (await server.get("/api/v1/runs?state=failed")).json
        completed = (await server.get("/api/v1/runs?state=completed&state=failed&limit=3")).json

    assert found == ids
    assert ([run["task"] for run in searched["items"]], searched["next"]) == (["task 3"], None)
    assert failed == {"items": [], "next": None}
    assert len(completed["items"]) == 3


async def test_a_tree_has_the_runs_below_with_their_tasks(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[agents.dig]\ndescription = "Digs"\n[spec]\nextensions = ["wait"]\n')
    async with site(folder, TEAM) as server:
        run_id = (await server.post("/api/v1/runs", {"task": "Look", "dialects": ["spec"]})).json["run_id"]
        await ended(server, run_id)
        tree = (await server.get(f"/api/v1/runs/{run_id}/tree")).json["items"]
        events = await server.events(f"/api/v1/runs/{run_id}/events?tree=1")
        agents = (await server.get("/api/v1/agents")).json["items"]

    assert [(run["agent"], run["task"], run["parent_id"]) for run in tree] == [
        ("main", "Look", None),
        ("dig", "find it", run_id),
    ]
    paths = {item["path"] for _, item in events}
    assert paths == {"root", "root/dig/1"}
    assert agents == [{"name": "dig", "description": "Digs", "model": None, "tools": []}]


async def test_a_stream_goes_on_after_the_last_event_that_was_read(folder: Path) -> None:
    async with site(folder, LINES) as server:
        run_id = (await server.post("/api/v1/runs", {"task": "Why?"})).json["run_id"]
        await ended(server, run_id)
        events = [(number, item) for number, item in await server.events(f"/api/v1/runs/{run_id}/events") if number]
        rest = await server.events(f"/api/v1/runs/{run_id}/events", last=events[0][0])

    assert events[0][1]["event"]["type"] == "accepted"
    assert rest == events[1:]
    assert len({number for number, _ in events}) == len(events)


async def test_a_running_run_takes_messages_and_is_cancelled(folder: Path) -> None:
    async with site(folder, SLOW) as server:
        run_id = (await server.post("/api/v1/runs", {"task": "Count"})).json["run_id"]
        sent = await server.post(f"/api/v1/runs/{run_id}/messages", {"text": "Faster!"})
        cancelled = await server.post(f"/api/v1/runs/{run_id}/cancel")
        run = await ended(server, run_id)
        late = await server.post(f"/api/v1/runs/{run_id}/messages", {"text": "Hello?"})

    assert (sent.status, cancelled.json) == (200, {"run_id": run_id, "cancelled": [run_id]})
    assert (run["outcome"], late.status) == ("cancelled", 409)


FAILING = {
    "main": [{"status": 503, "message": "not now", "times": 4, "then": {"say": "one two", "every": 60.0}}],
}
"""A model that is called again after pauses, each longer than the one before."""


async def test_the_end_of_a_pause_is_shown_though_it_is_no_event(folder: Path) -> None:
    async with site(folder, FAILING) as server:
        run_id = (await server.post("/api/v1/runs", {"task": "Count"})).json["run_id"]
        async with aclosing(server.rows(run_id)) as first:
            pause = await anext(text async for text in doings(first, run_id) if text.startswith("waits"))
        async with aclosing(server.rows(run_id)) as second:  # its first row may be of the pause
            end = await anext(text async for text in doings(second, run_id) if not text.startswith("waits"))
        await server.post(f"/api/v1/runs/{run_id}/cancel")
        await server.retinue.wait(run_id)

    assert pause.startswith("waits to call the model again: not now")
    assert end == "calls the model"


async def doings(changes: AsyncIterator[dict[str, Any]], run_id: str) -> AsyncIterator[str]:
    """What a run does, with each change of the rows of its tree."""
    async for rows in changes:
        yield rows[run_id]["doing"]


async def test_a_fork_continues_from_a_turn(folder: Path) -> None:
    lines = {"main": [{"call": {"name": "task_list"}}, {"say": "Nothing."}, {"say": "Still nothing."}]}
    async with site(folder, lines) as server:
        asked = {"task": "What is there?", "tools": ["task_list"]}
        run_id = (await server.post("/api/v1/runs", asked)).json["run_id"]
        await ended(server, run_id)
        forked = await server.post(f"/api/v1/runs/{run_id}/fork", {"task": "Look again", "turn": 1})
        missing = await server.post(f"/api/v1/runs/{run_id}/fork", {"task": "Look again", "turn": 9})
        await server.retinue.wait(forked.json["run_id"])
        history = (await server.retinue.supervisor.replay(forked.json["run_id"])).history

    assert (forked.status, missing.status) == (201, 400)
    texts = [getattr(message, "text", "") for message in history]
    assert "What is there?" in texts
    assert "Nothing." not in texts[: texts.index("Look again")]


async def test_an_approval_is_listed_and_answered_by_its_id(folder: Path) -> None:
    async with site(folder, ASKING) as server:
        run_id = (await server.post("/api/v1/runs", {"task": "Write", "tools": ["file_write"]})).json["run_id"]
        async for item in server.retinue.events(run_id, tree=True):
            if type(item.event).__name__ == "CallParked":
                break
        (question,) = (await server.get("/api/v1/approvals")).json["items"]
        denied = await server.post(f"/api/v1/approvals/{question['id']}", {"allow": True}, token=READ)
        plain = await server.post(f"/api/v1/approvals/{question['id']}", {"allow": True, "note": "fine"})
        run = await ended(server, run_id)

    assert (question["tool"], json.loads(question["arguments"])) == ("file_write", {"path": "a.txt", "content": "hi"})
    assert (denied.status, plain.json) == (403, {"id": question["id"], "first": True})
    assert (run["text"], (folder / "a.txt").read_text()) == ("Written.", "hi")


async def left_run(folder: Path) -> str:
    """A run in the middle of a turn, whose server has ended."""
    async with site(folder, SLOW) as server:
        run_id = (await server.post("/api/v1/runs", {"task": "Count"})).json["run_id"]
        await server.retinue.supervisor.look(run_id)
    return run_id


async def test_an_interrupted_run_is_shown_as_such_and_resumed(folder: Path) -> None:
    run_id = await left_run(folder)
    async with site(folder, LINES) as server:
        path = f"/api/v1/runs/{run_id}"
        listed = (await server.get("/api/v1/runs?state=interrupted")).json["items"]
        rows = [row async for row in server.rows(run_id)][-1]
        looking = (await server.get(path)).json
        refused = await server.post(f"{path}/resume", token=READ)
        resumed = await server.post(f"{path}/resume")
        run = await ended(server, run_id)
        again = await server.post(f"{path}/resume")
        unknown = await server.post("/api/v1/runs/unknown-run/resume")

    assert ([each["run_id"] for each in listed], looking["outcome"]) == ([run_id], None)
    assert (rows[run_id]["state"], rows[run_id]["doing"]) == ("interrupted", "")
    assert (refused.status, resumed.status, resumed.json["run_id"]) == (403, 200, run_id)
    assert (run["outcome"], run["text"]) == ("completed", "It is the pool.")
    assert (again.status, again.json["state"], unknown.status) == (200, "ended", 404), "a run that has ended stays so"


async def test_an_interrupted_run_is_cancelled(folder: Path) -> None:
    run_id = await left_run(folder)
    async with site(folder, LINES) as server:
        cancelled = await server.post(f"/api/v1/runs/{run_id}/cancel")
        run = (await server.get(f"/api/v1/runs/{run_id}")).json

    assert (cancelled.json["cancelled"], run["outcome"]) == ([run_id], "cancelled")


async def test_a_run_that_has_used_up_its_turns_is_exhausted_and_continued_by_a_fork(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[agents.short]\nmax_turns = 2\ntools = ["task_list"]\n')
    look = {"call": {"name": "task_list"}}
    lines = {"short": [look, look, {"say": "That is all I have."}], "short: Go on": [{"say": "Done."}]}
    async with site(folder, lines) as server:
        run_id = (await server.post("/api/v1/runs", {"task": "Look", "agent": "short"})).json["run_id"]
        run = await ended(server, run_id)
        found = [
            [each["run_id"] for each in (await server.get(f"/api/v1/runs?state={state}")).json["items"]]
            for state in ("exhausted", "completed")
        ]
        resumed = await server.post(f"/api/v1/runs/{run_id}/resume")
        forked = await server.post(f"/api/v1/runs/{run_id}/fork", {"task": "Go on"})
        continued = await ended(server, forked.json["run_id"])

    assert (run["outcome"], run["end_reason"], run["state"]) == ("exhausted", "max_turns", "ended")
    assert (found, resumed.json["state"]) == ([[run_id], []], "ended")
    assert continued["text"] == "Done."


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
async def test_a_question_in_a_worktree_is_compared_with_the_files_there(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[agents.dig]\ntools = ["file_write"]\nisolation = "worktree"\n')
    (folder / "a.txt").write_text("committed\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "a.txt")
    git(folder, "commit", "--quiet", "-m", "first")
    (folder / "a.txt").write_text("changed since\n")
    write = {"name": "file_write", "arguments": {"path": "a.txt", "content": "new\n"}}
    lines = {
        "main": [{"call": {"name": "run_agent", "arguments": {"agent": "dig", "task": "Write"}}}, {"say": "Done."}],
        "dig": [{"call": write}, {"say": "Written."}],
    }
    async with site(folder, lines) as server:
        asked = {"task": "Look", "dialects": ["native"], "tools": ["file_write"]}
        run_id = (await server.post("/api/v1/runs", asked)).json["run_id"]
        await server.parked(run_id)
        (question,) = (await server.get("/api/v1/approvals")).json["items"]
        await server.post(f"/api/v1/approvals/{question['id']}", {"allow": False})
        await ended(server, run_id)

    assert question["details"] == 'path: "a.txt" (the file exists)\n- committed\n+ new'


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/v1/runs/unknown-run", None, 404),
        ("GET", "/api/v1/runs/x", None, 400),
        ("GET", "/api/v1/runs?limit=0", None, 400),
        ("GET", "/api/v1/runs?limit=1e9", None, 400),
        ("GET", "/api/v1/runs?cursor=nonsense!", None, 400),
        ("POST", "/api/v1/runs", {}, 400),
        ("POST", "/api/v1/runs", {"task": ""}, 400),
        ("POST", "/api/v1/runs", {"task": 7}, 400),
        ("POST", "/api/v1/runs", {"task": "a", "color": "red"}, 400),
        ("POST", "/api/v1/runs", {"task": "a", "approvals": "ask"}, 400),
        ("POST", "/api/v1/runs", {"task": "a", "agent": "missing"}, 404),
        ("POST", "/api/v1/runs", {"task": "a", "tools": ["missing"]}, 404),
        ("POST", "/api/v1/runs", {"task": "a", "dialects": ["missing"]}, 404),
        ("POST", "/api/v1/runs/unknown-run/cancel", {}, 404),
        ("POST", "/api/v1/runs/unknown-run/fork", {"task": "a"}, 404),
        ("POST", "/api/v1/approvals/unknown-run/1/0", {"allow": True}, 404),
        ("GET", "/static/../access.py", None, 404),
        ("GET", "/static/..%2faccess.py", None, 404),
        ("GET", "/static/%2e%2e/access.py", None, 404),
        ("GET", "/nothing", None, 404),
    ],
)
async def test_wrong_requests_are_refused_with_a_reason(
    folder: Path, method: str, path: str, body: object, status: int
) -> None:
    async with site(folder, LINES) as server:
        answer = await server.request(method, path, body=body)

    assert answer.status == status
    if path.startswith("/api"):
        assert set(answer.json) == {"error"}


async def test_every_route_is_in_the_openapi_document_and_answers_as_it_says(folder: Path) -> None:
    described = document()
    async with site(folder, LINES) as server:
        served = (await server.get("/openapi.json")).json
        health = await server.get("/healthz", token=None)

    assert served == json.loads(json.dumps(described))
    assert health.json["status"] == "ok"
    routes = {(method, path) for path, methods in described["paths"].items() for method in methods}
    service = Service(client=server.client, settings=server.settings)
    served_routes = [*RunRoutes(service).routes(), *AdminRoutes(service).routes()]
    assert routes == {("get", "/healthz")} | {
        (method.lower(), path.replace(":path}", "}")) for method, path, _ in served_routes
    }
