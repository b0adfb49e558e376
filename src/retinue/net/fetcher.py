"""Fetch one web page for an untrusted caller, with limits on time, size and content type.

`retinue.net.guard` checks the URL and every redirect. No cookies, no credentials, no proxy from the environment. With
headers from the caller no redirect is followed, so that a key is never sent to another host.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias

import aiohttp
from yarl import URL

from retinue.net.guard import FetchFailed, Guard, Unreachable, UrlRefused
from retinue.version import __version__

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TEXT = re.compile(r"text/[\w.+-]+|application/(?:json|xml|[\w.-]+\+(?:json|xml)|(?:x-)?javascript|x-ndjson|yaml|toml)")
_CHUNK_BYTES = 1 << 16
_HEADERS = {
    "User-Agent": f"Mozilla/5.0 (compatible; retinue/{__version__})",
    "Accept": "text/html,application/xhtml+xml,text/*;q=0.9,application/json;q=0.9,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of one request: `seconds` in all, redirects included, and `bytes` as sent and as decompressed."""

    seconds: float = 20.0
    bytes: int = 5_000_000
    redirects: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A page: its address after redirects, its content type, and its decompressed bytes.

    `content_type` is in lower case and without parameters; empty if the server sent none.
    """

    url: str
    content_type: str
    charset: str | None
    body: bytes


class TooSlow(FetchFailed):
    """The fetch exceeded its time limit."""

    def __init__(self, url: str, *, seconds: float) -> None:
        super().__init__(url, f"no whole answer within {seconds:g} seconds")
        self.seconds = seconds


class TooLarge(FetchFailed):
    """The page exceeds the size limit."""

    def __init__(self, url: str, *, limit: int) -> None:
        super().__init__(url, f"the answer is larger than {limit} bytes")
        self.limit = limit


class NotText(FetchFailed):
    """The response is not text."""

    def __init__(self, url: str, *, content_type: str) -> None:
        super().__init__(url, f"the answer is not text but {content_type}")
        self.content_type = content_type


class BadStatus(FetchFailed):
    """The server responded with a status other than 200."""

    def __init__(self, url: str, *, status: int) -> None:
        super().__init__(url, f"the server answered {status}{_phrase(status)}")
        self.status = status


class TooManyRedirects(FetchFailed):
    """The limit on redirects was reached."""

    def __init__(self, url: str, *, limit: int) -> None:
        super().__init__(url, f"more than {limit} redirects")
        self.limit = limit


class Fetcher:
    """Reads pages of the public web; keeps no connection and no cookie, so there is nothing to close.

    `guard` decides which addresses may be requested, `bounds` limits time and size. `trace_hosts` are the hosts that
    get the trace context of a request.
    """

    __slots__ = ("_bounds", "_guard", "_trace_hosts")

    def __init__(
        self, guard: Guard | None = None, bounds: Bounds | None = None, *, trace_hosts: Collection[str] = ()
    ) -> None:
        self._guard = guard or Guard()
        self._bounds = bounds or Bounds()
        self._trace_hosts = frozenset(host.lower() for host in trace_hosts)

    async def get(self, address: str, *, headers: Mapping[str, str] | None = None, trace: str = "") -> Fetched:
        """The page at an address. `trace` is the W3C trace context of the request.

        With `headers`, redirects are not followed, so that a key in them stays with its host. Raises `FetchFailed` if
        the address is refused or there is no page.
        """
        try:
            async with asyncio.timeout(self._bounds.seconds):
                return await self._follow(address, headers or {}, trace)
        except TimeoutError as late:
            raise TooSlow(address, seconds=self._bounds.seconds) from late

    async def _follow(self, address: str, headers: Mapping[str, str], trace: str) -> Fetched:
        url = self._guard.checked(address)
        for _ in range(self._bounds.redirects + 1):
            traced = {"traceparent": trace} if trace and (url.host or "").lower() in self._trace_hosts else {}
            async with self._answer(url, {**headers, **traced}) as response:
                target = response.headers.get("Location") if response.status in _REDIRECTS else None
                if target is None:
                    return await self._read(url, response)
            if headers:
                raise UrlRefused(str(url), "the server redirects, and a key does not travel to another address")
            url = self._guard.checked(target, base=url)
        raise TooManyRedirects(str(url), limit=self._bounds.redirects)

    @asynccontextmanager
    async def _answer(self, url: URL, headers: Mapping[str, str]) -> AsyncGenerator[aiohttp.ClientResponse]:
        addresses = await self._guard.addresses(url)
        try:
            async with (
                aiohttp.ClientSession(
                    connector=self._guard.connector(url, addresses),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    headers=_HEADERS,
                    auto_decompress=False,  # it would decompress a chunk to any size before it can be counted
                    trust_env=False,
                    max_field_size=1 << 15,
                ) as session,
                session.get(url, headers=headers, allow_redirects=False) as response,
            ):
                yield response
        except (aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch) as untrusted:
            raise Unreachable(str(url), "its certificate is not valid") from untrusted
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as silent:
            raise Unreachable(str(url), "no connection, or one that broke off") from silent
        except (aiohttp.ClientError, ValueError) as garbled:
            raise Unreachable(str(url), "the answer is not what HTTP allows") from garbled

    async def _read(self, url: URL, response: aiohttp.ClientResponse) -> Fetched:
        if response.status != 200:
            raise BadStatus(str(url), status=response.status)
        content_type = response.content_type.lower() if "Content-Type" in response.headers else ""
        if content_type and not _TEXT.fullmatch(content_type):
            raise NotText(str(url), content_type=content_type[:100])
        body = await self._body(url, response)
        return Fetched(url=str(url), content_type=content_type, charset=response.charset, body=body)

    async def _body(self, url: URL, response: aiohttp.ClientResponse) -> bytes:
        limit = self._bounds.bytes
        if (response.content_length or 0) > limit:
            raise TooLarge(str(url), limit=limit)
        decompress, is_complete = _decompressor(url, response.headers.get("Content-Encoding", ""))
        body, received = bytearray(), 0
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            received += len(chunk)
            body += decompress(chunk, limit - len(body) + 1)
            # Received bytes count too: an endless compressed stream may decompress to nothing.
            if len(body) > limit or received > limit:
                raise TooLarge(str(url), limit=limit)
        if not is_complete():
            raise Unreachable(str(url), "the answer broke off")
        return bytes(body)


_Decompress: TypeAlias = Callable[[bytes, int], bytes]


def _decompressor(url: URL, encoding: str) -> tuple[_Decompress, Callable[[], bool]]:
    """A function that decompresses a chunk to a limited size, and one that says whether the stream is complete."""
    match encoding.strip().lower():
        case "" | "identity":
            return (lambda chunk, _: chunk), (lambda: True)
        case "gzip" | "x-gzip":
            gzip = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

            def decompress(chunk: bytes, room: int) -> bytes:
                try:
                    return gzip.decompress(chunk, room)
                except zlib.error as broken:
                    raise Unreachable(str(url), "the answer is not packed as it says") from broken

            return decompress, lambda: gzip.eof
        case other:
            raise NotText(str(url), content_type=f"packed as {other[:40]!r}")


def _phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""
