"""Answers of HTTP/1.1 are read whatever their framing and however the network splits them, and damage is an error."""

import asyncio
import contextlib
import gzip
import ssl
import sys
import zlib
from collections.abc import AsyncGenerator, Callable
from importlib import import_module
from typing import Any

import pytest
from yarl import URL

from retinue.net import http1
from retinue.net.http1 import (
    INFLATED_BYTES,
    KEEPALIVE_SECONDS,
    MAX_HEAD_BYTES,
    PAUSE_BYTES,
    BadResponse,
    Disconnected,
    Pool,
)
from tests.net.pages_example import client_tls, server_tls

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
GZIPPED = gzip.compress(b"word " * 100)


class Server:
    """A server that sends these pieces as the answer to each request, and then keeps or closes the connection."""

    def __init__(self, *pieces: bytes, closes: bool = False, tls: ssl.SSLContext | None = None) -> None:
        self.pieces, self.closes, self.tls = pieces, closes, tls
        self.connections = 0
        self.requests: list[bytes] = []
        self.closed = asyncio.Event()
        self.url = URL()
        self.answer = self._answer
        self._handlers: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncGenerator[Pool]:
        """Serve, with a pool for the requests."""
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0, ssl=self.tls)
        scheme, host = ("https", "pages.example") if self.tls else ("http", "127.0.0.1")
        self.url = URL(f"{scheme}://{host}:{server.sockets[0].getsockname()[1]}/v1/x?y=1")
        pool = Pool(connect_seconds=15.0, headers={"User-Agent": "retinue"})
        try:
            yield pool
        finally:
            await pool.close()
            server.close()
            await server.wait_closed()
            await asyncio.gather(*self._handlers)

    def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._handlers.append(asyncio.create_task(self._answer_and_close(reader, writer)))

    async def _answer_and_close(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self.answer(reader, writer)
        self.closed.set()
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            self.requests.append(head + await reader.readexactly(length))
            for piece in self.pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if self.closes:
                return


async def read(pool: Pool, url: URL, body: bytes = b"{}") -> tuple[int, bytes]:
    async with pool.post(url, body, {"X-Mine": "1"}) as response:
        pieces: list[bytes] = []
        while piece := await response.readany():
            pieces.append(piece)
        assert response.at_eof()
        return response.status, b"".join(pieces)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "br": import_module("brotli").compress,
    "zstd": import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd").compress,
}


def compressed(encoding: str, content: bytes) -> bytes:
    """An answer with this content encoding."""
    body = COMPRESS[encoding](content)
    return OK + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (encoding.encode(), len(body)) + body


ANSWERS = {
    "length": (OK + b"Content-Length: 11\r\n\r\nhello world", b"hello world"),
    "chunks": (CHUNKED + b"6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n", b"hello world"),
    "chunks with extensions": (CHUNKED + b"6;a=b\r\nhello \r\n05 \r\nworld\r\n0\r\n\r\n", b"hello world"),
    "chunks with line ends": (CHUNKED + b"4\r\n\r\n\r\n\r\n7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n", b"\r\n\r\n\r\n0\r\n\r\n"),
    "trailers": (CHUNKED + b"3\r\nyes\r\n0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n", b"yes"),
    "interim answers": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: 3\r\n\r\nyes", b"yes"),
    "empty": (OK + b"Content-Length: 0\r\n\r\n", b""),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "br": (compressed("br", b"word " * 100), b"word " * 100),
    "zstd": (compressed("zstd", b"word " * 100), b"word " * 100),
    "gzip": (OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(GZIPPED) + GZIPPED, b"word " * 100),
}


async def test_answers_of_many_connections_do_not_mix() -> None:
    """All connections of a pool receive into one buffer."""
    server = Server()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        writer.write(CHUNKED)
        for start in range(0, length, 999):
            piece = body[start : start + 999]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    server.answer = echo
    bodies = [bytes([number]) * 20_000 for number in range(20)]
    async with server.serve() as pool:
        answers = await asyncio.gather(*(read(pool, server.url, body) for body in bodies))

    assert answers == [(200, body) for body in bodies]
    assert server.connections == len(bodies)


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_is_read_wherever_the_network_splits_it(name: str) -> None:
    answer, body = ANSWERS[name]
    places = range(1, len(answer), 1 if len(answer) < 120 else 7)
    splits: list[tuple[bytes, ...]] = [(answer[:at], answer[at:]) for at in places]
    splits.append(tuple(answer[at : at + 1] for at in range(len(answer))))
    server = Server()
    async with server.serve() as pool:
        for pieces in splits:
            server.pieces = pieces
            _, found = await read(pool, server.url)
            assert found == body

    assert server.connections == 1  # every one of these leaves the connection usable


