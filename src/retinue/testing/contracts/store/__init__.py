"""The store contract: pytest classes that run against any implementation of `core.ports.Store`.

A new store inherits a class and says how it is opened::

    from pathlib import Path
    from retinue.testing.contracts.store import StoreContract

    class TestMyStore(StoreContract):
        def open_store(self, folder: Path) -> MyStore:
            return MyStore(folder / "retinue.db")

A store that loses its content when it is closed inherits `StoreContract`, others `PersistentStoreContract`.
"""

from retinue.testing.contracts.store.contract import PersistentStoreContract, StoreContract

__all__ = ["PersistentStoreContract", "StoreContract"]
