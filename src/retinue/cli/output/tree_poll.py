"""A tree at work as rows, looked at from time to time: costs nothing per turn and nothing per streamed word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Protocol

from retinue.app.engine_types import RunView, Supervisor
from retinue.core.ids import RunId

EVERY = 0.2
"""Seconds between two looks."""


class Shows(Protocol):
    """Whoever draws a tree for a person: gets all rows of it, again and again, the root first."""

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str]) -> None:
        """The tree as it stands now; `tasks` are the words that runs were started with, as far as they are known."""
        ...


class Screen(Shows, Protocol):
    """Whoever draws a tree on a terminal, and makes room there for others."""

    def paused(self) -> AbstractContextManager[None]:
        """Keep off the terminal for as long as the block lasts."""
        ...


class TreeWatch:
    """The rows of one tree that this process drives, those that ended included, in the order in which they began."""

    def __init__(self, supervisor: Supervisor, root_id: RunId, earlier: Iterable[RunView] = ()) -> None:
        self._supervisor = supervisor
        self._root_id = root_id
        self._views = {view.run_id: view for view in earlier}
        self.tasks: dict[RunId, str] = {}

    def look(self) -> list[RunView]:
        """The tree as it stands now."""
        for live in self._supervisor.live_runs():
            accepted = live.run.accepted
            if accepted.root_id == self._root_id:
                self.tasks[accepted.run_id] = accepted.task
                self._views[accepted.run_id] = live.view()
        # Ends are in the order of their happening: what comes before a known one is known, too.
        for view in self._supervisor.recent_ends():
            if view.root_id != self._root_id:
                continue
            if (known := self._views.get(view.run_id)) is not None and known.outcome is not None:
                break
            self._views[view.run_id] = view
        return sorted(self._views.values(), key=lambda view: (view.started_at, view.run_id))


@asynccontextmanager
async def shown(watch: TreeWatch, display: Shows, *, every: float = EVERY) -> AsyncGenerator[None]:
    """Show the tree for as long as the block lasts, and once more at its end."""

    async def again() -> None:
        while True:
            display.show(watch.look(), watch.tasks)
            await asyncio.sleep(every)

    looking = asyncio.get_running_loop().create_task(again(), name="retinue-progress")
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        display.show(watch.look(), watch.tasks)
