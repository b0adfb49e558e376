"""The processes of a benchmark: the fake model, and a fresh one for each side each time."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from bench.fake_model import Stats
from bench.wires import WireCost
from bench.work import Cost, Work

ROOT = Path(__file__).parents[1]


class Side(Struct, frozen=True):
    """Someone who can do the work: a module of this folder, and how it is told to."""

    name: str
    module: str
    on_disk: bool = False
    tool_kind: str = "pure"


FLOOR = Side("floor", "bench.floor")
MEMORY = Side("memory", "bench.retinue_side")
SQLITE = Side("SQLite", "bench.retinue_side", on_disk=True)
SQLITE_ONCE = Side("SQLite, tools with effects", "bench.retinue_side", on_disk=True, tool_kind="once")
SIDES = (FLOOR, MEMORY, SQLITE)


class FakeModel:
    """The fake model's process, as seen from outside."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = f"http://127.0.0.1:{port}/v1"

    def stats(self) -> Stats:
        """How much it was asked so far."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("GET", "/stats")
            return msgspec.json.decode(connection.getresponse().read(), type=Stats)
        finally:
            connection.close()


@contextmanager
def fake_model() -> Generator[FakeModel]:
    """A fake model that lives as long as the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.fake_model"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None
        try:
            yield FakeModel(int(_first_line(process)))
        finally:
            process.stdin.close()


@contextmanager
def started(
    side: Side, model: FakeModel, work: Work, *, rounds: int = 1, warm_ups: int = 1, uvloop: bool = False
) -> Generator[subprocess.Popen[str]]:
    """A side at work, in a process of its own; its store, if it has one, is gone after the block."""
    words = [model.url, work.model, "--rounds", str(rounds), "--warm-ups", str(warm_ups)]
    with ExitStack() as left_behind:
        if side.on_disk:
            words += ["--home", left_behind.enter_context(tempfile.TemporaryDirectory(prefix="retinue-bench-"))]
        words += ["--tool-kind", side.tool_kind, *(["--uvloop"] if uvloop else [])]
        process = subprocess.Popen(
            [sys.executable, "-m", side.module, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        with process:
            yield process


def cost_of(
    side: Side, model: FakeModel, work: Work, *, rounds: int = 1, warm_ups: int = 1, uvloop: bool = False
) -> Cost:
    """What the work costs a side."""
    with started(side, model, work, rounds=rounds, warm_ups=warm_ups, uvloop=uvloop) as process:
        return msgspec.json.decode(_first_line(process), type=Cost)


def kb_per_waiting_worker(side: Side, model: FakeModel, work: Work, *, uvloop: bool = False) -> float:
    """How much a side's process grows for each worker that waits for its reply.

    Seen from outside, by what the fake model has in its hands: first the lead's question alone, then all workers'.
    """
    with started(side, model, work, uvloop=uvloop) as process:
        before = _resident_kb_when(1, process.pid, model)
        after = _resident_kb_when(work.workers, process.pid, model)
        process.terminate()  # nobody needs the answers
    return (after - before) / work.workers


def cpu_of_importing(modules: str) -> float:
    """Seconds of CPU that a fresh interpreter takes to import these."""
    program = f"import time; t = time.process_time(); import {modules}; print(time.process_time() - t)"
    return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


def cost_of_wires(*, rounds: int) -> dict[str, WireCost]:
    """What each wire takes for a streamed event."""
    words = [sys.executable, "-m", "bench.wires", "--rounds", str(rounds)]
    ended = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(ended.stdout, type=dict[str, WireCost])


def seconds_of_sandbox_start(*, rounds: int) -> float | None:
    """What the sandbox adds to the start of a program, or None where there is no sandbox."""
    words = [sys.executable, "-m", "bench.sandbox_start", "--rounds", str(rounds)]
    ended = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(ended.stdout, type=float | None)


def _resident_kb_when(waiting: int, pid: int, model: FakeModel) -> int:
    give_up = time.monotonic() + 120
    while model.stats().waiting != waiting:
        if time.monotonic() > give_up:
            raise RuntimeError(f"{waiting} requests were to wait at the same time, and never did")
        time.sleep(0.01)
    time.sleep(0.2)  # whoever asked last has to come to rest
    return _resident_kb(pid)


def _resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        line = next(line for line in _lines(status) if line.startswith("VmRSS:"))
        return int(line.split()[1])
    return int(subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], check=True, capture_output=True, text=True).stdout)


def _lines(file: Path) -> Iterator[str]:
    yield from file.read_text().splitlines()


def _first_line(process: subprocess.Popen[str]) -> str:
    output: IO[str] | None = process.stdout
    assert output is not None
    line = output.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with status {process.wait()} and said nothing")
    return line


def open_files_allowed(wanted: int) -> int:
    """How many files this process and those it starts may have open, after asking for all that may be asked for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(wanted, soft) if hard == resource.RLIM_INFINITY else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ValueError, OSError):
        return soft
    return most
