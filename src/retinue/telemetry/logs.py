"""Log lines on stderr: which of them `RETINUE_LOG` or `RUST_LOG` lets through, and whether they have contents."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TextIO

from retinue.core.errors import BadInput
from retinue.core.log_context import set_payloads
from retinue.core.text import clean, clean_line
from retinue.telemetry import log_files, rust_log

VARIABLE = "RETINUE_LOG"
"""Environment variable: a level for all loggers, `target=level` for one, or several of these with commas."""

ROOT = "retinue"

LINES_BETWEEN_LOOKS = 100
"""Lines after which the size of a background process's log file is looked at."""

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


def is_on(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks for log lines besides warnings."""
    return bool(environment.get(VARIABLE, environment.get(rust_log.VARIABLE)))


def turn_on_from(
    environment: Mapping[str, str],
    stream: TextIO,
    *,
    programs: Callable[[], rust_log.Programs],
    tracebacks: bool = False,
) -> None:
    """Write warnings, and what the environment asks for, to `stream`; parts of `RUST_LOG` that are ignored are named.

    `programs` is called if `RUST_LOG` is read. If the environment asks for contents in the lines, a notice comes first.
    """
    complaints: list[str] = []
    if VARIABLE in environment:
        turn_on(environment[VARIABLE], stream, tracebacks=tracebacks)
    else:
        filters = environment.get(rust_log.VARIABLE, "")
        levels, complaints = rust_log.parse(filters, programs()) if filters else ({}, [])
        _write_to(stream, levels, tracebacks=tracebacks, reported=bool(filters))
    set_payloads_from(environment, lambda notice: _warn(stream, notice))
    for complaint in complaints:
        _warn(stream, complaint)


def _warn(stream: TextIO, message: str) -> None:
    with suppress(OSError):  # of a closed stderr; the work goes on
        print(f"warning: {clean_line(message)}", file=stream, flush=True)


def turn_on(filters: str, stream: TextIO, *, tracebacks: bool = False) -> None:
    """Write warnings, and what the filters select, to `stream`; without `tracebacks` only the line of an error."""
    _write_to(stream, parse(filters), tracebacks=tracebacks)


def _write_to(stream: TextIO, levels: Mapping[str, int], *, tracebacks: bool, reported: bool = True) -> None:
    root = logging.getLogger(ROOT)
    for handler in tuple(root.handlers):
        if isinstance(handler, _Lines):
            root.removeHandler(handler)
    lines = _Lines(stream, tracebacks=tracebacks)
    if not reported:
        lines.addFilter(lambda record: not getattr(record, "is_reported", False))
    root.addHandler(lines)
    for target, level in ({ROOT: logging.WARNING} | dict(levels)).items():
        logging.getLogger(target).setLevel(level)


class _Lines(logging.StreamHandler[TextIO]):
    def __init__(self, stream: TextIO, *, tracebacks: bool) -> None:
        super().__init__(stream)
        self.setFormatter(_Format(tracebacks=tracebacks))
        self._limit = log_files.OutputLimit.of_stderr(os.environ) if log_files.VARIABLE in os.environ else None
        self._lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; the log file of a background process stays below its limit."""
        super().emit(record)
        self._lines += 1
        if self._limit is not None and self._lines % LINES_BETWEEN_LOOKS == 0:
            self._limit.apply()


class _Format(logging.Formatter):
    converter = time.gmtime

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """The record on one line; each line of a traceback is indented, so that no text in it looks like a record."""
        bare = logging.makeLogRecord(record.__dict__ | {"exc_info": None, "exc_text": None, "stack_info": None})
        # The filter of `core.log_context` has cleaned the messages of its loggers, for the handlers of an application.
        # Here lines of other loggers below `retinue`, such as those of a user's tools, are cleaned too.
        lines = [clean_line(super().format(bare))]
        if self._tracebacks and record.exc_info:
            lines += [f"  {line}" for line in clean(self.formatException(record.exc_info)).split("\n")]
        return "\n".join(lines)


PAYLOADS = "RETINUE_LOG_PAYLOADS"
"""The environment variable that lets contents into the logs."""

PAYLOADS_NOTICE = (
    f"{PAYLOADS}=1: with RETINUE_LOG=info, prompts, answers, tool arguments and results are logged in plain text; "
    "unset it to stop"
)

_announced = False


def set_payloads_from(environment: Mapping[str, str], write: Callable[[str], None]) -> None:
    """Let contents into log lines if the environment asks for them; the notice is written once in a process."""
    global _announced
    on = environment.get(PAYLOADS) == "1"
    set_payloads(on=on)
    if on and not _announced:
        _announced = True
        write(PAYLOADS_NOTICE)
