"""The settings of `claude`, `[claude]`: the name of its first tool; depth, number and turns of sub-agents."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

SECTION = "claude"

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class ClaudeSettings(Struct, frozen=True, kw_only=True):
    """Settings of the dialect `claude`, the section `[claude]` of a settings file.

    Pass them as `retinue.open(dialect_settings={"claude": ...})`.

    >>> ClaudeSettings(agent_tool="Task").max_running
    8
    """

    agent_tool: Annotated[
        Literal["Agent", "Task"],
        Meta(description="Name of the tool that starts sub-agents; Task is its older name.", examples=["Agent"]),
    ] = "Agent"
    max_depth: Annotated[Count, Meta(description="How deep sub-agents may be nested.", examples=[1])] = 1
    max_running: Annotated[Count, Meta(description="Running sub-agents in the whole tree.", examples=[8])] = 8
    max_turns: Annotated[
        Count, Meta(description="Turns of a sub-agent where its definition sets no limit.", examples=[50])
    ] = 50


DEFAULTS = ClaudeSettings()
