"""Pruning: all at once in one transaction, or in small ones that other writers wait for only briefly.

Which trees can go is found by queries; the rows of a few runs at a time are then removed with everything that only they
need. A crash between two steps leaves a whole store: a tree goes from its last run to its first.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Final, Protocol, TypeVar

from retinue.core.ids import RunId
from retinue.core.ports import PruneRequest
from retinue.store import rules
from retinue.store.codec import blob_name
from retinue.store.postgres.database import Row

MOST_PER_STEP: Final = 400
"""Runs that one transaction removes at most; fewer if that takes longer than `STEP_SECONDS`."""

LEAST_PER_STEP: Final = 20
FIRST_STEP: Final = 50

STEP_SECONDS: Final = 0.02
"""Seconds that a step should keep others from writing."""

ROWS_PER_STEP: Final = 2000
"""Charges that one transaction removes."""

SESSION_SECONDS: Final = 86_400.0
"""The least age of a session without runs that is removed: a younger one may belong to a process that just began."""

_GENERATED: Final = re.compile(r"(?:cron-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
"""The id of a session that no person has named."""

T = TypeVar("T")

_RUNS: Final = "SELECT run_id, root_id, CASE WHEN ended THEN ended_at END, inherits FROM runs"
_TREES: Final = """
    SELECT root_id FROM runs GROUP BY root_id
    HAVING bool_and(ended) AND max(ended_at) < %s ORDER BY max(ended_at), root_id
"""
# A step touches few rows. Where a table was never analyzed, the server would expect many, and read whole tables; for
# the same reason OFFSET 0 keeps the order of what is looked up.
BY_INDEX: Final = """
    SELECT set_config(name, 'off', %s)
    FROM unnest('{enable_seqscan, enable_hashjoin, enable_mergejoin}'::text[]) AS name
"""
RUNS_OF_TREES: Final = """
    SELECT no, run_id, root_id FROM (SELECT no, run_id, root_id FROM runs WHERE root_id = ANY(%s) OFFSET 0) AS found
    ORDER BY no DESC LIMIT %s
"""
SIZES_OF_TREES: Final = "SELECT root_id, count(*) FROM runs WHERE root_id = ANY(%s) GROUP BY root_id"
HEIRS_OF_TREES: Final = """
    SELECT heir.root_id, origin.root_id
    FROM (SELECT run_id, root_id FROM runs WHERE root_id = ANY(%s) OFFSET 0) AS origin
    CROSS JOIN LATERAL (SELECT root_id FROM runs WHERE inherits = origin.run_id OFFSET 0) AS heir
    WHERE heir.root_id <> origin.root_id
"""
_HEIRS: Final = """
    SELECT heir.root_id, origin.root_id FROM runs AS heir JOIN runs AS origin ON origin.run_id = heir.inherits
    WHERE heir.root_id <> origin.root_id
"""
_NEWEST_OF_SESSIONS: Final = """
    SELECT DISTINCT ON (session_id) session_id, run_id FROM runs JOIN sessions USING (session_id)
    WHERE parent_id IS NULL AND state = 'open' ORDER BY session_id, accepted_at DESC, run_id DESC
"""
_BLOBS_OF_RUNS: Final = """
    SELECT run_spec FROM runs WHERE no = ANY(%s)
    UNION SELECT convert_from(substr(outcome, 2), 'UTF8') FROM runs
    WHERE no = ANY(%s) AND substr(outcome, 1, 1) = '\\x40'
    UNION SELECT convert_from(substr(body, 2), 'UTF8') FROM events
    WHERE run_no = ANY(%s) AND substr(body, 1, 1) = '\\x40'
    UNION SELECT convert_from(substr(body, 2), 'UTF8') FROM inbox
    WHERE run_no = ANY(%s) AND substr(body, 1, 1) = '\\x40'
"""
_REMOVE_UNUSED_BLOBS: Final = """
    DELETE FROM blobs WHERE digest = ANY(%s)
    AND NOT EXISTS (SELECT 1 FROM runs WHERE run_spec = digest)
    AND NOT EXISTS (
        SELECT 1 FROM runs WHERE substr(outcome, 1, 1) = '\\x40' AND substr(outcome, 2) = convert_to(digest, 'UTF8')
    )
    AND NOT EXISTS (
        SELECT 1 FROM events WHERE substr(body, 1, 1) = '\\x40' AND substr(body, 2) = convert_to(digest, 'UTF8')
    )
    AND NOT EXISTS (
        SELECT 1 FROM inbox WHERE substr(body, 1, 1) = '\\x40' AND substr(body, 2) = convert_to(digest, 'UTF8')
    )
"""
_IDLE_DEAD_DRIVERS: Final = """
    DELETE FROM drivers WHERE dead
    AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.driver_id = drivers.driver_id AND NOT runs.ended)
"""
_UNUSED_SESSIONS: Final = """
    SELECT session_id FROM sessions WHERE created_at < %s AND state = 'open'
    AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.session_id = sessions.session_id)
    AND NOT EXISTS (
        SELECT 1 FROM key_values
        WHERE strpos(space, '/') > 0 AND substr(space, strpos(space, '/') + 1) = sessions.session_id
    )
