"""Writes of the PostgreSQL store, in the transaction of the caller.

The connection is in pipeline mode: statements are sent without waiting for the results of earlier ones. A write whose
condition can be checked by the server returns a function that reads its result later, so that a whole commit of such
writes is one round trip. Only a write that decides in Python, such as `Change`, waits for what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final, TypeAlias, assert_never, cast

import msgspec
import psycopg
from msgspec.structs import replace

from retinue.core import commands
from retinue.core.commands import Progress, Record
from retinue.core.errors import Fenced
from retinue.core.events import Event, RunEnded, RunLeft
from retinue.core.ids import DriverId, RunId
from retinue.core.inbox import Cancel, Item
from retinue.core.run import HandleRef, Outcome
from retinue.core.text import utf8_safe
from retinue.core.usage import Usage
from retinue.store import rules
from retinue.store.codec import Codec, blob_name, checked_blob, split_large
from retinue.store.postgres.appends import ARRAYS, appends_of
from retinue.store.postgres.database import Connection, Row
from retinue.store.postgres.prune import forget, prune_at_once

Later: TypeAlias = Callable[[], commands.WriteResult]
"""Reads the result of a write that was sent."""

_APPEND: Final = f"SELECT append(%s::text, {ARRAYS})"
_APPEND_IF_READ: Final = f"SELECT unread FROM append_if_read(%s::text[], %s::text, {ARRAYS})"
_ACCEPT: Final = """
    SELECT answer, name, space, handle FROM accept(
        %s::text, %s::text, %s::text, %s::text, %s::integer, %s::text, %s::text, %s::text, %s::text, %s::text,
        %s::text, %s::text, %s::integer, %s::boolean, %s::text, %s::text, %s::text, %s::double precision, %s::integer,
        %s::text, %s::bytea, %s::bytea, %s::text, %s::integer
    )
"""
_PUT_BLOB: Final = "INSERT INTO blobs (digest, body) VALUES (%s, %b) ON CONFLICT (digest) DO NOTHING"
_NEXT_N: Final = "SELECT coalesce(max(n), 0) + 1 FROM handles WHERE session_id = %s AND space = %s"
_COUNT_IN_TREES: Final = """
    SELECT count(*) FROM runs
    WHERE root_id = ANY(%s) AND dialect = %s AND parent_id IS NOT NULL AND (NOT ended OR %s)
"""
_POST: Final = """
    INSERT INTO inbox (run_no, key, body)
    SELECT no, %s, %b FROM runs WHERE run_id = %s AND NOT ended
    ON CONFLICT (run_no, key) DO NOTHING
"""
_POSTED: Final = f"""
    WITH known AS (
        SELECT EXISTS (SELECT 1 FROM inbox WHERE run_no = runs.no AND key = %s) AS has_key FROM runs WHERE run_id = %s
    ), added AS ({_POST} RETURNING 1)
    SELECT (SELECT has_key FROM known), EXISTS (SELECT 1 FROM added)
"""
# These follow a record that is not stored if its inbox has unread items: then the run has another last event.
_IF_RECORDED: Final = "EXISTS (SELECT 1 FROM runs AS writing WHERE writing.run_id = %s AND writing.seq = %s)"
_TAKE: Final = (
    "UPDATE inbox SET body = NULL FROM runs WHERE no = run_no AND run_id = %s AND seq = %s AND inbox.key = ANY(%s)"
)
_POST_IF_RECORDED: Final = _POST.replace("NOT ended", f"NOT ended AND {_IF_RECORDED}")
_CHARGE: Final = f"""
    INSERT INTO charges (account, at, until, input, output, cost, calls)
    SELECT %s, %s, %s, %s, %s, %s, %s WHERE {_IF_RECORDED}
"""
_CHARGE_CHANGE: Final = """
    INSERT INTO charges (account, at, until, input, output, cost, calls) VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
