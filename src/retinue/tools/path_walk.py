"""Paths that are resolved once, into a descriptor that everything after the decision uses.

A path is walked from `/` one component at a time. Each component is opened relative to the descriptor of the one before
and never through a symbolic link: links are read and walked in turn. What was opened is what was decided on, whatever
happens to the names afterwards.

`Workspaces` keeps the folders in which the agents of a process work. An agent that may write a folder can put a link in
it; so a path that leads through a link in such a folder is neither a workspace nor a root.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock

from msgspec.structs import replace

from retinue.core.errors import ToolError
from retinue.core.policy import Autonomy, Policy

Id = tuple[int, int]
"""Device and inode: the identity of a folder or file under any name."""

MAX_LINKS = 40

_NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0) | _NO_FOLLOW
# O_PATH passes through folders that may not be listed; without it (macOS) the right to list them is needed.
PASS: int = getattr(os, "O_PATH", os.O_RDONLY) | DIRECTORY
# Without O_NONBLOCK, opening a pipe without a writer blocks for ever.
READ: int = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | _NO_FOLLOW
# O_PATH opens nothing that a device or a pipe would notice, and needs no right to read.
KEEP: int = getattr(os, "O_PATH", READ) | _NO_FOLLOW
NOT_A_FOLDER = (errno.ENOTDIR, errno.ELOOP, errno.EMLINK)
"""Errors for a link that must not be followed."""
MISSING = (errno.ENOENT, errno.EACCES, errno.ENAMETOOLONG, *NOT_A_FOLDER)
"""Errors for a path that leads to nothing that this process could reach."""
ATTEMPTS = 16
"""How often a path is walked again if it changes during the walk."""


@dataclass(frozen=True, slots=True)
class PathStep:
    name: str
    id: Id


class Position:
    """The state of a walk: a folder that is held open, and the folders that lead to it."""

    def __init__(self) -> None:
        self.fd = os.open("/", PASS)
        self.steps = [PathStep("", identity_of(os.fstat(self.fd)))]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(step.name for step in self.steps[1:])

    def close(self) -> None:
        os.close(self.fd)

    def restart(self) -> None:
        self._stand_on(os.open("/", PASS))
        del self.steps[1:]

    def enter(self, name: str) -> None:
        """Enter a folder; a link is refused."""
        fd = os.open(name, PASS, dir_fd=self.fd)
        self._stand_on(fd)
        self.steps.append(PathStep(name, identity_of(os.fstat(fd))))

    def leave(self) -> None:
        """Go up; raises ESTALE if the parent is not the folder that the walk came from (it was moved meanwhile)."""
        if len(self.steps) == 1:
            return
        fd = os.open("..", PASS, dir_fd=self.fd)
        self._stand_on(fd)
        self.steps.pop()
        if identity_of(os.fstat(fd)) != self.steps[-1].id:
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
        with suppress(FileExistsError):  # created by another process; if it is a link, entering it fails
            os.mkdir(name, dir_fd=self.fd)

    def _stand_on(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd


class _PathChanged(Exception):
    """A name was replaced during the walk: walk again."""


class Descriptor:
    """An open descriptor; it is closed at the latest when there is no reference to it any more."""

    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    __del__ = close


@dataclass(frozen=True, slots=True)
class Located:
    """A path with its links resolved.

    `stat` is None if there is nothing; `links_in` are the folders with links on the way, and the folders above them.
    `descriptor` is that of the file or folder, where it was asked for: it is the one that `stat` is about.
    """

    names: tuple[str, ...]
    links_in: frozenset[Id] = frozenset()
    stat: os.stat_result | None = None
    descriptor: Descriptor | None = None

    @property
    def path(self) -> str:
        return "/" + "/".join(self.names)

    @property
    def identity(self) -> Id | None:
        return self.stat and identity_of(self.stat)

    @property
    def is_folder(self) -> bool:
        return self.stat is not None and stat.S_ISDIR(self.stat.st_mode)

    @property
    def is_regular_file(self) -> bool:
        return self.stat is not None and stat.S_ISREG(self.stat.st_mode)


def locate(path: str, *, follow: bool = True, keep: bool = False) -> Located:
    """Resolve an absolute path that a person wrote; `keep` opens what it leads to.

    Raises `OSError` if that cannot be found out (too many files are open, or the path keeps changing): a path that
    cannot be resolved must not pass for one that does not exist.
    """
    for _ in range(ATTEMPTS):
        with suppress(_PathChanged):
            return _locate(path, follow=follow, keep=keep)
    raise OSError(errno.EAGAIN, "this keeps changing while it is opened", path)


def _locate(path: str, *, follow: bool, keep: bool) -> Located:
    position = Position()
    links_in: set[Id] = set()
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
                    return _end(position, name, links_in, follow=follow and links < MAX_LINKS, keep=keep)
                position.enter(name)
                continue
            links += 1
            links_in |= {step.id for step in position.steps}
            if target.startswith("/"):
                position.restart()
            ahead += components(target)
        return _end(position, "", links_in, follow=follow, keep=keep)
    except OSError as error:
        if error.errno == errno.ESTALE or (error.errno in NOT_A_FOLDER and links < MAX_LINKS and position.link(name)):
            raise _PathChanged from error
        if error.errno not in MISSING:
            raise
        missing = os.path.normpath("/".join(("", *position.names, name, *reversed(ahead))))
        return Located(tuple(reversed(components(missing))), frozenset(links_in))
    finally:
        position.close()


def _end(position: Position, name: str, links_in: set[Id], *, follow: bool, keep: bool) -> Located:
    names = (*position.names, name) if name else position.names
    descriptor = None
    if keep:
        descriptor = Descriptor(os.open(name, KEEP, dir_fd=position.fd) if name else os.dup(position.fd))
        found = os.fstat(descriptor.number)
    else:
        found = os.stat(name, dir_fd=position.fd, follow_symlinks=False) if name else os.fstat(position.fd)
    if follow and stat.S_ISLNK(found.st_mode):
        raise _PathChanged
    return Located(names, frozenset(links_in), found, descriptor)


ENVIRONMENT = ("lib", "lib64", "bin", "pyvenv.cfg")


def without_roots(found: Iterable[Located], roots: Iterable[Located], *, keep: bool = False) -> Iterator[Located]:
    """What is closed to writes in writable folders; of a Python environment that is such a folder itself, its parts."""
    writable = {root.identity for root in roots}
    for each in found:
        if each.identity not in writable:
            yield each
        else:
            parts = (locate(f"{each.path}/{name}", keep=keep) for name in ENVIRONMENT)
            yield from (part for part in parts if part.stat is not None)


def spelled(path: str, workspace: str) -> str:
    """A path of a policy in full: `~` is the home of the user, a relative path starts at the workspace."""
    path = os.path.expanduser(path)
    return path if path.startswith("/") else f"{workspace}/{path}"


def components(path: str) -> list[str]:
    """The components of a path without empty ones and dots, in reverse order."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def identity_of(found: os.stat_result) -> Id:
    return found.st_dev, found.st_ino


