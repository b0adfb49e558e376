"""HTTP sessions for requests to models: opened on first use, closed by their owner.

Deadlines and the number of concurrent requests are the engine's concern (`engine/rate_limiter.py`). Redirects are not
followed, so that a key is never sent to a host that was not configured.
"""

from __future__ import annotations

import asyncio
import io
import ipaddress
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
from yarl import URL

from retinue.core.errors import RetinueError
from retinue.version import __version__

CONNECT_SECONDS = 15.0
KEEPALIVE_SECONDS = 30.0

_LARGE = 1 << 20
_DEFAULT_HEADERS = {"User-Agent": f"retinue/{__version__}", "Accept-Encoding": "identity"}


class Http:
    """One client session per event loop; `close` closes them all, and the next request opens a new one.

    Proxies come from the environment (`HTTPS_PROXY`, `NO_PROXY`, ...), except for addresses of this machine. `post`
    raises `UnknownProxy` instead of bypassing a proxy of an unsupported scheme.
    """

    __slots__ = ("_proxies", "_sessions")

    def __init__(self) -> None:
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
        self._proxies: dict[tuple[str, str], str | None] = {}

    def post(
        self, url: URL, body: bytes, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send `body`; the `async with` block has the response, and leaving it early closes the connection."""
        # aiohttp sends a large body in chunks if it is a file, and warns if it is bytes.
        data = body if len(body) <= _LARGE else io.BytesIO(body)
        session = self._sessions.get(asyncio.get_running_loop()) or self._open()
        return session.post(url, data=data, headers=headers, proxy=self.proxy(url), allow_redirects=False)

    async def close(self) -> None:
        here = asyncio.get_running_loop()
        sessions, self._sessions = self._sessions, {}
        for loop, session in sessions.items():
            if loop is here or loop.is_closed():
                await session.close()
            elif loop.is_running():  # in another thread
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(session.close(), loop))

    def _open(self) -> aiohttp.ClientSession:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_DEFAULT_HEADERS,
        )
        self._sessions[asyncio.get_running_loop()] = session
        return session

    def proxy(self, url: URL) -> str | None:
        """The proxy for requests to this URL; raises `UnknownProxy` if its scheme is not supported."""
        # aiohttp's own `trust_env` would use two threads for each request, and send the password that ~/.netrc has for
        # the host instead of the configured key.
        place = (url.scheme, url.host or "")
        if place not in self._proxies:
            self._proxies[place] = environment_proxy(*place)
        return self._proxies[place]


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


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "example.org")]
    [True, True, True, False]
    """
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
