"""The fake model and one side in one process and on one event loop, to count instructions instead of seconds.

A count of instructions does not depend on the load of the machine. It includes the start of the process: take the
difference of two numbers of rounds. Under valgrind everything takes some fifty times as long, and so does the
journal's delay before a commit here; otherwise no writes would share a commit.
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial

import retinue.app.open
from bench import bare_loop, retinue_loop
from bench.fake_model import Connection, Stats
from bench.work import Work, job_from_arguments
from retinue.engine import Tuning, build_engine

VALGRIND_SLOWDOWN = 50


async def run_rounds(side: str, workers: int, rounds: int, home: str) -> None:
    """Run some rounds of work by one side."""
    stats = Stats()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(stats), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    job = job_from_arguments([url, Work(workers=workers).model, "--rounds", str(rounds), "--home", home])
    await (bare_loop.side if side == "floor" else retinue_loop.side)(job)
    server.close()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("floor", "retinue"))
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--home", default=":memory:", help="the folder of retinue's store")
    options = parser.parse_args()
    slow = Tuning(commit_delay=Tuning().commit_delay * VALGRIND_SLOWDOWN)
    retinue.app.open.build_engine = partial(build_engine, tuning=slow)
    asyncio.run(run_rounds(options.side, options.workers, options.rounds, options.home))


if __name__ == "__main__":
    main()
