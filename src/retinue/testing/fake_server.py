"""A real HTTP server on this machine that plays a vendor: it remembers what it was asked, and answers as it is told.

It knows nothing of any vendor's format. What it is told may be unkind: errors, silence, a stream that breaks off, one
byte at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeAlias

import msgspec
from aiohttp import web

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One request: `headers` by their names in lower case, `body` decoded, how often these bytes have come, and the
    client's `port`, which is the same for requests on one connection.
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
class Answer:
    """One response, byte by byte.

    Each of `pieces` is sent on its own, `every` so many seconds, after `delay` seconds of silence; `chunk` cuts them
    smaller. `ending` says what follows the last of them: the proper end, a broken connection, or nothing until the
    client goes. With `status` 0 there is no response at all, only that ending.
    """

    status: int = 200
    headers: Mapping[str, str] | None = None
    pieces: tuple[bytes, ...] = ()
    delay: float = 0.0
    every: float = 0.0
    chunk: int | None = None
    ending: Literal["whole", "cut", "silence"] = "whole"


Answering: TypeAlias = Callable[[Heard], Answer]


class FakeServer:
    """The server, open inside of an `async with` block; `url` is where it listens.

    >>> async def story() -> tuple[str, str]:
    ...     import aiohttp
    ...     async with FakeServer(lambda heard: Answer(pieces=(b"you said ", heard.raw))) as server:
    ...         async with aiohttp.ClientSession() as session, session.post(server.url, data=b"hi") as response:
    ...             return await response.text(), server.heard[0].method
    >>> asyncio.run(story())
    ('you said hi', 'POST')
    """

    def __init__(self, answering: Answering, *, host: str = HOST, port: int = 0) -> None:
        self.heard: list[Heard] = []
        """Every request, in the order in which they came."""
        self._answering = answering
        self._host, self._port = host, port
        self._asked: dict[bytes, int] = {}
        self._closing = asyncio.Event()
        self._runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://{self._host}:{self._port}"

    async def __aenter__(self) -> FakeServer:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Begin to listen."""
        self._runner = web.ServerRunner(
            web.Server(self._serve, handler_cancellation=True, access_log=None), shutdown_timeout=1.0
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=4096)
        await site.start()
        self._port = int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening; whoever waits in silence is let go."""
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = await request.content.read()  # `request.read` has a limit; models read long conversations
        attempt = self._asked[raw] = self._asked.get(raw, 0) + 1
        heard = Heard(
            method=request.method,
            path=request.path,
            headers={name.lower(): value for name, value in request.headers.items()},
            raw=raw,
            body=_decoded(raw),
            attempt=attempt,
            port=_port(request),
            query=request.query_string,
        )
        self.heard.append(heard)
        return await self._play(request, self._answering(heard))

    async def _play(self, request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
        await asyncio.sleep(answer.delay)
        response = web.StreamResponse(status=answer.status or 200, headers=answer.headers)
        if answer.status:
            await response.prepare(request)
            for number, piece in enumerate(answer.pieces):
                if number and answer.every:
                    await asyncio.sleep(answer.every)
                for start in range(0, len(piece), answer.chunk or len(piece) or 1):
                    await response.write(piece[start : start + (answer.chunk or len(piece))])
                    if answer.chunk:
                        await asyncio.sleep(0)  # let the client read, or the pieces would be one again
        match answer.ending:
            case "whole" if answer.status:
                await response.write_eof()
            case "silence":
                await self._closing.wait()
                _break(request)
            case _:
                _break(request)
        return response


def _port(request: web.BaseRequest) -> int:
    peer = request.transport.get_extra_info("peername") if request.transport else None
    return int(peer[1]) if peer else 0


def _break(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.close()


def _decoded(raw: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
