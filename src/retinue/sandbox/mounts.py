"""The mounts of a sandbox, as arguments of bubblewrap in mount order.

A program sees its granted folders, a read-only system, a /proc, /dev and /tmp of its own, and nothing else.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache

from retinue.core.errors import ToolError
from retinue.core.ports import Program
from retinue.sandbox.rlimits import SHARED_MEMORY

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
ETC_FILES = ("alternatives", "ld.so.cache", "localtime")
"""Files of /etc that programs need to start; each costs a fifth of a millisecond."""
NETWORK_ETC_FILES = (
    *("ca-certificates/extracted", "crypto-policies", "gai.conf", "hosts", "nsswitch.conf", "pki/ca-trust/extracted"),
    *("pki/tls/certs", "protocols", "resolv.conf", "services", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf"),
)
KERNEL_FOLDERS = ("/proc", "/dev", "/sys")
"""Never granted: these are interfaces of the kernel, open to every process that can open a file there."""


@dataclass(frozen=True, slots=True)
class OpenMount:
    """A folder or file of a program, opened once: its real path, and its descriptor."""

    path: str
    descriptor: int

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(os.fstat(self.descriptor).st_mode)


@dataclass(frozen=True, slots=True)
class Root:
    """A granted folder or file, with its real path; `descriptor` is what is mounted there."""

    path: str
    writable: bool
    descriptor: int


class ProgramPaths:
    """The paths of a program, each opened once; every question about them is answered by the descriptors.

    `roots` are the granted folders, outer ones first. Of two grants of one folder the wider holds, of nested ones the
    inner. Descriptors that the caller has opened stay the caller's; the others are closed with `resources`.
    """

    def __init__(self, program: Program, resources: ExitStack) -> None:
        self._program = program
        self._resources = resources
        self._named: dict[str, OpenMount] = {}
        self.hidden = self._hidden()
        self.folder = self._open(program.folder)
        self.roots = self._roots()

    def symlinks(self) -> dict[str, str]:
        """The real paths of the names that the caller used for granted folders."""
        return {os.path.normpath(name): found.path for name, found in self._named.items()}

    def _hidden(self) -> tuple[OpenMount, ...]:
        """What is hidden and exists, by path."""
        found: dict[str, OpenMount] = {}
        for path in self._program.hidden:
            with suppress(FileNotFoundError):
                hidden = self._opened(path)
                found[hidden.path] = hidden
        return tuple(found[path] for path in sorted(found))

    def _roots(self) -> tuple[Root, ...]:
        readable = [self._open(path) for path in self._program.readable]
        writable = [self._open(path) for path in self._program.writable]
        granted = {found.path: Root(found.path, False, found.descriptor) for found in readable}
        granted |= {found.path: Root(found.path, True, found.descriptor) for found in writable}
        for path in granted:
            if any(within(path, own) for own in KERNEL_FOLDERS) and not path.startswith("/dev/shm/"):
                raise ToolError(f"{path} belongs to the system and cannot be granted to a program")
            for cover in self.hidden:
                if within(path, cover.path):
                    raise ToolError(f"{path} cannot be granted to a program: {cover.path} is hidden")
        if not self.folder.is_folder:
            raise ToolError(f"the folder {self._program.folder} is not there")
        if not any(within(self.folder.path, path) for path in granted):
            raise ToolError(f"a program cannot start in {self._program.folder}, which is in none of its folders")
        for path in (*granted, *(cover.path for cover in self.hidden)):
            granted |= self._folders_between(path, granted)
        return tuple(granted[path] for path in sorted(granted))

    def _folders_between(self, path: str, granted: dict[str, Root]) -> dict[str, Root]:
        """The folders between a path and the writable folder that contains it.

        They are mounted on themselves, so that they cannot be moved. Otherwise a program could move one of them, with
        hidden or read-only content, and the next program would find that content under a name without restrictions.
        """
        outer = os.path.dirname(path)
        while outer != "/" and outer not in granted:
            outer = os.path.dirname(outer)
        if outer not in granted or not granted[outer].writable or path == outer:
            return {}
        between: dict[str, Root] = {}
        place, descriptor = outer, granted[outer].descriptor
        for name in os.path.relpath(path, outer).split("/")[:-1]:
            place = os.path.join(place, name)
            try:
                descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            except OSError:  # it was moved or removed meanwhile, and what is below with it
                break
            self._resources.callback(os.close, descriptor)
            between[place] = Root(place, True, descriptor)
        return between

    def _open(self, path: str) -> OpenMount:
        try:
            found = self._opened(path)
        except FileNotFoundError as error:
            raise ToolError(f"the folder {path} is not there") from error
        self._named[path] = found
        return found

    def _opened(self, path: str) -> OpenMount:
        """The caller's descriptor of a path; without one, the path is opened here, for the first time."""
        descriptor = self._program.descriptors.get(path)
        try:
            if descriptor is not None:
                if _path_of(descriptor) != path:
                    raise ToolError(f"{path} cannot be granted to a program: it was replaced a moment ago")
                return OpenMount(path, descriptor)
            descriptor = os.open(path, os.O_PATH)
            self._resources.callback(os.close, descriptor)
            return OpenMount(_path_of(descriptor), descriptor)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ToolError(f"{path} cannot be granted to a program: {error.strerror}") from error


