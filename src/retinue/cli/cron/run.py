"""The commands of `retinue cron` that execute jobs: `run-now`, `daemon`, and `fire`, which the daemon starts."""

from __future__ import annotations

import asyncio

from retinue.app.engine_types import Approver
from retinue.app.handle import RunHandle
from retinue.app.open import open_read_only
from retinue.app.retinue import Retinue
from retinue.app.settings_file import load_settings
from retinue.cli.event_loop import INTERRUPTED, interrupts
from retinue.cli.options import ApprovalOptions, OutputOptions
from retinue.cli.output.progress import approver_for, follow, print_interrupted, print_outcome
from retinue.cli.output.terminal import answer, answer_json, say, stdout_for_answers_alone
from retinue.config.cron import CRON, CronSettings
from retinue.core.run import Outcome
from retinue.core.text import clean, plural
from retinue.dispatch.cron.daemon import serve
from retinue.dispatch.cron.execute import FrontEnd, JobResult, run_claim, run_now
from retinue.dispatch.cron.table import CronTable


async def run_job(name: str, output: OutputOptions) -> int:
    """Execute a job now, and print its result; the exit code."""
    with interrupts() as stop, stdout_for_answers_alone():
        progress = OutputOptions(quiet=output.quiet or output.json, verbose=output.verbose)
        async with open_read_only() as client:
            result = await run_now(client, name, _terminal(stop, progress, at_terminal=True))
    return _print_result(name, result, output)


async def run_claimed(name: str, born: str, attempt: int) -> int:
    """Execute a claim of a daemon; the exit code."""
    with interrupts() as stop, stdout_for_answers_alone():
        async with open_read_only() as client:
            result = await run_claim(client, name, born, attempt, _terminal(stop, OutputOptions(quiet=True)))
    if result is None or result.status == "ok":
        return 0
    return INTERRUPTED if result.status == "interrupted" and result.run_id else 1


def _terminal(stop: asyncio.Event, output: OutputOptions, *, at_terminal: bool = False) -> FrontEnd:
    """Progress on stderr; at a terminal questions are announced there, too."""

    def approver(settings: CronSettings) -> Approver:
        return approver_for(ApprovalOptions(settings.approvals)) if at_terminal else settings.approvals

    async def follow_run(retinue: Retinue, root: RunHandle, approver: Approver) -> Outcome | None:
        return await follow(retinue, root, stop, approver=approver, output=output)

    return FrontEnd(stop=stop, approver=approver, follow=follow_run)


def _print_result(name: str, result: JobResult, output: OutputOptions) -> int:
    if result.outcome is not None:
        return print_outcome(result.run_id, result.outcome, output.form)
    if result.status == "interrupted" and result.run_id:
        return print_interrupted(result.run_id)
    if output.json:
        answer_json({"name": name, "status": result.status, "output": result.output, "error": result.error or None})
    elif result.status == "ok":
        answer(result.output)
    else:
        say(clean(result.output or result.error))
    return 0 if result.status == "ok" else INTERRUPTED if result.status == "interrupted" else 1


async def run_daemon(*, config: str | None, once: bool, quiet: bool) -> int:
    """Execute jobs as they are due, until Ctrl-C; the exit code."""
    settings = load_settings(config).section(CRON.name, CronSettings)
    with interrupts() as stop:
        async with open_read_only() as client:
            cron_table = CronTable(client.key_value)
            if not quiet and not once:
                say(f"cron daemon: {plural(len((await cron_table.table()).jobs), 'job')}; Ctrl-C stops it")
            await serve(cron_table, stop, _ignore if quiet else say, most=settings.max_running, once=once)
    return 0


def _ignore(line: str) -> None:
    pass
