"""A store wrapper that fails after the n-th write, as if the process had been killed there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retinue.core.commands import Write, WriteResult
from retinue.core.errors import StoreError
from retinue.core.ids import DriverId
from retinue.core.ports import Store


class StoreKilled(StoreError):
    """Raised by every write after the simulated kill."""

    def __init__(self, after: int) -> None:
        super().__init__(f"killed after write {after}")
        self.after = after


class CrashingStore:
    """Wraps a store and counts its writes; everything but `commit` is passed through.

    The writes of one commit are applied one by one, up to `limit`: a process can die between any two writes that need
    not be atomic. `on_write` is called after each write with its number.
    """

    def __init__(
        self, store: Store, *, limit: int | None = None, on_write: Callable[[int, Write], None] | None = None
    ) -> None:
        self.inner = store
        self.limit = limit
        self.written = 0
        self._on_write = on_write

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        """Commit up to `limit` writes, then raise `StoreKilled`."""
        if self.limit is None and self._on_write is None:
            self.written += len(writes)
            return self.inner.commit(driver_id, writes, durable=durable)
        results: list[WriteResult] = []
        for write in writes:
            if self.limit is not None and self.written >= self.limit:
                raise StoreKilled(self.written)
            results += self.inner.commit(driver_id, (write,), durable=durable)
            self.written += 1
            if self._on_write is not None:
                self._on_write(self.written, write)
        return results

    def commit_at_once(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult] | None:
        """None: all writes go through `commit`, where they are counted."""
        return None

    def close(self) -> None:
        """Does nothing, like a killed process; the test closes `inner`."""
