"""Log messages, completion, ping, and methods that a client has to announce, at both generations of the protocol."""

from pathlib import Path
from typing import Any

import pytest

from tests.mcp_server.harness import RawClient, folder

pytestmark = pytest.mark.real_time  # child processes

PROTOCOL = "io.modelcontextprotocol"
META: dict[str, Any] = {
    f"{PROTOCOL}/protocolVersion": "2026-07-28",
    f"{PROTOCOL}/clientInfo": {"name": "raw", "version": "1"},
    f"{PROTOCOL}/clientCapabilities": {},
}
TEMPLATE = {"type": "ref/resource", "uri": "retinue://runs/{id}"}


def logged(client: RawClient) -> list[tuple[str, str, bool]]:
    """Level, tool and failure of each log message so far, which are forgotten then."""
    messages = [other["params"] for other in client.others if other.get("method") == "notifications/message"]
    client.others.clear()
    assert all(sorted(each["data"]) == ["failed", "seconds", "tool"] for each in messages)
    return [(each["level"], each["data"]["tool"], each["data"]["failed"]) for each in messages]


async def test_a_client_with_a_handshake_sets_the_level_of_log_messages(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path)) as client:
        capabilities = (await client.handshake())["capabilities"]
        await client.call("list_agents")
        before = logged(client)
        set_level = await client.request("logging/setLevel", level="info")
        await client.call("list_agents")
        await client.call("agent_result", run="r9")
        all_levels = logged(client)
        await client.request("logging/setLevel", level="warning")
        await client.call("list_agents")
        await client.call("agent_result", run="r9")
        warnings = logged(client)
        unknown = await client.request("logging/setLevel", level="loud")
        ping = await client.request("ping")

    assert (capabilities["logging"], capabilities["completions"]) == ({}, {})
    assert before == []
    assert set_level["result"] == ping["result"] == {}
    assert all_levels == [("info", "list_agents", False), ("warning", "agent_result", True)]
    assert warnings == [("warning", "agent_result", True)]
    assert unknown["error"]["code"] == -32602


async def test_a_client_without_a_handshake_asks_for_log_messages_with_each_request(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path)) as client:
        await client.request("tools/call", name="list_agents", arguments={}, _meta=META)
        before = logged(client)
        asks = META | {f"{PROTOCOL}/logLevel": "info"}
        await client.request("tools/call", name="list_agents", arguments={}, _meta=asks)
        after = logged(client)
        gone = await client.request("logging/setLevel", level="info", _meta=META)

    assert (before, after) == ([], [("info", "list_agents", False)])
    assert gone["error"]["code"] == -32601


async def test_ids_of_runs_are_completed_and_all_else_has_no_values(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path)) as client:
        await client.handshake()
        run = (await client.call("run_agent", task="find it"))["run"]

        async def values(ref: dict[str, str], name: str, value: str) -> object:
            argument = {"name": name, "value": value}
            return (await client.request("completion/complete", ref=ref, argument=argument))["result"]["completion"]

        completed = [await values(TEMPLATE, "id", begun) for begun in ("", run[:4], "r-none")]
        others = [
            await values(TEMPLATE, "other", ""),
            await values({"type": "ref/resource", "uri": "file:///etc/{id}"}, "id", ""),
            await values({"type": "ref/prompt", "name": "reader"}, "task", "Re"),
        ]

    none: dict[str, Any] = {"values": [], "total": 0, "hasMore": False}
    assert completed == [{"values": [run], "total": 1, "hasMore": False}] * 2 + [none]
    assert others == [none] * 3


async def test_methods_of_tasks_are_refused_to_a_client_that_has_not_announced_them(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path)) as client:
        refused = [
            (await client.request(f"tasks/{verb}", taskId="r1", inputResponses={}, _meta=META))["error"]
            for verb in ("get", "update", "cancel")
        ]

    extensions: dict[str, Any] = {"io.modelcontextprotocol/tasks": {}}
    assert [error["code"] for error in refused] == [-32021] * 3
    assert [error["data"] for error in refused] == [{"requiredCapabilities": {"extensions": extensions}}] * 3
