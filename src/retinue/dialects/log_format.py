"""Telemetry lines: `key=value` pairs for people and for `grep`, without contents unless somebody asked for them."""

from __future__ import annotations

import json
import os
import re

PAYLOADS = "RETINUE_LOG_PAYLOADS"
"""The environment variable that lets contents into the logs."""

_BARE = re.compile(r"[\w.:/@+-]+", re.ASCII)
_LONGEST = 80


def line(**facts: object) -> str:
    """The facts in their order, those that are None left out.

    What is not a plain word is quoted, so that a model cannot write log lines of its own, and cut.

    >>> line(action="status", task_id="t_01", error=None, turns_used=4)
    'action=status task_id=t_01 turns_used=4'
    >>> line(task_id="x\\nERROR forged")
    'task_id="x\\\\nERROR forged"'
    """
    return " ".join(f"{name}={_shown(value)}" for name, value in facts.items() if value is not None)


def with_payloads(facts: str, **contents: object) -> str:
    """The line with contents, if the environment asks for them.

    >>> with_payloads("action=spawn", task="Find it.")
    'action=spawn'
    """
    if os.environ.get(PAYLOADS) != "1":
        return facts
    told = (f"{name}={json.dumps(str(value))}" for name, value in contents.items() if value is not None)
    return " ".join((facts, *told))


def _shown(value: object) -> str:
    text = str(value)
    return text if _BARE.fullmatch(text) and len(text) <= _LONGEST else json.dumps(text[:_LONGEST])
