"""A tree of runs on a terminal, redrawn in place: status, turns, tokens, cost and time of each run."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from retinue.app.engine_types import RunView
from retinue.app.follow import NO_TIMES, failure_text
from retinue.cli.output.format import elapsed, money, name_of, one_line, short, status_of, tokens_of
from retinue.cli.output.printable_console import PrintableConsole
from retinue.cli.output.styled_lines import StyledLines, StyledText, cut_line, width_of
from retinue.core.ids import RunId

NARROW = 56
"""Columns below which tokens and cost are left out."""

MAX_TASK = 30
"""Characters of a task beside the current call of its run."""

MAX_REASON = 200
"""Characters of the reason of a failure."""

MIN_REASON = 12
"""Columns that a reason is wrapped to at least, however deep its run is."""

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


class TreeFrames:
    """Makes the frames of a tree as it changes."""

    def __init__(self, screen: Console, *, verbose: bool = False, now: Callable[[], float] = time.time) -> None:
        self._screen = screen
        self._verbose = verbose
        self._now = now
        self._outlined: list[RunId] = []
        self._outline: list[tuple[str, int]] = []
        """The outline of the rows with these ids: few frames have other runs than the one before."""

    def frame(
        self,
        rows: Sequence[RunView],
        tasks: Mapping[RunId, str],
        *,
        above: Sequence[Text],
        doing: Callable[[RunView], str],
        height: int,
    ) -> RenderableType:
        """The tree below the lines `above`, in at most `height` lines."""
        if not rows:
            return Group(*above)
        ascii_only = not self._screen.encoding.lower().startswith("utf")
        ids = [view.run_id for view in rows]
        if ids != self._outlined:
            self._outlined, self._outline = ids, outline(rows, ascii_only=ascii_only)
        tree = draw(
            rows,
            now=self._now(),
            width=self._screen.size.width,
            height=max(1, height - len(above)),
            tasks=tasks if self._verbose else NO_TASKS,
            ascii_only=ascii_only,
            known=self._outline,
            doing=doing,
        )
        return Group(*above, tree) if above else tree


class LiveTree:
    """A context manager; `show` draws the tree, and the end of the block removes it."""

    stays = False
    """Whether it stays when text is printed; it has to be removed before."""

    def __init__(
        self,
        screen: Console,
        *,
        verbose: bool = False,
        keep: bool = False,
        gap: int = 0,
        now: Callable[[], float] = time.time,
        frames: TreeFrames | None = None,
    ) -> None:
        self._screen = screen
        self._frames = frames or TreeFrames(screen, verbose=verbose, now=now)
        self._gap = gap
        """Empty lines between the tree and lines that are printed above it."""
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

    def show(
        self,
        rows: Sequence[RunView],
        tasks: Mapping[RunId, str] = NO_TASKS,
        *,
        above: Sequence[Text] = (),
        doing: Callable[[RunView], str] = lambda view: "",
    ) -> None:
        """Draw the tree below the lines `above`; `doing` is the current work of a run in a few words."""
        self.rows, self._tasks = rows, tasks
        if self._paused:
            return
        height = self._screen.size.height - 1 - self._gap
        frame = self._frames.frame(rows, tasks, above=above, doing=doing, height=height)
        self._live.update(Padding(frame, (self._gap, 0, 0, 0)) if self._gap and rows else frame, refresh=True)


def draw(
    rows: Sequence[RunView],
    *,
    now: float,
    width: int,
    height: int | None,
    tasks: Mapping[RunId, str] = NO_TASKS,
    times: Mapping[RunId, float] = NO_TIMES,
    ascii_only: bool = False,
    known: Sequence[tuple[str, int]] | None = None,
    detailed: bool = False,
    doing: Callable[[RunView], str] = lambda view: "",
) -> RenderableType:
    """The tree as a table that fits into `width` and `height`; the last line counts the runs that do not fit.

    `times` are the seconds of runs whose active time differs from the time since their start. `known` is the outline of
    these rows, if it was computed before. With `detailed` each run has its short id and its task, and a failed one has
    the reason on a line of its own.
    """
    order = outline(rows, ascii_only=ascii_only) if known is None else known
    hidden = 0
    if height is not None and len(order) > height:
        room = max(1, height - 1)
        order, hidden = _most_relevant(order, rows, room), len(order) - room
    lines = [(guide, rows[place]) for guide, place in order]
    cells = [
        _cells(
            guide,
            view,
            took=times.get(view.run_id, (view.ended_at if view.ended_at is not None else now) - view.started_at),
            wide=width >= NARROW,
            task=view.task if detailed else tasks.get(view.run_id, ""),
            doing="" if view.outcome is not None else doing(view),
            with_id=detailed or view.parent_id is None,
        )
        for guide, view in lines
    ]
    widths = [
        max(len(number) for number, _ in column) for column in zip(*(numbers for _, numbers in cells), strict=True)
    ]
    taken = sum(widths) + GAP * len(widths)
    # Only names are shortened to make room, never numbers.
    names = [cut_line(name, max(1, width - taken)) for name, _ in cells]
    more: list[StyledText] = [(f"and {hidden} more", "dim")] if hidden else []
    name_width = max(map(width_of, (*names, more)))
    drawn: list[list[StyledText]] = []
    for (guide, view), name, (_, numbers) in zip(lines, names, cells, strict=True):
        drawn.append([*name, (" " * (name_width - width_of(name)), ""), *_right_aligned(numbers, widths)])
        if detailed and view.outcome is not None and not view.outcome.ok:
            reason = one_line(failure_text(view.outcome), MAX_REASON)
            before = _below(guide, ascii_only=ascii_only)
            drawn += _wrapped(f"! {reason}", before, width)
    if more:
        drawn.append([*more, (" " * (name_width - width_of(more) + taken), "")])
    return StyledLines(drawn)


def _right_aligned(numbers: Sequence[StyledText], widths: Sequence[int]) -> Iterator[StyledText]:
    for (number, style), width in zip(numbers, widths, strict=True):
        yield number.rjust(GAP + width), style


def _cells(
    guide: str, view: RunView, *, took: float, wide: bool, task: str, doing: str, with_id: bool
) -> tuple[list[StyledText], list[StyledText]]:
    """The parts of a run's name, and its numbers."""
    status = status_of(view)
    name = [(guide, "dim"), (name_of(view), "bold" if view.outcome is None else "")]
    if with_id:
        name.append((f" {short(view.run_id)}", "dim"))
    if task:
        name.append((f" {one_line(task, MAX_TASK if doing else 100)}", "dim"))
    if doing:
        name.append((f" > {one_line(doing)}", "cyan"))
    numbers = [(status, _STYLES.get(status, "dim")), (f"{view.turns} t", "")]
    if wide:
        numbers += [(f"{tokens_of(view)} tok", ""), (money(view.cost), "dim")]
    return name, [*numbers, (elapsed(took), "dim")]


