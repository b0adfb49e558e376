"""A prune beside a writer in another process: how long its commits wait, next to how long they wait without the prune.

The prune works and rests in turns, so that both waits are measured at the same load of the machine. Each tree has a
session of its own, as those of `retinue run` have. `python -m bench.prune` measures both stores with a million runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.many_runs import fill
from bench.processes import POSTGRES, ROOT, SQLITE
from retinue.core.commands import Change, Decision, RunQuery
from retinue.core.ports import PruneRequest
from retinue.engine.supervisor import LONGEST_PRUNE_PAUSE, PRUNE_PAUSE
from retinue.store.postgres import PostgresStore, parse_address
from retinue.store.sqlite import SqliteStore
from tests.postgres import programs, running_server

WORK_SECONDS = 3.0
REST_SECONDS = 1.5
"""Seconds that the prune works and rests in turns."""

BETWEEN_WRITES = 0.005
"""Seconds between two commits of the writer."""


class Waits(Struct, frozen=True):
    """Seconds that commits took: their number, half of them, 99 and 99.9 of 100, and all of them at most."""

    commits: int
    median: float
    percentile_99: float
    percentile_999: float
    longest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Waits:
        if not seconds:
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        ordered = sorted(seconds)
        count = len(ordered)
        return cls(count, ordered[count // 2], ordered[count * 99 // 100], ordered[count * 999 // 1000], ordered[-1])

    def __str__(self) -> str:
        parts = (self.median, self.percentile_99, self.percentile_999, self.longest)
        return f"{self.commits:,} commits: " + ", ".join(f"{1000 * part:.1f}" for part in parts) + " ms"


class Prune(Struct, frozen=True):
    """Seconds that a prune worked, the runs that it removed, and the waits of the writer while it worked and rested."""

    seconds: float
    removed: int
    working: Waits
    resting: Waits


def prune_beside_a_writer(store: SqliteStore | PostgresStore, url: str) -> Prune:
    """Prune all ended runs, while a writer in another process commits every few milliseconds."""
    phases: list[tuple[bool, float, float]] = []
    with subprocess.Popen(
        (sys.executable, "-m", "bench.prune", "--writer", url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()  # it has begun
        removed = _prune_in_turns(store, phases)
        written, _ = writer.communicate()
    commits = msgspec.json.decode(written, type=list[tuple[float, float]])
    waits: dict[bool, list[float]] = {True: [], False: []}
    for is_working, begin, end in phases:
        waits[is_working] += [wait for at, wait in commits if begin <= at < end]
    seconds = sum(end - begin for is_working, begin, end in phases if is_working)
    return Prune(seconds, removed, Waits.of(waits[True]), Waits.of(waits[False]))


def _prune_in_turns(store: SqliteStore | PostgresStore, phases: list[tuple[bool, float, float]]) -> int:
    """Prune as `Supervisor.prune` does: after each step others have as much time as it took. Rest now and then."""
    steps = store.prune_in_steps(PruneRequest(before=1e12, keep_sessions=True))
    began = _rest(phases, time.monotonic())
    removed = 0
    while True:
        step_began = time.monotonic()
        number = next(steps, None)
        if number is None:
            phases.append((True, began, time.monotonic()))
            return removed
        removed += number
        time.sleep(min(LONGEST_PRUNE_PAUSE, max(PRUNE_PAUSE, time.monotonic() - step_began)))
        if time.monotonic() - began > WORK_SECONDS:
            now = time.monotonic()
            phases.append((True, began, now))
            began = _rest(phases, now)


def _rest(phases: list[tuple[bool, float, float]], began: float) -> float:
    time.sleep(REST_SECONDS)
    now = time.monotonic()
    phases.append((False, began, now))
    return now


def write_until_stopped(url: str) -> None:
    """Commit every few milliseconds until the end of standard input, and print when and for how long."""
    commits: list[tuple[float, float]] = []
    decision = Decision(b"", puts={"n": b"1"})
    change = Change(space="s", decide=lambda _: decision)
    with closing(open_store(url)) as store:
        store.commit(None, [change])
        sys.stdout.write("\n")
        sys.stdout.flush()
        os.set_blocking(sys.stdin.fileno(), False)
        while os_read() is None:
            began = time.monotonic()
            store.commit(None, [change])
            commits.append((began, time.monotonic() - began))
            time.sleep(BETWEEN_WRITES)
    sys.stdout.buffer.write(msgspec.json.encode(commits))


def os_read() -> bytes | None:
    """What standard input has; None if there is nothing yet."""
    try:
        return os.read(sys.stdin.fileno(), 1)
    except BlockingIOError:
        return None


def open_store(url: str) -> SqliteStore | PostgresStore:
    """The store at the address of a server, or in a file."""
    return PostgresStore(parse_address(url)) if url.startswith("postgresql:") else SqliteStore(Path(url))


def prune_of(runs: int, url: str) -> Prune:
    """Fill an empty store with runs that have ended, and prune them."""
    with closing(open_store(url)) as store:
        fill(store, runs, own_sessions=True)
        prune = prune_beside_a_writer(store, url)
        assert store.count(RunQuery()) == 0
        assert prune.removed == runs
        return prune


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.prune", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--stores", nargs="*", default=[POSTGRES.name, SQLITE.name])
    parser.add_argument("--writer", metavar="URL", help="commit to this store until the end of standard input")
    options = parser.parse_args()
    if options.writer is not None:
        write_until_stopped(options.writer)
        return
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="retinue-bench-"))
        urls = {SQLITE.name: str(Path(folder) / "retinue.db")}
        if programs() is not None:
            urls[POSTGRES.name] = stack.enter_context(running_server()).url("prune")
        for name in options.stores:
            prune = prune_of(options.runs, urls[name])
            sys.stdout.write(
                f"{name}: {prune.removed:,} runs in {prune.seconds:.0f} s of work, load {os.getloadavg()[0]:.1f}\n"
                f"  waits beside the prune (median, 99 %, 99.9 %, longest): {prune.working}\n"
                f"  waits while it rested: {prune.resting}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
