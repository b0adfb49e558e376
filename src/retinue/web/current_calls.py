"""What runs do at the moment: their calls in progress, known for every run from its events."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.app.engine_types import RunView
from retinue.app.read_only import ReadOnlyClient
from retinue.core.commands import RunQuery
from retinue.core.events import CallParked, CallReturned, Event, MailTaken, ReplyReceived, RunAccepted
from retinue.core.ids import RunId
from retinue.core.inbox import ApprovalAnswer

LAST_EVENTS = 64
"""Events of a run that are read to find the calls of its last turn."""

MOST_RUNS = 200
"""Runs whose events are read when a tree is shown; the current calls of others are known with their next event."""

SHOWN = 3
"""Names of calls that are shown."""


class OpenCalls:
    """The calls of a run that have no result yet. An event may be taken again with all that follow it."""

    __slots__ = ("_is_known", "_open", "_parked")

    def __init__(self) -> None:
        self._is_known = False
        self._open: dict[int, str] = {}
        self._parked: dict[int, str] = {}

    def take(self, event: Event) -> None:
        match event:
            case RunAccepted():
                self._is_known = True
            case ReplyReceived(reply=reply):
                self._is_known = True
                self._open = {index: call.name for index, call in enumerate(reply.message.calls)}
                self._parked = {}
            case CallParked(index=index):
                if (name := self._open.pop(index, None)) is not None:
                    self._parked[index] = name
            case CallReturned(index=index):
                self._open.pop(index, None)
                self._parked.pop(index, None)
            case MailTaken(items=items):
                for item in items:
                    if isinstance(item, ApprovalAnswer) and (name := self._parked.pop(item.index, None)) is not None:
                        self._open[item.index] = name
            case _:
                pass

    def text(self, view: RunView) -> str:
        """What a run that works or waits for a child does; empty if that is not known."""
        if not self._is_known or not _is_at_work(view):
            return ""
        return _calls([*self._open.values()]) or ("calls the model" if view.state == "working" else "")


def doing(client: ReadOnlyClient, view: RunView, calls: OpenCalls | None) -> str:
    """What a run does now; `calls` are those of its events, for a run that this process does not drive."""
    if view.outcome is not None:
        return ""
    live = client.supervisor.live(view.run_id)
    if live is None:
        return calls.text(view) if calls is not None else ""
    if (pause := live.pause) is not None:
        return f"waits to call the model again: {pause.error}"
    names = [live.run.open[index].call.name for index in live.in_flight if 0 <= index < len(live.run.open)]
    return _calls(names) or ("calls the model" if live.in_flight else "")


async def open_calls(client: ReadOnlyClient, root_id: RunId, views: Sequence[RunView]) -> dict[RunId, OpenCalls]:
    """The open calls of runs of a tree that this process does not drive."""
    others = [view.run_id for view in views if _is_at_work(view) and client.supervisor.live(view.run_id) is None]
    if not others:
        return {}
    rows = await client.supervisor.stored.runs(RunQuery(root_id=root_id, unfinished_only=True))
    numbers = {row.run_id: row.seq for row in rows}
    found: dict[RunId, OpenCalls] = {}
    for run_id in others[:MOST_RUNS]:
        found[run_id] = calls = OpenCalls()
        after = max(0, numbers.get(run_id, 0) - LAST_EVENTS)
        for _, event in await client.supervisor.stored.events(run_id, after):
            calls.take(event)
    return found


def _is_at_work(view: RunView) -> bool:
    return view.state == "working" or view.waiting_for == "child"


def _calls(names: Sequence[str]) -> str:
    return f"calls {', '.join(names[:SHOWN])}" if names else ""
