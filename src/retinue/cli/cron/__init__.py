"""`retinue cron`: add, list, pause and remove jobs, and execute them: by the daemon, or at once with `run-now`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from retinue.cli.options import (
    ApiKeyEnvFlag,
    BaseUrlFlag,
    ConfigFlag,
    JsonFlag,
    ModelFlag,
    NoSandboxFlag,
    OutputOptions,
    ProviderFlag,
    QuietFlag,
    VerboseFlag,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from retinue.dispatch.cron.table import CronTable

__all__ = ["app"]

WHEN = "When it is due"
WHAT = "What is done"

app = typer.Typer(
    name="cron",
    help="Jobs that are done by the clock: agents with a prompt, or commands.",
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
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is to be called: a-z, 0-9, _ and -.")],
    cron: Annotated[
        str | None,
        typer.Option("--cron", metavar="EXPR", help="Minute, hour, day, month, weekday.", rich_help_panel=WHEN),
    ] = None,
    tz: Annotated[
        str | None,
        typer.Option("--tz", metavar="Z", help="The time zone of --cron, or of --at. [UTC]", rich_help_panel=WHEN),
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="T", help="Once, as in 2026-12-24T18:00:00Z.", rich_help_panel=WHEN)
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", metavar="D", help="30s, 5m, 1h or 1d from now on.", rich_help_panel=WHEN)
    ] = None,
    missed: Annotated[
        str | None,
        typer.Option(
            "--missed",
            metavar="once|skip",
            help="Moments at which no daemon ran: made up for once, or skipped. [as the settings say, else once]",
            rich_help_panel=WHEN,
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            metavar="A",
            help="The agent of the settings that does it; of a command, the one whose policy holds.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="P", help="What the agent is asked.", rich_help_panel=WHAT)
    ] = None,
    shell: Annotated[
        str | None, typer.Option("--shell", metavar="CMD", help="A command for the sandbox.", rich_help_panel=WHAT)
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--type", metavar="shell|agent", help="Which of the two; need not be said.", rich_help_panel=WHAT),
    ] = None,
    no_memory: Annotated[
        bool, typer.Option("--no-memory", metavar="", help="Do not show the agent its memories.", rich_help_panel=WHAT)
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", metavar="", help="Put it in the place of a job of that name.")
    ] = False,
    provider: ProviderFlag = None,
    base_url: BaseUrlFlag = None,
    api_key_env: ApiKeyEnvFlag = None,
    model: ModelFlag = None,
    config: ConfigFlag = None,
    no_sandbox: NoSandboxFlag = False,
) -> int:
    """Add a job. It is done in this folder, with these settings, whenever a daemon runs.

    Keys are not stored: the daemon's environment needs to have them.
    """
    from retinue.cli.output.terminal import say
    from retinue.config.precedence import Flags
    from retinue.core.text import rfc3339
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
        say(f"added {name}, {due}; a daemon does it: retinue cron daemon")

    return _with_table(work)


@app.command("list", epilog="Example: retinue cron list --json")
def list_jobs(json: JsonFlag = False) -> int:
    """List jobs, by name: what each does, when it is due and how it went."""
    from retinue.cli.cron.run import print_jobs

    async def work(cron_table: CronTable) -> None:
        print_jobs(await cron_table.table(), json=json)

    return _with_table(work)


@app.command(epilog="Example: retinue cron remove report")
def remove(name: NameArgument) -> int:
    """Remove a job and its log. Where it is being done right now, that goes on."""
    return _with_table(lambda cron_table: cron_table.remove(name), f"removed {name}")


@app.command(epilog="Example: retinue cron pause report")
def pause(name: NameArgument) -> int:
    """Let a job not be due until it is resumed."""
    return _with_table(lambda cron_table: cron_table.pause(name), f"paused {name}")


@app.command(epilog="Example: retinue cron resume report")
def resume(name: NameArgument) -> int:
    """Let a paused job be due again; what it missed meanwhile is not made up for."""
    import time

    return _with_table(lambda cron_table: cron_table.resume(name, now=time.time()), f"resumed {name}")


@app.command("run-now", epilog="Example: retinue cron run-now report")
def run_now(name: NameArgument, json: JsonFlag = False, quiet: QuietFlag = False, verbose: VerboseFlag = False) -> int:
    """Do a job here and now, and print its answer; needs no daemon, and changes nothing about when it is due.

    Exit status: 0 answered, 1 failed, 2 bad usage or settings, 130 interrupted.
    """
    from retinue.cli.cron.run import run_job
    from retinue.cli.event_loop import perform

    return perform(run_job(name, OutputOptions(json=json, quiet=quiet, verbose=verbose)))


@app.command(epilog="Example: retinue cron log report --limit 5")
def log(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A job; all of them by default.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="How many at most; 100 of each job are kept.")
    ] = 20,
    json: JsonFlag = False,
) -> int:
    """Show what became of jobs, the latest first: when they were due, when they began, and how they ended."""
    from retinue.cli.cron.run import print_history

    async def work(cron_table: CronTable) -> None:
        names = sorted((await cron_table.table()).jobs) if name is None else [(await cron_table.job(name)).name]
        entries = [entry for each in names for entry in await cron_table.firings(each)]
        entries.sort(key=lambda entry: entry.started_at or entry.at, reverse=True)
        print_history(entries[:limit], json=json)

    return _with_table(work)


@app.command(epilog="Examples:\n\nretinue cron daemon\n\nretinue cron daemon --once")
def daemon(
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="Do what is due by now, wait for its end, and leave.")
    ] = False,
    config: ConfigFlag = None,
    quiet: QuietFlag = False,
) -> int:
    """Do jobs when they are due, until Ctrl-C or a request to terminate.

    Several daemons may run on one state folder: none does what another does. What an agent was doing when the daemon
    stopped goes on with the next one.
    """
    from retinue.cli.cron.run import run_daemon
    from retinue.cli.event_loop import perform

    return perform(run_daemon(config=config, once=once, quiet=quiet))


@app.command(hidden=True)
def fire(name: str, born: str, attempt: int) -> int:
    """Carry out what a daemon has claimed; daemons start this."""
    from retinue.cli.cron.run import run_claimed
    from retinue.cli.event_loop import perform

    return perform(run_claimed(name, born, attempt))


def _with_table(work: Callable[[CronTable], Awaitable[None]], done: str = "") -> int:
    from retinue.app.open import open_read_only
    from retinue.cli.event_loop import perform
    from retinue.cli.output.terminal import say
    from retinue.dispatch.cron.table import CronTable

    async def main() -> int:
        async with open_read_only() as client:
            await work(CronTable(client.key_value))
        if done:
            say(done)
        return 0

    return perform(main())
