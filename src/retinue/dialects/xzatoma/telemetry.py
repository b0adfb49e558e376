"""The life of a subagent as `xzatoma` tells it to those who watch: six log lines, and metrics.

A line has the fields of the document in its order, then the message. What is not a plain word is quoted, lists are
JSON, and nothing in it can begin another line.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from retinue.core.ports import Meter, NoMeter
from retinue.dialects.xzatoma.requests import NO_LABEL, ErrorType

TARGET = "retinue.tools.subagent"
LONGEST = 1000
"""Characters of a value that are shown."""

_BARE = re.compile(r"[\w.:/@+-]+", re.ASCII)

log = logging.getLogger(TARGET)


class Telemetry:
    """Tells, if the settings let it; depths are those of the subagents."""

    def __init__(self, meter: Meter, *, enabled: bool) -> None:
        self._enabled = enabled
        self._meter = meter if enabled else NoMeter()

    def spawned(self, label: str, depth: int, *, max_turns: int, tools: Sequence[str]) -> None:
        """A subagent exists."""
        self._tell(
            logging.INFO,
            "Spawning subagent",
            event="spawn",
            label=label,
            depth=depth,
            max_turns=max_turns,
            allowed_tools=list(tools),
        )
        self._meter.count("subagent_executions_total", depth=str(depth))

    @contextmanager
    def at_work(self, depth: int) -> Generator[None]:
        """A subagent is waited for."""
        self._meter.move("subagent_active_count", 1, depth=str(depth))
        try:
            yield
        finally:
            self._meter.move("subagent_active_count", -1, depth=str(depth))

    def completed(self, label: str, depth: int, *, turns: int, tokens: int, status: str, seconds: float) -> None:
        """A subagent has given what was asked for."""
        self._tell(
            logging.INFO,
            "Subagent completed",
            event="complete",
            label=label,
            depth=depth,
            turns_used=turns,
            tokens_consumed=tokens,
            status=status,
        )
        self._meter.count("subagent_completions_total", depth=str(depth), status=status)
        self._meter.measure("subagent_duration_seconds", seconds, depth=str(depth), status=status)
        self._meter.measure("subagent_turns_used", turns)
        self._meter.measure("subagent_tokens_consumed", tokens)

    def failed(self, label: str, depth: int, *, error: str) -> None:
        """A subagent has failed, or could not be started."""
        self._tell(logging.ERROR, "Subagent execution failed", event="error", label=label, depth=depth, error=error)

    def refused(self, depth: int, error_type: ErrorType) -> None:
        """A call was answered with an error."""
        self._meter.count("subagent_errors_total", depth=str(depth), error_type=error_type)

    def ran_out_of_turns(self, label: str, depth: int, *, max_turns: int) -> None:
        """A subagent has met its limit."""
        self._tell(
            logging.WARNING,
            "Subagent exceeded max turns",
            event="max_turns_exceeded",
            label=label,
            depth=depth,
            max_turns=max_turns,
        )

    def truncated(self, label: str, *, original: int, kept: int) -> None:
        """An output was cut; sizes are in bytes."""
        self._tell(
            logging.WARNING,
            "Subagent output truncated",
            event="truncation",
            label=label,
            original_size=original,
            truncated_size=kept,
        )

    def too_deep(self, label: str, *, depth: int, max_depth: int) -> None:
        """A caller at `depth` is refused a subagent."""
        self._tell(
            logging.DEBUG,
            "Subagent recursion depth limit enforced",
            event="depth_limit",
            label=label or NO_LABEL,
            current_depth=depth,
            max_depth=max_depth,
        )

    def _tell(self, level: int, message: str, **facts: object) -> None:
        if self._enabled and log.isEnabledFor(level):
            log.log(level, "%s %s", line(**facts), message)


def line(**facts: object) -> str:
    """The facts in their order.

    >>> line(event="spawn", label="two words", depth=1, allowed_tools=["fetch", "grep"])
    'subagent.event=spawn subagent.label="two words" subagent.depth=1 subagent.allowed_tools=["fetch","grep"]'
    """
    return " ".join(f"subagent.{name}={_shown(value)}" for name, value in facts.items())


def _shown(value: object) -> str:
    if isinstance(value, list):
        return json.dumps(value, separators=(",", ":"))
    text = str(value)
    return text if _BARE.fullmatch(text) and len(text) <= LONGEST else json.dumps(text[:LONGEST])
