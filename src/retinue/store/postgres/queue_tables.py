"""The tables of the queue of jobs that workers share, made and upgraded by procrastinate in the schema of the store.

They are made when the store is opened, as its own tables are: a role of workers may create none. procrastinate does not
record in a database which of its migrations were applied. A comment on one of its tables names the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from retinue.core.log_context import logger
from retinue.store.postgres.address import PostgresAddress
from retinue.store.postgres.database import Connection
from retinue.store.postgres.migrations import lock_commits

log = logger("retinue.store")

FIRST_VERSION: Final = "03.04.00_50_post_add_retry_failed_job_procedure.sql"
"""The last migration of the oldest procrastinate that made such tables; they had no comment."""

_FIND_TABLES: Final = """
    SELECT coalesce(obj_description(pg_class.oid, 'pg_class'), %s), pg_has_role(relowner, 'USAGE')
    FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = %s AND relname = 'procrastinate_workers'
"""
_MAY_CREATE: Final = "SELECT has_schema_privilege(%s, 'CREATE')"
_NAME_VERSION: Final = sql.SQL("COMMENT ON TABLE procrastinate_workers IS {}")


def prepare_queue_tables(connection: Connection, address: PostgresAddress) -> None:
    """Create or upgrade them, if procrastinate is installed and this role may; log what to do if it may not upgrade."""
    folder = _folder()
    migrations = {} if folder is None else {path.name: path for path in sorted(folder.glob("*.sql"))}
    if not migrations:
        return
    found = connection.execute(_FIND_TABLES, (FIRST_VERSION, address.schema)).fetchone()
    if found is None:
        if connection.execute(_MAY_CREATE, (address.schema,)).fetchone() != (True,):
            return
    else:
        version, is_owner = found
        if not missing_migrations(tuple(migrations), version):
            return
        if not is_owner:
            log.warning(
                "the tables for the queue of workers in %s are of an older procrastinate than the one installed here: "
                "open the store once as their owner to upgrade them",
                address,
            )
            return
    try:
        with connection.transaction():
            lock_commits(connection)
            _create_or_upgrade(connection, address, migrations)
    except psycopg.Error as error:
        how = "created" if found is None else "upgraded"
        log.warning("the tables for the queue of workers were not %s in %s: %s", how, address, error)  # they do without


def missing_migrations(migrations: Sequence[str], version: str) -> list[str]:
    """The names of the migrations to apply to tables of a version, in their order.

    A `post` migration removes what processes with the procrastinate before may still use. The last ones wait for the
    next upgrade, so that two versions of workers go on side by side.

    >>> missing_migrations(["1_pre_a.sql", "1_post_a.sql", "2_pre_b.sql", "2_post_b.sql"], "1_pre_a.sql")
    ['1_post_a.sql', '2_pre_b.sql']
    """
    after = list(migrations[migrations.index(version) + 1 :]) if version in migrations else []
    while after and "_post_" in after[-1]:
        after.pop()
    return after


def _create_or_upgrade(connection: Connection, address: PostgresAddress, migrations: Mapping[str, Path]) -> None:
    found = connection.execute(_FIND_TABLES, (FIRST_VERSION, address.schema)).fetchone()  # perhaps by another meanwhile
    if found is None:
        from procrastinate.schema import SchemaManager

        connection.execute(SchemaManager.get_schema().encode())
        connection.execute(_NAME_VERSION.format(tuple(migrations)[-1]))
    elif missing := missing_migrations(tuple(migrations), found[0]):
        for name in missing:
            connection.execute(migrations[name].read_bytes())
        connection.execute(_NAME_VERSION.format(missing[-1]))


def _folder() -> Path | None:
    """The folder with the migrations of the installed procrastinate; None if it is not installed."""
    # The package is found and not imported: every command opens the store, and few use the queue.
    found = find_spec("procrastinate")
    places = None if found is None else found.submodule_search_locations
    return Path(places[0]) / "sql" / "migrations" if places else None
