"""Targets of escape attempts: a folder with secrets, listening sockets, a neighbouring process.

Run as a program (`python -m tests.sandbox.arena user`) it makes every attempt twice, without and within the sandbox, as
the named user, and prints a `Report`. If it fails, its exit code is not 0 and standard error has the reason.

The ordinary user need not be able to read the checkout, its environment or this Python: what it needs is read before
root's privileges are dropped.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.errors import RetinueError, ToolError
from retinue.core.ports import Program, Sandbox
from retinue.sandbox import probe
from retinue.sandbox.bubblewrap import Bubblewrap
from tests.sandbox import attempts

ORDINARY = 54321
"""An ordinary user's number, for tests that are run by root."""
BASE = "/var/tmp"
"""Not /tmp: the sandbox has its own, and would hide everything there without further merit."""
TOKEN = "the-secret-of-the-arena"
VARIABLE = "RETINUE_TEST_SECRET"
PROGRAM = Path(attempts.__file__).read_bytes()
MANY = 150
MEGABYTE = 1024 * 1024

NEIGHBOUR = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)
marker = ctypes.create_string_buffer(sys.argv[1].encode())
print(ctypes.addressof(marker), flush=True)
time.sleep(60)
"""

SPECIAL: dict[str, dict[str, Any]] = {
    "have_much_memory_in_many_processes": {"memory": 128 * MEGABYTE},
    "have_much_memory_behind_threads_that_have_ended": {"memory": 128 * MEGABYTE},
    "have_much_memory_in_sockets": {"memory": 128 * MEGABYTE},
    "have_much_memory_in_empty_files": {"memory": 32 * MEGABYTE, "reserved": 256 * MEGABYTE},
    "have_much_memory_in_page_tables": {"memory": 112 * MEGABYTE},
    "use_much_processor_time": {"cpu_seconds": 1},
    "leave_a_daemon_behind_when_its_time_is_over": {"seconds": 2.5},
}
"""Attempts that need other limits than the rest."""


class Result(Struct, frozen=True):
    """The result of one attempt: whether it escaped, and the evidence."""

    out: bool
    seen: str


class Pair(Struct, frozen=True):
    """The same attempt without and within the sandbox."""

    bare: Result
    fenced: Result


class Report(Struct, frozen=True, tag=True):
    """The attempts of one user by name, or the reason why none could be made."""

    pairs: dict[str, Pair] = {}
    skipped: str = ""


class Arena:
    """One set of targets; `evidence` says which of them were reached."""

    def __init__(self, name: str, resources: ExitStack, python: str, set_uid: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="retinue-arena-", dir=BASE))
        resources.callback(shutil.rmtree, self.folder, ignore_errors=True)
        for path, text in {
            "outside/secret": TOKEN,
            "outside/target": "untouched",
            "home/.ssh/id_key": TOKEN,
            "read/file": "untouched",
            "read/keys.db": TOKEN,
            "work/deep/state/key": TOKEN,
            "work/lock": "",
        }.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text)
        (self.folder / "work" / "link").symlink_to(self.folder / "outside" / "target")
        self._tcp = resources.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._udp = resources.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._udp.bind(("127.0.0.1", 0))
        self._abstract = resources.enter_context(socket.socket(socket.AF_UNIX))
        self._abstract.bind("\0" + self.folder.name)
        self._stream = resources.enter_context(socket.socket(socket.AF_UNIX))
        self._stream.bind(str(self.folder / "read" / "socket"))
        self._datagrams = resources.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._datagrams.bind(str(self.folder / "read" / "datagrams"))
        for listening in (self._abstract, self._stream):
            listening.listen()
        self._sibling = _neighbour(resources, python) if "another_process" in name else None
        self.facts: dict[str, Any] = {
            "outside": str(self.folder / "outside"),
            "target": str(self.folder / "outside" / "target"),
            "secret": str(self.folder / "outside" / "secret"),
            "home": str(self.folder / "home"),
            "readable_file": str(self.folder / "read" / "file"),
            "hidden_file": str(self.folder / "read" / "keys.db"),
            "state": str(self.folder / "work" / "deep" / "state"),
            "hostname": socket.gethostname(),
            # Only the beginning is passed on: an attempt that prints the rest has found it.
            "marker": TOKEN[:5],
            "sibling": self._sibling.pid if self._sibling else None,
            "address": int(self._sibling.stdout.readline()) if self._sibling and self._sibling.stdout else 0,
            "many": MANY,
            "much": 512 * MEGABYTE,
            "long": 1.4,
            "full": 24,
            # Each of these processes is far below the limit; together they exceed it.
            "together": 6,
            "part": 28 * MEGABYTE,
            "empty_files": 33_000,
            "pages": 16_000,
            "while": 1.0,
            "port": self._tcp.getsockname()[1],
            "udp_port": self._udp.getsockname()[1],
            "abstract": self.folder.name,
            "socket": str(self.folder / "read" / "socket"),
            "datagrams": str(self.folder / "read" / "datagrams"),
            "set_uid": set_uid,
        }
        self._before = self._state()

    def program(self, name: str, python: str, set_uid: str) -> Program:
        """The program of the attempt with this name."""
        program = Program(
            argv=(python, "-I", "-S", "-", name, repr(self.facts)),
            folder=str(self.folder / "work"),
            readable=(str(Path(python).parent.parent), str(self.folder / "read"), os.path.dirname(set_uid)),
            writable=(str(self.folder / "work"),),
            hidden=(str(self.folder / "work" / "deep" / "state"), str(self.folder / "read" / "keys.db")),
            stdin=PROGRAM,
            seconds=15,
            processes=32,
            memory=256 * MEGABYTE,
            file_size=2 * MEGABYTE,
            scratch=16 * MEGABYTE,
        )
        return replace(program, **SPECIAL.get(name, {}))

    def evidence(self, stdout: bytes) -> Iterator[str]:
        """The evidence that a program escaped."""
        if b"GOT OUT" in stdout or TOKEN.encode() in stdout:
            yield "it says so"
        if self._state() != self._before:
            yield "files outside have changed"
        waiting, _, _ = select.select([self._tcp, self._udp, self._abstract, self._stream, self._datagrams], [], [], 0)
        if waiting:
            yield "it reached a socket"
        if self._sibling and self._dies(self._sibling):
            yield "the process next door is dead"
        with open(self.folder / "work" / "lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield "its daemon lives on"

    def end_daemons(self) -> None:
        """End processes that an attempt without a sandbox left behind."""
        with suppress(OSError, ValueError):
            os.kill(int((self.folder / "work" / "daemon").read_text()), signal.SIGKILL)

    @staticmethod
    def _dies(process: subprocess.Popen[bytes]) -> bool:
        """Whether a process is dead or dies within a moment."""
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _state(self) -> dict[str, tuple[int, bytes]]:
        places = (self.folder / "outside", self.folder / "home", self.folder / "read", self.folder / "work" / "deep")
        files = [path for place in places for path in place.rglob("*") if path.is_file()]
        return {str(path): (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) for path in files}


def _neighbour(resources: ExitStack, python: str) -> subprocess.Popen[bytes]:
    process = resources.enter_context(
        subprocess.Popen(
            [python, "-I", "-S", "-c", NEIGHBOUR, TOKEN], stdout=subprocess.PIPE, env={VARIABLE: TOKEN}, cwd="/"
        )
    )
    resources.callback(process.kill)
    return process


async def attempted(name: str, sandbox: Sandbox | None, python: str, set_uid: str) -> Result:
    """Make one attempt in an arena of its own, with or without a sandbox."""
    with ExitStack() as resources:
        arena = Arena(name, resources, python, set_uid)
        resources.callback(arena.end_daemons)
        # An open file that a careless start would pass on.
        ours = os.open(arena.folder / "outside" / "secret", os.O_RDONLY)
        resources.callback(os.close, ours)
        os.set_inheritable(ours, True)
        program = arena.program(name, python, set_uid)
        if sandbox is None:
            stdout, words = await asyncio.to_thread(_bare, program)
        else:
            try:
                ended = await sandbox.run(program)
            except RetinueError as error:
                # No attempt was made, so nothing is proven.
                return Result(True, f"the program did not start: {error}")
            stdout, words = ended.stdout, _last_line(ended.stderr) or f"exit code {ended.code}"
            if b"Traceback" not in ended.stderr and ended.stderr:
                return Result(True, f"the attempt did not run: {ended.stderr.decode()}")
        seen = list(arena.evidence(stdout))
    return Result(bool(seen), ", ".join(seen) or words)


def _bare(program: Program) -> tuple[bytes, str]:
    """Run a program without a sandbox."""
    process = subprocess.Popen(
        program.argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=program.folder,
        close_fds=False,
    )
    try:
        stdout, stderr = process.communicate(program.stdin, timeout=program.seconds)
    except subprocess.TimeoutExpired:
        _wait_for(Path(program.folder, "daemon"), process)
        process.kill()
        stdout, stderr = process.communicate()
    return stdout, _last_line(stderr) or f"exit code {process.returncode}"


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait longer on a slow machine, until the attempt begins."""
    for _ in range(40):
        if path.exists():
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.25)