async def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    server = Server(b"HTTP/1.0 200 OK\r\nContent-Type: Text/Plain; charset=utf-8\r\n\r\nhello ", b"world", closes=True)
    async with server.serve() as pool:
        assert await read(pool, server.url) == (200, b"hello world")
        assert await read(pool, server.url) == (200, b"hello world")
    assert server.connections == 2


async def test_the_beginning_of_an_answer_is_parsed() -> None:
    lines = b"Retry-After: 7\r\nX-Id:a:b \r\nContent-Type: Text/Plain; a=b\r\nContent-Length: 0\r\n\r\n"
    server = Server(b"HTTP/1.1 429 Too Many\r\n" + lines)
    async with server.serve() as pool, pool.post(server.url, b"", {}) as response:
        assert (response.status, response.reason, response.content_type) == (429, "Too Many", "text/plain")
        assert (response.headers.get("retry-after"), response.headers["x-ID"]) == ("7", "a:b")


async def test_a_request_has_its_headers_once_and_a_length() -> None:
    server = Server(OK + b"Content-Length: 0\r\n\r\n")
    async with server.serve() as pool:
        headers = {"user-agent": "mine", "Content-Length": "99", "Transfer-Encoding": "chunked", "X-Key": "k"}
        async with pool.post(server.url, b"body", headers):
            pass
    host = f"{server.url.host}:{server.url.port}"
    assert server.requests == [
        f"POST /v1/x?y=1 HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nuser-agent: mine\r\nX-Key: k\r\n"
        "Content-Length: 4\r\n\r\nbody".encode()
    ]


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0"])
async def test_a_header_with_a_line_break_is_not_sent(value: str) -> None:
    server = Server(OK + b"Content-Length: 0\r\n\r\n")
    async with server.serve() as pool:
        with pytest.raises(ValueError, match="line break"):
            pool.post(server.url, b"", {"X-Key": value})
    assert server.requests == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "it sent b'SSH-2.0-OpenSSH_9.6"),
        (b"HTTP/2 200\r\n\r\n", "it sent b'HTTP/2 200'"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "it sent 'HTTP/1.1 2000 OK'"),
        (OK + b"no colon\r\n\r\n", "it sent the header 'no colon'"),
        (OK + b"Bad : name\r\n\r\n", "it sent the header 'Bad : name'"),
        (OK + b"X: " + b"y" * MAX_HEAD_BYTES, f"the head of the answer has more than {MAX_HEAD_BYTES} bytes"),
        (OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n", "the answer has two lengths"),
        (OK + b"Content-Length: -1\r\n\r\n", "the answer has the length '-1'"),
        (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "the answer has the transfer encoding 'gzip, chunked'"),
        (OK + b"Content-Encoding: lzma\r\nContent-Length: 1\r\n\r\nx", "the answer is compressed ('lzma')"),
        (OK + b"Content-Encoding: br\r\nContent-Length: 6\r\n\r\nnot br", "the compressed answer is damaged"),
        (OK + b"Content-Encoding: zstd\r\nContent-Length: 5\r\n\r\nxyzxy", "the compressed answer is damaged"),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nxyz", "the compressed answer is damaged"),
        (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", "the answer has the length '999"),
        (b"HTTP/1.1 000 Odd\r\n\r\n", "it sent the status 000"),
        (CHUNKED + b"0x3\r\nyes\r\n", "a chunk of the answer has the size b'0x3'"),
        (CHUNKED + b"-3\r\n", "a chunk of the answer has the size b'-3'"),
        (CHUNKED + b"\r\n", "a chunk of the answer has the size b''"),
        (CHUNKED + b"1" * 17 + b"\r\n", "a chunk of the answer has the size b'11111111111111111'"),
        (CHUNKED + b"3\r\nyesno", "a chunk of the answer does not end where it should"),
        (CHUNKED + b"5" * 5000, "the answer has a chunk without a size"),
        (CHUNKED + b"0\r\nX: " + b"y" * MAX_HEAD_BYTES, "the trailers of the answer have more than"),
    ],
)
async def test_a_malformed_answer_is_an_error_and_its_connection_is_closed(answer: bytes, error: str) -> None:
    server = Server(answer)
    async with server.serve() as pool:
        with pytest.raises(BadResponse) as caught:
            await read(pool, server.url)
        await server.closed.wait()
    assert str(caught.value).startswith(error)


