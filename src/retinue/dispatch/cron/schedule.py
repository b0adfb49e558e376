"""When a job is due: by a cron expression in a time zone, at one moment, or every so often.

Moments are seconds since 1970. A local time that a change of clocks leaves out is due at the first moment after the
gap, and one that occurs twice is due the first time only.
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
"""More than any change of clocks."""
YEARS = 50
"""How far ahead a cron expression has to be due at least once."""


class Cron(Struct, frozen=True, tag="cron", tag_field="kind"):
    """Whenever a clock on the wall of a time zone shows a matching time."""

    expr: str
    tz: str = "UTC"


class At(Struct, frozen=True, tag="at", tag_field="kind"):
    """Once."""

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
    """When a cron expression is due, in order, from a little before `after` on."""
    start = datetime.fromtimestamp(after, UTC).astimezone(zone).replace(tzinfo=None)
    last: float | None = None
    begin = (start - FURTHEST_BACK).replace(second=0, microsecond=0)
    for wall in CronSim(expr, begin):
        if wall > start + timedelta(days=366 * YEARS):
            return
        moment = moment_of(wall, zone)
        if last is None or moment > last:  # several times that a gap leaves out are due at one moment, once
            last = moment
            yield moment


def moment_of(wall: datetime, zone: tzinfo) -> float:
    """The moment at which a clock of the zone shows `wall` for the first time, or would have shown it."""
    earlier = wall.replace(tzinfo=zone, fold=0)
    moment = earlier.astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == wall:
        return moment.timestamp()
    # The time does not exist. Read with the offset from after the gap it lies before it, and the other way round.
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
    """The time zone of that name; refused when there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as unknown:
        raise BadInput(f"unknown time zone: {name!r}; write one as in Europe/Berlin or UTC") from unknown


def cron(expr: str, tz: str | None = None) -> Cron:
    """A schedule from a cron expression; refused when it cannot be read, or is never due.

    >>> cron("0 9 * * mon", "Europe/Berlin")
    Cron(expr='0 9 * * mon', tz='Europe/Berlin')
    """
    schedule = Cron(expr, tz or "UTC")
    zone_of(schedule.tz)
    try:
        CronSim(expr, datetime(2026, 1, 1))
    except CronSimError as wrong:
        raise BadInput(f"{expr!r} is no cron expression ({wrong}): write minute, hour, day, month, weekday") from wrong
    if next_due(schedule, datetime(2026, 1, 1, tzinfo=UTC).timestamp()) is None:
        raise BadInput(f"{expr!r} is never due")
    return schedule


def every(text: str, since: float) -> Every:
    """A schedule from a length of time.

    >>> every("5m", since=0.0)
    Every(every_ms=300000, since=0.0)
    """
    found = re.fullmatch(r"([1-9]\d{0,8})([smhd])", text.strip())
    if found is None:
        raise BadInput(f"{text!r} is no length of time: write 30s, 5m, 1h or 1d")
    return Every(int(found[1]) * UNITS[found[2]] * 1000, since)


def at(text: str, tz: str | None = None) -> At:
    """A schedule for one moment, from a date and time as RFC 3339 writes it; without an offset it is of the zone.

    >>> at("2026-03-01T08:00:00Z")
    At(at=1772352000.0)
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as wrong:
        raise BadInput(f"{text!r} is no date and time: write one as in 2026-03-01T08:00:00Z") from wrong
    if moment.tzinfo is None:
        return At(moment_of(moment, zone_of(tz or "UTC")))
    return At(moment.timestamp())
