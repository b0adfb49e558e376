"""Web search: each engine reaches its own host only, failures find nothing, and setup errors are reported."""

import asyncio
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from retinue.core.errors import BadInput, ToolError
from retinue.net.fetcher import Fetcher
from retinue.net.guard import Guard
from retinue.testing.fake_server import FakeResponse, FakeServer
from retinue.tools.web.search import (
    HOSTS,
    MISSING,
    Brave,
    Ddgs,
    Engine,
    EngineStrayed,
    OneHost,
    SearchResult,
    engine_of_ddgs,
    findings,
    search_by,
)

JSON = {"Content-Type": "application/json"}
POOLS = SearchResult("Pools", "https://example.org/pools", "How large a pool should be")

DUCKDUCKGO = """<html><body><div class="links_main result__body"><h2><a>Pools</a></h2>
<a href="https://example.org/pools">How large a pool should be</a></div></body></html>"""
MOJEEK = """<html><body><ul class="results-standard"><li><h2><a href="https://example.org/pools">Pools</a></h2>
<p class="s">How large a pool should be</p></li></ul></body></html>"""


@dataclass
class Said:
    """A response of the ddgs transport."""

    text: str = ""
    status_code: int = 200

    @property
    def content(self) -> bytes:
        return self.text.encode()


@dataclass
class Transport:
    """Replaces the network of the real ddgs engines: responses by host."""

    says: Mapping[str, Said | Exception]
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    follow_redirects: bool = True

    def request(self, method: str, url: str, **options: Any) -> Said:
        assert not self.follow_redirects
        self.asked.append((method, url))
        said = self.says.get(urlsplit(url).netloc, ConnectionError("unreachable"))
        if isinstance(said, Exception):
            raise said
        return said

    def set_cookies(self, url: str, cookies: Mapping[str, str]) -> None:
        """Engines set some."""

    def engine(self, name: str) -> Engine:
        """A real engine on this network."""
        engine = engine_of_ddgs(name)
        engine.http_client.client = self
        return engine


async def test_ddgs_asks_one_engine_if_it_has_something() -> None:
    network = Transport({"html.duckduckgo.com": Said(DUCKDUCKGO)})

    assert await Ddgs(engine=network.engine).search("pool size") == [POOLS]
    assert network.asked == [("POST", "https://html.duckduckgo.com/html/")]


@pytest.mark.parametrize(
    "answer",
    [
        TimeoutError("timed out"),
        Said("", 202),
        Said("moved", 302),
        Said("<html></html>"),
        Said("\x00"),
        RuntimeError("?"),
    ],
    ids=repr,
)
async def test_ddgs_asks_the_next_engine_when_one_has_nothing(answer: Said | Exception) -> None:
    network = Transport({"html.duckduckgo.com": answer, "search.brave.com": answer, "www.mojeek.com": Said(MOJEEK)})

    assert await Ddgs(engine=network.engine).search("pool size") == [POOLS]
    assert [urlsplit(url).netloc for _, url in network.asked] == list(HOSTS.values())[:3]


async def test_ddgs_finds_nothing_when_no_engine_answers() -> None:
    network = Transport({})

    assert await Ddgs(engine=network.engine).search("pool size") == []
    assert [urlsplit(url).netloc for _, url in network.asked] == list(HOSTS.values())


async def test_an_encyclopedia_is_asked_last_and_only_at_its_own_host() -> None:
    network = Transport({"en.wikipedia.org": Said(json.dumps(["q", ["Pool"], [""], ["http://127.0.0.1/"]]))})

    await Ddgs(engine=network.engine).search("http://127.0.0.1/ @evil.example #")

    assert {urlsplit(url).netloc for _, url in network.asked} == set(HOSTS.values())
    assert all(url.startswith("https://") for _, url in network.asked)


