"""The section `[mcp_servers.<name>]`: MCP servers whose tools agents can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from retinue.config.providers import Address, Variable
from retinue.config.section_type import NamedTables, Section
from retinue.core.policy import Risk
from retinue.mcp_client import McpServer

Pattern = Annotated[str, Meta(min_length=1)]


class McpServerSettings(Struct, frozen=True, kw_only=True):
    """An MCP server: a program or an address, and what agents may have of it."""

    command: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="The program, which speaks MCP on stdin and stdout.", examples=["npx"]),
    ] = None
    args: Annotated[tuple[str, ...], Meta(description="Its arguments.", examples=[["-y", "some-mcp-server"]])] = ()
    env: Annotated[
        tuple[Variable, ...],
        Meta(description="Environment variables that it is given, by name.", examples=[["GITHUB_TOKEN"]]),
    ] = ()
    cwd: Annotated[
        str | None,
        Meta(description="Its folder, relative to this file; the run's workspace by default.", examples=["."]),
    ] = None
    url: Annotated[
        Address | None, Meta(description="The address of a server on HTTP, instead.", examples=["https://host/mcp"])
    ] = None
    headers: Annotated[
        Mapping[str, Variable],
        Meta(description="Headers of requests, each with the variable of its value.", examples=[{"X-Key": "MCP_KEY"}]),
    ] = {}
    timeout: Annotated[float, Meta(gt=0, le=86_400, description="Seconds that one call may take.", examples=[60])] = (
        60.0
    )
    allow: Annotated[
        tuple[Pattern, ...],
        Meta(description="The server's tools that agents can have; all by default. Patterns.", examples=[["get_*"]]),
    ] = ()
    deny: Annotated[
        tuple[Pattern, ...], Meta(description="Tools that no agent can have. Patterns.", examples=[["delete_*"]])
    ] = ()
    risk: Annotated[
        Mapping[str, Literal["low", "medium", "high"]],
        Meta(
            description="Risk of tools by pattern, in place of what the server says.",
            examples=[{"search_*": "low"}],
            extra={"expected": "a table of patterns, each with low, medium or high"},
        ),
    ] = {}

    def server(self, name: str, folder: Path) -> McpServer:
        """The server; a relative `cwd` is relative to the folder of the settings file."""
        return McpServer(
            name=name,
            command=self.command or "",
            args=self.args,
            env=self.env,
            cwd="" if self.cwd is None else str((folder / Path(self.cwd).expanduser()).absolute()),
            url=self.url or "",
            headers=self.headers,
            timeout=self.timeout,
            allow=self.allow,
            deny=self.deny,
            risk={pattern: Risk(risk) for pattern, risk in self.risk.items()},
        )


def _errors(server: McpServerSettings) -> Sequence[tuple[str, str]]:
    return (("command", "expected a command, or a url"),) if server.command is None and server.url is None else ()


MCP_SERVERS = Section(
    name="mcp_servers",
    type=McpServerSettings,
    about="MCP servers, whose tools agents can have as mcp__NAME__TOOL.",
    named=NamedTables(
        example="github",
        pattern=r"(?=.{1,32}\Z)[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*",
        expected="up to 32 letters, digits, - and single _",
    ),
    cross_key_errors=_errors,
)
