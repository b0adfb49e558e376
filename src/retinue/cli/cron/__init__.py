"""`retinue cron`: add, list, pause and remove jobs, and execute them: by the daemon, or at once with `run-now`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from retinue.cli import options
from retinue.cli.event_loop import perform, perform_on_store
from retinue.cli.options import option
from retinue.cli.output.terminal import say
from retinue.core.text import rfc3339

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from retinue.dispatch.cron.table import CronTable

__all__ = ["app"]

WHEN = "Schedule"
WORK = "Work"

app = typer.Typer(
    name="cron",
    help="Scheduled jobs: agents with a prompt, or commands.",
    epilog="Examples:\n\nretinue cron add nightly --cron '0 2 * * *' --tz Europe/Berlin --agent dig --prompt 'Dig.'\n\n"
    "retinue cron list\n\nretinue cron daemon",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A job.")]


@app.command(
    epilog="Examples:\n\n"
    "retinue cron add report --cron '0 9 * * mon' --tz Europe/Berlin --agent writer --prompt 'Write the report.'\n\n"
    "retinue cron add once --at 2026-12-24T18:00:00Z --agent writer --prompt 'Wish a merry Christmas.'\n\n"
    "retinue cron add space --every 10m --shell 'df -h'"
)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The job's name: a-z, 0-9, _ and -.")],
    cron: Annotated[
        str | None, option("--cron", metavar="EXPR", help="Minute, hour, day, month, weekday.", panel=WHEN)
    ] = None,
    tz: Annotated[
        str | None, option("--tz", metavar="Z", help="The time zone of --cron or --at. [UTC]", panel=WHEN)
    ] = None,
    at: Annotated[str | None, option("--at", metavar="T", help="Once, as in 2026-12-24T18:00:00Z.", panel=WHEN)] = None,
    every: Annotated[
        str | None, option("--every", metavar="D", help="An interval from now on: 30s, 5m, 1h or 1d.", panel=WHEN)
    ] = None,
    missed: Annotated[
        str | None,
        option(
            "--missed",
            metavar="once|skip",
            help="Due times without a daemon: execute the job once for all of them, or skip them. "
            "[as the settings say, else once]",
            panel=WHEN,
        ),
    ] = None,
    agent: Annotated[
        str | None,
        option("--agent", metavar="A", help="The agent to run; of a command, the agent of its policy.", panel=WORK),
    ] = None,
    prompt: Annotated[str | None, option("--prompt", metavar="P", help="The agent's task.", panel=WORK)] = None,
    shell: Annotated[
        str | None, option("--shell", metavar="CMD", help="A command to run in the sandbox.", panel=WORK)
    ] = None,
    kind: Annotated[
        str | None,
        option("--type", metavar="shell|agent", help="The job's type. [follows from --shell or --prompt]", panel=WORK),
    ] = None,
    no_memory: Annotated[
        bool, option("--no-memory", help="Do not add the agent's memories to the task.", panel=WORK)
    ] = False,
    replace: Annotated[bool, option("--replace", help="Replace the job of this name.")] = False,
    provider: options.ProviderFlag = None,
    base_url: options.BaseUrlFlag = None,
    api_key_env: options.ApiKeyEnvFlag = None,
    model: options.ModelFlag = None,
    config: options.ConfigFlag = None,
    no_sandbox: options.NoSandboxFlag = False,
) -> int:
    """Add a job. A daemon executes it when it is due, in this folder and with these settings.

    Keys are not stored: the daemon's environment has to have them.
    """
    from retinue.config.precedence import Flags
    from retinue.dispatch.cron.new_job import new_job

    job, notes = new_job(
        name,
        cron=cron,
        tz=tz,
        at=at,
        every=every,
        missed=missed,
        agent=agent,
        prompt=prompt,
        shell=shell,
        kind=kind,
        uses_memory=not no_memory,
        flags=Flags(model=model, provider=provider, base_url=base_url, api_key_env=api_key_env),
        config=config,
        no_sandbox=no_sandbox,
    )

    async def work(cron_table: CronTable) -> None:
        await cron_table.add(job, instead=replace)
        for note in notes:
            say(f"note: {note}")
        due = f"due at {rfc3339(job.next_run)}" if job.next_run is not None else "never due"
        say(f"added {name}, {due}; due jobs are executed by: retinue cron daemon")

    return _with_table(work)


@app.command("list", epilog="Example: retinue cron list --json")
def list_jobs(json: options.JsonFlag = False) -> int:
    """List jobs by name, with their schedule, work and last status."""
    from retinue.cli.cron.run import print_jobs

    async def work(cron_table: CronTable) -> None:
        print_jobs(await cron_table.table(), json=json)

    return _with_table(work)


@app.command(epilog="Example: retinue cron remove report")
def remove(name: NameArgument) -> int:
    """Remove a job and its log; a current execution continues."""
    return _with_table(lambda cron_table: cron_table.remove(name), f"removed {name}")


@app.command(epilog="Example: retinue cron pause report")
def pause(name: NameArgument) -> int:
    """Pause a job until it is resumed."""
    return _with_table(lambda cron_table: cron_table.pause(name), f"paused {name}")


@app.command(epilog="Example: retinue cron resume report")
def resume(name: NameArgument) -> int:
    """Resume a paused job; due times that have passed are skipped."""
    return _with_table(lambda cron_table: cron_table.resume(name, now=time.time()), f"resumed {name}")


@app.command("run-now", epilog="Example: retinue cron run-now report")
def run_now(
    name: NameArgument,
    json: options.JsonFlag = False,
    quiet: options.QuietFlag = False,
    verbose: options.VerboseFlag = False,
) -> int:
    """Execute a job now, without a daemon, and print its answer; its schedule does not change.

    Exit status: 0 answered, 1 failed, 2 bad usage or settings, 130 interrupted.
    """
    from retinue.cli.cron.run import run_job

    return perform(run_job(name, options.OutputOptions(json=json, quiet=quiet, verbose=verbose)))


@app.command(epilog="Example: retinue cron log report --limit 5")
def log(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A job. [all jobs]")] = None,
    limit: Annotated[
        int, option("--limit", metavar="N", min=1, help="The maximum number of entries; 100 of each job are kept.")
    ] = 20,
    json: options.JsonFlag = False,
) -> int:
    """Show executions of jobs, the latest first: when each was due, when it started, and how it ended."""
    from retinue.cli.cron.run import print_history

    async def work(cron_table: CronTable) -> None:
        names = sorted((await cron_table.table()).jobs) if name is None else [(await cron_table.job(name)).name]
        entries = [entry for each in names for entry in await cron_table.history(each)]
        entries.sort(key=lambda entry: entry.started_at or entry.at, reverse=True)
        print_history(entries[:limit], json=json)

    return _with_table(work)


@app.command(epilog="Examples:\n\nretinue cron daemon\n\nretinue cron daemon --once")
def daemon(
    once: Annotated[bool, option("--once", help="Execute what is due now, wait for its end, and exit.")] = False,
    config: options.ConfigFlag = None,
    quiet: options.QuietFlag = False,
) -> int:
    """Execute jobs when they are due, until Ctrl-C or SIGTERM.

    Several daemons may use one state folder: each due time is executed once. The run of an agent that was interrupted
    when the daemon stopped continues with the next one.
    """
    from retinue.cli.cron.run import run_daemon

    return perform(run_daemon(config=config, once=once, quiet=quiet))


@app.command(hidden=True)
def fire(name: str, creation_id: str, attempt: int) -> int:
    """Execute a claim of a daemon; daemons start this."""
    from retinue.cli.cron.run import run_claimed

    return perform(run_claimed(name, creation_id, attempt))


def _with_table(work: Callable[[CronTable], Awaitable[None]], done: str = "") -> int:
    from retinue.dispatch.cron.table import CronTable

    return perform_on_store(lambda client: work(CronTable(client.key_value)), done)
