"""Calls that were refused, or not made for lack of a sandbox: told to the person, with a terminal or without."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeAlias

from retinue.cli.output.call_line import returned_line
from retinue.cli.output.format import name_of
from retinue.core.events import CallReturned, RunAccepted
from retinue.core.messages import ToolCall

WIDTH = 400
"""Characters of a line about a refused call, where no terminal limits it."""

Print: TypeAlias = Callable[[float, str], None]
"""Gets the time of a call and the line about it."""


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
