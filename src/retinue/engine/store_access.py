"""Access to stored data through the journal: rows, runs rebuilt from their events, key-value namespaces and handles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from retinue.core.agent import RunSpec
from retinue.core.commands import Change, Charge, Decide, Retire, RunQuery, RunRow, SessionRow, WriteResult
from retinue.core.errors import NotKept, SessionClosed, StoreCorrupt, UnknownFormat, UnknownName
from retinue.core.events import Event, RunAccepted
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.inbox import Item
from retinue.core.ports import LogLengths, Store, TasksOf
from retinue.core.run import HistoryRef
from retinue.core.state import History, Run, fold
from retinue.engine.context import EngineContext
from retinue.engine.journal_writer import Journal
from retinue.engine.registry import RunRegistry


class StoreReader:
    """Queries of the store; an answer includes everything that this process has queued in the journal."""

    def __init__(self, journal: Journal, store: Store) -> None:
        self._journal = journal
        self._store = store

    async def run(self, run_id: RunId) -> RunRow | None:
        return await self._journal.read(self._store.run, run_id)

    async def runs(self, query: RunQuery) -> list[RunRow]:
        return await self._journal.read(self._store.runs, query)

    async def count(self, query: RunQuery) -> int:
        return await self._journal.read(self._store.count, query)

    async def run_by_key(self, key: Key) -> RunRow | None:
        return await self._journal.read(self._store.run_by_key, key)

    async def run_spec(self, digest: str) -> RunSpec:
        return await self._journal.read(self._store.run_spec, digest)

    async def events(self, run_id: RunId, after: int = 0) -> list[tuple[int, Event]]:
        return await self._journal.read(self._store.events, run_id, after)

    async def tasks(self, run_ids: Sequence[RunId]) -> dict[RunId, str]:
        """The tasks of runs by their ids; a run whose first event cannot be read is left out."""
        tasks: TasksOf | None = getattr(self._store, "tasks", None)
        return await self._journal.read(tasks or self._tasks, run_ids)

    def _tasks(self, run_ids: Sequence[RunId]) -> dict[RunId, str]:
        found: dict[RunId, str] = {}
        for run_id in run_ids:
            with suppress(UnknownFormat, StoreCorrupt):
                events = self._store.events(run_id)
                if events and isinstance(accepted := events[0][1], RunAccepted):
                    found[run_id] = accepted.task
        return found

    async def log_lengths(self, root_id: RunId) -> dict[RunId, int]:
        """The number of the last event of each run of a tree."""
        log_lengths: LogLengths | None = getattr(self._store, "log_lengths", None)
        return await self._journal.read(log_lengths or self._log_lengths, root_id)

    def _log_lengths(self, root_id: RunId) -> dict[RunId, int]:
        return {row.run_id: row.seq for row in self._store.runs(RunQuery(root_id=root_id))}

    async def inbox(self, run_id: RunId) -> list[Item]:
        return await self._journal.read(self._store.inbox, run_id)

    async def session(self, session_id: SessionId) -> SessionRow | None:
        return await self._journal.read(self._store.session, session_id)

    async def sessions(self) -> list[SessionRow]:
        return await self._journal.read(self._store.sessions)

    async def charges(self, window: str, since: float) -> list[Charge]:
        return await self._journal.read(self._store.charges, window, since)


class Replay:
    """Folds stored events into runs, together with the histories that they inherited."""

    def __init__(self, engine: EngineContext, registry: RunRegistry) -> None:
        self._engine = engine
        self._registry = registry

    async def run(self, run_id: RunId, *, upto: int | None = None) -> Run:
        """A run as it stood after its event `upto`, or after its last stored event.

        Raises `UnknownName` for an unknown run and `NotKept` for one whose events were dropped.
        """
        # Back to the oldest history first and then forward again: a chain of continued runs may be long.
        logs = [await self._log(run_id, upto)]
        inherited: History | None = None
        while (inherits := _acceptance(logs[-1]).inherits) is not None:
            inherited = self._live_history(inherits)
            if inherited is not None:
                break
            logs.append(await self._log(inherits.run_id, inherits.upto))
        while True:
            events = logs.pop()
            run_spec = await self._engine.journal.read(self._engine.store.run_spec, _acceptance(events).run_spec)
            run = fold(events, run_spec, inherited)
            if not logs:
                return run
            inherited = run.history

    async def runs(self, run_ids: Sequence[RunId]) -> dict[RunId, Run]:
        """Runs after their last stored events, read together: thousands of separate reads would take seconds."""
        logs = await self._engine.journal.read(
            lambda: {run_id: self._engine.store.events(run_id) for run_id in run_ids}
        )
        run_specs: dict[str, RunSpec] = {}
        folded: dict[RunId, Run] = {}
        for run_id, events in logs.items():
            if not events or _acceptance(events).inherits is not None:
                folded[run_id] = await self.run(run_id)
                continue
            digest = _acceptance(events).run_spec
            if digest not in run_specs:
                run_specs[digest] = await self._engine.journal.read(self._engine.store.run_spec, digest)
            folded[run_id] = fold(events, run_specs[digest])
        return folded

    async def history(self, inherits: HistoryRef | None) -> History | None:
        """The history with which a run begins that inherits `inherits`."""
        if inherits is None:
            return None
        return self._live_history(inherits) or (await self.run(inherits.run_id, upto=inherits.upto)).history

    def _live_history(self, inherits: HistoryRef) -> History | None:
        """The history of a run that is live here and has recorded nothing since."""
        live = self._registry.live.get(inherits.run_id)
        return live.run.history if live is not None and live.run.seq == inherits.upto else None

    async def _log(self, run_id: RunId, upto: int | None) -> list[tuple[int, Event]]:
        events = await self._engine.journal.read(self._engine.store.events, run_id)
        if not events:
            row = await self._engine.journal.read(self._engine.store.run, run_id)
            raise UnknownName("run", run_id) if row is None else NotKept(run_id)
        return events if upto is None else events[:upto]


def _acceptance(events: list[tuple[int, Event]]) -> RunAccepted:
    accepted = events[0][1]
    assert isinstance(accepted, RunAccepted)
    return accepted


class JournalKeyValue:
    """The `KeyValue` port of a process: a change is one transaction and is on disk before it is answered."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine

    async def look(self, space: str) -> Mapping[str, bytes]:
        return await self._engine.journal.read(self._engine.store.key_value, space)

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        change = Change(space=space, decide=decide, key=key, session_id=session_id)
        (answer,) = await self._engine.journal.commit(change)
        return answer

    def queue_change(self, space: str, decide: Decide) -> None:
        """Change a namespace without waiting; the change is committed before everything that is written later."""
        self._engine.journal.write(Change(space=space, decide=decide))


