"""Due times of schedules, compared with a search through every minute of a year."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest

from retinue.core.errors import BadInput
from retinue.dispatch.cron.schedule import Cron, Every, at, cron, every, next_due

YEAR = 2026
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]

MATCHES: dict[str, Callable[[datetime], bool]] = {
    "30 2 * * *": lambda wall: (wall.hour, wall.minute) == (2, 30),
    "*/20 1-3 * * *": lambda wall: 1 <= wall.hour <= 3 and wall.minute % 20 == 0,
    "15 * * * 0": lambda wall: wall.isoweekday() == 7 and wall.minute == 15,
    "0 0 29 * *": lambda wall: (wall.day, wall.hour, wall.minute) == (29, 0, 0),
}


def due_times(schedule: Cron, start: float, end: float) -> list[float]:
    moments: list[float] = []
    moment = next_due(schedule, start)
    while moment is not None and moment < end:
        moments.append(moment)
        moment = next_due(schedule, moment)
    return moments


START = datetime(YEAR, 1, 1, tzinfo=UTC).timestamp()
END = datetime(YEAR + 1, 1, 1, tzinfo=UTC).timestamp()


@cache
def first_moments(zone: ZoneInfo) -> dict[datetime, float]:
    """Every wall time of the year, with the first moment that has it, or the moment after the gap that skips it."""
    first_moment: dict[datetime, float] = {}
    moment = START - 86400
    previous_wall = datetime.fromtimestamp(moment - 60, UTC).astimezone(zone).replace(tzinfo=None)
    while moment < END + 86400:
        wall = datetime.fromtimestamp(moment, UTC).astimezone(zone).replace(tzinfo=None)
        skipped = previous_wall + timedelta(minutes=1)
        while skipped < wall:
            first_moment.setdefault(skipped, moment)
            skipped += timedelta(minutes=1)
        first_moment.setdefault(wall, moment)
        previous_wall = wall
        moment += 60
    return first_moment


def searched(matches: Callable[[datetime], bool], zone: ZoneInfo) -> list[float]:
    return sorted({due for wall, due in first_moments(zone).items() if matches(wall) and START < due < END})


@pytest.mark.parametrize("zone", ZONES)
def test_due_times_of_a_year_match_a_minute_by_minute_search(zone: str) -> None:
    for expr, matches in MATCHES.items():
        assert (expr, due_times(Cron(expr, zone), START, END)) == (expr, searched(matches, ZoneInfo(zone)))


def test_an_interval_counts_from_its_start() -> None:
    schedule = every("30s", since=1000.0)

    assert schedule == Every(30_000, 1000.0)
    assert [next_due(schedule, moment) for moment in (0.0, 1000.0, 1029.9, 1030.0, 5000.0)] == [
        1030.0,
        1030.0,
        1030.0,
        1060.0,
        5020.0,
    ]


def test_one_moment_is_due_once_and_may_be_written_in_local_time() -> None:
    schedule = at("2026-07-01T09:00:00", "Europe/Berlin")

    assert schedule == at("2026-07-01T07:00:00Z")
    assert next_due(schedule, schedule.at - 1) == schedule.at
    assert next_due(schedule, schedule.at) is None


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: cron("61 * * * *"), "'61 * * * *' is not a cron expression"),
        (lambda: cron("never"), "'never' is not a cron expression"),
        (lambda: cron("0 0 30 2 *"), "'0 0 30 2 *' is"),
        (lambda: cron("0 0 * * *", "Mars/Olympus"), "unknown time zone: 'Mars/Olympus'"),
        (lambda: cron("0 0 * * *", "../etc/passwd"), "unknown time zone: '../etc/passwd'"),
        (lambda: every("5", 0.0), "'5' is not an interval: write 30s, 5m, 1h or 1d"),
        (lambda: every("0m", 0.0), "'0m' is not an interval"),
        (lambda: at("tomorrow"), "'tomorrow' is not a date and time"),
    ],
)
def test_invalid_schedules_are_refused_with_a_reason(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(BadInput) as refused:
        make()
    assert str(refused.value).startswith(complaint)
