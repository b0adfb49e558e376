"""A step-by-step walk through folders that never follows a symbolic link by accident.

Each folder is opened relative to the descriptor of the one before. What a link says is read, and it is for the caller
to walk on there. Nothing here knows what is allowed.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass

Id = tuple[int, int]
"""Device and inode: what a folder or file is, whatever it is called."""

MAX_LINKS = 40

_NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0) | _NO_FOLLOW
# To pass through a folder takes less than to list it; without O_PATH (macOS) both need the right to list.
PASS: int = getattr(os, "O_PATH", os.O_RDONLY) | DIRECTORY
# Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
READ: int = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | _NO_FOLLOW
NOT_A_FOLDER = (errno.ENOTDIR, errno.ELOOP, errno.EMLINK)
"""What systems say of a link that is not to be followed."""


@dataclass(frozen=True, slots=True)
class Step:
    """A folder that was passed on the way."""

    name: str
    id: Id


class Position:
    """Where a walk stands: a folder that is held open, and the folders that lead to it."""

    def __init__(self) -> None:
        self.fd = os.open("/", PASS)
        self.steps = [Step("", identity(os.fstat(self.fd)))]

    @property
    def names(self) -> tuple[str, ...]:
        """Every component from `/` on."""
        return tuple(step.name for step in self.steps[1:])

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self.fd)

    def restart(self) -> None:
        """Go to `/`."""
        self._stand_on(os.open("/", PASS))
        del self.steps[1:]

    def enter(self, name: str) -> None:
        """Go into a folder; a link is none."""
        fd = os.open(name, PASS, dir_fd=self.fd)
        self._stand_on(fd)
        self.steps.append(Step(name, identity(os.fstat(fd))))

    def leave(self) -> None:
        """Go up, and make sure that up is where we came from: a folder may be moved while we are in it."""
        if len(self.steps) == 1:
            return
        fd = os.open("..", PASS, dir_fd=self.fd)
        self._stand_on(fd)
        self.steps.pop()
        if identity(os.fstat(fd)) != self.steps[-1].id:
            raise OSError(errno.ESTALE, "a folder was moved meanwhile")

    def link(self, name: str) -> str | None:
        """Where a link points to; None for what is no link."""
        try:
            return os.readlink(name, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise

    def make(self, name: str) -> None:
        """Make a folder, if it is not there."""
        with suppress(FileExistsError):  # somebody else made it; if it is a link, entering it fails
            os.mkdir(name, dir_fd=self.fd)

    def _stand_on(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd


def located(path: str, *, follow: bool) -> tuple[tuple[str, ...], Id | None, frozenset[Id]]:
    """Where a path of the settings leads: its components, what is there, and all folders with links on the way."""
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
    except OSError:  # it is not there (yet): closed by where it would lie
        missing = os.path.normpath("/".join(("", *position.names, name, *reversed(ahead))))
        return tuple(reversed(components(missing))), None, frozenset(bent_in)
    finally:
        position.close()


def components(path: str) -> list[str]:
    """The components that matter, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def identity(found: os.stat_result) -> Id:
    """What a file is, whatever it is called."""
    return found.st_dev, found.st_ino
