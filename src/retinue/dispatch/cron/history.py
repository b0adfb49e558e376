"""What became of jobs each time they were done: a bounded list for each, kept on a shelf of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from retinue.core.commands import Decision
from retinue.dispatch.cron.jobs import Owner

KEPT = 100
"""Firings of a job that are remembered."""

MOST_OUTPUT = 4000
"""Characters of what a command printed that are remembered."""

Status: TypeAlias = Literal["running", "ok", "failed", "interrupted", "missed"]


class HistoryEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One time that a job was done, or was not: `missed`. `due` is None for one that somebody asked for by hand."""

    name: str
    due: float | None
    started_at: float | None = None
    ended_at: float | None = None
    status: Status = "running"
    run_id: str = ""
    error: str = ""
    output: str = ""
    owner: Owner = Owner()

    @property
    def at(self) -> float:
        """The moment by which it is told from the others of its job."""
        return self.due if self.due is not None else self.started_at or 0.0

    @property
    def place(self) -> str:
        """Its name on the shelf; names are in the order of the moments."""
        return f"{self.at:020.6f}/{'due' if self.due is not None else 'by hand'}"


def space_of(name: str) -> str:
    """The shelf of a job's firings."""
    return f"cron-log:{name}"


def read(key_value: Mapping[str, bytes]) -> list[HistoryEntry]:
    """Firings, the latest first."""
    return [msgspec.json.decode(key_value[place], type=HistoryEntry) for place in sorted(key_value, reverse=True)]


def remembered(key_value: Mapping[str, bytes], firing: HistoryEntry) -> Decision:
    """Remember a firing as it stands now, and let go of the oldest.

    That one was interrupted is only a guess of others: it never covers what became of it.
    """
    known = key_value.get(firing.place)
    if known is not None and firing.status == "interrupted":
        before = msgspec.json.decode(known, type=HistoryEntry)
        if before.status != "running":
            return Decision(b"")
        firing = msgspec.structs.replace(firing, started_at=before.started_at, run_id=before.run_id)
    places = sorted({*key_value, firing.place})
    return Decision(b"", puts={firing.place: msgspec.json.encode(firing)}, drops=tuple(places[:-KEPT]))