def _path_of(descriptor: int) -> str:
    """The real path of an open folder or file."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


def within(path: str, folder: str) -> bool:
    """Whether a path is the folder or below it.

    >>> within("/a/b", "/a"), within("/a", "/a"), within("/ab", "/a")
    (True, True, False)
    """
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def system_mounts(program: Program, roots: tuple[Root, ...]) -> list[str]:
    """The mounts below the granted folders: the system, and the program's own /proc, /dev and /tmp."""
    whole = roots[0].path == "/"
    args = [] if whole else [*_system_folders(), *_etc_files(program.network)]
    # A mapped /dev/zero is memory that no limit counts; /dev/full reads like it and cannot be mapped.
    args += ["--proc", "/proc", "--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero"]
    args += ["--perms", "1777", "--size", str(SHARED_MEMORY)]
    args += ["--tmpfs", "/dev/shm", "--perms", "1777", "--size", str(max(program.scratch, 4096)), "--tmpfs", "/tmp"]
    return args


def covers(paths: ProgramPaths) -> list[str]:
    """Covers over what is hidden in the granted folders and in the system."""
    visible = [*(root.path for root in paths.roots), *SYSTEM]
    hidden = (each for each in paths.hidden if any(within(each.path, place) for place in visible))
    return [arg for each in hidden for arg in cover(each.path, is_folder=each.is_folder)]


def read_only_remounts(roots: tuple[Root, ...]) -> list[str]:
    """The last mounts: everything read-only that was not granted for writing."""
    whole = roots[0].path == "/" and roots[0].writable
    return ["--remount-ro", "/dev", *([] if whole else ["--remount-ro", "/"])]


def symlinks(paths: ProgramPaths) -> list[str]:
    """Symbolic links from the names that the caller used for folders to their real paths."""
    args: list[str] = []
    seen = [root.path for root in paths.roots] + [*SYSTEM, *KERNEL_FOLDERS, "/etc"]
    for named, path in sorted(paths.symlinks().items()):
        if not any(within(named, each) for each in seen):
            args += ["--symlink", path, named]
            seen.append(named)
    return args


def cover(path: str, *, is_folder: bool) -> list[str]:
    """Mount an empty folder or file over a path."""
    if is_folder:
        return ["--perms", "0500", "--size", "4096", "--tmpfs", path, "--remount-ro", path]
    # Mounted without devices, as everything is, /dev/null cannot even be opened.
    return ["--ro-bind", "/dev/null", path]


@cache
def root_only_covers() -> tuple[str, ...]:
    """Covers for files of /proc that only root may read or write.

    A program that may open files of any owner (see `uid.py`) could open those too.
    """
    args: list[str] = []
    for entry in sorted(os.scandir("/proc"), key=lambda each: each.name):
        if entry.name.isdigit() or entry.is_symlink() or entry.name in ("sys", "pressure", "sysvipc"):
            continue  # checked by the kernel for each reader, or the same for all of them
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) or mode & 0o222 or not mode & 0o004:
            args += cover(entry.path, is_folder=stat.S_ISDIR(mode))
    return tuple(args)


@cache
def _system_folders() -> tuple[str, ...]:
    args: list[str] = []
    for path in SYSTEM:
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            args += ["--ro-bind", path, path]
    return tuple(args)


@cache
def _etc_files(network: bool) -> tuple[str, ...]:
    names = ETC_FILES + NETWORK_ETC_FILES if network else ETC_FILES
    paths = [f"/etc/{name}" for name in sorted(names)]
    return tuple(word for path in paths if os.path.exists(path) for word in ("--ro-bind", path, path))
