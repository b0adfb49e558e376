"""`retinue cron daemon`: every job that is due gets a process of its own, in the folder it was added in."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from retinue.app.open import SystemClock, default_home, open_read_only
from retinue.app.settings_file import load_settings
from retinue.cli.detach import PYTHON
from retinue.cli.event_loop import interrupts
from retinue.cli.output.terminal import say
from retinue.config.cron import CRON, CronSettings
from retinue.core.text import rfc3339
from retinue.dispatch.cron.daemon import Daemon
from retinue.dispatch.cron.fire import myself
from retinue.dispatch.cron.jobs import Claim
from retinue.dispatch.cron.table import CronTable

PATIENCE = 10.0
"""Seconds that jobs get to stop in good order."""


async def serve(*, config: str | None, once: bool, quiet: bool) -> int:
    """Do jobs as they are due, until somebody asks to stop; the exit code."""
    settings = load_settings(config).section(CRON.name, CronSettings)
    processes = Processes(quiet=quiet)
    with interrupts() as asked_to_stop:
        async with open_read_only() as client:
            cron_table = CronTable(client.key_value)
            daemon = Daemon(cron_table, SystemClock(), myself(), processes.launch, most=settings.max_running)
            if not quiet and not once:
                count = len((await cron_table.table()).jobs)
                say(f"cron daemon: {count} {'job' if count == 1 else 'jobs'}; Ctrl-C stops it")
            working = asyncio.ensure_future(daemon.run_once() if once else daemon.run())
            stopping = asyncio.ensure_future(asked_to_stop.wait())
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                daemon.stop()
                await processes.stop()
            stopping.cancel()
            await working
    return 0


class Processes:
    """The processes that carry out jobs for this daemon. They outlive it if it is killed."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._stopping = False
        self._running: set[asyncio.subprocess.Process] = set()

    async def launch(self, claim: Claim) -> str:
        """Carry out a claim and wait for its end; what went wrong if it ended badly."""
        if self._stopping:
            return "the daemon was stopping"
        try:
            process = await asyncio.create_subprocess_exec(
                *(*PYTHON, "-m", "retinue", "cron", "fire", claim.name, claim.born, str(claim.attempt)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                env=os.environ | {"RETINUE_HOME": str(default_home().absolute())},
                start_new_session=True,  # Ctrl-C is for the daemon, which passes it on once
            )
        except OSError as error:
            return str(error)
        self._running.add(process)
        if self._stopping:
            process.terminate()
        if not self._quiet:
            say(f"{claim.name}: started (due {rfc3339(claim.due)})")
        code = await process.wait()
        self._running.discard(process)
        if not self._quiet:
            say(f"{claim.name}: {'done' if code == 0 else f'ended with exit code {code}'}")
        return "" if code == 0 else f"its process ended with exit code {code}"

    async def stop(self) -> None:
        """Ask all of them to stop, and end those who do not."""
        self._stopping = True
        for process in self._running:
            _tell(process, signal.SIGTERM)
        if self._running:
            ends = [asyncio.ensure_future(process.wait()) for process in self._running]
            await asyncio.wait(ends, timeout=PATIENCE)
            for process in self._running:
                _tell(process, signal.SIGKILL)
            await asyncio.gather(*ends)


def _tell(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it is over
        process.send_signal(number)
