"""The settings of `codex`, `[codex]`: threads, depth, turns, and the bounds of a wait."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from retinue.dialects.base import Complaints

SECTION = "codex"

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Milliseconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class CodexSettings(Struct, frozen=True, kw_only=True):
    """Settings of the dialect `codex`, the section `[codex]` of a settings file.

    Pass them as `retinue.open(dialect_settings={"codex": ...})`.

    >>> CodexSettings(max_depth=2).max_threads
    4
    """

    max_threads: Annotated[
        Count, Meta(description="Runs that work at once: the root and its running agents.", examples=[4])
    ] = 4
    max_depth: Annotated[Count, Meta(description="How deep agents may be nested.", examples=[1])] = 1
    max_turns: Annotated[
        Count, Meta(description="Turns of an agent where its definition sets no limit.", examples=[50])
    ] = 50
    min_wait_timeout_ms: Annotated[
        Milliseconds, Meta(description="Shortest timeout of wait_agent; a shorter one is raised to it.")
    ] = 10_000
    max_wait_timeout_ms: Annotated[
        Milliseconds, Meta(description="Longest timeout of wait_agent; a longer one is refused.")
    ] = 3_600_000
    default_wait_timeout_ms: Annotated[Milliseconds, Meta(description="Timeout of a wait_agent that names none.")] = (
        30_000
    )


def cross_key_errors(settings: CodexSettings) -> Complaints:
    """The three bounds of a wait have to be in order."""
    if settings.min_wait_timeout_ms <= settings.default_wait_timeout_ms <= settings.max_wait_timeout_ms:
        return ()
    return (("default_wait_timeout_ms", "expected a value from min_wait_timeout_ms to max_wait_timeout_ms"),)


DEFAULTS = CodexSettings()
