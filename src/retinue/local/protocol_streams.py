"""The streams of a program that speaks a protocol on stdin and stdout: protocol alone, in bounded lines.

Both directions have a thread of their own, so that a client that neither reads nor writes blocks nothing.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
from contextlib import suppress
from typing import BinaryIO

MAX_LINE = 16 * 1024 * 1024
"""Bytes of one line; a longer one is skipped."""


class PrivateStreams:
    """The streams of the protocol: stdin and stdout themselves are diverted, so that no tool reads or prints there."""

    def __enter__(self) -> tuple[BinaryIO, BinaryIO]:
        sys.stdout.flush()
        self._in, self._out = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        return os.fdopen(self._in, "rb", closefd=False), os.fdopen(self._out, "wb", closefd=False)

    def __exit__(self, *_: object) -> None:
        # The reader may still block in a read: descriptors that could be used again are not closed.
        os.dup2(self._in, 0)
        os.dup2(self._out, 1)


class LineStreams:
    """Lines from and to the client. Both threads are daemons: a client that neither reads nor writes blocks no exit."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._loop = asyncio.get_running_loop()
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        """What the client sent: a line, an empty one for a line that is too long, None at the end."""
        self._room = threading.Semaphore(64)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._written = threading.Event()
        threading.Thread(target=self._read, args=(incoming,), name="retinue-read", daemon=True).start()
        threading.Thread(target=self._write, args=(outgoing,), name="retinue-write", daemon=True).start()

    def send(self, line: bytes) -> None:
        """Queue a line, given without its end."""
        self._outgoing.put(line + b"\n")

    async def receive(self) -> bytes | None:
        line = await self.lines.get()
        self._room.release()
        return line

    def close(self) -> None:
        """Write what is queued, and give up after a second."""
        self._outgoing.put(None)
        self._written.wait(1.0)

    def _read(self, incoming: BinaryIO) -> None:
        try:
            while line := incoming.readline(MAX_LINE + 1):
                whole = len(line) <= MAX_LINE
                while not line.endswith(b"\n"):  # the rest of a line that is too long, or the last line
                    rest = incoming.readline(MAX_LINE)
                    if not rest:
                        break
                    whole, line = False, rest
                if line.strip():
                    self._put(line if whole else b"")
        except (OSError, ValueError):
            pass  # the client is gone
        self._put(None)

    def _put(self, line: bytes | None) -> None:
        self._room.acquire()
        with suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self.lines.put_nowait, line)

    def _write(self, outgoing: BinaryIO) -> None:
        try:
            while (line := self._outgoing.get()) is not None:
                outgoing.write(line)
                outgoing.flush()
        except (OSError, ValueError):
            pass  # the client is gone: its end of stdin says so, too
        self._written.set()
