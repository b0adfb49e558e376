"""Workers as real processes: one large tree on one of them and spread over three, and many runs that wait for replies.

The tree's tools burn CPU, so that its time is theirs. The PostgreSQL server is one of its own, the model that of the
other benchmarks. `python -m bench.spread` prints the costs of trees. Their ratio means something only while no other
process wants the cores: workers, server and model share them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

import retinue
from bench.cases import Row
from bench.processes import POSTGRES, ROOT, FakeModel, fake_model, resident_kb
from bench.work import LEAD, TASK, WORKER, Work
from retinue.core.commands import RunQuery
from retinue.engine import Supervisor
from tests.postgres import PostgresServer, programs, running_server

CHILDREN = 2_000
BURN_MS = 25
CALLERS = 200
"""Runs that are started at the same time."""

PER_CALL = 2
"""Children of one call: a reply has a thousand calls at most."""

TOOLS = """
import time
import retinue
from retinue.ports import CallContext

@retinue.tool(kind="keyed", timeout=None)
async def delegate(task: str, context: CallContext) -> str:
    "Let workers look into one part."
    runs = [await context.spawn(f"{{task}} {{part}}", agent="worker", key=str(part)) for part in range({per_call})]
    return " ".join([(await run.wait()).text for run in runs])

@retinue.tool(kind="pure")
def echo(text: str) -> str:
    "Say a text back, after {burn_ms} ms of CPU."
    end = time.thread_time() + {burn_ms} / 1000
    while time.thread_time() < end:
        sum(range(500))
    return text
