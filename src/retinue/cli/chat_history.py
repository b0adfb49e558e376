"""What was typed in earlier chats: a file of the owner alone, bounded, one input on each line.

An input may have several lines itself, so each is kept as a JSON string. Inputs that begin with a space are not kept.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

FILE = "chat_history"
MOST = 1000
"""Inputs that are kept."""

LONGEST = 20_000
"""Characters of an input that is kept; a longer one is somebody's document."""


class HistoryFile:
    """The file; what cannot be read or written is done without, because a chat works without it too."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[str]:
        """The latest inputs, oldest first; a file that has grown too long is cut here."""
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        kept = [text for line in lines[-MOST:] if (text := _decoded(line)) is not None]
        if len(lines) > MOST:
            self._rewrite(kept)
        return kept

    def add(self, text: str) -> bool:
        """Keep one more; whether it was."""
        if text.startswith(" ") or not text.strip() or len(text) > LONGEST:
            return False
        with suppress(OSError, UnicodeEncodeError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Appended in one piece: several chats may be open.
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
