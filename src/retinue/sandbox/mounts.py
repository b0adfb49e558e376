"""What a program sees of the machine: its folders, a read-only system, a /proc, /dev and /tmp of its own, and no more.

Pure but for looking at what exists. The answer is words for bubblewrap, in the order in which it mounts.
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
SETTINGS = ("alternatives", "ld.so.cache", "localtime")
"""What programs need of /etc to start at all; each costs a fifth of a millisecond."""
FOR_THE_NETWORK = (
    "ca-certificates/extracted",
    "crypto-policies",
    "gai.conf",
    "hosts",
    "nsswitch.conf",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
)
OWN = ("/proc", "/dev", "/sys")
"""Never granted: the kernel speaks there, and it speaks to whoever can open a file."""


@dataclass(frozen=True, slots=True)
class Root:
    """A granted folder or file, where it really is."""

    path: str
    writable: bool


def roots_of(program: Program) -> tuple[Root, ...]:
    """The granted folders, outer ones first; of two grants of one folder the wider holds, of nested ones the inner."""
    granted = dict.fromkeys((_real(path) for path in program.readable), False)
    granted |= dict.fromkeys((_real(path) for path in program.writable), True)
    covers = hidden_in(program)
    for path in granted:
        if any(within(path, own) for own in OWN) and not path.startswith("/dev/shm/"):
            raise ToolError(f"{path} belongs to the system and cannot be granted to a program")
        for cover in covers:
            if within(path, cover):
                raise ToolError(f"{path} cannot be granted to a program: {cover} is hidden")
    folder = os.path.realpath(program.folder)
    if not os.path.isdir(folder):
        raise ToolError(f"the folder {program.folder} is not there")
    if not any(within(folder, path) for path in granted):
        raise ToolError(f"a program cannot start in {program.folder}, which is in none of its folders")
    pinned = [folder for path in (*granted, *covers) for folder in _pinned(path, granted)]
    granted |= dict.fromkeys(pinned, True)
    return tuple(Root(path, granted[path]) for path in sorted(granted))


def _pinned(path: str, granted: dict[str, bool]) -> list[str]:
    """The folders between a path and the writable folder that it lies in.

    Mounted on themselves they cannot be moved. Otherwise a program could move one of them, with what is hidden or
    read-only in it, and the next program would find it under a name for which nothing was said.
    """
    between: list[str] = []
    folder = os.path.dirname(path)
    while folder != "/" and folder not in granted:
        between += [folder] if os.path.isdir(folder) else []
        folder = os.path.dirname(folder)
    return between if granted.get(folder, False) else []


def hidden_in(program: Program) -> tuple[str, ...]:
    """What is hidden, where it really is."""
    return tuple(sorted({os.path.realpath(path) for path in program.hidden}))


def within(path: str, folder: str) -> bool:
    """Whether a path is the folder or below it.

    >>> within("/a/b", "/a"), within("/a", "/a"), within("/ab", "/a")
    (True, True, False)
    """
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def system(program: Program, roots: tuple[Root, ...]) -> list[str]:
    """The mounts below the granted folders: the system, and the program's own /proc, /dev and /tmp."""
    whole = roots[0].path == "/"
    words = [] if whole else [*_installed(), *_settings(program.network)]
    # /dev/full reads as /dev/zero does. Mapped, /dev/zero is memory that no limit counts; /dev/full cannot be mapped.
    words += ["--proc", "/proc", "--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero"]
    words += ["--perms", "1777", "--size", str(SHARED_MEMORY)]
    words += ["--tmpfs", "/dev/shm", "--perms", "1777", "--size", str(max(program.scratch, 4096)), "--tmpfs", "/tmp"]
    return words


def covered(program: Program, roots: tuple[Root, ...]) -> list[str]:
    """The mounts on top: nothing in place of what is hidden, and no place to write but what was granted."""
    words: list[str] = []
    for path in hidden_in(program):
        if any(within(path, root.path) for root in roots) or any(within(path, each) for each in SYSTEM):
            words += cover(path)
    words += ["--remount-ro", "/dev"]
    if roots[0] != Root("/", writable=True):
        words += ["--remount-ro", "/"]
    return words


def links(program: Program, roots: tuple[Root, ...]) -> list[str]:
    """Links by which folders are found under the names that the caller used for them."""
    words: list[str] = []
    seen = [root.path for root in roots] + [*SYSTEM, *OWN, "/etc"]
    for named in sorted({os.path.normpath(each) for each in (program.folder, *program.readable, *program.writable)}):
        if not any(within(named, path) for path in seen):
            words += ["--symlink", os.path.realpath(named), named]
            seen.append(named)
    return words


def cover(path: str) -> list[str]:
    """Nothing in the place of a folder or file; also nothing if there is nothing."""
    if os.path.isdir(path):
        return ["--perms", "0500", "--size", "4096", "--tmpfs", path, "--remount-ro", path]
    # Mounted without devices, as everything is, /dev/null cannot even be opened.
    return ["--ro-bind", "/dev/null", path] if os.path.lexists(path) else []


@cache
def for_root_alone() -> tuple[str, ...]:
    """Covers for what root alone may read or write in /proc.

    A program that may open any owner's files (see `identity`) would find those open too.
    """
    words: list[str] = []
    for entry in sorted(os.scandir("/proc"), key=lambda each: each.name):
        if entry.name.isdigit() or entry.is_symlink() or entry.name in ("sys", "pressure", "sysvipc"):
            # What is in there asks who wants it, or is the same for everybody.
            continue
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) or mode & 0o222 or not mode & 0o004:
            words += cover(entry.path)
    return tuple(words)


def _real(path: str) -> str:
    real = os.path.realpath(path)
    if not os.path.lexists(real):
        raise ToolError(f"the folder {path} is not there")
    return real


@cache
def _installed() -> tuple[str, ...]:
    words: list[str] = []
    for path in SYSTEM:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    return tuple(words)


@cache
def _settings(network: bool) -> tuple[str, ...]:
    names = SETTINGS + FOR_THE_NETWORK if network else SETTINGS
    paths = [f"/etc/{name}" for name in sorted(names)]
    return tuple(word for path in paths if os.path.exists(path) for word in ("--ro-bind", path, path))
