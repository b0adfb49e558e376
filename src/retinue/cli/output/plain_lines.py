"""Progress in plain lines, for pipes and terminals that cannot be redrawn; and lines about refused calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from retinue.app.engine_types import RunView
from retinue.cli.output.call_line import returned_line
from retinue.cli.output.format import elapsed, money, name_of, one_line, status_of, tokens_text
from retinue.cli.output.terminal import can_redraw, console, say
from retinue.core.events import CallReturned, RunAccepted
from retinue.core.ids import RunId
from retinue.core.messages import ToolCall
from retinue.core.text import plural
from retinue.telemetry import logs

if TYPE_CHECKING:
    from rich.console import Console

MAX_ERROR = 200
"""Characters of a child's error in its line."""

WIDTH = 400
"""Characters of a line about a refused call, where no terminal limits it."""

Print: TypeAlias = Callable[[float, str], None]
"""Gets the time of a call and the line about it."""


def redrawable() -> Console | None:
    """The terminal behind stderr, if a tree can be redrawn on it. Rich is not loaded for a pipe."""
    # Log lines and a tree that is redrawn in place would overwrite each other.
    if not sys.stderr.isatty() or logs.is_on(os.environ):
        return None
    screen = console(stderr=True)
    return screen if can_redraw(screen) else None


class PlainLines:
    """One line for the start of a run, for each turn and for its end; `verbose` adds the task.

    Without `write` the lines go to stderr.
    """

    def __init__(self, *, verbose: bool = False, write: Callable[[str], None] | None = None) -> None:
        self._verbose = verbose
        self._write = write
        self._seen: dict[RunId, RunView] = {}
        """The views at the last call: a view that is the same object has no news."""
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

    async def printed(self, turn: int) -> None:
        """Nothing: replies are not printed."""

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str]) -> None:
        """Write what is new since the last call, in chronological order."""
        self.rows = rows
        if self._paused:
            return
        added, self._added = self._added, []
        news = list(added)
        for view in rows:
            if self._seen.get(view.run_id) is not view:
                self._seen[view.run_id] = view
                news += self._news(view, tasks.get(view.run_id, ""))
        lines = [line for _, line in sorted(news, key=lambda each: each[0])]
        if self._write is not None:
            for line in lines:
                self._write(line)
        elif lines:
            say(*lines)  # in one write: there are thousands of lines about a thousand runs

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
        return f"about {tokens_text(view.estimated.total)}{cost}"
    return f"{tokens_text(view.usage.total)}{cost}"


def refusal_line(call: ToolCall, returned: CallReturned) -> str:
    """The line about a refused call. Without a terminal it has no arguments: stderr may be a log file."""
    line = returned_line(call, returned, None)
    return (line if sys.stderr.isatty() else line._replace(arguments="")).text(WIDTH)


class Refusals:
    """The refused calls of a tree: a line for each, and one line for those with the same reason.

    Lines wait until there is a display for them. The display of a terminal shows the calls of the root itself, in
    their order: then `of_root` is False.
    """

    def __init__(self) -> None:
        self._print: Print | None = None
        self._of_root = True
        self._waiting: list[tuple[RunAccepted, float, str]] = []
        self._printed: set[tuple[str, str]] = set()
        self._acted = 0
        self._not_made = 0

    @property
    def nothing_was_allowed(self) -> bool:
        """Whether the root run has tried to act, and no such call was made."""
        return self._not_made > 0 and not self._acted

    def attach(self, print_line: Print, *, of_root: bool = True) -> None:
        """Print the refused calls so far, and those to come, with `print_line`."""
        self._print, self._of_root = print_line, of_root
        waiting, self._waiting = self._waiting, []
        for run, at, line in waiting:
            self._report(run, at, line)

    def receive(self, run: RunAccepted, call: ToolCall, returned: CallReturned, acts: bool) -> None:
        """Count a call that acts, and print one that was refused."""
        if acts and run.parent_id is None:
            self._acted += returned.refused is None
            self._not_made += returned.refused is not None
        if returned.refused is None or (call.name, returned.text) in self._printed:
            return
        self._printed.add((call.name, returned.text))
        name = "" if run.parent_id is None else f"{name_of(run)}: "
        self._report(run, returned.at, name + refusal_line(call, returned))

    def _report(self, run: RunAccepted, at: float, line: str) -> None:
        if self._print is None:
            self._waiting.append((run, at, line))
        elif self._of_root or run.parent_id is not None:
            self._print(at, line)
