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
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from retinue.core.errors import ToolError

if TYPE_CHECKING:
    from retinue.tools.files.paths import PathTarget

MAX_FILE = 16 * 1024 * 1024
"""Bytes of a file whose earlier content is kept."""

MAX_KEPT = 64 * 1024 * 1024
"""Bytes of earlier contents that are kept together; the oldest changes are forgotten first."""

Reopen: TypeAlias = "Callable[[], AbstractContextManager[PathTarget]]"
"""Opens the target of a change once more, within the policy of the call that made it."""

Result: TypeAlias = Literal["restored", "removed", "changed since", "not kept"]


class _Content(NamedTuple):
    """A regular file: its content, and its status for the permissions."""

    data: bytes
    status: os.stat_result


class _NotKept(NamedTuple):
    """What is no regular file, or is too large; two of them are the same if nothing was written in between."""

    status: tuple[int, int, int]


_Found: TypeAlias = _Content | _NotKept | None


class _Change(NamedTuple):
    path: str
    before: _Found
    after: _Found
    reopen: Reopen


class Undone(NamedTuple):
    """A file whose change was undone, or why it was not."""

    path: str
    result: Result


class FileChanges:
    """The changes of files in groups, the latest last; a group has the changes since a `begin`."""

    def __init__(self) -> None:
        self._groups: list[list[_Change]] = []
        self._is_on = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Record the changes from now on, as a group of their own."""
        with self._lock:
            self._is_on = True
            self._groups = [*filter(None, self._groups), []]

    @contextmanager
    def recorded(self, target: PathTarget, reopen: Reopen) -> Generator[None]:
        """Record what the block does to a target."""
        if not self._is_on:
            yield
            return
        before = _found(target)
        try:
            yield
        finally:
            after = _found(target)
            if not _same(before, after):
                with self._lock:
                    self._groups[-1].append(_Change("/" + "/".join(target.names), before, after, reopen))
                    self._forget_oldest()

    def undo(self) -> list[Undone]:
        """Undo the changes of the latest group, the last change first; empty if there are none.

        A file that was changed since, by another program, is left as it is.
        """
        with self._lock:
            changes = next((group for group in reversed(self._groups) if group), None)
            if changes is None:
                return []
            self._groups.remove(changes)
            self._is_on, was_on = False, self._is_on
            try:
                results = dict[str, Result]()
                for change in reversed(changes):
                    results[change.path] = _undo(change)
                return [Undone(path, result) for path, result in results.items()]
            finally:
                self._is_on = was_on
                self._groups.append([])

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
            group[index] = change._replace(before=_NotKept((0, 0, 0)))


def _size(change: _Change) -> int:
    return sum(len(found.data) for found in (change.before, change.after) if isinstance(found, _Content))


def _found(target: PathTarget) -> _Found:
    try:
        fd = os.open(target.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=target.fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EACCES, errno.ENXIO, errno.EISDIR):
            return _NotKept((0, 0, 0))
        found = target.stat()
        return None if found is None else _NotKept((found.st_ino, found.st_size, found.st_mtime_ns))
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE:
            return _NotKept((status.st_ino, status.st_size, status.st_mtime_ns))
        return _Content(file.read(MAX_FILE), status)


def _same(one: _Found, other: _Found) -> bool:
    if isinstance(one, _Content) and isinstance(other, _Content):
        return one.data == other.data
    return one == other


def _undo(change: _Change) -> Result:
    from retinue.tools.files.atomic_write import replace, write_lock

    if isinstance(change.before, _NotKept):
        return "not kept"
    try:
        with change.reopen() as target, write_lock(target):
            now = _found(target)
            if _same(now, change.before):
                return "removed" if now is None else "restored"
            if not _same(now, change.after):
                return "changed since"
            if change.before is None:
                os.unlink(target.name, dir_fd=target.fd)
                return "removed"
            replace(target, (change.before.data,), like=change.before.status)
            return "restored"
    except (OSError, ToolError):
        return "changed since"
