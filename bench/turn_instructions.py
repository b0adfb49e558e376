"""Instructions and CPU of a turn: the floor, retinue in memory and with SQLite, for one worker and for a hundred.

`python -m bench.turn_instructions` counts the instructions of each side under cachegrind, the fake model in a process
of its own: they hardly depend on other work of the machine. `--seconds ROUNDS` measures the CPU of the sides in
interleaved rounds instead, and prints medians of the ratios to the floor of the same round.

A count is the difference of two processes that do different numbers of rounds, so that the start is not in it. The
journal's delay before a commit is as much longer as valgrind is slower; otherwise no writes would share a commit.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import retinue.app.open
from bench import bare_loop, retinue_loop
from bench.processes import FLOOR, MEMORY, ROOT, SIDES, SQLITE, FakeModel, Side, cost_of, fake_model
from bench.work import Work, job_from_arguments, run_side
from retinue.engine import Tuning, build_engine

VALGRIND_SLOWDOWN = 50
CACHEGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
ROUNDS = {1: (10, 60), 100: (1, 4)}
"""The two numbers of rounds that are compared, by the number of workers."""


def count(side: Side, model: FakeModel, workers: int, source: Path) -> float:
    """Thousands of instructions of a turn."""
    work = Work(workers=workers)
    _run(side, model, work, 1, source)  # modules are compiled, and the fake model has its replies
    few, many = (_instructions(side, model, work, rounds, source) for rounds in ROUNDS[workers])
    return (many - few) / ((ROUNDS[workers][1] - ROUNDS[workers][0]) * work.model_turns) / 1000


def _instructions(side: Side, model: FakeModel, work: Work, rounds: int, source: Path) -> int:
    output = _run(side, model, work, rounds, source, *CACHEGRIND)
    found = re.search(r"I\s+refs:\s+([\d,]+)", output)
    assert found is not None, output
    return int(found[1].replace(",", ""))


def _run(side: Side, model: FakeModel, work: Work, rounds: int, source: Path, *command: str) -> str:
    """Do the work in a process of its own; what that writes to its error output."""
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as home:
        arguments = [model.url, work.model, "--rounds", str(rounds), *(["--home", home] if side.on_disk else [])]
        return subprocess.run(
            [*command, sys.executable, "-m", "bench.turn_instructions", "--measure", side.name, *arguments],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0", "PYTHONPATH": f"{source}:{ROOT}"},
            check=True,
            capture_output=True,
            text=True,
        ).stderr


def _measured(side: str, arguments: list[str]) -> None:
    """Do the work of a side, in the process that is counted."""
    job = job_from_arguments(arguments)
    slow = Tuning(commit_delay=Tuning().commit_delay * VALGRIND_SLOWDOWN)
    retinue.app.open.build_engine = partial(build_engine, tuning=slow)
    run_side(job, lambda: (bare_loop.side if side == FLOOR.name else retinue_loop.side)(job))


def print_seconds(model: FakeModel, workers: int, rounds: int) -> None:
    """Print the CPU of a turn in interleaved rounds: medians, and medians of the ratios of each round."""
    work, repeats = Work(workers=workers), 300 if workers == 1 else 6
    costs = {side.name: list[float]() for side in SIDES}
    for _ in range(rounds):
        for side in SIDES:
            costs[side.name].append(cost_of(side, model, work, rounds=repeats).cpu_per_turn * 1e6)
    for side in SIDES:
        ratios = [mine / floor for mine, floor in zip(costs[side.name], costs[FLOOR.name], strict=True)]
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        cpu = statistics.median(costs[side.name])
        print(f"{workers:4} {side.name:8} {cpu:7.0f} µs  {middle:.2f}x ({low:.2f} to {high:.2f})")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.turn_instructions", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 100], choices=ROUNDS)
    parser.add_argument("--sides", nargs="+", default=[side.name for side in SIDES])
    parser.add_argument("--seconds", type=int, metavar="ROUNDS", help="measure CPU in so many rounds instead")
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the folder with the package")
    options = parser.parse_args()
    with fake_model() as model:
        for workers in options.workers:
            if options.seconds:
                print_seconds(model, workers, options.seconds)
                continue
            floor = None
            for side in (FLOOR, MEMORY, SQLITE):
                if side.name in options.sides:
                    found = count(side, model, workers, options.source)
                    floor = found if side is FLOOR else floor
                    ratio = "" if floor is None else f"{found / floor:6.2f}x"
                    print(f"{workers:4} {side.name:8} {found:7.0f} thousand {ratio}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        _measured(sys.argv[2], sys.argv[3:])
    else:
        main()
