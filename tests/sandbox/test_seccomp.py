"""The system call filter: its bytes, run by a small interpreter, for both machines."""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from itertools import groupby

import pytest

from retinue.sandbox.seccomp import (
    ALLOW,
    AUDIT_ARCH,
    ERRNO,
    KILL,
    MACHINES,
    NEW_NAMESPACES,
    RULES,
    X32,
    Bits,
    Machine,
    NotOneOf,
    OneOf,
    Rule,
    filter_for,
)

NUMBERS: dict[Machine, dict[str, int]] = {
    "x86_64": {
        **{"read": 0, "socket": 41, "socketpair": 53, "clone": 56, "openat": 257, "ioctl": 16, "fchmodat": 268},
        **{"mmap": 9, "setsockopt": 54, "fcntl": 72},
    },
    "aarch64": {
        **{"read": 63, "socket": 198, "socketpair": 199, "clone": 220, "openat": 56, "ioctl": 29, "fchmodat": 53},
        **{"mmap": 222, "setsockopt": 208, "fcntl": 25},
    },
}
O_CREAT, O_CLOEXEC, O_TMPFILE = 0o100, 0o2000000, 0o20200000
AF_UNIX, AF_INET, AF_VSOCK = 1, 2, 40
SOCK_STREAM, SOCK_DGRAM, SOCK_CLOEXEC = 1, 2, 0o2000000
CLONE_VM, CLONE_FILES = 0x100, 0x400
MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS = 0x01, 0x02, 0x20
THREAD = 0x003D0F00
"""The flags with which glibc starts threads."""


def answer(machine: Machine, number: int, *arguments: int, arch: int | None = None) -> int:
    """The result of the filter for a call, run as the kernel runs it."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    call = struct.pack("<IIQ6Q", number, AUDIT_ARCH[machine] if arch is None else arch, 0, *padded)
    code = filter_for(machine)
    program = [struct.unpack_from("<HBBI", code, at) for at in range(0, len(code), 8)]
    at, register = 0, 0
    while True:
        operation, if_true, if_false, value = program[at]
        at += 1
        match operation:
            case 0x20:  # load a word of the call
                (register,) = struct.unpack_from("<I", call, value)
            case 0x54:  # and
                register &= value
            case 0x15:  # equal
                at += if_true if register == value else if_false
            case 0x35:  # at least
                at += if_true if register >= value else if_false
            case 0x45:  # any bit
                at += if_true if register & value else if_false
            case 0x06:
                return value
            case _:
                raise AssertionError(f"an instruction that the filter should not need: {operation:#x}")


def arguments_that_hit(rule: Rule) -> Sequence[int]:
    arguments = [0] * 6
    for condition in rule.when:
        match condition:
            case Bits(argument=at, bits=bits):
                arguments[at] |= bits & -bits
            case OneOf(argument=at, values=values):
                arguments[at] = values[-1]
            case NotOneOf(argument=at, values=values, mask=mask):
                arguments[at] = next(value for value in range(mask + 1) if value & mask not in values)
    return arguments


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_denied_call_fails_with_its_error(machine: Machine, rule: Rule) -> None:
    number = rule.number(machine)
    if number is None:
        assert machine == "aarch64"
        return

    assert answer(machine, number, *arguments_that_hit(rule)) == ERRNO | rule.error
    if any(isinstance(condition, Bits | OneOf) for condition in rule.when):
        harmless = [AF_INET] if rule.name == "socket" else []  # another rule denies a family of 0
        assert answer(machine, number, *harmless) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_every_other_call_is_allowed(machine: Machine) -> None:
    denied = {rule.number(machine) for rule in RULES}

    answers = {answer(machine, number) for number in range(600) if number not in denied}

    assert answers == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("clone", [THREAD], ALLOW),
        ("clone", [17], ALLOW),
        *(("clone", [17 | 1 << bit], ERRNO | errno.EPERM) for bit in range(32) if NEW_NAMESPACES & 1 << bit),
        ("clone", [17 | CLONE_VM | CLONE_FILES], ALLOW),
        ("clone", [THREAD & ~CLONE_FILES], ERRNO | errno.EPERM),
        ("mmap", [0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS], ALLOW),
        ("mmap", [0, 4096, 3, MAP_SHARED], ALLOW),
        ("mmap", [0, 4096, 3, MAP_SHARED | MAP_ANONYMOUS], ERRNO | errno.EPERM),
        # The program gets no error.
        ("setsockopt", [3, 1, 7], ERRNO),
        ("setsockopt", [3, 1, 2], ALLOW),
        ("setsockopt", [3, 6, 7], ALLOW),
        ("fcntl", [3, 1024], ERRNO | errno.EPERM),
        ("fcntl", [3, 1030], ALLOW),
        ("socket", [AF_INET, SOCK_STREAM], ALLOW),
        ("socket", [AF_UNIX, SOCK_STREAM], ERRNO | errno.EAFNOSUPPORT),
        ("socket", [AF_VSOCK, SOCK_STREAM], ERRNO | errno.EAFNOSUPPORT),
        # The kernel uses half of the argument, and so must the filter.
        ("socket", [1 << 32 | AF_UNIX, SOCK_STREAM], ERRNO | errno.EAFNOSUPPORT),
        ("socketpair", [AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC], ALLOW),
        ("socketpair", [AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC], ERRNO | errno.EOPNOTSUPP),
        ("ioctl", [0, 0x5401], ALLOW),
        ("ioctl", [0, 0x5412], ERRNO | errno.EPERM),
        ("ioctl", [0, 0x541C], ERRNO | errno.EPERM),
        ("ioctl", [0, 0x5423], ERRNO | errno.EPERM),
        ("fchmodat", [0, 0, 0o755], ALLOW),
        ("fchmodat", [0, 0, 0o4755], ERRNO | errno.EPERM),
        ("fchmodat", [0, 0, 0o2755], ERRNO | errno.EPERM),
        ("openat", [0, 0, O_CREAT, 0o644], ALLOW),
        # Without a file to create, the mode argument is undefined.
        ("openat", [0, 0, O_CLOEXEC, 0o6777], ALLOW),
        ("openat", [0, 0, O_CREAT | O_CLOEXEC, 0o4755], ERRNO | errno.EPERM),
        ("openat", [0, 0, O_TMPFILE, 0o2755], ERRNO | errno.EPERM),
    ],
)
def test_conditions_on_arguments_decide(machine: Machine, name: str, arguments: list[int], expected: int) -> None:
    assert answer(machine, NUMBERS[machine][name], *arguments) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_a_foreign_abi_kill(machine: Machine) -> None:
    i386 = 0x40000003
    (other,) = (AUDIT_ARCH[each] for each in MACHINES if each != machine)

    assert [answer(machine, NUMBERS[machine]["read"], arch=arch) for arch in (i386, other)] == [KILL, KILL]


def test_calls_by_x32_numbers_kill() -> None:
    assert [answer("x86_64", X32 + number) for number in (0, 39, 520, 547)] == [KILL] * 4


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_is_within_the_kernel_limit(machine: Machine) -> None:
    assert len(filter_for(machine)) // 8 < 4096


def test_each_rule_is_unique_and_has_a_reason() -> None:
    assert len({(rule.name, rule.when) for rule in RULES}) == len(RULES)
    assert len([name for name, _ in groupby(rule.name for rule in RULES)]) == len({rule.name for rule in RULES})
    for machine in MACHINES:
        numbers = {rule.name: rule.number(machine) for rule in RULES if rule.number(machine) is not None}
        assert len(set(numbers.values())) == len(numbers)
    assert all(rule.why for rule in RULES)
