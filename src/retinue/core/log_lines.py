"""Log lines: `key=value` facts on one line, and contents (tasks, answers, arguments, results) on request alone."""

from __future__ import annotations

import json
import re

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
    return " ".join(f"{name}={quoted(value)}" for name, value in facts.items() if value is not None)


def quoted(value: object, limit: int = _MAX_CHARACTERS) -> str:
    """A value as it stands in a log line: bare if it is a short plain word, else a JSON string of `limit` characters.

    >>> quoted("t_01"), quoted("two words"), quoted("xxxx", 3)
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
