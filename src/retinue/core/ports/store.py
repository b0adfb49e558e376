"""The store port: the commands and queries that every store implements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from retinue.core.agent import RunSpec
from retinue.core.commands import Charge, DriverRow, RunQuery, RunRow, SessionRow, Write, WriteResult
from retinue.core.events import Event
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Item


class Store(Protocol):
    """What is remembered.

    `commit` is called from one thread at a time, reads from any thread. `blocking` says whether they take real time
    (then the engine keeps them off its loop), `shared` whether other processes can reach it (then the engine beats
    its heart and looks for their mail). A commit is all or nothing: it raises `StoreUnavailable` if the store refuses,
    and `Fenced` if `driver_id` was declared dead, and then nothing of it happened.
    """

    @property
    def blocking(self) -> bool:
        """Whether calls take real time."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other processes can reach this store."""
        ...

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        """Make these writes happen, in order, as one; `durable` asks for the disk to have them."""
        ...

    def changed(self) -> bool:
        """Whether another process may have written since this was last asked."""
        ...

    def run(self, run_id: RunId) -> RunRow | None:
        """A run's row."""
        ...

    def run_by_key(self, key: Key) -> RunRow | None:
        """The run that a spawn with this key made."""
        ...

    def runs(self, query: RunQuery) -> list[RunRow]:
        """Rows, newest first."""
        ...

    def events(self, run_id: RunId, after: int = 0) -> list[tuple[int, Event]]:
        """A run's numbered events."""
        ...

    def run_spec(self, digest: str) -> RunSpec:
        """What runs share; raises `StoreCorrupt` when it is not there."""
        ...

    def inbox(self, run_id: RunId) -> list[Item]:
        """A run's untaken items, in the order they were posted."""
        ...

    def inbox_for(self, driver_id: DriverId) -> list[tuple[RunId, Item]]:
        """The untaken items of all unfinished runs of a driver."""
        ...

    def handles(self, session_id: SessionId, space: str) -> list[tuple[str, RunId, Key | None]]:
        """Names, runs and who retired them, in the order they were given."""
        ...

    def drivers(self) -> list[DriverRow]:
        """Every driver that has not left, dead ones included as long as they own unfinished runs."""
        ...

    def session(self, session_id: SessionId) -> SessionRow | None:
        """A session, if it is there."""
        ...

    def sessions(self) -> list[SessionRow]:
        """All sessions, oldest first."""
        ...

    def key_value(self, space: str) -> Mapping[str, bytes]:
        """All that is on a shelf."""
        ...

    def answered(self, key: Key) -> bytes | None:
        """What a change with this key answered, if it happened."""
        ...

    def charges(self, window: str, since: float) -> list[Charge]:
        """What a window remembers from then on."""
        ...

    def close(self) -> None:
        """Let go of files and connections; nothing committed is lost."""
        ...


@runtime_checkable
class CommitsAtOnce(Protocol):
    """A store whose calls may take real time, but mostly do not."""

    def commit_at_once(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult] | None:
        """The same as `commit`, if that waits for nobody: neither another process nor the disk. Else None, and nothing
        happened.
        """
        ...