"""
_DATA_BYTES: Final = """
    SELECT coalesce(sum(pg_relation_size(pg_class.oid) + pg_relation_size(nullif(reltoastrelid, 0))
           * (reltoastrelid <> 0)::integer), 0)::bigint
    FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = current_schema() AND relkind = 'r'
"""


class PruneStatements(Protocol):
    """Statements in the transaction of the caller."""

    def fetch(self, query: str, *values: object) -> list[Row]:
        """The rows of a statement."""
        ...

    def send(self, query: str, *values: object) -> object:
        """Execute a statement whose rows are not needed."""
        ...


class QueryReader(Protocol):
    """Queries outside of a transaction; some take long, so that others should not wait for them."""

    def read(self, query: str, *values: object) -> list[Row]:
        """The rows of a query."""
        ...


class PrunedStore(Protocol):
    """What a prune in steps needs of `PostgresStore`."""

    def maintain(self, step: Callable[[PruneStatements], T]) -> T:
        """Make a step in a transaction of its own."""
        ...


def prune_at_once(statements: PruneStatements, before: float) -> int:
    """Remove trees that ended before a time, in the caller's transaction; how many runs were removed."""
    rows = statements.fetch(_RUNS)
    inherits = {run_id: origin for run_id, _, _, origin in rows if origin is not None}
    gone = rules.prunable([row[:3] for row in rows], inherits, before)
    numbers = statements.fetch("SELECT no, run_id, root_id FROM runs WHERE run_id = ANY(%s)", list(gone))
    blobs = _blobs_of_runs(statements.fetch, numbers)
    _remove_runs(statements, numbers, {root_id for _, _, root_id in numbers}, blobs)
    statements.send("DELETE FROM charges WHERE until < %s", float(before))
    statements.send(_IDLE_DEAD_DRIVERS)
    return len(gone)


def prune_in_steps(store: PrunedStore, reader: QueryReader, request: PruneRequest) -> Generator[int]:
    """See `core.ports.PruneInSteps`. The server uses free space again; its autovacuum gives the end of files back.

    Trees that have ended do not change any more. So everything is read before a step, and only whether a new run has
    inherited a history is read while other writers wait.
    """
    roots = _trees_to_remove(reader, request)
    reader.read(BY_INDEX, False)
    size = FIRST_STEP
    while roots and not _is_small_enough(reader, request):
        chosen = list(islice(roots, size))
        runs = reader.read(RUNS_OF_TREES, chosen, size)
        remaining: dict[RunId, int] = dict(reader.read(SIZES_OF_TREES, chosen))
        for _, _, root_id in runs:
            remaining[root_id] -= 1
        blobs = _blobs_of_runs(reader.read, runs)

        def step(
            statements: PruneStatements,
            chosen: list[RunId] = chosen,
            runs: list[Row] = runs,
            blobs: list[str] = blobs,
            remaining: dict[RunId, int] = remaining,
        ) -> int:
            nonlocal began
            statements.send(BY_INDEX, True)
            # After a crash of the server a step may be missing: then it is made again.
            statements.send("SET LOCAL synchronous_commit = off")
            heirs = statements.fetch(HEIRS_OF_TREES, chosen)
            began = time.monotonic()  # from here on others wait; before, this step has waited for them
            needed = {origin for heir, origin in heirs if heir not in roots}
            removed = [row for row in runs if row[2] not in needed]
            done = {root_id for root_id in chosen if root_id not in needed and not remaining.get(root_id)}
            _remove_runs(statements, removed, done, blobs)
            for root_id in (*done, *needed):
                roots.pop(root_id, None)
            return len(removed)

        began = time.monotonic()
        yield store.maintain(step)
        size = next_size(size, time.monotonic() - began)
    yield from _remove_others(store, reader, request)


