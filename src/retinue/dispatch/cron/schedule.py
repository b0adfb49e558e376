"""Schedules of jobs: a cron expression in a time zone, one moment, or an interval.

Moments are seconds since 1970. A local time that a clock change skips is due at the first moment after the gap, and a
local time that occurs twice is due the first time only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from msgspec import Struct

from retinue.core.errors import BadInput

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
FURTHEST_BACK = timedelta(hours=3)
"""More than any clock change."""
YEARS = 50
"""Years within which a cron expression has to be due at least once."""


class Cron(Struct, frozen=True, tag="cron", tag_field="kind"):
    """Every matching local time of a time zone."""

    expr: str
    tz: str = "UTC"


class At(Struct, frozen=True, tag="at", tag_field="kind"):
    """One moment."""

    at: float


class Every(Struct, frozen=True, tag="every", tag_field="kind"):
    """Every so many milliseconds from a moment on."""

    every_ms: int
    since: float = 0.0


Schedule: TypeAlias = Cron | At | Every


def next_due(schedule: Schedule, after: float) -> float | None:
    """The first moment after `after` at which a job is due; None when there is none any more.

    >>> next_due(Every(60_000, since=100.0), 100.0), next_due(At(50.0), 100.0)
    (160.0, None)
    >>> spring = datetime(2026, 3, 29, 0, 0, tzinfo=UTC).timestamp()  # at 1:00 UTC Berlin goes from 2:00 to 3:00
    >>> datetime.fromtimestamp(next_due(Cron("30 2 * * *", "Europe/Berlin"), spring), UTC).isoformat()
    '2026-03-29T01:00:00+00:00'
    """
    match schedule:
        case At(at=at):
            return at if at > after else None
        case Every(every_ms=every, since=since):
            step = every / 1000
            passed = max(0, int((after - since) // step))
            due = since + (passed + 1) * step
            return due if due > after else due + step
        case Cron(expr=expr, tz=tz):
            return next((moment for moment in _moments(expr, zone_of(tz), after) if moment > after), None)


def _moments(expr: str, zone: tzinfo, after: float) -> Iterator[float]:
    """The moments of a cron expression, in order, from a little before `after` on."""
    start = datetime.fromtimestamp(after, UTC).astimezone(zone).replace(tzinfo=None)
    last: float | None = None
    begin = (start - FURTHEST_BACK).replace(second=0, microsecond=0)
    for wall in CronSim(expr, begin):
        if wall > start + timedelta(days=366 * YEARS):
            return
        moment = moment_of(wall, zone)
        if last is None or moment > last:  # several local times in a gap are one moment
            last = moment
            yield moment


def moment_of(wall: datetime, zone: tzinfo) -> float:
    """The first moment with the local time `wall`; for a skipped local time the first moment after the gap."""
    earlier = wall.replace(tzinfo=zone, fold=0)
    moment = earlier.astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == wall:
        return moment.timestamp()
    # The local time is skipped. With the offset after the gap it lies before the gap, and the other way round.
    low = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _first_after_change(low.timestamp(), moment.timestamp(), zone)


def _first_after_change(low: float, high: float, zone: tzinfo) -> float:
    """The first whole second in (low, high] with the offset of `high`."""

    def offset(moment: int) -> timedelta | None:
        return datetime.fromtimestamp(moment, UTC).astimezone(zone).utcoffset()

    before, after = int(low), int(high)
    wanted = offset(after)
    while after - before > 1:
        middle = (before + after) // 2
        if offset(middle) == wanted:
            after = middle
        else:
            before = middle
    return float(after)


def zone_of(name: str) -> tzinfo:
    """The time zone of that name; raises `BadInput` if there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as unknown:
        raise BadInput(f"unknown time zone: {name!r}; write one as in Europe/Berlin or UTC") from unknown


def cron(expr: str, tz: str | None = None) -> Cron:
    """A schedule from a cron expression; raises `BadInput` if it is invalid or never due.

    >>> cron("0 9 * * mon", "Europe/Berlin")
    Cron(expr='0 9 * * mon', tz='Europe/Berlin')
    """
    schedule = Cron(expr, tz or "UTC")
    zone_of(schedule.tz)
    try:
        CronSim(expr, datetime(2026, 1, 1))
    except CronSimError as error:
        raise BadInput(
            f"{expr!r} is not a cron expression ({error}): write minute, hour, day, month, weekday"
        ) from error
    if next_due(schedule, datetime(2026, 1, 1, tzinfo=UTC).timestamp()) is None:
        raise BadInput(f"{expr!r} is never due")
    return schedule


def every(text: str, since: float) -> Every:
    """A schedule from an interval.

    >>> every("5m", since=0.0)
    Every(every_ms=300000, since=0.0)
    """
    found = re.fullmatch(r"([1-9]\d{0,8})([smhd])", text.strip())
    if found is None:
        raise BadInput(f"{text!r} is not an interval: write 30s, 5m, 1h or 1d")
    return Every(int(found[1]) * UNITS[found[2]] * 1000, since)


def at(text: str, tz: str | None = None) -> At:
    """A schedule for one moment, from an RFC 3339 date and time; without an offset it is local time of the zone.

    >>> at("2026-03-01T08:00:00Z")
    At(at=1772352000.0)
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise BadInput(f"{text!r} is not a date and time: write one as in 2026-03-01T08:00:00Z") from error
    if moment.tzinfo is None:
        return At(moment_of(moment, zone_of(tz or "UTC")))
    return At(moment.timestamp())
