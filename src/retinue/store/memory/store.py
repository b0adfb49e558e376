"""A store that forgets when its process ends: the same promises as a file, kept with plain objects.

It holds what it is given and never copies or encodes it, so it is also the fastest store there is.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from retinue.core.agent import RunSpec
from retinue.core.commands import Charge, DriverRow, RunQuery, RunRow, SessionRow, Write, WriteResult
from retinue.core.errors import Fenced, StoreCorrupt
from retinue.core.events import Event
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Item
from retinue.core.run import HandleRef
from retinue.store import rules
from retinue.store.memory.commands import Writing
from retinue.store.memory.tables import Run, Tables, Undo


class MemoryStore:
    """A `Store` of plain objects."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._undo = Undo()
        self._tables = Tables()
        self._writing = Writing(self._tables, self._undo)

    @property
    def shared(self) -> bool:
        """Never: nobody else can reach these objects."""
        return False

    @property
    def blocking(self) -> bool:
        """Never: a commit takes microseconds."""
        return False

    def changed(self) -> bool:
        """Never: nobody else can reach these objects."""
        return False

    def close(self) -> None:
        """Nothing to let go of."""

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        """Make these writes happen, in order, as one."""
        with self._lock:
            if driver_id is not None and not self._tables.lives(driver_id) and not rules.enlists(writes, driver_id):
                raise Fenced(driver_id)
            try:
                return [self._writing.write(driver_id, write) for write in writes]
            except BaseException:
                self._undo.roll_back()
                raise
            finally:
                self._undo.forget()

    def run(self, run_id: RunId) -> RunRow | None:
        """A run's row."""
        with self._lock:
            run = self._tables.runs.get(run_id)
            return None if run is None else run.row()

    def run_by_key(self, key: Key) -> RunRow | None:
        """The run that a spawn with this key made."""
        with self._lock:
            run = self._tables.keys.get(key)
            return None if run is None else run.row()

    def runs(self, query: RunQuery) -> list[RunRow]:
        """Rows, newest first."""
        with self._lock:
            if query.parent_id is None:
                candidates = list(self._tables.runs.values())
            else:
                candidates = self._tables.runs[query.parent_id].children if query.parent_id in self._tables.runs else []
            found = [run for run in candidates if _matches(run, query)]
            found.sort(key=lambda run: (run.accepted.at, run.accepted.run_id), reverse=True)
            return [run.row() for run in found[: query.limit]]

    def events(self, run_id: RunId, after: int = 0) -> list[tuple[int, Event]]:
        """A run's numbered events."""
        with self._lock:
            run = self._tables.runs.get(run_id)
            return [] if run is None else list(enumerate(run.events[after:], after + 1))

    def run_spec(self, digest: str) -> RunSpec:
        """What runs share."""
        with self._lock:
            if digest not in self._tables.briefs:
                raise StoreCorrupt(f"brief {digest} is missing")
            return self._tables.briefs[digest]

    def inbox(self, run_id: RunId) -> list[Item]:
        """A run's untaken items, in the order they were posted."""
        with self._lock:
            run = self._tables.runs.get(run_id)
            return [] if run is None else run.untaken()

    def inbox_for(self, driver_id: DriverId) -> list[tuple[RunId, Item]]:
        """The untaken items of all unfinished runs of a driver."""
        with self._lock:
            mine = [run for run in self._tables.runs.values() if run.driver_id == driver_id and not run.ended]
            return [(run.accepted.run_id, item) for run in mine for item in run.untaken()]

    def handles(self, session_id: SessionId, space: str) -> list[tuple[str, RunId, Key | None]]:
        """Names, runs and who retired them, in the order they were given."""
        with self._lock:
            named = self._tables.handles.get((session_id, space), {})
            return [(name, handle.run_id, handle.retired_by) for name, handle in named.items()]

    def drivers(self) -> list[DriverRow]:
        """Every driver that has not left, dead ones included as long as they own unfinished runs."""
        with self._lock:
            owners = {run.driver_id for run in self._tables.runs.values() if not run.ended}
            return [row for name, row in self._tables.drivers.items() if not row.dead or name in owners]

    def session(self, session_id: SessionId) -> SessionRow | None:
        """A session, if it is there."""
        return self._tables.sessions.get(session_id)

    def sessions(self) -> list[SessionRow]:
        """All sessions, oldest first."""
        with self._lock:
            return sorted(self._tables.sessions.values(), key=lambda session: session.created_at)

    def key_value(self, space: str) -> Mapping[str, bytes]:
        """All that is on a shelf."""
        with self._lock:
            return dict(self._tables.shelves.get(space, {}))

    def answered(self, key: Key) -> bytes | None:
        """What a change with this key answered, if it happened."""
        return self._tables.answers.get(key)

    def charges(self, window: str, since: float) -> list[Charge]:
        """What a window remembers from then on."""
        with self._lock:
            recent = [charge for charge in self._tables.charges.get(window, ()) if charge.at >= since]
            return sorted(recent, key=lambda charge: charge.at)


def _matches(run: Run, query: RunQuery) -> bool:
    accepted = run.accepted
    return (
        (query.session_id is None or accepted.session_id == query.session_id)
        and (query.root_id is None or accepted.root_id == query.root_id)
        and (query.driver_id is None or run.driver_id == query.driver_id)
        and (query.handle_space is None or _has_name_in(query.handle_space, accepted.handle))
        and not (query.roots_only and accepted.parent_id is not None)
        and not (query.unfinished_only and run.ended)
        and not (query.undriven_only and run.driver_id is not None)
    )


def _has_name_in(space: str, handle: HandleRef | None) -> bool:
    return handle is not None and handle.space == space
