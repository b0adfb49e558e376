"""The processes of a benchmark: the fake model, and a fresh process for each measurement of a side."""

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
    """An implementation of the workload: a module of this folder, and its options."""

    name: str
    module: str
    on_disk: bool = False
    on_server: bool = False
    tool_kind: str = "pure"


FLOOR = Side("floor", "bench.bare_loop")
MEMORY = Side("memory", "bench.retinue_loop")
SQLITE = Side("SQLite", "bench.retinue_loop", on_disk=True)
SQLITE_ONCE = Side("SQLite, tools with effects", "bench.retinue_loop", on_disk=True, tool_kind="once")
POSTGRES = Side("PostgreSQL", "bench.retinue_loop", on_server=True)
SIDES = (FLOOR, MEMORY, SQLITE)


class FakeModel:
    """A client of the fake model's process."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = f"http://127.0.0.1:{port}/v1"

    def stats(self) -> Stats:
        """The request counts so far."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("GET", "/stats")
            return msgspec.json.decode(connection.getresponse().read(), type=Stats)
        finally:
            connection.close()


@contextmanager
def fake_model() -> Generator[FakeModel]:
    """Start a fake model that ends with the block."""
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
def start_side(
    side: Side,
    model: FakeModel,
    work: Work,
    *,
    rounds: int = 1,
    warm_ups: int = 1,
    uvloop: bool = False,
    store: str = "",
) -> Generator[subprocess.Popen[str]]:
    """Start a side in a process of its own; its folder, if it has one, is removed after the block.

    `store` is the address of the store of a side on a server.
    """
    arguments = [model.url, work.model, "--leads", str(work.leads), "--rounds", str(rounds)]
    arguments += ["--warm-ups", str(warm_ups)]
    with ExitStack() as cleanup:
        if side.on_disk:
            arguments += ["--home", cleanup.enter_context(tempfile.TemporaryDirectory(prefix="retinue-bench-"))]
        if side.on_server:
            arguments += ["--store", store]
        arguments += ["--tool-kind", side.tool_kind, *(["--uvloop"] if uvloop else [])]
        process = subprocess.Popen(
            [sys.executable, "-m", side.module, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        with process:
            yield process


def cost_of(
    side: Side,
    model: FakeModel,
    work: Work,
    *,
    rounds: int = 1,
    warm_ups: int = 1,
    uvloop: bool = False,
    store: str = "",
) -> Cost:
    """Measure the work by a side."""
    with start_side(side, model, work, rounds=rounds, warm_ups=warm_ups, uvloop=uvloop, store=store) as process:
        return msgspec.json.decode(_first_line(process), type=Cost)


def kb_per_waiting_worker(side: Side, model: FakeModel, work: Work, *, uvloop: bool = False, store: str = "") -> float:
    """The growth of a side's process for each worker that waits for its reply.

    Measured when the fake model holds the lead's request alone, and again when it holds those of all workers.
    """
    with start_side(side, model, work, uvloop=uvloop, store=store) as process:
        before = _resident_kb_when(1, process.pid, model)
        after = _resident_kb_when(work.workers, process.pid, model)
        process.terminate()  # the answers are not needed
    return (after - before) / work.workers


def cpu_of_importing(modules: str) -> float:
    """Seconds of CPU that a fresh interpreter takes to import these modules."""
    program = f"import time; t = time.process_time(); import {modules}; print(time.process_time() - t)"
    return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


def cost_of_wires(*, rounds: int) -> dict[str, WireCost]:
    """Measure each wire per streamed event."""
    command = [sys.executable, "-m", "bench.wires", "--rounds", str(rounds)]
    ended = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(ended.stdout, type=dict[str, WireCost])


def seconds_of_sandbox_start(*, rounds: int) -> float | None:
    """What the sandbox adds to the start of a program, or None where there is no sandbox."""
    words = [sys.executable, "-m", "bench.sandbox_start", "--rounds", str(rounds)]
    ended = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(ended.stdout, type=float | None)


HANDSHAKES = {
    "with a handshake": b"""\
{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},\
"clientInfo":{"name":"bench","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/list"}
""",
    "without one": b"".join(
        b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":{"_meta":{'
        b'"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}\n'
        % (number, method)
        for number, method in enumerate((b"server/discover", b"tools/list"), 1)
    ),
}
"""What a client of each generation of the protocol sends first."""


def seconds_of_mcp_handshake(*, rounds: int) -> dict[str, float]:
    """The least time from the start of `retinue mcp` to its answers to the first two requests, by kind of client.

    The time that it was queued for a processor is not counted, where the system tells it.
    """
    return {kind: min(_seconds_of_handshake(sent) for _ in range(rounds)) for kind, sent in HANDSHAKES.items()}


def _seconds_of_handshake(sent: bytes) -> float:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "lines.json").write_text('{"*": []}')
        words = [sys.executable, "-m", "retinue", "mcp", "--model", "scripted:lines.json", "--store", "memory:"]
        begun = time.perf_counter()
        with subprocess.Popen(words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(sent)
            server.stdin.flush()
            answers = [server.stdout.readline() for _ in range(2)]
            seconds = time.perf_counter() - begun
            queue = Path(f"/proc/{server.pid}/schedstat")
            queued = int(queue.read_text().split()[1]) / 1e9 if queue.exists() else 0.0
            server.stdin.close()
    if not all(b'"result"' in answer for answer in answers):
        raise RuntimeError(f"retinue mcp answered {answers}")
    return seconds - queued


def _resident_kb_when(waiting: int, pid: int, model: FakeModel) -> int:
    deadline = time.monotonic() + 120
    while model.stats().waiting != waiting:
        if time.monotonic() > deadline:
            raise RuntimeError(f"there were never {waiting} requests waiting at the same time")
        time.sleep(0.01)
    time.sleep(0.2)  # let the client settle after its last request
    return resident_kb(pid)


def resident_kb(pid: int) -> int:
    """The memory of a process."""
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
        raise RuntimeError(f"{process.args!r} ended with status {process.wait()} and no output")
    return line


def open_files_allowed(wanted: int) -> int:
    """Raise the limit on open files for this process and its children; returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(wanted, soft) if hard == resource.RLIM_INFINITY else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (ValueError, OSError):
        return soft
    return limit
