"""The loggers of retinue: every line of a run begins with the fields of the run, and is printable on one line.

The fields are in context variables, so that tasks and threads that work for a run have them, and runs side by side do
not mix. A span around a run (a scheduled job) has fields of its own, which come first. A line is `key=value` facts;
contents (tasks, answers, arguments, results) are added on request alone.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from retinue.core.text import clean_line

RunFields: TypeAlias = Mapping[str, str]
"""The fields of a run as they stand in a line, by the dialect that names them so; empty for no dialect."""


class LogScope:
    """The fields of everything that is done for one purpose; `fields` may change when more is known."""

    def __init__(self, fields: str) -> None:
        self.fields = fields


REPORTED = {"is_reported": True}
"""`extra` of a line about what front ends show by themselves: not shown where no log lines were asked for."""

_named: set[str] = set()
_span: ContextVar[LogScope | None] = ContextVar("retinue_log_span", default=None)
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
def log_span(fields: str) -> Generator[LogScope]:
    """Let the lines inside of the block, and of tasks and threads that are started in it, begin with these fields."""
    span = LogScope(fields)
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


# ---- lines of fields, and payloads -----------------------------------------------------------------------------------


_BARE = re.compile(r"[\w.:/@+-]+", re.ASCII)
_MAX_CHARACTERS = 80
_payloads = False


def line(**facts: object) -> str:
    """The facts in their order; facts that are None are left out.

    A value that is not a plain word is quoted and cut, so that a model cannot forge log lines.

    >>> line(action="status", task_id="t_01", error=None, turns_used=4)
    'action=status task_id=t_01 turns_used=4'
    >>> line(task_id="x\\nERROR forged")
    'task_id="x\\\\nERROR forged"'
    """
    return " ".join(f"{name}={log_value(value)}" for name, value in facts.items() if value is not None)


def log_value(value: object, limit: int = _MAX_CHARACTERS) -> str:
    """A value as it stands in a log line: bare if it is a short plain word, else a JSON string of `limit` characters.

    >>> log_value("t_01"), log_value("two words"), log_value("xxxx", 3)
    ('t_01', '"two words"', '"xxx"')
    """
    text = str(value)
    return text if _BARE.fullmatch(text) and len(text) <= limit else json.dumps(text[:limit])


def set_payloads(*, on: bool) -> None:
    """Let contents into the log lines of this process, or keep them out, as at the start."""
    global _payloads
    _payloads = on


def logs_payloads() -> bool:
    """Whether contents are let into log lines."""
    return _payloads


def with_payloads(facts: str, **contents: object) -> str:
    """The line with contents, if they are let into log lines.

    >>> with_payloads("action=spawn", task="Find it.")
    'action=spawn'
    """
    if not logs_payloads():
        return facts
    payloads = (f"{name}={json.dumps(str(value))}" for name, value in contents.items() if value is not None)
    return " ".join((facts, *payloads))
