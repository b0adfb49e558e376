"""Attach to runs that any process drives: read their events as they are stored, and wait for their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

from retinue.app.read_only import ReadOnlyClient
from retinue.core.commands import RunQuery, RunRow
from retinue.core.errors import UnknownName
from retinue.core.events import Event
from retinue.core.ids import RunId
from retinue.engine import RunView

POLL = 0.2
"""Seconds between two looks at the store."""

GRACE = 15.0
"""Seconds that a run may be without a driver before it counts as interrupted: a background process starts slowly."""


class StoredEvent(NamedTuple):
    """An event of a run, with its number."""

    row: RunRow
    seq: int
    event: Event


async def stored_events(client: ReadOnlyClient, top: RunView, *, tree: bool) -> AsyncIterator[StoredEvent]:
    """The events of a run, with `tree` of its descendants too, in the order of their times.

    Ends when these runs have ended, or have had no driver for `GRACE` seconds.
    """
    read: dict[RunId, int] = {}
    async for rows in _changes(client, top, tree=tree):
        news: list[StoredEvent] = []
        for row in rows:
            if row.seq > read.get(row.run_id, 0):
                events = await client.supervisor.stored.events(row.run_id, read.get(row.run_id, 0))
                news += [StoredEvent(row, seq, event) for seq, event in events]
                read[row.run_id] = row.seq if not events else events[-1][0]
        for each in sorted(news, key=lambda each: each.event.at):
            yield each


async def ends(client: ReadOnlyClient, run_ids: Sequence[RunId]) -> AsyncIterator[RunView]:
    """Each run when it has ended; one without an outcome has had no driver for `GRACE` seconds."""
    waiting = list(dict.fromkeys(run_ids))
    patience = _Patience()
    while waiting:
        views = [await client.look(run_id) for run_id in waiting]
        for view in views:
            if view.outcome is not None or patience.is_over(view.run_id, view.state == "interrupted"):
                waiting.remove(view.run_id)
                yield view
        if waiting:
            await asyncio.sleep(POLL)


async def _changes(client: ReadOnlyClient, top: RunView, *, tree: bool) -> AsyncIterator[Sequence[RunRow]]:
    patience = _Patience()
    while True:
        rows = await _rows(client, top, tree=tree)
        yield rows
        unfinished = [row for row in rows if row.progress.outcome is None]
        undriven = [not await client.supervisor.is_driven(row) for row in unfinished]
        if not unfinished or patience.is_over(top.run_id, all(undriven)):
            return
        await asyncio.sleep(POLL)


async def _rows(client: ReadOnlyClient, top: RunView, *, tree: bool) -> list[RunRow]:
    """The rows of a run and, with `tree`, of its descendants, parents first."""
    if not tree:
        row = await client.supervisor.stored.run(top.run_id)
        if row is None:
            raise UnknownName("run", top.run_id)
        return [row]
    rows = await client.supervisor.stored.runs(RunQuery(root_id=top.root_id))
    return _below(top.run_id, sorted(rows, key=lambda row: (row.accepted_at, row.run_id)))


def _below(top_id: RunId, rows: Iterable[RunRow]) -> list[RunRow]:
    below: dict[RunId, RunRow] = {}
    for row in rows:
        if row.run_id == top_id or row.parent_id in below:
            below[row.run_id] = row
    return list(below.values())


class _Patience:
    """How long runs have been without a driver."""

    def __init__(self) -> None:
        self._since: dict[RunId, float] = {}

    def is_over(self, run_id: RunId, undriven: bool) -> bool:
        now = asyncio.get_running_loop().time()
        if not undriven:
            self._since.pop(run_id, None)
            return False
        return now - self._since.setdefault(run_id, now) >= GRACE
