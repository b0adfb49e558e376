"""The section `[store]`: where runs are stored, and how long ended runs and log files are kept."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from retinue.config.section_type import Section

SQLITE = "sqlite:"
"""The beginning of the address of a store in a file, whose path may be relative to the settings file."""


class StoreSettings(Struct, frozen=True, kw_only=True):
    """The address of the store, automatic pruning of ended runs, and the size of log files."""

    url: Annotated[
        str | None,
        Meta(
            description="sqlite:PATH or postgresql://USER@HOST/DATABASE; by default a file in the state folder.",
            examples=["sqlite:retinue.db"],
            extra={"secret": True},
        ),
    ] = None

    keep_days: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)] | None,
        Meta(
            description="Days that ended runs are kept; by default for ever. Unfinished runs always stay.",
            examples=[30],
        ),
    ] = None
    keep_mb: Annotated[
        Annotated[int, Meta(ge=10, le=10_000_000)] | None,
        Meta(
            description="MB of data from which the oldest ended runs are removed; by default without limit.",
            examples=[1000],
        ),
    ] = None
    log_mb: Annotated[
        int, Meta(ge=1, le=10_000, description="MB of a background run's log, with one older part.", examples=[10])
    ] = 10
    log_files: Annotated[
        int, Meta(ge=1, le=100_000, description="Log files of background runs that are kept.", examples=[200])
    ] = 200


STORE = Section(name="store", type=StoreSettings, about="Where runs are stored, and how long ended ones are kept.")
