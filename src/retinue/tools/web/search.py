"""Web search engines by the name that a setting gives them, each a function from a query to its findings.

`ddgs` needs no key: it asks public engines as a browser would, one after the other until one has something. `searxng`
asks an instance of your own, `brave` an API that needs a key. `auto` is the first of these that is set up here. An
engine that does not answer finds nothing; what a person has to fix (a missing package, a key) is an error.

The package ddgs has its own HTTP transport, which looks like a browser; the engines hardly answer other clients. It
does not use `retinue.net.guard`, so each engine is confined to its one host, over https and without redirects: nothing
that a query or a page contains can lead it anywhere else.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from yarl import URL

from retinue.core.errors import BadInput, ToolError
from retinue.net.fetcher import BadStatus, Fetcher
from retinue.net.guard import FetchFailed, Guard
from retinue.tools.threads import in_thread
from retinue.tools.web.extract import single_line

MAX_FINDINGS = 10
MAX_QUERY_CHARS = 400


class SearchResult(Struct, frozen=True):
    title: str
    url: str
    description: str


Search: TypeAlias = Callable[[str], Awaitable[list[SearchResult]]]
"""Finds pages for a query that is not blank; returns none if no engine answers."""


def findings(rows: Iterable[tuple[object, object, object]]) -> list[SearchResult]:
    """Findings from titles, addresses and descriptions: at most `MAX_FINDINGS`, each address once, no long texts."""
    kept: dict[str, SearchResult] = {}
    for title, url, description in rows:
        if len(kept) == MAX_FINDINGS:
            break
        address = _line(url, 2000)
        if address.startswith(("http://", "https://")):
            kept.setdefault(address, SearchResult(_line(title, 200), address, _line(description, 500)))
    return list(kept.values())


def _line(value: object, limit: int) -> str:
    return single_line(value, limit) if isinstance(value, str) else ""


BRAVE = "https://api.search.brave.com/res/v1/web/search"
BRAVE_KEYS = ("BRAVE_API_KEY", "BRAVE_SEARCH_AI_API_KEY")
"""The environment variables of the key; the first that is set is used."""

SEARXNG_URL = "SEARXNG_URL"


def search_by(setting: str) -> Search:
    """The search that a setting names: `auto`, `ddgs`, `brave`, or `searxng:` and the address of an instance."""
    name, _, rest = setting.partition(":")
    match name, rest:
        case "auto", "":
            return Automatic().search
        case "ddgs", "":
            return Ddgs().search
        case "brave", "":
            return Brave(Fetcher()).search
        case "searxng", base if _is_instance(base):
            return Searxng(base).search
        case _:
            raise BadInput(
                f"web search is {setting!r}; expected auto, ddgs, brave, or searxng: and an address, as in "
                "searxng:http://localhost:8888"
            )


def _is_instance(base: str) -> bool:
    try:
        url = URL(base)
        return url.scheme in ("http", "https") and url.host is not None and url.user is None and url.port is not None
    except ValueError:
        return False


class Brave:
    """Brave's search API; the key is sent in a header, to that host only."""

    def __init__(self, fetcher: Fetcher, *, address: str = BRAVE) -> None:
        self._fetcher = fetcher
        self._address = address

    async def search(self, query: str) -> list[SearchResult]:
        variable = brave_key()
        if variable is None:
            raise ToolError(f"searching with Brave needs a key in {BRAVE_KEYS[0]}, which is not set here")
        url = URL(self._address).with_query(q=query, count=str(MAX_FINDINGS), text_decorations="false")
        headers = {"X-Subscription-Token": os.environ[variable], "Accept": "application/json"}
        refusal = f"Brave refuses: is the key in {variable} right?"
        rows = _rows(await _json(self._fetcher, url, headers=headers, refusal=refusal), "web", "results")
        return findings((row.get("title"), row.get("url"), row.get("description")) for row in rows)


def brave_key() -> str | None:
    """The environment variable that holds the key for Brave's API; None if there is no key."""
    return next((name for name in BRAVE_KEYS if os.environ.get(name)), None)


class Searxng:
    """An instance of SearXNG; its settings have to allow `json` among the formats.

    The settings name its address, so it may be on this machine or network; it may not redirect to another one there.
    """

    def __init__(self, base: str) -> None:
        self._base = URL(base)
        self._fetcher = Fetcher(Guard(trusted=(str(self._base.origin()),)))

    async def search(self, query: str) -> list[SearchResult]:
        url = (self._base / "search").with_query(q=query, format="json")
        refusal = f"{self._base.host} does not answer in JSON: its settings need `json` under search.formats"
        rows = _rows(await _json(self._fetcher, url, refusal=refusal), "results")
        return findings((row.get("title"), row.get("url"), row.get("content")) for row in rows)


