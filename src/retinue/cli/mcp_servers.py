"""`retinue mcp-servers`: the MCP servers of the settings, their tools, and the acceptance of changed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from retinue.cli.event_loop import perform
from retinue.cli.options import ConfigFlag, JsonFlag, McpConfigFlag, option
from retinue.cli.output.terminal import answer_json, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.config.settings import Settings
    from retinue.mcp_client import McpServer, ServerReport


def mcp_servers(
    accept: Annotated[
        str | None,
        option("--accept", metavar="NAME", help="Use the tools of this server as it describes them now."),
    ] = None,
    config: ConfigFlag = None,
    mcp_config: McpConfigFlag = None,
    json: JsonFlag = False,
) -> int:
    """Start the MCP servers of the settings, and list their tools and what has changed since they were first used."""
    from retinue.app.settings_file import load_settings
    from retinue.app.settings_file import mcp_servers as servers_of
    from retinue.core.errors import UnknownName

    settings = load_settings(config)
    servers = servers_of(settings, mcp_config or ())
    if accept is not None and accept not in {server.name for server in servers}:
        raise UnknownName("MCP server", accept, tuple(server.name for server in servers))
    return perform(_list(servers, settings, accept, json=json))


async def _list(servers: Sequence[McpServer], settings: Settings, accept: str | None, *, json: bool) -> int:
    from retinue.app.open import mcp_tools_of, open_read_only

    async with open_read_only() as client:
        reports: list[ServerReport] = []
        if (tools := mcp_tools_of(servers, settings, client.key_value)) is not None:
            try:
                reports = [await tools.report(server, accept=server.name == accept) for server in servers]
            finally:
                await tools.close()
    if json:
        answer_json([_as_json(report) for report in reports])
    else:
        _table(reports)
        for report in reports:
            for sentence in filter(None, (report.error, *report.changes)):
                say(f"{report.server}: {sentence}")
    return 1 if any(report.error for report in reports) else 0


def _as_json(report: ServerReport) -> dict[str, object]:
    return {
        "server": report.server,
        "error": report.error or None,
        "changes": list(report.changes),
        "tools": [
            {"name": tool.spec.name, "kind": tool.kind, "risk": tool.risk, "description": tool.spec.description}
            for tool in report.tools
        ],
    }


def _table(reports: Sequence[ServerReport]) -> None:
    from retinue.cli.output.table import Column, print_table
    from retinue.core.ports import Tool

    columns: list[Column[Tool]] = [
        Column(title="TOOL", cell=lambda tool: tool.spec.name),
        Column(title="KIND", cell=lambda tool: tool.kind, least_width=60),
        Column(title="RISK", cell=lambda tool: str(tool.risk), least_width=60),
        Column(title="WHAT IT DOES", cell=lambda tool: tool.spec.description.partition("\n")[2], shrinks=True),
    ]
    print_table([tool for report in reports for tool in report.tools], columns)
