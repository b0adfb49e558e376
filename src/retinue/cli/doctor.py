"""`retinue doctor`: print the results of all checks."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from retinue.cli.event_loop import perform
from retinue.cli.options import JsonFlag
from retinue.cli.output.terminal import answer_json, console

if TYPE_CHECKING:
    from retinue.app.doctor_checks import Finding

ROOM = 40
"""Columns that the results need beside the names to get a column of their own."""


def doctor(json: JsonFlag = False) -> int:
    """Check versions, state, settings and keys, and ask every provider; the last line is a verdict.

    Exit status: 0 if a run can start, else 1, and the verdict says what to do next.

    Keys are reported by the name of their variable, never by their value.
    """
    from retinue.app.doctor_checks import run_checks

    findings: list[Finding] = []

    async def main() -> int:
        findings.extend(await run_checks())
        return 1 if any(finding.broken for finding in findings) else 0

    code = perform(main())
    if json:
        listed = [{"name": each.name, "ok": not each.broken, "found": each.found} for each in findings]
        answer_json({"ok": code == 0, "findings": listed})
    else:
        _print(findings)
    return code


def _print(findings: list[Finding]) -> None:
    from rich.text import Text

    screen = console()
    width = max(len(finding.name) for finding in findings)
    indent = width + 4 if screen.width >= width + ROOM else 4
    for finding in findings:
        line = f"{'✗' if finding.broken else ' '} {finding.name.ljust(width)}  {finding.found}"
        lines = [line] if not screen.is_terminal else _wrapped(line, screen.width, indent)
        for number, part in enumerate(lines):
            text = Text(part, style="red" if finding.broken else "")
            text.stylize("bold", 2, 2 + width if number == 0 else 2)
            screen.print(text, soft_wrap=True)


def _wrapped(text: str, columns: int, indent: int) -> list[str]:
    # A path that is cut cannot be copied.
    return wrap(text, columns, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False)
