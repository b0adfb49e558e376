"""Pages are fetched within limits and without identifying headers, or raise an error with its reason."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest

from retinue.net.fetcher import (
    BadStatus,
    Bounds,
    Fetched,
    Fetcher,
    NotText,
    TooLarge,
    TooManyRedirects,
    TooSlow,
)
from retinue.net.guard import FetchFailed, Guard, Unreachable, UrlRefused
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from retinue.version import __version__

TEXT = {"Content-Type": "text/plain; charset=utf-8"}
SMALL = Bounds(seconds=20, bytes=100_000, redirects=5)


def fetcher_for(server: FakeServer, bounds: Bounds = SMALL) -> Fetcher:
    return Fetcher(Guard(trusted=[server.url]), bounds)


async def failure(
    answer: FakeResponse | Callable[[ReceivedRequest], FakeResponse], bounds: Bounds = SMALL
) -> FetchFailed:
    async with FakeServer(answer if callable(answer) else lambda _: answer) as server:
        with pytest.raises(FetchFailed) as failed:
            await fetcher_for(server, bounds).get(f"{server.url}/page")
        return failed.value


async def test_a_page_has_its_content_type_and_final_url() -> None:
    async with FakeServer(lambda _: FakeResponse(headers=TEXT, pieces=(b"hel", b"lo"))) as server:
        page = await fetcher_for(server).get(f"{server.url}/a%20b?q=1#part")

        assert page == Fetched(url=f"{server.url}/a%20b?q=1", content_type="text/plain", charset="utf-8", body=b"hello")


async def test_requests_have_no_identifying_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeServer(lambda _: FakeResponse(headers={**TEXT, "Set-Cookie": "who=me"})) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        fetcher = fetcher_for(server)
        await fetcher.get(server.url)
        await fetcher.get(server.url)

        for heard in server.requests:
            assert {name: value for name, value in heard.headers.items() if name not in ("host", "accept")} == {
                "accept-encoding": "gzip",
                "user-agent": f"Mozilla/5.0 (compatible; retinue/{__version__})",
                "connection": "close",
            }


async def test_redirects_are_followed_and_the_final_url_is_returned() -> None:
    def redirecting(heard: ReceivedRequest) -> FakeResponse:
        step = int(heard.path.removeprefix("/"))
        if step < 5:
            return FakeResponse(status=(301, 302, 303, 307, 308)[step], headers={"Location": f"{step + 1}"})
        return FakeResponse(headers=TEXT, pieces=(b"here",))

    async with FakeServer(redirecting) as server:
        page = await fetcher_for(server).get(f"{server.url}/0")

        assert (page.url, page.body) == (f"{server.url}/5", b"here")


async def test_endless_redirects_are_an_error() -> None:
    asked: list[str] = []

    def redirect(heard: ReceivedRequest) -> FakeResponse:
        asked.append(heard.path)
        return FakeResponse(status=302, headers={"Location": "/page"})

    failed = await failure(redirect)

    assert isinstance(failed, TooManyRedirects)
    assert (str(failed), failed.limit, len(asked)) == ("more than 5 redirects", 5, 6)


async def test_a_request_with_a_key_follows_no_redirect() -> None:
    async with FakeServer(lambda _: FakeResponse(status=302, headers={"Location": "/elsewhere"})) as server:
        with pytest.raises(UrlRefused, match="a key does not travel"):
            await fetcher_for(server).get(server.url, headers={"X-Key": "secret"})

        assert [(heard.path, heard.headers.get("x-key")) for heard in server.requests] == [("/", "secret")]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "the server answered 404 Not Found"),
        (500, "the server answered 500 Internal Server Error"),
        (204, "the server answered 204 No Content"),
        (302, "the server answered 302 Found"),
        (799, "the server answered 799"),
    ],
)
async def test_error_statuses_are_errors(status: int, message: str) -> None:
    failed = await failure(FakeResponse(status=status, headers=TEXT))

    assert isinstance(failed, BadStatus)
    assert (str(failed), failed.status) == (message, status)


@pytest.mark.parametrize(
    "answer",
    [
        FakeResponse(status=0, ending="silence"),
        FakeResponse(headers=TEXT, pieces=(b"begun",), ending="silence"),
        FakeResponse(headers=TEXT, delay=60.0),
        FakeResponse(headers=TEXT, pieces=(b"drop",) * 30, every=1.0),
    ],
    ids=["no answer", "stops midway", "starts late", "drips"],
)
async def test_a_slow_server_times_out(answer: FakeResponse) -> None:
    failed = await failure(answer)

    assert isinstance(failed, TooSlow)
    assert (str(failed), failed.seconds) == ("no whole answer within 20 seconds", 20)


async def test_redirects_share_one_timeout() -> None:
    failed = await failure(lambda _: FakeResponse(status=302, headers={"Location": "/page"}, delay=6.0))

    assert isinstance(failed, TooSlow)


PACKED = {**TEXT, "Content-Encoding": "gzip"}
BOMB = gzip.compress(bytes(30_000_000), mtime=0)
BOMB_IN_MEMORY = gzip.compress(bytes(100_001), mtime=0)


@pytest.mark.parametrize(
    "answer",
    [
        FakeResponse(headers={**TEXT, "Content-Length": "100001"}, ending="silence"),
        FakeResponse(headers=TEXT, pieces=(b"x" * 100_001,)),
        FakeResponse(headers=TEXT, pieces=(b"x" * 1000,) * 101),
        FakeResponse(headers=PACKED, pieces=(BOMB,)),
        FakeResponse(headers=PACKED, pieces=(BOMB_IN_MEMORY,)),
        FakeResponse(
            headers=PACKED, pieces=(b"\x1f\x8b\x08" + bytes(7) + b"\x00\x00\x00\xff\xff" * 20_001,), ending="silence"
        ),
    ],
    ids=["content length", "one piece", "many pieces", "a bomb", "one byte too many", "endless empty gzip blocks"],
)
async def test_a_page_above_the_size_limit_is_an_error_in_any_encoding(answer: FakeResponse) -> None:
    failed = await failure(answer)

    assert isinstance(failed, TooLarge)
    assert (str(failed), failed.limit) == ("the answer is larger than 100000 bytes", 100_000)


async def test_a_decompression_bomb_is_stopped_at_the_limit() -> None:
    tracemalloc.start()
    try:
        assert isinstance(await failure(FakeResponse(headers=PACKED, pieces=(BOMB,))), TooLarge)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000  # instead of 30 million
    finally:
        tracemalloc.stop()


async def test_a_page_of_exactly_the_limit_is_read() -> None:
    for headers, body in ((TEXT, bytes(100_000)), (PACKED, gzip.compress(bytes(100_000), mtime=0))):
        async with FakeServer(lambda _, h=headers, b=body: FakeResponse(headers=h, pieces=(b,), chunk=7000)) as server:
            assert (await fetcher_for(server).get(server.url)).body == bytes(100_000)


@pytest.mark.parametrize(
    ("headers", "body", "message"),
    [
        (PACKED, b"not packed", "the answer is not packed as it says"),
        (PACKED, BOMB_IN_MEMORY[:50], "the answer broke off"),
        ({**TEXT, "Content-Length": "10"}, b"five!", "no connection, or one that broke off"),
    ],
)
async def test_a_broken_body_is_an_error(headers: dict[str, str], body: bytes, message: str) -> None:
    failed = await failure(
        FakeResponse(headers=headers, pieces=(body,), ending="cut" if "Content-Length" in headers else "whole")
    )

    assert (type(failed), str(failed)) == (Unreachable, message)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/octet-stream"},
        {"Content-Type": "application/pdf"},
        {"Content-Type": "image/png"},
        {"Content-Type": "image/svg+xml"},
        {"Content-Type": "video/mp4; charset=utf-8"},
        {"Content-Type": "application/zip"},
        {**TEXT, "Content-Encoding": "br"},
        {**TEXT, "Content-Encoding": "gzip, gzip"},
        {**TEXT, "Content-Encoding": "deflate"},
    ],
    ids=lambda headers: ", ".join(headers.values()),
)
async def test_non_text_content_is_not_read(headers: dict[str, str]) -> None:
    failed = await failure(FakeResponse(headers=headers, pieces=(zlib.compress(b"x"),), ending="silence"))

    assert isinstance(failed, NotText)


@pytest.mark.parametrize(
    "kind",
    ["text/html", "TEXT/HTML; charset=x", "text/markdown", "application/json", "application/ld+json", "application/xml",
     "application/rss+xml", "application/xhtml+xml", "application/yaml"],
)  # fmt: skip
async def test_many_text_types_are_read(kind: str) -> None:
    async with FakeServer(lambda _: FakeResponse(headers={"Content-Type": kind}, pieces=(b"x",))) as server:
        page = await fetcher_for(server).get(server.url)

        assert (page.body, page.content_type) == (b"x", kind.partition(";")[0].lower())


async def test_refused_and_closed_connections_are_unreachable() -> None:
    closed = await failure(FakeResponse(status=0))
    async with FakeServer(lambda _: FakeResponse()) as server:
        fetcher, gone = fetcher_for(server), server.url
    with pytest.raises(Unreachable) as refused:
        await fetcher.get(gone)

    assert (type(closed), str(closed)) == (Unreachable, "no connection, or one that broke off")
    assert (str(refused.value), refused.value.url) == ("no connection, or one that broke off", gone)
