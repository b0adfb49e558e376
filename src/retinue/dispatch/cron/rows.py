"""Cron jobs and their executions as JSON objects; the same in every front end."""

from __future__ import annotations

from typing import Any

from retinue.core.text import rfc3339
from retinue.dispatch.cron.daemon import is_left
from retinue.dispatch.cron.jobs import AgentWork, HistoryEntry, Job, JobTable, schedule_text


def job_row(table: JobTable, job: Job) -> dict[str, Any]:
    work = job.work
    is_agent = isinstance(work, AgentWork)
    return {
        "name": job.name,
        "type": "agent" if is_agent else "shell",
        "kind": type(job.schedule).__name__.lower(),
        "schedule": schedule_text(job.schedule),
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


def _status(table: JobTable, job: Job) -> str | None:
    claim = table.claim_of(job)
    if claim is None:
        return job.last_status
    return "interrupted" if is_left(claim.owner) else "running"


def entry_row(entry: HistoryEntry) -> dict[str, Any]:
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


def _moment(at: float | None) -> str | None:
    return None if at is None else rfc3339(at)
