"""The settings of `xzatoma`, `[agent.subagent]`, with the error messages that its document prescribes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from retinue.providers.catalog import WIRES, canonical_name

SECTION = "agent.subagent"
ERROR = "Configuration error: "
"""The beginning of every error message in the document."""

Quota = Annotated[int, Meta(ge=1)]


class XzatomaSettings(Struct, frozen=True, kw_only=True):
    """Settings of the dialect `xzatoma`, the section `[agent.subagent]` of a settings file.

    Pass them as `retinue.open(dialect_settings={"xzatoma": ...})`. `output_max_size` is in bytes, `max_total_time` in
    seconds.

    >>> XzatomaSettings(max_depth=1, max_executions=20).max_executions
    20
    """

    max_depth: Annotated[
        int,
        Meta(
            ge=1,
            le=10,
            description="Maximum depth of subagents, from 1 to 10.",
            extra={
                "too_small": f"{ERROR}{SECTION}.max_depth must be greater than 0",
                "too_large": f"{ERROR}{SECTION}.max_depth cannot exceed 10 (stack overflow risk)",
            },
        ),
    ] = 3
    default_max_turns: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Default turns of a subagent, from 1 to 100.",
            extra={
                "too_small": f"{ERROR}{SECTION}.default_max_turns must be greater than 0",
                "too_large": f"{ERROR}{SECTION}.default_max_turns cannot exceed 100",
            },
        ),
    ] = 10
    output_max_size: Annotated[
        int,
        Meta(
            ge=1024,
            description="Bytes of a subagent's summary that its caller reads, from 1024.",
            extra={"too_small": f"{ERROR}{SECTION}.output_max_size must be at least 1024 bytes"},
        ),
    ] = 4096
    telemetry_enabled: Annotated[bool, Meta(description="Whether subagents are reported in log lines and metrics.")] = (
        True
    )
    persistence_enabled: Annotated[
        bool, Meta(description="Whether subagents' messages are kept after the end of their tree, for retinue replay.")
    ] = False
    persistence_path: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="A database that kept conversations are copied to, besides retinue's own.",
            examples=["~/conversations.db"],
        ),
    ] = None
    max_executions: Annotated[
        Quota | None, Meta(description="Subagents of one session, failed ones included.", examples=[20])
    ] = None
    max_total_tokens: Annotated[
        Quota | None, Meta(description="Tokens of all subagents of one session.", examples=[100_000])
    ] = None
    max_total_time: Annotated[
        Quota | None, Meta(description="Seconds in which subagents of one session work.", examples=[600])
    ] = None
    provider: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="The provider of subagents, in place of their caller's.", examples=["anthropic"]),
    ] = None
    model: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="The model of subagents, in place of their caller's.", examples=["claude-haiku-4-5"]),
    ] = None
    chat_enabled: Annotated[
        bool, Meta(description="Whether a chat begins with delegation switched on; /subagents switches it.")
    ] = False


DEFAULTS = XzatomaSettings()


def unknown_provider(name: str, known: Sequence[str]) -> str:
    """The message about an unknown provider.

    >>> unknown_provider("copilot", ["anthropic", "ollama"])
    'Invalid subagent provider override: copilot. Must be one of: anthropic, ollama'
    """
    return f"Invalid subagent provider override: {name}. Must be one of: {', '.join(known)}"


def unknown_providers(settings: XzatomaSettings, providers: Sequence[str]) -> Sequence[tuple[str, str]]:
    """The error in `provider`, given the providers of the settings file."""
    known = tuple(dict.fromkeys((*WIRES, *providers)))
    if settings.provider is None or canonical_name(settings.provider, known) in known:
        return ()
    return (("provider", f"{ERROR}{unknown_provider(settings.provider, known)}"),)
