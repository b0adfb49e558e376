"""The tracing port: follows the events of runs, and hands the trace context of their calls on."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from retinue.core.events import Event, RunAccepted
from retinue.core.state import Run


class Tracing(Protocol):
    """Makes traces of runs. A trace context is the text of a W3C `traceparent` header, empty if there is none.

    Its methods neither raise nor block.
    """

    def record(self, run: Run, event: Event) -> None:
        """Receive an event of a run before it is applied to the run."""
        ...

    def context_of_caller(self) -> str:
        """The trace context in which a new root run is started."""
        ...

    def context_of_run(self, accepted: RunAccepted) -> str:
        """The trace context of what a run causes outside of its tool calls."""
        ...

    def context_of_tool_call(self, accepted: RunAccepted, turn: int, index: int) -> str:
        """The trace context of what a tool call causes."""
        ...

    def within(self, context: str) -> AbstractContextManager[object]:
        """Make spans that other libraries create in the block children of this context."""
        ...
