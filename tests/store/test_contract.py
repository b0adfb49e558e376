"""The store contract, run against retinue's own stores."""

from pathlib import Path

from retinue.core.ports import Store
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.contracts.store import PersistentStoreContract, StoreContract


class TestMemoryStore(StoreContract):
    def open_store(self, folder: Path) -> Store:
        return MemoryStore()


class TestSqliteStore(PersistentStoreContract):
    def open_store(self, folder: Path) -> Store:
        return SqliteStore(folder / "deep" / "down" / "retinue.db")


class TestSynchronousSqliteStore(PersistentStoreContract):
    def open_store(self, folder: Path) -> Store:
        return SqliteStore(folder / "retinue.db", durability="power", threaded=False)
