"""Memory backend in the workspaces of agents: lasting memories in `MEMORY.md`, others in `memory/YYYY-MM-DD.md`.

A memory is an item of a list, `- **key**: content`, whose further lines are indented; a comment at its end has what
only programs need. Items without a comment, written by hand or by another program, belong to every agent of the
workspace. Other lines can be recalled, too, and stay where they are. No link is followed, and a file is replaced as a
whole, so that a reader never sees half of one; writers take turns.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import date, datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import DEFAULT_AGENT
from retinue.core.errors import ToolError
from retinue.tools.memory.backend import (
    Memory,
    MemoryBackend,
    MemorySearch,
    MemoryUnavailable,
    Note,
    Recalled,
    search_all,
)
from retinue.tools.path_walk import Descriptor, Workspaces

LASTING: Final = "MEMORY.md"
DAYS: Final = "memory"
CORE: Final = "core"
"""The category of the memories in `MEMORY.md`."""

DAILY: Final = "daily"
MAX_FILE_BYTES: Final = 4 << 20
MAX_DAYS: Final = 400
"""Files of days that are read, the latest first."""

_LOCK_SECONDS: Final = 30.0
_NAP: Final = 0.01
_DAY: Final = re.compile(r"(\d{4}-\d\d-\d\d)\.md")
_ITEM: Final = re.compile(r"- \*\*([^*]+)\*\*:(?: (.*))?", re.DOTALL)
_FACTS: Final = re.compile(r"  <!-- memory (\{.*\}) -->")
_INDENT: Final = "  "
_ALL: Final = 1_000_000


class _Facts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The comment of a memory. `key` is empty where the item shows it as it is."""

    id: str
    agent: str
    key: str = ""
    category: str = CORE
    created_at: float
    updated_at: float
    run_id: str = ""
    session_id: str = ""


class _Entry(NamedTuple):
    """A memory in a file: its lines from `begin` to before `end`, and its facts, which are None without a comment.

    `key` is empty for a line that is not an item with a key.
    """

    begin: int
    end: int
    key: str
    content: str
    facts: _Facts | None

    def belongs_to(self, agent: str) -> bool:
        return self.facts is None or self.facts.agent == agent


