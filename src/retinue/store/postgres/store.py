"""A store in a schema of a PostgreSQL database, shared by processes on any number of machines.

A commit is one round trip: its statements are sent together, with the fence at the beginning and the COMMIT at the end.
Commits that only add to logs of their driver's own runs go on side by side; all others take turns. Reads use a second
connection. Both are opened again after the server was restarted; what was committed before is then known from the
number of the last commit, which every commit stores.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from retinue.core.commands import Record, Write, WriteResult
from retinue.core.errors import StoreError, StoreNotOpened, StoreUnavailable
from retinue.core.events import Event
from retinue.core.ids import DriverId
from retinue.core.inbox import Item
from retinue.core.ports import PruneRequest
from retinue.core.run import Outcome
from retinue.store import rules
from retinue.store.codec import BLOB_THRESHOLD, Codec
from retinue.store.postgres.address import PostgresAddress, parse_address
from retinue.store.postgres.appends import ARRAYS, appends_of
from retinue.store.postgres.commands import PostgresCommands, may_share, only_appends, rejection, wakes_others
from retinue.store.postgres.database import Connection, Database
from retinue.store.postgres.errors import translated_error
from retinue.store.postgres.lost_results import UnknownResult, found_results, is_kept, results_to_keep
from retinue.store.postgres.memory_tables import PostgresMemoryTables
from retinue.store.postgres.migrations import migrate
from retinue.store.postgres.prune import PruneStatements, prune_in_steps
from retinue.store.postgres.queries import PostgresQueries
from retinue.store.postgres.queue_tables import prepare_queue_tables
from retinue.store.postgres.wake_ups import WakeUps

T = TypeVar("T")

_COMMIT_APPENDS: Final = f"SELECT commit_appends(%s, %s, %s, %s::text, %s::text, {ARRAYS})".encode()
_BEGIN_COMMIT: Final = "SELECT begin_commit(%s, %s, %s, %s, %s::text, %s)"
_NO_LOCK: Final = 0
"""In place of the number of an advisory lock, which commits do not take any more."""
_OTHERS: Final = "SELECT coalesce(sum(n), 0)::bigint, count(*) FROM writers WHERE writer_id <> %s"
# Waits for a transaction of the lost connection that the server may still be working on.
_LAST_COMMIT: Final = "SELECT n, answers FROM writers WHERE writer_id = %s FOR UPDATE"
MADE_ALREADY: Final = "RT005"
_KEEP_ANSWERS: Final = "UPDATE writers SET answers = %s::bytea[] WHERE writer_id = %s"


class _LargeBody(Exception):
    """A body that has to be stored as a blob."""


class PostgresStore(PostgresQueries):
    """A `Store` in PostgreSQL. `url` is `postgresql://...`, with `?schema=NAME` for another schema than `retinue`.

    The schema and its tables are created if they do not exist. `threaded` says whether calls should be kept off the
    event loop; tests with virtual time turn it off.
    """

    shared = True

    def __init__(self, url: str | PostgresAddress, *, threaded: bool = True, codec: Codec | None = None) -> None:
        self.address = parse_address(url) if isinstance(url, str) else url
        self.blocking = threaded
        self._writer = Database(self.address)
        super().__init__(Database(self.address), codec or Codec())
        self._commit_lock = threading.Lock()
        self._writer_id = secrets.randbits(62)
        self._number = 0
        """The number of the last commit of this store."""
        self._spec_bodies: dict[str, bytes] = {}
        self._wake_ups: list[WakeUps] = []
        self._closed = False
        try:
            self._writer.open()
            self._writer.use(lambda connection: migrate(connection, self.address), again=False)
            self._writer.use(lambda connection: prepare_queue_tables(connection, self.address), again=False)
            self._writer.use(self._add_writer, again=False)
            self._reader.open()
            self._others = self.read(_OTHERS, self._writer_id)
        except BaseException as error:
            self._writer.close()
            self._reader.close()
            found = translated_error(self.address, error) if isinstance(error, psycopg.Error) else error
            if isinstance(found, StoreUnavailable) and not isinstance(found, StoreNotOpened):
                found = StoreNotOpened(found.reason)
            raise found from (None if found is error else error)

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        """Commit as the server is set up; `durable` changes nothing, because a server syncs every commit by default."""
        with self._commit_lock:
            number = self._next_number()
            try:
                return self._writer.use(
                    lambda connection: self._commit(connection, driver_id, writes, number),
                    lost=lambda: self._results_if_committed(number, writes),
                )
            except psycopg.Error as error:
                # The connection was lost, and the server made the commit only after it was asked about it.
                if error.sqlstate == MADE_ALREADY:
                    results = self._results_if_committed(number, writes)
                    if results is not None:
                        return results
                raise rejection(error, driver_id, writes) or translated_error(self.address, error) from error

    def changed(self) -> bool:
        before, self._others = self._others, self.read(_OTHERS, self._writer_id)
        return self._others != before

    def on_change(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Wake the caller when another process commits; see `core.ports.OnChange`."""
        wake_ups = WakeUps(self.address, self._writer_id, wake)
        self._wake_ups.append(wake_ups)
        return wake_ups.stop

    def memory_tables(self) -> PostgresMemoryTables:
        """The table of the memories of agents, in the same schema."""
        return PostgresMemoryTables(self.address)

    def prune_in_steps(self, request: PruneRequest) -> Generator[int]:
        """Prune in small transactions; each number is that of the runs a step removed. See `PruneInSteps`."""
        reader = Database(self.address)  # a query over all runs takes long, and other readers should not wait for it
        try:
            yield from prune_in_steps(self, reader, request)
        finally:
            reader.close()

    def maintain(self, step: Callable[[PruneStatements], T]) -> T:
        """Make one step of maintenance in a transaction of its own; other writers wait no longer than the step."""

        def transact(connection: Connection) -> T:
            # A number for each attempt: after a lost connection the step is made again, whether it was made or not.
            with self._transaction(connection, None, self._next_number(), alone=True):
                return step(PostgresCommands(connection, self._codec, self._spec_bodies))

        with self._commit_lock:
            try:
                return self._writer.use(transact)
            except psycopg.Error as error:
                raise translated_error(self.address, error) from error

    def close(self) -> None:
        with self._commit_lock:
            if self._closed:
                return
            self._closed = True
            for wake_ups in self._wake_ups:
                wake_ups.stop()
            try:
                remove = "DELETE FROM writers WHERE writer_id = %s"
                self._writer.use(lambda connection: connection.execute(remove, (self._writer_id,)), again=False)
            except (psycopg.Error, StoreError):
                pass  # the server is not there: a later process removes the row
            finally:
                self._writer.close()
                self._reader.close()

    def _next_number(self) -> int:
        """The number of a new commit. None is used twice, also if a commit failed: the server may make it later."""
        self._number += 1
        return self._number

    def _add_writer(self, connection: Connection) -> None:
        connection.execute("DELETE FROM writers WHERE at < clock_timestamp() - interval '1 day'")
        connection.execute("INSERT INTO writers (writer_id, n) VALUES (%s, 0)", (self._writer_id,))

    def _commit(
        self, connection: Connection, driver_id: DriverId | None, writes: Sequence[Write], number: int
    ) -> list[WriteResult]:
        records = [write for write in writes if type(write) is Record and only_appends(write)]
        if driver_id is not None and records and len(records) == len(writes):
            try:
                calls = appends_of(records, self._small_body)
                if len(calls) == 1:
                    values = calls[0].values(self._small_body)
                    channel = self.address.channel if any(map(wakes_others, records)) else None
                    first = (_NO_LOCK, self._writer_id, number, channel, driver_id)
                    connection.execute(_COMMIT_APPENDS, (*first, *values))
                    return [None] * len(records)
            except _LargeBody:
                pass
        commands = PostgresCommands(connection, self._codec, self._spec_bodies)
        kept: dict[int, WriteResult] = {}
        is_new = driver_id is not None and rules.registers(writes, driver_id)
        with self._transaction(connection, driver_id, number, alone=not all(map(may_share, writes)), is_new=is_new):
            results = commands.write_all(driver_id, writes)
            if any(map(is_kept, writes)):
                # Most of these results are known already; those of other writes are read after the commit.
                kept = {number: results[number]() for number, write in enumerate(writes) if is_kept(write)}
                commands.send(_KEEP_ANSWERS, results_to_keep(tuple(kept.values())), self._writer_id)
            if any(map(wakes_others, writes)):
                connection.execute("SELECT pg_notify(%s, %s)", (self.address.channel, str(self._writer_id)))
        return [kept[number] if number in kept else result() for number, result in enumerate(results)]

    def _small_body(self, value: Event | Item | Outcome) -> bytes:
        body = self._codec.encode(value)
        if len(body) >= BLOB_THRESHOLD:
            raise _LargeBody
        return body

    @contextmanager
    def _transaction(
        self, connection: Connection, driver_id: DriverId | None, number: int, *, alone: bool, is_new: bool = False
    ) -> Generator[None]:
        """A transaction in pipeline mode, with the lock and the fence at its beginning."""
        try:
            with connection.pipeline():
                connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                start = (_NO_LOCK, alone, self._writer_id, number, driver_id, is_new)
                connection.execute(_BEGIN_COMMIT, start)
                yield
                connection.execute("COMMIT")
        except BaseException:
            if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
                with suppress(psycopg.Error):  # the connection was lost: the server rolls back by itself
                    connection.execute("ROLLBACK")
            raise

    def _results_if_committed(self, number: int, writes: Sequence[Write]) -> list[WriteResult] | None:
        """The results of a commit after the connection was lost; None if the server has not made it."""
        rows = self._writer.use(lambda connection: connection.execute(_LAST_COMMIT, (self._writer_id,)).fetchall())
        if not rows or rows[0][0] != number:
            return None
        try:
            return found_results(self, writes, rows[0][1])
        except UnknownResult:
            text = f"the connection was lost during a commit, and its results with it ({self.address})"
            raise StoreUnavailable(text) from None
