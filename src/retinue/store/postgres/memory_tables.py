"""Transactions on the table of memories, which the tools of agents use."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

import psycopg

from retinue.store.postgres.address import PostgresAddress
from retinue.store.postgres.database import RECONNECT_SECONDS, Connection, Row, connect_before
from retinue.store.postgres.errors import translated_error
from retinue.store.postgres.migrations import migrate


class Statements:
    """Statements of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def fetch(self, query: str, *values: object) -> list[Row]:
        """The rows of a statement."""
        return self._connection.execute(query.encode(), values, binary=True).fetchall()

    def send(self, query: str, *values: object) -> None:
        """Execute a statement without rows."""
        self._connection.execute(query.encode(), values)


class PostgresMemoryTables:
    """The table of memories in a store's schema; each transaction has a connection of its own."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self._is_migrated = False

    @contextmanager
    def transaction(self) -> Generator[Statements]:
        """A transaction, committed at the end of the block; raises `StoreError` if the server cannot be reached.

        A server that is being restarted is waited for.
        """
        try:
            with connect_before(self.address, time.monotonic() + RECONNECT_SECONDS) as connection:
                if not self._is_migrated:
                    migrate(connection, self.address)
                    self._is_migrated = True
                with connection.transaction():
                    yield Statements(connection)
        except psycopg.Error as error:
            raise translated_error(self.address, error) from error
