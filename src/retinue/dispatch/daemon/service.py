"""The whole daemon of a state folder: the cron jobs and the runs that it keeps going, and its state for `status`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from retinue.app.read_only import ReadOnlyClient
from retinue.config.cron import CronSettings
from retinue.config.store import StoreSettings
from retinue.core.log_context import line, logger
from retinue.core.text import plural
from retinue.dispatch.cron.daemon import is_left, job_daemon
from retinue.dispatch.cron.table import CronTable
from retinue.dispatch.daemon.retention import RetentionDaemon
from retinue.dispatch.daemon.runs import KeptTrees, RunsDaemon, UnfinishedTree, make_launch
from retinue.dispatch.processes import Processes, supervise

log = logger("retinue.daemon")

MAX_RUNS = 8
"""Trees that a daemon continues at the same time."""


class Workload(NamedTuple):
    """What a daemon has to do: the number of jobs, the names of those that are executed now, and the trees to keep."""

    jobs: int
    jobs_running: tuple[str, ...]
    trees: tuple[UnfinishedTree, ...]


async def read_workload(client: ReadOnlyClient) -> Workload:
    """The workload of a store, as it stands now."""
    table = await CronTable(client.key_value).table()
    running = sorted(claim.name for claim in table.claims.values() if not is_left(claim.owner))
    approvals = CronSettings().approvals  # any value: `status` does not resume
    trees = await KeptTrees(client, approvals=approvals).read()
    return Workload(len(table.jobs), tuple(running), tuple(trees))


async def serve(
    client: ReadOnlyClient,
    settings: CronSettings,
    kept: StoreSettings,
    stop: asyncio.Event,
    report: Callable[[str], None],
    on_stop: Callable[[], None],
) -> None:
    """Execute jobs when due, continue runs and prune, until `stop` is set; `report` gets a line per start and end.

    Then `on_stop` is called and all processes are asked to stop: their runs are left in the store and can be resumed.
    """

    def stop_now() -> None:
        log.info("%s", line(event="stopping"))
        on_stop()

    workload = await read_workload(client)
    jobs_text, runs_text = plural(workload.jobs, "job"), plural(len(workload.trees), "run")
    report(f"daemon: {jobs_text}, {runs_text} to keep going; Ctrl-C stops it")
    log.info("%s", line(event="started", jobs=workload.jobs, runs=len(workload.trees)))
    processes = Processes()
    jobs = job_daemon(CronTable(client.key_value), processes, report, max_running=settings.max_running)
    trees = KeptTrees(client, approvals=settings.approvals)
    launch = make_launch(processes, report, kept)
    runs = RunsDaemon(trees.read, launch, report, client.supervisor.clock.now, max_running=MAX_RUNS)
    retention = RetentionDaemon(client, kept, report)
    work = [(jobs, jobs.run()), (runs, runs.run()), (retention, retention.run())]
    await supervise(stop, processes, on_stop=stop_now, work=work)
    report("daemon: stopped")
    log.info("%s", line(event="stopped"))
