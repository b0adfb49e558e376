"""Watch the mounts that protect files from a program: the kernel detaches one if its file is replaced outside.

Editors replace a file when they save it: they write a new one and rename it. The name then leads to the new file, which
no mount covers. The kernel reports each change of a mount table to processes that poll it. Where the covered file is
renamed first, to a backup, its mount goes with it and no table changes: the names are looked at again and again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from itertools import repeat

from retinue.sandbox.memory_watch import ENDED_ERRORS

LOOK_SECONDS = 0.05
"""Seconds between two looks at what the names of the mount points lead to."""
SETUP_PAUSE = 0.01
"""Seconds between two looks at a sandbox that is being set up."""
OPERANDS = {
    **dict.fromkeys(("--bind", "--ro-bind", "--bind-fd", "--ro-bind-fd", "--dev-bind", "--ro-bind-data"), 2),
    "--tmpfs": 1,
}
"""Number of operands of the options of bubblewrap that mount something; the last one is the mount point."""
_ESCAPED = re.compile(r"\\([0-7]{3})")


def mount_points(args: Sequence[str]) -> list[str]:
    """Where bubblewrap mounts something, by its arguments.

    >>> mount_points(["--ro-bind", "/dev/null", "/srv/.env", "--perms", "0500", "--tmpfs", "/srv/state"])
    ['/srv/.env', '/srv/state']
    """
    return [args[at + OPERANDS[arg]] for at, arg in enumerate(args) if arg in OPERANDS]


def inner_paths(paths: Collection[str]) -> list[str]:
    """The paths that lie in one of the others.

    >>> inner_paths(["/srv", "/srv/retinue.toml", "/usr"])
    ['/srv/retinue.toml']
    """
    return [
        path for path in paths if any(path.startswith(f"{other.rstrip('/')}/") and path != other for other in paths)
    ]


async def wait_for_lost_mount(first: int, expected: Collection[str]) -> str:
    """Return a message when one of the mount points of the sandbox of process `first` is gone; waits until cancelled.

    Between the loss and the return the program can use the file that took the place.
    """
    loop = asyncio.get_running_loop()
    with ExitStack() as resources:
        try:
            for pause in repeat(SETUP_PAUSE):
                if _is_set_up(first):
                    break
                await asyncio.sleep(pause)
            table = os.open(f"/proc/{first}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            # A process that has ended and was not reaped has no mounts: that is EINVAL.
            if not isinstance(error, ENDED_ERRORS) and error.errno != errno.EINVAL:
                return f"Killed: what protects files from it could not be seen ({error.strerror})"
            await loop.create_future()  # there is nothing to protect: the task that waits for the end cancels this one
            raise
        resources.callback(os.close, table)
        # The table is always readable; the poll of its own reports only changes.
        changes = resources.enter_context(select.epoll())
        changes.register(table, select.EPOLLPRI)
        changed = asyncio.Event()
        loop.add_reader(changes.fileno(), changed.set)
        resources.callback(loop.remove_reader, changes.fileno())
        try:
            at_first = {path: _identity(first, path) for path in expected}
            while not (lost := sorted(set(expected) - _mounted(table))):
                if lost := sorted(path for path in expected if _leads_elsewhere(first, path, at_first[path])):
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await changed.wait()
                changes.poll(0)
                changed.clear()
        except ENDED_ERRORS:
            await loop.create_future()  # it has ended meanwhile
            raise
    return f"Killed: {lost[0]} was replaced while this ran, and was not protected from it any more"


def _identity(first: int, path: str) -> tuple[int, int] | None:
    """Device and inode of what a path in the sandbox leads to; None if nothing. Raises if the process has ended."""
    try:
        found = os.stat(f"/proc/{first}/root{path}", follow_symlinks=False)
    except FileNotFoundError:
        os.stat(f"/proc/{first}/root")
        return None
    return found.st_dev, found.st_ino


def _leads_elsewhere(first: int, path: str, at_first: tuple[int, int] | None) -> bool:
    try:
        return _identity(first, path) != at_first
    except PermissionError:
        return False  # the program has closed a folder above, to itself as well


def _is_set_up(first: int) -> bool:
    """Whether a sandbox has a /proc of its own, which it gets when all its mounts are made."""
    try:
        return os.stat(f"/proc/{first}/root/proc").st_dev != os.stat("/proc").st_dev
    except FileNotFoundError:
        os.stat(f"/proc/{first}/root")  # raises if the process has ended
        return False


def _mounted(table: int) -> set[str]:
    os.lseek(table, 0, os.SEEK_SET)
    lines = b""
    while piece := os.read(table, 1 << 16):
        lines += piece
    return {_unescaped(line.split(" ")[4]) for line in os.fsdecode(lines).splitlines()}


def _unescaped(path: str) -> str:
    r"""A path of a mount table.

    >>> _unescaped(r"/my\040files")
    '/my files'
    """
    if "\\" not in path:
        return path
    return os.fsdecode(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), path))
