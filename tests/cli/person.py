"""A person at a terminal: starts a command there, reads what it says, types, and presses Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from typing import NamedTuple


class Left(NamedTuple):
    """What a command came to: its exit code, what it printed into a pipe, and all that was on the terminal."""

    code: int
    stdout: str
    terminal: str


class Person:
    """A command whose stdin and stderr are a terminal, and whose stdout is a pipe, or `all_there` the same terminal."""

    def __init__(self, *arguments: str, all_there: bool = False, **env: str) -> None:
        outside, inside = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "retinue", *arguments],
            stdin=inside,
            stdout=inside if all_there else subprocess.PIPE,
            stderr=inside,
            env=os.environ | {"TERM": "dumb"} | env,
            start_new_session=True,
        )
        os.close(inside)
        self._terminal = outside
        self._written = ""
        self._read = 0
        self._news = asyncio.Event()
        self._is_over = False
        asyncio.get_running_loop().add_reader(outside, self._hear)

    def _hear(self) -> None:
        try:
            piece = os.read(self._terminal, 65536)
        except OSError:
            piece = b""  # the other side is closed: that is how a terminal ends
        if not piece:
            asyncio.get_running_loop().remove_reader(self._terminal)
            self._is_over = True
        self._written += piece.decode(errors="replace")
        self._news.set()

    async def sees(self, words: str) -> str:
        """Wait for words that were not seen before; all that was written up to them."""
        while (found := self._written.find(words, self._read)) < 0:
            assert not self._is_over, f"nobody said {words!r}: {self._written}"
            self._news.clear()
            await self._news.wait()
        self._read = found + len(words)
        return self._written[: self._read]

    def types(self, line: str, end: str = "\n") -> None:
        """Type a line."""
        os.write(self._terminal, f"{line}{end}".encode())

    def signals(self, number: signal.Signals) -> None:
        """What Ctrl-C does, or worse."""
        os.killpg(self._process.pid, number)

    async def left(self) -> Left:
        """Wait for the end."""
        stdout, _ = await asyncio.to_thread(self._process.communicate)
        while not self._is_over:
            self._news.clear()
            await self._news.wait()
        os.close(self._terminal)
        return Left(self._process.returncode, (stdout or b"").decode(), self._written)
