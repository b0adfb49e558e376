"""Run programs under Seatbelt of macOS: `sandbox-exec` with a profile of the granted folders.

Written from what is published about the profile language, and tested by the text of its profiles: it was never tried on
a real Mac. So it is used only after `attack` has tried to get out of it and has not succeeded.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from retinue.core.errors import ToolError
from retinue.core.ports import Ended, Program, Talk
from retinue.sandbox.guardian import GUARDIAN
from retinue.sandbox.subprocess import end_group, finish, start

SANDBOX_EXEC = "/usr/bin/sandbox-exec"
DRAIN_SECONDS = 1.0
SYSTEM = (
    *("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec", "/usr/share", "/usr/local"),
    *("/System/Library", "/System/Cryptexes", "/Library/Apple", "/Library/Developer/CommandLineTools"),
    *("/Applications/Xcode.app", "/opt/homebrew", "/nix/store", "/private/etc/ssl", "/private/var/db/timezone"),
)
"""Folders of the system that programs need, which have no files of the user."""
FILES = ("/private/etc/localtime", "/private/etc/resolv.conf", "/private/etc/hosts", "/private/var/select/sh")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/dtracehelper", "/dev/tty")


class Seatbelt:
    """A `Sandbox` that starts `sandbox-exec`.

    A program reads the system and its granted folders, writes its writable ones and a temporary folder of its own, and
    has no network, not even its own loopback, unless granted. It sees that other files exist, and not what is in them.
    Memory and the number of processes are not limited: macOS has no such limit for a tree of processes. A process that
    leaves the program's group outlives it, inside the same sandbox.
    """

    def __init__(self, *, sandbox_exec: str = SANDBOX_EXEC) -> None:
        self._sandbox_exec = sandbox_exec

    async def run(self, program: Program) -> Ended:
        return await self._run(program, None)

    async def converse(self, program: Program, talk: Talk) -> Ended:
        return await self._run(replace(program, stdin=b""), talk)

    async def _run(self, program: Program, talk: Talk | None) -> Ended:
        own = _real(tempfile.mkdtemp(prefix="retinue-program-"))
        try:
            process = self._start(_with_own_folder(program, own), own)
            GUARDIAN.add(-process.pid)
            try:
                kill = partial(end_group, process)
                return await finish(process, program, kill, drain_seconds=DRAIN_SECONDS, talk=talk)
            finally:
                GUARDIAN.remove(-process.pid)
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def _start(self, program: Program, own: str) -> subprocess.Popen[bytes]:
        argv = [self._sandbox_exec, "-p", profile(program, own), *program.argv]
        try:
            return start(argv, env=program.environment, cwd=program.folder)
        except (OSError, ValueError) as error:
            raise ToolError(f"{program.argv[0]} could not be started: {error}") from error


ESCAPES = """
echo done > allowed
cat ../secret
echo escaped > ../escaped
cat state/key
echo changed > read-only/file
/usr/bin/nc -z -w 2 127.0.0.1 "$1" && echo reached
true
"""
"""What a program tries, in a folder that it may write."""


async def attack(sandbox: Seatbelt) -> str:
    """What a program could do in the sandbox although it may not; empty if it could do nothing of the kind."""
    with (
        tempfile.TemporaryDirectory(prefix="retinue-probe-") as name,
        socket.create_server(("127.0.0.1", 0)) as port,
    ):
        folder = Path(_real(name))
        for path in ("secret", "work/state/key", "work/read-only/file"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text("secret")
        ended = await sandbox.run(
            Program(
                argv=("/bin/sh", "-c", ESCAPES, "sh", str(port.getsockname()[1])),
                folder=str(folder / "work"),
                readable=(str(folder / "work" / "read-only"),),
                writable=(str(folder / "work"),),
                hidden=(str(folder / "work" / "state"),),
                environment={"PATH": "/usr/bin:/bin"},
                seconds=20.0,
            )
        )
        if not (folder / "work" / "allowed").exists():
            lines = ended.stderr.decode("utf-8", "replace").strip().splitlines()
            return f"a program could not do what it may ({lines[-1] if lines else f'exit code {ended.code}'})"
        printed = ended.stdout.decode("utf-8", "replace")
        could = [
            *(["read files outside its folders"] if "secret" in printed else []),
            *(["write outside its folders"] if (folder / "escaped").exists() else []),
            *(["write to a read-only file"] if (folder / "work/read-only/file").read_text() != "secret" else []),
            *(["reach this machine over the network"] if "reached" in printed else []),
        ]
    return f"a program could {', '.join(could)}" if could else ""


def _real(path: str) -> str:
    """The path without links: rules are compared with real paths, and /tmp is a link on macOS."""
    return os.path.realpath(path)


def _with_own_folder(program: Program, own: str) -> Program:
    """The program with its /tmp replaced by a folder of its own, in its variables and generated files."""

    def there(path: str) -> str:
        return own + path.removeprefix("/tmp") if path == "/tmp" or path.startswith("/tmp/") else path

    for path, content in program.files.items():
        os.makedirs(os.path.dirname(there(path)), exist_ok=True)
        with open(there(path), "wb") as file:
            file.write(content)
    environment = dict(program.environment)
    for name in ("HOME", "TMPDIR"):
        if name in environment:
            environment[name] = there(environment[name])
    return replace(program, environment=environment)


def profile(program: Program, own: str) -> str:
    """The Seatbelt profile of a program; `own` is its temporary folder. The last rule that fits a file holds."""
    return "\n".join(_rules(program, own)) + "\n"


def _rules(program: Program, own: str) -> Iterator[str]:
    yield "(version 1)"
    yield "(deny default)"
    yield "(allow process-exec process-fork)"
    yield "(allow signal (target same-sandbox))"
    yield "(allow process-info* (target same-sandbox))"
    yield "(allow sysctl-read)"
    yield '(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))'
    yield "(allow file-read-metadata)"
    yield f'(allow file-read* (literal "/") {_filters((*SYSTEM, own))} {_filters(FILES, "literal")})'
    yield f"(allow file-read* file-write-data file-ioctl {_filters(DEVICES, 'literal')})"
    if granted := (*program.readable, *program.writable):
        yield f"(allow file-read* {_filters(granted)})"
    yield f"(allow file-write* {_filters((*program.writable, own))})"
    if read_only := [path for path in program.readable if _is_inside(path, program.writable)]:
        yield f"(deny file-write* {_filters(read_only)})"
    if program.hidden:
        yield f"(deny file-read* file-write* {_filters(program.hidden)})"
    if program.network:
        yield "(allow network*)"
        yield "(allow system-socket)"
        yield '(allow mach-lookup (global-name "com.apple.SystemConfiguration.configd"))'


def _filters(paths: Iterable[str], kind: str = "subpath") -> str:
    return " ".join(f"({kind} {quoted(path)})" for path in dict.fromkeys(paths))


def quoted(path: str) -> str:
    r"""A path as a string of the profile language; raises `ToolError` for one with control characters.

    >>> print(quoted('/a "b" \\ c'))
    "/a \"b\" \\ c"
    """
    if any(ord(char) < 32 or ord(char) == 127 for char in path):
        raise ToolError("a folder whose name has control characters cannot be granted to a program")
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _is_inside(path: str, roots: Iterable[str]) -> bool:
    return any(path.startswith(root.rstrip("/") + "/") for root in roots)
