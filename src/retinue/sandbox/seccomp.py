"""The seccomp filter of the sandbox: system calls that a program may not make, as BPF bytes; pure, without a library.

The filter is a deny list on top of namespaces, read-only mounts and missing privileges. It closes what those leave
open: kernel interfaces with a record of vulnerabilities, memory that no limit counts, and sockets in folders, which
reach processes outside. A call of a foreign ABI (32-bit or x32 on x86_64, where numbers mean other calls) kills the
program.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, groupby
from typing import Literal, TypeAlias

Machine: TypeAlias = Literal["x86_64", "aarch64"]
MACHINES: tuple[Machine, ...] = ("x86_64", "aarch64")

AUDIT_ARCH: dict[Machine, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000
"""The bit that marks a call of the x32 ABI on x86_64."""

ALLOW = 0x7FFF0000
ERRNO = 0x00050000
KILL = 0x80000000


@dataclass(frozen=True, slots=True)
class Bits:
    """The argument has at least one of these bits."""

    argument: int
    bits: int


@dataclass(frozen=True, slots=True)
class NotOneOf:
    """The argument, masked, is none of these values."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class OneOf:
    """The argument is one of these values."""

    argument: int
    values: tuple[int, ...]


Condition: TypeAlias = Bits | NotOneOf | OneOf


@dataclass(frozen=True, slots=True)
class Rule:
    """A call that fails with `error` if all conditions hold; a number is None if the machine has no such call."""

    name: str
    x86_64: int | None
    aarch64: int | None
    why: str
    error: int = errno.EPERM
    when: tuple[Condition, ...] = ()

    def number(self, machine: Machine) -> int | None:
        return self.x86_64 if machine == "x86_64" else self.aarch64


NEW_NAMESPACES = 0x02000000 | 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x00000080
"""CLONE_NEWCGROUP, NS, UTS, IPC, USER, PID, NET and TIME."""
CLONE_FILES, CLONE_THREAD = 0x00000400, 0x00010000
USUAL_CLONES, CLONE_MASK = (0, CLONE_FILES, CLONE_FILES | CLONE_THREAD), NEW_NAMESPACES | CLONE_FILES | CLONE_THREAD
CLOSE_RANGE_UNSHARE = 2
SET_ID_BITS = 0o6000
MAKES_A_FILE = 0o100 | 0o20000000
"""O_CREAT and the distinct bit of O_TMPFILE: without these, `open` has no mode."""
AF_INET, AF_INET6, AF_NETLINK = 2, 10, 16
INTERNET = (AF_INET, AF_INET6)
STREAMS = (1, 5)
"""SOCK_STREAM and SOCK_SEQPACKET."""
TERMINAL_REQUESTS = (0x5412, 0x541C, 0x5423)
"""TIOCSTI, TIOCLINUX and TIOCSETD."""
F_SETLEASE, F_SETPIPE_SZ = 1024, 1031
LARGE_PROTOCOLS = (33, 132, 256, 262)
"""DCCP, SCTP, SMC and MPTCP: the check of memory does not see what their sockets keep. Programs fall back to TCP."""
MAP_SHARED, MAP_ANONYMOUS = 0x01, 0x20
SOL_SOCKET, BUFFERS = 1, (7, 8, 32, 33)
"""The socket level, and the options for buffer sizes: SO_SNDBUF, SO_RCVBUF and their FORCE variants."""
IGNORED = 0
"""No error: the call does nothing and reports success."""

_URING = "makes the kernel do things that this filter does not see, and has a record of vulnerabilities"
_KEYS = "keyrings are not in a namespace"
_PEEK = "reads other processes"
_MOUNT = "changes mounts, and so what is hidden and what is read-only"
_SPACE = "creates or enters namespaces, where a program has privileges that reach untested parts of the kernel"
_FILES = "hides open files of a thread from the check of its process"
_UNSEEN = "opens a file without a path"
_KERNEL = "administrates the machine"
_OUTSIDE = "reaches processes outside by other ways than the granted network"
_MEMORY = "memory that no limit of a process counts"
_SET_ID = "creates a set-id file, with which others get the rights of its owner"

