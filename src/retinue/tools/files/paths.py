"""Access control for files: decided on the file that was opened, not on the spelling of its path.

A path is walked by descriptors, as in `path_walk.py`, and the policy is checked against the device and inode of the
folders that were passed. Other spellings, links out of a root, and folders that are swapped for links during the walk
therefore all give the same answer. Callers work on the descriptor of the result.

A hard link cannot be told from the file itself. Writing is safe, because a file is replaced and never changed in place.
For reading, a file that is forbidden by its own path is recognised by its inode under every name; a file that only lies
in a forbidden folder is not.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from retinue.core.errors import ToolError
from retinue.core.policy import Policy
from retinue.core.ports import CallContext
from retinue.core.settings_file_names import SETTINGS_FILES
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.file_changes import FileChanges
from retinue.tools.path_walk import (
    DIRECTORY,
    MAX_LINKS,
    NOT_A_FOLDER,
    PASS,
    READ,
    Id,
    Located,
    PathStep,
    Position,
    Workspaces,
    components,
    identity_of,
    locate,
    open_roots,
    spelled,
    without_roots,
)
from retinue.tools.settings_trust import record_roots

AccessMode = Literal["read", "write"]

SETTINGS = frozenset(SETTINGS_FILES)
"""Settings files, which define what agents may do. No tool writes one in any folder: retinue may be started there."""

PROCESSES = "/proc"
"""Closed to every run: it shows the environment variables of processes, and with them the keys of providers."""

MAX_PATH = 4096
ATTEMPTS = 16
"""How often a path is walked again if a file is replaced between the walk and the open."""


class AccessDenied(ToolError):
    """A path that the policy closes; `setting` is the setting that closes it."""

    def __init__(self, path: str, *, mode: AccessMode, setting: str, reason: str) -> None:
        super().__init__(f"Security policy: cannot {mode} {path}: {reason} ({setting})")
        self.path = path
        self.mode = mode
        self.setting = setting


class UnusablePath(ToolError):
    """A path that the policy allows, but that the operating system or the kind of file makes unusable."""

    def __init__(self, path: str, reason: str, *, code: int | None = None) -> None:
        super().__init__(f"{reason}: {path}")
        self.path = path
        self.reason = reason
        self.code = code

    @classmethod
    def because(cls, error: OSError, path: str) -> UnusablePath:
        return cls(path, error.strerror or type(error).__name__, code=error.errno)


class _PathChanged(Exception):
    """The file was replaced since it was looked up: walk again."""


@dataclass(frozen=True, slots=True)
class PathTarget:
    """The last component of a path, in a folder that is held open; an empty name means the folder itself."""

    fd: int
    steps: tuple[PathStep, ...]
    name: str
    path: str

    @property
    def names(self) -> tuple[str, ...]:
        """Every component from `/` on, with links resolved."""
        folders = tuple(step.name for step in self.steps[1:])
        return (*folders, self.name) if self.name else folders

    def stat(self) -> os.stat_result | None:
        """Status of what has that name now, without following a link; None if there is nothing."""
        try:
            return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False) if self.name else os.fstat(self.fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnusablePath.because(error, self.path) from error


@dataclass(frozen=True, slots=True)
class OpenPath:
    """A regular file or folder inside the roots, open for reading; `names` are its components from `/` on."""

    fd: int
    stat: os.stat_result
    names: tuple[str, ...]
    path: str


@dataclass(frozen=True, slots=True)
class _ClosedPaths:
    """Closed paths, by their components and by the inodes that they lead to."""

    names: frozenset[tuple[str, ...]]
    ids: frozenset[Id]

    def has(self, names: tuple[str, ...], identity: Id | None) -> bool:
        return names in self.names or identity in self.ids


class FileAccess:
    """Read and write access of one call: a policy, the workspace of the run, and what is closed to every run.

    `forbidden_paths` may start with `~/`; a relative one starts at the workspace. A root whose path leads through a
    link inside another root is ignored: an agent could point that link elsewhere.
    """

    def __init__(
        self,
        policy: Policy,
        workspace: str = "",
        *,
        home: Path | None = None,
        settings: Sequence[Path] = (),
        workspaces: Workspaces | None = None,
        agents_write: Sequence[str] = (),
        changes: FileChanges | None = None,
    ) -> None:
        if os.open not in os.supports_dir_fd:
            raise ToolError("files cannot be reached safely on this system: it has no openat")
        try:
            self.workspace = os.path.abspath(workspace or os.curdir)
            self.agents_write = (self.workspace, *agents_write)
            self._changes = changes
            self._everywhere = not policy.workspace_only
            workspaces = workspaces or Workspaces()
            forbidden = [spelled(path, self.workspace) for path in policy.forbidden_paths]
            self._forbidden = _closed(workspaces.closed(forbidden))
            self._state = _closed([PROCESSES, *workspaces.closed([] if home is None else [os.path.abspath(home)])])
            # A settings file of the workspace may be a link; the file that it leads to is protected as well.
            here = [f"{self.workspace}/{name}" for name in sorted(SETTINGS)]
            self._settings = _closed([*map(os.path.abspath, settings), *here])
            own = workspaces.open(self.workspace)
            full, read_only, write_only = (
                tuple(filter(os.path.isabs, roots))
                for roots in (policy.allowed_roots, policy.allowed_roots_read_only, policy.allowed_roots_write_only)
            )
            writable = open_roots([own], (*full, *write_only), closed_to_links=workspaces.writable)
            workspaces.add_writable(policy, writable)
            self._writable = _identities(writable)
            # A folder among the settings has code that this process runs.
            protected = without_roots((locate(os.path.abspath(path)) for path in settings), writable)
            self._own_code = _identities([found for found in protected if found.is_folder])
            self._record_writes = partial(
                record_roots, ["/"] if self._everywhere else [root.path for root in writable], tuple(settings), home
            )
            closed = self._writable | workspaces.writable
            self._readable = _identities(open_roots([own], (*full, *read_only), closed_to_links=closed))
        except OSError as error:  # the working folder of the process is gone, or it has too many files open
            raise UnusablePath.because(error, workspace or os.curdir) from error

    @classmethod
    def of(cls, context: CallContext, dependencies: ToolDependencies) -> FileAccess:
        """The access of the run that makes a call."""
        return cls(
            context.policy,
            context.workspace,
            home=dependencies.home,
            settings=dependencies.settings,
            workspaces=dependencies.opened_workspaces,
            agents_write=dependencies.agents_write,
            changes=dependencies.changes,
        )

    def file(self, path: str) -> AbstractContextManager[OpenPath]:
        """Open a regular file for reading; raises `AccessDenied` or `UnusablePath`."""
        return self._opened(path, folder=False)

    def folder(self, path: str) -> AbstractContextManager[OpenPath]:
        """Open a folder for listing; raises `AccessDenied` or `UnusablePath`."""
        return self._opened(path, folder=True)

    @contextmanager
    def target(
        self, path: str, mode: AccessMode, *, follow: bool = True, parents: bool = False
    ) -> Generator[PathTarget]:
        """Open the folder of a path whose last component may be missing.

        `follow` follows a link in the last component, `parents` creates missing folders. With `write`, the folder is
        writable and the name is not closed.
        """
        if mode == "write":
            try:
                self._record_writes()
            except OSError as error:
                raise ToolError(f"the settings files cannot be protected: {error}") from error
        with self._checked_target(path, mode, follow=follow, parents=parents) as target:
            if mode == "read" or self._changes is None:
                yield target
                return
            reopen = partial(self._checked_target, f"/{'/'.join(target.names)}", mode, follow=False)
            with self._changes.recorded(target, reopen):
                yield target

    @contextmanager
    def _checked_target(
        self, path: str, mode: AccessMode, *, follow: bool = True, parents: bool = False
    ) -> Generator[PathTarget]:
        target = self._walk(path, mode, follow=follow, parents=parents)
        try:
            found = target.stat()
            self._check(target.steps, target.names, found and identity_of(found), path, mode)
            if mode == "write" and not target.name:
                raise UnusablePath(path, "this ends in a folder, not in a name")
            yield target
        finally:
            os.close(target.fd)

    @contextmanager
    def beneath(self, folder: OpenPath, parts: Sequence[str]) -> Generator[OpenPath | None]:
        """Open a regular file below an open folder without following any link; None if there is no such file."""
        try:
            fd = os.dup(folder.fd)
        except OSError:
            yield None
            return
        try:
            names = folder.names
            for part in parts[:-1]:
                inner = os.open(part, PASS, dir_fd=fd)
                os.close(fd)
                fd, names = inner, (*names, part)
                if self.is_closed(names, identity_of(os.fstat(fd))):
                    raise FileNotFoundError
            inner = os.open(parts[-1], READ, dir_fd=fd)
            os.close(fd)
            fd, names = inner, (*names, parts[-1])
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or self.is_closed(names, identity_of(found)):
                raise FileNotFoundError
            opened = OpenPath(fd, found, names, os.path.join(folder.path, *parts))
        except OSError:
            opened = None
        try:
            yield opened
        finally:
            os.close(fd)

    def is_closed(self, names: tuple[str, ...], identity: Id | None) -> bool:
        """Whether exactly this folder or file is closed; for walks, which check each step."""
        return self._forbidden.has(names, identity) or self._state.has(names, identity)

    def closed_below(self, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The closed paths below a folder, relative to it."""
        closed = self._forbidden.names | self._state.names
        return sorted(place[len(names) :] for place in closed if place[: len(names)] == names and place != names)

    def has_closed_below(self, names: tuple[str, ...]) -> bool:
        """Whether a closed path lies below this folder, so that moving the folder would open it."""
        closed = self._forbidden.names | self._state.names | self._settings.names
        return any(place[: len(names)] == names for place in closed)

    def is_trusted_program(self, program: str) -> bool:
        """Whether no file tool could have written this program; always true without `workspace_only`."""
        if self._everywhere:
            return True
        try:
            with self._checked_target(program, "write"):
                return False
        except ToolError:
            return True

    # ---- the walk ---------------------------------------------------------------------------------------------------

    def _spelled(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.workspace}/{path}"

    @contextmanager
    def _opened(self, path: str, *, folder: bool) -> Generator[OpenPath]:
        for _ in range(ATTEMPTS):
            try:
                opened = self._open(path, folder=folder)
                break
            except _PathChanged:
                continue
        else:
            raise UnusablePath(path, "this keeps changing while it is opened")
        try:
            yield opened
        finally:
            os.close(opened.fd)

    def _open(self, path: str, *, folder: bool) -> OpenPath:
        target = self._walk(path, "read")
        try:
            seen = target.stat()
            self._check(target.steps, target.names, seen and identity_of(seen), path, "read")
            if seen is None:
                raise UnusablePath(path, os.strerror(errno.ENOENT), code=errno.ENOENT)
            # Keeps devices from being opened; the check that counts is the one on the descriptor below.
            _of_kind(seen, folder, path)
            try:
                name = target.name or "."
                fd = os.open(name, os.O_RDONLY | DIRECTORY if folder else READ, dir_fd=target.fd)
            except OSError as error:
                if error.errno in (*NOT_A_FOLDER, errno.ENOENT, errno.ENXIO):
                    raise _PathChanged from error
                raise UnusablePath.because(error, path) from error
            try:
                found = os.fstat(fd)
                self._check(target.steps, target.names, identity_of(found), path, "read")
                _of_kind(found, folder, path)
            except BaseException:
                os.close(fd)
                raise
            return OpenPath(fd, found, target.names, path)
        finally:
            os.close(target.fd)

    def _walk(self, path: str, mode: AccessMode, *, follow: bool = True, parents: bool = False) -> PathTarget:
        if not path or "\0" in path or len(path) > MAX_PATH or not _encodable(path):
            raise UnusablePath(path[:80], "a path has 1 to 4096 characters that a file name can have")
        try:
            position = Position()
        except OSError as error:
            raise UnusablePath.because(error, path) from error
        try:
            name = self._follow(position, path, mode, follow=follow, parents=parents)
        except OSError as error:
            position.close()
            # Outside the roots the error reveals nothing, not even whether the path exists.
            self._check(tuple(position.steps), position.names, None, path, mode)
            raise UnusablePath.because(error, path) from error
        except BaseException:
            position.close()
            raise
        return PathTarget(position.fd, tuple(position.steps), name, path)

    def _follow(self, position: Position, path: str, mode: AccessMode, *, follow: bool, parents: bool) -> str:
        """Walk to the folder of the last component, and return the name of that component."""
        ahead = components(self._spelled(path))
        links = 0
        self._pass(position, path, mode)
        while ahead:
            name = ahead.pop()
            if name == "..":
                position.leave()
                continue
            if not ahead and not follow:
                return name
            target = position.link(name)
            if target is not None:
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                if target.startswith("/"):
                    position.restart()
                ahead += components(target)
                continue
            if not ahead:
                return name
            try:
                position.enter(name)
            except FileNotFoundError:
                if not parents:
                    raise
                made = (*position.names, name)
                # Nothing exists below yet, so the final path is known; a path that is refused creates no folders.
                for names in (made, (*made, *reversed(ahead))):
                    self._check(tuple(position.steps), names, None, path, "write")
                position.make(name)
                position.enter(name)
            self._pass(position, path, mode)
        return ""

    def _pass(self, position: Position, path: str, mode: AccessMode) -> None:
        names, identity = position.names, position.steps[-1].id
        if self.is_closed(names, identity):
            raise self._refusal(names, identity, path, mode)

    # ---- the rules --------------------------------------------------------------------------------------------------

    def _check(
        self, steps: Sequence[PathStep], names: tuple[str, ...], identity: Id | None, path: str, mode: AccessMode
    ) -> None:
        if self.is_closed(names, identity):
            raise self._refusal(names, identity, path, mode)
        passed = {step.id for step in steps}
        if mode == "write":
            if not self._own_code.isdisjoint((identity, *passed)):
                reason = "it belongs to the Python environment that retinue runs in"
                raise AccessDenied(path, mode=mode, setting="retinue settings", reason=reason)
            if names and (names[-1].casefold() in SETTINGS or self._settings.has(names, identity)):
                reason = "settings files say what agents may do; only a person changes them"
                raise AccessDenied(path, mode=mode, setting="retinue settings", reason=reason)
            inside = not passed.isdisjoint(self._writable)
            roots = "workspace_only, allowed_roots, allowed_roots_write_only"
        else:
            inside = identity in self._readable or not passed.isdisjoint(self._readable)
            roots = "workspace_only, allowed_roots, allowed_roots_read_only"
        if not (inside or self._everywhere):
            reason = "it lies outside the workspace and the allowed folders"
            raise AccessDenied(path, mode=mode, setting=roots, reason=reason)

    def _refusal(self, names: tuple[str, ...], identity: Id | None, path: str, mode: AccessMode) -> AccessDenied:
        if self._forbidden.has(names, identity):
            return AccessDenied(path, mode=mode, setting="forbidden_paths", reason="it is forbidden")
        if "/" + "/".join(names[:1]) == PROCESSES:
            return AccessDenied(path, mode=mode, setting=PROCESSES, reason="it shows what processes keep, keys too")
        return AccessDenied(path, mode=mode, setting="state folder", reason="it belongs to retinue itself")


def _closed(paths: Sequence[str]) -> _ClosedPaths:
    """Each path with the links in its folders resolved, and the path that it leads to if it is a link itself."""
    names: set[tuple[str, ...]] = set()
    ids: set[Id] = set()
    for path in paths:
        for follow in (False, True):
            found = locate(path, follow=follow)
            names.add(found.names)
            if found.identity is not None:
                ids.add(found.identity)
    return _ClosedPaths(frozenset(names), frozenset(ids))


def _identities(roots: Sequence[Located]) -> frozenset[Id]:
    return frozenset(root.identity for root in roots if root.identity is not None)


def _of_kind(found: os.stat_result, folder: bool, path: str) -> None:
    if folder and not stat.S_ISDIR(found.st_mode):
        raise UnusablePath(path, os.strerror(errno.ENOTDIR), code=errno.ENOTDIR)
    if not folder and stat.S_ISLNK(found.st_mode):
        raise _PathChanged
    if not folder and stat.S_ISDIR(found.st_mode):
        raise UnusablePath(path, os.strerror(errno.EISDIR), code=errno.EISDIR)
    if not folder and not stat.S_ISREG(found.st_mode):
        raise UnusablePath(path, "not a regular file (a pipe, socket or device)")


def _encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True
