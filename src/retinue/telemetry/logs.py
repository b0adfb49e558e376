"""Log lines on stderr: levels of retinue's loggers, as `RETINUE_LOG` sets them."""

from __future__ import annotations

import logging
import time
from typing import TextIO

from retinue.core.errors import BadInput

VARIABLE = "RETINUE_LOG"
"""Environment variable: a level for all loggers, `target=level` for one, or several of these with commas."""

ROOT = "retinue"

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


def parse(filters: str) -> dict[str, int]:
    """The level of each logger that the filters name.

    >>> parse("info, retinue.tools.subagent=debug")
    {'retinue': 20, 'retinue.tools.subagent': 10}
    """
    levels: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in filters.split(","))):
        target, equals, level = part.rpartition("=")
        target = target.strip() if equals else ROOT
        if level.strip().lower() not in LEVELS:
            raise BadInput(f"{VARIABLE}: unknown level {level.strip()!r}; known: {', '.join(LEVELS)}")
        if target != ROOT and not target.startswith(f"{ROOT}."):
            raise BadInput(f"{VARIABLE}: {target!r} is no logger of retinue; they begin with '{ROOT}.'")
        levels[target] = LEVELS[level.strip().lower()]
    return levels


def turn_on(filters: str, stream: TextIO, *, tracebacks: bool = False) -> None:
    """Write warnings, and what the filters select, to `stream`; without `tracebacks` only the line of an error."""
    levels = {ROOT: logging.WARNING} | parse(filters)
    root = logging.getLogger(ROOT)
    for handler in tuple(root.handlers):
        if isinstance(handler, _Lines):
            root.removeHandler(handler)
    root.addHandler(_Lines(stream, tracebacks=tracebacks))
    for target, level in levels.items():
        logging.getLogger(target).setLevel(level)


class _Lines(logging.StreamHandler[TextIO]):
    def __init__(self, stream: TextIO, *, tracebacks: bool) -> None:
        super().__init__(stream)
        self.setFormatter(_Format(tracebacks=tracebacks))


class _Format(logging.Formatter):
    converter = time.gmtime

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        if not self._tracebacks:
            record = logging.makeLogRecord(record.__dict__ | {"exc_info": None, "exc_text": None, "stack_info": None})
        return super().format(record)
