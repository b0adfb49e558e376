"""The settings of `native`, `[native]`: depth, number and turns of sub-agents."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

SECTION = "native"

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class NativeSettings(Struct, frozen=True, kw_only=True):
    """Settings of the dialect `native`, the section `[native]` of a settings file.

    Pass them as `retinue.open(dialect_settings={"native": ...})`.

    >>> NativeSettings(max_depth=2).max_running
    8
    """

    max_depth: Annotated[Count, Meta(description="How deep sub-agents may be nested.", examples=[1])] = 1
    max_running: Annotated[Count, Meta(description="Running sub-agents in the whole tree.", examples=[8])] = 8
    max_turns: Annotated[
        Count,
        Meta(description="Turns of a sub-agent where neither the call nor its agent sets a limit.", examples=[50]),
    ] = 50


DEFAULTS = NativeSettings()
