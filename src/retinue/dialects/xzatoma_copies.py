"""Conversations of `xzatoma` in a database of their own, in the form of any store of retinue: `replay` can open it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from retinue.core.agent import Brief
from retinue.core.events import Event, RunAccepted
from retinue.core.records import Accept, OpenSession, Record, Write


def copy(logs: Sequence[Sequence[Event]], briefs: Mapping[str, Brief], path: Path) -> None:
    """Put whole runs, parents first, into the store at `path`; those that are there already stay as they are."""
    from retinue.store.sqlite import SqliteStore

    path.parent.mkdir(parents=True, exist_ok=True)
    store = SqliteStore(path)
    try:
        births: list[Write] = []
        lives: list[Write] = []
        for accepted, *events in logs:
            if isinstance(accepted, RunAccepted) and store.run(accepted.run_id) is None:
                births.append(OpenSession(session_id=accepted.session_id, at=accepted.at))
                # Nobody is born under one who has ended, so all births come first. Keys and handles stay behind.
                copied = replace(accepted, key=None, handle=None)
                births.append(Accept(accepted=copied, brief=briefs[accepted.brief], driver_id=None))
                lives.append(Record(run_id=accepted.run_id, seq=2, events=tuple(events)))
        if births:
            store.commit(None, [*births, *lives])
    finally:
        store.close()
