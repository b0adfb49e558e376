"""How much a program may use, as words for `prlimit`, which sets it and becomes what fences the program in.

Everything in the sandbox has the limits, and not only the program: it can write into the memory of every process that
it sees, and one without limits would be a way around them. No Python runs between fork and exec.
"""

from __future__ import annotations

import math
import resource

from retinue.core.ports import Program

OPEN_FILES = 1024
LOCKED_MEMORY = 64 * 1024
"""Bytes that stay in memory whatever happens."""
SHARED_MEMORY = 16 * 1024 * 1024
"""Bytes of /dev/shm."""


def limited(program: Program, *, prlimit: str, processes: int | None, reserved: int | None = None) -> tuple[str, ...]:
    """The words in front of those that start something within the program's limits.

    `processes` is None where the kernel would count those of others too; then their number is not limited here.
    `reserved` are bytes of address space where somebody else watches the memory that is used.

    >>> limited(Program(argv=("true",), folder="/"), prlimit="prlimit", processes=9)[-3:]
    ('--msgqueue=0', '--nproc=9', '--')
    """
    # A program that may run for a minute cannot use more than that on one core; more cores need more processes.
    cpu = program.cpu_seconds if program.cpu_seconds is not None else math.ceil(program.seconds) + 1
    limits = {
        "as": _within(resource.RLIMIT_AS, program.memory if reserved is None else reserved),
        "cpu": _within(resource.RLIMIT_CPU, cpu),
        # Less, and the few lines that the sandbox makes up for itself would not fit.
        "fsize": _within(resource.RLIMIT_FSIZE, max(program.file_size, 1024)),
        "nofile": _within(resource.RLIMIT_NOFILE, OPEN_FILES),
        # Not 0: where a program of the machine collects what is left of crashed ones, only 1 keeps it from coming.
        "core": _within(resource.RLIMIT_CORE, 1),
        # What is sent without being copied counts here, a huge page as a small one.
        "memlock": _within(resource.RLIMIT_MEMLOCK, LOCKED_MEMORY),
        # No precedence over anybody else's processes, also where the user may have it.
        "rtprio": 0,
        "nice": 0,
        "msgqueue": 0,
    }
    if processes is not None:
        limits["nproc"] = _within(resource.RLIMIT_NPROC, processes)
    return (prlimit, *(f"--{name}={amount}" for name, amount in limits.items()), "--")


def limit_processes(pid: int, processes: int) -> None:
    """Limit the number of processes of a namespace, by its first one, which waits.

    Only there, in a user namespace of its own, does the kernel (5.14 and newer) count these alone.
    """
    allowed = _within(resource.RLIMIT_NPROC, processes)
    resource.prlimit(pid, resource.RLIMIT_NPROC, (allowed, allowed))


def _within(kind: int, amount: int) -> int:
    """Our own limit where that is lower: nobody may raise it."""
    _, ours = resource.getrlimit(kind)
    return amount if ours == resource.RLIM_INFINITY else min(amount, ours)
