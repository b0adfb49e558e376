"""One large tree on one worker and spread over three: wall time and CPU, with tools that burn CPU.

The workers are real processes on a PostgreSQL server of their own, the model is that of the other benchmarks, and every
child calls one tool. `python -m bench.spread` prints the costs. Their ratio means something only while no other process
wants the cores: workers, server and model share them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

import retinue
from bench.processes import ROOT, FakeModel, fake_model
from bench.work import LEAD, TASK, WORKER, Work
from retinue.core.commands import RunQuery
from retinue.engine import Supervisor
from tests.postgres import PostgresServer, running_server

CHILDREN = 2_000
BURN_MS = 25
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
def _workers(folder: Path, url: str, number: int) -> Generator[list[int]]:
    command = [
        sys.executable,
        "-m",
        "retinue",
        "worker",
        "--store",
        url,
        "--quiet",
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
