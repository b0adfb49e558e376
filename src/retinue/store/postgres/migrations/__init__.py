"""Schema migrations of the PostgreSQL store, forwards only.

The table `store_version` has the number of migrations that a schema has. Released migrations are never edited; a change
is a new one. A lock of that table lets one process migrate while others wait; before it exists, an advisory lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from retinue.core.errors import StoreCorrupt, UnknownFormat
from retinue.store.postgres.address import PostgresAddress
from retinue.store.postgres.database import Connection
from retinue.store.postgres.migrations import (
    m0001_initial,
    m0002_large_stores,
    m0003_lost_answers,
    m0004_placed_runs,
    m0005_own_locks,
    m0006_late_commits,
)

Migration: TypeAlias = Sequence[str]
"""The SQL statements of one migration."""

STEPS: Final[tuple[Migration, ...]] = (
    m0001_initial.STATEMENTS,
    m0002_large_stores.STATEMENTS,
    m0003_lost_answers.STATEMENTS,
    m0004_placed_runs.STATEMENTS,
    m0005_own_locks.STATEMENTS,
    m0006_late_commits.STATEMENTS,
)

_HAS_SCHEMA: Final = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
_HAS_TABLES: Final = """
    SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = %s AND relkind IN ('r', 'p', 'v') LIMIT 1
"""
# By a query and not by `to_regclass`, whose cache does not see what another process has created meanwhile.
_HAS_VERSION: Final = _HAS_TABLES.replace("LIMIT", "AND relname = 'store_version' LIMIT")


def migrate(connection: Connection, address: PostgresAddress, steps: Sequence[Migration] = STEPS) -> None:
    """Apply the missing migrations, all or none; raises for a newer version and for the schema of another program.

    A schema that is up to date is only read, so a role without the right to create tables can use it.
    """
    before = check_version(connection, address, steps)
    if before == len(steps):
        return
    with connection.transaction():
        if before:
            lock_commits(connection)
        else:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (address.lock_number("migration"),))
        version = check_version(connection, address, steps)
        if version == len(steps):
            return  # another process has migrated meanwhile
        if version == 0:
            if connection.execute(_HAS_TABLES, (address.schema,)).fetchone() is not None:
                raise StoreCorrupt(
                    f"the schema of {address} has tables of another program: choose another one with ?schema=NAME"
                )
            if connection.execute(_HAS_SCHEMA, (address.schema,)).fetchone() is None:
                connection.execute(f'CREATE SCHEMA "{address.schema}"'.encode())
            connection.execute("CREATE TABLE store_version (version integer NOT NULL)")
            connection.execute("INSERT INTO store_version (version) VALUES (0)")
        for step in steps[version:]:
            connection.execute(";".join(step).encode())
        connection.execute("UPDATE store_version SET version = %s", (len(steps),))


def lock_commits(connection: Connection) -> None:
    """Let no commit of another process begin before the end of the transaction, and wait for those in progress."""
    connection.execute("LOCK TABLE store_version IN EXCLUSIVE MODE")


def check_version(connection: Connection, address: PostgresAddress, steps: Sequence[Migration] = STEPS) -> int:
    """The number of migrations that a schema has, 0 if it has no store; raises `UnknownFormat` for a newer version."""
    if connection.execute(_HAS_VERSION, (address.schema,)).fetchone() is None:
        return 0
    row = connection.execute(f'SELECT version FROM "{address.schema}".store_version'.encode()).fetchone()
    version = 0 if row is None else int(row[0])
    if version > len(steps):
        raise UnknownFormat(f"the store {address}", found=version, known=len(steps))
    return version
