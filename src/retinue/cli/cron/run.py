"""The bodies of the `retinue cron` commands: execute jobs, run the daemon, and print jobs and their histories."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from retinue.app.engine_types import Approver
from retinue.app.handle import RunHandle
from retinue.app.open import open_read_only
from retinue.app.retinue import Retinue
from retinue.app.settings_file import load_settings
from retinue.cli.event_loop import interrupts
from retinue.cli.options import ApprovalOptions, OutputOptions
from retinue.cli.output.format import one_line
from retinue.cli.output.progress import approver_for, follow, print_interrupted, print_outcome
from retinue.cli.output.table import Column, print_table
from retinue.cli.output.terminal import INTERRUPTED, answer, answer_json, say, say_text, stdout_for_answers_alone
from retinue.config.cron import CRON, CronSettings
from retinue.core.run import Outcome
from retinue.core.text import plural
from retinue.dispatch.cron.daemon import serve
from retinue.dispatch.cron.execute import FrontEnd, JobResult, run_claim, run_now
from retinue.dispatch.cron.jobs import HistoryEntry, JobTable
from retinue.dispatch.cron.rows import entry_row, job_row
from retinue.dispatch.cron.table import CronTable


async def run_job(name: str, output: OutputOptions) -> int:
    """Execute a job now, and print its result; the exit code."""
    with interrupts() as stop, stdout_for_answers_alone():
        progress = OutputOptions(quiet=output.quiet or output.json, verbose=output.verbose)
        async with open_read_only() as client:
            result = await run_now(client, name, _terminal(stop, progress, at_terminal=True))
    return _print_result(name, result, output)


async def run_claimed(name: str, creation_id: str, attempt: int) -> int:
    with interrupts() as stop, stdout_for_answers_alone():
        async with open_read_only() as client:
            result = await run_claim(client, name, creation_id, attempt, _terminal(stop, OutputOptions(quiet=True)))
    if result is None or result.status == "ok":
        return 0
    return INTERRUPTED if result.status == "interrupted" and result.run_id else 1


def _terminal(stop: asyncio.Event, output: OutputOptions, *, at_terminal: bool = False) -> FrontEnd:
    """Progress on stderr; at a terminal questions are announced there, too."""

    def approver(settings: CronSettings) -> Approver:
        return approver_for(ApprovalOptions(settings.approvals)) if at_terminal else settings.approvals

    async def follow_run(retinue: Retinue, root: RunHandle, approver: Approver) -> Outcome | None:
        return (await follow(retinue, root, stop, approver=approver, output=output)).outcome

    return FrontEnd(stop=stop, approver=approver, follow=follow_run)


def _print_result(name: str, result: JobResult, output: OutputOptions) -> int:
    if result.outcome is not None:
        return print_outcome(result.run_id, result.outcome, output.form, task=result.task)
    if result.status == "interrupted" and result.run_id:
        return print_interrupted(result.run_id)
    if output.json:
        answer_json({"name": name, "status": result.status, "output": result.output, "error": result.error or None})
    elif result.status == "ok":
        answer(result.output)
    else:
        say_text(result.output or result.error)
    return 0 if result.status == "ok" else INTERRUPTED if result.status == "interrupted" else 1


async def run_daemon(*, config: str | None, once: bool, quiet: bool) -> int:
    """Execute jobs as they are due, until Ctrl-C; the exit code."""
    settings = load_settings(config).section(CRON.name, CronSettings)
    with interrupts() as stop:
        async with open_read_only() as client:
            cron_table = CronTable(client.key_value)
            if not quiet and not once:
                say(f"cron daemon: {plural(len((await cron_table.table()).jobs), 'job')}; Ctrl-C stops it")
            await serve(
                cron_table, stop, (lambda line: None) if quiet else say, max_running=settings.max_running, once=once
            )
    return 0


def print_jobs(table: JobTable, *, json: bool) -> None:
    rows = [job_row(table, table.jobs[name]) for name in sorted(table.jobs)]
    if json:
        answer_json(rows)
    elif not rows:
        say("no jobs yet; add one with: retinue cron add NAME --every 1h --agent A --prompt P")
    else:
        columns: list[Column[dict[str, Any]]] = [
            Column(title="JOB", cell=lambda row: row["name"]),
            Column(title="SCHEDULE", cell=lambda row: _when(row)),
            Column(title="NEXT RUN", cell=lambda row: "paused" if row["paused"] else row["next_run"] or "never"),
            Column(title="LAST RUN", cell=lambda row: row["last_run"] or "-", least_width=80),
            Column(title="STATUS", cell=lambda row: row["last_status"] or "-"),
            Column(title="WHAT", cell=_what, shrinks=True),
        ]
        print_table(rows, columns)


def _when(row: dict[str, Any]) -> str:
    prefix = "every " if row["kind"] == "every" else "at " if row["kind"] == "at" else ""
    return f"{prefix}{row['schedule']}{' ' + row['tz'] if row['kind'] == 'cron' else ''}"


def _what(row: dict[str, Any]) -> str:
    return one_line(f"{row['agent']}: {row['prompt']}" if row["prompt"] is not None else f"$ {row['command']}", 1000)


def print_history(entries: Sequence[HistoryEntry], *, json: bool) -> None:
    rows = [entry_row(entry) for entry in entries]
    if json:
        answer_json(rows)
    elif not rows:
        say("no executions yet")
    else:
        columns: list[Column[dict[str, Any]]] = [
            Column(title="JOB", cell=lambda row: row["name"]),
            Column(title="DUE", cell=lambda row: row["due"] or "by hand"),
            Column(title="STARTED", cell=lambda row: row["started_at"] or "-"),
            Column(title="STATUS", cell=lambda row: row["status"]),
            Column(title="SECONDS", cell=_seconds, right=True),
            Column(title="RUN", cell=lambda row: row["run_id"] or "-", least_width=120),
            Column(title="WHAT HAPPENED", cell=lambda row: row["error"] or row["output"] or "", shrinks=True),
        ]
        print_table(rows, columns)


def _seconds(row: dict[str, Any]) -> str:
    return "-" if row["seconds"] is None else f"{row['seconds']:.1f}"
