"""The tables of the store that is kept in memory: runs with all that hangs on them, and everything by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

from retinue.core.agent import RunSpec
from retinue.core.commands import Charge, DriverRow, Progress, RunRow, SessionRow
from retinue.core.events import Event, RunAccepted
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Item
from retinue.store import rules

K = TypeVar("K")
V = TypeVar("V")
P = ParamSpec("P")


class Undo:
    """The ways back of one batch, the latest last.

    >>> undo, table = Undo(), {"a": 1}
    >>> undo.put(table, "b", 2), undo.drop(table, "a"), undo.roll_back(), table
    (None, None, None, {'a': 1})
    """

    __slots__ = ("_ways_back",)

    def __init__(self) -> None:
        self._ways_back: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def by(self, way_back: Callable[P, object], *args: P.args, **_: P.kwargs) -> None:
        """Something was changed, and this call reverses it."""
        self._ways_back.append((way_back, args))

    def put(self, table: dict[K, V], name: K, value: V) -> None:
        """Set an entry of a table."""
        if name in table:
            before = table[name]
            self.by(lambda: table.__setitem__(name, before))
        else:
            self.by(lambda: table.pop(name))
        table[name] = value

    def drop(self, table: dict[K, V], name: K) -> None:
        """Remove an entry of a table, if it is there."""
        if name in table:
            before = dict(table)  # an entry that comes back has to come back in its place
            self.by(lambda: (table.clear(), table.update(before)))
            del table[name]

    def swap(self, table: dict[K, V], entries: dict[K, V]) -> None:
        """Let a table hold these entries and no others."""
        before = dict(table)
        self.by(lambda: (table.clear(), table.update(before)))
        table.clear()
        table.update(entries)

    def roll_back(self) -> None:
        """Reverse everything since the last `forget`, the latest change first."""
        while self._ways_back:
            way_back, args = self._ways_back.pop()
            way_back(*args)

    def forget(self) -> None:
        """What was done stays."""
        self._ways_back.clear()


class Run:
    """A run and all that hangs on it. A taken item stays in `mail` as None, so that its key is known for ever."""

    __slots__ = ("accepted", "cancelled_at", "children", "driver_id", "events", "inbox", "no", "progress")

    def __init__(self, no: int, accepted: RunAccepted, driver_id: DriverId | None) -> None:
        self.no = no
        self.accepted = accepted
        self.driver_id = driver_id
        self.cancelled_at: float | None = None
        self.progress: Progress = rules.beginning(accepted)
        self.events: list[Event] = [accepted]
        self.inbox: dict[Key, Item | None] = {}
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
        return [item for item in self.inbox.values() if item is not None]

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
            awaited=accepted.lifecycle.awaited,
            run_spec=accepted.run_spec,
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
        self.briefs: dict[str, RunSpec] = {}
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
