"""Searching without a key: the engines of the ddgs package, asked one after the other until one has something.

ddgs has its own HTTP transport, which looks like a browser; the engines hardly answer anybody else. It knows nothing of
`retinue.net.guard`, so each engine is held to the one host that is its own, over https and without redirects: nothing
that a query or a page says can lead it anywhere else.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from retinue.core.errors import ToolError
from retinue.tools.threads import in_thread
from retinue.tools.web.findings import Finding, findings

MISSING = (
    "searching with ddgs needs a package that is not installed here; "
    "install the extra `search` from the repository: pip install '.[search]'"
)

HOSTS: Mapping[str, str] = {
    "duckduckgo": "html.duckduckgo.com",
    "brave": "search.brave.com",
    "mojeek": "www.mojeek.com",
    "wikipedia": "en.wikipedia.org",
}
"""The engines that are asked, in this order, and the one host that each may talk to."""

REQUEST_SECONDS = 8
SEARCH_SECONDS = 40.0


class Answered(Protocol):
    """What an engine reads of a response."""

    @property
    def status_code(self) -> int:
        """The status."""
        ...

    @property
    def text(self) -> str:
        """The page."""
        ...


class Client(Protocol):
    """What an engine of ddgs talks through; engines give cookies and headers to `client`, the transport inside."""

    client: Any

    def request(self, method: str, url: str, **options: Any) -> Answered:
        """Ask."""
        ...


class Result(Protocol):
    """What an engine of ddgs finds."""

    title: str
    href: str
    body: str


class Engine(Protocol):
    """An engine of ddgs: it knows how one search page is asked and read."""

    http_client: Client

    def search(self, query: str, *, region: str) -> Sequence[Result] | None:
        """What it finds; raises anything."""
        ...


class EngineStrayed(Exception):
    """An engine of ddgs wanted to leave the host that is its own."""

    def __init__(self, *, url: str, host: str) -> None:
        super().__init__(f"asked for {url}; may only talk to https://{host}")
        self.url = url
        self.host = host


class OneHost:
    """A client that reaches one host, over https, and follows no redirect."""

    def __init__(self, inner: Client, host: str) -> None:
        self.client = inner.client
        _ = self.client.follow_redirects  # a transport without this switch would not notice that it was thrown
        self.client.follow_redirects = False
        self._inner = inner
        self._host = host

    def request(self, method: str, url: str, **options: Any) -> Answered:
        """Ask, if it is the one host."""
        address = urlsplit(url)
        if (address.scheme, address.netloc) != ("https", self._host):
            raise EngineStrayed(url=url, host=self._host)
        return self._inner.request(method, url, **options)


def engine_of_ddgs(name: str) -> Engine:
    """An engine of the installed ddgs; raises `ImportError` without it, `KeyError` where ddgs has given it up."""
    engines = importlib.import_module("ddgs.engines").ENGINES
    return cast("Engine", engines["text"][name](timeout=REQUEST_SECONDS))


class Ddgs:
    """The engines of ddgs, each held to its own host; the first that finds something is believed."""

    def __init__(self, *, engine: Callable[[str], Engine] = engine_of_ddgs, hosts: Mapping[str, str] = HOSTS) -> None:
        self._engine = engine
        self._hosts = hosts

    async def search(self, query: str) -> list[Finding]:
        """What the first engine that answers has found."""
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                for name, host in self._hosts.items():
                    if found := await in_thread(self._ask, name, host, query):
                        return found
        except TimeoutError:
            pass
        return []

    def _ask(self, name: str, host: str, query: str) -> list[Finding]:
        try:
            engine = self._engine(name)
            engine.http_client = OneHost(engine.http_client, host)
            return findings((row.title, row.href, row.body) for row in engine.search(query, region="us-en") or ())
        except ImportError as missing:
            raise ToolError(MISSING) from missing
        except Exception:  # engines read pages that change without notice: whatever happens, the next one is asked
            return []
