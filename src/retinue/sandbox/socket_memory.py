"""The memory that the kernel keeps for TCP connections of a sandbox.

The kernel lets the buffers of a connection grow to many megabytes while it is read. It reports their size (`sock_diag`)
through a socket of the same network namespace, so a sandbox with a network of its own is entered to open one: by a
thread if this process is root, else by a short-lived process, because a process with threads cannot enter a user
namespace.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cache

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
REQUEST_DUMP = 0x301
"""NLM_F_REQUEST, NLM_F_ROOT and NLM_F_MATCH."""
NLMSG_ERROR, NLMSG_DONE = 2, 3
SKMEMINFO = 7
READ, FORWARD, WRITE, OPTIONS, BACKLOG = 0, 4, 5, 6, 7
"""Positions of the sizes that are added up: unread, reserved, unsent and unacknowledged bytes, options, backlog."""
CLONE_NEWNET = 0x40000000
NS_GET_USERNS = 0xB701
"""The request for a descriptor of the user namespace that owns another namespace."""
SECONDS = 5.0
"""Seconds that the process which enters a sandbox may take."""
UNKNOWN_BYTES = 10 * 1024 * 1024
"""Bytes that a connection counts where the kernel does not report them."""

ENTER = """
import ctypes, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
for descriptor, kind in ((int(sys.argv[1]), 0x10000000), (int(sys.argv[2]), 0x40000000)):
    if libc.setns(descriptor, kind):
        sys.exit(1)
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diag, socket.socket(fileno=0) as channel:
    socket.send_fds(channel, [b"x"], [diag.fileno()])
"""

_IN_USE = re.compile(rb"^TCP6?: inuse (\d+)", re.MULTILINE)


class SocketMemory:
    """TCP connections of the network namespace of one process, through open descriptors.

    With `shared`, it is the namespace of this process, which has connections of others.
    """

    def __init__(self, first: int, *, shared: bool, resources: ExitStack) -> None:
        self.shared = shared
        self._resources = resources
        self._counts = [] if shared else [self._open(f"/proc/{first}/net/{name}") for name in ("sockstat", "sockstat6")]
        self._network = -1 if shared else self._open(f"/proc/{first}/ns/net")
        self._diag: socket.socket | None = None
        self._is_entered = False

    def upper_bound(self, enough: int) -> int:
        """At least the bytes of all connections; exact if a bound by their number would exceed `enough`."""
        if not self.shared:
            count = sum(int(each) for text in map(_content, self._counts) for each in _IN_USE.findall(text))
            if count * _largest() <= enough:
                return count * _largest()
        return sum(size for _, size in self.connections())

    def connections(self) -> list[tuple[int, int]]:
        """The inode and the bytes of each connection; the inode of a closed one, which still has data, is 0."""
        if not self._is_entered:
            self._is_entered = True
            self._diag = self._entered()
        if self._diag is not None:
            try:
                return [each for family in (socket.AF_INET, socket.AF_INET6) for each in _dump(self._diag, family)]
            except OSError:
                self._diag = None
        if self.shared:
            return []
        count = sum(int(each) for text in map(_content, self._counts) for each in _IN_USE.findall(text))
        return [(0, UNKNOWN_BYTES)] * count

    def _open(self, path: str) -> int:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            os.stat(os.path.dirname(path))  # raises if the process has ended
            return -1  # a kernel without IPv6
        self._resources.callback(os.close, descriptor)
        return descriptor

    def _entered(self) -> socket.socket | None:
        """A socket in the network namespace; None if the system does not let this process enter it."""
        with suppress(OSError):
            if self.shared:
                opened = _diag_socket()
            else:
                opened = _by_thread(self._network) if os.geteuid() == 0 else _by_process(self._network)
            self._resources.callback(opened.close)
            opened.settimeout(SECONDS)
            return opened
        return None


def _content(descriptor: int) -> bytes:
    return b"" if descriptor < 0 else os.pread(descriptor, 4096, 0)


@cache
def _largest() -> int:
    """The most that one connection can hold in each direction, with what is on its way."""
    sizes = 0
    for name in ("tcp_rmem", "tcp_wmem"):
        try:
            with open(f"/proc/sys/net/ipv4/{name}", "rb") as file:
                sizes += int(file.read().split()[2])
        except (OSError, IndexError, ValueError):
            sizes += 64 * 1024 * 1024
    return sizes + 256 * 1024


def _diag_socket() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)


def _by_thread(network: int) -> socket.socket:
    opened: list[socket.socket] = []

    def enter() -> None:
        # Only this thread changes its namespace, and it ends here.
        if ctypes.CDLL(None, use_errno=True).setns(network, CLONE_NEWNET) == 0:
            opened.append(_diag_socket())

    thread = threading.Thread(target=enter, name="retinue-socket-memory", daemon=True)
    thread.start()
    thread.join()
    if not opened:
        raise PermissionError("the network of the sandbox cannot be entered")
    return opened[0]


def _by_process(network: int) -> socket.socket:
    # Not the user namespace of the program, which may be one inside it, without rights over the network.
    user = fcntl.ioctl(network, NS_GET_USERNS)
    ours, theirs = socket.socketpair()
    with ours, theirs, open(user, "rb"):
        ours.settimeout(SECONDS)
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", ENTER, str(user), str(network)],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            pass_fds=(user, network),
        ) as process:
            theirs.close()
            try:
                _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
            finally:
                process.kill()
    if not descriptors:
        raise PermissionError("the network of the sandbox cannot be entered")
    return socket.socket(fileno=descriptors[0])


def _dump(diag: socket.socket, family: int) -> Iterator[tuple[int, int]]:
    """The inode and the bytes of each TCP socket of a family."""
    every_state = 0xFFFFFFFF
    request = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (SKMEMINFO - 1), 0, every_state)
    diag.send(struct.pack("=IHHII", 16 + len(request), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, family, 0) + request)
    while True:
        answer = diag.recv(1 << 18)
        at = 0
        while at + 16 <= len(answer):
            length, kind, _, sequence, _ = struct.unpack_from("=IHHII", answer, at)
            if kind == NLMSG_DONE and sequence == family:
                return
            if kind == NLMSG_ERROR:
                raise OSError("the kernel does not report the memory of sockets")
            if sequence == family:
                yield _connection(answer[at + 16 : at + length])
            at += (length + 3) & ~3


def _connection(message: bytes) -> tuple[int, int]:
    (inode,) = struct.unpack_from("=I", message, 68)
    at = 72
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == SKMEMINFO:
            sizes = struct.unpack_from(f"={(length - 4) // 4}I", message, at + 4)
            return inode, sum(sizes[each] for each in (READ, FORWARD, WRITE, OPTIONS, BACKLOG) if each < len(sizes))
        at += max((length + 3) & ~3, 4)
    return inode, 0
