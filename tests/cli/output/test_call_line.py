"""Calls on one line: arguments are cut to fit, results and failures follow."""

from __future__ import annotations

import pytest

from retinue.cli.output.call_line import called, returned_line
from retinue.core.events import CallReturned, Refusal
from retinue.core.messages import ToolCall


def returned(text: str, *, failed: bool = False, refused: Refusal | None = None) -> CallReturned:
    return CallReturned(at=0.0, turn=1, index=0, text=text, failed=failed, refused=refused)


REFUSED = returned("not allowed", failed=True, refused="approval")
MISSING = returned("no sandbox", failed=True, refused="sandbox")
EXITED = returned("1 failed\n[exit code 1]", failed=True)
SHELL = ToolCall("shell", '{"command": "pytest -q"}')
ASK = ToolCall("ask", '{"task": "6 times 7?"}')
UNANSWERED = returned('{"success":false,"output":"","error":"gone"}', failed=True)
STARTED = returned('{"task_id":"t_01","done":["x"]}')
WRITE = ToolCall("file_write", '{"path": "notes.md", "content": "a\\nb"}')


@pytest.mark.parametrize(
    ("call", "result", "seconds", "line"),
    [
        (SHELL, returned("....\n12 passed"), 1.3, "✓ shell  pytest -q  → 12 passed (2 lines), 1.3 s"),
        (SHELL, EXITED, 0.0, "✗ shell  pytest -q  failed: 1 failed [exit code 1]"),
        (WRITE, REFUSED, None, "✗ file_write  notes.md content=a b  refused: not allowed"),
        (SHELL, MISSING, None, "✗ shell  pytest -q  not run: no sandbox"),
        (ToolCall("now", "{}"), returned("\x1b[31mnoon"), None, "✓ now  → ␛[31mnoon"),
        (ToolCall("odd", "{not json"), returned(""), None, "✓ odd  {not json  → nothing"),
        (ToolCall("odd", "[1]"), returned("x"), None, "✓ odd  [1]  → x"),
        (ASK, returned('{"success":true,"output":"42","error":null}'), None, "✓ ask  6 times 7?  → 42"),
        (ASK, UNANSWERED, None, "✗ ask  6 times 7?  failed: gone"),
        (ASK, STARTED, None, '✓ ask  6 times 7?  → t_01 done=["x"]'),
    ],
    ids=["result", "failed", "refused", "sandbox", "control codes", "no JSON", "no object", "answer", "error", "state"],
)  # fmt: skip
def test_a_call_is_one_line(call: ToolCall, result: CallReturned, seconds: float | None, line: str) -> None:
    assert returned_line(call, result, seconds).text(100) == line


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_long_call_is_cut_to_the_width(width: int) -> None:
    call = ToolCall("shell", '{"command": "' + "x " * 500 + '"}')
    line = returned_line(call, returned("y " * 500), 3.0).text(width)

    assert len(line) <= width
    assert line.startswith("✓ shell  x")


def test_the_first_text_of_the_arguments_stands_alone() -> None:
    call = ToolCall("subagent", '{"wait": true, "task": "Look.", "agent": "dig"}')

    assert called(call) == ("subagent", "Look. wait=true agent=dig")
