"""Store commands (`Write`), their results (`WriteResult`), the rows a store returns, and run queries.

A write is applied completely or, if its condition does not hold, not at all; its result says which. Writes of one
commit are applied in order in one transaction, so an effect is never on disk without its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from retinue.core.agent import RunSpec
from retinue.core.events import Event, RunAccepted
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Cancel, Item
from retinue.core.run import HandleRef, Outcome
from retinue.core.usage import NO_USAGE, Usage

Phase = Literal["pending", "placed", "queued", "working", "parked", "idle", "ended"]
"""Progress of a run according to its own log; independent of whether a driver works on it.

A placed run was accepted below another one for a driver that is still to adopt it.
"""


class Progress(Struct, frozen=True, kw_only=True, gc=False):
    """The changing part of a run's row."""

    phase: Phase
    turns: int = 0
    usage: Usage = NO_USAGE
    cost: int | None = 0
    outcome: Outcome | None = None
    ended_at: float | None = None


class RunRow(Struct, frozen=True, kw_only=True):
    """Summary of a run for lists; the details are in its events."""

    run_id: RunId
    session_id: SessionId
    root_id: RunId
    parent_id: RunId | None
    depth: int
    path: str
    agent: str
    label: str
    dialect: str
    key: Key | None
    handle: HandleRef | None
    awaited: bool
    run_spec: str
    driver_id: DriverId | None
    accepted_at: float
    cancelled_at: float | None
    format: int
    seq: int
    progress: Progress


class SessionRow(Struct, frozen=True, kw_only=True):
    """A session: the container of run trees and of their shared key-value namespaces."""

    session_id: SessionId
    created_at: float
    state: Literal["open", "archived"] = "open"


DEFAULT_LEASE = 10.0
"""Seconds without a heartbeat after which a driver may be declared dead."""


class DriverRow(Struct, frozen=True, kw_only=True):
    """A process that drives runs. `beat` is its heartbeat counter; `host` and `process` identify it.

    A driver whose `beat` does not change for `lease` seconds, by the observer's clock, is presumed dead.
    """

    driver_id: DriverId
    host: str
    process: str
    beat: int = 0
    dead: bool = False
    lease: float = DEFAULT_LEASE


class Charge(Struct, frozen=True, gc=False):
    """An amount charged to a named window at time `at`; it counts until time `until`."""

    window: str
    at: float
    until: float
    input: int = 0
    output: int = 0
    cost: int = 0
    calls: int = 0


class RunLimit(Struct, frozen=True, kw_only=True, gc=False):
    """At most `runs` runs of one dialect below the roots of these trees, whichever processes drive them.

    Unfinished runs count, with a driver or without: a run that has lost its driver goes on. With `with_ended` those
    that have ended count as well.
    """

    root_ids: tuple[RunId, ...]
    dialect: str
    runs: int
    with_ended: bool = False


class Accept(Struct, frozen=True, kw_only=True):
    """Create a run: its first event, its run spec, and the next handle of its session's `handle_space`.

    `max_running` bounds the runs with a handle in that space of the session that have a driver, or were placed for one,
    across all drivers; `limit` bounds the runs of a dialect in trees. In an archived session only root runs are
    created: they may read it. Returns `Accepted`, also for an existing run with the same key, or `NotCreated`.
    """

    accepted: RunAccepted
    run_spec: RunSpec
    driver_id: DriverId | None
    handle_space: str | None = None
    handle_format: str = "{}"
    max_running: int | None = None
    limit: RunLimit | None = None


class Accepted(Struct, frozen=True):
    """The run with the requested key, its handle, and whether it existed before."""

    run_id: RunId
    handle: HandleRef | None = None
    existed: bool = False


class NotCreated(Struct, frozen=True):
    """The run was not accepted: an ancestor is cancelled or ended, its session is closed, or too many are running."""

    why: Literal["cancelled", "session_archived", "session_unknown", "too_many"]
    name: str


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """Append events to a run's log from number `seq` on, together with its row, taken items, posts and charges.

    Only the run's driver may record: otherwise raises `Fenced`. A `seq` that does not follow the last event raises
    `StoreCorrupt`. With `known`, keys of inbox items that the driver has read and not taken, nothing is recorded if the
    inbox has other untaken items: the end of a run and the last look into its inbox are one transaction. Returns None,
    or `Unread` with those items.
    """

    run_id: RunId
    seq: int
    events: tuple[Event, ...]
    progress: Progress | None = None
    taken: tuple[Key, ...] = ()
    posts: tuple[tuple[RunId, Item], ...] = ()
    charges: tuple[Charge, ...] = ()
    known: tuple[Key, ...] | None = None


class Unread(Struct, frozen=True):
    """The untaken items for which a record with `known` was not applied, in the order they were posted."""

    items: tuple[Item, ...]


class Post(Struct, frozen=True, kw_only=True, gc=False):
    """Put an item into a run's inbox; two posts with one key are one item. Returns a `Posted`."""

    run_id: RunId
    item: Item


Posted = Literal["posted", "duplicate", "ended", "unknown"]
"""Result of a `Post`: the item is new, was posted before with this key, or the run has ended or does not exist."""


class CancelTree(Struct, frozen=True, kw_only=True, gc=False):
    """Cancel a run and all its descendants; no run can be created under them afterwards.

    Each run with a driver gets `item` in its inbox; each run without one ends immediately. Returns the ids of the runs
    that were neither ended nor cancelled before, or None for an unknown run.
    """

    run_id: RunId
    item: Cancel
    at: float


class Retire(Struct, frozen=True, kw_only=True, gc=False):
    """Invalidate a handle. Returns the run's id the first time and for the same `key`, otherwise None."""

    session_id: SessionId
    space: str
    name: str
    key: Key


