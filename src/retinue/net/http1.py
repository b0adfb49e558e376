"""A client of HTTP/1.1 for streamed answers: one request at a time on each connection, and a pool of idle connections.

It does what requests to models need, and no more: POST with a body in memory, GET, no redirects, no cookies, no
proxies. A general client takes more time for such a request than the rest of a model turn.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from types import TracebackType
from typing import Final, Protocol, TypeAlias, cast

from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from retinue.core.errors import RetinueError
from retinue.net.compression import decompressor

KEEPALIVE_SECONDS: Final = 30.0
ADDRESS_SECONDS: Final = 10.0
"""How long the addresses of a host are remembered."""
HAPPY_EYEBALLS_SECONDS: Final = 0.25
"""How long one address of a host may take before the next one is tried as well."""

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_CHUNK_LINE_BYTES: Final = 4096
MAX_LENGTH_DIGITS: Final = 18
MAX_SIZE_DIGITS: Final = 16
PAUSE_BYTES: Final = 256 * 1024
"""Bytes of an answer that wait to be read, from which the server has to wait."""
RECEIVE_BYTES: Final = 256 * 1024
"""Most bytes that are received at once."""
INFLATED_BYTES: Final = 256 * 1024
"""Most bytes that one read makes of a compressed answer."""

_HEX: Final = b"0123456789abcdefABCDEF"
_NO_BODY: Final = frozenset((204, 304))
_MAX_HEADS: Final = 256

ServerOrigin: TypeAlias = tuple[str, str, int]
"""Scheme, host and port."""


class Disconnected(RetinueError):
    """The server closed the connection before the answer was complete."""


class BadResponse(RetinueError):
    """The server did not answer in HTTP."""


class ResponseBody(Protocol):
    """The body of a response."""

    async def readany(self) -> bytes:
        """What has arrived, after waiting for it; empty at the end."""
        ...

    def at_eof(self) -> bool:
        """Whether everything has been read."""
        ...


class Response(Protocol):
    """The beginning of an answer, and its body."""

    @property
    def status(self) -> int: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content_type(self) -> str: ...
    @property
    def content(self) -> ResponseBody: ...


class _Answer:
    """The answer to one request, filled by its connection."""

    __slots__ = (
        "_connection",
        "_head",
        "_inflate",
        "_pieces",
        "_size",
        "_waiter",
        "complete",
        "content_type",
        "error",
        "reason",
        "status",
    )

    def __init__(self, connection: HttpConnection) -> None:
        self.status = 0
        self.reason = ""
        self.content_type = ""
        self.complete = False
        self.error: Exception | None = None
        self._connection = connection
        self._head: list[tuple[str, str]] = []
        self._pieces: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._inflate: _Inflate | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        return CIMultiDictProxy(CIMultiDict(self._head))

    @property
    def content(self) -> _Answer:
        return self

    def at_eof(self) -> bool:
        if self._inflate is not None and self._inflate.has_ended:
            return True
        return self.complete and not self._pieces and self._inflate is None

    async def readany(self) -> bytes:
        while True:
            if self._pieces:
                data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                self._pieces.clear()
                if self._size > PAUSE_BYTES:
                    self._connection.resume()
                self._size = 0
                if self._inflate is None:
                    return data
                self._inflate.add(data)
            if self._inflate is not None:
                if inflated := self._inflate.read():
                    return inflated
                if self._inflate.has_ended:
                    return b""
            if self.complete:
                self._inflate = None
                return b""
            if self.error is not None:
                raise self.error
            await self.changed()

    async def changed(self) -> None:
        """Wait until the connection has changed something."""
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # Called by the connection

    def begin(self, status: int, reason: str, head: list[tuple[str, str]], encoding: str) -> None:
        self.status, self.reason, self._head = status, reason, head
        if encoding and encoding != "identity":
            self._inflate = _Inflate(encoding)
        self.wake()

    def add(self, pieces: Iterable[bytes], size: int) -> None:
        """Add to the body; the server has to wait while too much is unread."""
        self._pieces.extend(pieces)
        self._size += size
        if self._size > PAUSE_BYTES:
            self._connection.pause()
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Inflate:
    """Decompresses an answer of a server that compresses without being asked to, a bounded piece at a time."""

    def __init__(self, encoding: str) -> None:
        try:
            self._decompressor = decompressor(encoding)
        except ValueError as error:
            raise BadResponse(str(error)) from None
        self._rest = b""

    @property
    def has_ended(self) -> bool:
        """Whether the compressed data are complete; what follows them is not kept."""
        return self._decompressor.has_ended

    def add(self, data: bytes) -> None:
        if not self.has_ended:
            self._rest += data

    def read(self) -> bytes:
        """Some more of the content; empty if more data are needed, or at the end."""
        if self.has_ended:
            return b""
        data, self._rest = self._rest, b""
        try:
            return self._decompressor.decompress(data, INFLATED_BYTES)
        except ValueError as error:
            raise BadResponse(f"the compressed answer is damaged: {error}") from None


class HttpConnection(asyncio.BufferedProtocol):
    """One connection to a server: sends a request, and parses the answer into `_Answer` while it arrives.

    All connections of a pool receive into one buffer, from which each piece is copied at once. A plain protocol gets
    pieces in new memory of 256 KB each, which the system maps and unmaps for every one of them.
    """

    __slots__ = (
        "_answer",
        "_chunked",
        "_expected",
        "_in_trailer",
        "_is_paused",
        "_keeps",
        "_pool",
        "_rest",
        "_transport",
        "idle_since",
        "loop",
        "place",
    )

    def __init__(self, pool: Pool, place: ServerOrigin) -> None:
        self.place = place
        self.loop = pool.loop
        self.idle_since = 0.0
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._answer: _Answer | None = None
        self._rest = b""
        """Bytes that do not make a whole line yet, while a head or the size of a chunk is expected."""
        self._expected: int | None = 0
        """Bytes that the body or the chunk still has; None if it ends with the connection."""
        self._chunked = False
        self._in_trailer = False
        self._keeps = False
        self._is_paused = False

    def send(self, request: bytes) -> _Answer:
        """Send a request; its answer begins when `status` is set."""
        assert self._answer is None
        self._answer = answer = _Answer(self)
        if self._transport is None:
            answer.error = _closed()
        else:
            self._transport.write(request)
        return answer

    def release(self) -> None:
        """The answer is no longer read: keep the connection for the next request if it can serve one."""
        answer, self._answer = self._answer, None
        if answer is None or self._transport is None:
            return
        if answer.complete and self._keeps and not self._rest and not self._transport.is_closing():
            self._pool.keep(self)
        else:
            self.close()

    def close(self) -> None:
        self._pool.forget(self)
        if self._transport is not None:
            # What a server still sends is of no interest, and neither is what was not sent yet.
            self._transport.abort()

    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def pause(self) -> None:
        if self._transport is not None and not self._is_paused:
            self._transport.pause_reading()
            self._is_paused = True

    def resume(self) -> None:
        if self._transport is not None and self._is_paused:
            self._transport.resume_reading()
            self._is_paused = False

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.forget(self)
        answer = self._answer
        if answer is not None and not answer.complete and answer.error is None:
            if answer.status and (self._expected is None or self._in_trailer):
                answer.complete = True  # its end is the end of the connection
            else:
                answer.error = _closed()
            answer.wake()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._pool.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._receive(bytes(self._pool.buffer[:nbytes]))

    def _receive(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or answer.complete or answer.error is not None:
            self._keeps = False
            if answer is None:
                self.close()  # an idle connection has nothing to say
            return
        try:
            if not answer.status:
                data = self._begin(answer, data)
            if data or (answer.status and not answer.complete):
                self._continue(answer, data)
        except BadResponse as error:
            self._keeps = False
            answer.error = error
            answer.wake()

    def _begin(self, answer: _Answer, data: bytes) -> bytes:
        """Parse the head of the answer, if it is complete; returns what follows it."""
        data = self._rest + data if self._rest else data
        while not answer.status:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._check_head(data)
                self._rest = data
                return b""
            head, data = data[:end], data[end + 4 :]
            self._rest = b""
            self._parse_head(answer, head)
        return data

    def _check_head(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1."[: len(data)]):
            raise BadResponse(f"it sent {data[:20]!r}")
        if len(data) > MAX_HEAD_BYTES:
            raise BadResponse(f"the head of the answer has more than {MAX_HEAD_BYTES} bytes")

    def _parse_head(self, answer: _Answer, head: bytes) -> None:
        self._check_head(head)
        first, *lines = head.decode("utf-8", "surrogateescape").split("\r\n")
        version, _, rest = first.partition(" ")
        code, _, reason = rest.partition(" ")
        if len(code) != 3 or not (code.isascii() and code.isdigit()) or version not in ("HTTP/1.1", "HTTP/1.0"):
            raise BadResponse(f"it sent {first[:40]!r}")
        status = int(code)
        if status < 100:
            raise BadResponse(f"it sent the status {code}")
        if status < 200 and status != 101:
            return  # the answer follows
        headers: list[tuple[str, str]] = []
        length, encoding, connection, compression, content_type = "", "", "", "", ""
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise BadResponse(f"it sent the header {line[:40]!r}")
            value = value.strip(" \t")
            headers.append((name, value))
            match name.lower():
                case "content-length":
                    if length and length != value:
                        raise BadResponse("the answer has two lengths")
                    length = value
                case "transfer-encoding":
                    encoding = value.lower()
                case "connection":
                    connection = value.lower()
                case "content-encoding":
                    compression = value.lower()
                case "content-type":
                    content_type = content_type or value
                case _:
                    pass
        self._chunked = encoding == "chunked"
        if encoding and not self._chunked:
            raise BadResponse(f"the answer has the transfer encoding {encoding[:40]!r}")
        if length and not (length.isascii() and length.isdigit() and len(length) <= MAX_LENGTH_DIGITS):
            raise BadResponse(f"the answer has the length {length[:40]!r}")
        self._expected = 0 if self._chunked or status in _NO_BODY else int(length) if length else None
        self._chunked = self._chunked and status not in _NO_BODY
        self._in_trailer = False
        stays = connection != "close" if version == "HTTP/1.1" else connection == "keep-alive"
        self._keeps = stays and self._expected is not None and status != 101
        answer.content_type = (content_type or "application/octet-stream").partition(";")[0].strip().lower()
        answer.begin(status, reason, headers, compression)

    def _continue(self, answer: _Answer, data: bytes) -> None:
        """Parse a piece of the body."""
        if self._chunked:
            self._add_chunks(answer, data)
            return
        if self._expected is None:
            if data:
                answer.add((data,), len(data))
            return
        piece = data[: self._expected]
        self._expected -= len(piece)
        if len(piece) < len(data):
            self._keeps = False  # more than was announced
        if not self._expected:
            answer.complete = True
        if piece:
            answer.add((piece,), len(piece))
        else:
            answer.wake()

    def _add_chunks(self, answer: _Answer, data: bytes) -> None:
        """Parse chunks: a line with the size in hexadecimal, so many bytes and a line end; the last has the size 0."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        if self._in_trailer:
            self._end_chunks(answer, data)
            answer.wake()
            return
        if not self._expected and (chunks := _whole_chunks(data)):
            if not chunks[-1]:
                chunks.pop()
                self._in_trailer = answer.complete = True
            answer.add(chunks, len(data))
            return
        pieces: list[bytes] = []
        size = start = 0
        length, expected = len(data), self._expected or 0
        while start < length:
            if expected:  # with the two bytes of the line end after it
                end = start + expected
                if end > length:
                    piece = data[start : min(end - 2, length)]
                    expected = end - length
                    start = length
                else:
                    piece = data[start : max(start, end - 2)]
                    if data[max(start, end - 2) : end] != b"\r\n"[max(0, start - end + 2) :]:
                        raise BadResponse("a chunk of the answer does not end where it should")
                    start, expected = end, 0
                if piece:
                    pieces.append(piece)
                    size += len(piece)
                continue
            end = data.find(b"\r\n", start)
            if end < 0:
                self._rest = data[start:]
                if len(self._rest) > MAX_CHUNK_LINE_BYTES:
                    raise BadResponse("the answer has a chunk without a size")
                break
            line = data[start:end]
            if not line or line.strip(_HEX):
                line = line.partition(b";")[0].strip(b" \t")  # an extension
            if not line or line.strip(_HEX) or len(line) > MAX_SIZE_DIGITS:
                raise BadResponse(f"a chunk of the answer has the size {line[:20]!r}")
            start, expected = end + 2, int(line, 16)
            if expected:
                expected += 2
                continue
            self._in_trailer = True
            self._end_chunks(answer, data[start:])
            break
        self._expected = expected
        if pieces:
            answer.add(pieces, size)
        else:
            answer.wake()

    def _end_chunks(self, answer: _Answer, trailer: bytes) -> None:
        """The end after the last chunk: an empty line, or trailers, which are not read, and an empty line."""
        end = 0 if trailer.startswith(b"\r\n") else trailer.find(b"\r\n\r\n") + 2
        if trailer.startswith(b"\r\n") or end > 1:
            answer.complete = True
            self._keeps = self._keeps and end + 2 == len(trailer)
        elif len(trailer) > MAX_HEAD_BYTES:
            raise BadResponse(f"the trailers of the answer have more than {MAX_HEAD_BYTES} bytes")
        else:
            self._rest = trailer


