"""The engine of a search that names none: what is set up on this machine, in an installation without extras too."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retinue.core.errors import ToolError
from retinue.net.fetcher import Fetcher
from retinue.net.guard import Guard
from retinue.providers.scripted import Line, calls, says
from retinue.testing.fake_chat import FakeChat
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from retinue.tools.web.search import NOT_SET_UP, Automatic, Brave, SearchResult, search_by
from tests.cli.conftest import Cli
from tests.cli.stage import open_in_a_thread, serving

POOLS = SearchResult("Pools", "https://example.org/pools", "How large a pool should be")
AS_SEARXNG = {"results": [{"title": POOLS.title, "url": POOLS.url, "content": POOLS.description}]}
AS_BRAVE = {"web": {"results": [{"title": POOLS.title, "url": POOLS.url, "description": POOLS.description}]}}


class ManyPools:
    """Stands for ddgs."""

    async def search(self, query: str) -> list[SearchResult]:
        return [POOLS, POOLS]


@pytest.fixture(autouse=True)
def nothing_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without extras, keys and servers."""
    monkeypatch.setitem(sys.modules, "ddgs", None)
    for name in ("SEARXNG_URL", "BRAVE_API_KEY", "BRAVE_SEARCH_AI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def engine(answer: object) -> Generator[FakeServer]:
    headers = {"Content-Type": "application/json"}
    server = FakeServer(lambda _: FakeResponse(headers=headers, pieces=(json.dumps(answer).encode(),)))
    with open_in_a_thread(server):
        yield server


def searching(request: ReceivedRequest) -> Line:
    """A model that searches, and then repeats what it found."""
    last = request.body["messages"][-1]
    return says(last["content"]) if last["role"] == "tool" else calls("search_web", query="pool size")


def asking(vendor: FakeChat) -> tuple[str, ...]:
    return ("run", "--base-url", vendor.base_url, "--model", "m", "--dialect", "none", "--tools", "search_web", "-q")


def buzzing(vendor: FakeChat) -> tuple[str, ...]:
    url = f"{vendor.base_url}/chat/completions"
    where = ("--provider", "openai-chat", "--api-key-name", "", "--system-prompt", "websearch", "-b")
    return ("buzz", "m", url, "Why?", *where)


FOUND = [{"title": "Pools", "url": "https://example.org/pools", "description": "How large a pool should be"}]


def test_a_run_searches_with_the_server_of_the_environment(cli: Cli) -> None:
    with engine(AS_SEARXNG) as server, serving(searching) as vendor:
        ended = cli(*asking(vendor), "Why?", env={"SEARXNG_URL": server.url})

    assert (ended.code, json.loads(ended.stdout)) == (0, FOUND)
    assert [(heard.path, heard.query) for heard in server.requests] == [("/search", "q=pool size&format=json")]


def test_a_run_searches_with_the_server_of_the_settings(cli: Cli, folder: Path) -> None:
    with engine(AS_SEARXNG) as server, serving(searching) as vendor:
        (folder / "retinue.toml").write_text(f'[tools]\nweb_search = "searxng:{server.url}"\n')
        ended = cli(*asking(vendor), "Why?")

    assert (ended.code, json.loads(ended.stdout)) == (0, FOUND)
    assert len(server.requests) == 1


@pytest.mark.promise("BZ-BUZZ-TOOLS")
def test_buzz_searches_with_the_server_of_the_environment(cli: Cli) -> None:
    with engine(AS_SEARXNG) as server, serving(searching) as vendor:
        ended = cli(*buzzing(vendor), env={"SEARXNG_URL": server.url})

    assert ended.code == 0
    assert json.loads(ended.stdout.removesuffix("\n\n=== [ DONE ] ===\n")) == FOUND


def test_where_nothing_is_set_up_the_model_reads_what_is_missing(cli: Cli) -> None:
    with serving(searching) as vendor:
        ended = cli(*asking(vendor), "Why?")

    assert ended.stdout == f"{NOT_SET_UP}\n"
    assert NOT_SET_UP == (
        "searching the web is not set up here; set SEARXNG_URL to the address of a SearXNG, or BRAVE_API_KEY to a key "
        "for Brave's API, or install the extra `search` from the repository: pip install '.[search]'"
    )


@pytest.mark.parametrize("variable", ["BRAVE_API_KEY", "BRAVE_SEARCH_AI_API_KEY"])
async def test_a_key_is_enough_for_a_search(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    with engine(AS_BRAVE) as server:
        brave = Brave(Fetcher(Guard(trusted=[server.url])), address=f"{server.url}/res/v1/web/search")
        monkeypatch.setenv(variable, "secret-key")

        assert await Automatic(brave=brave).search("pool size") == [POOLS]
        assert server.requests[0].headers["x-subscription-token"] == "secret-key"


@pytest.fixture
def brave(monkeypatch: pytest.MonkeyPatch) -> Generator[FakeServer]:
    """A server on this machine that is asked in place of Brave's API."""
    with engine(AS_BRAVE) as server:
        local = Brave(Fetcher(Guard(trusted=[server.url])), address=f"{server.url}/res/v1/web/search")

        def make(_: Fetcher) -> Brave:
            return local

        monkeypatch.setattr("retinue.tools.web.search.Brave", make)
        yield server


@pytest.mark.parametrize("variable", ["BRAVE_API_KEY", "BRAVE_SEARCH_AI_API_KEY"])
@pytest.mark.parametrize("command", ["run", "buzz"])
def test_a_key_is_enough_for_a_search_of_a_command(cli: Cli, brave: FakeServer, command: str, variable: str) -> None:
    with serving(searching) as vendor:
        arguments = {"run": (*asking(vendor), "Why?"), "buzz": buzzing(vendor)}[command]
        ended = cli(*arguments, env={variable: "secret-key"})

    assert (ended.code, json.loads(ended.stdout.removesuffix("\n\n=== [ DONE ] ===\n"))) == (0, FOUND)
    (request,) = brave.requests
    assert (request.path, request.query) == ("/res/v1/web/search", "q=pool size&count=10&text_decorations=false")
    assert request.headers["x-subscription-token"] == "secret-key"
    assert "secret-key" not in ended.stdout + ended.stderr
    assert not any("secret-key" in json.dumps(request.body) for request in vendor.requests)


async def test_an_own_server_comes_first_then_ddgs_then_brave(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(AS_SEARXNG) as server, engine(AS_BRAVE) as api:
        brave = Brave(Fetcher(Guard(trusted=[api.url])), address=f"{api.url}/res/v1/web/search")
        search = Automatic(ddgs=ManyPools(), brave=brave).search
        monkeypatch.setenv("SEARXNG_URL", server.url)
        monkeypatch.setenv("BRAVE_API_KEY", "secret-key")
        monkeypatch.delitem(sys.modules, "ddgs")
        by_server = await search("pool size")
        monkeypatch.delenv("SEARXNG_URL")
        by_ddgs = await search("pool size")
        monkeypatch.setitem(sys.modules, "ddgs", None)
        by_key = await search("pool size")

    assert (by_server, by_ddgs, by_key) == ([POOLS], [POOLS, POOLS], [POOLS])
    assert (len(server.requests), len(api.requests)) == (1, 1)


@pytest.mark.parametrize("address", ["localhost:8888", "http://me:secret@localhost", "file:///etc"])
async def test_an_address_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("SEARXNG_URL", address)

    with pytest.raises(ToolError, match=r"^SEARXNG_URL is not an address; it has to be like http://localhost:8888$"):
        await search_by("auto")("pool size")
