"""`retinue doctor`: what is installed, what is found and what is broken, in one look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from retinue.cli.checkup import Finding


def doctor(json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")] = False) -> int:
    """Check versions, state, settings, keys and local servers; exit 1 if something is broken.

    Keys are told by the name of their variable, never by their value.
    """
    from retinue.cli.checkup import examine
    from retinue.cli.process import perform
    from retinue.cli.terminal import answer_json

    findings: list[Finding] = []

    async def main() -> int:
        findings.extend(await examine())
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

    from retinue.cli.terminal import console

    screen = console()
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        line = Text("✗ " if finding.broken else "  ", style="red")
        line.append(finding.name.ljust(width), style="bold")
        line.append(f"  {finding.found}", style="red" if finding.broken else "")
        screen.print(line, soft_wrap=not screen.is_terminal)
