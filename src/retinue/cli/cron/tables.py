"""Jobs and their histories as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retinue.cli.output.format import one_line
from retinue.cli.output.table import Column, print_table
from retinue.cli.output.terminal import answer_json, say
from retinue.core.text import clean, rfc3339
from retinue.dispatch.cron.daemon import is_left
from retinue.dispatch.cron.history import HistoryEntry
from retinue.dispatch.cron.jobs import AgentWork, Job, Table, in_words
from retinue.dispatch.cron.schedule import Schedule


def print_jobs(table: Table, *, json: bool) -> None:
    """Print all jobs, by name."""
    rows = [_job_row(table, table.jobs[name]) for name in sorted(table.jobs)]
    if json:
        answer_json(rows)
    elif not rows:
        say("no jobs yet; add one with: retinue cron add NAME --every 1h --agent A --prompt P")
    else:
        columns: list[Column[dict[str, Any]]] = [
            Column(title="JOB", cell=lambda row: row["name"]),
            Column(title="SCHEDULE", cell=lambda row: clean(_when(row))),
            Column(title="NEXT RUN", cell=lambda row: "paused" if row["paused"] else row["next_run"] or "never"),
            Column(title="LAST RUN", cell=lambda row: row["last_run"] or "-", least_width=80),
            Column(title="STATUS", cell=lambda row: row["last_status"] or "-"),
            Column(title="WHAT", cell=_what, shrinks=True),
        ]
        print_table(rows, columns)


def _job_row(table: Table, job: Job) -> dict[str, Any]:
    work = job.work
    is_agent = isinstance(work, AgentWork)
    return {
        "name": job.name,
        "type": "agent" if is_agent else "shell",
        "kind": _kind(job.schedule),
        "schedule": in_words(job.schedule),
        "agent": work.agent or None,
        "prompt": work.prompt if is_agent else None,
        "command": None if is_agent else work.command,
        "tz": job.tz,
        "missed": job.missed,
        "paused": job.paused,
        "next_run": _moment(job.next_run),
        "last_run": _moment(job.last_run),
        "last_status": _status(table, job),
        "workspace": job.place.workspace,
    }


def _kind(schedule: Schedule) -> str:
    return type(schedule).__name__.lower()


def _status(table: Table, job: Job) -> str | None:
    claim = table.claim_of(job)
    if claim is None:
        return job.last_status
    return "interrupted" if is_left(claim.owner) else "running"


def _when(row: dict[str, Any]) -> str:
    prefix = "every " if row["kind"] == "every" else "at " if row["kind"] == "at" else ""
    return f"{prefix}{row['schedule']}{' ' + row['tz'] if row['kind'] == 'cron' else ''}"


def _what(row: dict[str, Any]) -> str:
    return one_line(f"{row['agent']}: {row['prompt']}" if row["prompt"] is not None else f"$ {row['command']}", 1000)


def print_history(entries: Sequence[HistoryEntry], *, json: bool) -> None:
    """Print history entries in the given order."""
    rows = [_entry_row(entry) for entry in entries]
    if json:
        answer_json(rows)
    elif not rows:
        say("nothing was done yet")
    else:
        columns: list[Column[dict[str, Any]]] = [
            Column(title="JOB", cell=lambda row: row["name"]),
            Column(title="DUE", cell=lambda row: row["due"] or "by hand"),
            Column(title="STARTED", cell=lambda row: row["started_at"] or "-"),
            Column(title="STATUS", cell=lambda row: row["status"]),
            Column(title="SECONDS", cell=_seconds, right=True),
            Column(title="RUN", cell=lambda row: row["run_id"] or "-", least_width=120),
            Column(title="WHAT HAPPENED", cell=lambda row: clean(row["error"] or row["output"] or ""), shrinks=True),
        ]
        print_table(rows, columns)


def _entry_row(entry: HistoryEntry) -> dict[str, Any]:
    abandoned = entry.status == "running" and is_left(entry.owner)
    started, ended = entry.started_at, entry.ended_at
    return {
        "name": entry.name,
        "due": _moment(entry.due),
        "started_at": _moment(started),
        "ended_at": _moment(ended),
        "seconds": None if started is None or ended is None else round(max(0.0, ended - started), 3),
        "status": "interrupted" if abandoned else entry.status,
        "run_id": entry.run_id or None,
        "error": entry.error or None,
        "output": entry.output or None,
    }


def _seconds(row: dict[str, Any]) -> str:
    return "-" if row["seconds"] is None else f"{row['seconds']:.1f}"


def _moment(at: float | None) -> str | None:
    return None if at is None else rfc3339(at)
