"""Concurrent attempts per provider and model: unlimited at first, narrowed when the provider throttles.

A permit covers one attempt and is held only while that attempt waits for its reply. Waiting attempts take turns between
trees; within a tree the deepest run goes first, because other runs wait for it.

Processes on one store share the limit of a provider and model that throttled, in a row of the store. The process that
is throttled writes it; the others find it within `SYNC_SECONDS`, pause as long, and add half of what they had in
flight, so that the sum is halved. From then on each process leases a share of the permits, renews it while it has
attempts, and gives it back when it has none. Successful attempts widen the common limit as they widen that of a single
process. A process without a share has one permit, so that none waits for ever: the sum exceeds the limit only if there
are more processes than permits.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Final, TypeAlias, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.commands import Change, Decision
from retinue.core.ids import DriverId, RunId
from retinue.core.ports import Clock, Store
from retinue.engine.journal_writer import Journal
from retinue.engine.timeouts import RESOLUTION

_Waiting: TypeAlias = tuple[int, int, "asyncio.Future[None]"]


class SharedCapacity:
    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.blocked: deque[RateLimiter] = deque()
        """Rate limiters that wait for capacity."""

    @property
    def is_full(self) -> bool:
        return self.used >= self.size

    def block(self, rate_limiter: RateLimiter) -> None:
        """Queue a rate limiter until there is capacity; rate limiters take turns."""
        if rate_limiter not in self.blocked:
            self.blocked.append(rate_limiter)

    def offer(self) -> None:
        """There is capacity again: admit attempts of the rate limiters that wait longest."""
        for _ in range(len(self.blocked)):
            if self.is_full:
                return
            self.blocked.popleft().admit()


class Throttling(Struct, frozen=True, gc=False):
    """A refusal that other processes have to know: the most attempts that were in flight, and the pause in seconds."""

    peak: int
    pause: float


class RateLimiter:
    """The permits of one provider and model in this process.

    If other processes use the same store, `SharedRateLimits` leases the permits once the provider has throttled.
    """

    def __init__(self, ceiling: int, capacity: SharedCapacity | None = None) -> None:
        self.ceiling = ceiling
        self._capacity = capacity if capacity is not None else SharedCapacity(ceiling)
        self._limit: float = ceiling
        self._active = 0
        self._peak = 0
        """Most attempts in flight since the limit was last narrowed; the number at a refusal may be small."""
        self.successes = 0
        """How many attempts were not throttled."""
        self._not_before = 0.0
        self._trees: deque[RunId] = deque()
        self._queues: dict[RunId, list[_Waiting]] = {}
        self._arrivals = 0
        self._alarm: asyncio.TimerHandle | None = None
        self.wake: Callable[[], None] | None = None
        """Asks for a sync with other processes; None if there can be none."""
        self.throttling: Throttling | None = None
        """The refusal that other processes do not know yet."""
        self._is_leased = self._is_alone = False

    @property
    def limit(self) -> int:
        return max(1, int(self._limit))

    @property
    def active(self) -> int:
        return self._active

    @property
    def waiting(self) -> int:
        return sum(not turn.cancelled() for queue in self._queues.values() for _, _, turn in queue)

    @property
    def wanted(self) -> int:
        """How many permits could be used now."""
        return self._active + self.waiting

    @property
    def peak(self) -> int:
        return self._peak

    def permit(self, *, tree: RunId, depth: int) -> Permit:
        """Permission for one attempt, for the length of an `async with` block."""
        return Permit(self, tree, depth)

    async def enter(self, tree: RunId, depth: int) -> None:
        """Take a permit, after waiting for it if necessary; `leave` gives it back."""
        if not self.try_enter():
            await self._queue(tree, depth)
            while self._is_pausing():  # another attempt was throttled between the grant and this moment
                self.leave()
                await self._queue(tree, depth)

    def try_enter(self) -> bool:
        """Take a permit if one is free and no other attempt waits; whether it was taken."""
        if self._trees or not self._has_room():
            return False
        self._take()
        return True

    def throttled(self, pause: float) -> None:
        """The provider throttled an attempt: halve the limit, and start nothing before the pause is over."""
        now = asyncio.get_running_loop().time()
        # Attempts that were in flight together are throttled together: halving for each of them would leave one.
        peak = self._peak
        if now >= self._not_before:
            self._limit = max(1.0, min(self._limit, self._peak) / 2)
            self._peak = self._active
        self._not_before = max(self._not_before, now + pause)
        if self.wake is not None:
            if self.throttling is not None:
                peak, pause = max(peak, self.throttling.peak), max(pause, self.throttling.pause)
            self.throttling = Throttling(peak, pause)
            self.wake()

    def succeeded(self) -> None:
        """An attempt was not throttled: widen the limit, by about one permit for each round of replies."""
        self.successes += 1
        if self._limit < self.ceiling and (not self._is_leased or self._is_alone):
            self._limit = min(self.ceiling, self._limit + 1 / self._limit)

    def lease(self, permits: int, pause: float, *, alone: bool) -> None:
        """Use so many permits from now on, and start nothing before the pause is over; `alone` has no other process.

        What succeeds widens the limit at once only then; else the common limit is widened, and divided.
        """
        self._is_leased, self._is_alone = True, alone
        if pause > 0:
            self._not_before = max(self._not_before, asyncio.get_running_loop().time() + pause)
            self._peak = self._active
        self._limit = float(min(permits, self.ceiling))
        self.admit()

    def release(self) -> None:
        """Use permits without a lease again: the provider has not throttled for long."""
        if self._is_leased:
            self._is_leased = self._is_alone = False
            self._limit = self.ceiling
            self.admit()

    def _has_room(self) -> bool:
        if self._not_before and self._is_pausing():
            return False
        return self._active + 1 <= self._limit and not self._capacity.is_full

    def _take(self) -> None:
        self._active += 1
        if self._active > self._peak:
            self._peak = self._active
        self._capacity.used += 1

    def leave(self) -> None:
        self._active -= 1
        self._capacity.used -= 1
        if self._capacity.blocked:
            self._capacity.offer()
        if self._trees:
            self.admit()

    def _is_pausing(self) -> bool:
        return asyncio.get_running_loop().time() + RESOLUTION < self._not_before

    async def _queue(self, tree: RunId, depth: int) -> None:
        self._arrivals += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if tree not in self._queues:
            self._queues[tree] = []
            self._trees.append(tree)
        heapq.heappush(self._queues[tree], (-depth, self._arrivals, turn))
        self.admit()
        if self._is_leased and self.wake is not None and not turn.done():
            self.wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The permit was granted at the moment of the cancellation.
                self.leave()
            raise

    def admit(self) -> None:
        """Grant permits to waiting attempts while there is room."""
        while self._trees and self._has_room():
            tree = self._trees[0]
            self._trees.rotate(-1)
            queue = self._queues[tree]
            _, _, turn = heapq.heappop(queue)
            if not queue:
                del self._queues[tree]
                self._trees.remove(tree)
            if not turn.cancelled():
                self._take()
                turn.set_result(None)
        if self._trees and self._capacity.is_full:
            self._capacity.block(self)
        if self._trees and self._alarm is None:
            loop = asyncio.get_running_loop()
            if self._is_pausing():
                self._alarm = loop.call_at(self._not_before, self._wake)

    def _wake(self) -> None:
        self._alarm = None
        self.admit()


class Permit:
    __slots__ = ("_depth", "_rate_limiter", "_tree")

    def __init__(self, rate_limiter: RateLimiter, tree: RunId, depth: int) -> None:
        self._rate_limiter = rate_limiter
        self._tree = tree
        self._depth = depth

    def __aenter__(self) -> Awaitable[None]:
        return _DONE if self._rate_limiter.try_enter() else self._rate_limiter.enter(self._tree, self._depth)

    def __aexit__(self, *_: object) -> Awaitable[None]:
        self._rate_limiter.leave()
        return _DONE


class _Done:
    """An awaitable that is already done; shared, because a coroutine would have to be created for each await."""

    def __await__(self) -> Generator[None, None, None]:
        return cast("Generator[None, None, None]", iter(()))  # nothing is ever sent to an empty iterator


_DONE = _Done()


class RateLimiters:
    """All rate limiters of a process; together they stay under its limit on open files."""

    def __init__(self, ceiling: int | None = None) -> None:
        self._capacity = SharedCapacity(ceiling or max_connections())
        self._rate_limiters: dict[tuple[str, str], RateLimiter] = {}
        self._wake: Callable[[], None] | None = None

    @property
    def used(self) -> dict[tuple[str, str], RateLimiter]:
        """The rate limiters by provider and model."""
        return self._rate_limiters

    def share(self, wake: Callable[[], None]) -> None:
        """Report refusals to other processes: `wake` asks for a sync with them."""
        self._wake = wake
        for rate_limiter in self._rate_limiters.values():
            rate_limiter.wake = wake

    def at(self, provider: str, model: str) -> RateLimiter:
        rate_limiter = self._rate_limiters.get((provider, model))
        if rate_limiter is None:
            rate_limiter = self._rate_limiters[provider, model] = RateLimiter(self._capacity.size, self._capacity)
            rate_limiter.wake = self._wake
        return rate_limiter


def max_connections() -> int:
    """How many connections this process may have open, with some files left for everything else."""
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows has no such limit
        return 4096
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, (soft if soft != resource.RLIM_INFINITY else 65536) - 64)


# ---- rate limits that processes share --------------------------------------------------------------------------------


SPACE: Final = "rate-limits"
"""The key-value namespace; the name of a row is that of the provider and the model."""

SYNC_SECONDS: Final = 0.5
"""Seconds between two looks at the rows; a process that was throttled writes at once."""

SHARE_SECONDS: Final = 15.0
"""Seconds after which a share that was not renewed is free again: its process has died."""

FORGET_SECONDS: Final = 600.0
"""Seconds after the last narrowing from which on a limit that is not used up is removed."""


class LimiterShare(Struct, frozen=True, gc=False):
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
    shares: dict[DriverId, LimiterShare] = {}

    def pause_left(self, now: float) -> float:
        """Seconds until attempts may start; at most the whole pause, because the clocks of machines differ."""
        return max(0.0, min(self.pause, self.narrowed_at + self.pause - now))


class LimiterReport(Struct, frozen=True, gc=False):
    """What a process tells about its rate limiter: the last narrowing that it knows, its use, and its refusals."""

    driver_id: DriverId
    at: float
    ceiling: int
    seen: int = 0
    wanted: int = 0
    peak: int = 0
    successes: int = 0
    throttling: Throttling | None = None


def synced(row: SharedLimit | None, report: LimiterReport) -> SharedLimit | None:
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
        shares[report.driver_id] = LimiterShare(permits, report.wanted, report.peak, report.at)
    return replace(row, shares=shares)


def _reported(row: SharedLimit, report: LimiterReport) -> SharedLimit:
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


def _share_of(total: int, wanted: int, others: list[LimiterShare]) -> int:
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
        reports: dict[str, LimiterReport] = {}
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

    def _report(self, name: str, rate_limiter: RateLimiter) -> LimiterReport:
        throttling, rate_limiter.throttling = rate_limiter.throttling, None
        successes = rate_limiter.successes
        before = self._successes.get(name, successes)
        self._successes[name] = successes
        assert self._journal.driver_id is not None
        return LimiterReport(
            self._journal.driver_id,
            self._clock.now(),
            rate_limiter.ceiling,
            self._seen.get(name, 0),
            rate_limiter.wanted,
            rate_limiter.peak,
            successes - before,
            throttling,
        )

    async def _send(self, used: Mapping[str, RateLimiter], reports: Mapping[str, LimiterReport]) -> None:
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
