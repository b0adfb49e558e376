"""The mounts of a sandbox, as arguments of bubblewrap in mount order.

A program sees its granted folders, a read-only system, a /proc, /dev and /tmp of its own, and nothing else.
"""

from __future__ import annotations

import os
import stat
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
class Root:
    """A granted folder or file, with its real path."""

    path: str
    writable: bool


def roots_of(program: Program) -> tuple[Root, ...]:
    """The granted folders, outer ones first. Of two grants of one folder the wider holds, of nested ones the inner."""
    granted = dict.fromkeys((_existing(path) for path in program.readable), False)
    granted |= dict.fromkeys((_existing(path) for path in program.writable), True)
    covers = hidden_in(program)
    for path in granted:
        if any(within(path, own) for own in KERNEL_FOLDERS) and not path.startswith("/dev/shm/"):
            raise ToolError(f"{path} belongs to the system and cannot be granted to a program")
        for cover in covers:
            if within(path, cover):
                raise ToolError(f"{path} cannot be granted to a program: {cover} is hidden")
    folder = os.path.realpath(program.folder)
    if not os.path.isdir(folder):
        raise ToolError(f"the folder {program.folder} is not there")
    if not any(within(folder, path) for path in granted):
        raise ToolError(f"a program cannot start in {program.folder}, which is in none of its folders")
    pinned = [folder for path in (*granted, *covers) for folder in _folders_between(path, granted)]
    granted |= dict.fromkeys(pinned, True)
    return tuple(Root(path, granted[path]) for path in sorted(granted))


def _folders_between(path: str, granted: dict[str, bool]) -> list[str]:
    """The folders between a path and the writable folder that contains it.

    They are mounted on themselves, so that they cannot be moved. Otherwise a program could move one of them, with
    hidden or read-only content, and the next program would find that content under a name without restrictions.
    """
    between: list[str] = []
    folder = os.path.dirname(path)
    while folder != "/" and folder not in granted:
        between += [folder] if os.path.isdir(folder) else []
        folder = os.path.dirname(folder)
    return between if granted.get(folder, False) else []


def hidden_in(program: Program) -> tuple[str, ...]:
    return tuple(sorted({os.path.realpath(path) for path in program.hidden}))


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


def top_mounts(program: Program, roots: tuple[Root, ...]) -> list[str]:
    """The mounts on top: covers over what is hidden, and everything read-only that was not granted for writing."""
    args: list[str] = []
    for path in hidden_in(program):
        if any(within(path, root.path) for root in roots) or any(within(path, each) for each in SYSTEM):
            args += cover(path)
    args += ["--remount-ro", "/dev"]
    if roots[0] != Root("/", writable=True):
        args += ["--remount-ro", "/"]
    return args


def symlinks(program: Program, roots: tuple[Root, ...]) -> list[str]:
    """Symbolic symlinks from the names that the caller used for folders to their real paths."""
    args: list[str] = []
    seen = [root.path for root in roots] + [*SYSTEM, *KERNEL_FOLDERS, "/etc"]
    for named in sorted({os.path.normpath(each) for each in (program.folder, *program.readable, *program.writable)}):
        if not any(within(named, path) for path in seen):
            args += ["--symlink", os.path.realpath(named), named]
            seen.append(named)
    return args


def cover(path: str) -> list[str]:
    """Mount an empty folder or file over a path, if it exists."""
    if os.path.isdir(path):
        return ["--perms", "0500", "--size", "4096", "--tmpfs", path, "--remount-ro", path]
    # Mounted without devices, as everything is, /dev/null cannot even be opened.
    return ["--ro-bind", "/dev/null", path] if os.path.lexists(path) else []


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
            args += cover(entry.path)
    return tuple(args)


def _existing(path: str) -> str:
    real = os.path.realpath(path)
    if not os.path.lexists(real):
        raise ToolError(f"the folder {path} is not there")
    return real


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