_CHARGED: Final = """
    SELECT coalesce(sum(input), 0)::bigint, coalesce(sum(output), 0)::bigint, coalesce(sum(cost), 0)::bigint,
           coalesce(sum(calls), 0)::bigint
    FROM charges WHERE account = %s AND at > %s
"""
_TREE_TO_CANCEL: Final = """
    WITH RECURSIVE tree (no, run_id, level) AS (
        SELECT no, run_id, 0 FROM runs WHERE run_id = %s
        UNION ALL
        SELECT runs.no, runs.run_id, level + 1 FROM tree JOIN runs ON runs.parent_id = tree.run_id
    )
    SELECT runs.no, runs.run_id, runs.driver_id, runs.ended OR runs.cancelled_at IS NOT NULL
    FROM tree JOIN runs USING (no) ORDER BY level, no
"""
_REGISTER_DRIVER: Final = """
    INSERT INTO drivers (driver_id, host, process, beat, dead, lease) VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (driver_id) DO UPDATE
    SET host = excluded.host, process = excluded.process, beat = excluded.beat, dead = excluded.dead,
        lease = excluded.lease, beat_at = clock_timestamp()
"""
_BEAT: Final = "UPDATE drivers SET beat = beat + 1, beat_at = clock_timestamp() WHERE driver_id = %s"
_ADOPT: Final = """
    UPDATE runs SET driver_id = %s
    WHERE run_id = ANY(%s) AND driver_id IS NULL AND NOT ended AND cancelled_at IS NULL
        AND EXISTS (SELECT 1 FROM drivers WHERE drivers.driver_id = %s AND NOT dead)
        AND (%s::integer IS NULL OR %s > (
            SELECT count(*) FROM runs AS root
            WHERE root.parent_id IS NULL AND root.driver_id IS NOT NULL AND NOT root.ended
                AND root.phase NOT IN ('parked', 'idle')
        ))
    RETURNING run_id
"""
_PROGRESS: Final = "seq, turns, input, output, cached, reasoning, cost"
_END: Final = """
    UPDATE runs SET ended = true, seq = %s, phase = %s, turns = %s, input = %s, output = %s, cached = %s,
                    reasoning = %s, cost = %s, outcome = %b, ended_at = %s
    WHERE no = %s
"""
_PUT: Final = """
    INSERT INTO key_values (space, name, value) VALUES (%s, %s, %b)
    ON CONFLICT (space, name) DO UPDATE SET value = excluded.value
"""
_RETIRE: Final = """
    UPDATE handles SET retired_by = %s
    WHERE session_id = %s AND space = %s AND name = %s AND (retired_by IS NULL OR retired_by = %s)
    RETURNING run_id
"""
_MAX_CACHED_SPECS: Final = 256


def only_appends(write: commands.Write) -> bool:
    """Whether a write adds events to a run and does nothing else."""
    if type(write) is not Record or write.known is not None:
        return False
    return not (write.taken or write.posts or write.charges)


def may_share(write: commands.Write) -> bool:
    """Whether a write touches only what its own driver writes, apart from items that it adds for other runs.

    A record with `known` does not: it must exclude posts. A heartbeat does: only its driver writes the counter.
    """
    return (type(write) is Record and write.known is None) or type(write) is commands.Heartbeat


def wakes_others(write: commands.Write) -> bool:
    """Whether other processes may wait for a write: all but heartbeats, and records that only add events.

    What is left out is found by the next poll.
    """
    match write:
        case Record():
            return bool(write.posts) or bool(write.events and type(write.events[-1]) is RunEnded)
        case commands.Heartbeat() | commands.RegisterDriver() | commands.OpenSession() | commands.Forget():
            return False
        case commands.Accept():
            return write.driver_id is None
        case commands.Change():
            return write.session_id is not None
        case _:
            return True


_OPEN_SESSION: Final = """
    INSERT INTO sessions (session_id, created_at, state) VALUES (%s, %s, 'open')
    ON CONFLICT (session_id) DO NOTHING RETURNING 1
"""


