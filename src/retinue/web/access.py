"""Access to the server: tokens and their roles, hosts, origins, sizes of bodies, and security headers.

Everything but `/healthz` needs the token, as a cookie or as a bearer token. A page of another site cannot use the
cookie: it is `SameSite=Strict`, and changes need `Content-Type: application/json` and an origin of this server. A host
name that is not one of this server is refused, also where it resolves to this machine. Behind a proxy, the address that
browsers use is the public URL: its name is one of this server, and its origin an own one whatever Host the proxy sends.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.core.errors import BadInput
from retinue.net.loopback import is_localhost

AccessRole: TypeAlias = Literal["act", "read"]

COOKIE = "retinue_token"
TOKEN_FILE = "web_token"
MIN_TOKEN = 16
MAX_BODY = 1 << 20
"""Bytes of the body of a request."""
BODY_SECONDS = 20.0
"""Longest pause between two parts of a body."""
WHOLE_BODY_SECONDS = 60.0
"""How long a body may take."""

SAFE = frozenset(("GET", "HEAD", "OPTIONS"))

SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class AccessTokens:
    """The tokens of a server: one that may act, and perhaps one that may only read."""

    def __init__(self, act: str, read: str | None = None) -> None:
        self._roles: list[tuple[bytes, AccessRole]] = [(act.encode(), "act")]
        if read is not None:
            self._roles.append((read.encode(), "read"))

    def role(self, token: str) -> AccessRole | None:
        """The role of a token; None if it is none of this server."""
        given = token.encode("utf-8", "surrogateescape")
        found: AccessRole | None = None
        for known, role in self._roles:  # all are compared, so that the time says nothing
            if hmac.compare_digest(known, given):
                found = found or role
        return found


def token_from(variable: str) -> str:
    """The token in an environment variable; raises `BadInput` if it is missing or short."""
    token = os.environ.get(variable, "").strip()
    if not re.fullmatch(rf"[A-Za-z0-9._~+/=-]{{{MIN_TOKEN},200}}", token):
        raise BadInput(
            f"the environment variable {variable} needs a token of {MIN_TOKEN} to 200 letters, digits and . _ ~ + / = -"
        )
    return token


def stored_token(home: Path) -> str:
    """The token in the state folder, which is made at the first start and which only its owner can read."""
    path = home / TOKEN_FILE
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except FileExistsError:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with open(descriptor, encoding="ascii", errors="replace") as file:
            found = os.fstat(file.fileno())
            token = file.read(200).strip()
        if len(token) < MIN_TOKEN or (hasattr(os, "geteuid") and found.st_uid not in (os.geteuid(), 0)):
            raise BadInput(f"{path} is no token of this user: remove it, and a new one is made") from None
        if found.st_mode & 0o077:
            os.chmod(path, 0o600)
        return token
    token = secrets.token_urlsafe(32)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token


def public_origin(url: str) -> str:
    """The origin of a public URL, as browsers write it; raises `BadInput` if it is no such URL."""
    try:
        parts = urlsplit(url.strip())
        name, port = parts.hostname, parts.port
    except ValueError:
        parts, name, port = urlsplit(""), None, None
    scheme = parts.scheme.lower()
    is_whole = parts.path in ("", "/") and not parts.query and not parts.fragment and "@" not in parts.netloc
    if scheme not in ("http", "https") or not name or not is_whole or not re.fullmatch(r"[a-z0-9._:-]+", name):
        raise BadInput(f"{url[:200]!r} is no public URL: expected https://NAME or https://NAME:PORT, without a path")
    shown = f"[{name}]" if ":" in name else name
    return f"{scheme}://{shown}" + ("" if port in (None, _DEFAULT_PORTS[scheme]) else f":{port}")


_DEFAULT_PORTS = {"http": 80, "https": 443}


class AccessGuard:
    """The outermost layer of the server; passes requests on with their role in `scope["role"]`.

    `host` is the name or address under which it listens, `public` the origin of its public URL, or empty.
    """

    def __init__(self, app: ASGIApp, tokens: AccessTokens, *, host: str, public: str = "") -> None:
        self._app = app
        self._tokens = tokens
        self._host = host.lower()
        self._public = public
        self._public_name = urlsplit(public).hostname

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no WebSockets
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = _headers(scope)
        send = _with_headers(send)
        if not self._is_own_host(headers.get("host", "")):
            await _refuse(send, 421, "this server does not have that name: use the address that it printed")
            return
        if scope["path"] == "/healthz":
            await self._app(scope, receive, send)
            return
        if scope["path"] == "/" and (token := _token_in_query(scope)) is not None:
            await self._enter(token, send)
            return
        role = self._role(headers)
        if role is None:
            await _refuse(send, 401, "give the token that `retinue serve` printed, as a cookie or as a bearer token")
        elif scope["method"] not in SAFE and (refusal := self._refusal(role, headers)) is not None:
            await _refuse(send, *refusal)
        else:
            scope["role"] = role
            await self._app(scope, _bounded(receive), send)

    def _is_own_host(self, given: str) -> bool:
        try:
            name = urlsplit(f"//{given}").hostname if given and not set(given) & set("/@?#\\") else None
        except ValueError:  # brackets around what is no address
            name = None
        if name is None:
            return False
        if is_localhost(name) or name in (self._host, self._public_name):
            return True
        try:  # a server that listens beyond this machine is reached by any of its addresses
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return not is_localhost(self._host)

    def _role(self, headers: dict[str, str]) -> AccessRole | None:
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._tokens.role(bearer.strip())
        try:
            cookies = SimpleCookie(headers.get("cookie", "")[:8192])
        except CookieError:
            return None
        return self._tokens.role(cookies[COOKIE].value) if COOKIE in cookies else None

    def _refusal(self, role: AccessRole, headers: dict[str, str]) -> tuple[int, str] | None:
        if role != "act":
            return 403, "this token may only read"
        origin = headers.get("origin")
        if origin is not None and origin != (self._public or None) and _netloc(origin) != headers.get("host"):
            return 403, "requests of other sites are refused"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "requests of other sites are refused"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "the body has to be JSON, with Content-Type: application/json"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length[:12]) > MAX_BODY:
            return 413, f"the body is larger than {MAX_BODY} bytes"
        return None

    async def _enter(self, token: str, send: Send) -> None:
        """Exchange the token of a link for a cookie, and take it out of the address."""
        if self._tokens.role(token) is None:
            await _refuse(send, 401, "this token is not valid any more: use the link that `retinue serve` printed")
            return
        secure = "; Secure" if self._public.startswith("https:") else ""
        cookie = f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/{secure}"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode())]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


async def too_many(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of a server that has too many connections."""
    await _refuse(_with_headers(send), 503, "this server has too many connections: try again later")


class BodyTooLarge(Exception):
    """A body without a length turned out to be too large."""


def _bounded(receive: Receive) -> Receive:
    """Limit the size of a body and the time between its parts; raises `BodyTooLarge` or `TimeoutError`."""
    read = 0
    is_whole = False
    until = asyncio.get_running_loop().time() + WHOLE_BODY_SECONDS

    async def bounded() -> Message:
        nonlocal read, is_whole
        # After the body, the next message is the end of the connection, for which a stream waits.
        now = asyncio.get_running_loop().time()
        async with asyncio.timeout(None if is_whole else max(0.0, min(BODY_SECONDS, until - now))):
            message = await receive()
        is_whole = not message.get("more_body", False)
        read += len(message.get("body", b""))
        if read > MAX_BODY:
            raise BodyTooLarge
        return message

    return bounded


def _headers(scope: Scope) -> dict[str, str]:
    pairs: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # brackets around what is no address
        return ""


def _token_in_query(scope: Scope) -> str | None:
    pairs = parse_qsl(scope["query_string"].decode("latin-1")[:2048])
    return next((value for name, value in pairs if name == "token"), None)


def _with_headers(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *SECURITY_HEADERS]}
        await send(message)

    return with_headers


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = msgspec.json.encode({"error": reason})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
