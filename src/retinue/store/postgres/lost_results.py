"""Results of a commit that was made, but whose answer was lost with the connection.

Most are told from what is stored now: only the driver that made the commit, and waits for its results, changes it.
Results that nothing stored shows are kept with the commit: the answers of key-value changes, the runs that were adopted
or cancelled, whether a session was opened or closed, and how much was pruned. What is left is a refused acceptance of a
run: then the process continues from what is stored, where the call that wanted the run asks again with the same key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from retinue.core import commands
from retinue.core.commands import NamespaceClosed, Record, WindowFull, Write, WriteResult
from retinue.core.ids import RunId
from retinue.store.postgres.queries import PostgresQueries

MAX_BYTES: Final = 1024 * 1024
"""Bytes of results that are kept with a commit: those of a cancelled tree with 25,000 runs."""

_CHANGE: Final = b"="
"""The beginning of a kept answer of a change; any other kept result is JSON."""

_OTHERS: TypeAlias = (
    commands.Adopt
    | commands.CancelTree
    | commands.OpenSession
    | commands.CloseSession
    | commands.Prune
    | commands.Forget
)


class UnknownResult(Exception):
    """A result that is not known any more."""


def is_kept(write: Write) -> bool:
    """Whether the result of a write is kept with its commit, because nothing else that is stored shows it."""
    return isinstance(write, commands.Change | _OTHERS)


def results_to_keep(results: Sequence[WriteResult]) -> list[bytes] | None:
    """The results of writes that are kept, as they are stored with their commit; None if they are too large."""
    kept = [_encoded(result) for result in results]
    return kept if sum(map(len, kept)) <= MAX_BYTES else None


def _encoded(result: WriteResult) -> bytes:
    match result:
        case bytes():
            return _CHANGE + result
        case NamespaceClosed(why=why):
            return msgspec.json.encode({"closed": why})
        case WindowFull(window=window):
            return msgspec.json.encode({"full": window})
        case _:
            return msgspec.json.encode(result)


def _decoded(kept: bytes) -> WriteResult:
    if kept.startswith(_CHANGE):
        return kept[len(_CHANGE) :]
    match msgspec.json.decode(kept, type=tuple[RunId, ...] | dict[str, str] | bool | int | None):
        case {"closed": why}:
            return NamespaceClosed("session_archived" if why == "session_archived" else "session_unknown")
        case {"full": window}:
            return WindowFull(window)
        case dict():
            raise UnknownResult
        case result:
            return result


def found_results(queries: PostgresQueries, writes: Sequence[Write], kept: Sequence[bytes] | None) -> list[WriteResult]:
    """The results of the writes of the last commit; raises `UnknownResult` if one of them is not known any more."""
    rest = iter(kept or ())
    return [_result(queries, write, rest) for write in writes]


def _result(queries: PostgresQueries, write: Write, kept: Iterator[bytes]) -> WriteResult:
    if is_kept(write):
        result = next(kept, None)
        if result is None:
            raise UnknownResult
        return _decoded(result)
    match write:
        case Record(known=None) | commands.Heartbeat() | commands.RegisterDriver() | commands.UnregisterDriver():
            return None
        case Record():
            return _record(queries, write)
        case commands.Accept():
            return _accept(queries, write)
        case commands.Post(run_id=run_id, item=item):
            query = "SELECT 1 FROM inbox JOIN runs ON no = run_no WHERE run_id = %s AND inbox.key = %s"
            if queries.read(query, run_id, item.key):
                return "posted"
            return "unknown" if queries.run(run_id) is None else "ended"
        case commands.DeclareDead(driver_id=driver_id):
            rows = queries.read("SELECT dead FROM drivers WHERE driver_id = %s", driver_id)
            return bool(not rows or rows[0][0])
        case commands.Retire():
            handles = queries.handles(write.session_id, write.space)
            return next((run for name, run, by in handles if name == write.name and by == write.key), None)
        case _:
            raise UnknownResult


def _record(queries: PostgresQueries, write: Record) -> WriteResult:
    row = queries.run(write.run_id)
    if row is not None and row.seq >= write.seq - 1 + len(write.events):
        return None
    known = {*(write.known or ()), *write.taken}
    unread = tuple(item for item in queries.inbox(write.run_id) if item.key not in known)
    if not unread:
        raise UnknownResult
    return commands.Unread(unread)


def _accept(queries: PostgresQueries, write: commands.Accept) -> WriteResult:
    row = queries.run(write.accepted.run_id)
    if row is not None:
        return commands.Accepted(row.run_id, row.handle)
    key = write.accepted.key
    row = None if key is None else queries.run_by_key(key)
    if row is None:
        raise UnknownResult
    return commands.Accepted(row.run_id, row.handle, existed=True)