class OpenSessions:
    """The sessions that are known to be open, so that a run below another is refused before it exists."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._known: set[SessionId] = set()

    async def check(self, session_id: SessionId) -> None:
        """Raise `SessionClosed` if a session is archived or deleted."""
        if session_id in self._known:
            return
        row = await self._engine.journal.peek(self._engine.store.session, session_id)
        if row is None or row.state == "archived":
            raise SessionClosed(session_id, "deleted" if row is None else "archived")
        self._known.add(session_id)

    def clear(self) -> None:
        """Forget all sessions, because one may have been archived or deleted."""
        self._known.clear()


class Handles:
    """The runs that dialects' names refer to, until a name is retired."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._known: dict[tuple[SessionId, str, str], RunId] = {}

    def add(self, session_id: SessionId, space: str, name: str, run_id: RunId) -> None:
        self._known[session_id, space, name] = run_id

    def clear(self) -> None:
        """Forget all names, because another process may have retired one or deleted its session."""
        self._known.clear()

    async def find(self, session_id: SessionId, space: str, name: str) -> RunId | None:
        """The run of that name; None if the name is unknown or retired."""
        known = self._known.get((session_id, space, name))
        if known is not None:
            return known
        for given, run_id, retired_by in await self._engine.journal.read(self._engine.store.handles, session_id, space):
            if retired_by is None:
                self._known[session_id, space, given] = run_id
        return self._known.get((session_id, space, name))

    async def retire(self, session_id: SessionId, space: str, name: str, *, key: Key) -> RunId | None:
        """Retire a name: its run for the first caller, and for the same key again; None for other callers."""
        (answer,) = await self._engine.journal.commit(Retire(session_id=session_id, space=space, name=name, key=key))
        self._known.pop((session_id, space, name), None)
        return answer if isinstance(answer, str) else None
