"""Read inputs of a chat (lines or blocks) from a terminal or a pipe, in the main thread, which receives Ctrl-C."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import msgspec

from retinue.cli.chat.commands import COMMANDS
from retinue.cli.output.terminal import answer_lines
from retinue.cli.output.terminal import prompt as write_prompt
from retinue.local.bounded_file import MIB, read_bounded
from retinue.local.private_folder import create_private

FILE = "chat_history"
MAX_KEPT = 1000
"""Inputs that the history file keeps."""

MAX_HISTORY_BYTES = 256 * MIB
"""The largest history file that is read; one is cut long before."""

MAX_LENGTH = 20_000
"""Characters of an input that is kept; a longer one is probably a pasted document."""


class HistoryFile:
    """The file of earlier inputs; errors are ignored, because a chat works without it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[str]:
        """The latest inputs, oldest first; a file with too many is cut."""
        try:
            lines = read_bounded(self._path, MAX_HISTORY_BYTES).splitlines()
        except OSError:
            return []
        kept = [text for line in lines[-MAX_KEPT:] if (text := _decoded(line)) is not None]
        if len(lines) > MAX_KEPT:
            self._rewrite(kept)
        return kept

    def add(self, text: str) -> bool:
        """Append an input; whether it is kept."""
        if text.startswith(" ") or not text.strip() or len(text) > MAX_LENGTH:
            return False
        with suppress(OSError, UnicodeEncodeError):
            create_private(self._path.parent)
            # Appended in one write: several chats may be open.
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, msgspec.json.encode(text) + b"\n")
            finally:
                os.close(file)
        return True

    def _rewrite(self, kept: list[str]) -> None:
        with suppress(OSError):
            shorter = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            file = os.open(shorter, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(file, "wb") as written:
                written.write(b"".join(msgspec.json.encode(text) + b"\n" for text in kept))
            shorter.replace(self._path)


def _decoded(line: bytes) -> str | None:
    try:
        return msgspec.json.decode(line, type=str)
    except msgspec.MsgspecError:
        return None


PROMPT = "> "
MORE = "... "
BLOCK = '"""'


class InvalidLine(Exception):
    """A line that is not UTF-8."""


class Unclosed(Exception):
    """The input ended in the middle of a block."""


class Lines(Protocol):
    """A source of lines."""

    def line(self, prompt: str) -> str | None:
        """The next line without its end, None at the end of input; Ctrl-C raises KeyboardInterrupt."""

    def typed(self) -> str:
        """The unfinished line that is being typed."""
        ...

    def remember(self, text: str) -> None:
        """Add a whole input to the history."""


def whole_input(lines: Lines) -> str | None:
    """The next input: a line, lines joined by backslashes at their ends, or a block; None at the end of input."""
    first = lines.line(PROMPT)
    if first is None:
        return None
    text = _block(lines) if first.strip() == BLOCK else _continued(first, lines)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidLine("the input is not UTF-8 text; it was not sent") from None
    if text.strip():
        lines.remember(text)
    return text


def _block(lines: Lines) -> str:
    content: list[str] = []
    while (line := lines.line(MORE)) is not None:
        if line.strip() == BLOCK:
            return "\n".join(content)
        content.append(line)
    raise Unclosed(f"the input ended before the line {BLOCK} that closes the block; nothing was sent")


def _continued(line: str, lines: Lines) -> str:
    parts: list[str] = []
    while is_continued(line):
        parts.append(line[:-1])
        following = lines.line(MORE)
        if following is None:
            return "\n".join(parts)
        line = following
    return "\n".join([*parts, line])


def is_continued(line: str) -> bool:
    """Whether the line ends in exactly one backslash."""
    return line.endswith("\\") and not line.endswith("\\\\")


class Piped:
    """Lines of a pipe or a file, without prompts."""

    def line(self, prompt: str) -> str | None:
        raw = sys.stdin.buffer.readline()
        if not raw:
            return None
        try:
            return raw.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise InvalidLine("a line on stdin is not UTF-8 text; it was not sent") from None

    def typed(self) -> str:
        return ""

    def remember(self, text: str) -> None:
        pass  # inputs of a pipe are not history


class Typed:
    """A terminal without readline; prompts go to stderr, because stdout is redirected."""

    def __init__(self, history: HistoryFile) -> None:
        self._history = history

    def line(self, prompt: str) -> str | None:
        write_prompt(prompt)
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None

    def typed(self) -> str:
        return ""  # the terminal edits the line itself

    def remember(self, text: str) -> None:
        self._history.add(text)


class Edited:
    """A terminal with readline: editing, history, completion of commands, pastes in one piece."""

    def __init__(self, readline: Any, history: HistoryFile, *, colour: bool) -> None:
        self._readline = readline
        self._history = history
        self._colour = colour
        readline.set_auto_history(False)
        readline.parse_and_bind("set enable-bracketed-paste on")
        readline.parse_and_bind("tab: complete")
        readline.set_completer_delims("")
        readline.set_completer(_completed)
        for text in history.load():
            readline.add_history(text)

    def line(self, prompt: str) -> str | None:
        # Readline has to know which characters have no width.
        shown = f"\001\x1b[1m\002{prompt}\001\x1b[0m\002" if self._colour else prompt
        try:
            return input(shown)
        except EOFError:
            answer_lines("")
            return None

    def typed(self) -> str:
        return str(self._readline.get_line_buffer())

    def remember(self, text: str) -> None:
        if self._history.add(text):
            self._readline.add_history(text)


def _completed(beginning: str, number: int) -> str | None:
    fitting = [f"/{name}" for name in COMMANDS if beginning.startswith("/") and f"/{name}".startswith(beginning)]
    return fitting[number] if number < len(fitting) else None


def lines_of_stdin(history: HistoryFile) -> Lines:
    """The source that fits stdin and stdout."""
    if not sys.stdin.isatty():
        return Piped()
    editor = _editor() if sys.stdout.isatty() else None
    if editor is None:
        return Typed(history)
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return Edited(editor, history, colour=not plain)


def _editor() -> Any:
    try:
        return import_module("readline")
    except ImportError:
        return None  # Windows