@pytest.mark.parametrize("answer", [b"", OK, OK + b"Content-Length: 5\r\n\r\nabc", CHUNKED + b"5\r\nabc"])
async def test_a_connection_that_is_closed_too_early_is_an_error(answer: bytes) -> None:
    server = Server(answer, closes=True)
    async with server.serve() as pool:
        with pytest.raises(Disconnected):
            await read(pool, server.url)


async def test_what_arrived_before_an_early_end_is_read_first() -> None:
    server = Server(CHUNKED + b"5\r\nabc", closes=True)
    async with server.serve() as pool, pool.post(server.url, b"", {}) as response:
        await server.closed.wait()
        assert await response.readany() == b"abc"
        with pytest.raises(Disconnected):
            await response.readany()


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 3\r\nConnection: Close\r\n\r\nyes",
        OK + b"Content-Length: 3\r\n\r\nyesmore",
        CHUNKED + b"3\r\nyes\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nyes",
    ],
)
async def test_a_connection_of_doubtful_state_is_not_used_again(answer: bytes) -> None:
    server = Server(answer)
    async with server.serve() as pool:
        assert [await read(pool, server.url) for _ in range(2)] == [(200, b"yes")] * 2
    assert server.connections == 2


async def test_an_idle_connection_that_says_something_is_closed() -> None:
    server = Server(OK + b"Content-Length: 3\r\n\r\nyes", b"", b"HTTP/1.1 408 Timeout\r\n\r\n")
    async with server.serve() as pool:
        await read(pool, server.url)
        await server.closed.wait()
        await read(pool, server.url)
    assert server.connections == 2


async def test_an_answer_that_is_not_read_to_its_end_closes_its_connection() -> None:
    server = Server(CHUNKED + b"3\r\nyes\r\n")
    async with server.serve() as pool:
        async with pool.post(server.url, b"", {}) as response:
            assert await response.readany() == b"yes"
        await server.closed.wait()


async def test_a_cancelled_request_closes_its_connection() -> None:
    server = Server(OK)
    async with server.serve() as pool:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await read(pool, server.url)
        await server.closed.wait()


async def test_an_idle_connection_is_closed_after_a_while() -> None:
    server = Server(OK + b"Content-Length: 3\r\n\r\nyes")
    async with server.serve() as pool:
        await asyncio.gather(read(pool, server.url), read(pool, server.url))
        await asyncio.sleep(KEEPALIVE_SECONDS - 1)
        await read(pool, server.url)
        assert server.connections == 2
        await asyncio.sleep(2)
        await read(pool, server.url)  # the connection that was used last is kept longer
        assert server.connections == 2
        await asyncio.sleep(KEEPALIVE_SECONDS + 1)
        await server.closed.wait()
        await read(pool, server.url)
        assert server.connections == 3


async def test_a_server_waits_while_its_answer_is_not_read() -> None:
    size, sent = 64 * PAUSE_BYTES, 0
    server = Server(OK + b"Content-Length: %d\r\n\r\n" % size)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(b"x" * PAUSE_BYTES)
            await writer.drain()
            sent += PAUSE_BYTES

    server.answer = flood
    async with server.serve() as pool, pool.post(server.url, b"", {}) as response:
        for _ in range(200):
            await asyncio.sleep(0.01)
        assert sent < size / 2  # the buffers of the system and some of ours
        assert len(await response.readany()) < 4 * PAUSE_BYTES
        while await response.readany():
            pass
        assert sent == size