"""

SETTINGS = """
model = "house:{model}"
[providers.house]
wire = "openai-chat"
base_url = "{url}"
[tools]
modules = ["./burning.py"]
[agents.lead]
description = "Leads."
model = "house:{model}"
system_prompt = "{lead}"
tools = ["delegate"]
[agents.worker]
description = "Works."
model = "house:{model}"
system_prompt = "{worker}"
tools = ["echo"]
placement = "{placement}"
"""


class SpreadCost(Struct, frozen=True, kw_only=True):
    """Seconds for a tree: from its start to its end, of the CPU of the workers, and of that of the server."""

    wall: float
    workers_cpu: float
    server_cpu: float


def worker_rows(model: FakeModel, *, full: bool) -> list[Row]:
    """A tree over three workers against one, and the memory of waiting runs; none where there is no server.

    What is promised is promised for the sizes of `full`: to start the workers is a large part of a small tree.
    """
    if programs() is None:
        return []
    children, runs = (2_000, 10_000) if full else (400, 1_000)
    one, three = (cost_of_tree(model, workers=number, children=children) for number in (1, 3))
    return [
        Row(
            what=f"a tree of {children:,} children with tools that burn CPU, over three workers: time",
            unit="s",
            values={"one worker": one.wall, "three workers": three.wall},
            ratios={"three workers": three.wall / one.wall},
            most={"three workers": 1 / 1.6} if full else {},
        ),
        Row(
            what="the same: CPU of workers and server",
            unit="s",
            values={
                "one worker": one.workers_cpu + one.server_cpu,
                "three workers": three.workers_cpu + three.server_cpu,
            },
        ),
        Row(
            what=f"memory of three workers per waiting run, of {runs:,}",
            unit="KB",
            values={POSTGRES.name: kb_per_waiting_run(model, runs=runs)},
            most={POSTGRES.name: 40.0} if full else {},
            absolute=True,
        ),
    ]


def cost_of_tree(model: FakeModel, *, workers: int, children: int = CHILDREN, burn_ms: int = BURN_MS) -> SpreadCost:
    """Drive one tree by so many workers; one drives it alone, several spread its children."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retinue-bench-")))
        server = stack.enter_context(running_server())
        placement = "anywhere" if workers > 1 else "tree"
        work = Work(workers=children // PER_CALL, turns=1)
        settings = SETTINGS.format(url=model.url, placement=placement, model=work.model, lead=LEAD, worker=WORKER)
        (folder / "retinue.toml").write_text(settings)
        (folder / "burning.py").write_text(TOOLS.format(per_call=PER_CALL, burn_ms=burn_ms))
        return asyncio.run(_measure(folder, server, workers, children))


def kb_per_waiting_run(model: FakeModel, *, workers: int = 3, runs: int = 10_000) -> float:
    """The growth of worker processes for each run that waits for its reply, with runs spread over them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retinue-bench-")))
        server = stack.enter_context(running_server())
        work = Work(workers=1, turns=0, latency_ms=900_000)
        settings = SETTINGS.format(url=model.url, placement="tree", model=work.model, lead=LEAD, worker=WORKER)
        (folder / "retinue.toml").write_text(settings)
        (folder / "burning.py").write_text(TOOLS.format(per_call=PER_CALL, burn_ms=0))
        return asyncio.run(_measure_waiting(folder, server, model, workers, runs))


async def _measure_waiting(folder: Path, server: PostgresServer, model: FakeModel, workers: int, runs: int) -> float:
    url = server.url("waiting")
    async with retinue.open(config=folder / "retinue.toml", dialects=(), store=url) as r:
        with _workers(folder, url, workers, concurrency=runs) as processes:
            await _all_live(r.supervisor, workers)
            waiting = model.stats().waiting
            for _ in range(workers):  # what is loaded for the first run is no cost of the others
                await r.spawn(TASK, agent="worker", detached=True)
            await _until_waiting(model, waiting + workers)
            before = sum(map(resident_kb, processes))
            for _ in range(0, runs, CALLERS):
                await asyncio.gather(*(r.spawn(TASK, agent="worker", detached=True) for _ in range(CALLERS)))
            await _until_waiting(model, waiting + workers + runs)
            after = sum(map(resident_kb, processes))
            for pid in processes:
                os.kill(pid, signal.SIGKILL)  # the answers are not needed
    return (after - before) / runs


async def _until_waiting(model: FakeModel, number: int) -> None:
    async with asyncio.timeout(900):
        while model.stats().waiting < number:  # noqa: ASYNC110 the model is another process
            await asyncio.sleep(0.2)


async def _measure(folder: Path, server: PostgresServer, workers: int, children: int) -> SpreadCost:
    url = server.url("spread")
    async with retinue.open(config=folder / "retinue.toml", dialects=(), store=url) as r:
        with _workers(folder, url, workers) as processes:
            await _all_live(r.supervisor, workers)
            before = _cpu(processes), _cpu_below(server.pid)
            began = time.perf_counter()
            root = await r.spawn(TASK, agent="lead", detached=True)
            outcome = await root.wait()
            wall = time.perf_counter() - began
            assert outcome.ok, outcome
            assert await r.supervisor.stored.count(RunQuery(root_id=root.run_id)) == 1 + children
            after = _cpu(processes), _cpu_below(server.pid)
    return SpreadCost(wall=wall, workers_cpu=after[0] - before[0], server_cpu=after[1] - before[1])


@contextmanager
def _workers(folder: Path, url: str, number: int, *, concurrency: int = 8) -> Generator[list[int]]:
    command = [
        sys.executable,
        "-m",
        "retinue",
        "worker",
        "--store",
        url,
        "--quiet",
        "--concurrency",
        str(concurrency),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RETINUE_HOME": str(folder / "home")}
    started = [subprocess.Popen(command, cwd=folder, env=environment) for _ in range(number)]
    try:
        yield [each.pid for each in started]
    finally:
        for each in started:
            each.terminate()
        for each in started:
            each.wait(30)


async def _all_live(supervisor: Supervisor, number: int) -> None:
    from retinue.dispatch.worker import live_workers

    async with asyncio.timeout(60):
        while len(await live_workers(supervisor)) < number:  # noqa: ASYNC110 the store has no event for it
            await asyncio.sleep(0.1)


def _cpu(pids: Iterable[int]) -> float:
    return sum(_times(pid)[0] for pid in pids)


def _cpu_below(pid: int) -> float:
    """The CPU of a process, of its children, and of those that have ended."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(_times(pid)) + _cpu(map(int, children))


def _times(pid: int) -> tuple[float, float]:
    """Seconds of CPU of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, of_children, of_children_system = map(int, fields[11:15])
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + system) / ticks, (of_children + of_children_system) / ticks


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.spread", description=__doc__)
    parser.add_argument("--children", type=int, default=CHILDREN)
    parser.add_argument("--burn-ms", type=int, default=BURN_MS, help="CPU of each tool call")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 3])
    options = parser.parse_args()
    with fake_model() as model:
        for number in options.workers:
            cost = cost_of_tree(model, workers=number, children=options.children, burn_ms=options.burn_ms)
            sys.stdout.write(f"{number} workers: {cost}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
