"""A command on a pseudo-terminal: expect output, type lines, and send signals."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
import termios
from typing import NamedTuple

from tests.cli.screen import drawn

COLUMNS = 80
"""What a terminal without a size of its own is taken to have."""

LINE_MODE = termios.ICANON | termios.ECHO


class PtyResult(NamedTuple):
    """The result of a command: its exit code, stdout if it was a pipe, and the output on the terminal."""

    code: int
    stdout: str
    terminal: str
    delivers_lines: bool
    """Whether the terminal was left as it was: it delivers whole lines, and echoes keys."""


class PtyCommand:
    """A command whose stdin and stderr are a terminal, and whose stdout is a pipe, or `all_there` the same terminal."""

    def __init__(self, *arguments: str, all_there: bool = False, **env: str) -> None:
        outside, inside = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "retinue", *arguments],
            stdin=inside,
            stdout=inside if all_there else subprocess.PIPE,
            stderr=inside,
            # The pseudo-terminal does not say where its cursor is.
            env=os.environ | {"TERM": "dumb", "PROMPT_TOOLKIT_NO_CPR": "1"} | env,
            start_new_session=True,
        )
        os.close(inside)
        self._terminal = outside
        self._written = ""
        self._read = 0
        self._news = asyncio.Event()
        self._is_over = False
        asyncio.get_running_loop().add_reader(outside, self._read_output)

    def _read_output(self) -> None:
        try:
            piece = os.read(self._terminal, 65536)
        except OSError:
            piece = b""  # the other side is closed: a terminal reports its end with an error
        if not piece:
            asyncio.get_running_loop().remove_reader(self._terminal)
            self._is_over = True
        self._written += piece.decode(errors="replace")
        self._news.set()

    async def expect(self, words: str) -> str:
        """Wait for new output that contains `words`; all output up to them."""
        while (found := self._written.find(words, self._read)) < 0:
            assert not self._is_over, f"{words!r} was not printed: {self._written}"
            self._news.clear()
            await self._news.wait()
        self._read = found + len(words)
        return self._written[: self._read]

    async def expect_at_end(self, line: str) -> None:
        """Wait until this is the last line on the screen, of a terminal on which nothing scrolls away."""
        while next((drawn_line for drawn_line in reversed(drawn(self._written, COLUMNS)) if drawn_line), "") != line:
            assert not self._is_over, f"{line!r} was not the last line: {self._written}"
            self._news.clear()
            await self._news.wait()

    def type_line(self, line: str, end: str = "\n") -> None:
        """Type a line."""
        os.write(self._terminal, f"{line}{end}".encode())

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group, as Ctrl-C does."""
        os.killpg(self._process.pid, number)

    async def result(self) -> PtyResult:
        """Wait for the end of the command."""
        try:
            stdout, _ = await asyncio.to_thread(self._process.communicate)
        except asyncio.CancelledError:
            self._process.kill()  # the thread would wait for ever, and the loop for the thread
            raise
        while not self._is_over:
            self._news.clear()
            await self._news.wait()
        delivers_lines = termios.tcgetattr(self._terminal)[3] & LINE_MODE == LINE_MODE
        os.close(self._terminal)
        return PtyResult(self._process.returncode, (stdout or b"").decode(), self._written, delivers_lines)
