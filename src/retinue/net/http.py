"""One HTTP session for all requests to models: opened when first needed, closed by whoever owns it.

There is no deadline here and no limit on connections: the engine has deadlines, and its rate gate decides how many
requests are under way. Redirects are not followed, so that a key never travels to a host nobody chose.
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

from retinue.version import __version__

CONNECT_SECONDS = 15.0
KEEPALIVE_SECONDS = 30.0

_LARGE = 1 << 20
_EVERYWHERE = {"User-Agent": f"retinue/{__version__}", "Accept-Encoding": "identity"}


class Http:
    """A client session for each event loop that uses it; `close` closes them all, and the next request opens a new one.

    Proxies are taken from the environment (`HTTPS_PROXY`, `NO_PROXY` and so on), except for addresses of this machine.
    """

    __slots__ = ("_proxies", "_sessions")

    def __init__(self) -> None:
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
        self._proxies: dict[tuple[str, str], str | None] = {}

    def post(
        self, url: URL, body: bytes, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send `body` with its length; the block has the response, and leaving it early closes the connection."""
        # aiohttp cuts a large body into pieces if it is a file, and warns if it is bytes.
        data = body if len(body) <= _LARGE else io.BytesIO(body)
        session = self._sessions.get(asyncio.get_running_loop()) or self._open()
        return session.post(url, data=data, headers=headers, proxy=self._proxy(url), allow_redirects=False)

    async def close(self) -> None:
        """Close every connection."""
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
            headers=_EVERYWHERE,
        )
        self._sessions[asyncio.get_running_loop()] = session
        return session

    def _proxy(self, url: URL) -> str | None:
        # aiohttp's own `trust_env` would ask two threads for each request, and send the password that ~/.netrc has for
        # the host where no key, or another, was to be sent.
        place = (url.scheme, url.host or "")
        if place not in self._proxies:
            self._proxies[place] = environment_proxy(*place)
        return self._proxies[place]


def environment_proxy(scheme: str, host: str) -> str | None:
    """The proxy that the environment names for this host; only `http://` proxies are known here."""
    proxies = getproxies_environment()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or is_loopback(host) or proxy_bypass(host):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    return proxy if proxy.startswith("http://") else None


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its very name.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "example.org")]
    [True, True, True, False]
    """
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
