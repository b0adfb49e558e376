"""The stores that come with retinue keep the promises of every store."""

from pathlib import Path

from retinue.core.ports import Store
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.contracts.store import LastingStoreContract, StoreContract


class TestMemoryStore(StoreContract):
    def open_store(self, folder: Path) -> Store:
        return MemoryStore()


class TestSqliteStore(LastingStoreContract):
    def open_store(self, folder: Path) -> Store:
        return SqliteStore(folder / "deep" / "down" / "retinue.db")


class TestSqliteStoreThatSurvivesPowerCuts(LastingStoreContract):
    def open_store(self, folder: Path) -> Store:
        return SqliteStore(folder / "retinue.db", durability="power", threaded=False)
