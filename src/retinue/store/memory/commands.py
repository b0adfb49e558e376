"""Tables and writes of the in-memory store: each write is checked, then applied, with an undo record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import NamedTuple, ParamSpec, TypeVar, assert_never

from msgspec.structs import replace

from retinue.core import commands
from retinue.core.agent import RunSpec
from retinue.core.errors import Fenced
from retinue.core.events import Event, RunAccepted, RunLeft
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Cancel, Item
from retinue.core.run import HandleRef
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
        self._inverses.append((inverse, args))

    def put(self, table: dict[K, V], name: K, value: V) -> None:
        if name in table:
            before = table[name]
            self.add(lambda: table.__setitem__(name, before))
        else:
            self.add(lambda: table.pop(name))
        table[name] = value

    def drop(self, table: dict[K, V], name: K) -> None:
        if name in table:
            before = dict(table)  # a restored entry must return to its place in the order
            self.add(lambda: (table.clear(), table.update(before)))
            del table[name]

    def swap(self, table: dict[K, V], entries: dict[K, V]) -> None:
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
        self.progress: commands.Progress = rules.initial_progress(accepted, driver_id)
        self.events: list[Event] = [accepted]
        self.inbox: dict[Key, Item | None] = {}
        self.children: list[StoredRun] = []

    @property
    def ended(self) -> bool:
        return self.progress.phase == "ended"

    def truncate(self, seq: int, progress: commands.Progress) -> None:
        del self.events[seq:]
        self.progress = progress

    def untaken(self) -> list[Item]:
        return [item for item in self.inbox.values() if item is not None]

    def row(self) -> commands.RunRow:
        accepted = self.accepted
        return commands.RunRow(
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
        self.sessions: dict[SessionId, commands.SessionRow] = {}
        self.drivers: dict[DriverId, commands.DriverRow] = {}
        self.namespaces: dict[str, dict[str, bytes]] = {}
        self.answers: dict[Key, bytes] = {}
        self.charges: dict[str, list[commands.Charge]] = {}

    def is_alive(self, driver_id: DriverId) -> bool:
        driver = self.drivers.get(driver_id)
        return driver is not None and not driver.dead


class MemoryCommands:
    """Applies writes to `tables`; `undo` receives the inverse of every change."""

    __slots__ = ("_tables", "_undo")

    def __init__(self, tables: Tables, undo: UndoLog) -> None:
        self._tables = tables
        self._undo = undo

    def write(self, driver_id: DriverId | None, write: commands.Write) -> commands.WriteResult:
        match write:
            case commands.Record():
                return self._record(driver_id, write)
            case commands.Accept():
                return self._accept(write)
            case commands.Post():
                return self._post(write.run_id, write.item)
            case commands.CancelTree():
                return self._cancel(write)
            case commands.Retire():
                return self._retire(write)
            case commands.Change():
                return self._change(write)
            case commands.RegisterDriver():
                return self._undo.put(self._tables.drivers, write.driver.driver_id, write.driver)
            case commands.Heartbeat():
                return self._heartbeat(write.driver_id)
            case commands.DeclareDead():
                return self._declare_dead(write)
            case commands.Adopt():
                return self._adopt(write)
            case commands.UnregisterDriver():
                self._undo.drop(self._tables.drivers, write.driver_id)
                return self._release_runs(write.driver_id)
            case commands.OpenSession():
                return self._open(commands.SessionRow(session_id=write.session_id, created_at=write.at))
            case commands.CloseSession():
                return self._close(write)
            case commands.Prune():
                return self._prune(write.before)
            case commands.Forget():
                return self._forget(write)
            case _:
                assert_never(write)

    def _accept(self, write: commands.Accept) -> commands.Accepted | commands.NotCreated:
        accepted = write.accepted
        if accepted.key is not None and (before := self._tables.keys.get(accepted.key)):
            return commands.Accepted(before.accepted.run_id, before.accepted.handle, existed=True)
        if refusal := self._rejection(accepted) or self._too_many(write):
            return refusal
        if accepted.run_id in self._tables.runs:
            raise rules.duplicate_run(accepted.run_id)
        if accepted.run_spec not in self._tables.run_specs:
            rules.check_run_spec(write)
            self._undo.put(self._tables.run_specs, accepted.run_spec, write.run_spec)
        if handle := self._handle(write):
            accepted = replace(accepted, handle=handle)
        run = StoredRun(len(self._tables.runs) + 1, accepted, write.driver_id)
        self._undo.put(self._tables.runs, accepted.run_id, run)
        if accepted.key is not None:
            self._undo.put(self._tables.keys, accepted.key, run)
        if parent := self._tables.runs.get(accepted.parent_id or ""):
            self._undo.add(parent.children.pop)
            parent.children.append(run)
        return commands.Accepted(accepted.run_id, handle)

    def _rejection(self, accepted: RunAccepted) -> commands.NotCreated | None:
        session = self._tables.sessions.get(accepted.session_id)
        if session is None:
            return commands.NotCreated("session_unknown", accepted.session_id)
        if session.state == "archived" and accepted.parent_id is not None:
            return commands.NotCreated("session_archived", accepted.session_id)
        parent = ancestor = self._tables.runs.get(accepted.parent_id or "")
        while ancestor is not None:
            if ancestor.cancelled_at is not None or (ancestor is parent and ancestor.ended):
                return commands.NotCreated("cancelled", ancestor.accepted.run_id)
            ancestor = self._tables.runs.get(ancestor.accepted.parent_id or "")
        return None

    def _too_many(self, write: commands.Accept) -> commands.NotCreated | None:
        if write.limit is not None and (counted := self._count(write.limit)) >= write.limit.runs:
            return commands.NotCreated("too_many", str(counted))
        if write.max_running is None:
            return None
        place = (write.accepted.session_id, write.handle_space)
        running = sum(
            (run.driver_id is not None or run.progress.phase == "placed")
            and run.progress.phase not in ("pending", "ended")
            and run.accepted.handle is not None
            and (run.accepted.session_id, run.accepted.handle.space) == place
            for run in self._tables.runs.values()
        )
        return commands.NotCreated("too_many", str(running)) if running >= write.max_running else None

    def _count(self, limit: commands.RunLimit) -> int:
        return sum(
            run.accepted.root_id in limit.root_ids
            and run.accepted.dialect == limit.dialect
            and run.accepted.parent_id is not None
            and (limit.with_ended or not run.ended)
            for run in self._tables.runs.values()
        )

    def _handle(self, write: commands.Accept) -> HandleRef | None:
        """The next handle of the space, or the one that the run brings along, which then refers to it."""
        space = write.handle_space
        handle = write.accepted.handle if space is None else HandleRef(space, "")
        if handle is None:
            return None
        named = self._tables.handles.setdefault((write.accepted.session_id, handle.space), {})
        if space is not None:
            handle = HandleRef(space, write.handle_format.format(len(named) + 1))
        retired_by = named[handle.name].retired_by if handle.name in named else None
        self._undo.put(named, handle.name, HandleRow(write.accepted.run_id, retired_by))
        return handle

    def _record(self, driver_id: DriverId | None, write: commands.Record) -> commands.Unread | None:
        run = self._tables.runs.get(write.run_id)
        if run is None:
            raise rules.sequence_error(write.run_id, given=write.seq, last=None)
        if run.driver_id != driver_id:
            raise Fenced(driver_id or "(none)")
        last, before = len(run.events), run.progress
        if write.seq != last + 1 or run.ended:
            raise rules.sequence_error(write.run_id, given=write.seq, last=last, ended=run.ended)
        progress = rules.progress_after(write)
        if write.known is not None:
            known = {*write.known, *write.taken}
            if unread := tuple(item for item in run.untaken() if item.key not in known):
                return commands.Unread(unread)
        self._undo.add(run.truncate, last, before)
        run.events.extend(write.events)
        if progress is not None:
            run.progress = progress
        for key in write.taken:
            if key in run.inbox:
                self._undo.put(run.inbox, key, None)
        for run_id, item in write.posts:
            self._post(run_id, item)
        self._charge(write.charges)
        return None

    def _charge(self, charges: Sequence[commands.Charge]) -> None:
        for charge in charges:
            known = self._tables.charges.setdefault(charge.window, [])
            self._undo.add(known.pop)
            known.append(charge)

    def _post(self, run_id: RunId, item: Item) -> commands.Posted:
        run = self._tables.runs.get(run_id)
        if run is None:
            return "unknown"
        if item.key in run.inbox:
            return "duplicate"
        if run.ended:
            return "ended"
        self._undo.put(run.inbox, item.key, item)
        return "posted"

    def _cancel(self, write: commands.CancelTree) -> tuple[RunId, ...] | None:
        root = self._tables.runs.get(write.run_id)
        if root is None:
            return None
        fresh = [run for run in _tree(root) if not run.ended and run.cancelled_at is None]
        for run in fresh:
            self._undo.add(setattr, run, "cancelled_at", None)
            run.cancelled_at = write.at
            if run.driver_id is None:
                self._end(run, write.item, write.at)
            else:
                self._post(run.accepted.run_id, write.item)
        return tuple(run.accepted.run_id for run in fresh)

    def _end(self, run: StoredRun, cancel: Cancel, at: float) -> None:
        last, before = len(run.events), run.progress
        self._undo.add(run.truncate, last, before)
        end, run.progress = rules.cancelled_end(before, cancel, at, run.events)
        run.events.append(end)

    def _retire(self, write: commands.Retire) -> RunId | None:
        named = self._tables.handles.get((write.session_id, write.space), {})
        handle = named.get(write.name)
        if handle is None or handle.retired_by not in (None, write.key):
            return None
        self._undo.put(named, write.name, HandleRow(handle.run_id, write.key))
        return handle.run_id

    def _charged(self, window: str, after: float) -> rules.Charged:
        charges = [charge for charge in self._tables.charges.get(window, ()) if charge.at > after]
        amounts = zip(*((each.input, each.output, each.cost, each.calls) for each in charges), strict=True)
        return rules.Charged(*(map(sum, amounts) if charges else (0, 0, 0, 0)))

    def _change(self, write: commands.Change) -> bytes | commands.NamespaceClosed | commands.WindowFull:
        if write.key is not None and (before := self._tables.answers.get(write.key)) is not None:
            return before
        if write.session_id is not None:
            session = self._tables.sessions.get(write.session_id)
            if session is None or session.state == "archived":
                return commands.NamespaceClosed("session_unknown" if session is None else "session_archived")
        key_value = self._tables.namespaces.setdefault(write.space, {})
        decision = write.decide(MappingProxyType(key_value))
        if full := rules.full_window(decision, self._charged):
            return full
        for name in decision.drops:
            self._undo.drop(key_value, name)
        for name, value in decision.puts.items():
            self._undo.put(key_value, name, value)
        self._charge(decision.charges)
        if write.key is not None:
            self._undo.put(self._tables.answers, write.key, decision.answer)
        return decision.answer

    def _heartbeat(self, driver_id: DriverId) -> None:
        driver = self._tables.drivers.get(driver_id)
        if driver is not None:
            self._undo.put(self._tables.drivers, driver_id, replace(driver, beat=driver.beat + 1))

    def _declare_dead(self, write: commands.DeclareDead) -> bool:
        driver = self._tables.drivers.get(write.driver_id)
        if driver is not None and not driver.dead:
            if write.beat is not None and write.beat != driver.beat:
                return False
            self._undo.put(self._tables.drivers, write.driver_id, replace(driver, dead=True))
        if write.left_at is not None:
            self._leave_runs(write.driver_id, RunLeft(at=write.left_at))
        self._release_runs(write.driver_id)
        return True

    def _leave_runs(self, driver_id: DriverId, left: RunLeft) -> None:
        for run_id, run in self._tables.runs.items():
            if run.driver_id == driver_id and not run.ended:
                self._record(driver_id, commands.Record(run_id=run_id, seq=len(run.events) + 1, events=(left,)))

    def _release_runs(self, driver_id: DriverId) -> None:
        """Remove the driver from its unfinished runs, and end those that are cancelled: no driver will."""
        for run in self._tables.runs.values():
            if run.driver_id == driver_id and not run.ended:
                self._drive(run, None)
                if run.cancelled_at is not None:
                    self._end(run, rules.pending_cancel(run.untaken()), run.cancelled_at)

    def _adopt(self, write: commands.Adopt) -> tuple[RunId, ...]:
        runs = [self._tables.runs[run_id] for run_id in dict.fromkeys(write.run_ids) if run_id in self._tables.runs]
        if not self._tables.is_alive(write.driver_id):
            return ()
        if write.max_trees is not None and sum(map(_is_tree_at_work, self._tables.runs.values())) >= write.max_trees:
            return ()
        free = [run for run in runs if run.driver_id is None and not run.ended]
        for run in free:
            self._drive(run, write.driver_id)
        return tuple(run.accepted.run_id for run in free)

    def _drive(self, run: StoredRun, driver_id: DriverId | None) -> None:
        self._undo.add(setattr, run, "driver_id", run.driver_id)
        run.driver_id = driver_id

    def _open(self, session: commands.SessionRow) -> bool:
        if session.session_id in self._tables.sessions:
            return False
        self._undo.put(self._tables.sessions, session.session_id, session)
        return True

    def _close(self, write: commands.CloseSession) -> bool:
        session = self._tables.sessions.get(write.session_id)
        if session is None:
            return False
        if write.how == "archive":
            self._undo.put(self._tables.sessions, write.session_id, replace(session, state="archived"))
            return True
        self._undo.drop(self._tables.sessions, write.session_id)
        for place in [place for place in self._tables.handles if place[0] == write.session_id]:
            self._undo.drop(self._tables.handles, place)
        for space in [space for space in self._tables.namespaces if rules.is_of_session(space, write.session_id)]:
            self._undo.drop(self._tables.namespaces, space)
        return True

    def _prune(self, before: float) -> int:
        tables, undo = self._tables, self._undo
        runs = [(run_id, run.accepted.root_id, run.progress.ended_at) for run_id, run in tables.runs.items()]
        inherits = {id_: run.accepted.inherits.run_id for id_, run in tables.runs.items() if run.accepted.inherits}
        gone = rules.prunable(runs, inherits, before)
        kept = {run_id: run for run_id, run in tables.runs.items() if run_id not in gone}
        undo.swap(tables.runs, kept)
        undo.swap(tables.keys, {key: run for key, run in tables.keys.items() if run.accepted.run_id not in gone})
        needed = {run.accepted.run_spec for run in kept.values()}
        undo.swap(tables.run_specs, {name: run_spec for name, run_spec in tables.run_specs.items() if name in needed})
        answers = {key: answer for key, answer in tables.answers.items() if rules.run_of_key(key) not in gone}
        undo.swap(tables.answers, answers)
        namespaces = {
            space: values for space, values in tables.namespaces.items() if not rules.is_artifact_of(space, gone)
        }
        undo.swap(tables.namespaces, namespaces)
        for name, charges in tables.charges.items():
            undo.put(tables.charges, name, [charge for charge in charges if charge.until >= before])
        drivers = {run.driver_id for run in kept.values() if not run.ended}
        undo.swap(tables.drivers, {i: row for i, row in tables.drivers.items() if not row.dead or i in drivers})
        return len(gone)

    def _forget(self, write: commands.Forget) -> int:
        tree = [run for run in self._tables.runs.values() if run.accepted.root_id == write.root_id]
        if not all(run.ended for run in tree):
            return 0
        forgotten = [
            run
            for run in tree
            if run.accepted.dialect == write.dialect and run.accepted.parent_id is not None and run.events
        ]
        for run in forgotten:
            self._undo.add(setattr, run, "events", run.events)
            self._undo.add(setattr, run, "inbox", run.inbox)
            run.events, run.inbox = [], {}
        return len(forgotten)


def _tree(root: StoredRun) -> Iterator[StoredRun]:
    """A run and its descendants, parents before children."""
    level = [root]
    while level:
        yield from level
        level = sorted((child for run in level for child in run.children), key=lambda run: run.no)


def _is_tree_at_work(run: StoredRun) -> bool:
    is_driven_root = run.accepted.parent_id is None and run.driver_id is not None and not run.ended
    return is_driven_root and run.progress.phase not in ("parked", "idle")
