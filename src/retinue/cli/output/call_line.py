"""A tool call on one line: its name, its arguments cut to fit, and its result or why it was refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from retinue.cli.output.format import elapsed, one_line
from retinue.core.attachments import with_labels
from retinue.core.events import CallReturned, Refusal
from retinue.core.messages import ToolCall
from retinue.core.text import NOT_JSON

MAX_NAME = 40
MIN_ARGUMENTS = 12
"""Columns that the arguments keep beside a long result."""

MAX_JSON = 100_000
"""Characters of a result that is read as JSON, to find its words."""

ANSWER_FIELDS = ("message", "error", "result", "output", "answer")
"""Where delegation tools put an error or an answer, in this order; beside a message, the error is a code."""

MIN_SHOWN = 0.05
"""Seconds of a call that are not worth a mention."""

SIGNS: Mapping[bool, Mapping[str, str]] = {
    False: {"good": "✓", "bad": "✗", "busy": "…", "gives": "→"},
    True: {"good": "+", "bad": "x", "busy": "-", "gives": "->"},
}
"""The signs in front of a call and of its result; by whether the terminal has ASCII alone."""

REFUSED: Mapping[Refusal, str] = {
    "policy": "refused",
    "approval": "refused",
    "sandbox": "not run",
}

LineKind: TypeAlias = Literal["good", "bad"]


class CallLine(NamedTuple):
    """The parts of a line about a call that has returned."""

    kind: LineKind
    name: str
    arguments: str
    result: str

    def text(self, width: int, *, ascii_only: bool = False) -> str:
        """The line in at most `width` characters.

        >>> CallLine("good", "shell", "pytest -q", "→ 12 passed, 1.3 s").text(80)
        '✓ shell  pytest -q  → 12 passed, 1.3 s'
        >>> CallLine("bad", "shell", "pytest --maxfail=1 tests", "failed: exit status 1").text(40)
        '✗ shell  pytest --ma…  failed: exit sta…'
        """
        sign, name, arguments, result = self.parts(width, ascii_only=ascii_only)
        return _cut("  ".join(part for part in (f"{sign} {name}", arguments, result) if part), width)

    def parts(self, width: int, *, ascii_only: bool = False) -> tuple[str, str, str, str]:
        """The sign, the name, and what of arguments and result fits into a line of this width."""
        sign = SIGNS[ascii_only][self.kind]
        room = max(0, width - len(sign) - len(self.name) - 5)
        result = self.result.replace("→", SIGNS[ascii_only]["gives"])
        kept = min(len(self.arguments), max(MIN_ARGUMENTS, room - len(result)))
        arguments = one_line(self.arguments, kept) if self.arguments else ""
        return sign, self.name, arguments, one_line(result, max(1, room - len(arguments)))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def called(call: ToolCall) -> tuple[str, str]:
    """The name of a call, and its arguments as a person would write them, on one line.

    >>> called(ToolCall("shell", '{"command": "pytest -q"}'))
    ('shell', 'pytest -q')
    >>> called(ToolCall("file_write", '{"path": "notes.md", "content": "Hello.", "append": true}'))
    ('file_write', 'notes.md content=Hello. append=true')
    """
    return one_line(call.name, MAX_NAME), arguments_text(call)


def arguments_text(call: ToolCall) -> str:
    try:
        given = msgspec.json.decode(call.arguments, type=dict[str, Any])
    except NOT_JSON:  # no JSON, or no object
        return _flat(call.arguments)
    return _fields(given)


def _fields(given: Mapping[str, Any]) -> str:
    # The first text stands alone: it is what the call is about.
    first = next((name for name, value in given.items() if isinstance(value, str)), None)
    parts = [] if first is None else [_flat(given[first])]
    parts += [f"{_flat(name)}={_value(value)}" for name, value in given.items() if name != first]
    return " ".join(parts)


def _value(value: object) -> str:
    return _flat(value if isinstance(value, str) else msgspec.json.encode(value).decode())


MAX_PART = 400


def _flat(text: str) -> str:
    return one_line(text, MAX_PART)


def returned_line(call: ToolCall, returned: CallReturned, seconds: float | None) -> CallLine:
    """The line about a call that has returned after so many seconds."""
    name, arguments = called(call)
    took = f", {elapsed(seconds)}" if seconds is not None and seconds >= MIN_SHOWN else ""
    if returned.refused is not None:
        return CallLine("bad", name, arguments, f"{REFUSED[returned.refused]}: {_flat(returned.text)}")
    if returned.failed:
        return CallLine("bad", name, arguments, f"failed: {_reason(returned.text)}{took}")
    shown = with_labels(returned.text, returned.attachments)
    return CallLine("good", name, arguments, f"→ {_gist(shown)}{took}")


def _reason(text: str) -> str:
    """Why a call failed, on one line: a text of one line, else the last words and how the program ended.

    >>> _reason("no such file"), _reason("=== start\\n1 failed, 2 passed\\n[exit code 1]")
    ('no such file', '1 failed, 2 passed [exit code 1]')
    """
    lines = [line for line in _readable(text).splitlines() if line.strip()] or ["no reason given"]
    last = lines[-2:] if lines[-1].startswith("[") else lines[-1:]
    return _flat(" ".join(last))


def _gist(text: str) -> str:
    """The result on one line: the text itself, or its last line and the number of lines.

    >>> _gist("42"), _gist("one\\ntwo\\n3 passed"), _gist(" ")
    ('42', '3 passed (3 lines)', 'nothing')
    """
    lines = [line for line in _readable(text).splitlines() if line.strip()]
    if not lines:
        return "nothing"
    return _flat(lines[0]) if len(lines) == 1 else f"{one_line(lines[-1], 60)} ({len(lines)} lines)"


def _readable(text: str) -> str:
    """What the JSON result of a delegation says: its error, else its answer, else its fields; any other text as it is.

    >>> _readable('{"success":true,"output":"42","error":null}'), _readable('{"task_id":"t_01","n":1}'), _readable("42")
    ('42', 't_01 n=1', '42')
    """
    if not text.startswith("{") or len(text) > MAX_JSON:
        return text
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except NOT_JSON:
        return text
    words = (fields.get(name) for name in ANSWER_FIELDS)
    return next((each for each in words if isinstance(each, str) and each.strip()), "") or _fields(fields) or text
