"""A store in memory, which ends with its process; otherwise it gives the same guarantees as a file.

It keeps the objects it is given and never copies or encodes them.
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
from retinue.store.memory.commands import MemoryCommands, StoredRun, Tables, UndoLog


class MemoryStore:
    """A `Store` in memory."""

    shared = False
    blocking = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._undo = UndoLog()
        self._tables = Tables()
        self._commands = MemoryCommands(self._tables, self._undo)

    def changed(self) -> bool:
        return False

    def close(self) -> None: ...

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        with self._lock:
            if (
                driver_id is not None
                and not self._tables.is_alive(driver_id)
                and not rules.registers(writes, driver_id)
            ):
                raise Fenced(driver_id)
            try:
                return [self._commands.write(driver_id, write) for write in writes]
            except BaseException:
                self._undo.roll_back()
                raise
            finally:
                self._undo.forget()

    def run(self, run_id: RunId) -> RunRow | None:
        with self._lock:
            run = self._tables.runs.get(run_id)
            return None if run is None else run.row()

    def run_by_key(self, key: Key) -> RunRow | None:
        with self._lock:
            run = self._tables.keys.get(key)
            return None if run is None else run.row()

    def runs(self, query: RunQuery) -> list[RunRow]:
        with self._lock:
            matching = self._matching(query)
            matching.sort(key=lambda run: (run.accepted.at, run.accepted.run_id), reverse=True)
            return [run.row() for run in matching[: query.limit]]

    def count(self, query: RunQuery) -> int:
        with self._lock:
            return len(self._matching(query)[: query.limit])

    def _matching(self, query: RunQuery) -> list[StoredRun]:
        if query.parent_id is None:
            candidates = list(self._tables.runs.values())
        else:
            candidates = self._tables.runs[query.parent_id].children if query.parent_id in self._tables.runs else []
        return [run for run in candidates if _matches(run, query)]

    def log_lengths(self, root_id: RunId) -> dict[RunId, int]:
        """The number of the last event of each run of a tree; see `core.ports.LogLengths`."""
        with self._lock:
            return {run.accepted.run_id: len(run.events) for run in self._matching(RunQuery(root_id=root_id))}

    def events(self, run_id: RunId, after: int = 0) -> list[tuple[int, Event]]:
        with self._lock:
            run = self._tables.runs.get(run_id)
            return [] if run is None else list(enumerate(run.events[after:], after + 1))

    def run_spec(self, digest: str) -> RunSpec:
        with self._lock:
            if digest not in self._tables.run_specs:
                raise StoreCorrupt(f"run spec {digest} is missing")
            return self._tables.run_specs[digest]

    def inbox(self, run_id: RunId) -> list[Item]:
        with self._lock:
            run = self._tables.runs.get(run_id)
            return [] if run is None else run.untaken()

    def inbox_for(self, driver_id: DriverId) -> list[tuple[RunId, Item]]:
        with self._lock:
            mine = [run for run in self._tables.runs.values() if run.driver_id == driver_id and not run.ended]
            return [(run.accepted.run_id, item) for run in mine for item in run.untaken()]

    def handles(self, session_id: SessionId, space: str) -> list[tuple[str, RunId, Key | None]]:
        with self._lock:
            named = self._tables.handles.get((session_id, space), {})
            return [(name, handle.run_id, handle.retired_by) for name, handle in named.items()]

    def drivers(self) -> list[DriverRow]:
        with self._lock:
            owners = {run.driver_id for run in self._tables.runs.values() if not run.ended}
            return [row for name, row in self._tables.drivers.items() if not row.dead or name in owners]

    def session(self, session_id: SessionId) -> SessionRow | None:
        return self._tables.sessions.get(session_id)

    def sessions(self) -> list[SessionRow]:
        with self._lock:
            return sorted(self._tables.sessions.values(), key=lambda session: session.created_at)

    def key_value(self, space: str) -> Mapping[str, bytes]:
        with self._lock:
            return dict(self._tables.namespaces.get(space, {}))

    def answered(self, key: Key) -> bytes | None:
        return self._tables.answers.get(key)

    def charges(self, window: str, since: float) -> list[Charge]:
        with self._lock:
            recent = [charge for charge in self._tables.charges.get(window, ()) if charge.at >= since]
            return sorted(recent, key=lambda charge: charge.at)


def _matches(run: StoredRun, query: RunQuery) -> bool:
    accepted = run.accepted
    return (
        (query.session_id is None or accepted.session_id == query.session_id)
        and (query.root_id is None or accepted.root_id == query.root_id)
        and (query.driver_id is None or run.driver_id == query.driver_id)
        and (query.handle_space is None or _has_handle_in(query.handle_space, accepted.handle))
        and (query.dialect is None or accepted.dialect == query.dialect)
        and (query.phase is None or run.progress.phase == query.phase)
        and run.progress.phase != query.except_phase
        and (query.run_ids is None or accepted.run_id in query.run_ids)
        and (query.id_part is None or _is_part(query.id_part, accepted.run_id))
        and (query.before is None or (accepted.at, accepted.run_id) < query.before)
        and not (query.roots_only and accepted.parent_id is not None)
        and not (query.unfinished_only and run.ended)
        and not (query.undriven_only and run.driver_id is not None)
    )


def _has_handle_in(space: str, handle: HandleRef | None) -> bool:
    return handle is not None and handle.space == space


def _is_part(part: str, run_id: RunId) -> bool:
    return run_id.startswith(part) or run_id.endswith(part)
