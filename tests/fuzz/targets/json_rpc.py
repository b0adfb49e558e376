"""Messages of MCP servers, agent programs and editors: any lines are handled, and what is sent back is JSON-RPC.

The first byte of an input chooses its sender.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import mcp_types
import msgspec
from pydantic import ValidationError

from retinue.acp_server.server import AcpServer
from retinue.core.errors import BadInput, RetinueError
from retinue.core.messages import Delta
from retinue.core.text import NOT_JSON
from retinue.mcp_client import McpServer
from retinue.mcp_client.definitions import MAX_NAME, MAX_SCHEMA, listed
from retinue.mcp_client.tools import content_text
from retinue.net.json_rpc import JsonRpcHandler, JsonRpcPeer
from retinue.providers.acp import AgentProgram
from retinue.providers.acp.session import AgentSession, _usage
from tests.fuzz.target import Target


def check(data: bytes) -> None:
    """The lines `data[1:]` are handled."""
    match (data[0] if data else 0) % 3:
        case 0:
            asyncio.run(as_editor(data[1:]))
        case 1:
            asyncio.run(as_agent(data[1:]))
        case _:
            as_mcp_server(data[1:])


async def as_editor(data: bytes) -> None:
    """An editor of `retinue acp`, which works in a folder already: so it enters no other one, and opens no session."""

    async def refuse(*arguments: Any) -> Any:
        raise BadInput("no session is opened")

    def no_store() -> Any:
        raise BadInput("there is no store")

    server = AcpServer(refuse, no_store)
    server._folder = "/the folder of the editor"  # pyright: ignore[reportPrivateUsage]
    server.peer = await speak(server, data)
    await server.close()


async def as_agent(data: bytes) -> None:
    """An agent program with a session `s`, in a turn of a run."""
    session = AgentSession("agent", AgentProgram(command=("agent",)), "run", cast("Any", None))
    session.session_id, session.in_turn = "s", True
    published: list[Delta] = []
    session.listen(published.append)
    speaking = asyncio.ensure_future(speak(session, data))
    for _ in range(20):
        await asyncio.sleep(0)
        for call in tuple(session.calls.values()):
            if call.permission is not None and not call.permission.done():
                call.permission.set_result(None)
    await speaking
    for call in session.calls.values():
        made = call.as_call()
        assert isinstance(json.loads(made.arguments), dict)
        assert isinstance(call.result, str)
        assert isinstance(call.title, str)
    msgspec.json.encode(published)


async def speak(handler: JsonRpcHandler, data: bytes) -> JsonRpcPeer:
    """Let a peer take these lines; every line that it answers is a message."""
    sent: list[bytes] = []
    peer = JsonRpcPeer(handler, sent.append, strict=True)

    async def lines() -> AsyncGenerator[bytes]:
        for line in data.split(b"\n"):
            yield line
        for _ in range(10):
            await asyncio.sleep(0)

    await peer.serve(lines())
    for line in sent:
        message = json.loads(line)
        assert b"\n" not in line
        assert message["jsonrpc"] == "2.0"
        assert ("result" in message) != ("error" in message)
    return peer


def as_mcp_server(data: bytes) -> None:
    """A server that answers with lists of tools and with contents."""
    for line in data.split(b"\n"):
        try:
            message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            message = None
        if message is not None:
            message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            value: object = msgspec.json.decode(line)
        except NOT_JSON:
            continue
        if not isinstance(value, dict):
            continue
        fields = cast("dict[str, Any]", value)
        tools = fields.get("tools")
        if isinstance(tools, list):
            dicts = [cast("dict[str, Any]", each) for each in cast("list[object]", tools) if isinstance(each, dict)]
            check_list(dicts)
        try:
            result = mcp_types.CallToolResult.model_validate(fields)
        except ValidationError:
            continue
        text = content_text(result.content)
        assert "\x1b" not in text
        _usage(fields)


def check_list(tools: list[dict[str, Any]]) -> None:
    try:
        found = listed(tools, McpServer(name="test", command="x"))
    except RetinueError:
        return
    names = [definition.name_for("test") for definition in found.definitions.values()]
    assert len(names) == len(set(names))
    for definition in found.definitions.values():
        name = definition.name_for("test")
        assert name.startswith("mcp__test__")
        assert len(name) <= MAX_NAME
        assert name.isascii()
        assert len(definition.schema) <= MAX_SCHEMA
        assert msgspec.json.decode(definition.encoded(), type=type(definition)) == definition
    assert all(complaint.isprintable() for complaint in found.complaints)


_UPDATE = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":'

TARGET = Target(
    check=check,
    seeds=(
        b'\x00{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n',
        b'\x00{"jsonrpc":"2.0","id":"a","method":"session/new","params":{"cwd":"/w","mcpServers":[{"name":"x",'
        b'"command":"y","args":["z"],"env":[{"name":"A","value":"b"}]},{"type":"http","name":"u","url":"https://h/m"}]}}',
        b'\x00{"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"acp-1","prompt":[]}}\n[]\n{',
        b'\x00{"jsonrpc":"2.0","id":3,"method":"session/load","params":{"sessionId":"acp-1","cwd":"/w"}}',
        b"\x01" + _UPDATE + b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"hello"}}}}',
        b"\x01" + _UPDATE + b'{"sessionUpdate":"tool_call","toolCallId":"c1","title":"Read","kind":"read","status":'
        b'"completed","rawInput":{"path":"a"},"locations":[{"path":"a"}],"content":[{"type":"diff","path":"a",'
        b'"oldText":"b","newText":"c"},{"type":"content","content":{"type":"text","text":"d"}}]}}}',
        b'\x01{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"s","toolCall":'
        b'{"toolCallId":"c1"},"options":[{"optionId":"y","kind":"allow_once"}]}}',
        b"\x01" + _UPDATE + b'{"sessionUpdate":"usage_update","cost":{"amount":0.5,"currency":"USD"}}}}',
        b'\x02{"tools":[{"name":"a b","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}',
        b'\x02{"content":[{"type":"text","text":"\\u001b[31m"},{"type":"image","data":"aGk=","mimeType":"image/png"}]}',
        b'\x02{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}\n{"jsonrpc":"2.0","method":"notifications/progress"}',
    ),
    words=(
        *(b"null", b"true", b"[]", b"{}", b'""', b"0", b"-1", b"1e999", b"99999999999999999999", b'"\\ud83d"', b"\n"),
        *(b'"jsonrpc":"2.0"', b'"id":', b'"method":', b'"params":', b'"result":', b'"error":', b'"sessionId":"s"'),
        *(b'"update":', b'"sessionUpdate":', b'"tool_call_update"', b'"toolCallId":', b'"content":', b'"type":'),
        *(b'"rawInput":', b'"rawOutput":', b'"options":', b'"cost":', b'"amount":', b'"tools":', b'"inputSchema":'),
        *(b'"name":', b'"annotations":', b'"description":', b'"mcpServers":', b'"cwd":', b'"prompt":', b"[" * 2000),
        *(b'"resource":', b'"uri":', b'"blob":', b'"usage":', b'"_meta":', b'"session/cancel"', b'"session/list"'),
    ),
)