def next_size(size: int, seconds: float) -> int:
    """How many runs the next step removes, after one of this size took so long: fewer at once, more by and by.

    >>> next_size(100, 0.008), next_size(100, 0.02), next_size(100, 0.05), next_size(100, 3.0)
    (125, 100, 40, 20)
    """
    if seconds < STEP_SECONDS / 2:
        return min(size + max(1, size // 4), MOST_PER_STEP)
    return max(int(size * STEP_SECONDS / seconds), LEAST_PER_STEP) if seconds > 1.2 * STEP_SECONDS else size


def _remove_others(store: PrunedStore, reader: QueryReader, request: PruneRequest) -> Iterator[int]:
    before = min(request.before, time.time())
    created = min(before, time.time() - SESSION_SECONDS)
    reader.read(BY_INDEX.replace("'off'", "'on'"), False)  # this query is about all sessions
    unused = [name for (name,) in reader.read(_UNUSED_SESSIONS, created)] if request.keep_sessions else []
    names = list(filter(_GENERATED.fullmatch, unused))
    old = [number for (number,) in reader.read("SELECT id FROM charges WHERE until < %s", float(before))]
    for start in range(0, len(old), ROWS_PER_STEP):
        chunk = old[start : start + ROWS_PER_STEP]

        def remove_charges(statements: PruneStatements, chosen: list[int] = chunk) -> int:
            statements.send("DELETE FROM charges WHERE id = ANY(%s)", chosen)
            return 0

        yield store.maintain(remove_charges)

    start, size = 0, FIRST_STEP
    while start < len(names):
        chosen = names[start : start + size]
        start += size

        def remove_sessions(statements: PruneStatements, chosen: list[str] = chosen) -> int:
            nonlocal began
            began = time.monotonic()
            still = [
                name for (name,) in statements.fetch(f"{_UNUSED_SESSIONS} AND session_id = ANY(%s)", created, chosen)
            ]
            statements.send("DELETE FROM handles WHERE session_id = ANY(%s)", still)
            statements.send("DELETE FROM sessions WHERE session_id = ANY(%s)", still)
            return 0

        began = time.monotonic()
        yield store.maintain(remove_sessions)
        size = next_size(size, time.monotonic() - began)

    def remove_drivers(statements: PruneStatements) -> int:
        statements.send(_IDLE_DEAD_DRIVERS)
        return 0

    yield store.maintain(remove_drivers)


def _trees_to_remove(store: QueryReader, request: PruneRequest) -> dict[RunId, None]:
    """The roots of trees that ended in time and whose history no remaining run has inherited, the oldest first."""
    roots: dict[RunId, None] = {root_id: None for (root_id,) in store.read(_TREES, float(request.before))}
    if request.keep_sessions:
        for session_id, run_id in store.read(_NEWEST_OF_SESSIONS):
            if not _GENERATED.fullmatch(session_id):
                roots.pop(run_id, None)
    origins: dict[RunId, list[RunId]] = {}
    for heir, origin in store.read(_HEIRS):
        origins.setdefault(heir, []).append(origin)
    waiting = [root_id for root_id in origins if root_id not in roots]
    while waiting:
        for origin in origins.get(waiting.pop(), ()):
            if origin in roots:
                del roots[origin]
                waiting.append(origin)
    return roots


def _is_small_enough(store: QueryReader, request: PruneRequest) -> bool:
    return request.max_bytes is not None and store.read(_DATA_BYTES)[0][0] <= request.max_bytes


def _blobs_of_runs(fetch: Callable[..., list[Row]], rows: list[Row]) -> list[str]:
    numbers = [row[0] for row in rows]
    return [digest for (digest,) in fetch(_BLOBS_OF_RUNS, numbers, numbers, numbers, numbers)]


def _remove_runs(statements: PruneStatements, rows: list[Row], whole_trees: set[RunId], blobs: list[str]) -> None:
    """Remove runs, given as number, id and root, with what only they need; artifacts go with the last run of a tree.

    `blobs` are those that the runs name; the ones that other runs name as well stay.
    """
    numbers, run_ids = [row[0] for row in rows], [row[1] for row in rows]
    statements.send("DELETE FROM events WHERE run_no = ANY(%s)", numbers)
    statements.send("DELETE FROM inbox WHERE run_no = ANY(%s)", numbers)
    statements.send("DELETE FROM runs WHERE no = ANY(%s)", numbers)
    statements.send("DELETE FROM answers WHERE split_part(key, '/', 1) = ANY(%s)", run_ids)
    artifact = "space >= 'artifact/' AND space < 'artifact0' AND strpos(substr(space, 10), '/') > 0"
    statements.send(
        f"DELETE FROM key_values WHERE {artifact} AND split_part(space, '/', 2) = ANY(%s)", list(whole_trees)
    )
    statements.send(_REMOVE_UNUSED_BLOBS, blobs)


def forget(statements: PruneStatements, root_id: RunId, dialect: str) -> int:
    """Delete the messages of a tree's runs of one dialect, inside the caller's transaction; returns their number."""
    if statements.fetch("SELECT 1 FROM runs WHERE root_id = %s AND NOT ended LIMIT 1", root_id):
        return 0
    chosen = "root_id = %s AND dialect = %s AND parent_id IS NOT NULL AND seq > 0"
    numbers = [no for (no,) in statements.fetch(f"SELECT no FROM runs WHERE {chosen}", root_id, dialect)]
    if not numbers:
        return 0
    with_blob = "run_no = ANY(%s) AND substr(body, 1, 1) = '\\x40'"
    both = f"SELECT body FROM events WHERE {with_blob} UNION SELECT body FROM inbox WHERE {with_blob}"
    blobs = [blob_name(body) for (body,) in statements.fetch(both, numbers, numbers)]
    statements.send("DELETE FROM events WHERE run_no = ANY(%s)", numbers)
    statements.send("DELETE FROM inbox WHERE run_no = ANY(%s)", numbers)
    statements.send("UPDATE runs SET seq = 0 WHERE no = ANY(%s)", numbers)
    statements.send(_REMOVE_UNUSED_BLOBS, blobs)
    return len(numbers)
