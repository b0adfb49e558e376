"""MCP over streamable HTTP: access checks, and the connection that a request belongs to.

A client with a handshake is known by its session id, a client without one by its bearer token. Each has a root run and
a retinue session of its own, so that it reaches no other client's runs. Clients without a handshake and without a
token cannot be told apart: they share a connection that names runs by their ids alone.

Importing this module imports the SDK.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

import mcp_types as types
import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from retinue.core.errors import BadInput, RetinueError
from retinue.local.protocol_streams import MAX_LINE
from retinue.mcp_server.connection import ClientConnection
from retinue.mcp_server.sdk import Context, make_server
from retinue.net.loopback import is_localhost

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATH = "/mcp"

MAX_CLIENTS = 1000
"""Clients with an open connection; more are refused until one has been idle for `IDLE_SECONDS`."""

IDLE_SECONDS = 30 * 60.0
"""Seconds without a request after which the root run of a client is closed; its runs go on."""

LOOK_SECONDS = 30.0

MIN_TOKEN = 16
"""Characters of the shortest token that is accepted beyond loopback."""

ANONYMOUS = ""
"""Identity of all clients without a session and without a token."""


class Connect(Protocol):
    """Opens a connection in a retinue session; one that is not `identified` is for several clients."""

    def __call__(self, session: str, *, identified: bool) -> Awaitable[ClientConnection]: ...


class HttpAddress(NamedTuple):
    """An address to listen on.

    >>> HttpAddress.parse("127.0.0.1:8765"), HttpAddress.parse("[::1]:0"), HttpAddress.parse("8765").host
    (HttpAddress(host='127.0.0.1', port=8765), HttpAddress(host='::1', port=0), '127.0.0.1')
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HttpAddress:
        """Read `HOST:PORT`, or a port of 127.0.0.1; raises `BadInput`."""
        host, _, port = text.rpartition(":")
        if not port.isascii() or not port.isdecimal() or int(port) > 65_535:
            raise BadInput(f"--http {text[:100]!r} is not valid: give HOST:PORT, such as 127.0.0.1:8765")
        return cls(host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port))

    @property
    def is_loopback(self) -> bool:
        return is_localhost(self.host)

    def url(self, port: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}{PATH}"


def check_access(address: HttpAddress, tokens: Sequence[str]) -> None:
    """Raise `BadInput` for an address beyond loopback without a token, and for a token that can be guessed."""
    if not address.is_loopback and not tokens:
        raise BadInput(
            f"--http {address.host} can be reached from other machines: name the variable of a bearer token with "
            "--token-env NAME, or listen on 127.0.0.1"
        )
    if any(len(token) < MIN_TOKEN for token in tokens):
        raise BadInput(f"a token of --token-env is too short: use at least {MIN_TOKEN} random characters")


async def serve_http(
    address: HttpAddress,
    connect: Connect,
    stop: asyncio.Event,
    *,
    tokens: Sequence[str],
    shares: bool,
    announce: Callable[[str], object],
) -> None:
    """Serve clients until `stop` is set. `announce` is called with the URL as soon as clients can connect.

    - `tokens`: bearer tokens of which a request must have one; empty accepts every request on loopback.
    - `shares`: whether clients without an identity may make calls: the tools name runs by ids that no other client
      can guess.

    Raises `BadInput` if the address cannot be used.
    """
    listener = _listen(address)
    async with _Clients(connect).closing() as clients:

        async def find(context: Context) -> ClientConnection:
            identity: str = ANONYMOUS if context.request is None else context.request.scope["retinue.client"]
            if identity == ANONYMOUS and context.method == "tools/call" and not shares:
                raise MCPError(types.INVALID_REQUEST, "send a bearer token: it tells this client from others")
            try:
                return await clients.connection(identity)
            except RetinueError as error:
                raise MCPError(types.INTERNAL_ERROR, str(error)) from error

        manager = StreamableHTTPSessionManager(
            make_server(find),
            session_idle_timeout=IDLE_SECONDS,
            max_request_body_size=MAX_LINE,
            max_sessions=MAX_CLIENTS,
        )
        app = _Access(manager.handle_request, address, tokens, clients)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=2
        )
        server = _Server(config)
        async with manager.run():
            serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
            stopping = asyncio.get_running_loop().create_task(stop.wait())
            try:
                announce(address.url(listener.getsockname()[1]))
                await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                clients.leave()
                stopping.cancel()
                server.should_exit = True
                await asyncio.gather(serving, stopping, return_exceptions=True)


def _listen(address: HttpAddress) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(1024)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise BadInput(f"cannot listen on {address.host}:{address.port}: {error.strerror or error}") from error
    return listener


