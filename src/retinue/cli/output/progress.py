"""Progress on stderr: a live tree on a terminal, plain lines into a pipe, nothing when nobody wants any."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from typing import TYPE_CHECKING

from retinue.app.engine_types import RunView
from retinue.cli.output.format import clean, count, elapsed, many, money, one_line, tokens
from retinue.cli.output.json_rows import name_of, status_of, total
from retinue.cli.output.terminal import can_redraw, console, say
from retinue.cli.output.tree_poll import Screen
from retinue.core.ids import RunId
from retinue.telemetry.logs import VARIABLE

if TYPE_CHECKING:
    from rich.console import Console

    from retinue.cli.output.live import LiveTree


class Silent:
    """For `--quiet`."""

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str]) -> None:
        """Nothing."""

    def paused(self) -> AbstractContextManager[None]:
        """As always."""
        return nullcontext()


class PlainLines:
    """One line when a run starts, when it has taken a turn and when it ends; with `verbose` also what it was asked."""

    def __init__(self, *, verbose: bool = False, write: Callable[[str], None] = say) -> None:
        self._verbose = verbose
        self._write = write
        self._turns: dict[RunId, int] = {}
        self._ended: set[RunId] = set()
        self._paused = False
        self.rows: Sequence[RunView] = ()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Keep what is new until the block has ended."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str]) -> None:
        """Write what is new since the last time, in the order in which it happened."""
        self.rows = rows
        if self._paused:
            return
        news = [line for view in rows for line in self._news(view, tasks.get(view.run_id, ""))]
        for _, line in sorted(news, key=lambda each: each[0]):
            self._write(line)

    def _news(self, view: RunView, task: str) -> Iterator[tuple[float, str]]:
        name = clean(name_of(view))
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
            yield ended, f"{name}: {status_of(view)}, {many(view.turns, 'turn')}, {_spent(view)}, {took}"


def _spent(view: RunView) -> str:
    cost = "" if view.cost in (None, 0) else f", {money(view.cost)}"
    return f"{tokens(view.usage.total)}{cost}"


def summary(rows: Sequence[RunView]) -> str:
    """The last line about a tree: how it ended and what it used altogether."""
    root = rows[0]
    usage, cost = total(rows)
    facts = [
        status_of(root),
        many(len(rows), "run"),
        many(sum(view.turns for view in rows), "turn"),
        f"{tokens(usage.input)} in, {count(usage.output)} out",
    ]
    if cost != 0:
        facts.append("cost unknown" if cost is None else money(cost))
    facts.append(elapsed((root.ended_at or root.started_at) - root.started_at))
    return ", ".join(facts)


@contextmanager
def display(*, quiet: bool, verbose: bool) -> Generator[Screen]:
    """Whatever suits the terminal; when the block ends a live tree is gone, and one line says what it all came to."""
    if quiet:
        yield Silent()
        return
    shows: PlainLines | LiveTree
    if (screen := _screen()) is None:
        shows = PlainLines(verbose=verbose)
        yield shows
        worth_a_line = len(shows.rows) > 1
    else:
        from retinue.cli.output.live import LiveTree

        with LiveTree(screen, verbose=verbose) as shows:
            yield shows
        worth_a_line = len(shows.rows) > 0
    if worth_a_line and shows.rows[0].outcome is not None:
        say(summary(shows.rows))


def _screen() -> Console | None:
    """The terminal behind stderr, if a tree can be drawn on it again and again."""
    # Log lines and a tree that is redrawn in place would write over each other. Rich is not loaded for a pipe.
    if not sys.stderr.isatty() or os.environ.get(VARIABLE):
        return None
    screen = console(stderr=True)
    return screen if can_redraw(screen) else None
