"""Tokens and costs of runs by day, agent and model, summed from the rows of the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from retinue.app.read_only import ReadOnlyClient
from retinue.core.commands import RunQuery, RunRow
from retinue.core.errors import StoreError
from retinue.core.usage import NO_USAGE, Usage, add_cost

STEP = 1000
"""Rows that are read at once: other work of the process goes on between two steps."""

MAX_RUNS = 200_000
"""Runs that one report sums at most; older ones are left out, and `is_complete` is false."""


class UsageRow(Struct, frozen=True, kw_only=True):
    """What the runs of one agent that began on one day (UTC) used of one model; `cost` is None if it is unknown."""

    day: str
    agent: str
    model: str
    runs: int
    failed: int
    usage: Usage
    cost: int | None


class UsageReport(Struct, frozen=True, kw_only=True):
    """Rows by day, agent and model, the latest day first; `is_complete` is false if runs were left out."""

    rows: tuple[UsageRow, ...]
    is_complete: bool


async def usage_report(client: ReadOnlyClient, *, days: int, now: float) -> UsageReport:
    """The use of the last `days` days, today included. A run counts where it began, with the model it was given."""
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    since = (today - timedelta(days=days - 1)).timestamp()
    models: dict[str, str] = {}
    sums: dict[tuple[str, str, str], UsageRow] = {}
    seen = 0
    async for row in _rows_since(client, since):
        seen += 1
        if seen > MAX_RUNS:
            break
        if row.run_spec not in models:
            models[row.run_spec] = await _model(client, row.run_spec)
        day = datetime.fromtimestamp(row.accepted_at, UTC).date().isoformat()
        place = (day, row.agent, models[row.run_spec])
        sums[place] = _with(sums.get(place), place, row)
    ordered = sorted(sums.values(), key=lambda each: (each.agent, each.model))
    ordered.sort(key=lambda each: each.day, reverse=True)
    return UsageReport(rows=tuple(ordered), is_complete=seen <= MAX_RUNS)


async def _rows_since(client: ReadOnlyClient, since: float) -> AsyncIterator[RunRow]:
    before: tuple[float, str] | None = None
    while True:
        rows = await client.supervisor.stored.runs(RunQuery(before=before, limit=STEP))
        for row in rows:
            if row.accepted_at < since:
                return
            yield row
        if len(rows) < STEP:
            return
        before = (rows[-1].accepted_at, rows[-1].run_id)


async def _model(client: ReadOnlyClient, digest: str) -> str:
    try:
        return (await client.supervisor.stored.run_spec(digest)).model
    except StoreError:  # the row counts, even if what it refers to is damaged
        return ""


def _with(before: UsageRow | None, place: tuple[str, str, str], row: RunRow) -> UsageRow:
    progress = row.progress
    day, agent, model = place
    failed = progress.outcome is not None and not progress.outcome.ok
    return UsageRow(
        day=day,
        agent=agent,
        model=model,
        runs=(before.runs if before is not None else 0) + 1,
        failed=(before.failed if before is not None else 0) + failed,
        usage=(before.usage if before is not None else NO_USAGE) + progress.usage,
        cost=add_cost(before.cost if before is not None else 0, progress.cost),
    )
