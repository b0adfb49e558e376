"""Pages that do not read what they follow, and conversations larger than what may wait for a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.web import live
from retinue.web.live import LiveTrees
from tests.web.harness import site

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(600)]

LONG = "pool " * 2000
ASKING = {"name": "file_write", "arguments": {"path": "a.txt", "content": "hi"}}
READING = [{"say": LONG, "call": {"name": "file_read", "arguments": {"path": f"{n}.txt"}}} for n in range(6)]
LINES = {"main": [{"call": ASKING}, *READING, {"say": "The end."}]}
TASK = {"task": "Write", "tools": ["file_write", "file_read"]}


async def test_a_page_that_does_not_read_is_dropped_and_may_reconnect(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_WAITING", 30_000)
    async with site(folder, LINES) as server:
        run_id = (await server.post("/api/v1/runs", TASK)).json["run_id"]
        await server.parked(run_id)
        slow = LiveTrees(server.client).changes(run_id, run_id)
        first = b""
        while b"event: entries" not in first:
            first += await anext(slow)
        await server.retinue.approve(f"{run_id}/1/0")
        await server.retinue.wait(run_id)
        rest = b"".join([chunk async for chunk in slow])
        back = b"".join([chunk async for chunk in LiveTrees(server.client).changes(run_id, run_id)])

    assert (b"The end." in rest, b"event: end" in rest) == (False, False), "it is not told of an end: it comes back"
    assert len(back) > 60_000
    assert (b"The end." in back, back.endswith(b"event: end\ndata: {}\n\n")) == (True, True)


async def test_a_conversation_larger_than_what_may_wait_is_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_WAITING", 1000)
    async with site(folder, {"main": [{"say": LONG}]}) as server:
        run_id = (await server.post("/api/v1/runs", {"task": "Why?"})).json["run_id"]
        await server.retinue.wait(run_id)
        named = await server.named_events(f"/api/v1/runs/{run_id}/changes")

    assert [name for name, _ in named] == ["rows", "entries", "reply", "end"]
    assert LONG.strip() in named[1][1]["items"][1]["text"]
