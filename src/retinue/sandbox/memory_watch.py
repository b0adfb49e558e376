"""Watch the total memory use of a sandbox from outside, because the kernel limits memory per process only.

Counted are the processes in the sandbox's own /proc, its two folders in memory, /tmp and /dev/shm, and what the kernel
keeps for its pipes and sockets. A quick check gives an upper bound: pages shared since a fork count for each process,
and every open file as a socket with full buffers. Only if that exceeds the limit, an exact check counts shared pages
proportionally (PSS) and looks up which files are pipes and sockets. Pages of files on disk do not count: the kernel can
reclaim them. Mapped pages of files in memory count, also if the file lies in a granted folder. All programs of this
process have a limit together as well; the largest is killed if they exceed it.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter, sleep

from retinue.core.ports import Program
from retinue.sandbox.socket_memory import SocketMemory

FILL_RATE = 1024 * 1024 * 1024
"""Bytes of new memory that one processor can fill in a second, approximately: the kernel clears each page."""
MIN_PAUSE, MAX_PAUSE = 0.02, 0.25
"""Least and most seconds between two checks; within these, the time it takes to fill the memory that is left."""
PAUSE_FACTOR = 10
"""The pause after a check is at least this many times as long as the check."""
EXACT_CHECKS, CHECK_INTERVAL = 3, 0.005
"""Number of exact checks that must exceed the limit, and the seconds between them."""
SOCKET = 256 * 1024
"""Bytes that the kernel may buffer for an unread socket, by default; TCP connections may have more."""
PIPE = 16 * os.sysconf("SC_PAGE_SIZE")
"""Bytes that a full pipe keeps: the filter of the sandbox does not let it grow."""
INODE = 1024
"""Bytes that the kernel uses for each file in a folder in memory, even an empty one."""
FOLDERS = ("tmp", "dev/shm")
MAX_FILE_BYTES = 16 * 1024
ENDED_ERRORS = (FileNotFoundError, ProcessLookupError)

_PROCESS_MEMORY = re.compile(rb"^(?:RssAnon|VmSwap|HugetlbPages|VmPTE):\s+(\d+) kB$", re.MULTILINE)
_SHARED_MEMORY = re.compile(rb"^(?:Pss_Anon|SwapPss|Shared_Hugetlb|Private_Hugetlb):\s+(\d+) kB$", re.MULTILINE)
_MAPPED_FILES = re.compile(rb"^RssShmem:\s+(\d+) kB$", re.MULTILINE)
_SHARED_FILES = re.compile(rb"^Pss_Shmem:\s+(\d+) kB$", re.MULTILINE)
"""Mapped pages of files in memory: of /tmp and /dev/shm, which count as folders already, and of others."""
_PAGE_TABLES = re.compile(rb"^VmPTE:\s+(\d+) kB$", re.MULTILINE)
_PARENT = re.compile(rb"^PPid:\s+(\d+)$", re.MULTILINE)
_THREADS = re.compile(rb"^Threads:\s+(\d+)$", re.MULTILINE)
_ENDED = re.compile(rb"^State:\s+[ZX]", re.MULTILINE)
_BLOCKED = re.compile(rb"^State:\s+D", re.MULTILINE)
_FILE_TABLE_SIZE = re.compile(rb"^FDSize:\s+(\d+)$", re.MULTILINE)


def check_readable(first: int) -> None:
    """Raise `OSError` if the memory of a sandbox cannot be watched; `first` is its first process."""
    try:
        memory = Path(f"/proc/{first}/smaps_rollup").read_bytes()
    except PermissionError as error:
        # The user that made the sandbox may read it; root, which makes it as another user, needs a capability.
        raise PermissionError("its memory cannot be watched: root needs CAP_SYS_PTRACE for that") from error
    if b"Pss_Anon:" not in memory:
        raise OSError("its memory cannot be watched: this kernel does not say how memory is shared")


_USED: dict[int, int] = {}
"""Bytes that each program of this process used when it was last checked, by the number of its check."""
_numbers = count()


def _by_size(number: int) -> tuple[int, int]:
    return _USED[number], number


async def wait_for_excess(first: int, program: Program) -> str:
    """Return a message when the sandbox of process `first` uses more memory than its program may.

    Also if all programs of this process use more than `program.memory_of_all`, and this one uses the most. Checks until
    it is cancelled, more often the less memory is left. A sandbox that cannot be read counts as too large.
    """
    limit, growth = program.memory, FILL_RATE * min(program.processes, len(os.sched_getaffinity(0)))
    sandbox, used, duration, number = None, 0, 0.0, next(_numbers)
    with ExitStack() as resources:
        resources.callback(_USED.pop, number, None)
        try:
            while used <= limit:
                others = sum(_USED.values()) - _USED.get(number, 0)
                may_use = min(limit, (program.memory_of_all or limit + others) - others)
                left = max(may_use, 0) - used
                await asyncio.sleep(min(max(left / growth, duration * PAUSE_FACTOR, MIN_PAUSE), MAX_PAUSE))
                began = perf_counter()
                sandbox = sandbox or _enter(first, resources, shared_network=program.network)
                if sandbox is not None and (used := sandbox.upper_bound(limit)) > may_use:
                    used = await _in_thread(partial(_least_exact, sandbox, may_use))
                _USED[number] = used
                total, of_all = sum(_USED.values()), program.memory_of_all
                if of_all and used <= limit and total > of_all and (used, number) == max(map(_by_size, _USED)):
                    return (
                        f"Killed: all programs of agents used {_megabytes(total)} of memory together and may use "
                        f"{_megabytes(of_all)}; this one used the most, {_megabytes(used)}"
                    )
                duration = perf_counter() - began
        except OSError as error:
            if _is_gone(first):
                # It has ended, and there is nothing to kill: the task that waits for its end cancels this one.
                await asyncio.get_running_loop().create_future()
            return f"Killed: how much memory its processes use could not be seen any more ({error.strerror})"
    return (
        f"Killed: all its processes and what lies in /tmp used {_megabytes(used)} of memory together, "
        f"and may use {_megabytes(limit)}"
    )


async def _in_thread(check: Callable[[], int]) -> int:
    """The result of a slow check; waits for it even when cancelled, because it uses open descriptors."""
    # A thread of its own: all threads of the shared pool may be busy while memory grows.
    with ThreadPoolExecutor(1) as own:
        checking = asyncio.get_running_loop().run_in_executor(own, check)
        try:
            return await asyncio.shield(checking)
        finally:
            await asyncio.wait((checking,))


def _least_exact(sandbox: _SandboxView, limit: int) -> int:
    """The least of several exact checks, or the first that is not over the limit.

    Processes start and end during a check, and pages that two of them share may then count for both.
    """
    least = sandbox.exact_use(limit)
    for _ in range(EXACT_CHECKS - 1):
        if least <= limit:
            break
        sleep(CHECK_INTERVAL)
        least = min(least, sandbox.exact_use(limit))
    return least


def _megabytes(size: int) -> str:
    """A size in megabytes.

    >>> _megabytes(512 * 1024 * 1024), _megabytes(1_500_000)
    ('512 MB', '1.4 MB')
    """
    return f"{round(size / 1024 / 1024, 1):.15g} MB"


def _is_gone(first: int) -> bool:
    try:
        os.stat(f"/proc/{first}/root")
    except OSError as error:
        return isinstance(error, ENDED_ERRORS)
    return False


def _enter(first: int, resources: ExitStack, *, shared_network: bool = False) -> _SandboxView | None:
    """The sandbox of a process, or None until it has a /proc of its own."""
    root = f"/proc/{first}/root"
    try:
        processes = os.open(f"{root}/proc", os.O_RDONLY | os.O_DIRECTORY)
    except ENDED_ERRORS:
        return None
    if os.fstat(processes).st_dev == os.stat("/proc").st_dev:
        os.close(processes)
        return None
    resources.callback(os.close, processes)
    folders = [os.open(f"{root}/{name}", os.O_PATH | os.O_DIRECTORY) for name in FOLDERS]
    for folder in folders:
        resources.callback(os.close, folder)
    return _SandboxView(processes, folders, SocketMemory(first, shared=shared_network, resources=resources))


class _SandboxView:
    """A sandbox through open descriptors, which stay valid whatever happens to its first process."""

    def __init__(self, processes: int, folders: list[int], connections: SocketMemory) -> None:
        self._processes = processes
        self._folders = folders
        self._connections = connections

    def upper_bound(self, enough: int) -> int:
        """An upper bound of the bytes used; it may be far too high above `enough`."""
        statuses = self._statuses()
        used = max(self._folder_bytes(), sum(_bytes(_MAPPED_FILES, status) for status in statuses.values()))
        for process, status in statuses.items():
            files = self._entries(f"{process}/fd")
            used += _bytes(_PROCESS_MEMORY, status)
            used += SOCKET * (_number(_FILE_TABLE_SIZE, status) if files is None else len(files))
        return used + self._connections.upper_bound(enough - used)

    def exact_use(self, enough: int) -> int:
        """The bytes used, or a part of them that exceeds `enough`.

        Pipes and sockets count with full buffers, and what cannot be read as in `upper_bound`.
        """
        statuses = self._statuses()
        folders = self._folder_bytes()
        used = folders + self._buffer_bytes(statuses, enough)
        if used > enough:
            return used
        maps = {process: self._memory_map(process) for process in statuses}
        used += max(sum(_bytes(_SHARED_FILES, memory or b"") for memory in maps.values()) - folders, 0)
        lenders = {process for process, status in statuses.items() if _BLOCKED.search(status)}
        for process, status in statuses.items():
            parent, memory = str(_number(_PARENT, status)), maps[process]
            if parent in lenders and memory and _address_range(memory) == _address_range(maps[parent]):
                # A vforked child uses the memory of its parent, which is blocked until the child calls exec. Only one
                # child per parent is left out, so that no others can hide behind it.
                lenders.remove(parent)
            else:
                # Page tables exist for each process, and take up to three pages for one page of memory.
                proportional = _bytes(_PAGE_TABLES, status) + _bytes(_SHARED_MEMORY, memory or b"")
                used += _bytes(_PROCESS_MEMORY, status) if memory is None else proportional
        return used

    def _buffer_bytes(self, statuses: Mapping[str, bytes], enough: int) -> int:
        """The bytes that pipes and sockets keep, or a part of them that exceeds `enough`; each counts once."""
        sockets: set[int] = set()
        pipes: set[tuple[int, int]] = set()
        used = 0
        for process, status in statuses.items():
            files = self._entries(f"{process}/fd")
            if files is None:
                used += SOCKET * _number(_FILE_TABLE_SIZE, status)
            for file in files or ():
                with suppress(OSError):
                    found = os.stat(f"{process}/fd/{file}", dir_fd=self._processes)
                    if stat.S_ISSOCK(found.st_mode):
                        sockets.add(found.st_ino)
                    elif stat.S_ISFIFO(found.st_mode):
                        pipes.add((found.st_dev, found.st_ino))
            if (known := used + SOCKET * len(sockets) + PIPE * len(pipes)) > enough:
                return known
        for inode, size in self._connections.connections():
            if inode in sockets:
                used += max(size - SOCKET, 0)
            elif not self._connections.shared:  # closed, or on its way through another socket
                used += size
        return used + SOCKET * len(sockets) + PIPE * len(pipes)

    def _statuses(self) -> dict[str, bytes]:
        """The folder in /proc and the status of each process."""
        return dict(self._live_status(name) for name in os.listdir(self._processes) if name.isdigit())

    def _live_status(self, process: str) -> tuple[str, bytes]:
        """Folder and status of a process; of another thread if the first has ended and reports no memory."""
        status = self._read(f"{process}/status")
        if _number(_THREADS, status) > 1 and _ENDED.search(status):
            for thread in self._entries(f"{process}/task") or ():
                other = self._read(f"{process}/task/{thread}/status")
                if other and not _ENDED.search(other):
                    return f"{process}/task/{thread}", other
        return process, status

    def _folder_bytes(self) -> int:
        used = 0
        for folder in self._folders:
            space = os.statvfs(folder)
            used += (space.f_blocks - space.f_bfree) * space.f_frsize + (space.f_files - space.f_ffree) * INODE
        return used

    def _memory_map(self, process: str) -> bytes | None:
        """Summary of the memory map of a process; empty if it has ended, None if it may not be read."""
        with suppress(PermissionError):
            return self._read(f"{process}/smaps_rollup")
        return None

    def _entries(self, folder: str) -> list[str] | None:
        """Entries of a folder of a process; empty if it has ended, None if it may not be read."""
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._processes)
        except ENDED_ERRORS:
            return []
        except PermissionError:
            return None
        try:
            return os.listdir(descriptor)
        except ENDED_ERRORS:
            return []
        finally:
            os.close(descriptor)

    def _read(self, path: str) -> bytes:
        """A file about a process; empty if it has ended."""
        try:
            descriptor = os.open(path, os.O_RDONLY, dir_fd=self._processes)
        except ENDED_ERRORS:
            return b""
        try:
            return os.read(descriptor, MAX_FILE_BYTES)
        except ENDED_ERRORS:
            return b""
        finally:
            os.close(descriptor)


def _address_range(memory: bytes | None) -> bytes:
    """The address range of a memory map, which is the same for all processes that use that memory."""
    return (memory or b"").partition(b"\n")[0]


def _bytes(lines: re.Pattern[bytes], text: bytes) -> int:
    return sum(int(kilobytes) for kilobytes in lines.findall(text)) * 1024


def _number(line: re.Pattern[bytes], text: bytes) -> int:
    match = line.search(text)
    return int(match[1]) if match else 0
