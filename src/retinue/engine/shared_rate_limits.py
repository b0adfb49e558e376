"""Rate limits that the processes on one store share: a row for each provider and model that throttled.

There is no row until a provider throttles. The process that is throttled writes it; the others find it within
`SYNC_SECONDS`, pause as long, and add half of what they had in flight, so that the sum is halved. From then on each
process leases a share of the permits, renews it while it has attempts, and gives it back when it has none. Successful
attempts widen the common limit as they widen that of a single process. A process without a share has one permit, so
that none waits for ever: the sum exceeds the limit only if there are more processes than permits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.commands import Change, Decision
from retinue.core.ids import DriverId
from retinue.core.ports import Clock, Store
from retinue.engine.journal_writer import Journal
from retinue.engine.rate_limiter import RateLimiter, RateLimiters, Throttling

SPACE: Final = "rate-limits"
"""The key-value namespace; the name of a row is that of the provider and the model."""

SYNC_SECONDS: Final = 0.5
"""Seconds between two looks at the rows; a process that was throttled writes at once."""

SHARE_SECONDS: Final = 15.0
"""Seconds after which a share that was not renewed is free again: its process has died."""

FORGET_SECONDS: Final = 600.0
"""Seconds after the last narrowing from which on a limit that is not used up is removed."""


class Share(Struct, frozen=True, gc=False):
    """The permits that a process has leased, how many it could use, its most in flight, and when it said so."""

    permits: int
    wanted: int
    peak: int
    at: float


class SharedLimit(Struct, frozen=True):
    """The permits of all processes together, and the shares of those that have attempts.

    `narrowings` counts how often the limit was narrowed. For `pause` seconds after `narrowed_at` nothing starts.
    """

    limit: float
    narrowed_at: float
    pause: float
    narrowings: int = 1
    shares: dict[DriverId, Share] = {}

    def pause_left(self, now: float) -> float:
        """Seconds until attempts may start; at most the whole pause, because the clocks of machines differ."""
        return max(0.0, min(self.pause, self.narrowed_at + self.pause - now))


class Report(Struct, frozen=True, gc=False):
    """What a process tells about its rate limiter: the last narrowing that it knows, its use, and its refusals."""

    driver_id: DriverId
    at: float
    ceiling: int
    seen: int = 0
    wanted: int = 0
    peak: int = 0
    successes: int = 0
    throttling: Throttling | None = None


def synced(row: SharedLimit | None, report: Report) -> SharedLimit | None:
    """The row after a report, with the share of the reporting process; None if no limit is needed."""
    if row is None:
        if report.throttling is None:
            return None
        limit = max(1.0, report.throttling.peak / 2)
        row = SharedLimit(limit, report.at, report.throttling.pause)
    else:
        row = _reported(row, report)
        is_unused = sum(share.wanted for share in row.shares.values()) + report.wanted < row.limit
        if row.limit >= report.ceiling or (is_unused and report.at - row.narrowed_at > FORGET_SECONDS):
            return None
    shares = {name: each for name, each in row.shares.items() if name != report.driver_id}
    if report.wanted:
        permits = _share_of(int(row.limit), report.wanted, list(shares.values()))
        shares[report.driver_id] = Share(permits, report.wanted, report.peak, report.at)
    return replace(row, shares=shares)


def _reported(row: SharedLimit, report: Report) -> SharedLimit:
    shares = {name: each for name, each in row.shares.items() if abs(report.at - each.at) < SHARE_SECONDS}
    limit = row.limit
    is_known = report.seen == row.narrowings
    if is_known:
        limit += report.successes / max(1.0, limit)
    elif report.seen == 0:
        limit += (report.throttling.peak if report.throttling else report.wanted) / 2
    row = replace(row, limit=limit, shares=shares)
    if report.throttling is None:
        return row
    left, pause = row.pause_left(report.at), report.throttling.pause
    if left > 0 or not is_known:  # throttled together with the attempts for which the limit was narrowed
        return replace(row, pause=row.pause + pause - left) if pause > left else row
    others = sum(each.peak for name, each in shares.items() if name != report.driver_id)
    return replace(
        row,
        limit=max(1.0, min(limit, others + report.throttling.peak) / 2),
        narrowed_at=report.at,
        pause=pause,
        narrowings=row.narrowings + 1,
    )


def _share_of(total: int, wanted: int, others: list[Share]) -> int:
    """A fair share: each process gets what it wants while there are enough, and the rest is divided evenly.

    Permits that others still hold are not given away; they learn of their smaller share when they renew it.
    """
    left, fair = total, 0
    count = len(others) + 1
    for position, want in enumerate(sorted([wanted, *(each.wanted for each in others)])):
        given = min(want, left // (count - position))
        left -= given
        if want <= wanted:
            fair = given
    free = total - sum(each.permits for each in others)
    return max(1, min(fair + left // count, free))


class SharedRateLimits:
    """Keeps the rate limiters of this process in line with the rows in the store; `woken` asks for a sync at once."""

    def __init__(self, rate_limiters: RateLimiters, journal: Journal, store: Store, clock: Clock) -> None:
        self._rate_limiters = rate_limiters
        self._journal = journal
        self._store = store
        self._clock = clock
        self._seen: dict[str, int] = {}
        """The last narrowing that this process knows of each row."""
        self._successes: dict[str, int] = {}
        """The successes of each rate limiter that are reported already."""
        self._leased: set[str] = set()
        self.woken = asyncio.Event()
        rate_limiters.share(self.woken.set)

    async def sync(self) -> None:
        """Report refusals and successes, renew shares, and apply what other processes reported."""
        used = {_name(key): each for key, each in self._rate_limiters.used.items()}
        if not used or self._journal.broken is not None:
            return
        rows = await self._journal.peek(self._store.key_value, SPACE)
        reports: dict[str, Report] = {}
        for name, rate_limiter in used.items():
            is_throttled = rate_limiter.throttling is not None
            if is_throttled or name in self._leased or (name in rows and rate_limiter.wanted):
                reports[name] = self._report(name, rate_limiter)
            elif name in rows or name in self._seen:
                self._apply(name, rate_limiter, _decoded(rows.get(name)))
        if reports:
            await self._send(used, reports)

    def give_back(self) -> tuple[Change, ...]:
        """The write that returns all shares of this process."""
        driver_id, leased = self._journal.driver_id, frozenset(self._leased)
        if not leased or driver_id is None:
            return ()

        def decide(content: Mapping[str, bytes]) -> Decision:
            puts: dict[str, bytes] = {}
            for name in leased:
                row = _decoded(content.get(name))
                if row is not None and driver_id in row.shares:
                    shares = {other: each for other, each in row.shares.items() if other != driver_id}
                    puts[name] = msgspec.json.encode(replace(row, shares=shares))
            return Decision(b"", puts=puts)

        return (Change(space=SPACE, decide=decide),)

    def _report(self, name: str, rate_limiter: RateLimiter) -> Report:
        throttling, rate_limiter.throttling = rate_limiter.throttling, None
        successes = rate_limiter.successes
        before = self._successes.get(name, successes)
        self._successes[name] = successes
        assert self._journal.driver_id is not None
        return Report(
            self._journal.driver_id,
            self._clock.now(),
            rate_limiter.ceiling,
            self._seen.get(name, 0),
            rate_limiter.wanted,
            rate_limiter.peak,
            successes - before,
            throttling,
        )

    async def _send(self, used: Mapping[str, RateLimiter], reports: Mapping[str, Report]) -> None:
        def decide(content: Mapping[str, bytes]) -> Decision:
            rows = {name: synced(_decoded(content.get(name)), report) for name, report in reports.items()}
            puts = {name: msgspec.json.encode(row) for name, row in rows.items() if row is not None}
            drops = tuple(name for name, row in rows.items() if row is None and name in content)
            return Decision(msgspec.json.encode(rows), puts=puts, drops=drops)

        (answer,) = await self._journal.commit(Change(space=SPACE, decide=decide))
        assert isinstance(answer, bytes)
        rows = msgspec.json.decode(answer, type=dict[str, SharedLimit | None])
        for name, row in rows.items():
            self._apply(name, used[name], row)

    def _apply(self, name: str, rate_limiter: RateLimiter, row: SharedLimit | None) -> None:
        self._leased.discard(name)
        if row is None:
            self._seen.pop(name, None)
            rate_limiter.release()
            return
        share = row.shares.get(self._journal.driver_id or "")
        if share is not None:
            self._leased.add(name)
        pause = 0.0
        if self._seen.get(name) != row.narrowings:
            self._seen[name] = row.narrowings
            pause = row.pause_left(self._clock.now())
        permits = int(row.limit) if not row.shares else 1 if share is None else share.permits
        rate_limiter.lease(permits, pause, alone=share is not None and len(row.shares) == 1)


def _name(key: tuple[str, str]) -> str:
    return "/".join(key)


def _decoded(body: bytes | None) -> SharedLimit | None:
    """The row; None if there is none, or one that this version cannot read."""
    if body is None:
        return None
    try:
        return msgspec.json.decode(body, type=SharedLimit)
    except msgspec.MsgspecError:
        return None
