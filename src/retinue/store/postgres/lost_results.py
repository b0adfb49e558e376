"""Results of a commit that was made, but whose answer was lost with the connection.

Most are told from what is stored now: only the driver that made the commit, and waits for its results, changes it. The
answers of key-value changes are stored with the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from retinue.core import commands
from retinue.core.commands import Record, Write, WriteResult
from retinue.store.postgres.queries import PostgresQueries

MAX_BYTES: Final = 64 * 1024
"""Bytes of answers that are stored with a commit."""


class UnknownResult(Exception):
    """A result that is not known any more."""


def answers_to_keep(writes: Sequence[Write], results: Sequence[WriteResult]) -> list[bytes | None] | None:
    """The answers of changes, to be stored with their commit; None if there are none, or if they are too large."""
    pairs = zip(writes, results, strict=True)
    answers = [result if isinstance(result, bytes) else None for write, result in pairs if is_change(write)]
    return answers if answers and sum(len(each or b"") for each in answers) <= MAX_BYTES else None


def is_change(write: Write) -> bool:
    return isinstance(write, commands.Change)


def found_results(
    queries: PostgresQueries, writes: Sequence[Write], answers: Sequence[bytes | None] | None
) -> list[WriteResult]:
    """The results of the writes of the last commit; raises `UnknownResult` if one of them is not known any more."""
    changes = iter(answers or ())
    return [_result(queries, write, changes) for write in writes]


def _result(queries: PostgresQueries, write: Write, answers: Iterator[bytes | None]) -> WriteResult:
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
        case commands.Change():
            answer = next(answers, None)
            if answer is None:
                raise UnknownResult
            return answer
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
