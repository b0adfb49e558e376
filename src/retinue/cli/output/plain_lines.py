"""Progress in plain lines, for pipes and terminals that cannot be redrawn; and which terminals can be."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING

from retinue.app.engine_types import RunView
from retinue.cli.output.format import elapsed, money, name_of, one_line, status_of, tokens
from retinue.cli.output.terminal import can_redraw, console, say
from retinue.core.ids import RunId
from retinue.core.text import plural
from retinue.telemetry import logs

if TYPE_CHECKING:
    from rich.console import Console

MAX_ERROR = 200
"""Characters of a child's error in its line."""


def redrawable() -> Console | None:
    """The terminal behind stderr, if a tree can be redrawn on it. Rich is not loaded for a pipe."""
    # Log lines and a tree that is redrawn in place would overwrite each other.
    if not sys.stderr.isatty() or logs.is_on(os.environ):
        return None
    screen = console(stderr=True)
    return screen if can_redraw(screen) else None


class PlainLines:
    """One line for the start of a run, for each turn and for its end; `verbose` adds the task."""

    def __init__(self, *, verbose: bool = False, write: Callable[[str], None] = say) -> None:
        self._verbose = verbose
        self._write = write
        self._turns: dict[RunId, int] = {}
        self._ended: set[RunId] = set()
        self._paused = False
        self._added: list[tuple[float, str]] = []
        self.rows: Sequence[RunView] = ()

    def add(self, at: float, line: str) -> None:
        """Write a line about something that happened at a time, among the other news."""
        self._added.append((at, line))

    @contextmanager
    def paused(self) -> Generator[None]:
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str]) -> None:
        """Write what is new since the last call, in chronological order."""
        self.rows = rows
        if self._paused:
            return
        added, self._added = self._added, []
        news = [*added, *(line for view in rows for line in self._news(view, tasks.get(view.run_id, "")))]
        for _, line in sorted(news, key=lambda each: each[0]):
            self._write(line)

    def _news(self, view: RunView, task: str) -> Iterator[tuple[float, str]]:
        name = name_of(view)
        ended = view.ended_at if view.ended_at is not None else inf
        if view.run_id not in self._turns:
            self._turns[view.run_id] = 0
            asked = f": {one_line(task)}" if self._verbose and task else ""
            yield view.started_at, f"{name}: started, run {view.run_id}{asked}"
        if view.turns > self._turns[view.run_id]:
            self._turns[view.run_id] = view.turns
            yield ended, f"{name}: turn {view.turns}, {_spent(view)}"
        if view.outcome is not None and view.run_id not in self._ended:
            self._ended.add(view.run_id)
            took = elapsed((view.ended_at or view.started_at) - view.started_at)
            yield ended, f"{name}: {status_of(view)}{_why(view)}, {plural(view.turns, 'turn')}, {_spent(view)}, {took}"


def _why(view: RunView) -> str:
    """The error of a child in parentheses; that of the root is printed with the answer."""
    if view.parent_id is None or view.outcome is None or not view.outcome.error:
        return ""
    return f" ({one_line(view.outcome.error, MAX_ERROR)})"


def _spent(view: RunView) -> str:
    cost = "" if view.cost in (None, 0) else f", {money(view.cost)}"
    if view.estimated.total and not view.usage.total:
        cost = "" if not view.estimated_cost else f", about {money(view.estimated_cost)}"
        return f"about {tokens(view.estimated.total)}{cost}"
    return f"{tokens(view.usage.total)}{cost}"
