"""The store contract, run against retinue's own stores."""

import hashlib
from pathlib import Path

import pytest

from retinue.core.ports import Store
from retinue.store.memory.store import MemoryStore
from retinue.store.postgres.store import PostgresStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.contracts.store import PersistentStoreContract, StoreContract
from tests.postgres import PostgresServer


class TestMemoryStore(StoreContract):
    def open_store(self, folder: Path) -> Store:
        return MemoryStore()


class TestSqliteStore(PersistentStoreContract):
    def open_store(self, folder: Path) -> Store:
        return SqliteStore(folder / "deep" / "down" / "retinue.db")


class TestSynchronousSqliteStore(PersistentStoreContract):
    def open_store(self, folder: Path) -> Store:
        return SqliteStore(folder / "retinue.db", durability="power", threaded=False)


class TestPostgresStore(PersistentStoreContract):
    @pytest.fixture(autouse=True)
    def use_server(self, postgres_server: PostgresServer) -> None:
        self.server = postgres_server

    def open_store(self, folder: Path) -> Store:
        return PostgresStore(self.server.url(f"t_{hashlib.sha256(str(folder).encode()).hexdigest()[:24]}"))
