"""Definitions of the tools of an MCP server, pinned when they are first seen.

A server can change what its tools say and do after a person has accepted them. So the first definition of each tool is
stored and stays in use; another one, and a tool that was not there before, is reported and has to be accepted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from retinue.core.agent import ToolKind
from retinue.core.commands import Decide, Decision
from retinue.core.policy import Risk
from retinue.core.ports import KeyValue
from retinue.core.text import clean, clean_line
from retinue.mcp_client.server_config import McpServer

PREFIX = "mcp__"
MAX_NAME = 64
"""Characters of a name that every vendor accepts."""

MAX_TOOLS = 256
MAX_DESCRIPTION = 2048
MAX_SCHEMA = 32 * 1024


class ToolDefinition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool as its server describes it; the hints are None where the server says nothing."""

    name: str
    description: str = ""
    schema: str = '{"type":"object"}'
    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def kind(self) -> ToolKind:
        if self.read_only:
            return "pure"
        return "idempotent" if self.idempotent else "once"

    @property
    def risk(self) -> Risk:
        """Low for a tool that only reads, high for one that says that it destroys, else medium."""
        if self.read_only:
            return Risk.LOW
        return Risk.HIGH if self.destructive else Risk.MEDIUM

    def name_for(self, server: str) -> str:
        """The name that agents use.

        >>> ToolDefinition(name="get page").name_for("docs")
        'mcp__docs__get_page'
        """
        own = "".join(character if character.isascii() and character.isalnum() else "_" for character in self.name)
        whole = f"{PREFIX}{server}__{own}"
        if len(whole) <= MAX_NAME:
            return whole
        return f"{whole[: MAX_NAME - 9]}_{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"


def definition_of(tool: Mapping[str, Any]) -> ToolDefinition | str:
    """The definition of one listed tool; a text that says why it cannot be used.

    Descriptions lose control characters and are cut: they are untrusted text that a model reads.
    """
    name = tool.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        return "a tool without a usable name"
    shown = clean_line(name)
    schema: object = tool.get("inputSchema")
    if not isinstance(schema, dict) or cast("dict[str, object]", schema).get("type") != "object":
        return f"{shown}: its schema is not that of an object"
    encoded = msgspec.json.encode(schema)
    if len(encoded) > MAX_SCHEMA:
        return f"{shown}: its schema has more than {MAX_SCHEMA} bytes"
    noted = tool.get("annotations")
    hints = cast("dict[str, object]", noted) if isinstance(noted, dict) else {}
    description = tool.get("description")
    return ToolDefinition(
        name=name,
        description=clean(description if isinstance(description, str) else "")[:MAX_DESCRIPTION],
        schema=encoded.decode(),
        read_only=_hint(hints, "readOnlyHint"),
        destructive=_hint(hints, "destructiveHint"),
        idempotent=_hint(hints, "idempotentHint"),
    )


def _hint(hints: Mapping[str, object], name: str) -> bool | None:
    value = hints.get(name)
    return value if isinstance(value, bool) else None


class Listed(Struct, frozen=True):
    """What a server lists: usable definitions by name, and complaints about the others."""

    definitions: dict[str, ToolDefinition]
    complaints: tuple[str, ...] = ()


def listed(tools: Sequence[Mapping[str, Any]], server: McpServer) -> Listed:
    """The usable tools of a list, without those that the settings leave out."""
    found: dict[str, ToolDefinition] = {}
    complaints: list[str] = []
    names: set[str] = set()
    for tool in tools[:MAX_TOOLS]:
        definition = definition_of(tool)
        if isinstance(definition, str):
            complaints.append(definition)
        elif server.offers(definition.name):
            if (name := definition.name_for(server.name)) in names:
                complaints.append(f"{clean_line(definition.name)}: another tool of the server has the same name here")
                continue
            names.add(name)
            found[definition.name] = definition
    if len(tools) > MAX_TOOLS:
        complaints.append(f"{len(tools) - MAX_TOOLS} tools after the first {MAX_TOOLS} are left out")
    return Listed(found, tuple(complaints))


class Pins:
    """The pinned definitions of servers, in the store."""

    def __init__(self, key_value: KeyValue) -> None:
        self._key_value = key_value

    async def of(self, server: McpServer) -> dict[str, ToolDefinition]:
        """The pinned tools of a server that the settings do not leave out; empty if it was never listed."""
        stored = await self._key_value.look(_space(server))
        definitions = (msgspec.json.decode(body, type=ToolDefinition) for body in stored.values())
        return {definition.name: definition for definition in definitions if server.offers(definition.name)}

    async def add(self, server: McpServer, definitions: Mapping[str, ToolDefinition]) -> dict[str, ToolDefinition]:
        """Pin definitions of a server that has none yet; those that another process pinned first hold."""
        await self._key_value.change(_space(server), _first(definitions))
        return await self.of(server)

    async def replace(self, server: McpServer, definitions: Mapping[str, ToolDefinition]) -> None:
        """Pin these definitions in place of the earlier ones."""
        await self._key_value.change(_space(server), _instead(definitions))


def _space(server: McpServer) -> str:
    return f"mcp-tools/{server.name}/{server.identity}"


def _first(definitions: Mapping[str, ToolDefinition]) -> Decide:
    def decide(stored: Mapping[str, bytes]) -> Decision:
        puts = {} if stored else {name: definition.encoded() for name, definition in definitions.items()}
        return Decision(b"", puts=puts)

    return decide


def _instead(definitions: Mapping[str, ToolDefinition]) -> Decide:
    def decide(stored: Mapping[str, bytes]) -> Decision:
        puts = {name: definition.encoded() for name, definition in definitions.items()}
        return Decision(b"", puts=puts, drops=tuple(name for name in stored if name not in puts))

    return decide


def changes(pinned: Mapping[str, ToolDefinition], now: Mapping[str, ToolDefinition]) -> list[str]:
    """What is different from the pinned definitions, one sentence for each tool.

    >>> changes({"a": ToolDefinition(name="a")}, {"a": ToolDefinition(name="a", description="x")})
    ["tool 'a' has changed since it was first used; the first definition holds"]
    """
    changed = [name for name, definition in now.items() if name in pinned and definition != pinned[name]]
    added = [name for name in now if name not in pinned]
    return [
        *(
            f"tool {clean_line(name)!r} has changed since it was first used; the first definition holds"
            for name in changed
        ),
        *(f"tool {clean_line(name)!r} was not there when the server was first used, and is left out" for name in added),
    ]
