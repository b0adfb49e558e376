"""Prints by how many seconds a start in the sandbox is slower than a bare one, measured in a small process of its own.

A process that has grown large takes longer to start others, with and without a sandbox; that is not what is asked.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import partial
from statistics import median
from time import perf_counter

from retinue.core.ports import Ended, Program, Sandbox
from retinue.sandbox.probe import verdict
from retinue.sandbox.subprocess import end_group, finish

ROUNDS, PAIRS = 40, 5


async def difference(sandbox: Sandbox, program: Program, enough: float) -> float:
    """The least difference of two medians; who else is at work can make a round slower, and not faster."""
    best = float("inf")
    for _ in range(ROUNDS):
        fenced: list[float] = []
        bare: list[float] = []
        for _ in range(PAIRS):
            begun = perf_counter()
            ended = await sandbox.run(program)
            between = perf_counter()
            assert (ended, await without(program)) == (Ended(code=0), Ended(code=0))
            fenced.append(between - begun)
            bare.append(perf_counter() - between)
        best = min(best, median(fenced) - median(bare))
        if best <= enough:
            break
    return best


async def without(program: Program) -> Ended:
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


async def main(folder: str, enough: float) -> None:
    """Measure, and print."""
    found = await verdict()
    assert found.sandbox is not None, found.text
    program = Program(argv=("true",), folder=folder, writable=(folder,), seconds=20.0)
    print(await difference(found.sandbox, program, enough))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
