"""MCP over stdin and stdout: bounded reading, protocol alone on stdout, and a handshake before the SDK is loaded.

Hosts leave out a server that does not answer within about a second, and importing the SDK takes most of that. So
`initialize`, `server/discover` and `tools/list` are answered here until the SDK is ready; it is given the same messages
then, and its own answers to requests that were answered are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from retinue.core.log_context import logger
from retinue.core.text import NOT_JSON
from retinue.local.protocol_streams import MAX_LINE, LineStreams, PrivateStreams
from retinue.mcp_server import answers
from retinue.mcp_server.connection import ClientConnection

log = logger("retinue.mcp")

LOAD_SECONDS, SETTLE_SECONDS = 6.0, 2.0
"""How long the SDK, and then answers, are awaited after the client has closed stdin."""

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601

Connect = Callable[[], Awaitable[ClientConnection]]
"""Opens the connection of the one client; called once, after `initialize` was answered."""


async def serve_stdio(connect: Connect, stop: asyncio.Event) -> None:
    """Serve the client on stdin and stdout until it closes stdin, or until `stop` is set."""
    with PrivateStreams() as (incoming, outgoing):
        wire = LineStreams(incoming, outgoing)
        session = _Session(wire)
        opening = asyncio.get_running_loop().create_task(session.open(connect))
        reading = asyncio.get_running_loop().create_task(session.read())
        stopping = asyncio.get_running_loop().create_task(stop.wait())
        try:
            await asyncio.wait({reading, stopping, opening}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and not stop.is_set():
                await session.settle(opening)
            if opening.done():
                opening.result()
        finally:
            session.leave()
            for task in (reading, stopping, opening):
                task.cancel()
            await asyncio.gather(reading, stopping, opening, return_exceptions=True)
            await session.close()
            wire.close()


class _Session:
    """One client on stdio, from the first line to the end."""

    def __init__(self, wire: LineStreams) -> None:
        self._wire = wire
        self._connection: ClientConnection | None = None
        self._opened = asyncio.Event()
        self._is_legacy = False
        """Whether the client began with `initialize`."""
        self._answered: set[object] = set()
        """Ids of requests that were answered here; the SDK answers them, too."""
        self._waiting: set[object] = set()
        """Ids of requests without an answer."""
        self._is_serving = asyncio.Event()
        """Set once the SDK takes messages."""
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._early: list[dict[str, Any]] = []
        """Messages that the SDK has not seen yet."""
        self._deliver: Callable[[dict[str, Any] | None], Awaitable[None]] | None = None

    # The life of a session

    async def open(self, connect: Connect) -> None:
        """Open the connection, load the SDK, and serve."""
        self._connection = connection = await connect()
        self._opened.set()
        self._answer_lists()
        sdk = await asyncio.to_thread(_load_sdk)
        await sdk.serve(connection, self._begin, self._send_from_sdk)

    async def settle(self, opening: asyncio.Task[None]) -> None:
        """Let requests be answered that the client sent before it closed its end, for a moment."""
        for event, seconds in ((self._is_serving, LOAD_SECONDS), (self._all_answered, SETTLE_SECONDS)):
            if self._waiting and not opening.done():
                happened = asyncio.get_running_loop().create_task(event.wait())
                await asyncio.wait({happened, opening}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                happened.cancel()

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.leave()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _begin(self, deliver: Callable[[dict[str, Any] | None], Awaitable[None]]) -> None:
        """The SDK is ready: hand it all messages so far, in their order, and those that follow."""
        while self._early:
            early, self._early = self._early, []
            for message in early:
                await deliver(message)
        self._deliver = deliver
        self._is_serving.set()

    # Messages

    async def read(self) -> None:
        """Take messages until the client closes its end."""
        while (line := await self._wire.receive()) is not None:
            message = self._parsed(line)
            if message is None:
                continue
            if "method" in message and _is_id(message.get("id")):
                self._waiting.add(message["id"])
                self._all_answered.clear()
            if self._deliver is not None:
                await self._deliver(message)
                continue
            self._early.append(message)
            self._answer_early(message)

    def _parsed(self, line: bytes) -> dict[str, Any] | None:
        """The message in a line; None for one that was answered with an error."""
        if not line:
            self._refuse(None, INVALID_REQUEST, f"the message is longer than {MAX_LINE} bytes")
            return None
        try:
            message: object = msgspec.json.decode(line)
        except NOT_JSON as error:
            self._refuse(None, PARSE_ERROR, f"the message is not JSON: {error}")
            return None
        if not isinstance(message, dict):
            self._refuse(None, INVALID_REQUEST, "the message is not a JSON-RPC object")
            return None
        return cast("dict[str, Any]", message)

    def _refuse(self, id: object, code: int, text: str) -> None:
        self._wire.send(msgspec.json.encode({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}))

    def _answer_early(self, message: dict[str, Any]) -> None:
        params: object = message.get("params")
        if message.get("method") == "initialize" and isinstance(params, dict) and not self._is_legacy:
            if _is_complete(cast("dict[str, Any]", params)):
                self._is_legacy = True
                self._forget_probes(message)
                self._answer(message, answers.initialized(cast("dict[str, Any]", params)))
            return
        if message.get("method") == "server/discover" and self._is_stateless(message):
            self._answer(message, answers.stateless(answers.discovered()))
        if self._opened.is_set():
            self._answer_lists()

    def _is_stateless(self, message: dict[str, Any]) -> bool:
        """Whether the SDK will take a request as one of a client without a handshake; if not, its error is the answer.

        The first request decides which of the two protocols the connection speaks.
        """
        return not self._is_legacy and all(map(_names_version, (self._early[0], message)))

    def _forget_probes(self, initialize: dict[str, Any]) -> None:
        """Refuse the requests before `initialize`: a client that probes for the other protocol has given up on them.

        The first request that the SDK sees decides which of the two protocols it speaks.
        """
        for message in self._early:
            if message is not initialize and _is_id(message.get("id")) and message["id"] not in self._answered:
                self._refuse(message["id"], METHOD_NOT_FOUND, "the connection began with initialize")
                self._mark_answered(message["id"])
        self._early = [initialize]

    def _answer_lists(self) -> None:
        """Answer the requests for tools that arrived so far."""
        if self._connection is None:
            return
        for message in self._early:
            if message.get("method") == "tools/list":
                if self._is_legacy:
                    self._answer(message, self._connection.tool_list())
                elif self._is_stateless(message):
                    self._answer(message, answers.stateless(self._connection.tool_list()))

    def _answer(self, message: dict[str, Any], result: dict[str, Any]) -> None:
        id: object = message.get("id")
        if _is_id(id) and id not in self._answered:
            self._answered.add(id)
            self._wire.send(msgspec.json.encode({"jsonrpc": "2.0", "id": id, "result": result}))
            self._mark_answered(id)

    def _send_from_sdk(self, id: object, line: bytes) -> None:
        """Send a message of the SDK, unless it answers a request that was answered here."""
        if _is_id(id) and id in self._answered:
            self._answered.discard(id)
        else:
            self._wire.send(line)
        self._mark_answered(id)

    def _mark_answered(self, id: object) -> None:
        self._waiting.discard(id)
        if not self._waiting:
            self._all_answered.set()


def _is_id(id: object) -> bool:
    return isinstance(id, (str, int)) and not isinstance(id, bool)


def _is_complete(params: dict[str, Any]) -> bool:
    """Whether the SDK will accept these parameters of `initialize`; if not, its error is the answer."""
    info: object = params.get("clientInfo")
    if not isinstance(info, dict) or not isinstance(params.get("capabilities"), dict):
        return False
    named = cast("dict[str, object]", info)
    return all(
        isinstance(each, str) for each in (params.get("protocolVersion"), named.get("name"), named.get("version"))
    )


def _names_version(message: dict[str, Any]) -> bool:
    """Whether a message has what each request of a client without a handshake has."""
    params: object = message.get("params")
    meta: object = cast("dict[str, object]", params).get("_meta") if isinstance(params, dict) else None
    if not isinstance(meta, dict):
        return False
    named = cast("dict[str, object]", meta)
    version, capabilities = named.get(f"{answers.META}protocolVersion"), named.get(f"{answers.META}clientCapabilities")
    return version in answers.STATELESS_VERSIONS and isinstance(capabilities, dict)


def _load_sdk() -> Any:
    from retinue.mcp_server import sdk_streams

    return sdk_streams