class PostgresCommands:
    """Applies writes on one connection in pipeline mode; the caller manages the transaction."""

    def __init__(self, connection: Connection, codec: Codec, spec_bodies: dict[str, bytes]) -> None:
        self._connection = connection
        self._codec = codec
        self._spec_bodies = spec_bodies

    def write_all(self, driver_id: DriverId | None, writes: Sequence[commands.Write]) -> list[Later]:
        results: list[Later] = []
        for only_events, group in groupby(writes, only_appends):
            if only_events:
                records = cast("list[Record]", list(group))
                self._append(driver_id, records)
                results.extend([_nothing] * len(records))
            else:
                results.extend(self.write(driver_id, write) for write in group)
        return results

    def write(self, driver_id: DriverId | None, write: commands.Write) -> Later:
        match write:
            case Record():
                return self._record(driver_id, write)
            case commands.Accept():
                return self._accept(write)
            case commands.Post():
                return self._post(write.run_id, write.item)
            case commands.CancelTree():
                return _given(self._cancel(write))
            case commands.Retire():
                place = (write.session_id, write.space, write.name)
                retired = self.send(_RETIRE, write.key, *place, write.key)
                return lambda: _value(retired())
            case commands.Change():
                return _given(self._change(write))
            case commands.RegisterDriver(driver=row):
                lease = float(row.lease)
                self.send(_REGISTER_DRIVER, row.driver_id, row.host, row.process, row.beat, row.dead, lease)
            case commands.Heartbeat():
                self.send(_BEAT, write.driver_id)
            case commands.DeclareDead():
                return _given(self._declare_dead(write))
            case commands.Adopt():
                order = {run_id: n for n, run_id in enumerate(write.run_ids)}
                limit = (write.max_trees, write.max_trees)
                adopted = self.send(_ADOPT, write.driver_id, list(order), write.driver_id, *limit)
                return lambda: tuple(sorted((row[0] for row in adopted()), key=order.__getitem__))
            case commands.UnregisterDriver():
                self.send("DELETE FROM drivers WHERE driver_id = %s", write.driver_id)
                self._release_runs(write.driver_id)
            case commands.OpenSession():
                opened = self.send(_OPEN_SESSION, write.session_id, float(write.at))
                return lambda: bool(opened())
            case commands.CloseSession():
                return _given(self._close(write))
            case commands.Prune():
                return _given(prune_at_once(self, write.before))
            case commands.Forget():
                return _given(forget(self, write.root_id, write.dialect))
            case _:
                assert_never(write)
        return _nothing

    def fetch(self, query: str, *values: object) -> list[Row]:
        """The rows of a statement, after waiting for them."""
        return self.send(query, *values)()

    def send(self, query: str, *values: object) -> Callable[[], list[Row]]:
        """Send a statement; the function waits for its rows, and may be called only if it has some."""
        return self._connection.execute(query.encode(), values, binary=True).fetchall

    def _store(self, value: Event | Item | Outcome) -> bytes:
        body = self._codec.encode(value)
        stored, digest = split_large(body)
        if digest is not None:
            self.send(_PUT_BLOB, digest, body)
        return stored

    def _load(self, stored: bytes) -> bytes:
        digest = blob_name(stored)
        if digest is None:
            return stored
        rows = self.fetch("SELECT body FROM blobs WHERE digest = %s", digest)
        return checked_blob(digest, rows[0][0] if rows else None)

    def _append(self, driver_id: DriverId | None, records: Iterable[Record]) -> None:
        for call in appends_of(records, self._store):
            self.send(_APPEND, driver_id, *call.values(self._store))

    def _record(self, driver_id: DriverId | None, write: Record) -> Later:
        result = _nothing
        if write.known is None:
            self._append(driver_id, (write,))
        else:
            (call,) = appends_of((write,), self._store)
            known = [*write.known, *write.taken]
            unread = self.send(_APPEND_IF_READ, known, driver_id, *call.values(self._store))

            def result() -> commands.WriteResult:
                items = self._known_items(unread())
                return commands.Unread(items) if items else None

        recorded = (write.run_id, write.seq - 1 + len(write.events))
        if write.taken:
            self.send(_TAKE, *recorded, list(write.taken))
        for other, item in write.posts:
            self.send(_POST_IF_RECORDED, item.key, self._store(item), other, *recorded)
        for charge in write.charges:
            self.send(_CHARGE, *_charge_values(charge), *recorded)
        return result

    def _accept(self, write: commands.Accept) -> Later:
        accepted, phase = write.accepted, rules.initial_progress(write.accepted, write.driver_id).phase
        counted = None if write.limit is None else self._too_many(write.limit)
        handle, n = accepted.handle, None
        if write.handle_space is not None:
            n = int(self.fetch(_NEXT_N, accepted.session_id, write.handle_space)[0][0])
            handle = HandleRef(write.handle_space, write.handle_format.format(n))
            accepted = replace(accepted, handle=handle)
        values = (
            *(accepted.run_id, accepted.session_id, accepted.root_id, accepted.parent_id, accepted.depth),
            *map(utf8_safe, (accepted.path, accepted.agent, accepted.label)),
            *(accepted.dialect, accepted.key, handle and handle.space, handle and handle.name, n),
            *(accepted.lifecycle.awaited, accepted.run_spec, accepted.inherits and accepted.inherits.run_id),
            *(write.driver_id, float(accepted.at), accepted.format, phase),
            *(self._spec_body(write), self._store(accepted), write.handle_space),
            # A limit that is reached is a limit of no run: what else may be wrong with the run is found first.
            0 if counted is not None else write.max_running,
        )
        rows = self.send(_ACCEPT, *values)

        def result() -> commands.WriteResult:
            ((answer, name, space, handle_name),) = rows()
            if answer in ("accepted", "existed"):
                named = None if space is None else HandleRef(space, handle_name)
                return commands.Accepted(name, named, existed=answer == "existed")
            return commands.NotCreated(answer, name if counted is None or answer != "too_many" else str(counted))

        return result

    def _too_many(self, limit: commands.RunLimit) -> int | None:
        """The number of runs that a limit counts, if it is reached: commits that create runs follow one another."""
        counted = int(self.fetch(_COUNT_IN_TREES, list(limit.root_ids), limit.dialect, limit.with_ended)[0][0])
        return counted if counted >= limit.runs else None

    def _spec_body(self, write: commands.Accept) -> bytes | None:
        """The run spec as it is stored; None if it does not have the digest that the run names."""
        digest = write.accepted.run_spec
        if digest not in self._spec_bodies:
            if len(self._spec_bodies) >= _MAX_CACHED_SPECS:
                self._spec_bodies.clear()
            if write.run_spec.digest() != digest:
                return None
            self._spec_bodies[digest] = self._codec.encode(write.run_spec)
        return self._spec_bodies[digest]

    def _post(self, run_id: RunId, item: Item) -> Later:
        rows = self.send(_POSTED, item.key, run_id, item.key, self._store(item), run_id)

        def result() -> commands.Posted:
            ((has_key, is_added),) = rows()
            if is_added:
                return "posted"
            return "unknown" if has_key is None else "duplicate" if has_key else "ended"

        return result

    def _cancel(self, write: commands.CancelTree) -> tuple[RunId, ...] | None:
        tree = self.fetch(_TREE_TO_CANCEL, write.run_id)
        if not tree:
            return None
        fresh = [(no, run_id, driver_id) for no, run_id, driver_id, is_over in tree if not is_over]
        if fresh:
            numbers = [no for no, _, _ in fresh]
            self.send("UPDATE runs SET cancelled_at = %s WHERE no = ANY(%s)", float(write.at), numbers)
            body = self._store(write.item)
            for no, run_id, driver_id in fresh:
                if driver_id is None:
                    self._end(no, write.item, write.at)
                else:
                    self.send(_POST, write.item.key, body, run_id)
        return tuple(run_id for _, run_id, _ in fresh)

    def _end(self, no: int, cancel: Cancel, at: float) -> None:
        row = self.send(f"SELECT {_PROGRESS} FROM runs WHERE no = %s", no)
        bodies = self.send("SELECT body FROM events WHERE run_no = %s ORDER BY seq", no)
        ((seq, turns, input_, output, cached, reasoning, cost),) = row()
        before = Progress(phase="working", turns=turns, usage=Usage(input_, output, cached, reasoning), cost=cost)
        known = (self._codec.event_if_known(self._load(body)) for (body,) in bodies())
        events = [event for event in known if event is not None]
        end, progress = rules.cancelled_end(before, cancel, at, events)
        self.send("INSERT INTO events (run_no, seq, body) VALUES (%s, %s, %b)", no, seq + 1, self._store(end))
        usage, outcome = progress.usage, self._store(end.outcome)
        numbers = (progress.turns, usage.input, usage.output, usage.cached, usage.reasoning, progress.cost)
        self.send(_END, seq + 1, progress.phase, *numbers, outcome, float(at), no)

    def _declare_dead(self, write: commands.DeclareDead) -> bool:
        rows = self.fetch("SELECT beat, dead FROM drivers WHERE driver_id = %s", write.driver_id)
        if rows:
            ((beat, dead),) = rows
            if not dead and write.beat is not None and write.beat != beat:
                return False
            self.send("UPDATE drivers SET dead = true WHERE driver_id = %s", write.driver_id)
        if write.left_at is not None:
            unfinished = "SELECT run_id, seq FROM runs WHERE driver_id = %s AND NOT ended ORDER BY no"
            left = RunLeft(at=write.left_at)
            runs = self.fetch(unfinished, write.driver_id)
            self._append(write.driver_id, [Record(run_id=run_id, seq=seq + 1, events=(left,)) for run_id, seq in runs])
        self._release_runs(write.driver_id)
        return True

    def _release_runs(self, driver_id: DriverId) -> None:
        """Remove the driver from its unfinished runs, and end those that are cancelled: no driver will."""
        query = "SELECT no, cancelled_at FROM runs WHERE driver_id = %s AND NOT ended AND cancelled_at IS NOT NULL"
        cancelled = self.fetch(f"{query} ORDER BY no", driver_id)
        self.send("UPDATE runs SET driver_id = NULL WHERE driver_id = %s AND NOT ended", driver_id)
        for no, at in cancelled:
            rows = self.fetch("SELECT body FROM inbox WHERE run_no = %s AND body IS NOT NULL ORDER BY id", no)
            self._end(no, rules.pending_cancel(self._known_items(rows)), at)

    def _known_items(self, rows: Iterable[Row]) -> tuple[Item, ...]:
        items = (self._codec.item_if_known(self._load(body)) for (body,) in rows)
        return tuple(item for item in items if item is not None)

    def _close(self, write: commands.CloseSession) -> bool:
        session_id = write.session_id
        if write.how == "archive":
            archive = "UPDATE sessions SET state = 'archived' WHERE session_id = %s RETURNING 1"
            return bool(self.fetch(archive, session_id))
        if not self.fetch("DELETE FROM sessions WHERE session_id = %s RETURNING 1", session_id):
            return False
        self.send("DELETE FROM handles WHERE session_id = %s", session_id)
        # A namespace of a session is named `kind/session`; a kind has no slash.
        of_session = "strpos(space, '/') > 0 AND substr(space, strpos(space, '/') + 1) = %s"
        self.send(f"DELETE FROM key_values WHERE {of_session}", session_id)
        return True

    def _change(self, write: commands.Change) -> bytes | commands.NamespaceClosed | commands.WindowFull:
        before = self.send("SELECT answer FROM answers WHERE key = %s", write.key)
        state = self.send("SELECT state FROM sessions WHERE session_id = %s", write.session_id)
        content = self.send("SELECT name, value FROM key_values WHERE space = %s ORDER BY no", write.space)
        if write.key is not None and (answered := before()):
            return answered[0][0]
        if write.session_id is not None:
            rows = state()
            if not rows or rows[0][0] != "open":
                return commands.NamespaceClosed("session_archived" if rows else "session_unknown")
        decision = write.decide(MappingProxyType(dict(cast("list[tuple[str, bytes]]", content()))))
        if full := rules.full_window(decision, self._charged):
            return full
        if decision.drops:
            drops = "DELETE FROM key_values WHERE space = %s AND name = ANY(%s)"
            self.send(drops, write.space, list(decision.drops))
        for name, value in decision.puts.items():
            self.send(_PUT, write.space, name, bytes(value))
        for charge in decision.charges:
            self.send(_CHARGE_CHANGE, *_charge_values(charge))
        if write.key is not None:
            self.send("INSERT INTO answers (key, answer) VALUES (%s, %b)", write.key, bytes(decision.answer))
        return decision.answer

    def _charged(self, window: str, after: float) -> rules.Charged:
        ((input_, output, cost, calls),) = self.fetch(_CHARGED, window, float(after))
        return rules.Charged(input_, output, cost, calls)


