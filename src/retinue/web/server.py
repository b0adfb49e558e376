"""The server: the API and the page behind the guard, served by uvicorn until it is stopped."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import cast

import h11
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from retinue.core.errors import BadInput
from retinue.web import bodies
from retinue.web.access import SECURITY_HEADERS, AccessGuard, AccessTokens, too_many
from retinue.web.openapi import document
from retinue.web.routes import AdminRoutes, RunRoutes, healthz
from retinue.web.service import Handler, Service, answering, as_json
from retinue.web.static_files import TYPES, static_file

MAX_CONNECTIONS = 1000
HEADER_SECONDS = 10.0
"""How long the headers of a request may take, from the connection or the end of the request before it."""


def application(service: Service, tokens: AccessTokens, *, host: str, public: str = "") -> ASGIApp:
    """The whole server as an ASGI application; `host` and `public` are as for `AccessGuard`."""
    described = msgspec.json.encode(document())

    async def openapi(request: Request) -> Response:
        return Response(described, media_type="application/json")

    async def static(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        kind = TYPES.get(name)
        if kind is None:
            return Response(b'{"error":"there is no such file"}', status_code=404, media_type="application/json")
        return Response(static_file(name), headers={"Content-Type": kind})

    paths: dict[str, dict[str, Handler]] = {}
    for method, path, handler in (*RunRoutes(service).routes(), *AdminRoutes(service).routes()):
        paths.setdefault(path, {})[method] = answering(handler)
    routes = [
        Route("/healthz", healthz),
        Route("/openapi.json", openapi),
        Route("/", static),
        Route("/static/{name}", static),
        *(Route(path, _by_method(handlers), methods=[*handlers]) for path, handlers in paths.items()),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _problem, Exception: _bug})
    app.router.redirect_slashes = False  # behind a proxy the address would be a wrong one
    return AccessGuard(app, tokens, host=host, public=public)


def _by_method(handlers: Mapping[str, Handler]) -> Handler:
    """The handlers of one path, so that the answer to another method names them all."""

    async def handle(request: Request) -> Response:
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return handle


async def _bug(request: Request, error: Exception) -> Response:
    """The answer to a request that failed by a bug; the log has the traceback."""
    return as_json(bodies.Problem(error="internal error: the log of the server has more"), status=500)


async def _problem(request: Request, error: Exception) -> Response:
    """The answer to a path or a method that does not exist."""
    assert isinstance(error, HTTPException)
    body = msgspec.json.encode({"error": error.detail})
    return Response(body, error.status_code, headers=error.headers, media_type="application/json")


def listen(host: str, port: int) -> socket.socket:
    """A socket on that address; raises `BadInput` if it is taken or not one of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)  # a client that is quick waits until the server is ready
    except OSError as error:
        listener.close()
        raise BadInput(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
    return listener


async def serve(app: ASGIApp, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; open streams are closed then."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        http=_Protocol,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=64 * 1024,
    )
    server = _Server(config)
    working = asyncio.ensure_future(server.serve(sockets=[listener]))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


class _Protocol(H11Protocol):
    """HTTP/1.1 in which a request has to arrive soon: otherwise a few slow clients take all connections.

    What the protocol itself answers, to what is not HTTP and to too many connections, is JSON like other refusals.
    """

    _deadline: asyncio.TimerHandle | None = None

    def handle_events(self) -> None:
        is_full = len(self.connections) >= MAX_CONNECTIONS or len(self.tasks) >= MAX_CONNECTIONS
        self.app = too_many if is_full else self.config.loaded_app  # pyright: ignore[reportUnknownMemberType]
        super().handle_events()

    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode({"error": msg})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *SECURITY_HEADERS,
        ]
        answer = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def _watch(self) -> None:
        """Give the headers of the next request their time, unless a request is being answered."""
        if self._is_answering:
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._close)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self._deadline = None
        if not self._is_answering:
            self.transport.close()

    @property
    def _is_answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        return cycle is not None and not cycle.response_complete


class _Server(uvicorn.Server):
    """A server that leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
