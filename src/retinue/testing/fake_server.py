"""A local HTTP server for tests: records requests and sends scripted responses, independent of any vendor's format.

Responses may be errors, silence, a broken stream, or bytes sent one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec
from aiohttp import web

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """One request. `headers` have lower-case names; `body` is the decoded JSON; `attempt` counts identical requests.

    `port` is the client's, which is the same for all requests on one connection.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: dict[str, Any]
    attempt: int = 1
    port: int = 0
    query: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeResponse:
    """One response.

    Each of `pieces` is sent separately, `every` seconds apart, after `delay` seconds; `chunk` splits them into smaller
    parts. `ending` is what follows the last piece: a proper end (`whole`), a closed connection (`cut`), or `silence`
    until the client disconnects. With `status` 0 nothing is sent before the ending.
    """

    status: int = 200
    headers: Mapping[str, str] | None = None
    pieces: tuple[bytes, ...] = ()
    delay: float = 0.0
    every: float = 0.0
    chunk: int | None = None
    ending: Literal["whole", "cut", "silence"] = "whole"


Responder: TypeAlias = Callable[[ReceivedRequest], FakeResponse]


class FakeServer:
    """The server, which listens at `url` inside an `async with` block; `respond` returns the response to a request.

    >>> async def example() -> tuple[str, str]:
    ...     import aiohttp
    ...     async with FakeServer(lambda request: FakeResponse(pieces=(b"received ", request.raw))) as server:
    ...         async with aiohttp.ClientSession() as session, session.post(server.url, data=b"hi") as response:
    ...             return await response.text(), server.requests[0].method
    >>> asyncio.run(example())
    ('received hi', 'POST')
    """

    def __init__(self, respond: Responder, *, host: str = HOST, port: int = 0) -> None:
        self.requests: list[ReceivedRequest] = []
        """All requests, in the order of their arrival."""
        self._respond = respond
        self._host, self._port = host, port
        self._attempts: dict[bytes, int] = {}
        self._closing = asyncio.Event()
        self._runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        """The server's address, without a path."""
        return f"http://{self._host}:{self._port}"

    async def __aenter__(self) -> FakeServer:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def open(self) -> None:
        self._runner = web.ServerRunner(
            web.Server(self._serve, handler_cancellation=True, access_log=None), shutdown_timeout=1.0
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=4096)
        await site.start()
        self._port = int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening, and end silent responses."""
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = await request.content.read()  # `request.read` has a size limit, which conversations exceed
        attempt = self._attempts[raw] = self._attempts.get(raw, 0) + 1
        received = ReceivedRequest(
            method=request.method,
            path=request.path,
            headers={name.lower(): value for name, value in request.headers.items()},
            raw=raw,
            body=_decoded(raw),
            attempt=attempt,
            port=_port(request),
            query=request.query_string,
        )
        self.requests.append(received)
        return await self._send(request, self._respond(received))

    async def _send(self, request: web.BaseRequest, fake: FakeResponse) -> web.StreamResponse:
        await asyncio.sleep(fake.delay)
        response = web.StreamResponse(status=fake.status or 200, headers=fake.headers)
        if fake.status:
            await response.prepare(request)
            for number, piece in enumerate(fake.pieces):
                if number and fake.every:
                    await asyncio.sleep(fake.every)
                for start in range(0, len(piece), fake.chunk or len(piece) or 1):
                    await response.write(piece[start : start + (fake.chunk or len(piece))])
                    if fake.chunk:
                        await asyncio.sleep(0)  # let the client read, otherwise the parts are joined again
        match fake.ending:
            case "whole" if fake.status:
                await response.write_eof()
            case "silence":
                await self._closing.wait()
                _disconnect(request)
            case _:
                _disconnect(request)
        return response


def _port(request: web.BaseRequest) -> int:
    peer = request.transport.get_extra_info("peername") if request.transport else None
    return int(peer[1]) if peer else 0


def _disconnect(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.close()


def _decoded(raw: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
