"""Which process this is, and whether another one on this host is gone; asks the operating system and nobody else."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from pathlib import Path


@cache
def this_host() -> str:
    """A name for the place in which process numbers mean something: the machine, since its last start.

    In containers each has its own numbers, so the namespace is part of the name.
    """
    boot = _read("/proc/sys/kernel/random/boot_id")
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return "/".join(filter(None, (platform.node(), boot, space)))


def this_process() -> str:
    """The number of this process and the moment it began, because numbers are used again."""
    return describe(os.getpid())


def describe(pid: int) -> str:
    """How a process on this host is told from a later one with the same number."""
    return f"{pid}:{_began(pid)}"


def is_gone(host: str, process: str) -> bool:
    """Whether that process is certainly gone; of another host nothing is certain."""
    if host != this_host():
        return _was_before_the_last_start(host)
    pid = process.partition(":")[0]
    if not pid.isdecimal():
        return False  # written by a retinue that describes processes in another way
    return not _exists(int(pid)) or describe(int(pid)) != process


def _was_before_the_last_start(host: str) -> bool:
    """Whether that is this machine, as it was before it was started the last time."""
    node, _, rest = host.partition("/")
    here, _, rest_here = this_host().partition("/")
    boot, boot_here = rest.partition("/")[0], rest_here.partition("/")[0]
    return node == here and bool(boot and boot_here) and boot != boot_here


def _exists(pid: int) -> bool:
    if sys.platform == "win32":  # pragma: no cover
        return True  # os.kill would end it there; the lease decides instead
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _began(pid: int) -> str:
    """The kernel's count of ticks at the start of a process, or nothing where it does not say."""
    stat = _read(f"/proc/{pid}/stat")
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20:
        return ""
    # A zombie has ended and only waits for its parent to notice.
    return "ended" if fields[0] == "Z" else fields[19]


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
