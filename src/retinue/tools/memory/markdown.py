"""Memories in Markdown: one file for each agent, which people can read, and edit while nobody writes.

A memory is a heading, a comment that only programs need, and the content in a fence. Whatever else stands in a file is
left where it is. A file is replaced as a whole, so that a reader never sees half of one; writers take turns.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import tempfile
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from retinue.tools.memory.backend import Memory, MemoryUnavailable, Note, Recalled, Search, searched

FOLDER: Final = "memory"

_PATIENCE: Final = 30.0
_PLAIN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MEMORY: Final = re.compile(
    r"^## [^\n]*\n\n<!-- memory (\{[^\n]*\}) -->\n\n(`{3,})text\n(.*?)\n\2\n(\n?)", re.MULTILINE | re.DOTALL
)


class MarkdownMemory:
    """A `MemoryBackend` in a folder, which is made as needed; only its owner can read what it makes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self, note: Note, *, again: bool = False) -> Memory:
        """Remember something, instead of what was under that key."""
        with self._my_turn():
            text = self._read(note.agent)
            before = next((memory for memory in _memories(text) if memory.key == note.key), None)
            if before is not None and again and before.updated_at > note.at:
                return before
            memory = Memory(
                id=uuid.uuid4().hex if before is None else before.id,
                agent=note.agent,
                key=note.key,
                content=note.content,
                category=note.category,
                created_at=note.at if before is None else before.created_at,
                updated_at=note.at,
                run_id=note.run_id,
                session_id=note.session_id,
            )
            if before is None:
                text = (text.rstrip("\n") or f"# Memory of {_on_one_line(note.agent)}") + "\n\n" + _written(memory)
            else:
                text = _replaced(text, note.key, _written(memory))
            self._write(note.agent, text)
            return memory

    def find(self, agent: str, key: str) -> Memory | None:
        """What an agent remembers under a key."""
        with _explained():
            return next((memory for memory in _memories(self._read(agent)) if memory.key == key), None)

    def recall(self, search: Search) -> list[Recalled]:
        """The memories that were asked for, the best or newest first."""
        with _explained():
            agents = dict.fromkeys(search.agents)
            return searched([memory for agent in agents for memory in _memories(self._read(agent))], search)

    def forget(self, agent: str, key: str, *, written_by: float | None = None) -> bool:
        """Remove what an agent remembers under a key, unless it was written after that moment."""
        with self._my_turn():
            text = self._read(agent)
            before = next((memory for memory in _memories(text) if memory.key == key), None)
            if before is None or (written_by is not None and before.updated_at > written_by):
                return False
            self._write(agent, _replaced(text, key, "").rstrip("\n") + "\n")
            return True

    def agents(self) -> list[str]:
        """Everyone who remembers something, by name."""
        with _explained():
            files = [path.read_bytes().decode() for path in self._folder.glob("*.md")]
            return sorted({memory.agent for text in files for memory in _memories(text)})

    def _file(self, agent: str) -> Path:
        """An agent's file. A name that is not plainly a file's name never becomes one: its hash does."""
        # `~` begins no plain name, so that nobody can be called like another's hash.
        hashed = f"~{hashlib.sha256(agent.encode()).hexdigest()[:32]}"
        return self._folder / f"{agent if _PLAIN_NAME.fullmatch(agent) else hashed}.md"

    def _read(self, agent: str) -> str:
        try:
            return self._file(agent).read_bytes().decode()  # as it is: contents may have line ends of their own
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
    def _my_turn(self) -> Generator[None]:
        """Hold the folder against all other writers, threads and processes, by the lock of an empty SQLite file."""
        with _explained():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = sqlite3.connect(self._folder / ".lock", timeout=_PATIENCE, isolation_level=None)
            try:
                lock.execute("BEGIN EXCLUSIVE")
                yield
            finally:
                lock.close()


@contextmanager
def _explained() -> Generator[None]:
    try:
        yield
    except OSError as wrong:
        raise MemoryUnavailable(wrong.strerror or type(wrong).__name__) from wrong
    except UnicodeDecodeError as wrong:
        raise MemoryUnavailable("a file of memories is not UTF-8 text") from wrong
    except sqlite3.Error as wrong:
        raise MemoryUnavailable(str(wrong)) from wrong


def _written(memory: Memory) -> str:
    """A memory as its file has it."""
    about = {name: getattr(memory, name) for name in memory.__struct_fields__ if name != "content"}
    # The end of a comment cannot stand in a comment.
    told = msgspec.json.encode(about).decode().replace(">", "\\u003e")
    longest = max(map(len, re.findall("`+", memory.content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"## {_on_one_line(memory.key)}\n\n<!-- memory {told} -->\n\n{fence}text\n{memory.content}\n{fence}\n"


def _memories(text: str) -> list[Memory]:
    return [memory for found in _MEMORY.finditer(text) if (memory := _read_back(found)) is not None]


def _read_back(found: re.Match[str]) -> Memory | None:
    """A memory as it was written; None where a person's hand has made the comment unreadable."""
    try:
        about = msgspec.json.decode(found[1], type=dict[str, object])
        return msgspec.convert(about | {"content": found[3]}, Memory)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


def _replaced(text: str, key: str, by: str) -> str:
    """The text with another memory, or none, in the place of the one under `key`."""

    def instead(found: re.Match[str]) -> str:
        memory = _read_back(found)
        if memory is None or memory.key != key:
            return found[0]
        return by + found[4] if by else ""

    return _MEMORY.sub(instead, text)


def _on_one_line(name: str) -> str:
    return " ".join(name.split())
