"""A page is read within its bounds and without a name, or there is an error that says why."""

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


def reading(server: FakeServer, bounds: Bounds = SMALL) -> Fetcher:
    return Fetcher(Guard(trusted=[server.url]), bounds)


async def failure(
    answer: FakeResponse | Callable[[ReceivedRequest], FakeResponse], bounds: Bounds = SMALL
) -> FetchFailed:
    async with FakeServer(answer if callable(answer) else lambda _: answer) as server:
        with pytest.raises(FetchFailed) as failed:
            await reading(server, bounds).get(f"{server.url}/page")
        return failed.value


async def test_a_page_comes_with_what_it_is_and_where_it_was() -> None:
    async with FakeServer(lambda _: FakeResponse(headers=TEXT, pieces=(b"hel", b"lo"))) as server:
        page = await reading(server).get(f"{server.url}/a%20b?q=1#part")

        assert page == Fetched(url=f"{server.url}/a%20b?q=1", content_type="text/plain", charset="utf-8", body=b"hello")


async def test_nothing_is_sent_that_says_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeServer(lambda _: FakeResponse(headers={**TEXT, "Set-Cookie": "who=me"})) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        reads = reading(server)
        await reads.get(server.url)
        await reads.get(server.url)

        for heard in server.requests:
            assert {name: value for name, value in heard.headers.items() if name not in ("host", "accept")} == {
                "accept-encoding": "gzip",
                "user-agent": f"Mozilla/5.0 (compatible; retinue/{__version__})",
                "connection": "close",
            }


async def test_redirects_are_followed_and_the_last_address_is_told() -> None:
    def answering(heard: ReceivedRequest) -> FakeResponse:
        step = int(heard.path.removeprefix("/"))
        if step < 5:
            return FakeResponse(status=(301, 302, 303, 307, 308)[step], headers={"Location": f"{step + 1}"})
        return FakeResponse(headers=TEXT, pieces=(b"here",))

    async with FakeServer(answering) as server:
        page = await reading(server).get(f"{server.url}/0")

        assert (page.url, page.body) == (f"{server.url}/5", b"here")


async def test_redirects_that_do_not_end_are_left() -> None:
    asked: list[str] = []

    def around(heard: ReceivedRequest) -> FakeResponse:
        asked.append(heard.path)
        return FakeResponse(status=302, headers={"Location": "/page"})

    failed = await failure(around)

    assert isinstance(failed, TooManyRedirects)
    assert (str(failed), failed.limit, len(asked)) == ("more than 5 redirects", 5, 6)


async def test_a_request_with_a_key_follows_no_redirect() -> None:
    async with FakeServer(lambda _: FakeResponse(status=302, headers={"Location": "/elsewhere"})) as server:
        with pytest.raises(UrlRefused, match="a key does not travel"):
            await reading(server).get(server.url, headers={"X-Key": "secret"})

        assert [(heard.path, heard.headers.get("x-key")) for heard in server.requests] == [("/", "secret")]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, "the server answered 404 Not Found"),
        (500, "the server answered 500 Internal Server Error"),
        (204, "the server answered 204 No Content"),
        (302, "the server answered 302 Found"),
        (799, "the server answered 799"),
    ],
)
async def test_any_other_answer_than_a_page_is_an_error(status: int, said: str) -> None:
    failed = await failure(FakeResponse(status=status, headers=TEXT))

    assert isinstance(failed, BadStatus)
    assert (str(failed), failed.status) == (said, status)


@pytest.mark.parametrize(
    "answer",
    [
        FakeResponse(status=0, ending="silence"),
        FakeResponse(headers=TEXT, pieces=(b"begun",), ending="silence"),
        FakeResponse(headers=TEXT, delay=60.0),
        FakeResponse(headers=TEXT, pieces=(b"drop",) * 30, every=1.0),
    ],
    ids=["says nothing", "stops in the middle", "starts late", "drips"],
)
async def test_a_slow_server_is_left_after_its_time(answer: FakeResponse) -> None:
    failed = await failure(answer)

    assert isinstance(failed, TooSlow)
    assert (str(failed), failed.seconds) == ("no whole answer within 20 seconds", 20)


async def test_all_redirects_together_have_one_time() -> None:
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
    ids=["says so", "in one piece", "in many", "a bomb", "a byte too much", "packed emptiness without end"],
)
async def test_a_large_page_is_left_at_its_limit_however_it_is_packed(answer: FakeResponse) -> None:
    failed = await failure(answer)

    assert isinstance(failed, TooLarge)
    assert (str(failed), failed.limit) == ("the answer is larger than 100000 bytes", 100_000)


async def test_a_bomb_is_not_unpacked_before_it_is_counted() -> None:
    tracemalloc.start()
    try:
        assert isinstance(await failure(FakeResponse(headers=PACKED, pieces=(BOMB,))), TooLarge)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000  # of 30 that it would be
    finally:
        tracemalloc.stop()


async def test_a_page_of_exactly_the_limit_is_read() -> None:
    for headers, body in ((TEXT, bytes(100_000)), (PACKED, gzip.compress(bytes(100_000), mtime=0))):
        async with FakeServer(lambda _, h=headers, b=body: FakeResponse(headers=h, pieces=(b,), chunk=7000)) as server:
            assert (await reading(server).get(server.url)).body == bytes(100_000)


@pytest.mark.parametrize(
    ("headers", "body", "said"),
    [
        (PACKED, b"not packed", "the answer is not packed as it says"),
        (PACKED, BOMB_IN_MEMORY[:50], "the answer broke off"),
        ({**TEXT, "Content-Length": "10"}, b"five!", "no connection, or one that broke off"),
    ],
)
async def test_a_broken_body_is_an_error(headers: dict[str, str], body: bytes, said: str) -> None:
    failed = await failure(
        FakeResponse(headers=headers, pieces=(body,), ending="cut" if "Content-Length" in headers else "whole")
    )

    assert (type(failed), str(failed)) == (Unreachable, said)


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
async def test_what_is_no_text_is_not_even_read(headers: dict[str, str]) -> None:
    failed = await failure(FakeResponse(headers=headers, pieces=(zlib.compress(b"x"),), ending="silence"))

    assert isinstance(failed, NotText)


@pytest.mark.parametrize(
    "kind",
    ["text/html", "TEXT/HTML; charset=x", "text/markdown", "application/json", "application/ld+json", "application/xml",
     "application/rss+xml", "application/xhtml+xml", "application/yaml"],
)  # fmt: skip
async def test_text_of_many_kinds_is_read(kind: str) -> None:
    async with FakeServer(lambda _: FakeResponse(headers={"Content-Type": kind}, pieces=(b"x",))) as server:
        page = await reading(server).get(server.url)

        assert (page.body, page.content_type) == (b"x", kind.partition(";")[0].lower())


async def test_a_server_that_is_not_there_and_one_that_hangs_up_are_unreachable() -> None:
    hung_up = await failure(FakeResponse(status=0))
    async with FakeServer(lambda _: FakeResponse()) as server:
        reads, gone = reading(server), server.url
    with pytest.raises(Unreachable) as not_there:
        await reads.get(gone)

    assert (type(hung_up), str(hung_up)) == (Unreachable, "no connection, or one that broke off")
    assert (str(not_there.value), not_there.value.url) == ("no connection, or one that broke off", gone)