def test_an_engine_that_hangs_does_not_keep_the_process_alive() -> None:
    answered = threading.Event()

    async def give_up() -> None:
        asked, loop = asyncio.Event(), asyncio.get_running_loop()

        def hangs(name: str) -> Engine:
            loop.call_soon_threadsafe(asked.set)
            answered.wait(60)
            raise KeyError(name)

        search = asyncio.create_task(Ddgs(engine=hangs).search("pool size"))
        await asked.wait()
        search.cancel()

    program = threading.Thread(target=asyncio.run, args=(give_up(),))
    try:
        program.start()
        program.join(timeout=20)
        assert not program.is_alive()
    finally:
        answered.set()


def test_every_engine_that_is_asked_is_there_and_asks_the_host_in_the_table() -> None:
    def its_host(name: str) -> str:
        engine: Any = engine_of_ddgs(name)
        engine.build_payload(query="q", region="us-en", safesearch="moderate", timelimit=None, page=1)
        return urlsplit(str(engine.search_url)).netloc

    assert {name: its_host(name) for name in HOSTS} == HOSTS


@pytest.mark.parametrize(
    "url",
    [
        "http://html.duckduckgo.com/html/",
        "https://html.duckduckgo.com:8443/",
        "https://html.duckduckgo.com@127.0.0.1/",
        "https://html.duckduckgo.com.evil.example/",
        "https://127.0.0.1/",
        "file:///etc/passwd",
    ],
)
def test_an_engine_cannot_leave_its_host(url: str) -> None:
    network = Transport({})
    client = OneHost(network.engine("duckduckgo").http_client, "html.duckduckgo.com")

    with pytest.raises(EngineStrayed) as strayed:
        client.request("GET", url)

    assert (strayed.value.url, strayed.value.host, network.asked) == (url, "html.duckduckgo.com", [])


@pytest.mark.real_time
async def test_the_transport_of_ddgs_follows_no_redirect_once_it_is_held() -> None:
    async with FakeServer(lambda _: FakeResponse(status=302, headers={"Location": "/elsewhere"})) as server:
        held = OneHost(engine_of_ddgs("duckduckgo").http_client, "html.duckduckgo.com")

        said = await asyncio.to_thread(held.client.request, "GET", f"{server.url}/start")

        assert (said.status_code, [heard.path for heard in server.requests]) == (302, ["/start"])


def test_a_transport_without_a_redirect_option_is_not_used() -> None:
    engine = engine_of_ddgs("duckduckgo")
    engine.http_client.client = object()

    with pytest.raises(AttributeError):
        OneHost(engine.http_client, "html.duckduckgo.com")


async def test_without_ddgs_the_error_names_the_extra() -> None:
    def missing(name: str) -> Engine:
        raise ModuleNotFoundError("No module named 'ddgs'", name="ddgs")

    with pytest.raises(ToolError) as raised:
        await Ddgs(engine=missing).search("pool size")

    assert str(raised.value) == MISSING
    assert "pip install '.[search]'" in MISSING


async def test_searxng_is_reached_at_the_configured_address_even_on_this_machine() -> None:
    found = {"results": [{"title": "Pools", "url": POOLS.url, "content": POOLS.description, "engine": "x"}]}
    async with FakeServer(lambda _: FakeResponse(headers=JSON, pieces=(json.dumps(found).encode(),))) as server:
        assert await search_by(f"searxng:{server.url}/own/")("pool size & more") == [POOLS]

        (heard,) = server.requests
        assert (heard.path, heard.query) == ("/own/search", "q=pool size %26 more&format=json")


async def test_an_instance_cannot_send_us_elsewhere_on_this_machine() -> None:
    async with FakeServer(lambda _: FakeResponse(headers=JSON, pieces=(b"{}",))) as victim:
        async with FakeServer(lambda _: FakeResponse(status=302, headers={"Location": victim.url})) as server:
            assert await search_by(f"searxng:{server.url}")("pool size") == []

        assert victim.requests == []


def brave(server: FakeServer) -> Brave:
    return Brave(Fetcher(Guard(trusted=[server.url])), address=f"{server.url}/res/v1/web/search")


