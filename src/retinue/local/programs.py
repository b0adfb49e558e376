"""Find the programs that retinue starts outside the sandbox, where no agent and no other user can have placed them.

PATH may name folders in which agents write: the virtualenv of a project, `node_modules/.bin`. A program there is passed
over, and so is one that another user could replace. Folders of the system come first.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

SYSTEM_FOLDERS = (
    *("/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/local/sbin"),
    *("/run/current-system/sw/bin", "/nix/var/nix/profiles/default/bin"),
    *("/opt/homebrew/bin", "/home/linuxbrew/.linuxbrew/bin"),
)
"""Where programs of the system, of Nix and of Homebrew are; searched before PATH."""
ADMINISTRATORS = ("root", "wheel", "admin" if sys.platform == "darwin" else "staff")
"""Groups whose members administrate the machine, so that folders which they can write are as good as root's."""
MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class FoundProgram:
    """A program that may be started, or an empty path; and why others of that name were passed over."""

    name: str
    path: str
    passed_over: tuple[str, ...] = ()


def find_program(name: str, *, agents_write: Sequence[str]) -> FoundProgram:
    """The first program of this name that neither an agent nor another user can have written.

    `agents_write` are the folders in which agents may write.
    """
    listed = [folder for folder in os.get_exec_path() if os.path.isabs(folder)]
    return _first(name, (*SYSTEM_FOLDERS, *listed), agents_write)


def on_path(name: str, *, agents_write: Sequence[str]) -> FoundProgram:
    """As `find_program`, in the order of PATH: for programs of the user, who may have chosen one of several."""
    return _first(name, (folder for folder in os.get_exec_path() if os.path.isabs(folder)), agents_write)


def why_not_looked_up(name: str, *, agents_write: Sequence[str]) -> str:
    """Why a library must not start a program by this name, which it looks up on PATH itself; empty if it may.

    An agent could put one of that name into a folder of its own that comes before the program's, at any time.
    """
    if os.sep in name:
        return why_untrusted(os.path.abspath(name), agents_write=agents_write)
    roots = _roots(agents_write)
    for folder in os.get_exec_path():
        real = os.path.realpath(folder or os.curdir)
        if _is_below(real, roots):
            return f"agents may write in {real}, which is on PATH before it"
        path = os.path.join(real, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return why_untrusted(path, agents_write=agents_write)
    return ""


def _first(name: str, folders: Iterable[str], agents_write: Sequence[str]) -> FoundProgram:
    passed_over: list[str] = []
    for folder in dict.fromkeys(folders):
        path = os.path.join(folder, name)
        if not os.path.isfile(path) or not os.access(path, os.X_OK):
            continue
        reason = why_untrusted(path, agents_write=agents_write)
        if not reason:
            return FoundProgram(name, path, tuple(passed_over))
        passed_over.append(f"{path} is not used: {reason}")
    return FoundProgram(name, "", tuple(passed_over))


def why_untrusted(path: str, *, agents_write: Sequence[str]) -> str:
    """Why a program must not be started; empty if it may be.

    Every folder in which a part of its path is looked up has to belong to root or to this user, and must not be
    writable by others or lie in a folder of agents.
    """
    roots = _roots(agents_write)
    try:
        for folder, entry in _steps(path):
            for root in roots:
                if entry == root or entry.startswith(f"{root}/"):
                    return f"agents may write in {root}"
            within, found = os.stat(folder), os.lstat(entry)
            if not _is_ours(found.st_uid):
                return f"{entry} belongs to another user"
            # In a folder like /tmp others can add entries, but not replace ours.
            if not _is_ours(within.st_uid) or (_others_write(within) and not within.st_mode & stat.S_ISVTX):
                return f"others may write in {folder}"
            if not stat.S_ISLNK(found.st_mode) and not stat.S_ISDIR(found.st_mode) and _others_write(found):
                return f"others may write {entry}"
    except OSError as error:
        return f"it cannot be checked ({error.strerror})"
    return ""


def folder_of_agents(path: str, *, agents_write: Sequence[str]) -> str:
    """The folder of agents in which a part of a path is looked up, also behind links; empty if there is none."""
    roots = _roots(agents_write)
    try:
        entries = (entry for _, entry in _steps(os.path.abspath(path)))
        return next((root for entry in entries for root in roots if _is_below(entry, (root,))), "")
    except OSError:  # too many links
        return path


def trusted_path(*, agents_write: Sequence[str]) -> str:
    """PATH without the folders of agents, for a program that starts others, as git does with ssh."""
    roots = _roots(agents_write)
    listed = (folder for folder in os.get_exec_path() if os.path.isabs(folder))
    return os.pathsep.join(folder for folder in listed if not _is_below(os.path.realpath(folder), roots))


def _roots(agents_write: Sequence[str]) -> list[str]:
    # With one of these an agent can replace every program, and Python itself: it would help nothing to refuse one.
    return [root for root in map(os.path.realpath, agents_write) if root not in ("/", "/usr")]


def _is_below(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def import_path(*, agents_write: Sequence[str]) -> list[str]:
    """The folders from which a helper process may import packages: those of this process without those of agents.

    The installation and its environment count in any case: agents cannot write there (see `app.open`).
    """
    own = [os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)]
    folders: list[str] = []
    for entry in filter(os.path.isabs, sys.path):
        real = os.path.realpath(entry)
        if any(real.startswith(f"{prefix}/") for prefix in own) or not why_untrusted(real, agents_write=agents_write):
            folders.append(real)
    return folders


def _steps(path: str) -> Iterator[tuple[str, str]]:
    """Each folder in which a part of a path is looked up, with the entry that is found there; links are followed."""
    ahead = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    here, links = "/", 0
    while ahead:
        part = ahead.pop()
        if part == "..":
            here = os.path.dirname(here)
            continue
        entry = os.path.join(here, part)
        yield here, entry
        if os.path.islink(entry):
            links += 1
            target = os.readlink(entry)
            if links > MAX_LINKS:
                raise OSError(0, "too many links")
            if target.startswith("/"):
                here = "/"
            ahead += [part for part in reversed(target.split("/")) if part not in ("", ".")]
        else:
            here = entry


def _is_ours(user: int) -> bool:
    # The owner of / is root, or, in a user namespace without root, the number that stands for it there.
    return user in (0, os.geteuid(), os.stat("/").st_uid)


def _others_write(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_private_group(found.st_gid)


def _is_private_group(group: int) -> bool:
    """Whether only this user and administrators are in a group."""
    if group == 0:
        return True
    import grp
    import pwd

    try:
        entry, own = grp.getgrgid(group), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return entry.gr_name in ADMINISTRATORS or (entry.gr_name == own and set(entry.gr_mem) <= {own})
