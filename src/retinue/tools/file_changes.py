"""Changes that the file tools made, with the earlier contents, so that a person can undo them.

Nothing is recorded until `begin` is called. Programs that a shell tool starts write files themselves: what they change
is not recorded.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol, TypeAlias

MAX_FILE = 16 * 1024 * 1024
"""Bytes of a file whose earlier content is kept."""

MAX_KEPT = 64 * 1024 * 1024
"""Bytes of earlier contents that are kept together; the oldest changes are forgotten first."""


class NameInFolder(Protocol):
    """A name in a folder that is held open; `names` are its components from `/` on."""

    @property
    def fd(self) -> int:
        """The folder."""
        ...

    @property
    def name(self) -> str:
        """The name in the folder."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Every component."""
        ...

    def stat(self) -> os.stat_result | None:
        """Status of what has that name now; None if there is nothing."""


Reopen: TypeAlias = Callable[[], AbstractContextManager[NameInFolder]]
"""Opens the target of a change once more, within the policy of the call that made it."""


class FileContent(NamedTuple):
    """A regular file: its content, and its status for the permissions."""

    data: bytes
    status: os.stat_result


class UnkeptContent(NamedTuple):
    """What is no regular file, or is too large; two of them are the same if nothing was written in between."""

    status: tuple[int, int, int]


FoundContent: TypeAlias = FileContent | UnkeptContent | None


class FileChange(NamedTuple):
    """What was at a path before and after a call."""

    path: str
    before: FoundContent
    after: FoundContent
    reopen: Reopen


class FileChanges:
    """The changes of files in groups, the latest last; a group has the changes since a `begin`."""

    def __init__(self) -> None:
        self._groups: list[list[FileChange]] = []
        self._is_on = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Record the changes from now on, as a group of their own."""
        with self._lock:
            self._is_on = True
            self._groups = [*filter(None, self._groups), []]

    @contextmanager
    def recorded(self, target: NameInFolder, reopen: Reopen) -> Generator[None]:
        """Record what the block does to a target."""
        if not self._is_on:
            yield
            return
        before = found(target)
        try:
            yield
        finally:
            after = found(target)
            if not same(before, after):
                with self._lock:
                    self._groups[-1].append(FileChange("/" + "/".join(target.names), before, after, reopen))
                    self._forget_oldest()

    def take_latest(self) -> list[FileChange]:
        """The changes of the latest group that has any, which is forgotten; the first change first."""
        with self._lock:
            changes = next((group for group in reversed(self._groups) if group), None)
            if changes is None:
                return []
            self._groups = [*(group for group in self._groups if group is not changes), []]
            return changes

    def _forget_oldest(self) -> None:
        sizes = [sum(_size(change) for change in group) for group in self._groups]
        while len(self._groups) > 1 and sum(sizes) > MAX_KEPT:
            self._groups.pop(0)
            sizes.pop(0)
        group = self._groups[-1]
        for index, change in enumerate(group):
            if sum(sizes) <= MAX_KEPT:
                break
            sizes[-1] -= _size(change)
            group[index] = change._replace(before=UnkeptContent((0, 0, 0)))


def _size(change: FileChange) -> int:
    return sum(len(found.data) for found in (change.before, change.after) if isinstance(found, FileContent))


def found(target: NameInFolder) -> FoundContent:
    try:
        fd = os.open(target.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=target.fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EACCES, errno.ENXIO, errno.EISDIR):
            return UnkeptContent((0, 0, 0))
        found = target.stat()
        return None if found is None else UnkeptContent((found.st_ino, found.st_size, found.st_mtime_ns))
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE:
            return UnkeptContent((status.st_ino, status.st_size, status.st_mtime_ns))
        return FileContent(file.read(MAX_FILE), status)


def same(one: FoundContent, other: FoundContent) -> bool:
    if isinstance(one, FileContent) and isinstance(other, FileContent):
        return one.data == other.data
    return one == other
