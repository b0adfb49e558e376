"""The history of a job's executions: a bounded list for each job, in a key-value namespace of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from retinue.core.commands import Decision
from retinue.dispatch.cron.jobs import Owner

KEPT = 100
"""Entries that are kept for each job."""

MOST_OUTPUT = 4000
"""Characters of a command's output that are kept."""

Status: TypeAlias = Literal["running", "ok", "failed", "interrupted", "missed"]


class HistoryEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One execution of a job, or a `missed` moment. `due` is None for an execution on request."""

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
        """The moment that identifies it among the entries of its job."""
        return self.due if self.due is not None else self.started_at or 0.0

    @property
    def place(self) -> str:
        """Its name in the namespace; names sort by moment."""
        return f"{self.at:020.6f}/{'due' if self.due is not None else 'by hand'}"


def space_of(name: str) -> str:
    """The namespace of a job's history."""
    return f"cron-log:{name}"


def read(key_value: Mapping[str, bytes]) -> list[HistoryEntry]:
    """Entries, the latest first."""
    return [msgspec.json.decode(key_value[place], type=HistoryEntry) for place in sorted(key_value, reverse=True)]


def remembered(key_value: Mapping[str, bytes], entry: HistoryEntry) -> Decision:
    """Store an entry as it stands now, and remove the oldest.

    `interrupted` is a guess of another process, and never replaces a known result.
    """
    known = key_value.get(entry.place)
    if known is not None and entry.status == "interrupted":
        before = msgspec.json.decode(known, type=HistoryEntry)
        if before.status != "running":
            return Decision(b"")
        entry = msgspec.structs.replace(entry, started_at=before.started_at, run_id=before.run_id)
    places = sorted({*key_value, entry.place})
    return Decision(b"", puts={entry.place: msgspec.json.encode(entry)}, drops=tuple(places[:-KEPT]))
