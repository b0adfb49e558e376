"""The fake model and one side in one process and on one loop, so that instructions can be counted instead of seconds.

A count does not depend on what else the machine does. It includes starting up: take the difference of two numbers of
rounds. Under valgrind everything takes some fifty times as long, and so does the journal's patience here, or else no
write would share its commit with others.
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial

import retinue.app.open
from bench import floor, retinue_side
from bench.fake_model import Connection, Stats
from bench.work import Work, job_from_arguments
from retinue.engine import Tuning, build_engine

SLOWER = 50


async def together(side: str, workers: int, rounds: int, home: str) -> None:
    """Some rounds of work by one side."""
    stats = Stats()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(stats), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    job = job_from_arguments([url, Work(workers=workers).model, "--rounds", str(rounds), "--home", home])
    await (floor.side if side == "floor" else retinue_side.side)(job)
    server.close()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("floor", "retinue"))
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--home", default=":memory:", help="the folder of retinue's store")
    wanted = parser.parse_args()
    slow = Tuning(commit_delay=Tuning().commit_delay * SLOWER)
    retinue.app.open.build_engine = partial(build_engine, tuning=slow)
    asyncio.run(together(wanted.side, wanted.workers, wanted.rounds, wanted.home))


if __name__ == "__main__":
    main()
