"""A program to be started for an agent, and what came of it; how it is fenced in is the sandbox's business."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct


class Program(Struct, frozen=True, kw_only=True):
    """What to start, what it may see, and how much it may use.

    Everything that is not named here is closed: `readable` and `writable` folders, `hidden` paths inside them (they
    win), the variables in `environment` and no others, no network unless granted. `folder` is where it starts and lies
    in one of the folders. Paths are absolute and as the caller resolved them.
    """

    argv: tuple[str, ...]
    folder: str
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    stdin: bytes = b""
    network: bool = False
    seconds: float = 60.0
    """Wall time; after it the program and all its children are killed."""
    cpu_seconds: int | None = None
    memory: int = 512 * 1024 * 1024
    """Bytes of memory that all its processes use together, /tmp included."""
    reserved: int | None = None
    """Bytes of address space of each process, used or not; None for no more than `memory`.

    A sandbox that does not see how much memory is used takes `memory` in any case.
    """
    processes: int = 64
    file_size: int = 64 * 1024 * 1024
    scratch: int = 64 * 1024 * 1024
    """Bytes of its own empty /tmp."""
    max_output: int = 1024 * 1024
    """Bytes of stdout, and of stderr, that are kept; the rest is read and thrown away."""


class Ended(Struct, frozen=True, kw_only=True):
    """How a program ended. `code` is negative for a signal, as Python has it."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    cut: bool = False
    """More was printed than was kept."""
    killed_for: str = ""
    """Why the sandbox killed it, in words for whoever started it; nothing if it did not, or for its time."""


class Sandbox(Protocol):
    """Where programs run that nobody vouches for.

    `run` starts the program and waits for its end. Being cancelled, it kills the program and everything that the
    program started, and lets the cancellation through. It raises `SandboxUnavailable` where nothing here fences
    programs in, with words that say what to install or what to allow; it never runs a program with less protection than
    was promised.
    """

    async def run(self, program: Program) -> Ended:
        """Start the program, wait, and say how it ended."""
