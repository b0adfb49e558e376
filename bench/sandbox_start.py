"""By how many seconds a start in the sandbox is slower than a bare one, measured in a small process of its own.

A large process takes longer to start others, with and without a sandbox; that is not measured here. Prints one JSON
number, or null where there is no sandbox and on standard error why.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from functools import partial
from statistics import median
from time import perf_counter

import msgspec

from retinue.core.ports import Ended, Program, Sandbox
from retinue.sandbox.probe import sandbox_verdict
from retinue.sandbox.subprocess import end_group, finish

PAIRS = 5


async def difference(sandbox: Sandbox, program: Program, *, rounds: int) -> float:
    """The least difference of two medians: other work on the machine makes a round slower, and not faster."""
    return min([await _round(sandbox, program) for _ in range(rounds)])


async def _round(sandbox: Sandbox, program: Program) -> float:
    fenced: list[float] = []
    bare: list[float] = []
    for _ in range(PAIRS):
        begun = perf_counter()
        ended = await sandbox.run(program)
        between = perf_counter()
        if (ended, await _without(program)) != (Ended(code=0), Ended(code=0)):
            raise RuntimeError(f"{program.argv} did not end well: {ended}")
        fenced.append(between - begun)
        bare.append(perf_counter() - between)
    return median(fenced) - median(bare)


async def _without(program: Program) -> Ended:
    """The same program, fed and read in the same way, with nothing in between."""
    process = subprocess.Popen(  # noqa: ASYNC220 as the sandbox does it
        program.argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=program.folder,
        start_new_session=True,
    )
    return await finish(process, program, partial(end_group, process))


async def main(rounds: int) -> None:
    """Measure, and print."""
    found = await sandbox_verdict()
    if found.sandbox is None:
        sys.stderr.write(f"no start in a sandbox was measured: {found.text}\n")
        seconds = None
    else:
        with tempfile.TemporaryDirectory(prefix="retinue-bench-") as folder:
            program = Program(argv=("true",), folder=folder, writable=(folder,), seconds=20.0)
            seconds = await difference(found.sandbox, program, rounds=rounds)
    sys.stdout.write(msgspec.json.encode(seconds).decode() + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.sandbox_start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    asyncio.run(main(parser.parse_args().rounds))