RULES: tuple[Rule, ...] = (
    Rule("io_uring_setup", 425, 425, _URING, errno.ENOSYS),
    Rule("io_uring_enter", 426, 426, _URING, errno.ENOSYS),
    Rule("io_uring_register", 427, 427, _URING, errno.ENOSYS),
    Rule("keyctl", 250, 219, _KEYS),
    Rule("add_key", 248, 217, _KEYS),
    Rule("request_key", 249, 218, _KEYS),
    Rule("ptrace", 101, 117, _PEEK),
    Rule("process_vm_readv", 310, 270, _PEEK),
    Rule("process_vm_writev", 311, 271, _PEEK),
    Rule("pidfd_getfd", 438, 438, _PEEK),
    Rule("kcmp", 312, 272, _PEEK),
    Rule("perf_event_open", 298, 241, _PEEK),
    Rule("mount", 165, 40, _MOUNT),
    Rule("umount2", 166, 39, _MOUNT),
    Rule("pivot_root", 155, 41, _MOUNT),
    Rule("chroot", 161, 51, _MOUNT),
    Rule("open_tree", 428, 428, _MOUNT, errno.ENOSYS),
    Rule("move_mount", 429, 429, _MOUNT, errno.ENOSYS),
    Rule("fsopen", 430, 430, _MOUNT, errno.ENOSYS),
    Rule("fsconfig", 431, 431, _MOUNT, errno.ENOSYS),
    Rule("fsmount", 432, 432, _MOUNT, errno.ENOSYS),
    Rule("fspick", 433, 433, _MOUNT, errno.ENOSYS),
    Rule("mount_setattr", 442, 442, _MOUNT, errno.ENOSYS),
    Rule("open_tree_attr", 467, 467, _MOUNT, errno.ENOSYS),
    Rule("unshare", 272, 97, _SPACE),
    Rule("setns", 308, 268, _SPACE),
    # Allowed: processes with or without shared files, and threads that share the files of their process.
    Rule("clone", 56, 220, f"{_SPACE}; or {_FILES}", when=(NotOneOf(0, USUAL_CLONES, mask=CLONE_MASK),)),
    Rule("close_range", 436, 436, _FILES, errno.EINVAL, when=(Bits(2, CLOSE_RANGE_UNSHARE),)),
    # Its flags are behind a pointer, which a filter cannot follow; libraries fall back to clone.
    Rule("clone3", 435, 435, _SPACE, errno.ENOSYS),
    Rule("bpf", 321, 280, _KERNEL),
    Rule("userfaultfd", 323, 282, "stops the kernel in the middle of its work", errno.ENOSYS),
    Rule("kexec_load", 246, 104, _KERNEL),
    Rule("kexec_file_load", 320, 294, _KERNEL),
    Rule("init_module", 175, 105, _KERNEL),
    Rule("finit_module", 313, 273, _KERNEL),
    Rule("delete_module", 176, 106, _KERNEL),
    Rule("reboot", 169, 142, _KERNEL),
    Rule("swapon", 167, 224, _KERNEL),
    Rule("swapoff", 168, 225, _KERNEL),
    Rule("acct", 163, 89, _KERNEL),
    Rule("quotactl", 179, 60, _KERNEL),
    Rule("quotactl_fd", 443, 443, _KERNEL, errno.ENOSYS),
    Rule("syslog", 103, 116, _KERNEL),
    Rule("settimeofday", 164, 170, _KERNEL),
    Rule("clock_settime", 227, 112, _KERNEL),
    Rule("sethostname", 170, 161, _KERNEL),
    Rule("setdomainname", 171, 162, _KERNEL),
    Rule("iopl", 172, None, _KERNEL),
    Rule("ioperm", 173, None, _KERNEL),
    Rule("modify_ldt", 154, None, "has a record of vulnerabilities; only 16-bit programs need it"),
    Rule("vhangup", 153, 58, _KERNEL),
    Rule("fanotify_init", 300, 262, "watches files of others"),
    Rule("lookup_dcookie", 212, 18, _UNSEEN),
    Rule("name_to_handle_at", 303, 264, _UNSEEN),
    Rule("open_by_handle_at", 304, 265, _UNSEEN),
    Rule("memfd_create", 319, 279, _MEMORY, errno.ENOSYS),
    Rule("memfd_secret", 447, 447, _MEMORY, errno.ENOSYS),
    Rule("shmget", 29, 194, _MEMORY, errno.ENOSYS),
    Rule("msgget", 68, 186, _MEMORY, errno.ENOSYS),
    Rule("semget", 64, 190, _MEMORY, errno.ENOSYS),
    Rule("mq_open", 240, 180, _MEMORY, errno.ENOSYS),
    # Anonymous shared memory is kept as a whole as long as one page of it is mapped.
    Rule("mmap", 9, 222, _MEMORY, when=(Bits(3, MAP_ANONYMOUS), Bits(3, MAP_SHARED))),
    # A pipe or socket keeps a whole huge page for a few bytes of it, even when its file is gone. Programs fall back to
    # copying.
    Rule("vmsplice", 278, 75, _MEMORY, errno.ENOSYS),
    Rule("splice", 275, 76, _MEMORY, errno.EINVAL),
    Rule("sendfile", 40, 71, _MEMORY, errno.EINVAL),
    Rule("landlock_create_ruleset", 444, 444, _MEMORY, errno.ENOSYS),
    Rule("io_setup", 206, 0, "uses a resource that the whole machine shares", errno.ENOSYS),
    # The kernel itself also gives less than requested without an error.
    Rule("setsockopt", 54, 208, _MEMORY, IGNORED, when=(OneOf(1, (SOL_SOCKET,)), OneOf(2, BUFFERS))),
    Rule("migrate_pages", 256, 238, _KERNEL),
    Rule("move_pages", 279, 239, _KERNEL),
    Rule("socket", 41, 198, _MEMORY, errno.EPROTONOSUPPORT, when=(OneOf(0, INTERNET), OneOf(2, LARGE_PROTOCOLS))),
    # A socket in a folder works through a read-only mount; vsock reaches the host of a virtual machine from any network
    # namespace.
    Rule("socket", 41, 198, _OUTSIDE, errno.EAFNOSUPPORT, when=(NotOneOf(0, (AF_INET, AF_INET6, AF_NETLINK)),)),
    # A pair of datagram sockets can send to any socket in a folder.
    Rule("socketpair", 53, 199, _OUTSIDE, errno.EOPNOTSUPP, when=(NotOneOf(1, STREAMS, mask=0xF),)),
    Rule("ioctl", 16, 29, "types into a terminal, or loads a line discipline", when=(OneOf(1, TERMINAL_REQUESTS),)),
    Rule("fcntl", 72, 25, f"blocks other processes; or {_MEMORY}", when=(OneOf(1, (F_SETLEASE, F_SETPIPE_SZ)),)),
    Rule("chmod", 90, None, _SET_ID, when=(Bits(1, SET_ID_BITS),)),
    Rule("fchmod", 91, 52, _SET_ID, when=(Bits(1, SET_ID_BITS),)),
    Rule("fchmodat", 268, 53, _SET_ID, when=(Bits(2, SET_ID_BITS),)),
    Rule("fchmodat2", 452, 452, _SET_ID, when=(Bits(2, SET_ID_BITS),)),
    Rule("open", 2, None, _SET_ID, when=(Bits(1, MAKES_A_FILE), Bits(2, SET_ID_BITS))),
    Rule("creat", 85, None, _SET_ID, when=(Bits(1, SET_ID_BITS),)),
    Rule("openat", 257, 56, _SET_ID, when=(Bits(2, MAKES_A_FILE), Bits(3, SET_ID_BITS))),
    # Flags and mode are behind a pointer, as with clone3; libraries fall back to openat.
    Rule("openat2", 437, 437, _SET_ID, errno.ENOSYS),
    Rule("mknod", 133, None, _SET_ID, when=(Bits(1, SET_ID_BITS),)),
    Rule("mknodat", 259, 33, _SET_ID, when=(Bits(2, SET_ID_BITS),)),
)
"""All denied calls, with reasons; rules for one call follow each other."""

