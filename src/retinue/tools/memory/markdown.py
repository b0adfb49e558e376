"""Memory backend with one Markdown file for each agent, which people can read, and edit while no run writes.

A memory is a heading, a comment that only programs need, and the content in a fence. Other text in a file stays where
it is. A file is replaced as a whole, so that a reader never sees half of one; writers take turns.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from retinue.local.bounded_file import MIB, read_bounded
from retinue.local.private_folder import create_private
from retinue.tools.memory.backend import Memory, MemorySearch, MemoryUnavailable, Note, Recalled, search_all

FOLDER: Final = "memory"
MAX_FILE_BYTES: Final = 64 * MIB

_LOCK_SECONDS: Final = 30.0
_PLAIN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MEMORY: Final = re.compile(
    r"^## [^\n]*\n\n<!-- memory (\{[^\n]*\}) -->\n\n(`{3,})text\n(.*?)\n\2\n(\n?)", re.MULTILINE | re.DOTALL
)


class MarkdownMemory:
    """A `MemoryBackend` in a folder, which is created as needed; only its owner can read the files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self, note: Note, *, again: bool = False) -> Memory:
        with self._locked():
            text = self._read(note.agent)
            before = _find(text, note.key)
            if before is not None and again and before.updated_at > note.at:
                return before
            memory = note.to_memory(before)
            if before is None:
                text = (text.rstrip("\n") or f"# Memory of {_on_one_line(note.agent)}") + "\n\n" + _format(memory)
            else:
                text = _replace(text, note.key, _format(memory))
            self._write(note.agent, text)
            return memory

    def find(self, agent: str, key: str) -> Memory | None:
        with _errors_mapped():
            return _find(self._read(agent), key)

    def recall(self, search: MemorySearch) -> list[Recalled]:
        with _errors_mapped():
            agents = dict.fromkeys(search.agents)
            return search_all([memory for agent in agents for memory in _memories(self._read(agent))], search)

    def forget(self, agent: str, key: str, *, written_by: float | None = None) -> bool:
        with self._locked():
            text = self._read(agent)
            before = _find(text, key)
            if before is None or (written_by is not None and before.updated_at > written_by):
                return False
            self._write(agent, _replace(text, key, "").rstrip("\n") + "\n")
            return True

    def agents(self) -> list[str]:
        with _errors_mapped():
            files = [path.read_bytes().decode() for path in self._folder.glob("*.md")]
            return sorted({memory.agent for text in files for memory in _memories(text)})

    def _file(self, agent: str) -> Path:
        """The file of an agent, named after the agent, or after a hash if its name is not a plain file name."""
        # `~` begins no plain name, so no agent can have the hash of another one as its name.
        hashed = f"~{hashlib.sha256(agent.encode()).hexdigest()[:32]}"
        return self._folder / f"{agent if _PLAIN_NAME.fullmatch(agent) else hashed}.md"

    def _read(self, agent: str) -> str:
        try:
            # Not as text: line ends in contents are kept.
            return read_bounded(self._file(agent), MAX_FILE_BYTES).decode()
        except FileNotFoundError:
            return ""

    def _write(self, agent: str, text: str) -> None:
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=".new")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self._file(agent))
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(name)
            raise

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Exclude all other writers of the folder, threads and processes, by the lock of an empty SQLite file."""
        with _errors_mapped():
            create_private(self._folder)
            lock = sqlite3.connect(self._folder / ".lock", timeout=_LOCK_SECONDS, isolation_level=None)
            with closing(lock):
                lock.execute("BEGIN EXCLUSIVE")
                yield


@contextmanager
def _errors_mapped() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise MemoryUnavailable(error.strerror or type(error).__name__) from error
    except UnicodeDecodeError as error:
        raise MemoryUnavailable("a file of memories is not UTF-8 text") from error
    except sqlite3.Error as error:
        raise MemoryUnavailable(str(error)) from error


def _format(memory: Memory) -> str:
    about = {name: getattr(memory, name) for name in memory.__struct_fields__ if name != "content"}
    # A comment must not contain the end mark of a comment.
    comment = msgspec.json.encode(about).decode().replace(">", "\\u003e")
    longest = max(map(len, re.findall("`+", memory.content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"## {_on_one_line(memory.key)}\n\n<!-- memory {comment} -->\n\n{fence}text\n{memory.content}\n{fence}\n"


def _memories(text: str) -> Iterator[Memory]:
    return (memory for found in _MEMORY.finditer(text) if (memory := _parse(found)) is not None)


def _find(text: str, key: str) -> Memory | None:
    return next((memory for memory in _memories(text) if memory.key == key), None)


def _parse(found: re.Match[str]) -> Memory | None:
    """A memory from its text; None if an edit has made the comment unreadable."""
    try:
        about = msgspec.json.decode(found[1], type=dict[str, object])
        return msgspec.convert(about | {"content": found[3]}, Memory)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


def _replace(text: str, key: str, formatted: str) -> str:
    """The text with another formatted memory, or none, in the place of the one under `key`."""

    def substitute(found: re.Match[str]) -> str:
        memory = _parse(found)
        if memory is None or memory.key != key:
            return found[0]
        return formatted + found[4] if formatted else ""

    return _MEMORY.sub(substitute, text)


def _on_one_line(name: str) -> str:
    return " ".join(name.split())
