"""Calls that were refused, or not made for lack of a sandbox: told to the person, with a terminal or without."""

from __future__ import annotations

from collections.abc import Callable

from retinue.cli.output.call_line import returned_line
from retinue.cli.output.format import one_line
from retinue.cli.output.terminal import say
from retinue.core.events import CallReturned, RunAccepted
from retinue.core.messages import ToolCall

WIDTH = 400
"""Characters of a line about a refused call, where no terminal limits it."""


class Refusals:
    """The refused calls of a tree. `tell` gets a line for each, and one line for those with the same reason."""

    def __init__(self, tell: Callable[[str], None] = say) -> None:
        self.tell = tell
        self._told: set[tuple[str, str]] = set()
        self._acted = 0
        self._not_made = 0

    @property
    def nothing_was_allowed(self) -> bool:
        """Whether the root run has tried to act, and no such call was made."""
        return self._not_made > 0 and not self._acted

    def receive(self, run: RunAccepted, call: ToolCall, returned: CallReturned, acts: bool) -> None:
        """Count a call that acts, and tell about one that was refused."""
        if acts and run.parent_id is None:
            self._acted += returned.refused is None
            self._not_made += returned.refused is not None
        if returned.refused is None or (call.name, returned.text) in self._told:
            return
        self._told.add((call.name, returned.text))
        name = "" if run.parent_id is None else f"{one_line(run.handle.name if run.handle else run.agent)}: "
        self.tell(name + returned_line(call, returned, None).text(WIDTH))