class WorkspaceMemory:
    """A `MemoryBackend` in the workspace of each agent: `folders` by agent, else `default`.

    `earlier` is a backend that was used before: what it has is read, and moves here when it is stored again.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        default: Path,
        earlier: MemoryBackend | None = None,
        workspaces: Workspaces | None = None,
    ) -> None:
        self._folders = folders
        self._default = default
        self._earlier = earlier
        self._workspaces = workspaces or Workspaces()

    def store(self, note: Note, *, again: bool = False) -> Memory:
        with _locked(self._place(note.agent), self._workspaces) as folder:
            before = self._find(folder, note.agent, note.key) or self._find_earlier(note.agent, note.key)
            if before is not None and again and before.updated_at > note.at:
                return before
            memory = note.to_memory(before)
            name = _file_of(note)
            folder.write(name, _with_memory(folder.read(name), name, memory))
            # The new place first: a reader that finds both takes the later one.
            for other in folder.files():
                if other != name:
                    folder.remove(other, note.agent, note.key)
            if self._find_earlier(note.agent, note.key) is not None and self._earlier is not None:
                self._earlier.forget(note.agent, note.key)
            return memory

    def find(self, agent: str, key: str) -> Memory | None:
        with _opened(self._place(agent), self._workspaces) as folder:
            found = None if folder is None else self._find(folder, agent, key)
        return found or self._find_earlier(agent, key)

    def recall(self, search: MemorySearch) -> list[Recalled]:
        found: dict[tuple[str, str], Memory] = {}
        shared: set[tuple[Path, str]] = set()
        for agent in dict.fromkeys(search.agents):
            if self._earlier is not None:
                earlier = self._earlier.recall(MemorySearch(agents=(agent,), limit=_ALL))
                found |= {(agent, memory.key): memory for memory, _ in earlier}
            with _opened(self._place(agent), self._workspaces) as folder:
                entries = [] if folder is None else [each for each in folder.entries() if each[1].belongs_to(agent)]
            for name, entry in entries:
                memory = _memory(agent, name, entry)
                place = self._place(agent), memory.id
                if entry.facts is None and place in shared:
                    continue  # it was found for another agent of the workspace
                shared.add(place)
                known = found.get((agent, memory.key))
                if known is None or known.updated_at <= memory.updated_at:
                    found[agent, memory.key] = memory
        # A line without a time is recalled whatever period is asked for.
        whenever = replace(search, since=None, until=None)
        admitted = [each for each in found.values() if (search if each.updated_at else whenever).admits(each)]
        return search_all(admitted, whenever)

    def forget(self, agent: str, key: str, *, written_by: float | None = None) -> bool:
        with _opened(self._place(agent), self._workspaces) as folder:
            if folder is None or self._find(folder, agent, key) is None:
                return self._forget_earlier(agent, key, written_by)
        with _locked(self._place(agent), self._workspaces) as folder:
            before = self._find(folder, agent, key)
            if before is None or (written_by is not None and before.updated_at > written_by):
                return False
            for name in folder.files():
                folder.remove(name, agent, key)
        self._forget_earlier(agent, key, written_by)
        return True

    def agents(self) -> list[str]:
        names: set[str] = set() if self._earlier is None else set(self._earlier.agents())
        for place in {self._default, *self._folders.values()}:
            with _opened(place, self._workspaces) as folder:
                entries = [] if folder is None else [entry for _, entry in folder.entries()]
            names |= {entry.facts.agent for entry in entries if entry.facts is not None}
            if any(entry.facts is None for entry in entries):
                here = {agent for agent, each in self._folders.items() if each == place}
                names |= here or {DEFAULT_AGENT}
        return sorted(names)

    def _place(self, agent: str) -> Path:
        return self._folders.get(agent, self._default)

    def _find(self, folder: _Folder, agent: str, key: str) -> Memory | None:
        found = [
            _memory(agent, name, entry)
            for name, entry in folder.entries()
            if entry.key == key and entry.belongs_to(agent)
        ]
        return max(reversed(found), key=lambda memory: memory.updated_at, default=None)

    def _find_earlier(self, agent: str, key: str) -> Memory | None:
        return None if self._earlier is None else self._earlier.find(agent, key)

    def _forget_earlier(self, agent: str, key: str, written_by: float | None) -> bool:
        if self._earlier is None or self._earlier.find(agent, key) is None:
            return False
        return self._earlier.forget(agent, key, written_by=written_by)


# ---- a workspace -----------------------------------------------------------------------------------------------------


class _Folder:
    """An open workspace; its files are reached through its descriptor, so that the path is resolved once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def files(self) -> list[str]:
        """The files of memories that exist, `MEMORY.md` first, then the latest days."""
        names = [LASTING] if self._exists(LASTING) else []
        with self._days() as days:
            found = [] if days is None else sorted(filter(_DAY.fullmatch, os.listdir(days)), reverse=True)
        return names + [f"{DAYS}/{name}" for name in found[:MAX_DAYS]]

    def entries(self) -> Iterator[tuple[str, _Entry]]:
        """Every memory of the workspace with the name of its file, the oldest day first and `MEMORY.md` last."""
        return ((name, entry) for name in reversed(self.files()) for entry in _entries(self.read(name)))

    def read(self, name: str) -> str:
        """The text of a file; empty if there is none."""
        with self._parent(name) as parent:
            if parent is None:
                return ""
            try:
                file = os.open(_base(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
            except FileNotFoundError:
                return ""
        with closing(os.fdopen(file, "rb")) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise MemoryUnavailable(f"{name} is not a file")
            body = opened.read(MAX_FILE_BYTES + 1)
        if len(body) > MAX_FILE_BYTES:
            raise MemoryUnavailable(f"{name} is larger than {MAX_FILE_BYTES >> 20} MiB")
        return body.decode()

    def write(self, name: str, text: str) -> None:
        """Replace a file as a whole."""
        body = text.encode()
        if len(body) > MAX_FILE_BYTES:
            raise ToolError(
                f"The memory is full: {name} would be larger than {MAX_FILE_BYTES >> 20} MiB. Forget something first."
            )
        with self._parent(name, create=True) as parent:
            assert parent is not None
            new = f".{_base(name)}.{secrets.token_hex(8)}.new"
            file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
            try:
                with os.fdopen(file, "wb") as opened:
                    with suppress(FileNotFoundError):
                        mode = os.stat(_base(name), dir_fd=parent, follow_symlinks=False).st_mode
                        os.fchmod(opened.fileno(), stat.S_IMODE(mode) & 0o777)
                    opened.write(body)
                    opened.flush()
                    os.fsync(opened.fileno())
                os.replace(new, _base(name), src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(new, dir_fd=parent)
                raise

    def remove(self, name: str, agent: str, key: str) -> None:
        """Remove an agent's memories under a key from a file."""
        text = self.read(name)
        without = _without_memory(text, agent, key)
        if without != text:
            self.write(name, without)

    def _exists(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _days(self, *, create: bool = False) -> Generator[int | None]:
        """The open folder of the days; None if there is none."""
        if create:
            with suppress(FileExistsError):
                os.mkdir(DAYS, 0o700, dir_fd=self._descriptor)
        try:
            days = os.open(DAYS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self._descriptor)
        except FileNotFoundError:
            yield None
            return
        try:
            yield days
        finally:
            os.close(days)

    @contextmanager
    def _parent(self, name: str, *, create: bool = False) -> Generator[int | None]:
        if name == LASTING:
            yield self._descriptor
        else:
            with self._days(create=create) as days:
                yield days


def _base(name: str) -> str:
    return name.rpartition("/")[2]


@contextmanager
def _opened(place: Path, workspaces: Workspaces) -> Generator[_Folder | None]:
    """The open workspace; None if there is no such folder."""
    with _errors_mapped():
        found = workspaces.open(str(place))
        if found.descriptor is None:
            yield None
            return
        with closing(_Folder(_listable(found.descriptor))) as folder:
            yield folder


@contextmanager
def _locked(place: Path, workspaces: Workspaces) -> Generator[_Folder]:
    """The open workspace, which is created as needed, without any other writer in a thread or process."""
    with _errors_mapped():
        found = workspaces.make(str(place))
        if found.descriptor is None:
            raise MemoryUnavailable(os.strerror(errno.ENOENT))
        descriptor = _listable(found.descriptor)
        with closing(_Folder(descriptor)) as folder:
            _lock(descriptor)  # the kernel unlocks it when it is closed
            yield folder


def _listable(found: Descriptor) -> int:
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=found.number)


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":  # pragma: no cover
        raise MemoryUnavailable("memories in a workspace need a POSIX system")
    import fcntl

    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise MemoryUnavailable("another process has been writing for too long") from None
            time.sleep(_NAP)


@contextmanager
def _errors_mapped() -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and error.filename == DAYS):
            raise MemoryUnavailable(f"{error.filename} is a symbolic link or not a folder") from error
        raise MemoryUnavailable(error.strerror or type(error).__name__) from error
    except UnicodeDecodeError as error:
        raise MemoryUnavailable("a file of memories is not UTF-8 text") from error


# ---- the text of a file ----------------------------------------------------------------------------------------------


def _file_of(note: Note) -> str:
    if note.category == CORE:
        return LASTING
    return f"{DAYS}/{_day(note.at):%Y-%m-%d}.md"


def _day(at: float) -> date:
    """The day of a time on a clock here, as in the names of files."""
    return datetime.fromtimestamp(at).date()


def _memory(agent: str, name: str, entry: _Entry) -> Memory:
    """An entry as a memory of an agent; one without a comment has the time of its file, if that has one."""
    day = _DAY.fullmatch(_base(name))
    facts = entry.facts
    if facts is None:
        at = _midnight(day[1]) if day is not None else 0.0
        place = f"{_base(name).removesuffix('.md')}:{entry.begin + 1}"
        category = CORE if day is None else DAILY
        facts = _Facts(id=place, agent=agent, category=category, created_at=at, updated_at=at)
        return _to_memory(facts, agent, entry.key or place, entry.content)
    return _to_memory(facts, agent, entry.key, entry.content)


def _to_memory(facts: _Facts, agent: str, key: str, content: str) -> Memory:
    return Memory(
        id=facts.id,
        agent=agent,
        key=key,
        content=content,
        category=facts.category,
        created_at=facts.created_at,
        updated_at=facts.updated_at,
        run_id=facts.run_id,
        session_id=facts.session_id,
    )


def _midnight(day: str) -> float:
    try:
        return datetime.fromisoformat(day).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0  # a name such as 2026-99-99


def _entries(text: str) -> Iterator[_Entry]:
    """Every memory in a text: items with a key, and other lines that are neither blank nor a heading."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        item = _ITEM.fullmatch(lines[at])
        if item is not None:
            entry = _item(lines, at, item)
            yield entry
            at = entry.end
            continue
        line = lines[at].strip()
        if line and not line.startswith(("#", "<!--")):
            yield _Entry(at, at + 1, "", line.removeprefix("- "), None)
        at += 1


def _item(lines: list[str], begin: int, item: re.Match[str]) -> _Entry:
    end = begin + 1
    while end < len(lines) and lines[end].startswith(_INDENT):
        end += 1
    facts = _facts(lines[end - 1])
    content = "\n".join(
        (item[2] or "", *(line.removeprefix(_INDENT) for line in lines[begin + 1 : end - (facts is not None)]))
    )
    return _Entry(begin, end, item[1] if facts is None or not facts.key else facts.key, content, facts)


def _facts(line: str) -> _Facts | None:
    """The facts in a comment; None if the line is none, or an edit has made it unreadable."""
    comment = _FACTS.fullmatch(line)
    try:
        return None if comment is None else msgspec.json.decode(comment[1], type=_Facts)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


def _format(memory: Memory) -> list[str]:
    """The lines of a memory."""
    shown = _display_key(memory.key)
    facts = _Facts(
        id=memory.id,
        agent=memory.agent,
        key="" if shown == memory.key else memory.key,
        category=memory.category,
        created_at=memory.created_at,
        updated_at=memory.updated_at,
        run_id=memory.run_id,
        session_id=memory.session_id,
    )
    # A comment must not contain the end mark of a comment.
    comment = msgspec.json.encode(facts).decode().replace(">", "\\u003e")
    first, *more = memory.content.split("\n")
    return [
        f"- **{shown}**: {first}",
        *(f"{_INDENT}{line}" for line in more),
        f"{_INDENT}<!-- memory {comment} -->",
    ]


def _display_key(key: str) -> str:
    """A key as an item shows it: on one line, without the marks around it.

    >>> _display_key("color"), _display_key("2 * 3"), _display_key("*")
    ('color', '2 3', '-')
    """
    return " ".join(key.replace("*", " ").split()) or "-"


def _with_memory(text: str, name: str, memory: Memory) -> str:
    """The text with a memory in the place of those of its agent under its key, or else at the end."""
    lines = text.split("\n")
    before = [entry for entry in _entries(text) if entry.key == memory.key and entry.belongs_to(memory.agent)]
    if before:
        last = before[-1]
        lines[last.begin : last.end] = _format(memory)
        for entry in reversed(before[:-1]):
            del lines[entry.begin : entry.end]
        return "\n".join(lines)
    day = _DAY.fullmatch(_base(name))
    heading = "# Long-Term Memory" if day is None else f"# Daily Log — {day[1]}"
    return "\n".join([text.rstrip("\n") or heading, "", *_format(memory), ""])


def _without_memory(text: str, agent: str, key: str) -> str:
    """The text without an agent's memories under a key, and without the blank line before each."""
    lines = text.split("\n")
    found = [entry for entry in _entries(text) if entry.key == key and entry.belongs_to(agent)]
    for entry in reversed(found):
        begin = entry.begin - 1 if entry.begin and not lines[entry.begin - 1] else entry.begin
        del lines[begin : entry.end]
    return "\n".join(lines)
