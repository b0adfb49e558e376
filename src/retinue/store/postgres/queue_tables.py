"""The tables of the queue of jobs that workers share, made by procrastinate in the schema of the store.

They are made when the store is opened, as its own tables are: a role of workers may create none.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import psycopg

from retinue.core.log_context import logger
from retinue.store.postgres.address import PostgresAddress
from retinue.store.postgres.database import Connection
from retinue.store.postgres.migrations import lock_commits

log = logger("retinue.store")

_HAS_TABLES: Final = """
    SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = %s AND relname = 'procrastinate_workers'
"""
_MAY_CREATE: Final = "SELECT has_schema_privilege(%s, 'CREATE')"


def create_queue_tables(connection: Connection, address: PostgresAddress) -> None:
    """Create them unless they exist, if procrastinate is installed and this role may create tables."""
    if _has_tables(connection, address) or find_spec("procrastinate") is None:
        return
    if connection.execute(_MAY_CREATE, (address.schema,)).fetchone() != (True,):
        return
    from procrastinate.schema import SchemaManager

    try:
        with connection.transaction():
            lock_commits(connection)
            if not _has_tables(connection, address):  # another process may have created them meanwhile
                connection.execute(SchemaManager.get_schema().encode())
    except psycopg.Error as error:
        log.warning("the tables for the queue of workers were not created in %s: %s", address, error)  # they do without


def _has_tables(connection: Connection, address: PostgresAddress) -> bool:
    return connection.execute(_HAS_TABLES, (address.schema,)).fetchone() is not None
