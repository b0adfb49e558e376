"""The section `[cron]`: how jobs that a clock starts are carried out."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from retinue.config.sections import Section


class CronSettings(Struct, frozen=True, kw_only=True):
    """What holds for jobs that do not say otherwise."""

    missed: Annotated[
        Literal["once", "skip"],
        Meta(
            description="What becomes of moments at which no daemon ran: made up for once, all together, or skipped.",
            examples=["once"],
        ),
    ] = "once"
    max_running: Annotated[
        int, Meta(ge=1, le=1000, description="Jobs at work at the same time, of all daemons together.", examples=[4])
    ] = 4
    approvals: Annotated[
        Literal["deny", "wait"],
        Meta(
            description="When a call of a job needs a person: refuse it, or wait for retinue approve or deny.",
            examples=["deny"],
        ),
    ] = "deny"


CRON = Section(name="cron", type=CronSettings, about="Jobs that retinue cron starts.")
