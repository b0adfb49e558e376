"""Resource limits of a program, as a command line for `prlimit`, which sets them and executes the sandbox.

All processes of the sandbox have the limits, not only the program: the program can write into the memory of every
process that it sees, so one without limits would be a way around them. No Python runs between fork and exec.
"""

from __future__ import annotations

import math
import resource

from retinue.core.ports import Program

OPEN_FILES = 1024
LOCKED_MEMORY = 64 * 1024
"""Bytes that a process may lock in memory."""
SHARED_MEMORY = 16 * 1024 * 1024
"""Bytes of /dev/shm."""


def prlimit_command(
    program: Program, *, prlimit: str, processes: int | None, reserved: int | None = None
) -> tuple[str, ...]:
    """The beginning of a command line that starts something within the program's limits.

    `processes` is None if the kernel would also count processes of others; their number is not limited then.
    `reserved` limits the address space instead of `program.memory`, if the memory use is watched elsewhere.

    >>> prlimit_command(Program(argv=("true",), folder="/"), prlimit="prlimit", processes=9)[-3:]
    ('--msgqueue=0', '--nproc=9', '--')
    """
    # By default the wall time: the limit holds for each process.
    cpu = program.cpu_seconds if program.cpu_seconds is not None else math.ceil(program.seconds) + 1
    limits = {
        "as": _within(resource.RLIMIT_AS, program.memory if reserved is None else reserved),
        "cpu": _within(resource.RLIMIT_CPU, cpu),
        # With less, the small files that the sandbox creates would not fit.
        "fsize": _within(resource.RLIMIT_FSIZE, max(program.file_size, 1024)),
        "nofile": _within(resource.RLIMIT_NOFILE, OPEN_FILES),
        # Not 0: if the machine pipes core dumps to a program, only a limit of 1 prevents that.
        "core": _within(resource.RLIMIT_CORE, 1),
        # Data that is sent without a copy counts here, a huge page like a small one.
        "memlock": _within(resource.RLIMIT_MEMLOCK, LOCKED_MEMORY),
        # No priority over other processes, even if the user may have it.
        "rtprio": 0,
        "nice": 0,
        "msgqueue": 0,
    }
    if processes is not None:
        limits["nproc"] = _within(resource.RLIMIT_NPROC, processes)
    return (prlimit, *(f"--{name}={amount}" for name, amount in limits.items()), "--")


def limit_processes(pid: int, processes: int) -> None:
    """Limit the number of processes of a user namespace through its first process, which is blocked meanwhile.

    The kernel (5.14 and newer) counts processes per user namespace.
    """
    allowed = _within(resource.RLIMIT_NPROC, processes)
    resource.prlimit(pid, resource.RLIMIT_NPROC, (allowed, allowed))


def _within(kind: int, amount: int) -> int:
    """`amount`, or the limit of this process if that is lower: it cannot be raised."""
    _, ours = resource.getrlimit(kind)
    return amount if ours == resource.RLIM_INFINITY else min(amount, ours)
