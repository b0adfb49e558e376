"""The PostgreSQL store, for processes on many machines; needs the extra `postgres`."""

from retinue.store.postgres.address import PostgresAddress, parse_address
from retinue.store.postgres.memory_tables import PostgresMemoryTables
from retinue.store.postgres.store import PostgresStore

__all__ = ["PostgresAddress", "PostgresMemoryTables", "PostgresStore", "parse_address", "transfer"]