def _charge_values(charge: commands.Charge) -> tuple[object, ...]:
    period = (charge.window, float(charge.at), float(charge.until))
    return (*period, charge.input, charge.output, charge.cost, charge.calls)


def _nothing() -> None:
    return None


def _given(value: commands.WriteResult) -> Later:
    return lambda: value


def _value(rows: list[Row]) -> Any:
    return rows[0][0] if rows else None


def rejection(error: psycopg.Error, driver_id: DriverId | None, writes: Sequence[commands.Write]) -> Exception | None:
    """The error of a write that a function of the schema rejected; None for any other error."""
    message = error.diag.message_primary or ""
    match error.sqlstate:
        case "RT001":
            return Fenced(driver_id or "(none)")
        case "RT002":
            facts = msgspec.json.decode(message)
            run_id, given = facts["run_id"], facts["before"] + 1
            if not facts["known"]:
                return rules.sequence_error(run_id, given=given, last=None)
            if facts["driver_id"] != driver_id:
                return Fenced(driver_id or "(none)")
            return rules.sequence_error(run_id, given=given, last=facts["last"], ended=facts["ended"])
        case "RT003":
            return rules.duplicate_run(message)
        case "RT004":
            for write in writes:
                if isinstance(write, commands.Accept) and write.accepted.run_id == message:
                    return rules.wrong_run_spec(write)
            return None
        case _:
            return None
