"""The API beside runs: sessions with their shared context, cron jobs, usage, search, timelines, settings."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from retinue.config.precedence import Flags
from retinue.dispatch.cron.new_job import new_job
from retinue.dispatch.cron.table import CronTable
from retinue.providers.scripted import Line
from retinue.testing import FakeChat, hangs, says
from tests.web.harness import READ, Site, site

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(600)]

LINES = {"main": [{"say": "The pool is exhausted."}]}
SHARING = {
    "main": [
        {"call": {"name": "shared_context", "arguments": {"action": "write", "key": "cause", "value": "the network"}}},
        {"call": {"name": "shared_context", "arguments": {"action": "write", "key": "cause", "value": "the pool"}}},
        {"say": "Noted."},
    ],
}
TEAM = {
    "main": [
        {"call": {"name": "subagent", "arguments": {"action": "spawn", "agent": "dig", "task": "find it"}}},
        {"call": {"name": "subagent", "arguments": {"action": "wait", "task_ids": ["t_01"]}}},
        {"say": "Thanks."},
    ],
    "dig": [{"say": "one two three", "every": 1.0}],
}
GATED = {
    "main": [{"call": {"name": "file_write", "arguments": {"path": "a.txt", "content": "hi"}}}, {"say": "Not written."}]
}


async def run(server: Site, body: dict[str, Any]) -> str:
    """A run that has ended."""
    run_id = (await server.post("/api/v1/runs", body)).json["run_id"]
    await server.retinue.wait(run_id)
    return run_id


async def test_gated_calls_of_a_run_that_denies_them_are_refused(folder: Path) -> None:
    async with site(folder, GATED) as server:
        run_id = await run(server, {"task": "Write", "tools": ["file_write"], "approvals": "deny"})
        transcript = (await server.get(f"/api/v1/runs/{run_id}/transcript")).json["items"]
        questions = (await server.get("/api/v1/approvals")).json["items"]

    (result,) = [entry for entry in transcript if entry["kind"] == "result"]
    assert result["failed"]
    assert "There is no approver here" in result["text"]
    assert (questions, (folder / "a.txt").exists()) == ([], False)


async def test_a_run_that_denies_calls_says_so_to_the_process_that_continues_it(folder: Path) -> None:
    async with site(folder, LINES) as server:
        denied = await run(server, {"task": "a", "approvals": "deny"})
        asked = await run(server, {"task": "b"})
        configs = [await server.client.launch_config(run_id) for run_id in (denied, asked)]

    assert [config.approvals if config is not None else None for config in configs] == ["deny", ""]


async def test_shared_context_has_its_authors_and_earlier_versions(folder: Path) -> None:
    async with site(folder, SHARING) as server:
        await run(server, {"task": "Share", "dialects": ["spec"], "session": "audit 1/2"})
        listed = (await server.get("/api/v1/sessions")).json["items"]
        context = (await server.get("/api/v1/sessions/audit%201%2F2")).json
        missing = await server.get("/api/v1/sessions/nothing")

    assert listed == [{"session_id": "audit 1/2", "archived": False, "key_count": 1, "total_size_tokens": 2}]
    assert [entry["key"] for entry in context["entries"]] == ["cause"]
    versions = context["entries"][0]["versions"]
    assert [(each["version"], each["value"]) for each in versions] == [(1, "the network"), (2, "the pool")]
    assert all(each["written_by"] and each["written_at"] for each in versions)
    assert missing.status == 404


async def test_sessions_are_created_snapshotted_archived_and_deleted(folder: Path) -> None:
    async with site(folder, LINES) as server:
        created = await server.post("/api/v1/sessions", {"session_id": "audit"})
        again = await server.post("/api/v1/sessions", {"session_id": "audit"})
        snapshot = await server.post("/api/v1/sessions/audit/snapshots", {"label": "before"})
        labels = (await server.get("/api/v1/sessions/audit")).json["snapshots"]
        archived = await server.post("/api/v1/sessions/audit/archive")
        refused = await server.post("/api/v1/sessions/audit/snapshots", {"label": "after"})
        deleted = await server.post("/api/v1/sessions/audit/delete")
        left = (await server.get("/api/v1/sessions")).json["items"]

    statuses = [each.status for each in (created, again, snapshot, archived, refused, deleted)]
    assert statuses == [201, 400, 201, 200, 400, 200]
    assert (snapshot.json, labels, left) == ({"label": "before", "entries": 0}, ["before"], [])


async def test_cron_jobs_are_added_listed_paused_resumed_and_removed(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[agents.dig]\ndescription = "Digs"\n')
    job = {"name": "nightly", "cron": "0 2 * * *", "agent": "dig", "prompt": "Dig."}
    async with site(folder, LINES) as server:
        added = await server.post("/api/v1/cron", job)
        twice = await server.post("/api/v1/cron", job)
        reader = await server.post("/api/v1/cron", {**job, "name": "other"}, token=READ)
        paused = await server.post("/api/v1/cron/nightly/pause")
        (listed,) = (await server.get("/api/v1/cron")).json["items"]
        resumed = await server.post("/api/v1/cron/nightly/resume")
        executions = await server.get("/api/v1/cron/nightly/executions")
        removed = await server.post("/api/v1/cron/nightly/remove")
        missing = [
            (await server.get("/api/v1/cron/nightly/executions")).status,
            (await server.post("/api/v1/cron/nightly/pause")).status,
        ]
        left = (await server.get("/api/v1/cron")).json["items"]

    statuses = [each.status for each in (added, twice, reader, paused, resumed, executions, removed)]
    assert statuses == [201, 400, 403, 200, 200, 200, 200]
    assert (listed["schedule"], listed["agent"], listed["prompt"], listed["paused"]) == (
        "0 2 * * *", "dig", "Dig.", True,
    )  # fmt: skip
    assert (executions.json["items"], missing, left) == ([], [404, 404], [])


async def test_a_cron_job_is_run_now_once_and_its_schedule_stays(folder: Path) -> None:
    hanging = asyncio.Event()

    def answer(_: object) -> Line:
        if hanging.is_set():
            return says("Dug.")
        hanging.set()
        return hangs("Dig")

    async with FakeChat(answer) as vendor, site(folder, LINES) as server:
        (folder / "retinue.toml").write_text(
            '[agents.dig]\ndescription = "Digs"\n'
            f'[providers.mine]\nwire = "openai-chat"\nbase_url = "{vendor.base_url}"\napi_key_env = ""\n'
        )
        place = {"provider": "mine", "model": "m-1"}
        job, _ = new_job("dig", every="9h", agent="dig", prompt="Dig.", flags=Flags(**place), uses_memory=False)
        await CronTable(server.client.key_value).add(job)
        before = (await server.get("/api/v1/cron")).json["items"][0]
        refused = (await server.post("/api/v1/cron/dig/run-now", token=READ)).status
        missing = (await server.post("/api/v1/cron/other/run-now")).status
        first = await server.post("/api/v1/cron/dig/run-now")
        await hanging.wait()
        second = await server.post("/api/v1/cron/dig/run-now")
        running = await at_work(server)
        listed = (await server.get("/api/v1/cron")).json["items"][0]
        await server.post(f"/api/v1/runs/{running['run_id']}/cancel")
        await over(server)
        third = await server.post("/api/v1/cron/dig/run-now")
        await over(server)
        entries = (await server.get("/api/v1/cron/dig/executions")).json["items"]
        after = (await server.get("/api/v1/cron")).json["items"][0]

    assert (refused, missing, first.status, second.status, third.status) == (403, 404, 202, 409, 202)
    assert second.json["error"] == "the job 'dig' is being executed, and is not started twice"
    assert (running["status"], listed["last_status"]) == ("running", "running")
    assert [(each["status"], each["due"]) for each in entries] == [("ok", None), ("failed", None)]
    assert (after["next_run"], after["last_status"]) == (before["next_run"], "ok")


async def at_work(server: Site) -> dict[str, Any]:
    """The only execution of the job, once its run is known."""
    async with asyncio.timeout(300):
        while True:
            (entry,) = (await server.get("/api/v1/cron/dig/executions")).json["items"]
            if entry["run_id"] is not None:
                return entry
            await asyncio.sleep(0.05)


async def over(server: Site) -> None:
    """Wait until no job is executed."""
    async with asyncio.timeout(300):
        while True:
            if not (await CronTable(server.client.key_value).table()).claims:
                return
            await asyncio.sleep(0.05)


async def test_usage_is_summed_by_day_agent_and_model(folder: Path) -> None:
    async with site(folder, LINES) as server:
        for number in range(3):
            await run(server, {"task": f"task {number}"})
        report = (await server.get("/api/v1/usage?days=2")).json

    rows = report["items"]  # one for each day, and midnight may pass
    assert {(row["agent"], row["failed"]) for row in rows} == {("main", 0)}
    assert (sum(row["runs"] for row in rows), report["complete"]) == (3, True)
    assert all(row["usage"]["output"] > 0 for row in rows)
    assert all(row["model"].endswith("lines.json") for row in rows)


async def test_a_search_finds_words_in_answers_and_goes_on(folder: Path) -> None:
    async with site(folder, LINES) as server:
        ids = [await run(server, {"task": f"Why {number}?"}) for number in range(3)]
        first = (await server.get("/api/v1/search?q=POOL%20exhausted&limit=2")).json
        rest = (await server.get(f"/api/v1/search?q=pool&limit=2&cursor={first['next']}")).json
        nothing = (await server.get("/api/v1/search?q=nowhere")).json
        refused = await server.get("/api/v1/search?q=%20")

    found = [hit["run"]["run_id"] for hit in first["items"] + rest["items"]]
    assert found == ids[::-1]
    assert {(hit["kind"], hit["excerpt"]) for hit in first["items"]} == {("reply", "The pool is exhausted.")}
    assert (nothing["items"], nothing["next"], nothing["runs_read"], refused.status) == ([], None, 3, 400)


async def test_a_timeline_marks_waits_and_the_critical_path(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[agents.dig]\ndescription = "Digs"\n[spec]\nextensions = ["wait"]\n')
    async with site(folder, TEAM) as server:
        run_id = await run(server, {"task": "Look", "dialects": ["spec"]})
        spans = (await server.get(f"/api/v1/runs/{run_id}/timeline")).json["items"]

    own = [(span["kind"], span["name"]) for span in spans if span["run_id"] == run_id]
    below = [span for span in spans if span["run_id"] != run_id]
    assert own == [("model", ""), ("tool", "subagent"), ("model", ""), ("wait", "subagent"), ("model", "")]
    assert [(span["kind"], span["critical"]) for span in below] == [("model", True)]
    assert all(span["start"] <= span["end"] for span in spans)


async def test_settings_are_shown_without_secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_KEY", "sk-secret-1")
    (folder / "retinue.toml").write_text(
        "[agents.dig]\ndescription = 'Digs'\n"
        "[providers.mine]\nwire = 'openai-chat'\nbase_url = 'https://host/v1'\n"
        "api_key_env = 'LOCAL_KEY'\nheaders = {X-Team = 'sk-secret-4'}\nextra_body = {token = 'sk-secret-5'}\n"
        "[mcp_servers.files]\ncommand = 'server'\nargs = ['--token', 'sk-secret-6']\nenv = ['GITHUB_TOKEN']\n"
        "[store]\nurl = 'sqlite:runs.db'\nkeep_days = 9\n"
    )
    async with site(folder, LINES) as server:
        answer = await server.get("/api/v1/settings", token=READ)

    assert "sk-secret" not in answer.text
    sections = {section["name"]: section["values"] for section in answer.json["sections"]}
    assert sections["agents.dig"]["description"] == "Digs"
    assert sections["providers.mine"] | {"wire": ""} == {
        "wire": "",
        "base_url": "https://host/v1",
        "api_key_env": "LOCAL_KEY (set)",
        "headers": {"X-Team": "(not shown)"},
        "extra_body": {"token": "(not shown)"},
    }
    assert sections["mcp_servers.files"]["env"] == ["GITHUB_TOKEN"]
    assert sections["store"] == {"url": "sqlite:runs.db", "keep_days": 9}
    assert answer.json["files"] == [str(folder / "retinue.toml")]


async def test_settings_that_no_file_has_are_not_shown(folder: Path) -> None:
    async with site(folder, LINES) as server:
        settings = (await server.get("/api/v1/settings")).json

    assert settings == {"files": [], "sections": [], "warnings": []}


async def test_models_of_providers_are_listed_or_say_why_not(folder: Path) -> None:
    (folder / "retinue.toml").write_text(
        "[providers.mine]\nwire = 'openai-chat'\nbase_url = 'http://127.0.0.1:9/v1'\napi_key_env = ''\n"
    )
    async with site(folder, LINES) as server:
        items = (await server.get("/api/v1/models")).json["items"]

    (mine,) = [each for each in items if each["provider"] == "mine"]
    assert (mine["models"], mine["base_url"]) == ([], "http://127.0.0.1:9/v1")
    assert mine["error"]


async def test_changes_have_all_rows_first_and_end_with_the_tree(folder: Path) -> None:
    async with site(folder, LINES) as server:
        run_id = (await server.post("/api/v1/runs", {"task": "Why?"})).json["run_id"]
        live = await server.named_events(f"/api/v1/runs/{run_id}/changes")
        ended = await server.named_events(f"/api/v1/runs/{run_id}/changes")

    for events in (live, ended):
        rows = [row for name, value in events if name == "rows" for row in value]
        texts = [entry.get("text", "") for name, value in events if name == "entries" for entry in value["items"]]
        assert (rows[0]["run_id"], rows[-1]["outcome"]) == (run_id, "completed")
        assert texts[:2] == ["Why?", "The pool is exhausted."]
        assert texts.count("The pool is exhausted.") == 1
        assert events[-1] == ("end", {})


async def test_an_approval_shows_the_diff_of_files_in_the_workspace_alone(folder: Path) -> None:
    outside = folder.parent / "secret.txt"
    outside.write_text("password\n")
    (folder / "a.txt").write_text("old\n")
    lines = {
        "main": [
            {
                "calls": [
                    {"name": "file_write", "arguments": {"path": "a.txt", "content": "new\n"}},
                    {"name": "file_write", "arguments": {"path": "link.txt", "content": "x\n"}},
                ]
            },
            {"say": "Done."},
        ]
    }
    (folder / "link.txt").symlink_to(outside)
    async with site(folder, lines) as server:
        run_id = (await server.post("/api/v1/runs", {"task": "Write", "tools": ["file_write"]})).json["run_id"]
        await server.parked(run_id, 2)
        questions = (await server.get("/api/v1/approvals")).json["items"]

    by_path = {json.loads(each["arguments"])["path"]: each["details"] for each in questions}
    assert by_path["a.txt"].splitlines()[1:] == ["- old", "+ new"]
    assert "password" not in by_path["link.txt"]
