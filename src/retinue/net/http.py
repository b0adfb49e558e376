"""Requests to models, over connections that are kept for the next one, or through the proxy that the environment names.

Deadlines and the number of concurrent requests are the engine's concern (`engine/rate_limiter.py`). Redirects are not
followed, so that a key is never sent to a host that was not configured.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.request import getproxies_environment, proxy_bypass

from yarl import URL

from retinue.core.errors import RetinueError
from retinue.net.http1 import KEEPALIVE_SECONDS, BadResponse, Disconnected, Pool, Response, ResponseBody
from retinue.net.loopback import is_loopback
from retinue.version import __version__

if TYPE_CHECKING:
    import aiohttp

CONNECT_SECONDS = 15.0

_LARGE = 1 << 20
_DEFAULT_HEADERS = {"User-Agent": f"retinue/{__version__}", "Accept-Encoding": "identity"}


class Http:
    """One pool of connections per event loop; `close` closes them all, and the next request opens a new one.

    Proxies come from the environment (`HTTPS_PROXY`, `NO_PROXY`, ...), except for addresses of this machine. `post`
    raises `UnknownProxy` instead of bypassing a proxy of an unsupported scheme. Entering its block raises `OSError` if
    there is no connection (`socket.gaierror`, `ssl.SSLError` and `TimeoutError` are such), and `ProxyFailed`; entering
    and reading raise `Disconnected` and `BadResponse`.
    """

    __slots__ = ("_pools", "_proxies", "_sessions")

    def __init__(self) -> None:
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
        """Sessions of aiohttp, for requests through a proxy."""
        self._proxies: dict[tuple[str, str], str | None] = {}

    def post(self, url: URL, body: bytes, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Response]:
        """Send `body`; the `async with` block has the response, and leaving it early closes the connection."""
        loop = asyncio.get_running_loop()
        if (proxy := self.proxy(url)) is not None:
            return _Proxied(self._sessions.get(loop) or self._open_session(loop), proxy, url, body, headers)
        return self._pool(loop).post(url, body, headers)

    def get(self, url: URL, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Response]:
        """Request a URL; the block and its errors are those of `post`."""
        loop = asyncio.get_running_loop()
        if (proxy := self.proxy(url)) is not None:
            return _Proxied(self._sessions.get(loop) or self._open_session(loop), proxy, url, None, headers)
        return self._pool(loop).get(url, headers)

    def _pool(self, loop: asyncio.AbstractEventLoop) -> Pool:
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = Pool(connect_seconds=CONNECT_SECONDS, headers=_DEFAULT_HEADERS)
        return pool

    async def close(self) -> None:
        here = asyncio.get_running_loop()
        opened = [*self._pools.items(), *self._sessions.items()]
        self._pools, self._sessions = {}, {}
        for loop, closable in opened:
            if loop is here or loop.is_closed():
                await closable.close()
            elif loop.is_running():  # in another thread
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closable.close(), loop))

    def _open_session(self, loop: asyncio.AbstractEventLoop) -> aiohttp.ClientSession:
        import aiohttp

        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_DEFAULT_HEADERS,
        )
        self._sessions[loop] = session
        return session

    def proxy(self, url: URL) -> str | None:
        """The proxy for requests to this URL; raises `UnknownProxy` if its scheme is not supported."""
        # aiohttp's own `trust_env` would use two threads for each request, and send the password that ~/.netrc has for
        # the host instead of the configured key.
        place = (url.scheme, url.host or "")
        if place not in self._proxies:
            self._proxies[place] = environment_proxy(*place)
        return self._proxies[place]


class ProxyFailed(RetinueError):
    """The proxy could not be reached, or refused to connect."""


class _Proxied:
    """A request through a proxy, by aiohttp, whose errors are raised as those of a direct request.

    Without a body it is a GET. Errors are raised outside of the handlers: an exception of aiohttp could show the
    headers of the request, and with them the key.
    """

    def __init__(
        self, session: aiohttp.ClientSession, proxy: str, url: URL, body: bytes | None, headers: Mapping[str, str]
    ) -> None:
        # aiohttp sends a large body in chunks if it is a file, and warns if it is bytes.
        data = body if body is None or len(body) <= _LARGE else io.BytesIO(body)
        self._proxy = proxy
        method = "GET" if body is None else "POST"
        self._request = session.request(method, url, data=data, headers=headers, proxy=proxy, allow_redirects=False)

    async def __aenter__(self) -> Response:
        import aiohttp

        try:
            return _ProxiedResponse(await self._request.__aenter__())
        except aiohttp.ClientError as error:
            failure = _as_direct(error, self._proxy)
        raise failure

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._request.__aexit__(kind, error, traceback)


class _ProxiedResponse:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.reason = response.reason
        self.headers: Mapping[str, str] = response.headers
        self.content_type = response.content_type
        self.content: ResponseBody = self
        self._content = response.content

    def at_eof(self) -> bool:
        return self._content.at_eof()

    async def readany(self) -> bytes:
        import aiohttp

        try:
            return await self._content.readany()
        except aiohttp.ClientError:
            pass
        raise Disconnected("the connection broke")


def _as_direct(error: aiohttp.ClientError, proxy: str) -> Exception:
    import aiohttp

    match error:
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return ProxyFailed("the proxy cannot be reached")
        case aiohttp.ClientConnectorError() | aiohttp.ClientConnectorCertificateError() if (
            error.host == URL(proxy).raw_host
        ):
            return ProxyFailed("the proxy cannot be reached")
        case aiohttp.ClientConnectorCertificateError(certificate_error=reason):
            return ssl.SSLError(str(reason))
        case aiohttp.ClientSSLError(os_error=reason):
            return ssl.SSLError(str(reason))
        case aiohttp.ClientConnectorError(os_error=reason):
            return OSError(reason.errno, reason.strerror)
        case aiohttp.ServerTimeoutError():
            return TimeoutError()
        case aiohttp.ClientResponseError():
            return BadResponse(error.message)
        case _:
            return Disconnected("the connection broke")


class UnknownProxy(RetinueError):
    """The environment names a proxy with an unsupported scheme, or an invalid address (`kind` is empty).

    It is not bypassed, because it may be the only permitted route.
    """

    def __init__(self, *, variable: str, kind: str, host: str = "") -> None:
        error = (
            f"{variable} names a proxy of the kind {kind}://, and only http:// and https:// are known"
            if kind
            else f"{variable} is not the address of a proxy, such as http://host:3128"
        )
        remedy = f"add {host} to NO_PROXY" if host else "name in NO_PROXY what is reached without it"
        super().__init__(f"{error}; set another, or {remedy}")
        self.variable = variable
        self.kind = kind
        self.host = host


def environment_proxy(scheme: str, host: str) -> str | None:
    """The proxy that the environment names for this host; raises `UnknownProxy` for an unsupported scheme."""
    proxies = getproxies_environment()
    name = scheme if proxies.get(scheme) else "all"
    proxy = proxies.get(name)
    if not proxy or is_loopback(host) or proxy_bypass(host):
        return None
    _check(name, proxy, host)
    return proxy if "://" in proxy else f"http://{proxy}"


def named_proxies() -> dict[str, str]:
    """The proxies of the environment by variable, without passwords; raises `UnknownProxy` for an unknown scheme."""
    proxies = getproxies_environment()
    named: dict[str, str] = {}
    for scheme in ("https", "http"):
        name = scheme if proxies.get(scheme) else "all"
        if proxy := proxies.get(name):
            _check(name, proxy)
            kind, _, rest = proxy.rpartition("://")
            named[f"{name.upper()}_PROXY"] = f"{kind or 'http'}://{rest.rpartition('@')[2]}"
    return named


def _check(name: str, proxy: str, host: str = "") -> None:
    try:
        address = URL(proxy if "://" in proxy else f"http://{proxy}")
        kind = address.scheme if address.host and address.port != 0 else ""
    except ValueError:
        kind = ""
    if kind not in ("http", "https"):
        raise UnknownProxy(variable=f"{name.upper()}_PROXY", kind=kind, host=host)
