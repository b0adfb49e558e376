"""A program that tries to escape from the sandbox it runs in, and prints which attempts succeeded.

Its source is piped to a bare interpreter (`python -I -S -`), so it uses only the standard library and nothing of
retinue. A successful attempt does no harm.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable

LIBC = ctypes.CDLL(None, use_errno=True)
URING_SETUP, KEYCTL = 425, {"x86_64": 250, "aarch64": 219}
NEW_USER_NAMESPACE = 0x10000000
TRACE_ME = 0


def main() -> None:
    facts = json.loads(sys.argv[1])
    attempts: dict[str, Callable[[], bool]] = {
        "read a file outside its folders": lambda: _reads(facts["secret"]),
        "write a file outside its folders": lambda: _writes(facts["secret"]),
        "leave its folder by ..": lambda: _reads(facts["up"]),
        "read what is hidden in its folder": lambda: _reads(facts["hidden"]),
        "write a file in a read-only folder": lambda: _writes(facts["read_only"]),
        # These two are set by bubblewrap and by Python itself.
        "see our variables": lambda: bool(set(os.environ) - {"PWD", "LC_CTYPE"}),
        "see our process": lambda: _sees(facts["pid"], facts["command"]),
        "reach a port of this machine": lambda: _connects(socket.AF_INET, ("127.0.0.1", facts["port"])),
        "reach an abstract socket of this machine": lambda: _connects(socket.AF_UNIX, "\0" + facts["abstract"]),
        "have more processes than allowed": lambda: _forks(facts["processes"]),
        "have more memory than allowed": lambda: _maps(facts["memory"] + 1, mmap.MAP_PRIVATE),
        "have memory that no limit counts": lambda: _maps(mmap.PAGESIZE, mmap.MAP_SHARED),
        "use io_uring": lambda: _allowed(LIBC.syscall(URING_SETUP, 1, None)),
        "use keyrings": lambda: _allowed(LIBC.syscall(KEYCTL[platform.machine()], 0, -3, 0)),
        "trace processes": _traces,
        "make a user namespace": lambda: LIBC.unshare(NEW_USER_NAMESPACE) == 0,
    }
    with open(facts["allowed"], "w") as file:
        file.write("written")
    done = [name for name, attempt in attempts.items() if _succeeds(attempt)]
    print(json.dumps({"tried": len(attempts), "done": done}))


def _succeeds(attempt: Callable[[], bool]) -> bool:
    try:
        return attempt()
    except OSError:
        return False


def _reads(path: str) -> bool:
    with open(path, "rb") as file:
        return bool(file.read())


def _writes(path: str) -> bool:
    # Never creates a file: a new one would be in the sandbox's own /tmp and prove nothing.
    with open(path, "r+b") as file:
        file.write(b"!")
    return True


def _sees(pid: int, command: str) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().hex() == command


def _connects(family: int, address: str | tuple[str, int]) -> bool:
    with socket.socket(family) as line:
        line.settimeout(1)
        line.connect(address)
    return True


def _forks(allowed: int) -> bool:
    children: list[int] = []
    try:
        for _ in range(allowed + 8):
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return True


def _maps(size: int, kind: int) -> bool:
    mmap.mmap(-1, size, flags=kind | mmap.MAP_ANONYMOUS).close()
    return True


def _traces() -> bool:
    child = os.fork()
    if child == 0:
        os._exit(LIBC.ptrace(TRACE_ME, 0, None, None) == 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def _allowed(result: int) -> bool:
    """Whether the kernel handled the call at all."""
    return result >= 0 or ctypes.get_errno() not in (1, 38)


if __name__ == "__main__":
    main()
