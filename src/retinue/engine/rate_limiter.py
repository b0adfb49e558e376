"""Concurrent attempts per provider and model: unlimited at first, narrowed when the provider throttles.

A permit covers one attempt and is held only while that attempt waits for its reply. Waiting attempts take turns between
trees; within a tree the deepest run goes first, because other runs wait for it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import TypeAlias, cast

from msgspec import Struct

from retinue.core.ids import RunId
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

    If other processes use the same store, `shared_rate_limits` leases the permits once the provider has throttled.
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
