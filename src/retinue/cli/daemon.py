"""`retinue daemon`: run it in the foreground, show its status, stop it, and print a systemd unit for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retinue.cli import options
from retinue.cli.event_loop import interrupts, perform
from retinue.cli.options import option
from retinue.cli.output.terminal import answer, answer_json, answer_lines, say
from retinue.core.text import rfc3339

if TYPE_CHECKING:
    from retinue.dispatch.daemon.lock import DaemonFacts
    from retinue.dispatch.daemon.service import Workload

NOT_RUNNING = 3
"""The exit status of `status` without a daemon, as service managers have it."""

app = typer.Typer(
    name="daemon",
    help="Execute cron jobs, and continue background and detached runs.",
    epilog="Examples:\n\nretinue daemon\n\nretinue daemon status\n\nretinue daemon stop\n\n"
    "retinue daemon install > ~/.config/systemd/user/retinue.service",
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def daemon(context: typer.Context, config: options.ConfigFlag = None, quiet: options.QuietFlag = False) -> int:
    """Run in the foreground until Ctrl-C or SIGTERM; commands show its status, stop it and print a unit for systemd.

    Cron jobs are executed when they are due. A detached run whose process is gone is continued, and so are background
    runs whose root has ended. One daemon serves a state folder. When it stops, runs in progress are left in the store,
    and the next daemon continues them. Exit status: 0 stopped, 1 another daemon runs, 2 bad usage or settings.
    """
    if context.invoked_subcommand is not None:
        if config is not None or quiet:
            raise typer.BadParameter(f"put flags after the command: retinue daemon {context.invoked_subcommand} ...")
        return 0
    return perform(_run(config, quiet=quiet))


async def _run(config: str | None, *, quiet: bool) -> int:
    import time

    from retinue.app.open import default_home, open_read_only
    from retinue.app.retention import store_settings
    from retinue.app.settings_file import load_settings
    from retinue.config.cron import CRON, CronSettings
    from retinue.dispatch.daemon.lock import DaemonLock
    from retinue.dispatch.daemon.service import serve

    settings = load_settings(config)
    home = default_home().absolute()
    with interrupts() as stop:
        lock = await DaemonLock.take(home, since=time.time(), config=str(settings.source or ""))
        try:
            async with open_read_only() as client:
                if client.unwritable is not None:
                    raise client.unwritable

                def report(line: str) -> None:
                    if not quiet:
                        say(line)

                jobs = settings.section(CRON.name, CronSettings)
                await serve(client, jobs, store_settings(settings), stop, report, lock.note_stopping)
        finally:
            lock.release()
    return 0


@app.command(epilog="Examples:\n\nretinue daemon status\n\nretinue daemon status --json")
def status(json: options.JsonFlag = False) -> int:
    """Show the daemon of this state folder: its process, since when, its jobs and its runs.

    Exit status: 0 a daemon runs, 3 none.
    """
    from retinue.app.open import default_home
    from retinue.dispatch.daemon.lock import running_daemon

    home = default_home().absolute()
    facts = running_daemon(home)
    if facts is None:
        if json:
            answer_json({"running": False, "home": str(home)})
        else:
            answer_lines(f"no daemon runs for {home}")
        return NOT_RUNNING
    return perform(_status(facts, home, json=json))


async def _status(facts: DaemonFacts, home: Path, *, json: bool) -> int:
    from retinue.app.open import STORE, open_read_only
    from retinue.app.state_folder import chosen_url, shown_url
    from retinue.dispatch.daemon.service import read_workload

    url = chosen_url()
    store = str(home / STORE) if url is None else shown_url(url)
    async with open_read_only() as client:
        workload = await read_workload(client)
    if json:
        answer_json(_as_json(facts, home, store, workload))
        return 0
    driven = [tree.root_id for tree in workload.trees if tree.is_driven]
    waiting = [tree.root_id for tree in workload.trees if not tree.is_driven]
    rows = {
        "pid": f"{facts.pid}{' (stopping)' if facts.stopping else ''}",
        "since": rfc3339(facts.since),
        "store": store,
        "settings": facts.config or "-",
        "jobs": ", running: ".join(filter(None, (str(workload.jobs), ", ".join(workload.jobs_running)))),
        "runs": "; ".join(
            f"{len(run_ids)} {word}: {', '.join(run_ids)}"
            for word, run_ids in (("running", driven), ("waiting", waiting))
            if run_ids
        )
        or "0",
    }
    answer_lines(*(f"{name.ljust(8)}  {value}" for name, value in rows.items()))
    return 0


def _as_json(facts: DaemonFacts, home: Path, store: str, workload: Workload) -> dict[str, Any]:
    return {
        "running": True,
        "home": str(home),
        "pid": facts.pid,
        "since": rfc3339(facts.since),
        "stopping": facts.stopping,
        "store": store,
        "settings": facts.config or None,
        "jobs": workload.jobs,
        "jobs_running": list(workload.jobs_running),
        "runs": [{"run_id": tree.root_id, "running": tree.is_driven} for tree in workload.trees],
    }


@app.command(epilog="Examples:\n\nretinue daemon stop\n\nretinue daemon stop --timeout 120")
def stop(
    timeout: Annotated[float, option("--timeout", metavar="S", min=0, help="The longest wait for its end.")] = 30.0,
) -> int:
    """Stop the daemon of this state folder and wait for its end; without a daemon there is nothing to do.

    Its runs are left in the store and can be resumed. Exit status: 0 no daemon runs any more, 1 it has not ended in
    time.
    """
    seconds = options.countable("--timeout", timeout)
    assert seconds is not None
    return perform(_stop(seconds))


async def _stop(seconds: float) -> int:
    from retinue.app.open import default_home
    from retinue.dispatch.daemon.lock import running_daemon, stop

    home = default_home().absolute()
    try:
        stopped = await stop(home, timeout=seconds)
    except TimeoutError:
        facts = running_daemon(home)
        process = "" if facts is None or facts.pid is None else f", process {facts.pid},"
        say(
            f"error: the daemon{process} has not ended within {seconds:g} s; "
            "it is still stopping: wait for it with the same command"
        )
        return 1
    say(f"no daemon runs for {home}" if stopped is None else f"stopped the daemon, process {stopped.pid}")
    return 0


@app.command(epilog="Example: retinue daemon install > ~/.config/systemd/user/retinue.service")
def install(config: options.ConfigFlag = None) -> int:
    """Print a systemd user unit that runs the daemon for this state folder; nothing is changed.

    The settings file is that of the current folder, or --config.
    """
    from retinue.app.open import default_home
    from retinue.app.settings_file import load_settings
    from retinue.dispatch.daemon.unit import NAME, unit

    answer(unit(default_home().absolute(), load_settings(config).source))
    say(
        f"nothing was changed; to install it, write this to ~/.config/systemd/user/{NAME} and run:",
        f"systemctl --user daemon-reload && systemctl --user enable --now {NAME}",
        "keys of providers go into ~/.config/retinue/environment, one NAME=value per line",
    )
    return 0
