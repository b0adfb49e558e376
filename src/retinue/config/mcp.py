"""The section `[mcp]`: how the MCP server answers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from retinue.config.section_type import Section


class McpSettings(Struct, frozen=True, kw_only=True):
    """How long a call of an MCP client may block."""

    max_wait: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds after which a call returns although its runs go on; hosts cut longer calls.",
            examples=[45],
        ),
    ] = 45.0


MCP = Section(name="mcp", type=McpSettings, about="The MCP server (retinue mcp).")
