"""The loggers of retinue: every line of a run begins with the fields of the run, and is printable on one line.

The fields are in context variables, so that tasks and threads that work for a run have them, and runs side by side do
not mix. A span around a run (a scheduled job) has fields of its own, which come first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from retinue.core.text import clean_line

RunFields: TypeAlias = Mapping[str, str]
"""The fields of a run as they stand in a line, by the dialect that names them so; empty for no dialect."""


class Span:
    """The fields of everything that is done for one purpose; `fields` may change when more is known."""

    def __init__(self, fields: str) -> None:
        self.fields = fields


_named: set[str] = set()
_span: ContextVar[Span | None] = ContextVar("retinue_log_span", default=None)
_run: ContextVar[Callable[[], RunFields] | None] = ContextVar("retinue_log_run", default=None)


def logger(name: str, *, dialect: str = "") -> logging.Logger:
    """The logger of this name. The lines of a dialect's own logger have its fields of the run in them already."""
    log = logging.getLogger(name)
    if name not in _named:
        _named.add(name)
        log.addFilter(_AddFields(dialect))
    return log


def begin_run_log(fields: Callable[[], RunFields]) -> None:
    """Let the lines of this task, and of the tasks and threads that it starts, begin with the fields of a run."""
    _run.set(fields)


@contextmanager
def run_log(fields: RunFields) -> Generator[None]:
    """Let the lines inside of the block begin with the fields of this run."""
    token = _run.set(lambda: fields)
    try:
        yield
    finally:
        _run.reset(token)


@contextmanager
def log_span(fields: str) -> Generator[Span]:
    """Let the lines inside of the block, and of tasks and threads that are started in it, begin with these fields."""
    span = Span(fields)
    token = _span.set(span)
    try:
        yield span
    finally:
        _span.reset(token)


class _AddFields(logging.Filter):
    """Puts the fields in front of the message. A filter of the logger, so that every handler gets the same line."""

    def __init__(self, dialect: str) -> None:
        super().__init__()
        self._dialect = dialect

    def filter(self, record: logging.LogRecord) -> bool:
        span, run = _span.get(), _run.get()
        parts = [span.fields] if span is not None else []
        if run is not None:
            parts += [fields for dialect, fields in run().items() if not dialect or dialect != self._dialect]
        record.msg, record.args = clean_line(" ".join((*parts, record.getMessage()))), ()
        return True
