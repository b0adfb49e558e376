"""The store contract, run against retinue's own stores."""

import uuid
from pathlib import Path

import pytest

from retinue.core.ports import Store
from retinue.store.memory.store import MemoryStore
from retinue.store.postgres.store import PostgresStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.contracts.store import PersistentStoreContract, StoreContract
from tests.postgres import PostgresServer, empty_schema


class TestMemoryStore(StoreContract):
    def open_store(self, folder: Path) -> Store:
        return MemoryStore()


class TestSqliteStore(PersistentStoreContract):
    def open_store(self, folder: Path) -> Store:
        return SqliteStore(folder / "deep" / "down" / "retinue.db")


class TestSynchronousSqliteStore(PersistentStoreContract):
    def open_store(self, folder: Path) -> Store:
        return SqliteStore(folder / "retinue.db", durability="power", threaded=False)


@pytest.fixture(scope="module")
def shared_schema(postgres_server: PostgresServer) -> str:
    """The address of a schema that the tests of this file empty and use again, which is faster than a new one."""
    url = postgres_server.url(f"t_{uuid.uuid4().hex}")
    PostgresStore(url).close()
    return url


class TestPostgresStore(PersistentStoreContract):
    @pytest.fixture(autouse=True)
    def empty(self, shared_schema: str) -> None:
        self.url = shared_schema
        empty_schema(shared_schema)

    def open_store(self, folder: Path) -> Store:
        return PostgresStore(self.url)
