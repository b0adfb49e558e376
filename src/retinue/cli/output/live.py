"""A tree of runs on a terminal, redrawn in place: status, turns, tokens, cost and time of each run."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from retinue.app.engine_types import RunView
from retinue.app.follow import NO_TIMES
from retinue.cli.output.format import count, elapsed, money, name_of, one_line, short, status_of
from retinue.core.ids import RunId

NARROW = 56
"""Columns below which tokens and cost are left out."""

GAP = 2
"""Columns between columns."""

_STYLES = {
    "completed": "green",
    "failed": "red",
    "timed_out": "red",
    "exhausted": "yellow",
    "empty": "yellow",
    "cancelled": "yellow",
    "interrupted": "yellow",
    "working": "cyan",
}

NO_TASKS: Mapping[RunId, str] = {}


class LiveTree:
    """A context manager; `show` draws the tree, and the end of the block removes it."""

    def __init__(
        self,
        screen: Console,
        *,
        verbose: bool = False,
        keep: bool = False,
        gap: int = 0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._screen = screen
        self._verbose = verbose
        self._gap = gap
        """Empty lines between the tree and lines that are printed above it."""
        self._now = now
        self.rows: Sequence[RunView] = ()
        self._tasks: Mapping[RunId, str] = NO_TASKS
        self._keep = keep
        self._live = self._new_live()
        self._is_open = False
        self._paused = False

    def _new_live(self) -> Live:
        # Redrawn by `show`, never from a thread of its own.
        return Live(console=self._screen, auto_refresh=False, transient=not self._keep, redirect_stdout=False)

    def __enter__(self) -> LiveTree:
        self._is_open = True
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        self._live.__exit__(kind, error, traceback)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Draw nothing for as long as the block lasts; the tree is then drawn below what was written meanwhile."""
        self._paused = True
        self._live.stop()
        try:
            yield
        finally:
            self._paused = False
            if self._is_open:
                # A new one: the old one would move the cursor back, over what has been written since.
                self._live = self._new_live()
                self._live.start()
                if self.rows:
                    self.show(self.rows, self._tasks)

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str] = NO_TASKS) -> None:
        self.rows, self._tasks = rows, tasks
        if self._paused:
            return
        size = self._screen.size
        tree = draw(
            rows,
            now=self._now(),
            width=size.width,
            height=size.height - 1 - self._gap,
            tasks=tasks if self._verbose else NO_TASKS,
            ascii_only=not self._screen.encoding.lower().startswith("utf"),
        )
        self._live.update(Padding(tree, (self._gap, 0, 0, 0)) if self._gap else tree, refresh=True)


def draw(
    rows: Sequence[RunView],
    *,
    now: float,
    width: int,
    height: int,
    tasks: Mapping[RunId, str] = NO_TASKS,
    times: Mapping[RunId, float] = NO_TIMES,
    ascii_only: bool = False,
) -> RenderableType:
    """The tree as a table that fits into `width` and `height`; the last line counts the runs that do not fit.

    `times` are the seconds of runs whose active time differs from the time since their start.
    """
    lines = _outline(rows, _GUIDES[ascii_only])
    hidden = 0
    if len(lines) > height:
        room = max(1, height - 1)
        lines, hidden = _most_relevant(lines, room), len(lines) - room
    cells = [
        _cells(
            guide,
            view,
            took=times.get(view.run_id, (view.ended_at if view.ended_at is not None else now) - view.started_at),
            wide=width >= NARROW,
            task=tasks.get(view.run_id, ""),
        )
        for guide, view in lines
    ]
    numbers = [max(cell.cell_len for cell in column) for column in list(zip(*cells, strict=True))[1:]]
    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(no_wrap=True)
    for _ in numbers:
        grid.add_column(no_wrap=True, justify="right")
    for name, *row in cells:
        # Only names are shortened to make room, never numbers.
        name.truncate(max(1, width - sum(numbers) - GAP * len(numbers)), overflow="ellipsis")
        grid.add_row(name, *row)
    if hidden:
        grid.add_row(Text(f"and {hidden} more", style="dim"))
    return grid


def _cells(guide: str, view: RunView, *, took: float, wide: bool, task: str) -> list[Text]:
    status = status_of(view)
    name = Text()
    name.append(guide, style="dim")
    name.append(name_of(view), style="bold" if view.outcome is None else "")
    if view.parent_id is None:
        name.append(f" {short(view.run_id)}", style="dim")
    if task:
        name.append(f" {one_line(task)}", style="dim")
    cells = [name, Text(status, style=_STYLES.get(status, "dim")), Text(f"{view.turns} t")]
    if wide:
        cells += [Text(f"{count(view.usage.total)} tok"), Text(money(view.cost), style="dim")]
    return [*cells, Text(elapsed(took), style="dim")]


_GUIDES = {False: ("├─ ", "└─ ", "│  ", "   "), True: ("|- ", "`- ", "|  ", "   ")}


def _outline(rows: Sequence[RunView], guides: tuple[str, str, str, str]) -> list[tuple[str, RunView]]:
    """The rows in depth-first order, each with its guide lines."""
    branch, last, bar, blank = guides
    known = {view.run_id for view in rows}
    below: dict[RunId | None, list[RunView]] = {}
    for view in rows:
        below.setdefault(view.parent_id if view.parent_id in known else None, []).append(view)
    lines: list[tuple[str, RunView]] = []
    # A stack and no recursion: a tree may be deeper than the recursion limit.
    waiting = [("", "", view) for view in reversed(below.get(None, []))]
    while waiting:
        before, guide, view = waiting.pop()
        lines.append((before + guide, view))
        inner = before + ("" if not guide else blank if guide == last else bar)
        children = below.get(view.run_id, [])
        waiting += [(inner, last if child is children[-1] else branch, child) for child in reversed(children)]
    return lines


def _most_relevant(lines: list[tuple[str, RunView]], room: int) -> list[tuple[str, RunView]]:
    """The root, unfinished runs, then ended ones, as many as fit, in the order of the tree."""
    chosen = sorted(range(len(lines)), key=lambda place: (place > 0, lines[place][1].outcome is not None, place))[:room]
    return [lines[place] for place in sorted(chosen)]