class CallLimit(Struct, frozen=True, gc=False):
    """At most `calls` calls charged to a window later than `after`, by all processes together."""

    window: str
    after: float
    calls: int


class AmountLimit(Struct, frozen=True, gc=False, kw_only=True):
    """At most these amounts charged to a window later than `after`, by all processes together; None is no limit."""

    window: str
    after: float
    input: int | None = None
    output: int | None = None
    tokens: int | None = None
    cost: int | None = None


class Decision(Struct, frozen=True, gc=False):
    """Change to a key-value namespace: values to put, names to drop, charges to record, and the answer to return.

    If the charges would exceed one of the limits `within`, nothing is changed, and the change returns `WindowFull`. An
    `AmountLimit` compares what is stored already, so that a change can also be made for what is not charged yet.
    """

    answer: bytes
    puts: Mapping[str, bytes] = {}
    drops: tuple[str, ...] = ()
    charges: tuple[Charge, ...] = ()
    within: tuple[CallLimit | AmountLimit, ...] = ()


Decide: TypeAlias = Callable[[Mapping[str, bytes]], Decision]
"""A pure function from the content of a key-value namespace to a change of it."""


class Change(Struct, frozen=True, kw_only=True, gc=False):
    """Change a key-value namespace by a pure function of its content. Returns `Decision.answer`.

    With a `key` the answer is stored, and a repeated key returns it without deciding again. With a `session_id` the
    change requires that session to be open, and returns `NamespaceClosed` otherwise. A decision whose charges exceed
    its limits returns `WindowFull`, which is not stored under the key.
    """

    space: str
    decide: Decide
    key: Key | None = None
    session_id: SessionId | None = None


class NamespaceClosed(Struct, frozen=True):
    """The session of a key-value namespace is archived or unknown, so the namespace was not changed."""

    why: Literal["session_archived", "session_unknown"]


class WindowFull(Struct, frozen=True):
    """A window has too few calls left for the charges of a change, so nothing was changed."""

    window: str


class RegisterDriver(Struct, frozen=True, kw_only=True, gc=False):
    """Register a process as a driver. Returns None."""

    driver: DriverRow


class Heartbeat(Struct, frozen=True, kw_only=True, gc=False):
    """Increment a driver's `beat`. Returns None."""

    driver_id: DriverId


class DeclareDead(Struct, frozen=True, kw_only=True, gc=False):
    """Declare a driver dead if its counter still equals `beat` (None: unconditionally); its runs lose their driver.

    With `left_at`, the time of its last sign of life, each of its unfinished runs gets a `RunLeft` of that time.
    Returns whether the driver is dead.
    """

    driver_id: DriverId
    beat: int | None = None
    left_at: float | None = None


class Adopt(Struct, frozen=True, kw_only=True, gc=False):
    """Take over runs without a driver. Returns the ids of the runs that were adopted.

    With `max_trees` none is adopted if so many root runs in the store have a driver and wait neither for a person nor
    for input.
    """

    driver_id: DriverId
    run_ids: tuple[RunId, ...]
    max_trees: int | None = None


class UnregisterDriver(Struct, frozen=True, kw_only=True, gc=False):
    """Unregister a driver that shuts down; its unfinished runs lose their driver. Returns None."""

    driver_id: DriverId


class OpenSession(Struct, frozen=True, kw_only=True, gc=False):
    """Create a session. Returns whether it is new."""

    session_id: SessionId
    at: float


class CloseSession(Struct, frozen=True, kw_only=True, gc=False):
    """Archive a session (then read-only), or delete it with its namespaces and handles. Returns whether it existed."""

    session_id: SessionId
    how: Literal["archive", "delete"]


class Prune(Struct, frozen=True, kw_only=True, gc=False):
    """Delete trees whose runs all ended before a time, with everything only they need, artifacts included.

    A tree whose history was inherited by a remaining run is kept. Returns the number of deleted runs.
    """

    before: float


class Forget(Struct, frozen=True, kw_only=True, gc=False):
    """Delete the events and inbox items of a tree's runs of one dialect, except the root, once the whole tree ended.

    Their rows and outcomes are kept; a row whose messages were deleted has `seq` 0. Returns the number of such runs.
    """

    root_id: RunId
    dialect: str


Write: TypeAlias = (
    Accept
    | Record
    | Post
    | CancelTree
    | Retire
    | Change
    | RegisterDriver
    | Heartbeat
    | DeclareDead
    | Adopt
    | UnregisterDriver
    | OpenSession
    | CloseSession
    | Prune
    | Forget
)
"""Any command that changes a store."""

WriteResult: TypeAlias = (
    Accepted | NotCreated | NamespaceClosed | WindowFull | Unread | tuple[RunId, ...] | bytes | str | bool | int | None
)
"""Result of a write; the docstring of each write says which."""


class RunQuery(Struct, frozen=True, kw_only=True, gc=False):
    """Filter for listing runs, newest first."""

    session_id: SessionId | None = None
    root_id: RunId | None = None
    parent_id: RunId | None = None
    roots_only: bool = False
    unfinished_only: bool = False
    driver_id: DriverId | None = None
    undriven_only: bool = False
    handle_space: str | None = None
    """Only runs with a handle in this space, in any session."""
    dialect: str | None = None
    phase: Phase | None = None
    except_phase: Phase | None = None
    run_ids: tuple[RunId, ...] | None = None
    """Only these runs."""
    id_part: str | None = None
    """Only runs whose id begins or ends like this."""
    before: tuple[float, RunId] | None = None
    """Only runs that come after this one in a list, which is newest first: its time of acceptance and its id."""
    limit: int | None = None
