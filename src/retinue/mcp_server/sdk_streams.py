"""The SDK's server for one client on streams of ours; like `sdk`, this module is imported late."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from retinue.mcp_server.connection import ClientConnection
from retinue.mcp_server.sdk import Context, make_server

Deliver = Callable[[dict[str, Any] | None], Awaitable[None]]


async def serve(
    connection: ClientConnection,
    begin: Callable[[Deliver], Coroutine[Any, Any, None]],
    send: Callable[[object, bytes], None],
) -> None:
    """Serve one client: `begin` is called with a function that takes its messages, `send` with each answer."""

    async def find(context: Context) -> ClientConnection:
        return connection

    server = make_server(find)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage](0)

    async def deliver(message: dict[str, Any] | None) -> None:
        try:
            await to_server.send(SessionMessage(types.jsonrpc_message_adapter.validate_python(message, by_name=False)))
        except ValueError:  # a message of no known kind
            id = None if message is None else message.get("id")
            if message is not None and "method" in message and id is not None:
                error = types.ErrorData(code=types.INVALID_REQUEST, message="the message is not a JSON-RPC request")
                answer = types.JSONRPCError(jsonrpc="2.0", id=None, error=error)
                send(None, answer.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async def forward() -> None:
        async for message in from_server:
            body = message.message
            answered = getattr(body, "id", None) if not isinstance(body, types.JSONRPCRequest) else None
            send(answered, body.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async with anyio.create_task_group() as group:
        group.start_soon(forward)
        group.start_soon(begin, deliver)
        await server.run(from_client, to_client, server.create_initialization_options())
        group.cancel_scope.cancel()
