"""A store that stops accepting writes after the n-th, as if its process had been killed right there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retinue.core.commands import Write, WriteResult
from retinue.core.errors import StoreError
from retinue.core.ids import DriverId
from retinue.core.ports import Store


class Killed(StoreError):
    """The process is dead from here on; nothing it does reaches the store."""

    def __init__(self, after: int) -> None:
        super().__init__(f"killed after write {after}")
        self.after = after


class CrashingStore:
    """Wraps a store; everything but `commit` goes straight through.

    Writes of one commit are counted one by one, and those up to the limit still happen: a process can die between
    any two writes that are not in one transaction of their own. `on_write` is told of each, for tests that want to
    act then.
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
        """Commit as long as the process lives."""
        if self.limit is None and self._on_write is None:
            self.written += len(writes)
            return self.inner.commit(driver_id, writes, durable=durable)
        answers: list[WriteResult] = []
        for write in writes:
            if self.limit is not None and self.written >= self.limit:
                raise Killed(self.written)
            answers += self.inner.commit(driver_id, (write,), durable=durable)
            self.written += 1
            if self._on_write is not None:
                self._on_write(self.written, write)
        return answers

    def commit_at_once(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult] | None:
        """Never: all that is written goes through `commit`, where it is counted."""
        return None

    def close(self) -> None:
        """A dead process closes nothing; the test closes the store inside when it is done."""
