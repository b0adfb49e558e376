"""What a store is asked to remember: a closed union of writes, each checked and then applied as one.

A write either does all that it says or, where its condition does not hold, nothing, and answers which. Writes handed
over together are committed together, in order, so that a cause is never on disk without being before its effect.
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

Phase = Literal["pending", "queued", "working", "parked", "idle", "ended"]
"""As far as the run's own log tells where it stands; whether anyone drives it is another question."""


class Progress(Struct, frozen=True, kw_only=True, gc=False):
    """The part of a run's row that moves."""

    phase: Phase
    turns: int = 0
    usage: Usage = NO_USAGE
    cost: int | None = 0
    outcome: Outcome | None = None
    ended_at: float | None = None


class RunRow(Struct, frozen=True, kw_only=True):
    """A run as a list shows it; its events tell the rest."""

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
    """A session: where trees hang, and the shelf of shared context with them."""

    session_id: SessionId
    created_at: float
    state: Literal["open", "archived"] = "open"


class DriverRow(Struct, frozen=True, kw_only=True):
    """A process that works on runs; `beat` grows while it lives. `host` and `process` say where to look for it.

    A driver whose beat stands still for its own `lease` of seconds, by the clock of whoever watches, is taken for dead.
    """

    driver_id: DriverId
    host: str
    process: str
    beat: int = 0
    dead: bool = False
    lease: float = 10.0


class Charge(Struct, frozen=True, gc=False):
    """What a named window has to remember, from one moment to another: so much of something was used."""

    window: str
    at: float
    until: float
    input: int = 0
    output: int = 0
    cost: int = 0
    calls: int = 0


class Accept(Struct, frozen=True, kw_only=True):
    """Let a run exist: its acceptance, its brief, and a handle counted up in its session's `handle_space`.

    `max_running` bounds the driven runs with a handle in that space of the session, whoever drives them. Answers
    `Accepted`, also when a run with the same key exists (that one then), or `NotCreated`.
    """

    accepted: RunAccepted
    run_spec: RunSpec
    driver_id: DriverId | None
    handle_space: str | None = None
    handle_format: str = "{}"
    max_running: int | None = None


class Accepted(Struct, frozen=True):
    """The run that has the key, its handle, and whether it was there before."""

    run_id: RunId
    handle: HandleRef | None = None
    existed: bool = False


class NotCreated(Struct, frozen=True):
    """The run was not accepted: an ancestor is cancelled or ended, its session is closed, or too many are running."""

    why: Literal["cancelled", "session_archived", "session_unknown", "too_many"]
    name: str


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """Add events to a run's log, beginning with number `seq`; take mail, post mail and move its row with them.

    Only the run's driver may; a number that is there already is a broken promise and raises `StoreCorrupt`.
    Answers None.
    """

    run_id: RunId
    seq: int
    events: tuple[Event, ...]
    progress: Progress | None = None
    taken: tuple[Key, ...] = ()
    posts: tuple[tuple[RunId, Item], ...] = ()
    charges: tuple[Charge, ...] = ()


class Post(Struct, frozen=True, kw_only=True, gc=False):
    """Put an item into a run's inbox. Answers what became of it; the same key twice is one item."""

    run_id: RunId
    item: Item


Posted = Literal["posted", "duplicate", "ended", "unknown"]
"""Result of a `Post`: the item is new, was posted before with this key, or the run has ended or does not exist."""


class CancelTree(Struct, frozen=True, kw_only=True, gc=False):
    """Cancel a run and all its descendants: nothing can be born under them afterwards.

    Each gets `item` into its inbox; those that nobody drives are ended on the spot. Answers the ids of the runs that
    were not over and not cancelled before, or None for an unknown run.
    """

    run_id: RunId
    item: Cancel
    at: float


class Retire(Struct, frozen=True, kw_only=True, gc=False):
    """Make a handle invalid, for the caller with `key`. Answers the run's id the first time and for the same
    key, else None.
    """

    session_id: SessionId
    space: str
    name: str
    key: Key


class Decision(Struct, frozen=True, gc=False):
    """What is to become of a shelf: values to put, names to drop, and the answer to whoever asked.

    `charges` are what named windows have to remember of it.
    """

    answer: bytes
    puts: Mapping[str, bytes] = {}
    drops: tuple[str, ...] = ()
    charges: tuple[Charge, ...] = ()


Decide: TypeAlias = Callable[[Mapping[str, bytes]], Decision]
"""A pure function from the content of a key-value namespace to a change of it."""


class Change(Struct, frozen=True, kw_only=True, gc=False):
    """Change a shelf by a pure decision about all that is on it. Answers the decision's answer.

    With a key the answer is remembered, and the same key answers the same without deciding again. `session_id` makes
    the change depend on that session being open: otherwise the answer is a `NamespaceClosed`.
    """

    space: str
    decide: Decide
    key: Key | None = None
    session_id: SessionId | None = None


class NamespaceClosed(Struct, frozen=True):
    """The session of the shelf cannot be written."""

    why: Literal["session_archived", "session_unknown"]


class RegisterDriver(Struct, frozen=True, kw_only=True, gc=False):
    """A process begins to drive. Answers None."""

    driver: DriverRow


class Heartbeat(Struct, frozen=True, kw_only=True, gc=False):
    """The driver lives. Answers None."""

    driver_id: DriverId


class DeclareDead(Struct, frozen=True, kw_only=True, gc=False):
    """Declare a driver dead, if its counter still stands at `beat`: its runs are nobody's now.

    Answers whether it is dead.
    """

    driver_id: DriverId
    beat: int | None = None


class Adopt(Struct, frozen=True, kw_only=True, gc=False):
    """Take over runs that nobody drives. Answers the ids of those that are the adopter's now."""

    driver_id: DriverId
    run_ids: tuple[RunId, ...]


class UnregisterDriver(Struct, frozen=True, kw_only=True, gc=False):
    """A driver goes in good order: its unfinished runs are nobody's. Answers None."""

    driver_id: DriverId


class OpenSession(Struct, frozen=True, kw_only=True, gc=False):
    """Let a session exist. Answers whether it is new."""

    session_id: SessionId
    at: float


class CloseSession(Struct, frozen=True, kw_only=True, gc=False):
    """Archive a session (read-only from now on) or delete it with its shelves and handles. Answers whether it
    existed.
    """

    session_id: SessionId
    how: Literal["archive", "delete"]


class Prune(Struct, frozen=True, kw_only=True, gc=False):
    """Forget trees whose runs all ended before a moment, with everything that only they need, artifacts included.

    A tree whose history a remaining run has inherited stays. Answers how many runs were removed.
    """

    before: float


class Forget(Struct, frozen=True, kw_only=True, gc=False):
    """Drop what the runs of one dialect in a tree were told and said: their events and their mail, never those of the
    root, and only once the whole tree is over.

    Their rows and outcomes stay; a row whose messages were dropped has `seq` 0. Answers how many runs that concerned.
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

Written: TypeAlias = Accepted | NotCreated | NamespaceClosed | tuple[RunId, ...] | bytes | str | bool | int | None
"""What a write answers; each write's docstring says which."""


class RunQuery(Struct, frozen=True, kw_only=True, gc=False):
    """Which runs to list, newest first."""

    session_id: SessionId | None = None
    root_id: RunId | None = None
    parent_id: RunId | None = None
    roots_only: bool = False
    unfinished_only: bool = False
    driver_id: DriverId | None = None
    undriven_only: bool = False
    handle_space: str | None = None
    """Only runs that have a name in this space, of whatever session."""
    limit: int | None = None
