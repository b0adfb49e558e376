"""Which sandbox this machine has, found out by trying to get out of it; refuses if there is none that holds.

What starts programs is imported when it is needed, because it cannot be imported on every system.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, assert_never
from weakref import WeakKeyDictionary

from msgspec import Struct

from retinue.core.errors import RetinueError, SandboxUnavailable
from retinue.core.ports import Ended, Program, Sandbox
from retinue.sandbox.seccomp import MACHINES, Machine
from retinue.sandbox.subprocess import end_group, finish

HOW_TO_INSTALL = (
    "install bubblewrap (apt install bubblewrap, dnf install bubblewrap, pacman -S bubblewrap, "
    "apk add bubblewrap util-linux-misc)"
)
HOW_TO_ALLOW = (
    'allow programs to run without a sandbox, with every right of yours: sandbox = "off" in the section [tools] of '
    "the settings, or --no-sandbox"
)
INTRUDER = Path(__file__).with_name("escape_probe.py")
"""Read and never imported: it is a program for the inside."""
PROCESSES = 16
MEMORY = 256 * 1024 * 1024
SECONDS = 20.0


class Verdict(Struct, frozen=True):
    """What was found: a sandbox that holds, or why there is none. `text` is for people."""

    text: str
    sandbox: Sandbox | None = None


def choose(setting: Literal["required", "off"]) -> Sandbox:
    """The sandbox that the settings ask for; whether there is one is found out when the first program starts."""
    match setting:
        case "required":
            return Required()
        case "off":
            if sys.platform == "win32":
                return Required()
            from retinue.sandbox.none import NoSandbox

            return NoSandbox()
        case _:
            assert_never(setting)


class Required:
    """A `Sandbox` that starts programs in whatever holds on this machine, and refuses if nothing does."""

    async def run(self, program: Program) -> Ended:
        """Start the program, wait, and say how it ended; see `Sandbox`."""
        found = await verdict()
        if found.sandbox is None:
            raise SandboxUnavailable(f"nothing fences programs in here: {found.text}")
        return await found.sandbox.run(program)


_verdicts: list[Verdict] = []
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def verdict() -> Verdict:
    """What this machine has, tried once in the life of this process."""
    # One at a time: side by side, trials get in each other's way, and a sandbox that holds would be called broken.
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        if not _verdicts:
            _verdicts.append(await examined())
    return _verdicts[0]


async def examined(*, bwrap: str | None = None, python: str = sys.executable) -> Verdict:
    """What this machine has, tried now: `bwrap` where it is named or else found, attacked from within by `python`."""
    if sys.platform == "win32":
        return Verdict("programs for agents cannot be started on Windows, with or without a sandbox")
    machine = _machine()
    if sys.platform != "linux" or machine is None:
        return Verdict(f"retinue knows none for {platform.system()} on {platform.machine()}; {HOW_TO_ALLOW}")
    bwrap, prlimit = bwrap or shutil.which("bwrap"), shutil.which("prlimit")
    if bwrap is None:
        return Verdict(f"bubblewrap is not installed; {HOW_TO_INSTALL}, or {HOW_TO_ALLOW}")
    if prlimit is None:
        return Verdict(f"prlimit, a part of util-linux, is not installed; install it, or {HOW_TO_ALLOW}")
    from retinue.sandbox.bubblewrap import Bubblewrap

    try:
        by_descriptor = "--ro-bind-fd" in await _help(bwrap)
        sandbox = Bubblewrap(bwrap=bwrap, prlimit=prlimit, machine=machine, by_descriptor=by_descriptor)
        tried, complaint = await attacked(sandbox, python)
    except (RetinueError, OSError) as error:
        return _broken(f"{error}; it needs user namespaces, which this system may have switched off")
    if complaint:
        return _broken(complaint)
    return Verdict(f"bubblewrap holds: none of {tried} attempts to get out succeeded", sandbox)


def _broken(complaint: str) -> Verdict:
    return Verdict(f"bubblewrap is installed and does not hold: {complaint}. Mend that, or {HOW_TO_ALLOW}")


async def attacked(sandbox: Sandbox, python: str = sys.executable) -> tuple[int, str]:
    """How many attempts to get out of a sandbox were made, and what is wrong with it; no words if it holds."""
    with _arena() as (folder, facts):
        ended = await sandbox.run(_intrusion(folder, facts, python))
        if not (folder / "work" / "allowed").exists():
            words = ended.stderr.decode("utf-8", "replace").strip().splitlines()
            return 0, f"a program could not do what it may ({words[-1] if words else f'exit code {ended.code}'})"
        if ended.code != 0:
            return 0, f"the attempts ended with exit code {ended.code}"
    report = json.loads(ended.stdout)
    return report["tried"], f"a program could {', '.join(report['done'])}" if report["done"] else ""


def _intrusion(folder: Path, facts: dict[str, str | int], python: str) -> Program:
    return Program(
        argv=(os.path.realpath(python), "-I", "-S", "-", json.dumps(facts)),
        folder=str(folder / "work"),
        readable=(_installation(python), str(folder / "read")),
        writable=(str(folder / "work"),),
        hidden=(str(folder / "work" / "state"),),
        stdin=INTRUDER.read_bytes(),
        seconds=SECONDS,
        processes=PROCESSES,
        memory=MEMORY,
    )


@contextmanager
def _arena() -> Generator[tuple[Path, dict[str, str | int]]]:
    """Things that a program must not reach, and what it has to know to try."""
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
    process = await asyncio.to_thread(
        subprocess.Popen,
        [bwrap, "--help"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        start_new_session=True,
    )
    ended = await finish(process, Program(argv=(bwrap,), folder="/", seconds=SECONDS), partial(end_group, process))
    return ended.stdout.decode("utf-8", "replace")


def _installation(python: str) -> str:
    """The folder that an interpreter needs to start: the one above its `bin`, also for one behind a virtualenv."""
    return str(Path(os.path.realpath(python)).parent.parent)


def _machine() -> Machine | None:
    return next((each for each in MACHINES if each == platform.machine()), None)
