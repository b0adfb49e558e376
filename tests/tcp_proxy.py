"""A TCP proxy in front of a server, which cuts connections and refuses new ones as a broken network does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

CHUNK = 65536


class TcpProxy:
    """Forwards a port on loopback to the socket of a server, on an event loop in a thread of its own.

    `cut` ends all connections; with `cut_after`, each connection ends once the server has sent so many more bytes.
    While `refuses` is set, new connections are ended at once.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy")
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.connections = 0
        """How many connections were accepted."""
        self.cuts = 0
        self.round_trips = 0
        """How often a client waited for the server: it sent something, and then the server did."""
        self._client_sent_last = False
        self.refuses = False
        self._left: int | None = None
        self._unwanted: bytes | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """End all connections."""
        self._call(self._cut())

    def cut_after(self, count: int) -> None:
        """End the connection over which the server sends the byte with this number, counted from now on."""
        self._left = count

    def cut_instead_of(self, answer: bytes) -> None:
        """End the connection over which the server next sends something that contains these bytes, before they come."""
        self._unwanted = answer

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _cut(self) -> None:
        self.cuts += bool(self._writers)
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _end(self) -> None:
        self._server.close()  # in the thread of the loop: it is not safe in any other
        await self._cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuses:
            writer.transport.abort()
            return
        try:
            behind, to_server = await asyncio.open_unix_connection(str(self._socket))
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_server}
        both = (
            self._loop.create_task(self._forward(reader, to_server, counts=False)),
            self._loop.create_task(self._forward(behind, writer, counts=True)),
        )
        self._tasks.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in (writer, to_server):
            one.transport.abort()
            self._writers.discard(one)
        await asyncio.gather(*both, return_exceptions=True)
        self._tasks.difference_update(both)

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, counts: bool) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK):
                self.round_trips += counts and self._client_sent_last
                self._client_sent_last = not counts
                if counts and self._is_cut_now(data):
                    self.cuts += 1
                    return
                target.write(data)
                await target.drain()

    def _is_cut_now(self, data: bytes) -> bool:
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                self._left = None
                return True
        if self._unwanted is not None and self._unwanted in data:
            self._unwanted = None
            return True
        return False
