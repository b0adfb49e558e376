"""Find out whether the sandbox of this machine works, by trying to escape from it.

Modules that start programs are imported when they are needed, because some systems cannot import them.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import secrets
import socket
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, assert_never
from weakref import WeakKeyDictionary

from msgspec import Struct

from retinue.core.errors import RetinueError, SandboxUnavailable
from retinue.core.ports import Ended, InteractiveSandbox, Program, Sandbox, Talk
from retinue.local.programs import FoundProgram, find_program, why_untrusted
from retinue.sandbox.seccomp import MACHINES, Machine
from retinue.sandbox.subprocess import end_group, finish, start

HOW_TO_INSTALL = (
    "install bubblewrap (apt install bubblewrap, dnf install bubblewrap, pacman -S bubblewrap, "
    "apk add bubblewrap util-linux-misc)"
)
HOW_TO_ALLOW = (
    'allow programs to run without a sandbox, with every right of yours: sandbox = "off" in the section [tools] of '
    "the settings, or --no-sandbox"
)
ESCAPE_PROBE = Path(__file__).with_name("escape_probe.py")
"""Read and never imported: it is a program that runs inside the sandbox."""
PROCESSES = 16
MEMORY = 256 * 1024 * 1024
SECONDS = 20.0


class ProbeResult(Struct, frozen=True):
    """A working sandbox, or None with the reason; `text` is the message for users."""

    text: str
    sandbox: InteractiveSandbox | None = None
    programs: tuple[FoundProgram, ...] = ()
    """The programs that it consists of, or that were looked for."""


def choose(setting: Literal["required", "off"], *, agents_write: Sequence[str] = ()) -> Sandbox:
    """The configured sandbox; a required one is probed when the first program starts.

    Its programs are not taken from `agents_write`, the folders in which agents may write.
    """
    match setting:
        case "required":
            return RequiredSandbox(agents_write)
        case "off":
            if sys.platform == "win32":
                return RequiredSandbox()
            from retinue.sandbox.none import NoSandbox

            return NoSandbox(agents_write)
        case _:
            assert_never(setting)


class RequiredSandbox:
    """A `Sandbox` that uses the one that works on this machine, and raises `SandboxUnavailable` if none does."""

    def __init__(self, agents_write: Sequence[str] = ()) -> None:
        self._agents_write = tuple(agents_write)

    async def run(self, program: Program) -> Ended:
        return await (await self._working(program)).run(program)

    async def converse(self, program: Program, talk: Talk) -> Ended:
        return await (await self._working(program)).converse(program, talk)

    async def _working(self, program: Program) -> InteractiveSandbox:
        probed = await sandbox_verdict((*self._agents_write, *program.writable))
        if probed.sandbox is None:
            raise SandboxUnavailable(f"nothing fences programs in here: {probed.text}")
        return probed.sandbox


_verdicts: list[ProbeResult] = []
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def sandbox_verdict(agents_write: Sequence[str] = ()) -> ProbeResult:
    """The sandbox of this machine, probed once per process, with programs that are outside `agents_write`."""
    # One at a time: concurrent probes disturb each other, and a working sandbox would be reported as broken.
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        usable = (each for each in _verdicts if not any(_lies_in(program, agents_write) for program in each.programs))
        found = next(usable, None)
        if found is None:
            found = await examine(agents_write=agents_write)
            _verdicts.append(found)
    return found


def _lies_in(program: FoundProgram, agents_write: Sequence[str]) -> bool:
    return bool(program.path) and bool(why_untrusted(program.path, agents_write=agents_write))


async def examine(
    *, bwrap: str | None = None, python: str = sys.executable, agents_write: Sequence[str] = ()
) -> ProbeResult:
    """Probe the sandbox of this machine with the escape probe, run by `python`; `bwrap` is looked for by default."""
    if sys.platform == "win32":
        return ProbeResult("programs for agents cannot be started on Windows, with or without a sandbox")
    if sys.platform == "darwin":
        return await _examine_seatbelt()
    machine: Machine | None = next((each for each in MACHINES if each == platform.machine()), None)
    if sys.platform != "linux" or machine is None:
        return ProbeResult(f"retinue knows none for {platform.system()} on {platform.machine()}; {HOW_TO_ALLOW}")
    folders = (os.getcwd(), *agents_write)
    programs = (
        find_program("bwrap", agents_write=folders) if bwrap is None else FoundProgram("bwrap", bwrap),
        find_program("prlimit", agents_write=folders),
    )
    bwrap, prlimit = (program.path for program in programs)
    passed_over = "".join(f"; {reason}" for program in programs if not program.path for reason in program.passed_over)
    if not bwrap:
        text = f"bubblewrap is not installed{passed_over}; {HOW_TO_INSTALL}, or {HOW_TO_ALLOW}"
        return ProbeResult(text, programs=programs)
    if not prlimit:
        text = f"prlimit, a part of util-linux, is not installed{passed_over}; install it, or {HOW_TO_ALLOW}"
        return ProbeResult(text, programs=programs)
    from retinue.sandbox.bubblewrap import Bubblewrap

    try:
        by_descriptor = "--ro-bind-fd" in await _help(bwrap)
        sandbox = Bubblewrap(bwrap=bwrap, prlimit=prlimit, machine=machine, by_descriptor=by_descriptor)
        tried, error = await attack(sandbox, python)
    except (RetinueError, OSError) as failure:
        return _broken(f"{failure}; it needs user namespaces, which this system may have switched off")
    if error:
        return _broken(error)
    return ProbeResult(f"bubblewrap holds: none of {tried} attempts to get out succeeded", sandbox, programs)


async def _examine_seatbelt() -> ProbeResult:
    """Probe Seatbelt, the sandbox of macOS."""
    from retinue.sandbox.seatbelt import SANDBOX_EXEC, Seatbelt
    from retinue.sandbox.seatbelt import attack as attack_seatbelt

    program = FoundProgram("sandbox-exec", SANDBOX_EXEC if os.access(SANDBOX_EXEC, os.X_OK) else "")
    if not program.path:
        return ProbeResult(f"{SANDBOX_EXEC} is not there; {HOW_TO_ALLOW}", programs=(program,))
    sandbox = Seatbelt()
    try:
        error = await attack_seatbelt(sandbox)
    except (RetinueError, OSError) as failure:
        error = str(failure)
    if error:
        return ProbeResult(f"sandbox-exec does not hold: {error}. Report that, or {HOW_TO_ALLOW}", programs=(program,))
    return ProbeResult("sandbox-exec holds: no attempt to get out succeeded", sandbox, (program,))


def _broken(error: str) -> ProbeResult:
    return ProbeResult(f"bubblewrap is installed and does not hold: {error}. Mend that, or {HOW_TO_ALLOW}")


async def attack(sandbox: Sandbox, python: str = sys.executable) -> tuple[int, str]:
    """The number of escape attempts made in a sandbox, and its defects; empty if there are none."""
    with _arena() as (folder, facts):
        ended = await sandbox.run(_escape_program(folder, facts, python))
        if not (folder / "work" / "allowed").exists():
            lines = ended.stderr.decode("utf-8", "replace").strip().splitlines()
            return 0, f"a program could not do what it may ({lines[-1] if lines else f'exit code {ended.code}'})"
        if ended.code != 0:
            return 0, f"the attempts ended with exit code {ended.code}"
    report = json.loads(ended.stdout)
    return report["tried"], f"a program could {', '.join(report['done'])}" if report["done"] else ""


def _escape_program(folder: Path, facts: dict[str, str | int], python: str) -> Program:
    return Program(
        argv=(os.path.realpath(python), "-I", "-S", "-", json.dumps(facts)),
        folder=str(folder / "work"),
        readable=(_installation(python), str(folder / "read")),
        writable=(str(folder / "work"),),
        hidden=(str(folder / "work" / "state"),),
        stdin=ESCAPE_PROBE.read_bytes(),
        seconds=SECONDS,
        processes=PROCESSES,
        memory=MEMORY,
    )


@contextmanager
def _arena() -> Generator[tuple[Path, dict[str, str | int]]]:
    """A folder with things that a program must not reach, and the facts that the escape probe needs to try."""
    with (
        tempfile.TemporaryDirectory(prefix="retinue-probe-") as name,
        socket.create_server(("127.0.0.1", 0)) as port,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        folder = Path(name).resolve()
        title = f"retinue-probe-{secrets.token_hex(8)}"
        abstract.bind("\0" + title)
        abstract.listen()
        for path in ("secret", "work/state/key", "read/file"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text("secret")
        yield (
            folder,
            {
                "secret": str(folder / "secret"),
                "up": "../secret",
                "hidden": str(folder / "work" / "state" / "key"),
                "read_only": str(folder / "read" / "file"),
                "allowed": str(folder / "work" / "allowed"),
                "pid": os.getpid(),
                "command": Path("/proc/self/cmdline").read_bytes().hex(),
                "port": port.getsockname()[1],
                "abstract": title,
                "processes": PROCESSES,
                "memory": MEMORY,
            },
        )


async def _help(bwrap: str) -> str:
    process = await asyncio.to_thread(start, [bwrap, "--help"], env={})
    ended = await finish(process, Program(argv=(bwrap,), folder="/", seconds=SECONDS), partial(end_group, process))
    return ended.stdout.decode("utf-8", "replace")


def _installation(python: str) -> str:
    """The installation folder of an interpreter, also of one behind a virtualenv."""
    return str(Path(os.path.realpath(python)).parent.parent)
