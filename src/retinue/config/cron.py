"""The section `[cron]`: how scheduled jobs are run."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from retinue.config.section_type import Section


class CronSettings(Struct, frozen=True, kw_only=True):
    """Defaults of scheduled jobs."""

    missed: Annotated[
        Literal["once", "skip"],
        Meta(
            description="What happens to runs missed while no daemon ran: one run for all of them, or none (skip).",
            examples=["once"],
        ),
    ] = "once"
    max_running: Annotated[
        int, Meta(ge=1, le=1000, description="Jobs running at the same time, of all daemons together.", examples=[4])
    ] = 4
    approvals: Annotated[
        Literal["deny", "wait"],
        Meta(
            description="When a call of a job needs an approval: deny it, or wait for retinue approve or deny.",
            examples=["deny"],
        ),
    ] = "deny"


CRON = Section(name="cron", type=CronSettings, about="Scheduled jobs (retinue cron).")
