"""The section `[mcp_servers.<name>]`: MCP servers whose tools agents can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from retinue.config.providers import HttpUrl, OptionalVariable
from retinue.config.section_type import NamedTables, Section
from retinue.core.policy import Risk
from retinue.mcp_client import McpServer

Named = Annotated[str, Meta(min_length=1)]


class McpServerSettings(Struct, frozen=True, kw_only=True):
    """An MCP server: a program or an address, and what agents may have of it."""

    command: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="The program, which speaks MCP on stdin and stdout.", examples=["npx"]),
    ] = None
    args: Annotated[tuple[str, ...], Meta(description="Its arguments.", examples=[["-y", "some-mcp-server"]])] = ()
    env: Annotated[
        tuple[OptionalVariable, ...],
        Meta(description="Environment variables that it is given, by name.", examples=[["GITHUB_TOKEN"]]),
    ] = ()
    cwd: Annotated[
        str | None,
        Meta(description="Its folder, relative to this file; see the guide for the default.", examples=["."]),
    ] = None
    url: Annotated[
        HttpUrl | None, Meta(description="The address of a server on HTTP, instead.", examples=["https://host/mcp"])
    ] = None
    headers: Annotated[
        Mapping[str, OptionalVariable],
        Meta(description="Headers of requests, each with the variable of its value.", examples=[{"X-Key": "MCP_KEY"}]),
    ] = {}
    timeout: Annotated[float, Meta(gt=0, le=86_400, description="Seconds that one call may take.", examples=[60])] = (
        60.0
    )
    allow: Annotated[
        tuple[Named, ...],
        Meta(description="The server's tools that agents can have; all by default. Patterns.", examples=[["get_*"]]),
    ] = ()
    deny: Annotated[
        tuple[Named, ...], Meta(description="Tools that no agent can have. Patterns.", examples=[["delete_*"]])
    ] = ()
    risk: Annotated[
        Mapping[str, Literal["low", "medium", "high"]],
        Meta(
            description="Risk of tools by pattern, in place of what the server says.",
            examples=[{"search_*": "low"}],
            extra={"expected": "a table of patterns, each with low, medium or high"},
        ),
    ] = {}
    sandbox: Annotated[
        bool,
        Meta(description="Whether the program runs in the sandbox; needs [tools] sandbox.", examples=[True]),
    ] = False
    readable: Annotated[
        tuple[Named, ...],
        Meta(description="Files and folders that it can read in the sandbox.", examples=[["~/.npm-global"]]),
    ] = ()
    writable: Annotated[
        tuple[Named, ...], Meta(description="Folders that it can write in the sandbox.", examples=[["~/.npm"]])
    ] = ()
    network: Annotated[bool, Meta(description="Whether it has the network in the sandbox.", examples=[False])] = True

    def server(self, name: str, folder: Path) -> McpServer:
        """The server; relative paths are relative to the folder of the settings file."""

        def absolute(path: str) -> str:
            return str((folder / Path(path).expanduser()).absolute())

        return McpServer(
            name=name,
            command=self.command or "",
            args=self.args,
            env=self.env,
            cwd="" if self.cwd is None else absolute(self.cwd),
            folder="" if self.command is None else str(folder.absolute()),
            url=self.url or "",
            headers=self.headers,
            timeout=self.timeout,
            allow=self.allow,
            deny=self.deny,
            risk={pattern: Risk(risk) for pattern, risk in self.risk.items()},
            sandbox=self.sandbox,
            readable=tuple(map(absolute, self.readable)),
            writable=tuple(map(absolute, self.writable)),
            network=self.network,
        )


def _errors(server: McpServerSettings) -> Sequence[tuple[str, str]]:
    if server.command is None and server.url is None:
        return (("command", "expected a command, or a url"),)
    if server.sandbox:
        return ()
    given = {"readable": bool(server.readable), "writable": bool(server.writable), "network": not server.network}
    return [(key, "expected sandbox = true beside it") for key, is_given in given.items() if is_given]


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
