"""Active time of runs, computed from their events: time without a driver does not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retinue.app.read_only import ReadOnlyClient
from retinue.core.errors import UnknownFormat
from retinue.core.events import Event, RunAdopted, RunLeft
from retinue.core.ids import RunId
from retinue.engine import RunView

NO_TIMES: Mapping[RunId, float] = {}


async def times_of(client: ReadOnlyClient, views: Sequence[RunView], *, now: float) -> Mapping[RunId, float]:
    """Seconds by run: from start to end of an ended run, else the active time by its events.

    A run written by a newer version has no readable events here and is left out.
    """
    times: dict[RunId, float] = {}
    for view in views:
        if view.ended_at is not None:
            times[view.run_id] = view.ended_at - view.started_at
            continue
        try:
            events = await client.events(view.run_id)
        except UnknownFormat:
            continue
        times[view.run_id] = seconds_worked(events, until=None if view.state == "interrupted" else now)
    return times


def seconds_worked(events: Sequence[Event], *, until: float | None) -> float:
    """The sum of the periods in which a driver had the run; `until` is the current time if it has one now.

    A driver that shuts down cleanly records `RunLeft`. The period of a crashed driver ends with the run's last event.

    >>> from retinue.core.events import RunAdopted, RunLeft
    >>> left = [RunAdopted(at=100.0, driver_id="a"), RunLeft(at=130.0)]
    >>> seconds_worked(left, until=None), seconds_worked([*left, RunAdopted(at=500.0, driver_id="b")], until=502.0)
    (30.0, 32.0)
    """
    worked = 0.0
    began: float | None = None
    last = 0.0
    for event in events:
        if isinstance(event, RunAdopted) and began is not None:
            worked += max(0.0, last - began)
            began = None
        if began is None:
            began = event.at
        last = event.at
        if isinstance(event, RunLeft):
            worked += max(0.0, last - began)
            began = None
    if began is None:
        return worked
    return worked + max(0.0, (last if until is None else until) - began)
