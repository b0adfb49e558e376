"""Which files a call may touch, decided on what was really opened and not on how its path was spelled.

A path is walked from `/` one component at a time, each opened relative to the descriptor of the one before and never
through a symbolic link: links are read and walked in turn. What is allowed is then asked of the folders that were
passed (their device and inode), so other spellings, links out of a root and folders that are swapped for links in the
middle of it all come to the same answer. Whoever works with the result works on its descriptor.

A hard link cannot be told from the file itself. Writing is safe all the same, because a file is replaced and never
changed in place; for reading, a file that is forbidden by its own path is known by its inode under every name, one that
only lies in a forbidden folder is not.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from retinue.core.errors import ToolError
from retinue.core.policy import Policy
from retinue.core.ports import CallContext
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.files.path_walk import (
    DIRECTORY,
    MAX_LINKS,
    NOT_A_FOLDER,
    PASS,
    READ,
    Id,
    Position,
    Step,
    components,
    located,
)
from retinue.tools.files.path_walk import identity as identity_of

Access = Literal["read", "write"]

SETTINGS = frozenset({"retinue.toml", "retinue.yaml", "retinue.yml"})
"""Files that say what agents may do. No tool writes one, in any folder: a person may start retinue there."""

PROCESSES = "/proc"
"""Closed to every run: there a process finds its own variables, and with them the keys of providers."""

MAX_PATH = 4096
ATTEMPTS = 16
"""How often a path is walked again when what was just seen is something else by the time it is opened."""


class OutOfReach(ToolError):
    """A path that the policy closes; `setting` names what would have to be different."""

    def __init__(self, path: str, *, access: Access, setting: str, reason: str) -> None:
        super().__init__(f"Security policy: cannot {access} {path}: {reason} ({setting})")
        self.path = path
        self.access = access
        self.setting = setting


class Unusable(ToolError):
    """A path that is allowed, and where the operating system or the kind of file is in the way."""

    def __init__(self, path: str, reason: str, *, code: int | None = None) -> None:
        super().__init__(f"{reason}: {path}")
        self.path = path
        self.reason = reason
        self.code = code

    @classmethod
    def because(cls, error: OSError, path: str) -> Unusable:
        """The same, from an error of the operating system."""
        return cls(path, error.strerror or type(error).__name__, code=error.errno)


class _Swapped(Exception):
    """What was seen a moment ago is something else now: walk again."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A name in a folder that is held open; an empty name means the folder itself."""

    fd: int
    steps: tuple[Step, ...]
    name: str
    path: str

    @property
    def names(self) -> tuple[str, ...]:
        """Every component from `/` on, links resolved."""
        folders = tuple(step.name for step in self.steps[1:])
        return (*folders, self.name) if self.name else folders

    def stat(self) -> os.stat_result | None:
        """What has that name now (a link is a link), or None; raises `Unusable`."""
        try:
            return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False) if self.name else os.fstat(self.fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unusable.because(error, self.path) from error


@dataclass(frozen=True, slots=True)
class Opened:
    """A regular file or a folder, open for reading and inside the roots; `names` is where it lies."""

    fd: int
    stat: os.stat_result
    names: tuple[str, ...]
    path: str


@dataclass(frozen=True, slots=True)
class _Closed:
    """Paths that stay closed: by where they lie, and by what lies there now."""

    names: frozenset[tuple[str, ...]]
    ids: frozenset[Id]

    def has(self, names: tuple[str, ...], identity: Id | None) -> bool:
        return names in self.names or identity in self.ids


class Reach:
    """What one call may read and write: a policy, the run's workspace, and what is closed to every run.

    `forbidden_paths` may start with `~/`, and a relative one is meant from the workspace. A root whose path leads
    through a link that lies in another root does not widen anything: an agent could point that link elsewhere.
    """

    def __init__(
        self, policy: Policy, workspace: str = "", *, home: Path | None = None, settings: Sequence[Path] = ()
    ) -> None:
        if os.open not in os.supports_dir_fd:
            raise ToolError("files cannot be reached safely on this system: it has no openat")
        try:
            self.workspace = os.path.abspath(workspace or os.curdir)
            self._everywhere = not policy.workspace_only
            self._forbidden = _closed([self._spelled(os.path.expanduser(path)) for path in policy.forbidden_paths])
            self._state = _closed([PROCESSES, *([os.path.abspath(home)] if home is not None else [])])
            # The settings of the workspace may be a link; what it leads to says what agents may do as well.
            here = [f"{self.workspace}/{name}" for name in sorted(SETTINGS)]
            self._settings = _closed([*map(os.path.abspath, settings), *here])
            both = (self.workspace, *policy.allowed_roots)
            self._writable = _roots((*both, *policy.allowed_roots_write_only))
            self._readable = _roots((*both, *policy.allowed_roots_read_only), also_in=self._writable)
        except OSError as error:  # the process's own folder is gone, or it has too many files open
            raise Unusable.because(error, workspace or os.curdir) from error

    @classmethod
    def of(cls, context: CallContext, dependencies: ToolDependencies) -> Reach:
        """What the caller may touch."""
        return cls(context.policy, context.workspace, home=dependencies.home, settings=dependencies.settings)

    @contextmanager
    def file(self, path: str) -> Generator[Opened]:
        """A regular file to read from; raises `OutOfReach` or `Unusable`."""
        with self._opened(path, folder=False) as opened:
            yield opened

    @contextmanager
    def folder(self, path: str) -> Generator[Opened]:
        """A folder to list; raises `OutOfReach` or `Unusable`."""
        with self._opened(path, folder=True) as opened:
            yield opened

    @contextmanager
    def spot(self, path: str, access: Access, *, follow: bool = True, parents: bool = False) -> Generator[Spot]:
        """A name in a folder, there or not yet; `follow` goes through a link at the end, `parents` makes folders.

        With `write` the folder is one in which names may come and go, and the name is not a closed one.
        """
        spot = self._walk(path, access, follow=follow, parents=parents)
        try:
            found = spot.stat()
            self._check(spot.steps, spot.names, found and identity_of(found), path, access)
            if access == "write" and not spot.name:
                raise Unusable(path, "this ends in a folder, not in a name")
            yield spot
        finally:
            os.close(spot.fd)

    @contextmanager
    def beneath(self, folder: Opened, parts: Sequence[str]) -> Generator[Opened | None]:
        """A regular file below an open folder, reached through no link at all; None where there is none such."""
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
            opened = Opened(fd, found, names, os.path.join(folder.path, *parts))
        except OSError:
            opened = None
        try:
            yield opened
        finally:
            os.close(fd)

    def is_closed(self, names: tuple[str, ...], identity: Id | None) -> bool:
        """Whether exactly this folder or file is forbidden; for a walk that asks at each step."""
        return self._forbidden.has(names, identity) or self._state.has(names, identity)

    def closed_below(self, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The forbidden places below a folder, each relative to it."""
        closed = self._forbidden.names | self._state.names
        return sorted(place[len(names) :] for place in closed if place[: len(names)] == names and place != names)

    def guards(self, names: tuple[str, ...]) -> bool:
        """Whether something below is closed, so that moving the folder away would open it."""
        closed = self._forbidden.names | self._state.names | self._settings.names
        return any(place[: len(names)] == names for place in closed)

    def vouches_for(self, program: str) -> bool:
        """Whether no file tool could have written this program; with `workspace_only` off, nobody can say."""
        if self._everywhere:
            return True
        try:
            with self.spot(program, "write"):
                return False
        except ToolError:
            return True

    # ---- the walk ---------------------------------------------------------------------------------------------------

    def _spelled(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.workspace}/{path}"

    @contextmanager
    def _opened(self, path: str, *, folder: bool) -> Generator[Opened]:
        for _ in range(ATTEMPTS):
            try:
                opened = self._open(path, folder=folder)
                break
            except _Swapped:
                continue
        else:
            raise Unusable(path, "this keeps changing while it is opened")
        try:
            yield opened
        finally:
            os.close(opened.fd)

    def _open(self, path: str, *, folder: bool) -> Opened:
        spot = self._walk(path, "read")
        try:
            seen = spot.stat()
            self._check(spot.steps, spot.names, seen and identity_of(seen), path, "read")
            if seen is None:
                raise Unusable(path, os.strerror(errno.ENOENT), code=errno.ENOENT)
            # Only so that a device is not even opened; what counts is asked of the descriptor below.
            _of_kind(seen, folder, path)
            try:
                name = spot.name or "."
                fd = os.open(name, os.O_RDONLY | DIRECTORY if folder else READ, dir_fd=spot.fd)
            except OSError as error:
                if error.errno in (*NOT_A_FOLDER, errno.ENOENT, errno.ENXIO):
                    raise _Swapped from error
                raise Unusable.because(error, path) from error
            try:
                found = os.fstat(fd)
                self._check(spot.steps, spot.names, identity_of(found), path, "read")
                _of_kind(found, folder, path)
            except BaseException:
                os.close(fd)
                raise
            return Opened(fd, found, spot.names, path)
        finally:
            os.close(spot.fd)

    def _walk(self, path: str, access: Access, *, follow: bool = True, parents: bool = False) -> Spot:
        if not path or "\0" in path or len(path) > MAX_PATH or not _encodable(path):
            raise Unusable(path[:80], "a path has 1 to 4096 characters that a file name can have")
        try:
            position = Position()
        except OSError as error:
            raise Unusable.because(error, path) from error
        try:
            name = self._follow(position, path, access, follow=follow, parents=parents)
        except OSError as error:
            position.close()
            # Outside the roots nothing is told, not even whether it is there.
            self._check(tuple(position.steps), position.names, None, path, access)
            raise Unusable.because(error, path) from error
        except BaseException:
            position.close()
            raise
        return Spot(position.fd, tuple(position.steps), name, path)

    def _follow(self, position: Position, path: str, access: Access, *, follow: bool, parents: bool) -> str:
        """Walk to the folder of the last component, and give that component's name."""
        ahead = components(self._spelled(path))
        links = 0
        self._pass(position, path, access)
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
                # Below it nothing is there yet: where all this ends is known, and what is refused makes no folders.
                for names in (made, (*made, *reversed(ahead))):
                    self._check(tuple(position.steps), names, None, path, "write")
                position.make(name)
                position.enter(name)
            self._pass(position, path, access)
        return ""

    def _pass(self, position: Position, path: str, access: Access) -> None:
        names, identity = position.names, position.steps[-1].id
        if self.is_closed(names, identity):
            raise self._refusal(names, identity, path, access)

    # ---- the rules --------------------------------------------------------------------------------------------------

    def _check(
        self, steps: Sequence[Step], names: tuple[str, ...], identity: Id | None, path: str, access: Access
    ) -> None:
        if self.is_closed(names, identity):
            raise self._refusal(names, identity, path, access)
        passed = {step.id for step in steps}
        if access == "write":
            if names and (names[-1].casefold() in SETTINGS or self._settings.has(names, identity)):
                reason = "settings files say what agents may do; only a person changes them"
                raise OutOfReach(path, access=access, setting="retinue settings", reason=reason)
            inside = not passed.isdisjoint(self._writable)
            roots = "workspace_only, allowed_roots, allowed_roots_write_only"
        else:
            inside = identity in self._readable or not passed.isdisjoint(self._readable)
            roots = "workspace_only, allowed_roots, allowed_roots_read_only"
        if not (inside or self._everywhere):
            reason = "it lies outside the workspace and the allowed folders"
            raise OutOfReach(path, access=access, setting=roots, reason=reason)

    def _refusal(self, names: tuple[str, ...], identity: Id | None, path: str, access: Access) -> OutOfReach:
        if self._forbidden.has(names, identity):
            return OutOfReach(path, access=access, setting="forbidden_paths", reason="it is forbidden")
        if "/" + "/".join(names[:1]) == PROCESSES:
            return OutOfReach(path, access=access, setting=PROCESSES, reason="it shows what processes keep, keys too")
        return OutOfReach(path, access=access, setting="state folder", reason="it belongs to retinue itself")


def _closed(paths: Sequence[str]) -> _Closed:
    """Each path as it is spelled, links in its folders resolved, and what it leads to if it is a link itself."""
    names: set[tuple[str, ...]] = set()
    ids: set[Id] = set()
    for path in paths:
        for follow in (False, True):
            place, identity, _ = located(path, follow=follow)
            names.add(place)
            if identity is not None:
                ids.add(identity)
    return _Closed(frozenset(names), frozenset(ids))


def _roots(paths: Sequence[str], *, also_in: frozenset[Id] = frozenset()) -> frozenset[Id]:
    roots: set[Id] = set()
    for path in sorted(filter(os.path.isabs, paths), key=len):
        # A root inside another one might be a link that an agent made; then it must not lead out of what is open.
        _, identity, bent_in = located(path, follow=True)
        if identity is not None and bent_in.isdisjoint(roots | also_in):
            roots.add(identity)
    return frozenset(roots)


def _of_kind(found: os.stat_result, folder: bool, path: str) -> None:
    if folder and not stat.S_ISDIR(found.st_mode):
        raise Unusable(path, os.strerror(errno.ENOTDIR), code=errno.ENOTDIR)
    if not folder and stat.S_ISLNK(found.st_mode):
        raise _Swapped
    if not folder and stat.S_ISDIR(found.st_mode):
        raise Unusable(path, os.strerror(errno.EISDIR), code=errno.EISDIR)
    if not folder and not stat.S_ISREG(found.st_mode):
        raise Unusable(path, "not a regular file (a pipe, socket or device)")


def _encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True
