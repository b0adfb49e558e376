"""What every store decides the same way: what a record makes of a run's row, and how a cancelled run is ended.

Pure functions over records; they know no table and no file.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from retinue.core.commands import Accept, Progress, Record, RegisterDriver, Write
from retinue.core.errors import StoreCorrupt
from retinue.core.events import Event, ExchangeEnded, ReplyReceived, RunAccepted, RunEnded
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Cancel, Item
from retinue.core.run import Outcome

QUEUED = Progress(phase="queued")
PENDING = Progress(phase="pending")


def beginning(accepted: RunAccepted) -> Progress:
    """Where a run begins: one that waits for others does not count as running."""
    return PENDING if accepted.after else QUEUED


def progress_after(record: Record) -> Progress | None:
    """Where the run stands after `record`, or None if that did not move.

    The end of a run shows in its log and in its row or in neither; a row that the record forgot is told by the event.
    """
    progress, events = record.progress, record.events
    end = events[-1] if events and type(events[-1]) is RunEnded else None
    if len(events) > 1 and any(type(event) is RunEnded for event in events[:-1]):
        raise StoreCorrupt(f"run {record.run_id} was told to go on after its end; nothing of this batch was stored")
    if end is not None and (progress is None or progress.phase != "ended"):
        return _ended(end)
    if end is None and progress is not None and progress.phase == "ended":
        raise StoreCorrupt(f"run {record.run_id} was said to be over without an end; nothing of this batch was stored")
    return progress


def cancelled(progress: Progress, cancel: Cancel, at: float, events: Iterable[Event]) -> tuple[RunEnded, Progress]:
    """The end of a run that nobody drives, and its row: how far it had come, and its last words."""
    text, exchanges, answering = "", 0, True
    for event in events:
        if isinstance(event, ReplyReceived):
            text, answering = event.reply.message.text or text, True
        elif isinstance(event, ExchangeEnded):
            exchanges, answering = exchanges + 1, False
    end = RunEnded(
        at=at,
        outcome=Outcome(
            result="cancelled",
            reason=cancel.reason,
            text=text,
            error=cancel.note or "cancelled",
            usage=progress.usage,
            cost=progress.cost,
            turns=progress.turns,
            exchanges=exchanges + answering,
        ),
    )
    return end, _ended(end)


def why_cancelled(inbox: Iterable[Item]) -> Cancel:
    """The cancel that waits in an inbox; one that was lost with its reason still cancels."""
    return next((item for item in inbox if isinstance(item, Cancel)), Cancel(key="cancelled"))


def enlists(writes: Iterable[Write], driver_id: DriverId) -> bool:
    """Whether these writes let the driver begin, so that the fence has nothing to look for yet."""
    return any(isinstance(write, RegisterDriver) and write.driver.driver_id == driver_id for write in writes)


def belongs_to(space: str, session_id: SessionId) -> bool:
    """Whether a shelf goes with a session: it is named `kind/session`.

    >>> belongs_to("context/s/1", "s/1"), belongs_to("s/1", "s/1"), belongs_to("memory", "memory")
    (True, False, False)
    """
    _, slash, owner = space.partition("/")
    return bool(slash) and owner == session_id


def made_by(space: str, trees: Container[RunId]) -> bool:
    """Whether a shelf goes with one of these trees, by their roots: it holds an artifact, `artifact/<run>/...`.

    >>> made_by("artifact/r1/a2/0", {"r1"}), made_by("artifact/r10/a2", {"r1"}), made_by("context/r1", {"r1"})
    (True, False, False)
    """
    kind, _, rest = space.partition("/")
    root, slash, _ = rest.partition("/")
    return kind == "artifact" and bool(slash) and root in trees


def forgettable(
    runs: Iterable[tuple[RunId, RunId, float | None]], inherits: Mapping[RunId, RunId], before: float
) -> set[RunId]:
    """The runs that may go: of trees that were over before that moment, unless a run that stays began with their words.

    Runs are given as their own id, their root's, and when they ended; `inherits` tells whose history a run began with.

    >>> runs = [("a", "a", 1.0), ("b", "a", 2.0), ("c", "c", 1.0), ("d", "d", None)]
    >>> sorted(forgettable(runs, {}, 9.0)), sorted(forgettable(runs, {"d": "b"}, 9.0))
    (['a', 'b', 'c'], ['c'])
    """
    trees: dict[RunId, list[tuple[RunId, float | None]]] = {}
    for run_id, root_id, ended_at in runs:
        trees.setdefault(root_id, []).append((run_id, ended_at))
    root_of = {run_id: root_id for root_id, tree in trees.items() for run_id, _ in tree}
    kept = [root for root, tree in trees.items() if any(at is None or at >= before for _, at in tree)]
    needed = set(kept)
    while kept:
        for run_id, _ in trees[kept.pop()]:
            origin = root_of.get(inherits.get(run_id, ""))
            if origin is not None and origin not in needed:
                needed.add(origin)
                kept.append(origin)
    return {run_id for root, tree in trees.items() if root not in needed for run_id, _ in tree}


def caller(key: Key) -> RunId:
    """The run whose call a key belongs to; the whole key, when it was made outside.

    >>> caller("r1/3/0"), caller("mine")
    ('r1', 'mine')
    """
    return key.partition("/")[0]


def check_run_spec(accept: Accept) -> None:
    """A brief is found again by its hash, so a run that names another one would never find it."""
    digest = accept.run_spec.digest()
    if digest != accept.accepted.run_spec:
        raise StoreCorrupt(f"run {accept.accepted.run_id} names brief {accept.accepted.run_spec}, but brought {digest}")


def exists_already(run_id: RunId) -> StoreCorrupt:
    """Two runs of one name: ids are made to be unique, so something is badly wrong."""
    return StoreCorrupt(f"run {run_id} exists already; nothing of this batch was stored")


def cannot_follow(run_id: RunId, *, given: int, last: int | None, ended: bool = False) -> StoreCorrupt:
    """Events that do not continue the log they are for; `last` is None for a run that is not there."""
    if last is None:
        found = "there is no such run"
    elif ended:
        found = f"it ended with event {last}"
    else:
        found = f"its last event is {last}"
    return StoreCorrupt(f"event {given} cannot be added to run {run_id}: {found}; nothing of this batch was stored")


def _ended(end: RunEnded) -> Progress:
    outcome = end.outcome
    return Progress(
        phase="ended",
        turns=outcome.turns,
        usage=outcome.usage,
        cost=outcome.cost,
        outcome=outcome,
        ended_at=end.at,
    )