def _wrapped(text: str, before: str, width: int) -> Iterator[list[StyledText]]:
    """A text about a failure in lines of this width, each with the same guide before it."""
    for line in Text(text).wrap(PrintableConsole(width=width), max(MIN_REASON, width - width_of([(before, "")]))):
        yield cut_line([(before, "dim"), (line.plain.rstrip(), "red")], width)


def _below(guide: str, *, ascii_only: bool) -> str:
    """The guide of a line below the one with this guide, which belongs to the same run."""
    branch, _, bar, blank = _GUIDES[ascii_only]
    size = len(blank)
    return guide[:-size] + (bar if guide[-size:] == branch else blank) if guide else blank


_GUIDES = {False: ("├─ ", "└─ ", "│  ", "   "), True: ("|- ", "`- ", "|  ", "   ")}


def outline(rows: Sequence[RunView], *, ascii_only: bool) -> list[tuple[str, int]]:
    """The places of the rows in depth-first order, each with its guide lines; depends on the ids of the rows alone."""
    branch, last, bar, blank = _GUIDES[ascii_only]
    known = {view.run_id for view in rows}
    below: dict[RunId | None, list[int]] = {}
    for place, view in enumerate(rows):
        below.setdefault(view.parent_id if view.parent_id in known else None, []).append(place)
    lines: list[tuple[str, int]] = []
    # A stack and no recursion: a tree may be deeper than the recursion limit.
    waiting = [("", "", place) for place in reversed(below.get(None, []))]
    while waiting:
        before, guide, place = waiting.pop()
        lines.append((before + guide, place))
        inner = before + ("" if not guide else blank if guide == last else bar)
        children = below.get(rows[place].run_id, [])
        waiting += [(inner, last if child == children[-1] else branch, child) for child in reversed(children)]
    return lines


def _most_relevant(order: Sequence[tuple[str, int]], rows: Sequence[RunView], room: int) -> list[tuple[str, int]]:
    """The root, unfinished runs, then ended ones, as many as fit, in the order of the tree."""
    chosen, ended = [0], list[int]()
    for line in range(1, len(order)):
        if len(chosen) >= room:  # often at the beginning of a large tree
            break
        (chosen if rows[order[line][1]].outcome is None else ended).append(line)
    return [order[line] for line in sorted((*chosen, *ended)[:room])]