# Instructions of classic BPF: operation, and the jump distances if a comparison holds or fails.
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
Instruction: TypeAlias = tuple[int, int, int, int]


@cache
def filter_for(machine: Machine) -> bytes:
    """The filter as the kernel expects it: 8 bytes per instruction.

    >>> len(filter_for("x86_64")) % 8
    0
    """
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in _instructions(machine))


def _instructions(machine: Machine) -> Iterator[Instruction]:
    yield _load(_ARCH_AT)
    yield (_EQUAL, 1, 0, AUDIT_ARCH[machine])
    yield _return(KILL)
    yield _load(_NUMBER_AT)
    if machine == "x86_64":
        yield (_AT_LEAST, 0, 1, X32)
        yield _return(KILL)
    for number, rules in groupby(RULES, lambda rule: rule.number(machine)):
        if number is not None:
            body = [*chain.from_iterable(map(_rule_instructions, rules)), _return(ALLOW)]
            yield (_EQUAL, 0, len(body), number)
            yield from body
    yield _return(ALLOW)


def _rule_instructions(rule: Rule) -> Sequence[Instruction]:
    """The instructions for a call with the number of `rule`: a return, or the next instruction if it does not apply."""
    body: list[Instruction] = [_return(ERRNO | rule.error)]
    # Built from the end: a condition that holds continues with the next instruction; one that fails jumps past all.
    for condition in reversed(rule.when):
        body = [*_condition(condition, past=len(body)), *body]
    return body


def _condition(condition: Condition, *, past: int) -> list[Instruction]:
    """Continue with the next instruction if the condition holds, otherwise skip `past` of them.

    Only the lower half of an argument is compared: the kernel ignores the upper half of these.
    """
    load = _load(_ARGUMENTS_AT + 8 * condition.argument)
    match condition:
        case Bits(bits=bits):
            return [load, (_ANY_BIT, 0, past, bits)]
        case OneOf(values=values):
            last = len(values) - 1
            return [load, *((_EQUAL, last - at, 0 if at < last else past, value) for at, value in enumerate(values))]
        case NotOneOf(values=values, mask=mask):
            last = len(values) - 1
            compared = [(_EQUAL, past + last - at, 0, value) for at, value in enumerate(values)]
            return [load, (_AND, 0, 0, mask), *compared]


def _load(offset: int) -> Instruction:
    return (_LOAD, 0, 0, offset)


def _return(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)
