"""What a settings file can say about `xzatoma` in `[agent.subagent]`, with the document's own complaints."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

SECTION = "agent.subagent"


class XzatomaSettings(Struct, frozen=True, kw_only=True):
    """How deep, how long and how wordy; `output_max_size` is in bytes."""

    max_depth: Annotated[
        int,
        Meta(
            ge=1,
            le=10,
            description="How deep subagents may delegate on, from 1 to 10.",
            extra={
                "too_small": f"{SECTION}.max_depth must be greater than 0",
                "too_large": f"{SECTION}.max_depth cannot exceed 10 (stack overflow risk)",
            },
        ),
    ] = 3
    default_max_turns: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Turns of a subagent when the call does not say, from 1 to 100.",
            extra={
                "too_small": f"{SECTION}.default_max_turns must be greater than 0",
                "too_large": f"{SECTION}.default_max_turns cannot exceed 100",
            },
        ),
    ] = 10
    output_max_size: Annotated[
        int,
        Meta(
            ge=1024,
            description="Bytes of a subagent's summary that its caller reads, from 1024.",
            extra={"too_small": f"{SECTION}.output_max_size must be at least 1024 bytes"},
        ),
    ] = 4096


DEFAULTS = XzatomaSettings()
