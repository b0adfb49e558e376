"""`retinue worker`: drive runs of a shared store; `retinue workers`: the workers of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from retinue.cli import options
from retinue.cli.event_loop import ends_after, exit_now, interrupts, perform, perform_on_store
from retinue.cli.options import option
from retinue.cli.output.terminal import answer_json, say

if TYPE_CHECKING:
    from retinue.app.read_only import ReadOnlyClient
    from retinue.config.settings import Settings
    from retinue.dispatch.worker import WorkerOptions

MAX_PORT = 65_535
STOP_SECONDS = 10.0
"""Seconds after a signal in which the process of a worker is gone."""


def worker(
    concurrency: Annotated[
        int | None,
        option(
            "--concurrency",
            metavar="N",
            min=1,
            max=10_000,
            help="Trees at once; one that waits for an approval is not counted. [8]",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        option("--tag", metavar="T", help="A tag of this worker: it drives runs that need it. Repeatable."),
    ] = None,
    lease: Annotated[
        float | None,
        option(
            "--lease",
            metavar="S",
            min=0.2,
            max=3600,
            help="Seconds without a heartbeat after which other workers take over its runs. [10]",
        ),
    ] = None,
    drain: Annotated[bool, option("--drain", help="Work off what waits, and exit.")] = False,
    health: Annotated[
        str | None,
        option("--health", metavar="HOST:PORT", help="Serve /healthz, /readyz and /metrics at this address."),
    ] = None,
    config: options.ConfigFlag = None,
    quiet: options.QuietFlag = False,
) -> int:
    """Drive runs of the store that have no driver, until Ctrl-C or SIGTERM.

    It takes detached runs, and runs whose process has died, if its own settings have the tools, the provider with its
    key, and the tags that they need. Runs that a person interrupted are left alone. When it stops, calls in progress
    get 8 seconds to end, and other workers go on with its runs. Exit status: 0 stopped, 1 no store, 2 bad usage or
    settings.
    """
    from retinue.app.settings_file import load_settings
    from retinue.config.worker import WORKER, WorkerSettings
    from retinue.dispatch.worker import WorkerOptions

    settings = load_settings(config)
    section = settings.section(WORKER.name, WorkerSettings)
    worker_options = WorkerOptions(
        concurrency=section.concurrency if concurrency is None else concurrency,
        tags=frozenset((*section.tags, *options.tags_of(tag))),
        max_runs=section.max_runs,
        max_trees=section.max_trees,
        drain=drain,
        health=None if health is None else _address(health),
    )
    lease = section.lease if lease is None else lease
    return perform(_work(settings, worker_options, lease, cron=section.cron and not drain, quiet=quiet))


async def _work(settings: Settings, worker_options: WorkerOptions, lease: float, *, cron: bool, quiet: bool) -> int:
    from retinue.app.engine_types import WorkerRole
    from retinue.app.launch.worker import open_worker
    from retinue.app.state_folder import chosen_url, is_postgres, postgres_address
    from retinue.dispatch.worker import Schedules, serve

    role = WorkerRole(tags=worker_options.tags, max_runs=worker_options.max_runs, max_trees=worker_options.max_trees)

    def report(line: str) -> None:
        if not quiet:
            say(line)

    with interrupts() as stop, ends_after(stop, STOP_SECONDS):
        url = chosen_url()
        jobs = postgres_address(url) if url is not None and is_postgres(url) else None
        has_stopped = await serve(
            lambda: open_worker(settings, role, lease=lease),
            worker_options,
            stop,
            report,
            jobs=jobs,
            schedules=(lambda retinue: Schedules(settings, retinue, report)) if cron else None,
        )
        if not has_stopped:
            exit_now(0)
    return 0


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise typer.BadParameter(f"--health: found {text!r}; expected HOST:PORT, as in 127.0.0.1:9090")
    return host.strip("[]"), int(port)


def workers(json: options.JsonFlag = False) -> int:
    """Show the living workers of the store: where they run, their tags, what they drive, and how late they are.

    The lag is the time since the last heartbeat, which comes every third part of a lease. Beyond the lease, other
    workers take over.
    """

    async def show(client: ReadOnlyClient) -> None:
        from retinue.cli.output.format import elapsed
        from retinue.cli.output.table import Column, print_table
        from retinue.core.text import rfc3339
        from retinue.dispatch.worker import LiveWorker, live_workers

        found = await live_workers(client.supervisor)
        if json:
            answer_json(
                [
                    {
                        "driver_id": each.driver_id,
                        "host": each.host,
                        "process": each.process,
                        "version": each.version,
                        "tags": list(each.tags),
                        "runs": list(each.runs),
                        "last_beat": rfc3339(each.last_beat),
                        "lag_seconds": round(each.lag, 3),
                    }
                    for each in found
                ]
            )
            return
        if not found:
            say("no worker runs on this store; start one with: retinue worker")
            return
        columns: list[Column[LiveWorker]] = [
            Column(title="driver", cell=lambda each: each.driver_id),
            Column(title="host", cell=lambda each: each.host, shrinks=True),
            Column(title="process", cell=lambda each: each.process, right=True),
            Column(title="version", cell=lambda each: each.version),
            Column(title="tags", cell=lambda each: ", ".join(each.tags)),
            Column(title="trees", cell=lambda each: str(len(each.runs)), right=True),
            Column(title="last beat", cell=lambda each: rfc3339(each.last_beat)),
            Column(title="lag", cell=lambda each: elapsed(each.lag), right=True),
        ]
        print_table(found, columns)

    return perform_on_store(show)
