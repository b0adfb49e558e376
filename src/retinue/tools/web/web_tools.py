"""The web tools; a page is data: text without invisible characters, and no instruction in it is followed here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated

from msgspec import Meta

from retinue.core.errors import ToolError
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.net.fetcher import Fetcher
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.function import tool
from retinue.tools.web.extract import page_text, single_line
from retinue.tools.web.search import MAX_QUERY_CHARS, Search, SearchResult, search_by

MAX_SCRAPED_CHARS = 100_000
MAX_FETCHED_CHARS = 50_000
CALL_SECONDS = 60.0


def tools(
    dependencies: ToolDependencies, *, fetcher: Fetcher | None = None, search: Search | None = None
) -> Sequence[Tool]:
    """The web tools; `fetcher` and `search` replace those that the settings define."""

    @cache
    def pages() -> Fetcher:
        """Made for the first page: many runs are offered these tools, and few read one."""
        return fetcher or Fetcher(trace_hosts=dependencies.trace_hosts)

    find = search or search_by(dependencies.web_search)

    @tool(kind="idempotent", timeout=CALL_SECONDS)
    async def search_web(query: str) -> list[SearchResult]:
        """Search the web. Returns titles, addresses and short descriptions of pages; read a page to know what it says.

        Args:
            query: what to look for
        """
        words = single_line(query, MAX_QUERY_CHARS)
        return await find(words) if words else []

    @tool(kind="idempotent", timeout=CALL_SECONDS)
    async def scrape_webpage(url: str, context: CallContext) -> ToolResult:
        """Read a web page. Returns its main text as Markdown.

        Args:
            url: an http or https address on the public web
        """
        try:
            page = await pages().get(url, trace=context.trace)
            text = await page_text(page, agents_write=dependencies.agents_write)
        except ToolError as error:
            return ToolResult(f"Error scraping {single_line(url, 200)}: {error}", failed=True)
        if len(text) <= MAX_SCRAPED_CHARS:
            return ToolResult(text)
        return ToolResult(f"{text[:MAX_SCRAPED_CHARS]}\n\n[cut after {MAX_SCRAPED_CHARS} of {len(text)} characters]")

    @tool(kind="idempotent", timeout=CALL_SECONDS)
    async def fetch(
        url: str,
        context: CallContext,
        offset: Annotated[int, Meta(ge=0)] = 0,
        limit: Annotated[int, Meta(ge=1, le=MAX_FETCHED_CHARS)] = 20_000,
    ) -> str:
        """Read a web page, text or JSON document, a piece at a time. HTML is returned as Markdown.

        Args:
            url: an http or https address on the public web
            offset: how many characters of the text to skip
            limit: how many characters to return at most
        """
        try:
            page = await pages().get(url, trace=context.trace)
            text = await page_text(page, agents_write=dependencies.agents_write)
        except ToolError as error:
            raise ToolError(f"cannot fetch {single_line(url, 200)}: {error}") from error
        piece, end = text[offset : offset + limit], min(offset + limit, len(text))
        if offset == 0 and end == len(text):
            return piece
        more = f"; the next piece has offset {end}" if end < len(text) else "; this is the end"
        return f"{piece}\n\n[characters {min(offset, end)} to {end} of {len(text)}{more}]"

    return (search_web, scrape_webpage, fetch)
