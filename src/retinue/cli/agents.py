"""`retinue agents`: list the agents of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from retinue.cli.options import ConfigFlag, JsonFlag
from retinue.cli.output.terminal import answer_json, say

if TYPE_CHECKING:
    from retinue.config.agents import AgentSettings
    from retinue.config.settings import Settings


class _Row(NamedTuple):
    name: str
    agent: AgentSettings


def agents(config: ConfigFlag = None, json: JsonFlag = False) -> int:
    """List the agents of the settings: --agent starts one, and other agents can delegate to them."""
    from retinue.app.settings_file import load_settings

    settings = load_settings(config)
    rows = [_Row(name, agent) for name, agent in settings.agents.items()]
    if json:
        answer_json([_as_json(row, settings) for row in rows])
    elif rows:
        _table(rows)
    else:
        say(f"no agents in {settings.source or settings.user_source or 'the settings'}: add a section [agents.NAME]")
    return 0


def _as_json(row: _Row, settings: Settings) -> dict[str, object]:
    return {
        "name": row.name,
        "description": row.agent.description,
        "model": row.agent.qualified_model or None,
        "tools": list(row.agent.tools or ()),
        "enabled": row.agent.enabled,
        "default": row.name == settings.default_agent,
    }


def _table(rows: list[_Row]) -> None:
    from retinue.cli.output.table import Column, print_table

    columns: list[Column[_Row]] = [
        Column(title="AGENT", cell=lambda row: row.name if row.agent.enabled else f"{row.name} (off)"),
        Column(title="MODEL", cell=lambda row: row.agent.qualified_model or "-", least_width=60),
        Column(title="TOOLS", cell=lambda row: ", ".join(row.agent.tools or ()) or "-", least_width=80, shrinks=True),
        Column(title="DESCRIPTION", cell=lambda row: row.agent.description.partition("\n")[0], shrinks=True),
    ]
    print_table(rows, columns)