def open_roots(
    first: Sequence[Located], paths: Iterable[str], *, closed_to_links: Iterable[Id] = (), keep: bool = False
) -> list[Located]:
    """The roots of a policy: `first` (the workspace), then those of `paths` that exist.

    A root whose path leads through a link in another root, or in a folder of `closed_to_links`, is left out: an agent
    could point that link elsewhere.
    """
    roots = [root for root in first if root.stat is not None]
    count = len(roots)
    found = [root for path in dict.fromkeys(paths) if (root := locate(path, keep=keep)).stat is not None]
    roots += [root for root in found if not root.links_in]
    writable = {root.identity for root in roots} | set(closed_to_links)
    for root in found:
        if root.links_in and root.links_in.isdisjoint(writable):
            roots.append(root)
            writable.add(root.identity)
    # A root that came later can contain a link of one that came before.
    return [root for place, root in enumerate(roots) if place < count or root.links_in.isdisjoint(writable)]


class WorkspaceRefused(ToolError):
    """A workspace that is another folder than before, or that a link in a writable folder leads to."""


NO_FOLDER: Id = (-1, -1)
"""The identity of no folder: a workspace that has to be this one is refused."""


@dataclass(frozen=True, slots=True)
class _Pin:
    identity: Id
    descriptor: Descriptor | None = None


