"""Telemetry of `xzatoma`: the log lines and metrics about subagents, with the fields of the dialect's document."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from retinue.core.log_context import logger
from retinue.core.log_lines import quoted
from retinue.core.ports import Meter, NoMeter
from retinue.dialects.xzatoma import NAME
from retinue.dialects.xzatoma.requests import ErrorType

TARGET = "retinue.tools.subagent"
MAX_CHARACTERS = 1000
"""Characters of a value in a log line."""

log = logger(TARGET, dialect=NAME)


class Telemetry:
    """Log lines and metrics about subagents, if the settings enable them; depths are those of the subagents.

    A line has the fields of the document in its order, then the message; a model cannot forge another line.
    """

    def __init__(self, meter: Meter, *, enabled: bool) -> None:
        self._enabled = enabled
        self._meter = meter if enabled else NoMeter()

    def spawned(self, label: str, depth: int, *, max_turns: int, tools: Sequence[str]) -> None:
        facts = {"depth": depth, "max_turns": max_turns, "allowed_tools": list(tools)}
        self._log(logging.INFO, "Spawning subagent", "spawn", label, **facts)
        self._meter.count("subagent_executions_total", depth=str(depth))

    @contextmanager
    def active(self, depth: int) -> Generator[None]:
        """Count a subagent as active inside the block."""
        self._meter.move("subagent_active_count", 1, depth=str(depth))
        try:
            yield
        finally:
            self._meter.move("subagent_active_count", -1, depth=str(depth))

    def completed(self, label: str, depth: int, *, status: str, turns: int, tokens: int, seconds: float) -> None:
        facts = {"depth": depth, "turns_used": turns, "tokens_consumed": tokens, "status": status}
        self._log(logging.INFO, "Subagent completed", "complete", label, **facts)
        self._meter.count("subagent_completions_total", depth=str(depth), status=status)
        self._meter.measure("subagent_duration_seconds", seconds, depth=str(depth), status=status)
        self._meter.measure("subagent_turns_used", turns)
        self._meter.measure("subagent_tokens_consumed", tokens)

    def failed(self, label: str, depth: int, *, error: str) -> None:
        self._log(logging.ERROR, "Subagent execution failed", "error", label, depth=depth, error=error)

    def refused(self, depth: int, error_type: ErrorType) -> None:
        """Count a call that was answered with an error."""
        self._meter.count("subagent_errors_total", depth=str(depth), error_type=error_type)

    def ran_out_of_turns(self, label: str, depth: int, *, max_turns: int) -> None:
        facts = {"depth": depth, "max_turns": max_turns}
        self._log(logging.WARNING, "Subagent exceeded max turns", "max_turns_exceeded", label, **facts)

    def truncated(self, label: str, *, original: int, kept: int) -> None:
        """Log an output that was cut; sizes are in bytes."""
        facts = {"original_size": original, "truncated_size": kept}
        self._log(logging.WARNING, "Subagent output truncated", "truncation", label, **facts)

    def too_deep(self, label: str, *, depth: int, max_depth: int) -> None:
        facts = {"current_depth": depth, "max_depth": max_depth}
        self._log(logging.DEBUG, "Subagent recursion depth limit enforced", "depth_limit", label, **facts)

    def _log(self, level: int, message: str, event: str, label: str, **facts: object) -> None:
        if self._enabled and log.isEnabledFor(level):
            log.log(level, "%s %s", _line(event=event, label=label, **facts), message)


def _line(**facts: object) -> str:
    """The facts in their order; lists are JSON.

    >>> _line(event="spawn", label="two words", depth=1, allowed_tools=["fetch", "grep"])
    'subagent.event=spawn subagent.label="two words" subagent.depth=1 subagent.allowed_tools=["fetch","grep"]'
    """
    return " ".join(f"subagent.{name}={_value(value)}" for name, value in facts.items())


def _value(value: object) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list) else quoted(value, MAX_CHARACTERS)
