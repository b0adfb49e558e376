"""One terminal for two: the words of an answer as they arrive on stdout, and below them, while nobody speaks, the tree
of runs on stderr.

The tree is taken away before a word is written and drawn again when the model is silent, so neither spoils the other.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from retinue.app.engine_types import RunView
from retinue.cli.output.format import clean
from retinue.cli.output.progress import PlainLines
from retinue.cli.output.terminal import can_redraw, console, say, write
from retinue.core.ids import RunId
from retinue.telemetry.logs import VARIABLE

if TYPE_CHECKING:
    from rich.console import Console

    from retinue.cli.output.live import LiveTree

PATIENCE = 1.0
"""Seconds of silence after which a run that works alone is shown too."""


class ChatScreen:
    """Where a turn of a chat is seen; a new one for each turn."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self._quiet = quiet
        self._verbose = verbose
        self._on_terminal = sys.stdout.isatty()
        self._began = time.time()
        self._silent_since: float | None = self._began
        """None while the model speaks."""
        self._at_line_start = True
        self._paused = False
        self._tree: LiveTree | None = None
        self._terminal = _redrawable()
        self._plain = PlainLines(verbose=verbose, write=self.note)
        self.rows: Sequence[RunView] = ()
        """Those of the turn: the root, and whoever worked below it meanwhile."""

    # The model speaks

    def speak(self, text: str) -> None:
        """A few more words of the answer."""
        self._hide()
        self._silent_since = None
        write(clean(text) if self._on_terminal else text)
        self._at_line_start = text.endswith("\n")

    def fall_silent(self) -> None:
        """That was all for now: what comes next begins on a line of its own."""
        if not self._at_line_start:
            write("\n")
            self._at_line_start = True
        if self._silent_since is None:
            self._silent_since = time.time()

    def note(self, line: str) -> None:
        """A line about the work, on stderr."""
        if self._quiet:
            return
        self._hide()
        self.fall_silent()
        if sys.stderr.isatty():
            from rich.text import Text

            console(stderr=True).print(Text(line, style="dim"), soft_wrap=True)
        else:
            say(line)

    # The tree

    def show(self, rows: Sequence[RunView], tasks: Mapping[RunId, str]) -> None:
        """The tree as it stands now."""
        self.rows = [_of_this_turn(view, self._began) for view in rows if self._belongs(view)]
        if self._quiet or self._paused or self._silent_since is None:
            return
        children = [view for view in self.rows if view.parent_id is not None]
        if self._terminal is None:
            self._plain.show(children, tasks)
        elif any(view.outcome is None for view in children) or time.time() - self._silent_since > PATIENCE:
            self._drawn(self._terminal).show(self.rows, tasks)
        else:
            self._hide()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave the terminal to a question for as long as the block lasts."""
        self._hide()
        self.fall_silent()
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def close(self) -> None:
        """Leave the terminal as it was found, at the beginning of a line."""
        self._hide()
        self.fall_silent()

    def _belongs(self, view: RunView) -> bool:
        return view.parent_id is None or view.ended_at is None or view.ended_at >= self._began

    def _drawn(self, terminal: Console) -> LiveTree:
        if self._tree is None:
            from retinue.cli.output.live import LiveTree

            self.fall_silent()
            self._tree = LiveTree(terminal, verbose=self._verbose)
            self._tree.__enter__()
        return self._tree

    def _hide(self) -> None:
        if self._tree is not None:
            self._tree.__exit__(None, None, None)
            self._tree = None


def _of_this_turn(view: RunView, began: float) -> RunView:
    """A root that stays has begun long ago; what is of interest is how long this answer takes."""
    return view if view.parent_id is not None else replace(view, started_at=began)


def _redrawable() -> Console | None:
    # Log lines and a tree that is redrawn in place would write over each other.
    if not sys.stderr.isatty() or os.environ.get(VARIABLE):
        return None
    terminal = console(stderr=True)
    return terminal if can_redraw(terminal) else None
