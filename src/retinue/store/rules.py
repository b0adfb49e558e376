"""Rules that all stores share: a run's progress after a record, the end of a cancelled run, what may be pruned.

Pure functions, independent of tables and files.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

from retinue.core.commands import (
    Accept,
    AmountLimit,
    CallLimit,
    Decision,
    Progress,
    Record,
    RegisterDriver,
    WindowFull,
    Write,
)
from retinue.core.errors import StoreCorrupt
from retinue.core.events import Event, ExchangeEnded, ReplyReceived, RunAccepted, RunEnded
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import Cancel, Item
from retinue.core.run import Outcome

QUEUED = Progress(phase="queued")
PENDING = Progress(phase="pending")
IDLE = Progress(phase="idle")
PLACED = Progress(phase="placed")


def initial_progress(accepted: RunAccepted, driver_id: DriverId | None) -> Progress:
    """The progress of a new run: idle if hosted, pending with dependencies, placed below another run, else queued."""
    if accepted.lifecycle.hosted:
        return IDLE
    if accepted.after:
        return PENDING
    return PLACED if driver_id is None and accepted.parent_id is not None else QUEUED


def progress_after(record: Record) -> Progress | None:
    """The run's progress after `record`, or None if it did not change.

    The end of a run is in its log and in its row or in neither: a missing progress is derived from the event.
    """
    progress, events = record.progress, record.events
    end = events[-1] if events and type(events[-1]) is RunEnded else None
    if len(events) > 1 and any(type(event) is RunEnded for event in events[:-1]):
        raise StoreCorrupt(f"run {record.run_id} has events after its end; nothing of this batch was stored")
    if end is not None and (progress is None or progress.phase != "ended"):
        return _ended(end)
    if end is None and progress is not None and progress.phase == "ended":
        raise StoreCorrupt(f"run {record.run_id} is marked as ended without an end; nothing of this batch was stored")
    return progress


def cancelled_end(progress: Progress, cancel: Cancel, at: float, events: Iterable[Event]) -> tuple[RunEnded, Progress]:
    """The end and the final progress of a cancelled run without a driver, with the last text of its model."""
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


def pending_cancel(inbox: Iterable[Item]) -> Cancel:
    return next((item for item in inbox if isinstance(item, Cancel)), Cancel(key="cancelled"))


def registers(writes: Iterable[Write], driver_id: DriverId) -> bool:
    """Whether these writes register the driver themselves, so that the fence must not require it yet."""
    return any(isinstance(write, RegisterDriver) and write.driver.driver_id == driver_id for write in writes)


class Charged(NamedTuple):
    """The sums of the charges of a window."""

    input: int
    output: int
    cost: int
    calls: int


def full_window(decision: Decision, charged: Callable[[str, float], Charged]) -> WindowFull | None:
    """The first window that has no room for the charges of a decision; None if all have.

    `charged` returns what was charged to a window later than a time.
    """
    for limit in decision.within:
        if isinstance(limit, CallLimit):
            asked = sum(charge.calls for charge in decision.charges if charge.window == limit.window)
            is_full = bool(asked) and charged(limit.window, limit.after).calls + asked > limit.calls
        else:
            is_full = _is_over(limit, charged(limit.window, limit.after))
        if is_full:
            return WindowFull(limit.window)
    return None


def _is_over(limit: AmountLimit, spent: Charged) -> bool:
    pairs = (
        (limit.input, spent.input),
        (limit.output, spent.output),
        (limit.tokens, spent.input + spent.output),
        (limit.cost, spent.cost),
    )
    return any(most is not None and amount > most for most, amount in pairs)


def is_of_session(space: str, session_id: SessionId) -> bool:
    """Whether a key-value namespace is deleted with a session: it is named `kind/session`.

    >>> is_of_session("context/s/1", "s/1"), is_of_session("s/1", "s/1"), is_of_session("memory", "memory")
    (True, False, False)
    """
    _, slash, owner = space.partition("/")
    return bool(slash) and owner == session_id


def is_artifact_of(space: str, trees: Container[RunId]) -> bool:
    """Whether a namespace holds an artifact of one of these root runs: `artifact/<run>/...`.

    >>> is_artifact_of("artifact/r1/a2/0", {"r1"}), is_artifact_of("artifact/r10/a2", {"r1"})
    (True, False)
    >>> is_artifact_of("context/r1", {"r1"})
    False
    """
    kind, _, rest = space.partition("/")
    root, slash, _ = rest.partition("/")
    return kind == "artifact" and bool(slash) and root in trees


def prunable(
    runs: Iterable[tuple[RunId, RunId, float | None]], inherits: Mapping[RunId, RunId], before: float
) -> set[RunId]:
    """The runs of trees that ended before a time, unless a remaining run inherited their history.

    `runs` are (run id, root id, time of the end); `inherits` maps a run to the run whose history it inherited.

    >>> runs = [("a", "a", 1.0), ("b", "a", 2.0), ("c", "c", 1.0), ("d", "d", None)]
    >>> sorted(prunable(runs, {}, 9.0)), sorted(prunable(runs, {"d": "b"}, 9.0))
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


def run_of_key(key: Key) -> RunId:
    """The run whose call a key belongs to; the key itself if it was given by a caller outside.

    >>> run_of_key("r1/3/0"), run_of_key("mine")
    ('r1', 'mine')
    """
    return key.partition("/")[0]


def check_run_spec(accept: Accept) -> None:
    """Raise `StoreCorrupt` unless the run spec has the digest under which its run will look it up."""
    if accept.run_spec.digest() != accept.accepted.run_spec:
        raise wrong_run_spec(accept)


def wrong_run_spec(accept: Accept) -> StoreCorrupt:
    named, brought = accept.accepted.run_spec, accept.run_spec.digest()
    return StoreCorrupt(f"run {accept.accepted.run_id} names run spec {named}, but brought {brought}")


def duplicate_run(run_id: RunId) -> StoreCorrupt:
    return StoreCorrupt(f"run {run_id} exists already; nothing of this batch was stored")


def sequence_error(run_id: RunId, *, given: int, last: int | None, ended: bool = False) -> StoreCorrupt:
    """The error for events that do not continue their run's log; `last` is None for an unknown run."""
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
        phase="ended", turns=outcome.turns, usage=outcome.usage, cost=outcome.cost, outcome=outcome, ended_at=end.at
    )