async def _json(fetcher: Fetcher, url: URL, *, refusal: str, headers: Mapping[str, str] | None = None) -> object:
    try:
        page = await fetcher.get(str(url), headers=headers)
        return msgspec.json.decode(page.body)
    except BadStatus as error:
        if error.status in (401, 403, 422):
            raise ToolError(refusal) from error
        return None
    except (FetchFailed, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _rows(answer: object, *path: str) -> list[dict[str, object]]:
    for name in path:
        answer = cast("dict[str, object]", answer).get(name) if isinstance(answer, dict) else None
    rows = cast("list[object]", answer) if isinstance(answer, list) else []
    return [cast("dict[str, object]", row) for row in rows if isinstance(row, dict)]


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
"""The engines, in the order in which they are asked, and the one host that each may reach."""

REQUEST_SECONDS = 8
SEARCH_SECONDS = 40.0


class Client(Protocol):
    """The HTTP client of a ddgs engine; engines give cookies and headers to `client`, the transport inside."""

    client: Any

    def request(self, method: str, url: str, **options: Any) -> Any: ...


class Engine(Protocol):
    """An engine of ddgs, which requests and reads one search site."""

    http_client: Client

    def search(self, query: str, *, region: str) -> Sequence[Any] | None:
        """Results with `title`, `href` and `body`; may raise any exception."""


class EngineStrayed(Exception):
    """An engine of ddgs requested a host other than its own."""

    def __init__(self, *, url: str, host: str) -> None:
        super().__init__(f"asked for {url}; may only talk to https://{host}")
        self.url = url
        self.host = host


class OneHost:
    """A client that reaches one host only, over https, and follows no redirect."""

    def __init__(self, inner: Client, host: str) -> None:
        self.client = inner.client
        _ = self.client.follow_redirects  # raises for a transport without this option, which would ignore it
        self.client.follow_redirects = False
        self._inner = inner
        self._host = host

    def request(self, method: str, url: str, **options: Any) -> Any:
        address = urlsplit(url)
        if (address.scheme, address.netloc) != ("https", self._host):
            raise EngineStrayed(url=url, host=self._host)
        return self._inner.request(method, url, **options)


def engine_of_ddgs(name: str) -> Engine:
    """An engine of the installed ddgs; raises `ImportError` without ddgs, `KeyError` if ddgs has dropped the engine."""
    engines = importlib.import_module("ddgs.engines").ENGINES
    return cast("Engine", engines["text"][name](timeout=REQUEST_SECONDS))


class Ddgs:
    """The engines of ddgs, each confined to its own host; the first one with results is used."""

    def __init__(self, *, engine: Callable[[str], Engine] = engine_of_ddgs, hosts: Mapping[str, str] = HOSTS) -> None:
        self._engine = engine
        self._hosts = hosts

    async def search(self, query: str) -> list[SearchResult]:
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                for name, host in self._hosts.items():
                    if found := await in_thread(self._ask, name, host, query):
                        return found
        except TimeoutError:
            pass
        return []

    def _ask(self, name: str, host: str, query: str) -> list[SearchResult]:
        try:
            engine = self._engine(name)
            engine.http_client = OneHost(engine.http_client, host)
            return findings((row.title, row.href, row.body) for row in engine.search(query, region="us-en") or ())
        except ImportError as missing:
            raise ToolError(MISSING) from missing
        except Exception:  # engines read pages that change without notice: after any failure the next one is asked
            return []


NOT_SET_UP = (
    f"searching the web is not set up here; set {SEARXNG_URL} to the address of a SearXNG, or {BRAVE_KEYS[0]} to a key "
    "for Brave's API, or install the extra `search` from the repository: pip install '.[search]'"
)


class Searches(Protocol):
    """An engine."""

    async def search(self, query: str) -> list[SearchResult]: ...


class Automatic:
    """The first engine that is set up here: an instance of SearXNG, ddgs, then Brave, whose requests cost money.

    It is chosen for each search, so that a variable that is set later counts.
    """

    def __init__(self, *, ddgs: Searches | None = None, brave: Searches | None = None) -> None:
        self._ddgs = ddgs
        self._brave = brave

    async def search(self, query: str) -> list[SearchResult]:
        return await self._engine()(query)

    def _engine(self) -> Search:
        if base := os.environ.get(SEARXNG_URL):
            if not _is_instance(base):
                raise ToolError(f"{SEARXNG_URL} is not an address; it has to be like http://localhost:8888")
            return Searxng(base).search
        if importlib.util.find_spec("ddgs") is not None:
            return (self._ddgs or Ddgs()).search
        if brave_key() is not None:
            return (self._brave or Brave(Fetcher())).search
        raise ToolError(NOT_SET_UP)
