"""The sandbox port: runs a program for an agent within limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import IO, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct


class Program(Struct, frozen=True, kw_only=True):
    """A command with the files it may access and the resources it may use.

    Access is denied by default: the program sees the folders in `readable` and `writable` without the `hidden` paths
    inside them, the variables in `environment`, and the network only if granted. `folder` is its working directory,
    inside one of the folders. Paths are absolute and resolved by the caller.

    `descriptors` has, for paths of these fields, the number of a descriptor (`O_PATH`) of exactly the folder or file
    that was decided on, open until the program has ended. A sandbox that can mount descriptors does not open the path
    again: another folder may have its name by now.

    `files` are files that the sandbox makes for the program, read-only: their paths, in its private /tmp, and their
    contents. A sandbox without a private /tmp ignores them.
    """

    argv: tuple[str, ...]
    folder: str
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    descriptors: Mapping[str, int] = {}
    files: Mapping[str, bytes] = {}
    environment: Mapping[str, str] = {}
    stdin: bytes = b""
    network: bool = False
    seconds: float = 60.0
    """Wall time; after it the program and all its children are killed."""
    cpu_seconds: int | None = None
    memory: int = 512 * 1024 * 1024
    """Bytes of memory of all its processes together, /tmp included."""
    memory_of_all: int | None = None
    """Bytes of memory of all programs that this process runs at the same time; None is no limit."""
    reserved: int | None = None
    """Bytes of address space of each process; None means `memory`. Ignored by a sandbox that cannot measure memory use,
    which applies `memory` instead.
    """
    processes: int = 64
    file_size: int = 64 * 1024 * 1024
    scratch: int = 64 * 1024 * 1024
    """Size in bytes of its private /tmp."""
    max_output: int = 1024 * 1024
    """Bytes kept of stdout, and of stderr; the rest is read and discarded."""


class Ended(Struct, frozen=True, kw_only=True):
    """How a program ended. `code` is the exit code, or the negative number of the signal that ended it."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    cut: bool = False
    """Whether output was discarded."""
    killed_for: str = ""
    """Why the sandbox killed it, as a message for the caller; empty if it did not, or because of the time limit."""


class Sandbox(Protocol):
    """Runs untrusted programs.

    When cancelled, `run` kills the program with everything that it started, and re-raises. It raises
    `SandboxUnavailable` if this machine has no working sandbox, with a message that says what to install or to allow;
    it never runs a program with less protection than promised.
    """

    async def run(self, program: Program) -> Ended:
        """Start the program and wait for its end."""
        ...


Talk: TypeAlias = Callable[[IO[bytes], IO[bytes]], Awaitable[None]]
"""Talks to a running program: writes to its stdin, the first pipe, and reads its stdout, the second; both are
non-blocking. It closes neither. When it returns, the program is killed; when the program ends, it reads the end.
"""


@runtime_checkable
class InteractiveSandbox(Sandbox, Protocol):
    """A sandbox that also runs programs which are talked to while they run."""

    async def converse(self, program: Program, talk: Talk) -> Ended:
        """Start the program, talk to it, and wait for the end of both; `program.stdin` is not used."""
        ...