def _whole_chunks(data: bytes) -> list[bytes]:
    r"""The contents of chunks that are complete and have no line end of HTTP in them, as events of a stream are sent.

    The last one is empty if it ends the answer. For anything else an empty list: it needs the general parser.

    >>> _whole_chunks(b"5\r\nhello\r\n2\r\n!!\r\n0\r\n\r\n"), _whole_chunks(b"5\r\nhell")
    ([b'hello', b'!!', b''], [])
    """
    lines = data.split(b"\r\n")
    if lines.pop() or not lines or len(lines) % 2:
        return []
    sizes, chunks = lines[::2], lines[1::2]
    if not all(sizes) or b"".join(sizes).strip(_HEX) or max(map(len, sizes)) > MAX_SIZE_DIGITS:
        return []
    lengths = list(map(len, chunks))
    return chunks if list(map(_size, sizes)) == lengths and 0 not in lengths[:-1] else []


@lru_cache(maxsize=1024)  # most events of a stream have one of few sizes, and `int` takes longer
def _size(digits: bytes) -> int:
    return int(digits, 16)


def _closed() -> Disconnected:
    return Disconnected("the server closed the connection")


class Pool:
    """The idle connections of one event loop, and the addresses of their hosts."""

    def __init__(self, *, connect_seconds: float, headers: Mapping[str, str]) -> None:
        self._connect_seconds = connect_seconds
        self._default_headers = headers
        self._idle: dict[ServerOrigin, dict[HttpConnection, None]] = {}
        self._open: set[HttpConnection] = set()
        self._addresses: dict[tuple[str, int], tuple[float, Sequence[_AddressInfo]]] = {}
        self._lookups: dict[tuple[str, int], asyncio.Task[Sequence[_AddressInfo]]] = {}
        self._heads: dict[tuple[str, URL, tuple[tuple[str, str], ...]], bytes] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))

    def post(self, url: URL, body: bytes, headers: Mapping[str, str]) -> HttpExchange:
        """Send `body`; the `async with` block has the response, and leaving it early closes the connection."""
        return HttpExchange(self, url, b"%s%d\r\n\r\n%s" % (self._head("POST", url, headers), len(body), body))

    def get(self, url: URL, headers: Mapping[str, str]) -> HttpExchange:
        """Request a URL; the block is as that of `post`."""
        return HttpExchange(self, url, b"%s0\r\n\r\n" % self._head("GET", url, headers))

    def _head(self, method: str, url: URL, headers: Mapping[str, str]) -> bytes:
        known = (method, url, tuple(headers.items()))
        head = self._heads.get(known)
        if head is None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            head = self._heads[known] = _head(method, url, self._default_headers, headers)
        return head

    async def connection(self, url: URL) -> HttpConnection:
        """An idle connection, or a new one."""
        place = (url.scheme, url.raw_host or "", url.port or 0)
        idle = self._idle.get(place)
        while idle:
            connection, _ = idle.popitem()
            if connection.is_usable():
                return connection
        return await self._connect(place)

    def keep(self, connection: HttpConnection) -> None:
        connection.idle_since = self.loop.time()
        self._idle.setdefault(connection.place, {})[connection] = None
        if self._timer is None:
            self._timer = self.loop.call_later(KEEPALIVE_SECONDS, self._close_old)

    def forget(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        idle = self._idle.get(connection.place)
        if idle is not None:
            idle.pop(connection, None)

    async def close(self) -> None:
        """Close all connections."""
        for lookup in self._lookups.values():
            lookup.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._idle.clear()
        if not self.loop.is_closed():
            for connection in tuple(self._open):
                connection.close()
            await asyncio.sleep(0)  # the transports close their sockets in the next iteration

    def _close_old(self) -> None:
        self._timer = None
        now = self.loop.time()
        oldest = now
        for idle in tuple(self._idle.values()):
            for connection in tuple(idle):
                if now - connection.idle_since >= KEEPALIVE_SECONDS:
                    connection.close()
                else:
                    oldest = min(oldest, connection.idle_since)
                    break  # those behind it were kept later
        if any(self._idle.values()):
            self._timer = self.loop.call_at(oldest + KEEPALIVE_SECONDS, self._close_old)

    async def _connect(self, place: ServerOrigin) -> HttpConnection:
        import aiohappyeyeballs

        scheme, host, port = place
        async with asyncio.timeout(self._connect_seconds):
            addresses = await self._find(host, port)
            server = await aiohappyeyeballs.start_connection(  # pyright: ignore[reportUnknownMemberType] untyped tuples
                addresses, happy_eyeballs_delay=HAPPY_EYEBALLS_SECONDS, interleave=1, loop=self.loop
            )
            try:
                _, connection = await self.loop.create_connection(
                    lambda: HttpConnection(self, place),
                    sock=server,
                    ssl=tls_context() if scheme == "https" else None,
                    server_hostname=host.rstrip(".") if scheme == "https" else None,
                )
            except BaseException:
                server.close()
                raise
        self._open.add(connection)
        return connection

    async def _find(self, host: str, port: int) -> Sequence[_AddressInfo]:
        """The addresses of a host; many connections that begin together share one look-up."""
        name = (host, port)
        known = self._addresses.get(name)
        if known is not None and known[0] > self.loop.time():
            return known[1]
        lookup = self._lookups.get(name)
        if lookup is None:
            lookup = self._lookups[name] = self.loop.create_task(self._look_up(name))
        return await asyncio.shield(lookup)

    async def _look_up(self, name: tuple[str, int]) -> Sequence[_AddressInfo]:
        try:
            host, port = name
            flags = socket.AI_ADDRCONFIG if not _is_address(host) else socket.AI_NUMERICHOST
            found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
            self._addresses[name] = self.loop.time() + ADDRESS_SECONDS, found
            return found
        finally:
            self._lookups.pop(name, None)


_AddressInfo: TypeAlias = tuple[
    socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
]


class HttpExchange:
    """One request and its response, as an `async with` block."""

    __slots__ = ("_connection", "_pool", "_request", "_url")

    def __init__(self, pool: Pool, url: URL, request: bytes) -> None:
        self._pool = pool
        self._url = url
        self._request = request
        self._connection: HttpConnection | None = None

    async def __aenter__(self) -> _Answer:
        connection = self._connection = await self._pool.connection(self._url)
        try:
            answer = connection.send(self._request)
            while not answer.status:
                if answer.error is not None:
                    raise answer.error
                await answer.changed()
        except BaseException:
            connection.close()
            raise
        self._request = b""
        return answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.release()


@cache
def tls_context() -> ssl.SSLContext:
    """The TLS context of all connections: the machine's certificates, and HTTP/1.1 only."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(("http/1.1",))
    return context


def _head(method: str, url: URL, default_headers: Mapping[str, str], headers: Mapping[str, str]) -> bytes:
    """The beginning of a request, up to the length of its body."""
    host = url.host_port_subcomponent or ""
    merged = {"host": ("Host", host), "accept": ("Accept", "*/*")}
    for given in (default_headers, headers):
        merged |= {name.lower(): (name, value) for name, value in given.items()}
    for name in ("content-length", "transfer-encoding", "connection", "expect"):
        merged.pop(name, None)  # a request has one body, of known length, and says nothing else about it
    lines = [f"{method} {url.raw_path_qs} HTTP/1.1", *(f"{name}: {value}" for name, value in merged.values())]
    if any("\r" in line or "\n" in line or "\0" in line for line in lines):
        raise ValueError("a header has a line break in it")
    return ("\r\n".join((*lines, "Content-Length: "))).encode()


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
