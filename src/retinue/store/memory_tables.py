"""The tables of the store that is kept in memory: runs with all that hangs on them, and everything by its name."""

from __future__ import annotations

from typing import NamedTuple

from retinue.core.agent import Brief
from retinue.core.events import Event, RunAccepted
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.mail import Item
from retinue.core.records import Charge, DriverRow, Progress, RunRow, SessionRow
from retinue.store import rules


class Run:
    """A run and all that hangs on it. A taken item stays in `mail` as None, so that its key is known for ever."""

    __slots__ = ("accepted", "cancelled_at", "children", "driver_id", "events", "mail", "no", "progress")

    def __init__(self, no: int, accepted: RunAccepted, driver_id: DriverId | None) -> None:
        self.no = no
        self.accepted = accepted
        self.driver_id = driver_id
        self.cancelled_at: float | None = None
        self.progress: Progress = rules.beginning(accepted)
        self.events: list[Event] = [accepted]
        self.mail: dict[Key, Item | None] = {}
        self.children: list[Run] = []

    @property
    def ended(self) -> bool:
        """Whether its last event is its end."""
        return self.progress.phase == "ended"

    def go_back(self, seq: int, progress: Progress) -> None:
        """Forget what came after event `seq`."""
        del self.events[seq:]
        self.progress = progress

    def untaken(self) -> list[Item]:
        """The items that nobody took, in the order they were posted."""
        return [item for item in self.mail.values() if item is not None]

    def row(self) -> RunRow:
        """The run as a list shows it."""
        accepted = self.accepted
        return RunRow(
            run_id=accepted.run_id,
            session_id=accepted.session_id,
            root_id=accepted.root_id,
            parent_id=accepted.parent_id,
            depth=accepted.depth,
            path=accepted.path,
            agent=accepted.agent,
            label=accepted.label,
            dialect=accepted.dialect,
            key=accepted.key,
            handle=accepted.handle,
            awaited=accepted.manner.awaited,
            brief=accepted.brief,
            driver_id=self.driver_id,
            accepted_at=accepted.at,
            cancelled_at=self.cancelled_at,
            format=accepted.format,
            seq=len(self.events),
            progress=self.progress,
        )


class Handle(NamedTuple):
    """A name of a run, and the key of the caller who made it invalid."""

    run_id: RunId
    retired_by: Key | None


class Tables:
    """All that a store remembers."""

    __slots__ = ("answers", "briefs", "charges", "drivers", "handles", "keys", "runs", "sessions", "shelves")

    def __init__(self) -> None:
        self.runs: dict[RunId, Run] = {}
        self.keys: dict[Key, Run] = {}
        self.briefs: dict[str, Brief] = {}
        self.handles: dict[tuple[SessionId, str], dict[str, Handle]] = {}
        self.sessions: dict[SessionId, SessionRow] = {}
        self.drivers: dict[DriverId, DriverRow] = {}
        self.shelves: dict[str, dict[str, bytes]] = {}
        self.answers: dict[Key, bytes] = {}
        self.charges: dict[str, list[Charge]] = {}

    def lives(self, driver_id: DriverId) -> bool:
        """Whether the driver has enlisted and was not declared dead."""
        driver = self.drivers.get(driver_id)
        return driver is not None and not driver.dead
