"""Where `retinue demo` is shown: lines above a live tree on a terminal, and nothing but lines anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from retinue.cli.demo_lines import USER, Line
from retinue.cli.live import LiveTree
from retinue.cli.rows import name_of, status_of
from retinue.cli.terminal import can_redraw, console
from retinue.cli.words import clean, elapsed, many, money, one_line, tokens
from retinue.core.ids import RunId
from retinue.engine.view import RunView

WHO = 15
LONGEST = 160
"""Characters of a line where there is no width to keep to."""


class DemoScreen:
    """Draws on a console; `live` is None where nothing can be drawn again in place."""

    def __init__(self, screen: Console, live: LiveTree | None) -> None:
        self._screen = screen
        self._live = live
        self._statuses: dict[RunId, str] = {}

    def say(self, text: str = "", *, style: str = "") -> None:
        """A line of the demonstration itself."""
        self._screen.print(text, style=style or None, soft_wrap=not self._screen.is_terminal)

    def tell(self, line: Line, *, since: float) -> None:
        """Something that happened, on one line."""
        start = f"{elapsed(line.at - since):>6}  "
        room = self._screen.width - len(start) - WHO - 2 if self._screen.is_terminal else LONGEST
        told = Text(start, style="dim")
        told.append(f"{clean(line.who):<{WHO}}  ", style="bold magenta" if line.who == USER else "cyan")
        told.append(one_line(line.what, max(1, room)), style="not dim")
        self._screen.print(told, soft_wrap=True)

    def show(self, views: Sequence[RunView]) -> None:
        """The tree as it stands now; without a place for it, whoever was interrupted or has ended."""
        if self._live is not None:
            self._live.show(views)
            return
        for view in views:
            status = status_of(view)
            if self._statuses.get(view.run_id) != status and (view.outcome is not None or status == "interrupted"):
                spent = f"{many(view.turns, 'turn')}, {tokens(view.usage.total)}, {money(view.cost)}"
                self.say(f"        {clean(name_of(view)):<{WHO}}  {status}: {spent}")
            self._statuses[view.run_id] = status


@contextmanager
def demo_screen() -> Generator[DemoScreen]:
    """The screen behind stdout; when the block ends a live tree is gone, and the lines stay."""
    screen = console()
    if not (sys.stdout.isatty() and can_redraw(screen)):
        yield DemoScreen(screen, None)
        return
    with LiveTree(screen, gap=1) as live:
        yield DemoScreen(screen, live)
