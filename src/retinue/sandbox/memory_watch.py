"""How much memory a sandbox uses altogether, looked at from outside: the kernel limits it for each process alone.

Looked at are the processes in the sandbox's own /proc and the two folders there that lie in memory, /tmp and /dev/shm.
A quick look counts too much rather than too little: pages that two processes share since a fork count twice, and every
open file counts as a socket with full buffers. Only when that is over the limit, a closer look shares out the pages
(what the kernel calls PSS), asks which files are sockets, and decides. Pages of files on disk do not count: the kernel
takes them back when it needs them.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from time import perf_counter, sleep

FASTEST = 1024 * 1024 * 1024
"""Bytes of new memory that one processor can fill in a second; a little more or less, the kernel clears each page."""
SHORTEST, LONGEST = 0.02, 0.25
"""Seconds between two looks: as long as it takes to fill what is left, but within these."""
SHARE = 10
"""After a look that took long, the pause is at least so many times as long."""
LOOKS, BETWEEN = 3, 0.005
"""How many closer looks have to find too much, and the seconds between them."""
SOCKET = 256 * 1024
"""Bytes that the kernel may keep for a socket that nobody reads, with the buffers that it has by default."""
INODE = 1024
"""Bytes that the kernel keeps for each file in a folder in memory, an empty one too."""
FOLDERS = ("tmp", "dev/shm")
LONGEST_TEXT = 16 * 1024
GONE = (FileNotFoundError, ProcessLookupError)

_OWN = re.compile(rb"^(?:RssAnon|VmSwap|HugetlbPages|VmPTE):\s+(\d+) kB$", re.MULTILINE)
_SHARED_OUT = re.compile(rb"^(?:Pss_Anon|SwapPss|Shared_Hugetlb|Private_Hugetlb):\s+(\d+) kB$", re.MULTILINE)
_TABLES = re.compile(rb"^VmPTE:\s+(\d+) kB$", re.MULTILINE)
_PARENT = re.compile(rb"^PPid:\s+(\d+)$", re.MULTILINE)
_THREADS = re.compile(rb"^Threads:\s+(\d+)$", re.MULTILINE)
_ENDED = re.compile(rb"^State:\s+[ZX]", re.MULTILINE)
_WAITS = re.compile(rb"^State:\s+D", re.MULTILINE)
_ROOM_FOR_FILES = re.compile(rb"^FDSize:\s+(\d+)$", re.MULTILINE)


def look_into(first: int) -> None:
    """Raise `OSError` if we cannot see enough of the sandbox of this process, the first one in there."""
    try:
        memory = Path(f"/proc/{first}/smaps_rollup").read_bytes()
    except PermissionError as error:
        # Whoever made the sandbox may; root, who has another user make it, needs this right.
        raise PermissionError("its memory cannot be watched: root needs CAP_SYS_PTRACE for that") from error
    if b"Pss_Anon:" not in memory:
        raise OSError("its memory cannot be watched: this kernel does not say how memory is shared")


async def outgrown(first: int, limit: int, processes: int) -> str:
    """Return when the sandbox of this process uses more memory than `limit`, with words for whoever started it.

    Looks until it is cancelled, the more often the less is left. What can no longer be seen is taken for too much.
    """
    growth = FASTEST * min(processes, len(os.sched_getaffinity(0)))
    inside, used, took = None, 0, 0.0
    with ExitStack() as resources:
        try:
            while used <= limit:
                await asyncio.sleep(min(max((limit - used) / growth, took * SHARE, SHORTEST), LONGEST))
                begun = perf_counter()
                inside = inside or _entered(first, resources)
                if inside is not None and (used := inside.at_most()) > limit:
                    used = await _in_a_thread(partial(_least, inside, limit))
                took = perf_counter() - begun
        except OSError as error:
            if _is_gone(first):
                # Nothing is left to look at, and nothing to kill: it has ended, and whoever waits for that cancels us.
                await asyncio.get_running_loop().create_future()
            return f"Killed: how much memory its processes use could not be seen any more ({error.strerror})"
    return (
        f"Killed: all its processes and what lies in /tmp used {_megabytes(used)} of memory together, "
        f"and may use {_megabytes(limit)}"
    )


async def _in_a_thread(look: Callable[[], int]) -> int:
    """What a look finds that may take long; it is waited for in any case, because it uses descriptors of ours."""
    # A thread of its own: those that everybody shares may all be busy, and memory does not wait for them.
    with ThreadPoolExecutor(1) as own:
        looking = asyncio.get_running_loop().run_in_executor(own, look)
        try:
            return await asyncio.shield(looking)
        finally:
            await asyncio.wait((looking,))


def _least(inside: _Inside, limit: int) -> int:
    """The least of some closer looks, or the first that is not over the limit.

    Processes come and go during a look, and what two of them share may then be counted for both.
    """
    least = inside.shared_out()
    for _ in range(LOOKS - 1):
        if least <= limit:
            break
        sleep(BETWEEN)
        least = min(least, inside.shared_out())
    return least


def _megabytes(size: int) -> str:
    """A size for people.

    >>> _megabytes(512 * 1024 * 1024), _megabytes(1_500_000)
    ('512 MB', '1.4 MB')
    """
    return f"{round(size / 1024 / 1024, 1):.15g} MB"


def _is_gone(first: int) -> bool:
    try:
        os.stat(f"/proc/{first}/root")
    except GONE:
        return True
    except OSError:
        return False
    return False


def _entered(first: int, resources: ExitStack) -> _Inside | None:
    """The sandbox of this process as soon as it is set up; before that, it has our /proc, or none."""
    root = f"/proc/{first}/root"
    try:
        processes = os.open(f"{root}/proc", os.O_RDONLY | os.O_DIRECTORY)
    except GONE:
        return None
    if os.fstat(processes).st_dev == os.stat("/proc").st_dev:
        os.close(processes)
        return None
    resources.callback(os.close, processes)
    folders = [os.open(f"{root}/{name}", os.O_PATH | os.O_DIRECTORY) for name in FOLDERS]
    for folder in folders:
        resources.callback(os.close, folder)
    return _Inside(processes, folders)


class _Inside:
    """A sandbox by descriptors, which stay good whatever a program does to the process that we found them by."""

    def __init__(self, processes: int, folders: list[int]) -> None:
        self._processes = processes
        self._folders = folders

    def at_most(self) -> int:
        """As many bytes as are used, or more."""
        used = self._in_folders()
        for process, status in self._each().items():
            files = self._names(f"{process}/fd")
            used += _bytes(_OWN, status)
            used += SOCKET * (_number(_ROOM_FOR_FILES, status) if files is None else len(files))
        return used

    def shared_out(self) -> int:
        """The bytes that are used; sockets count as much as they can hold, and what we may not see as in `at_most`."""
        used = self._in_folders()
        sockets: set[str] = set()
        each = self._each()
        maps = {process: self._map(process) for process in each}
        lenders = {process for process, status in each.items() if _WAITS.search(status)}
        for process, status in each.items():
            parent, memory = str(_number(_PARENT, status)), maps[process]
            if parent in lenders and memory and _place(memory) == _place(maps[parent]):
                # A child that is about to become another program; until then it lives in its parent's memory, which
                # waits for it. No more than one: nobody can hide many behind a parent that waits.
                lenders.remove(parent)
            else:
                # Where its pages lie is written down for each process, and takes memory too: up to three pages for one.
                shared_out = _bytes(_TABLES, status) + _bytes(_SHARED_OUT, memory or b"")
                used += _bytes(_OWN, status) if memory is None else shared_out
            files = self._names(f"{process}/fd")
            if files is None:
                used += SOCKET * _number(_ROOM_FOR_FILES, status)
            sockets.update(name for name in (self._leads_to(f"{process}/fd/{file}") for file in files or ()) if name)
        return used + SOCKET * len(sockets)

    def _each(self) -> dict[str, bytes]:
        """Where the kernel speaks of each process, and what it says first."""
        return dict(self._living(name) for name in os.listdir(self._processes) if name.isdigit())

    def _living(self, process: str) -> tuple[str, bytes]:
        """Of a process whose first thread has ended, and which then seems to have nothing, another thread."""
        status = self._read(f"{process}/status")
        if _number(_THREADS, status) > 1 and _ENDED.search(status):
            for thread in self._names(f"{process}/task") or ():
                other = self._read(f"{process}/task/{thread}/status")
                if other and not _ENDED.search(other):
                    return f"{process}/task/{thread}", other
        return process, status

    def _in_folders(self) -> int:
        used = 0
        for folder in self._folders:
            space = os.statvfs(folder)
            used += (space.f_blocks - space.f_bfree) * space.f_frsize + (space.f_files - space.f_ffree) * INODE
        return used

    def _map(self, process: str) -> bytes | None:
        """What is in its memory and with how many it is shared; nothing if it is gone, None if we may not know."""
        with suppress(PermissionError):
            return self._read(f"{process}/smaps_rollup")
        return None

    def _leads_to(self, descriptor: str) -> str | None:
        """The name of the socket that a descriptor leads to, if it is one."""
        try:
            name = os.readlink(descriptor, dir_fd=self._processes)
        except OSError:
            return None
        return name if name.startswith("socket:") else None

    def _names(self, folder: str) -> list[str] | None:
        """What is in a folder of a process; None if we may not know, as with a program that nobody may read."""
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._processes)
        except GONE:
            return []
        except PermissionError:
            return None
        try:
            return os.listdir(descriptor)
        except GONE:
            return []
        finally:
            os.close(descriptor)

    def _read(self, path: str) -> bytes:
        """What the kernel says about a process; nothing if it is gone."""
        try:
            descriptor = os.open(path, os.O_RDONLY, dir_fd=self._processes)
        except GONE:
            return b""
        try:
            return os.read(descriptor, LONGEST_TEXT)
        except GONE:
            return b""
        finally:
            os.close(descriptor)


def _place(memory: bytes | None) -> bytes:
    """From where to where a memory reaches, which is the same for all who live in it."""
    return (memory or b"").partition(b"\n")[0]


def _bytes(lines: re.Pattern[bytes], text: bytes) -> int:
    return sum(int(kilobytes) for kilobytes in lines.findall(text)) * 1024


def _number(line: re.Pattern[bytes], text: bytes) -> int:
    found = line.search(text)
    return int(found[1]) if found else 0