class _Server(uvicorn.Server):
    """A server that leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class _Access:
    """Checks path, host, origin and token of a request before anything of its body is read."""

    def __init__(self, app: ASGIApp, address: HttpAddress, tokens: Sequence[str], clients: _Clients) -> None:
        self._app = app
        self._is_loopback = address.is_loopback
        self._tokens = tuple(token.encode() for token in tokens)
        self._clients = clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        token = _bearer(headers)
        if (refusal := self._refusal(scope["path"], headers, token)) is not None:
            await refusal(scope, receive, send)
            return
        identity = _identity(headers, token)
        scope["retinue.client"] = identity
        if token:
            digest = _digest(token)
            scope["user"] = AuthenticatedUser(AccessToken(token=digest, client_id=digest, scopes=[]))
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with self._clients.request(identity):
            await self._app(scope, receive, watch)
        if scope["method"] == "DELETE" and status < 400 and identity != ANONYMOUS:
            await self._clients.close(identity)

    def _refusal(self, path: str, headers: Headers, token: str) -> ASGIApp | None:
        host = _host_name(headers.get("host", ""))
        if self._is_loopback and not is_localhost(host):  # a name of another site that resolves to this machine
            return PlainTextResponse("the Host header is not this machine", 421)
        if not self._is_own_origin(headers.get("origin"), headers.get("host", "")):
            return PlainTextResponse("requests of pages of other sites are refused", 403)
        if self._tokens and not any(hmac.compare_digest(token.encode(), each) for each in self._tokens):
            return PlainTextResponse("a bearer token is needed", 401, {"WWW-Authenticate": "Bearer"})
        return None if path == PATH else PlainTextResponse(f"there is only {PATH}", 404)

    def _is_own_origin(self, origin: str | None, host: str) -> bool:
        if origin is None:
            return True
        try:
            place = urlsplit(origin)
            return is_localhost(place.hostname or "") if self._is_loopback else place.netloc == host
        except ValueError:
            return False


class _Client:
    """The connection of one client, and its use."""

    def __init__(self, now: float) -> None:
        self.opening: asyncio.Task[ClientConnection] | None = None
        self.requests = 0
        self.last_used = now


class _Clients:
    """The open connections, by identity."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._clients: dict[str, _Client] = {}
        self._loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def closing(self) -> AsyncGenerator[_Clients]:
        """Close clients that are idle, and all of them at the end of the block."""
        idle = self._loop.create_task(self._close_idle())
        try:
            yield self
        finally:
            idle.cancel()
            await asyncio.gather(idle, return_exceptions=True)
            await asyncio.gather(*map(self.close, tuple(self._clients)), return_exceptions=True)

    @contextmanager
    def request(self, identity: str) -> Generator[None]:
        """The time of one HTTP request, in which its client is not idle."""
        client = self._clients.setdefault(identity, _Client(self._loop.time()))
        client.requests += 1
        try:
            yield
        finally:
            client.requests -= 1
            client.last_used = self._loop.time()
            if client.opening is None and not client.requests:  # a session id that is not valid, for example
                self._clients.pop(identity, None)

    async def connection(self, identity: str) -> ClientConnection:
        """The connection of a client, opened at its first request that needs one."""
        client = self._clients.setdefault(identity, _Client(self._loop.time()))
        if client.opening is None:
            if sum(each.opening is not None for each in self._clients.values()) > MAX_CLIENTS:
                raise BadInput(f"{MAX_CLIENTS} clients are connected, which is the limit")
            opening = self._connect(_session(identity), identified=identity != ANONYMOUS)
            client.opening = self._loop.create_task(_opened(opening))
        try:
            return await asyncio.shield(client.opening)
        except RetinueError:
            client.opening = None
            raise

    async def close(self, identity: str) -> None:
        """Close a client's connection; its runs go on."""
        client = self._clients.pop(identity, None)
        if client is not None and client.opening is not None:
            with suppress(RetinueError, asyncio.CancelledError):
                await (await client.opening).close()

    def leave(self) -> None:
        """The server ends: calls that are cancelled from now on leave their runs at work."""
        for client in self._clients.values():
            if client.opening is not None and client.opening.done() and not client.opening.cancelled():
                with suppress(RetinueError):
                    client.opening.result().leave()

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            before = self._loop.time() - IDLE_SECONDS
            for identity, client in tuple(self._clients.items()):
                if not client.requests and client.last_used < before:
                    await self.close(identity)


async def _opened(opening: Awaitable[ClientConnection]) -> ClientConnection:
    return await opening


def _bearer(headers: Headers) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _identity(headers: Headers, token: str) -> str:
    """The identity of a client: of its session if it speaks a protocol with sessions, else of its token.

    The SDK accepts a session id with the token that it was made with, and no other.
    """
    version = headers.get("mcp-protocol-version")
    has_sessions = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
    if has_sessions:
        session = headers.get("mcp-session-id", "")
        return f"session {session}" if session else ANONYMOUS
    return f"token {token}" if token else ANONYMOUS


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _session(identity: str) -> str:
    """The retinue session of a client; its name does not tell the secret that it is made of."""
    return f"mcp-http-{_digest(identity)[:32]}" if identity else "mcp-http"


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
