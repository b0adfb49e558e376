"""The tables of the in-memory store, and the undo log of a batch."""

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


class UndoLog:
    """The inverses of the changes of one batch, latest last.

    >>> undo, table = UndoLog(), {"a": 1}
    >>> undo.put(table, "b", 2), undo.drop(table, "a"), undo.roll_back(), table
    (None, None, None, {'a': 1})
    """

    __slots__ = ("_inverses",)

    def __init__(self) -> None:
        self._inverses: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def add(self, inverse: Callable[P, object], *args: P.args, **_: P.kwargs) -> None:
        """Add the call that reverses a change."""
        self._inverses.append((inverse, args))

    def put(self, table: dict[K, V], name: K, value: V) -> None:
        """Set an entry of a table, with undo."""
        if name in table:
            before = table[name]
            self.add(lambda: table.__setitem__(name, before))
        else:
            self.add(lambda: table.pop(name))
        table[name] = value

    def drop(self, table: dict[K, V], name: K) -> None:
        """Remove an entry of a table if it exists, with undo."""
        if name in table:
            before = dict(table)  # a restored entry must return to its place in the order
            self.add(lambda: (table.clear(), table.update(before)))
            del table[name]

    def swap(self, table: dict[K, V], entries: dict[K, V]) -> None:
        """Replace all entries of a table, with undo."""
        before = dict(table)
        self.add(lambda: (table.clear(), table.update(before)))
        table.clear()
        table.update(entries)

    def roll_back(self) -> None:
        """Reverse everything since the last `forget`, the latest change first."""
        while self._inverses:
            inverse, args = self._inverses.pop()
            inverse(*args)

    def forget(self) -> None:
        """Keep all changes."""
        self._inverses.clear()


class StoredRun:
    """A run with its events and inbox. A taken item stays in `inbox` as None, so that its key stays known."""

    __slots__ = ("accepted", "cancelled_at", "children", "driver_id", "events", "inbox", "no", "progress")

    def __init__(self, no: int, accepted: RunAccepted, driver_id: DriverId | None) -> None:
        self.no = no
        self.accepted = accepted
        self.driver_id = driver_id
        self.cancelled_at: float | None = None
        self.progress: Progress = rules.initial_progress(accepted)
        self.events: list[Event] = [accepted]
        self.inbox: dict[Key, Item | None] = {}
        self.children: list[StoredRun] = []

    @property
    def ended(self) -> bool:
        return self.progress.phase == "ended"

    def truncate(self, seq: int, progress: Progress) -> None:
        """Remove the events after number `seq` and restore `progress`."""
        del self.events[seq:]
        self.progress = progress

    def untaken(self) -> list[Item]:
        """The untaken inbox items, in the order in which they were posted."""
        return [item for item in self.inbox.values() if item is not None]

    def row(self) -> RunRow:
        """The run's row."""
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


class HandleRow(NamedTuple):
    """The run that a handle refers to, and the key of the call that retired it."""

    run_id: RunId
    retired_by: Key | None


class Tables:
    """All tables of the store."""

    __slots__ = ("answers", "charges", "drivers", "handles", "keys", "namespaces", "run_specs", "runs", "sessions")

    def __init__(self) -> None:
        self.runs: dict[RunId, StoredRun] = {}
        self.keys: dict[Key, StoredRun] = {}
        self.run_specs: dict[str, RunSpec] = {}
        self.handles: dict[tuple[SessionId, str], dict[str, HandleRow]] = {}
        self.sessions: dict[SessionId, SessionRow] = {}
        self.drivers: dict[DriverId, DriverRow] = {}
        self.namespaces: dict[str, dict[str, bytes]] = {}
        self.answers: dict[Key, bytes] = {}
        self.charges: dict[str, list[Charge]] = {}

    def is_alive(self, driver_id: DriverId) -> bool:
        """Whether the driver is registered and was not declared dead."""
        driver = self.drivers.get(driver_id)
        return driver is not None and not driver.dead