async def test_brave_gets_its_key_in_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAVE_API_KEY", "secret-key")
    found = {"web": {"results": [{"title": "Pools", "url": POOLS.url, "description": POOLS.description}]}}
    async with FakeServer(lambda _: FakeResponse(headers=JSON, pieces=(json.dumps(found).encode(),))) as server:
        assert await brave(server).search("pool size") == [POOLS]

        (heard,) = server.requests
        assert (heard.path, heard.query) == ("/res/v1/web/search", "q=pool size&count=10&text_decorations=false")
        assert (heard.headers["x-subscription-token"], heard.headers["accept"]) == ("secret-key", "application/json")


async def test_a_key_does_not_follow_a_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAVE_API_KEY", "secret-key")
    async with FakeServer(lambda _: FakeResponse(status=307, headers={"Location": "/elsewhere"})) as server:
        assert await brave(server).search("pool size") == []

        assert len(server.requests) == 1


async def test_without_a_key_the_error_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRAVE_API_KEY", raising=False)

    with pytest.raises(ToolError, match=r"^searching with Brave needs a key in BRAVE_API_KEY, which is not set here$"):
        await search_by("brave")("pool size")


@pytest.mark.parametrize("status", [401, 403, 422])
async def test_an_engine_that_refuses_us_is_a_person_s_business(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAVE_API_KEY", "wrong-key")
    async with FakeServer(lambda _: FakeResponse(status=status, headers=JSON)) as server:
        with pytest.raises(ToolError, match=r"^Brave refuses: is the key in BRAVE_API_KEY right\?$"):
            await brave(server).search("pool size")
        with pytest.raises(ToolError, match=r"need `json` under search\.formats$"):
            await search_by(f"searxng:{server.url}")("pool size")


@pytest.mark.parametrize(
    "answer",
    [
        FakeResponse(status=500, headers=JSON),
        FakeResponse(status=429, headers=JSON),
        FakeResponse(status=0),
        FakeResponse(headers=JSON, ending="silence"),
        FakeResponse(headers=JSON, pieces=(b'{"results": [',)),
        FakeResponse(headers=JSON, pieces=(b"\xff",)),
        FakeResponse(headers=JSON, pieces=(b"[" * 100_000,)),
        FakeResponse(headers=JSON, pieces=(b'["results"]',)),
        FakeResponse(headers=JSON, pieces=(b'{"results": 5, "web": [1]}',)),
        FakeResponse(headers=JSON, pieces=(b'{"results": [5, {}, {"url": 7}, {"url": "ftp://x"}]}',)),
        FakeResponse(headers={"Content-Type": "image/png"}),
    ],
)
async def test_an_engine_that_answers_with_nonsense_finds_nothing(
    answer: FakeResponse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAVE_API_KEY", "secret-key")
    async with FakeServer(lambda _: answer) as server:
        assert await brave(server).search("pool size") == []
        assert await search_by(f"searxng:{server.url}")("pool size") == []


def test_findings_are_few_short_and_each_there_once() -> None:
    found = [
        ("  A\n title\x1b ", "https://example.org/1", "x" * 600),
        ("again", "https://example.org/1", ""),
        ("script", "javascript:alert(1)", ""),
        ("nothing", None, ""),
        *((f"{n}", f"https://example.org/{n}", None) for n in range(2, 20)),
    ]

    first, *rest = findings(found)

    assert first == SearchResult("A title", "https://example.org/1", "x" * 500)
    assert rest == [SearchResult(f"{n}", f"https://example.org/{n}", "") for n in range(2, 11)]


@pytest.mark.parametrize(
    "setting",
    ["", "google", "ddgs:x", "brave:key", "searxng", "searxng:", "searxng:localhost:8888", "searxng:file:///etc",
     "searxng:http://", "searxng:http://me:secret@localhost", "searxng:http://[", "searxng:http://localhost:99999"],
)  # fmt: skip
def test_a_setting_that_names_no_engine_is_refused(setting: str) -> None:
    with pytest.raises(BadInput, match="expected auto, ddgs, brave, or searxng: and an address"):
        search_by(setting)