@pytest.mark.parametrize("encoding", COMPRESS)
async def test_a_bomb_inflates_piece_by_piece(encoding: str) -> None:
    server = Server(compressed(encoding, b"\0" * 40 * INFLATED_BYTES))
    async with server.serve() as pool, pool.post(server.url, b"", {}) as response:
        sizes: list[int] = []
        while piece := await response.readany():
            sizes.append(len(piece))
    assert (max(sizes) <= INFLATED_BYTES, sum(sizes)) == (True, 40 * INFLATED_BYTES)


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
async def test_a_compressed_answer_ends_although_its_server_sends_more(compress: Callable[[bytes], bytes]) -> None:
    body = compress(b"yes") + b"trailing garbage"
    server = Server(OK + b"Content-Encoding: deflate\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    async with server.serve() as pool:
        assert await read(pool, server.url) == (200, b"yes")


async def test_a_compressed_answer_ends_with_its_data_although_more_is_announced() -> None:
    server = Server(OK + b"Content-Encoding: gzip\r\nContent-Length: 1000000\r\n\r\n" + GZIPPED + b"x" * 1000)
    async with server.serve() as pool, asyncio.timeout(10):
        assert await read(pool, server.url) == (200, b"word " * 100)


@pytest.mark.parametrize("encoding", ["br", "zstd"])
async def test_an_encoding_without_its_library_names_the_extra(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    server = Server(compressed(encoding, b"word"))
    monkeypatch.setattr("retinue.net.compression.import_module", missing)
    async with server.serve() as pool:
        with pytest.raises(BadResponse, match=r"install retinue\[compression\]"):
            await read(pool, server.url)


async def test_a_zstd_answer_with_a_huge_window_is_refused() -> None:
    frame = bytes.fromhex("28b52ffd") + b"\x00" + bytes([(27 - 10) << 3]) + b"\x01\x00\x00"  # a window of 128 MiB
    head = OK + b"Content-Encoding: zstd\r\nContent-Length: %d\r\n\r\n" % len(frame)
    server = Server(head + frame)
    async with server.serve() as pool:
        with pytest.raises(BadResponse, match="the compressed answer is damaged"):
            await read(pool, server.url)


async def test_concurrent_connections_share_one_dns_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, asked = asyncio.get_running_loop(), list[str]()
    find: Any = loop.getaddrinfo

    async def counted(host: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(host)
        await asyncio.sleep(0.1)
        return await find("127.0.0.1", *args, **{**kwargs, "flags": 0})

    monkeypatch.setattr(loop, "getaddrinfo", counted)
    server = Server(OK + b"Content-Length: 3\r\n\r\nyes")
    async with server.serve() as pool:
        url = server.url.with_host("models.example")
        first = asyncio.create_task(read(pool, url))
        others = [asyncio.create_task(read(pool, url)) for _ in range(20)]
        await asyncio.sleep(0)
        first.cancel()  # the look-up is not its own
        assert await asyncio.gather(*others) == [(200, b"yes")] * 20
        await asyncio.gather(first, return_exceptions=True)
        assert asked == ["models.example"]


async def test_the_certificate_of_a_server_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    find: Any = loop.getaddrinfo

    async def find_here(_: str, *args: Any, **kwargs: Any) -> Any:
        return await find("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(loop, "getaddrinfo", find_here)
    monkeypatch.setattr(http1, "tls_context", client_tls)
    server = Server(OK + b"Content-Length: 3\r\n\r\nyes", tls=server_tls())
    async with server.serve() as pool:
        assert [await read(pool, server.url) for _ in range(2)] == [(200, b"yes")] * 2
        assert server.connections == 1
        with pytest.raises(ssl.SSLCertVerificationError):
            await read(pool, server.url.with_host("other.example"))
        monkeypatch.setattr(http1, "tls_context", ssl.create_default_context)
        with pytest.raises(ssl.SSLCertVerificationError):
            await read(Pool(connect_seconds=15.0, headers={}), server.url)


def test_all_connections_check_certificates_and_speak_one_protocol() -> None:
    context = http1.tls_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert http1.tls_context() is context


def test_requests_work_on_other_event_loops_too() -> None:
    uvloop: Any = pytest.importorskip("uvloop")

    async def main() -> list[tuple[int, bytes]]:
        server = Server(CHUNKED + b"6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n")
        async with server.serve() as pool:
            return [await read(pool, server.url) for _ in range(2)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == [(200, b"hello world")] * 2
