"""One session serves all requests, and closes all its connections."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from yarl import URL

from retinue.net.http import Http, UnknownProxy, environment_proxy, named_proxies
from retinue.net.http1 import Response
from retinue.testing.fake_server import FakeResponse, FakeServer
from retinue.version import __version__


async def fetch(http: Http, url: str, body: bytes = b"{}") -> bytes:
    async with http.post(URL(url), body, {"X-Mine": "1"}) as response:
        return b"".join([piece async for piece in pieces_of(response)])


async def pieces_of(response: Response) -> AsyncIterator[bytes]:
    while piece := await response.content.readany():
        yield piece


async def test_a_body_has_content_length_and_the_connection_is_reused() -> None:
    async with FakeServer(lambda heard: FakeResponse(pieces=(b"%d" % len(heard.raw),))) as server:
        http = Http()
        small, large = await fetch(http, server.url, b"x" * 10), await fetch(http, server.url, b"x" * 3_000_000)
        await http.close()

        assert (small, large) == (b"10", b"3000000")
        first, second = server.requests
        assert [heard.headers["content-length"] for heard in server.requests] == ["10", "3000000"]
        assert first.port == second.port
        assert {name: first.headers.get(name) for name in ("x-mine", "user-agent", "accept-encoding", "cookie")} == {
            "x-mine": "1",
            "user-agent": f"retinue/{__version__}",
            "accept-encoding": "identity",
            "cookie": None,
        }


async def test_a_closed_session_reopens_on_use() -> None:
    async with FakeServer(lambda _: FakeResponse(pieces=(b"here",))) as server:
        http = Http()
        assert await fetch(http, server.url) == b"here"
        await http.close()
        assert await fetch(http, server.url) == b"here"
        await http.close()
        await http.close()

        first, second = server.requests
        assert first.port != second.port


async def test_cookies_are_not_stored() -> None:
    async with FakeServer(lambda _: FakeResponse(headers={"Set-Cookie": "who=me"})) as server:
        http = Http()
        await fetch(http, server.url)
        await fetch(http, server.url)
        await http.close()

        assert [heard.headers.get("cookie") for heard in server.requests] == [None, None]


def test_one_session_serves_successive_event_loops() -> None:
    http = Http()

    async def once() -> bytes:
        async with FakeServer(lambda _: FakeResponse(pieces=(b"here",))) as server:
            return await fetch(http, server.url)

    assert [asyncio.run(once()), asyncio.run(once())] == [b"here", b"here"]
    asyncio.run(http.close())


async def test_a_session_of_another_thread_is_closed_too() -> None:
    http, opened = Http(), asyncio.Event()
    here = asyncio.get_running_loop()

    async def fetch_and_wait(server: FakeServer, leave: asyncio.Event) -> None:
        await fetch(http, server.url)
        here.call_soon_threadsafe(opened.set)
        await leave.wait()

    async with FakeServer(lambda _: FakeResponse(pieces=(b"here",))) as server:
        other = asyncio.new_event_loop()
        leave = asyncio.Event()
        thread = asyncio.create_task(asyncio.to_thread(other.run_until_complete, fetch_and_wait(server, leave)))
        await opened.wait()
        await http.close()
        other.call_soon_threadsafe(leave.set)
        await thread
        other.close()

        assert len(server.requests) == 1


PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.mark.parametrize(
    ("environment", "asked", "proxy"),
    [
        ({}, ("https", "api.example"), None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, ("https", "api.example"), "http://proxy:3128"),
        ({"https_proxy": "proxy:3128"}, ("https", "api.example"), "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, ("http", "api.example"), None),
        ({"ALL_PROXY": "http://proxy:3128"}, ("http", "api.example"), "http://proxy:3128"),
        ({"ALL_PROXY": "https://proxy:3128"}, ("http", "api.example"), "https://proxy:3128"),
        ({"HTTPS_PROXY": "https://proxy:3128"}, ("https", "api.example"), "https://proxy:3128"),
        ({"ALL_PROXY": "socks5://proxy:1080", "NO_PROXY": "api.example"}, ("http", "api.example"), None),
        ({"ALL_PROXY": "socks5://proxy:1080"}, ("http", "localhost"), None),
        ({"ALL_PROXY": "socks5://p", "HTTP_PROXY": "http://proxy"}, ("http", "api.example"), "http://proxy"),
        ({"HTTPS_PROXY": "http://proxy", "NO_PROXY": "api.example"}, ("https", "api.example"), None),
        ({"HTTPS_PROXY": "http://proxy", "NO_PROXY": ".example"}, ("https", "api.example"), None),
        ({"HTTP_PROXY": "http://proxy"}, ("http", "localhost"), None),
        ({"HTTP_PROXY": "http://proxy"}, ("http", "127.0.0.1"), None),
    ],
)
def test_proxies_come_from_the_environment(
    environment: dict[str, str], asked: tuple[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_proxies(monkeypatch, environment)

    assert environment_proxy(*asked) == proxy


def test_an_unsupported_proxy_scheme_is_not_bypassed(monkeypatch: pytest.MonkeyPatch) -> None:
    set_proxies(monkeypatch, {"ALL_PROXY": "socks5h://me:secret@proxy:1080"})

    with pytest.raises(UnknownProxy) as unknown:
        environment_proxy("https", "api.example")

    assert str(unknown.value) == (
        "ALL_PROXY names a proxy of the kind socks5h://, and only http:// and https:// are known; set another, or add "
        "api.example to NO_PROXY"
    )
    assert (unknown.value.variable, unknown.value.kind, unknown.value.host) == ("ALL_PROXY", "socks5h", "api.example")


@pytest.mark.parametrize("invalid", ["http://[::1", "proxy:99999", "http://", "://x", "http://:3128"])
def test_an_invalid_proxy_address_is_not_bypassed(invalid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_proxies(monkeypatch, {"HTTPS_PROXY": invalid})

    with pytest.raises(UnknownProxy, match="HTTPS_PROXY is not the address of a proxy, such as http://host:3128; "):
        environment_proxy("https", "api.example")
    with pytest.raises(UnknownProxy, match="HTTPS_PROXY is not the address of a proxy"):
        named_proxies()


def test_proxy_errors_hide_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    set_proxies(monkeypatch, {"https_proxy": "https://me:secret@proxy:3128", "all_proxy": "proxy:1"})

    assert named_proxies() == {"HTTPS_PROXY": "https://proxy:3128", "ALL_PROXY": "http://proxy:1"}


def test_an_unused_proxy_may_have_any_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    set_proxies(monkeypatch, {"HTTPS_PROXY": "http://a", "HTTP_PROXY": "http://b", "ALL_PROXY": "socks5://c"})

    assert named_proxies() == {"HTTPS_PROXY": "http://a", "HTTP_PROXY": "http://b"}


def set_proxies(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    """Set these proxy variables, and no others."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


async def test_a_request_goes_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeServer(lambda _: FakeResponse(pieces=(b"through the proxy",))) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        http = Http()
        assert await fetch(http, "http://api.example/v1") == b"through the proxy"
        await http.close()

        assert [heard.headers["host"] for heard in proxy.requests] == ["api.example"]
