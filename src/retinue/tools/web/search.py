"""Who finds pages: search engines by the name that a setting gives them, each a function from a query to its findings.

`ddgs` needs no key: it asks public engines as a browser would, one after the other until one has something. `searxng`
asks an instance of your own, `brave` an interface that wants a key. An engine that does not answer finds nothing; what
a person has to put right (a missing package, a key) is said.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

import msgspec
from yarl import URL

from retinue.core.errors import BadInput, ToolError
from retinue.net.fetcher import BadStatus, Fetcher
from retinue.net.guard import FetchFailed, Guard
from retinue.tools.web.ddgs import Ddgs
from retinue.tools.web.findings import MAX_FINDINGS, Finding, Search, findings

BRAVE = "https://api.search.brave.com/res/v1/web/search"
BRAVE_KEY = "BRAVE_API_KEY"


def search_by(setting: str) -> Search:
    """The search that a setting names: `ddgs`, `brave`, or `searxng:` and the address of an instance."""
    name, _, rest = setting.partition(":")
    match name, rest:
        case "ddgs", "":
            return Ddgs().search
        case "brave", "":
            return Brave(Fetcher()).search
        case "searxng", base if _is_instance(base):
            return Searxng(base).search
        case _:
            raise BadInput(
                f"web search is {setting!r}; expected ddgs, brave, or searxng: and an address, as in "
                "searxng:http://localhost:8888"
            )


def _is_instance(base: str) -> bool:
    try:
        url = URL(base)
        return url.scheme in ("http", "https") and url.host is not None and url.user is None and url.port is not None
    except ValueError:
        return False


class Brave:
    """The search interface of Brave; the key goes in a header to that one host and nowhere else."""

    def __init__(self, fetcher: Fetcher, *, address: str = BRAVE) -> None:
        self._fetcher = fetcher
        self._address = address

    async def search(self, query: str) -> list[Finding]:
        """What Brave finds."""
        key = os.environ.get(BRAVE_KEY)
        if not key:
            raise ToolError(f"searching with Brave needs a key in {BRAVE_KEY}, which is not set here")
        url = URL(self._address).with_query(q=query, count=str(MAX_FINDINGS), text_decorations="false")
        headers = {"X-Subscription-Token": key, "Accept": "application/json"}
        said = await _json(
            self._fetcher, url, headers=headers, refusal=f"Brave refuses: is the key in {BRAVE_KEY} right?"
        )
        return findings(
            (row.get("title"), row.get("url"), row.get("description")) for row in _rows(said, "web", "results")
        )


class Searxng:
    """An instance of SearXNG; its settings have to allow `json` among the formats.

    Its address comes from a person's settings, so it may be on this machine or network; it may not redirect elsewhere
    in there.
    """

    def __init__(self, base: str) -> None:
        self._base = URL(base)
        self._fetcher = Fetcher(Guard(trusted=(str(self._base.origin()),)))

    async def search(self, query: str) -> list[Finding]:
        """What the instance finds."""
        url = (self._base / "search").with_query(q=query, format="json")
        refusal = f"{self._base.host} does not answer in JSON: its settings need `json` under search.formats"
        said = await _json(self._fetcher, url, refusal=refusal)
        return findings((row.get("title"), row.get("url"), row.get("content")) for row in _rows(said, "results"))


async def _json(fetcher: Fetcher, url: URL, *, refusal: str, headers: Mapping[str, str] | None = None) -> object:
    try:
        page = await fetcher.get(str(url), headers=headers)
        return msgspec.json.decode(page.body)
    except BadStatus as answered:
        if answered.status in (401, 403, 422):
            raise ToolError(refusal) from answered
        return None
    except (FetchFailed, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _rows(said: object, *path: str) -> list[dict[str, object]]:
    for name in path:
        said = cast("dict[str, object]", said).get(name) if isinstance(said, dict) else None
    rows = cast("list[object]", said) if isinstance(said, list) else []
    return [cast("dict[str, object]", row) for row in rows if isinstance(row, dict)]
