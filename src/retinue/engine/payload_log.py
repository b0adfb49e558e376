"""The contents of runs in the log, if the environment asks for them: every event with its texts, and the system prompt.

All that a model is sent and answers, tool arguments and results included, is in the events of its run, so that one line
for each event has the contents whatever dialect, tool or front end is at work.
"""

from __future__ import annotations

import logging

import msgspec

from retinue.core.events import Event
from retinue.core.log_context import RunFields, line, logger, logs_payloads, run_log, with_payloads
from retinue.core.state import Run

log = logger("retinue.payloads")


def is_on() -> bool:
    return log.isEnabledFor(logging.INFO) and logs_payloads()


def log_start(run: Run, fields: RunFields) -> None:
    """Log the task and the system prompt of a run that begins."""
    with run_log(fields):
        log.info("%s", with_payloads(line(event="accepted"), system=run.run_spec.system, task=run.accepted.task))


def log_event(seq: int, event: Event, fields: RunFields) -> None:
    """Log an event as it is stored, as JSON."""
    tag = type(event).__struct_config__.tag
    with run_log(fields):
        log.info("%s payload=%s", line(event=tag, seq=seq), msgspec.json.encode(event).decode())
