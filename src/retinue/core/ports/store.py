"""The store port: the commands and queries of a store, and the key-value namespaces that dialects and tools see."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from retinue.core.agent import RunSpec
from retinue.core.commands import Charge, Decide, DriverRow, RunQuery, RunRow, SessionRow, Write, WriteResult
from retinue.core.events import Event
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Item


class Store(Protocol):
    """Durable state: runs, their events, inboxes, sessions, drivers and key-value namespaces.

    `commit` is called from one thread at a time, queries from any thread. If `blocking`, calls take real time and the
    engine keeps them off its event loop. If `shared`, other processes can reach the store: the engine then renews its
    lease and reads the inbox items that other processes post. A commit is all or nothing: it raises
    `StoreUnavailable` if the store refuses and `Fenced` if `driver_id` was declared dead, and then changes nothing.

    A store may have more methods: `commit_at_once` (see `CommitAtOnce`), `log_lengths` (see `LogLengths`), and
    `tasks`, which returns the tasks of runs by their ids; without it the first event of each run is looked for with
    `events`.
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
        """Apply the writes in order, as one transaction; `durable` waits until they are on disk."""
        ...

    def changed(self) -> bool:
        """Whether another process may have written since the last call of this method."""
        ...

    def run(self, run_id: RunId) -> RunRow | None:
        """The row of a run."""
        ...

    def run_by_key(self, key: Key) -> RunRow | None:
        """The run that a spawn with this key created."""
        ...

    def runs(self, query: RunQuery) -> list[RunRow]:
        """Rows of runs, newest first."""
        ...

    def count(self, query: RunQuery) -> int:
        """The number of runs that `runs` would return."""
        ...

    def events(self, run_id: RunId, after: int = 0) -> list[tuple[int, Event]]:
        """Numbered events of a run."""
        ...

    def run_spec(self, digest: str) -> RunSpec:
        """The run spec with this digest; raises `StoreCorrupt` if it is missing."""
        ...

    def inbox(self, run_id: RunId) -> list[Item]:
        """Untaken items of a run, in the order they were posted."""
        ...

    def inbox_for(self, driver_id: DriverId) -> list[tuple[RunId, Item]]:
        """Untaken items of all unfinished runs of a driver."""
        ...

    def handles(self, session_id: SessionId, space: str) -> list[tuple[str, RunId, Key | None]]:
        """Name and run of each handle, and the key of the call that retired it, in the order they were given."""
        ...

    def drivers(self) -> list[DriverRow]:
        """Drivers that have not left; dead ones as long as they own unfinished runs."""
        ...

    def session(self, session_id: SessionId) -> SessionRow | None:
        """The row of a session."""
        ...

    def sessions(self) -> list[SessionRow]:
        """All sessions, oldest first."""
        ...

    def key_value(self, space: str) -> Mapping[str, bytes]:
        """All entries of a key-value namespace."""
        ...

    def answered(self, key: Key) -> bytes | None:
        """The answer of the change that was made with this key; None if there was none."""
        ...

    def charges(self, window: str, since: float) -> list[Charge]:
        """Charges of a rate window from `since` on."""
        ...

    def close(self) -> None:
        """Release files and connections; nothing committed is lost."""


class CommitAtOnce(Protocol):
    """Signature of the optional method `commit_at_once` of a store.

    It commits as `commit` does if that blocks on neither another process nor the disk. Otherwise it changes nothing
    and returns None.
    """

    def __call__(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult] | None: ...


class TasksOf(Protocol):
    """Signature of the optional method `tasks` of a store.

    It returns the tasks of runs by their ids. A run is left out if its first event cannot be read.
    """

    def __call__(self, run_ids: Sequence[RunId]) -> dict[RunId, str]: ...


class LogLengths(Protocol):
    """Signature of the optional method `log_lengths` of a store.

    It returns the number of the last event of each run of a tree, far cheaper than the rows of these runs.
    """

    def __call__(self, root_id: RunId) -> dict[RunId, int]: ...


class OnChange(Protocol):
    """Signature of the optional method `on_change` of a store.

    It calls `wake`, from any thread, soon after another process has committed something for which this one may wait.
    Calls may be missed and may be too many: `Store.changed` says whether there is something new, and is polled too. The
    result is a function that ends the calls.
    """

    def __call__(self, wake: Callable[[], None]) -> Callable[[], None]: ...


class PruneRequest(Struct, frozen=True, kw_only=True):
    """Which trees of ended runs to remove, the oldest first: those that ended before a time, or until a size is kept.

    `before` is the time before which a tree must have ended. With `max_bytes`, trees are removed only until the data of
    the store have at most this size. With `keep_sessions`, the newest tree of each session with a name that a person
    gave it stays, so that its conversation can be continued. Sessions without a name and without runs are removed.
    """

    before: float
    max_bytes: int | None = None
    keep_sessions: bool = False


class PruneInSteps(Protocol):
    """Signature of the optional method `prune_in_steps` of a store.

    Each step is a transaction of its own that other writers wait for only briefly; it yields the number of runs that it
    removed. Afterwards free space is given back to the disk. The caller pauses between steps, and may stop after any.
    """

    def __call__(self, request: PruneRequest) -> Generator[int]: ...


class KeyValue(Protocol):
    """Durable values by name, in namespaces: shared context, defined agents, memory."""

    async def look(self, space: str) -> Mapping[str, bytes]:
        """All entries of a namespace."""
        ...

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        """Change a namespace by a pure function of its content; see `commands.Change`."""
        ...
