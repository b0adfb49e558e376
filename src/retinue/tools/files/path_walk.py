"""A step-by-step walk through folders that follows no symbolic link by itself.

Each folder is opened relative to the descriptor of the one before. The target of a link is read, and the caller decides
to walk there. This module knows no policy.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass

Id = tuple[int, int]
"""Device and inode: the identity of a folder or file under any name."""

MAX_LINKS = 40

_NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0) | _NO_FOLLOW
# O_PATH passes through folders that may not be listed; without it (macOS) the right to list them is needed.
PASS: int = getattr(os, "O_PATH", os.O_RDONLY) | DIRECTORY
# Without O_NONBLOCK, opening a pipe without a writer blocks for ever.
READ: int = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | _NO_FOLLOW
NOT_A_FOLDER = (errno.ENOTDIR, errno.ELOOP, errno.EMLINK)
"""Errors for a link that must not be followed."""


@dataclass(frozen=True, slots=True)
class Step:
    """A folder that was passed on the way."""

    name: str
    id: Id


class Position:
    """The state of a walk: a folder that is held open, and the folders that lead to it."""

    def __init__(self) -> None:
        self.fd = os.open("/", PASS)
        self.steps = [Step("", identity(os.fstat(self.fd)))]

    @property
    def names(self) -> tuple[str, ...]:
        """Every component from `/` on."""
        return tuple(step.name for step in self.steps[1:])

    def close(self) -> None:
        os.close(self.fd)

    def restart(self) -> None:
        """Go to `/`."""
        self._stand_on(os.open("/", PASS))
        del self.steps[1:]

    def enter(self, name: str) -> None:
        """Enter a folder; a link is refused."""
        fd = os.open(name, PASS, dir_fd=self.fd)
        self._stand_on(fd)
        self.steps.append(Step(name, identity(os.fstat(fd))))

    def leave(self) -> None:
        """Go up; raises ESTALE if the parent is not the folder that the walk came from (it was moved meanwhile)."""
        if len(self.steps) == 1:
            return
        fd = os.open("..", PASS, dir_fd=self.fd)
        self._stand_on(fd)
        self.steps.pop()
        if identity(os.fstat(fd)) != self.steps[-1].id:
            raise OSError(errno.ESTALE, "a folder was moved meanwhile")

    def link(self, name: str) -> str | None:
        """The target of a link; None if the name is no link."""
        try:
            return os.readlink(name, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise

    def make(self, name: str) -> None:
        """Create a folder unless it exists."""
        with suppress(FileExistsError):  # created by another process; if it is a link, entering it fails
            os.mkdir(name, dir_fd=self.fd)

    def _stand_on(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd


def locate(path: str, *, follow: bool) -> tuple[tuple[str, ...], Id | None, frozenset[Id]]:
    """Resolve a path of the settings: its components, its identity, and all folders with links on the way."""
    position = Position()
    bent_in: set[Id] = set()
    ahead = components(path)
    links = 0
    name = ""
    try:
        while ahead:
            name = ahead.pop()
            if name == "..":
                position.leave()
                continue
            target = position.link(name) if (follow or ahead) and links < MAX_LINKS else None
            if target is None:
                if not ahead:
                    found = os.stat(name, dir_fd=position.fd, follow_symlinks=False)
                    return (*position.names, name), identity(found), frozenset(bent_in)
                position.enter(name)
                continue
            links += 1
            bent_in |= {step.id for step in position.steps}
            if target.startswith("/"):
                position.restart()
            ahead += components(target)
        return position.names, position.steps[-1].id, frozenset(bent_in)
    except OSError:  # it does not exist (yet): closed by its path
        missing = os.path.normpath("/".join(("", *position.names, name, *reversed(ahead))))
        return tuple(reversed(components(missing))), None, frozenset(bent_in)
    finally:
        position.close()


def components(path: str) -> list[str]:
    """The components of a path without empty ones and dots, in reverse order."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def identity(found: os.stat_result) -> Id:
    """Device and inode of a file."""
    return found.st_dev, found.st_ino
