"""Attach to runs that any process drives: read their events as they are stored, and wait for their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from retinue.app.read_only import ReadOnlyClient
from retinue.core.events import TreeEvent
from retinue.core.ids import RunId
from retinue.engine import RunView

POLL = 0.2
"""Seconds between two looks at the store."""

GRACE = 15.0
"""Seconds that a run may be without a driver before it counts as interrupted: a background process starts slowly."""


async def stored_events(client: ReadOnlyClient, top: RunView, *, tree: bool) -> AsyncIterator[TreeEvent]:
    """The events of a run, with `tree` of its descendants too, as they are stored.

    Ends when these runs have ended, or have had no driver for `GRACE` seconds.
    """
    async for item in client.supervisor.tree_events(top.run_id, tree=tree, grace=GRACE):
        yield item


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