class Workspaces:
    """The workspaces of the agents of one process, each resolved once.

    A workspace is pinned when it is first seen: with the settings, else with the first call. Its folder is held open,
    so that its inode number is not used again.
    """

    def __init__(self) -> None:
        self._pinned: dict[str, _Pin] = {}
        self._writable: set[Id] = set()
        self._led_to: dict[str, str] = {}
        self._lock = Lock()

    @property
    def writable(self) -> frozenset[Id]:
        """The folders that an agent of this process may write, as far as they are known."""
        with self._lock:
            return frozenset(self._writable)

    def add_folders(self, folders: Iterable[Id]) -> None:
        """Record folders that an agent of another process may write."""
        with self._lock:
            self._writable |= set(folders)

    def add_writable(self, policy: Policy, roots: Iterable[Located]) -> None:
        """Record the folders that an agent with this policy may write."""
        if policy.autonomy > Autonomy.READONLY:
            with self._lock:
                self._writable |= {root.identity for root in roots if root.identity is not None}

    def add_agent(self, policy: Policy, workspace: str) -> None:
        """Pin the workspace of an agent, if it exists, and record what the agent may write; before any of its calls."""
        if os.open not in os.supports_dir_fd:  # there no tool opens a workspace
            return
        found = locate(os.path.abspath(workspace or os.curdir), keep=True)
        if found.stat is not None:
            self._pinned_as(found, workspace)
        roots = filter(os.path.isabs, (*policy.allowed_roots, *policy.allowed_roots_write_only))
        self.add_writable(policy, [found, *map(locate, roots)])
        self.closed(spelled(path, os.path.abspath(workspace or os.curdir)) for path in policy.forbidden_paths)

    def closed(self, paths: Iterable[str]) -> list[str]:
        """Paths that a policy closes, with the real paths to which they led at first.

        An agent may since have changed a link on such a path; what it led to stays closed.
        """
        closed: list[str] = []
        for path in paths:
            with self._lock:
                first = self._led_to.get(path)
            if first is None and (found := locate(path)).stat is not None:
                with self._lock:
                    first = self._led_to.setdefault(path, found.path)
            closed += [path] if first in (None, path) else [path, first]
        return closed

    def with_closed_targets(self, policy: Policy, workspace: str) -> Policy:
        """The policy for a child process, which has not seen where links on forbidden paths led at first."""
        own = os.path.abspath(workspace or os.curdir)
        closed = self.closed(spelled(path, own) for path in policy.forbidden_paths)
        new = tuple(path for path in closed if path not in policy.forbidden_paths)
        return replace(policy, forbidden_paths=(*policy.forbidden_paths, *new)) if new else policy

    def expect(self, path: str, identity: Id) -> None:
        """Pin a workspace as the folder that another process has found."""
        with self._lock:
            self._pinned[os.path.abspath(path or os.curdir)] = _Pin(identity)

    def expected(self, path: str) -> Id | None:
        """The folder that a workspace has to be in a child process; None if it does not exist yet."""
        try:
            return self.open(path).identity
        except WorkspaceRefused:
            return NO_FOLDER

    def make(self, path: str) -> Located:
        """The folder of a workspace, which is created with the folders above it if it does not exist."""
        found = self.open(path)
        if found.stat is not None:
            return found
        position = Position()
        try:
            for name in found.names:
                position.make(name)
                position.enter(name)
        finally:
            position.close()
        return self.open(path)

    def open(self, path: str) -> Located:
        """The folder of a workspace, held open; without `stat` if it does not exist.

        Raises `WorkspaceRefused` if it is not the folder that it was, or may have been chosen by an agent.
        """
        found = locate(os.path.abspath(path or os.curdir), keep=True)
        if not found.links_in.isdisjoint(self.writable):
            raise WorkspaceRefused(
                f"Security policy: the workspace {path} leads through a link in a folder that an agent may write; "
                "name the folder itself in the settings"
            )
        if found.stat is not None and found.identity != self._pinned_as(found, path):
            raise WorkspaceRefused(
                f"Security policy: the workspace {path} is another folder than before; "
                "if a person has replaced it, start retinue again"
            )
        return found

    def _pinned_as(self, found: Located, path: str) -> Id | None:
        """The identity of the folder that a workspace was when it was first found."""
        with self._lock:
            pinned = self._pinned.get(os.path.abspath(path or os.curdir))
            if pinned is None and found.identity is not None and found.descriptor is not None:
                # A descriptor of its own: the caller closes that of `found`.
                pinned = _Pin(found.identity, Descriptor(os.dup(found.descriptor.number)))
                self._pinned[os.path.abspath(path or os.curdir)] = pinned
            return pinned and pinned.identity


@contextmanager
def real_folder(path: str) -> Generator[int]:
    """The descriptor of a folder by the real path that it had before.

    Raises `OSError`; with ELOOP if a link is on the path now, which may lead anywhere.
    """
    position = Position()
    try:
        for name in reversed(components(path)):
            if position.link(name) is not None:
                raise OSError(errno.ELOOP, "there is a link on its path now")
            position.enter(name)
        yield position.fd
    finally:
        position.close()


def change_to(path: str) -> None:
    """Make a folder the current one by the real path that it had before; raises as `real_folder` does."""
    if os.open not in os.supports_dir_fd:
        os.chdir(path)
        return
    with real_folder(path) as folder:
        os.fchdir(folder)