def _last_line(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


async def besieged(names: list[str], sandbox: Sandbox, python: str, set_uid: str) -> Report:
    """Every attempt, without and within the sandbox."""
    try:
        _, complaint = await probe.attack(sandbox, python)
    except ToolError as error:
        if "could not be set up" in str(error):  # this system does not allow it for every user
            return Report(skipped=f"no sandbox for this user: {error}")
        raise
    assert not complaint, complaint
    at_once = asyncio.Semaphore(4)

    async def pair(name: str) -> tuple[str, Pair]:
        async with at_once:
            bare = await attempted(name, None, python, set_uid)
            return name, Pair(bare, await attempted(name, sandbox, python, set_uid))

    # Attempts that mostly wait come first; the others run meanwhile.
    return Report(dict(await asyncio.gather(*map(pair, sorted(names, key=lambda name: name not in SPECIAL)))))


def interpreter(*, drops_rights: bool) -> str | None:
    """This Python, or one of the system if another user may not execute this one."""
    ours = os.path.realpath(sys.executable)
    if not drops_rights:
        return ours
    elsewhere = [shutil.which("python3", path=path) for path in (None, os.defpath, "/usr/local/bin")]
    candidates = [ours, *(os.path.realpath(each) for each in elsewhere if each)]
    return next((each for each in candidates if _is_open_to_all(Path(each))), None)


def _is_open_to_all(file: Path) -> bool:
    return all(path.stat().st_mode & stat.S_IXOTH for path in (file, *file.parents))


def main() -> None:
    """Become the named user, make all attempts, print the results."""
    drops_rights = sys.argv[1] == "user" and os.geteuid() == 0
    python = interpreter(drops_rights=drops_rights)
    if python is None:
        reason = f"other users may not start {os.path.realpath(sys.executable)}, and there is no python3 that they may"
        sys.stdout.buffer.write(msgspec.json.encode(Report(skipped=reason)))
        return
    found = asyncio.run(probe.sandbox_verdict())
    assert found.sandbox is not None, found.text
    with tempfile.TemporaryDirectory(prefix="retinue-set-uid-", dir=BASE) as folder:
        os.chmod(folder, 0o755)
        set_uid = os.path.join(folder, "id")
        shutil.copyfile(shutil.which("id") or "/usr/bin/id", set_uid)
        os.chmod(set_uid, 0o4755)
        probe.ESCAPE_PROBE = Path(shutil.copyfile(probe.ESCAPE_PROBE, os.path.join(folder, "intruder.py")))
        os.chmod(probe.ESCAPE_PROBE, 0o644)
        reading, writing = os.pipe()
        # The child drops its privileges for good, so the parent has to clean up.
        child = os.fork()
        if child == 0:
            _besiege(writing, found.sandbox, python, set_uid, drops_rights=drops_rights)
        os.close(writing)
        with open(reading, "rb") as answer:
            sys.stdout.buffer.write(answer.read())
        _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit(f"the process that makes the attempts ended with exit code {os.waitstatus_to_exitcode(status)}")


# Imported here, because other modules import them later, when an ordinary user may not read this Python.
_ = (ThreadPoolExecutor, Bubblewrap)


def _besiege(answers: int, sandbox: Sandbox, python: str, set_uid: str, *, drops_rights: bool) -> NoReturn:
    code = 1
    try:
        if drops_rights:
            tempfile.tempdir = BASE  # the temporary folder of root may be closed to others
            os.setgroups([])
            os.setresgid(ORDINARY, ORDINARY, ORDINARY)
            os.setresuid(ORDINARY, ORDINARY, ORDINARY)
        os.environ[VARIABLE] = TOKEN
        report = asyncio.run(besieged(list(attempts.ATTEMPTS), sandbox, python, set_uid))
        with open(answers, "wb") as answer:
            answer.write(msgspec.json.encode(report))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
