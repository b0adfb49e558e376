"""The section `[worker]`: how `retinue worker` takes and drives runs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from retinue.config.section_type import Section
from retinue.core.commands import DEFAULT_LEASE

Tag = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z0-9._:/-]{1,64}\Z",
        extra={"expected": "1 to 64 of the characters a-z, A-Z, 0-9, ., _, :, / and -"},
    ),
]
"""A property of a worker that a run may need, such as `gpu` or `host:db1`."""


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """Defaults of `retinue worker`; its flags go before them."""

    concurrency: Annotated[
        int,
        Meta(
            ge=1, le=10_000, description="Trees at once; one that waits for an approval is not counted.", examples=[8]
        ),
    ] = 8
    tags: Annotated[
        tuple[Tag, ...], Meta(description="Tags of this worker, besides those given with --tag.", examples=[["gpu"]])
    ] = ()
    lease: Annotated[
        float,
        Meta(
            ge=0.2,
            le=3600,
            description="Seconds without a heartbeat after which other workers take over its runs.",
            examples=[DEFAULT_LEASE],
        ),
    ] = DEFAULT_LEASE
    max_runs: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Runs at work in one worker from which on new children are left to other workers.",
            examples=[256],
        ),
    ] = 256
    max_trees: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(
            description="Trees at work in the whole store, from which on this worker takes none; a store is a tenant.",
            examples=[50],
        ),
    ] = None
    cron: Annotated[
        bool,
        Meta(description="Whether this worker starts the scheduled jobs of its agents when they are due."),
    ] = False


WORKER = Section(
    name="worker", type=WorkerSettings, about="Workers that drive runs of a shared store (retinue worker)."
)
