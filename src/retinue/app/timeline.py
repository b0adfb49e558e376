"""When the runs of a tree worked and waited: model calls, tool calls, approvals and pauses, and the critical path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from retinue.core import events
from retinue.core.events import Event
from retinue.core.ids import RunId

SpanKind: TypeAlias = Literal["model", "tool", "wait", "approval"]


class TimelineSpan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a run's time. `end` is None for what is still in progress; times are Unix seconds.

    A `wait` is a tool call that began runs which worked for it, a pause without input, or time without a process.
    """

    run_id: RunId
    kind: SpanKind
    start: float
    end: float | None
    name: str = ""
    turn: int | None = None
    failed: bool = False
    critical: bool = False


class TimedRun(Struct, frozen=True, kw_only=True):
    """A run of a tree with its events; the times are Unix seconds."""

    run_id: RunId
    parent_id: RunId | None
    started_at: float
    ended_at: float | None
    events: Sequence[Event]


def timeline(runs: Sequence[TimedRun]) -> list[TimelineSpan]:
    """The spans of all runs, those on the critical path marked; the first run is the root of the tree.

    The critical path goes back from the end of the root: a shorter span on it would have ended the tree sooner.
    """
    below: dict[RunId, list[TimedRun]] = defaultdict(list)
    for run in runs[1:]:
        if run.parent_id is not None:
            below[run.parent_id].append(run)
    spans = {run.run_id: _delegations(list(_spans(run)), below[run.run_id]) for run in runs}
    marked = _critical(runs[0], spans, below) if runs else set[tuple[RunId, int]]()
    return [
        replace(span, critical=True) if (run_id, place) in marked else span
        for run_id, own in spans.items()
        for place, span in enumerate(own)
    ]


def _spans(run: TimedRun) -> Iterator[TimelineSpan]:
    """The spans of one run in the order of their ends, those in progress last."""
    run_id = run.run_id
    calls: dict[tuple[int, int], tuple[str, float]] = {}
    parked: dict[tuple[int, int], float] = {}
    free_since = run.started_at
    """When the model could be called: after the last result, mail or start."""
    idle_since: float | None = None
    left_since: float | None = None
    for event in run.events:
        match event:
            case events.ReplyReceived(at=at, turn=turn, reply=reply):
                yield TimelineSpan(run_id=run_id, kind="model", start=min(free_since, at), end=at, turn=turn)
                calls |= {(turn, index): (call.name, at) for index, call in enumerate(reply.message.calls)}
                free_since = at
            case events.TurnFailed(at=at, turn=turn):
                yield TimelineSpan(
                    run_id=run_id, kind="model", start=min(free_since, at), end=at, turn=turn, failed=True
                )
                free_since = at
            case events.CallParked(at=at, turn=turn, index=index):
                parked[turn, index] = at
            case events.CallReturned(at=at, turn=turn, index=index, failed=failed):
                name, asked = calls.pop((turn, index), (event.tool, at))
                start = max(asked, at - event.duration) if event.duration is not None else asked
                if (waited := parked.pop((turn, index), None)) is not None:
                    answered = start if event.duration is not None else at
                    yield TimelineSpan(
                        run_id=run_id, kind="approval", start=waited, end=max(waited, answered), name=name
                    )
                    start = max(start, answered)
                yield TimelineSpan(run_id=run_id, kind="tool", start=start, end=at, name=name, turn=turn, failed=failed)
                free_since = at
            case events.ExchangeEnded(at=at):
                idle_since = at
            case events.RunLeft(at=at):
                left_since = at
            case events.RunAdopted(at=at):
                if left_since is not None:
                    yield TimelineSpan(run_id=run_id, kind="wait", start=left_since, end=at, name="no process")
                left_since, free_since = None, at
            case events.MailTaken(at=at):
                if idle_since is not None:
                    yield TimelineSpan(run_id=run_id, kind="wait", start=idle_since, end=at, name="no input")
                    idle_since, free_since = None, at
            case events.HistoryCompacted(at=at):
                yield TimelineSpan(run_id=run_id, kind="model", start=min(free_since, at), end=at, name="compaction")
                free_since = at
            case events.RunEnded(at=at, outcome=outcome):
                for (turn, _), (name, asked) in calls.items():  # cut off
                    yield TimelineSpan(
                        run_id=run_id, kind="tool", start=asked, end=at, name=name, turn=turn, failed=True
                    )
                if not outcome.ok and not calls and idle_since is None and at > free_since:
                    yield TimelineSpan(run_id=run_id, kind="model", start=free_since, end=at, failed=True)
            case _:
                pass
    if run.ended_at is None:
        if left_since is not None or idle_since is not None:
            since = left_since if left_since is not None else idle_since or free_since
            name = "no process" if left_since is not None else "no input"
            yield TimelineSpan(run_id=run_id, kind="wait", start=since, end=None, name=name)
        elif calls:
            for place, (name, asked) in calls.items():
                kind: SpanKind = "approval" if place in parked else "tool"
                start = parked.get(place, asked)
                yield TimelineSpan(run_id=run_id, kind=kind, start=start, end=None, name=name, turn=place[0])
        else:
            yield TimelineSpan(run_id=run_id, kind="model", start=free_since, end=None)


def _delegations(spans: list[TimelineSpan], children: Iterable[TimedRun]) -> list[TimelineSpan]:
    """Tool calls in which a child worked for most of the time, to its end, are waits: the time belongs to the child."""
    working = [(child.started_at, child.ended_at) for child in children]

    def is_wait(span: TimelineSpan) -> bool:
        if span.kind != "tool" or span.failed:
            return False
        if span.end is None:
            return any(stopped is None for _, stopped in working)
        half = (span.end - span.start) / 2
        return any(
            stopped is not None and stopped <= span.end and stopped - max(start, span.start) > half
            for start, stopped in working
        )

    return [replace(span, kind="wait") if is_wait(span) else span for span in spans]


def _critical(
    root: TimedRun, spans: Mapping[RunId, Sequence[TimelineSpan]], below: Mapping[RunId, Sequence[TimedRun]]
) -> set[tuple[RunId, int]]:
    """Run and place of each span on the critical path. A stack and no recursion: a tree may be very deep."""
    marked: set[tuple[RunId, int]] = set()
    left = [(root, float("inf"))]
    while left:
        run, until = left.pop()
        own = spans[run.run_id]
        for place in sorted(range(len(own)), key=lambda each: _end(own[each]), reverse=True):
            span = own[place]
            if _end(span) > until:
                continue
            marked.add((run.run_id, place))
            until = span.start
            if span.kind == "wait":
                helping = [
                    child
                    for child in below.get(run.run_id, ())
                    if child.started_at < _end(span) and _ended(child) > span.start
                ]
                if helping:
                    last = max(helping, key=lambda child: min(_ended(child), _end(span)))
                    left.append((last, _end(span)))
    return marked


def _end(span: TimelineSpan) -> float:
    return float("inf") if span.end is None else span.end


def _ended(run: TimedRun) -> float:
    return float("inf") if run.ended_at is None else run.ended_at
