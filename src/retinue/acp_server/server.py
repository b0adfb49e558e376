"""The agent side of the Agent Client Protocol: the methods that an editor calls, and the sessions that it opens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, cast
from uuid import uuid4

from retinue.acp_server.session import AcpSession, OpenedSession
from retinue.app.engine_types import Approver
from retinue.app.read_only import ReadOnlyClient
from retinue.core.commands import RunQuery
from retinue.core.errors import RetinueError
from retinue.core.run import CHAT
from retinue.core.text import clean_line, rfc3339
from retinue.local.protocol_streams import MAX_LINE, LineStreams, PrivateStreams
from retinue.mcp_client import McpServer
from retinue.net.json_rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    JsonRpcPeer,
    RpcError,
)
from retinue.tools.path_walk import change_to
from retinue.version import __version__

PROTOCOL_VERSION = 1

PREFIX = "acp-"
"""The beginning of the names of sessions that editors have opened."""

MAX_SESSIONS = 32
"""Sessions that one editor may have open at the same time."""

PAGE = 50
"""Sessions in one answer of `session/list`."""

SETTLE_SECONDS = 5.0
"""Time for open prompts to end after the editor has closed its end."""


SessionOpener = Callable[[str, tuple[McpServer, ...], Approver], Awaitable[OpenedSession]]
"""Makes the retinue of a session, by its name, the MCP servers of the editor, and the approver."""


class AcpServer:
    """Serves one editor."""

    def __init__(self, open_session: SessionOpener, open_store: Callable[[], ReadOnlyClient]) -> None:
        self._open_session = open_session
        self._open_store = open_store
        self._sessions: dict[str, AcpSession] = {}
        self._folder = ""
        """The folder of all sessions, once there is one: this process has changed to it."""
        self._opening = asyncio.Lock()
        self.peer: JsonRpcPeer

    # What the editor sends

    async def requested(self, method: str, params: dict[str, Any]) -> object:
        try:
            match method:
                case "initialize":
                    return self._initialize()
                case "authenticate":
                    return {}
                case "session/new":
                    return await self._new(params)
                case "session/load":
                    return await self._load(params)
                case "session/list":
                    return await self._list(params)
                case "session/prompt":
                    return await self._session(params).prompt(_list(params, "prompt"))
                case "session/set_mode":
                    return await self._session(params).set_mode(_text(params, "modeId"))
                case "session/set_config_option":
                    return await self._session(params).set_option(_text(params, "configId"), params.get("value"))
                case "session/close":
                    await self._close(_text(params, "sessionId"))
                    return {}
                case _:
                    raise RpcError(METHOD_NOT_FOUND, f"there is no method {clean_line(method)[:100]}")
        except RetinueError as error:
            raise RpcError(INTERNAL_ERROR, str(error)) from error

    def notified(self, method: str, params: dict[str, Any]) -> None:
        if method == "session/cancel" and (session := self._sessions.get(str(params.get("sessionId")))) is not None:
            session.cancel()

    def _initialize(self) -> object:
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": False},
                "sessionCapabilities": {"list": {}, "close": {}},
            },
            "agentInfo": {"name": "retinue", "title": "Retinue", "version": __version__},
            "authMethods": [],
        }

    # Sessions

    async def _new(self, params: Mapping[str, Any]) -> object:
        session = await self._open(f"{PREFIX}{uuid4()}", params)
        return {"sessionId": session.name, **session.state()}

    async def _load(self, params: Mapping[str, Any]) -> object:
        name = _text(params, "sessionId")
        if not name.startswith(PREFIX):
            raise RpcError(INVALID_PARAMS, f"there is no session {clean_line(name)[:100]!r} of an editor")
        await self._close(name)
        session = await self._open(name, params)
        if not await session.replay():
            await self._close(name)
            raise RpcError(INVALID_PARAMS, f"there is no session {clean_line(name)[:100]!r}")
        return session.state()

    async def _open(self, name: str, params: Mapping[str, Any]) -> AcpSession:
        servers = tuple(_server(each) for each in _list(params, "mcpServers"))
        async with self._opening:
            if len(self._sessions) >= MAX_SESSIONS:
                raise RpcError(INVALID_REQUEST, f"{MAX_SESSIONS} sessions are open: close one with session/close")
            self._enter(_text(params, "cwd"))
            session = AcpSession(name, self.peer)
            await session.open(await self._open_session(name, servers, session.decide))
            self._sessions[name] = session
        return session

    def _enter(self, folder: str) -> None:
        """Work in this folder from now on. Settings and workspaces are those of one folder for the whole process."""
        if self._folder and not _is_same(folder, self._folder):
            raise RpcError(
                INVALID_PARAMS,
                f"this process works in {self._folder}: start another one for {clean_line(folder)[:300]}",
            )
        try:
            if not os.path.isabs(folder):
                raise RpcError(INVALID_PARAMS, "cwd: expected an absolute path")
            change_to(folder)
        except (OSError, ValueError) as error:
            raise RpcError(INVALID_PARAMS, f"cwd cannot be entered: {clean_line(folder)[:300]!r}") from error
        self._folder = folder

    def _session(self, params: Mapping[str, Any]) -> AcpSession:
        name = _text(params, "sessionId")
        if name not in self._sessions:
            raise RpcError(INVALID_PARAMS, f"session {clean_line(name)[:100]!r} is not open")
        return self._sessions[name]

    async def _list(self, params: Mapping[str, Any]) -> object:
        """The sessions of editors in the store, latest first, as far as they had a prompt."""
        folder, cursor = params.get("cwd"), params.get("cursor")
        start = int(cursor) if isinstance(cursor, str) and cursor.isdecimal() and len(cursor) < 10 else 0
        found: dict[str, dict[str, object]] = {}
        async with self._open_store() as client:
            query = RunQuery(roots_only=True)
            for view in await client.supervisor.with_tasks(await client.supervisor.list(query)):
                name = view.session_id
                if view.label != CHAT or not name.startswith(PREFIX):
                    continue
                if name in found:
                    found[name]["title"] = clean_line(view.task)[:200]  # the first prompt of the conversation
                    continue
                run = await client.replay(view.run_id)
                place = run.run_spec.workspace
                if isinstance(folder, str) and not _is_same(place, folder):
                    continue
                found[name] = {
                    "sessionId": name,
                    "cwd": place,
                    "title": clean_line(view.task)[:200],
                    "updatedAt": rfc3339(view.ended_at or view.started_at),
                }
        page = list(found.values())[start : start + PAGE]
        more = {"nextCursor": str(start + PAGE)} if len(found) > start + PAGE else {}
        return {"sessions": page, **more}

    async def _close(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            await session.close()

    async def close(self) -> None:
        """Close all sessions; what was at work is interrupted, and goes on when its session is loaded."""
        for name in tuple(self._sessions):
            await self._close(name)

    async def settle(self) -> None:
        """Let prompts end that the editor sent before it closed its end, for a moment."""
        waiting = [session.idle() for session in self._sessions.values()]
        if waiting:
            await asyncio.wait([asyncio.ensure_future(each) for each in waiting], timeout=SETTLE_SECONDS)


async def serve(server: AcpServer, stop: asyncio.Event) -> None:
    """Serve the editor on stdin and stdout until it closes its end, or until `stop` is set."""
    with PrivateStreams() as (incoming, outgoing):
        wire = LineStreams(incoming, outgoing)
        server.peer = peer = JsonRpcPeer(server, wire.send, strict=True)
        loop = asyncio.get_running_loop()
        serving = loop.create_task(peer.serve(_lines(wire, peer, server)))
        stopping = loop.create_task(stop.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            peer.give_up("the agent is ending")
            for task in (serving, stopping):
                task.cancel()
            await asyncio.gather(serving, stopping, return_exceptions=True)
            await server.close()
            wire.close()


async def _lines(wire: LineStreams, peer: JsonRpcPeer, server: AcpServer) -> AsyncGenerator[bytes]:
    while (line := await wire.receive()) is not None:
        if line:
            yield line
        else:
            peer.refuse(None, INVALID_REQUEST, f"the message is longer than {MAX_LINE} bytes")
    await server.settle()


def _is_same(one: str, other: str) -> bool:
    return one == other or os.path.abspath(one) == os.path.abspath(other)


def _text(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise RpcError(INVALID_PARAMS, f"{name}: expected a string")
    return value


def _list(params: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = params.get(name, [])
    values = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(each, dict) for each in values):
        raise RpcError(INVALID_PARAMS, f"{name}: expected a list of objects")
    return cast("list[dict[str, Any]]", values)


def _server(fields: Mapping[str, Any]) -> McpServer:
    """An MCP server of the editor; raises `BadInput` or `RpcError` for one that cannot be used."""
    name = (
        "".join(each if each.isalnum() and each.isascii() else "-" for each in _text(fields, "name"))[:32] or "server"
    )
    if fields.get("type") == "http":
        return McpServer(name=name, url=_text(fields, "url"), header_values=_pairs(fields, "headers"))
    if fields.get("type") not in (None, "stdio"):
        raise RpcError(INVALID_PARAMS, f"mcpServers: {name} has a transport that is not supported: use stdio or http")
    arguments = fields.get("args", [])
    words = [str(each) for each in cast("list[object]", arguments)] if isinstance(arguments, list) else []
    return McpServer(name=name, command=_text(fields, "command"), args=tuple(words), values=_pairs(fields, "env"))


def _pairs(fields: Mapping[str, Any], name: str) -> dict[str, str]:
    return {_text(each, "name"): _text(each, "value") for each in _list(fields, name)}
