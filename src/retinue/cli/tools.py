"""`retinue tools`: list the built-in tools and those of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.cli.options import ConfigFlag, JsonFlag
from retinue.cli.output.terminal import answer_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.core.ports import Tool


def tools(config: ConfigFlag = None, json: JsonFlag = False) -> int:
    """List the tools that agents can be given, with --tools or in the settings."""
    from retinue.app.open import builtin_tools
    from retinue.app.settings_file import load_settings
    from retinue.app.tool_modules import load_tools

    own = load_tools(load_settings(config).tool_modules)
    hidden = {tool.spec.name for tool in own}
    found = [*own, *(tool for tool in builtin_tools() if tool.spec.name not in hidden)]
    if json:
        answer_json([_as_json(tool, is_own=tool in own) for tool in found])
    else:
        _table(found, own)
    return 0


def _as_json(tool: Tool, *, is_own: bool) -> dict[str, object]:
    return {
        "name": tool.spec.name,
        "description": tool.spec.description,
        "kind": tool.kind,
        "risk": tool.risk,
        "builtin": not is_own,
    }


def _table(found: Sequence[Tool], own: Sequence[Tool]) -> None:
    from retinue.cli.output.table import Column, print_table

    columns: list[Column[Tool]] = [
        Column(title="TOOL", cell=lambda tool: tool.spec.name),
        Column(title="FROM", cell=lambda tool: "settings" if tool in own else "retinue", least_width=60),
        Column(title="RISK", cell=lambda tool: str(tool.risk), least_width=60),
        Column(title="WHAT IT DOES", cell=lambda tool: tool.spec.description.partition("\n")[0], shrinks=True),
    ]
    print_table(found, columns)
