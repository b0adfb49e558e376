"""The settings of `buzzllm`: the time limit of a subagent's process, and the number of processes kept ready."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

SECTION = "buzzllm"


class BuzzllmSettings(Struct, frozen=True, kw_only=True):
    """Settings of the dialect `buzzllm`, the section `[buzzllm]` of a settings file.

    Pass them as `retinue.open(dialect_settings={"buzzllm": ...})`.

    >>> BuzzllmSettings(timeout_secs=60).warm_processes
    1
    """

    timeout_secs: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400,
            description="Seconds that a subagent's process may take, after which it is killed.",
            examples=[900],
        ),
    ] = 900
    warm_processes: Annotated[
        int,
        Meta(
            ge=0,
            le=16,
            description="Processes that are started ahead after the first call, so that the next ones begin at once.",
            examples=[1],
        ),
    ] = 1


DEFAULTS = BuzzllmSettings()
