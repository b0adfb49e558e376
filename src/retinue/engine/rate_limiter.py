"""How many attempts may be under way at one provider and model: open at first, narrowed by what the provider says.

A permit covers one attempt and is never held while waiting for anything but that reply. Those who wait take turns
between trees; within a tree the deepest goes first, because others wait for it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Generator
from types import TracebackType
from typing import TypeAlias, cast

from retinue.core.ids import RunId
from retinue.engine.timeouts import RESOLUTION

_Waiting: TypeAlias = tuple[int, int, "asyncio.Future[None]"]


class Room:
    """What all gates of a process share: so many attempts may be under way, wherever they go."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0
        self.keeps_out: deque[RateLimiter] = deque()
        """Gates that wait for others."""

    @property
    def is_full(self) -> bool:
        """Whether nobody else may go."""
        return self.taken >= self.size

    def keep_out(self, rate_limiter: RateLimiter) -> None:
        """That gate has to wait for others; gates take turns."""
        if rate_limiter not in self.keeps_out:
            self.keeps_out.append(rate_limiter)

    def offer(self) -> None:
        """There is room again: let in whoever waits longest."""
        for _ in range(len(self.keeps_out)):
            if self.is_full:
                return
            self.keeps_out.popleft().admit()


class RateLimiter:
    """The permits of one provider and model in this process."""

    def __init__(self, ceiling: int, room: Room | None = None) -> None:
        self._ceiling = ceiling
        self._room = room if room is not None else Room(ceiling)
        self._limit: float = ceiling
        self._active = 0
        self._peak = 0
        """How many were under way at most since it was last narrowed: the few who are when it is refused say less."""
        self.passed = 0
        """How many attempts went through."""
        self._not_before = 0.0
        self._trees: deque[RunId] = deque()
        self._queues: dict[RunId, list[_Waiting]] = {}
        self._arrivals = 0
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def limit(self) -> int:
        """How many attempts may be under way now."""
        return max(1, int(self._limit))

    @property
    def active(self) -> int:
        """How many are."""
        return self._active

    @property
    def waiting(self) -> int:
        """How many would like to be."""
        return sum(not turn.cancelled() for queue in self._queues.values() for _, _, turn in queue)

    def permit(self, *, tree: RunId, depth: int) -> Permit:
        """Leave to make one attempt, for as long as the `async with` block lasts."""
        return Permit(self, tree, depth)

    async def enter(self, tree: RunId, depth: int) -> None:
        """Take a permit, after waiting for it if need be; `leave` gives it back."""
        if not self.entered_at_once():
            await self._queue(tree, depth)
            while self._pausing():  # somebody was refused between the permit and this moment
                self.leave()
                await self._queue(tree, depth)

    def entered_at_once(self) -> bool:
        """Take a permit if nobody has to be waited for; whether that was so."""
        if self._trees or not self._has_room():
            return False
        self._take()
        return True

    def throttled(self, pause: float) -> None:
        """The provider asked for less: allow half of what was under way, and nothing before the pause is over."""
        now = asyncio.get_running_loop().time()
        # Whoever was under way together is refused together: halving for each of them would leave one.
        if now >= self._not_before:
            self._limit = max(1.0, min(self._limit, self._peak) / 2)
            self._peak = self._active
        self._not_before = max(self._not_before, now + pause)

    def eased(self) -> None:
        """An attempt went through: widen a little, about one permit for each round of replies."""
        self.passed += 1
        if self._limit < self._ceiling:
            self._limit = min(self._ceiling, self._limit + 1 / self._limit)

    def _has_room(self) -> bool:
        if self._not_before and self._pausing():
            return False
        return self._active + 1 <= self._limit and not self._room.is_full

    def _take(self) -> None:
        self._active += 1
        if self._active > self._peak:
            self._peak = self._active
        self._room.taken += 1

    def leave(self) -> None:
        """Give a permit back."""
        self._active -= 1
        self._room.taken -= 1
        if self._room.keeps_out:
            self._room.offer()
        if self._trees:
            self.admit()

    def _pausing(self) -> bool:
        return asyncio.get_running_loop().time() + RESOLUTION < self._not_before

    async def _queue(self, tree: RunId, depth: int) -> None:
        self._arrivals += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if tree not in self._queues:
            self._queues[tree] = []
            self._trees.append(tree)
        heapq.heappush(self._queues[tree], (-depth, self._arrivals, turn))
        self.admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The permit was given in the moment of giving up.
                self.leave()
            raise

    def admit(self) -> None:
        """Let in whoever is next, as long as there is room."""
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
        if self._trees and self._room.is_full:
            self._room.keep_out(self)
        if self._trees and self._alarm is None:
            loop = asyncio.get_running_loop()
            if self._pausing():
                self._alarm = loop.call_at(self._not_before, self._wake)

    def _wake(self) -> None:
        self._alarm = None
        self.admit()


class Permit:
    """Leave to make one attempt."""

    __slots__ = ("_depth", "_gate", "_tree")

    def __init__(self, rate_limiter: RateLimiter, tree: RunId, depth: int) -> None:
        self._gate = rate_limiter
        self._tree = tree
        self._depth = depth

    def __aenter__(self) -> Awaitable[None]:
        return AT_ONCE if self._gate.entered_at_once() else self._gate.enter(self._tree, self._depth)

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Awaitable[None]:
        self._gate.leave()
        return AT_ONCE


class _AtOnce:
    """What has happened by the time somebody waits for it; a coroutine would have to be made for each who does."""

    def __await__(self) -> Generator[None, None, None]:
        return cast("Generator[None, None, None]", iter(()))  # nobody sends anything to what yields nothing


AT_ONCE = _AtOnce()


class RateLimiters:
    """All gates of a process; together they stay under its open-file limit."""

    def __init__(self, ceiling: int | None = None) -> None:
        self._room = Room(ceiling or open_file_room())
        self._gates: dict[tuple[str, str], RateLimiter] = {}

    def at(self, provider: str, model: str) -> RateLimiter:
        """The gate of a provider's model."""
        rate_limiter = self._gates.get((provider, model))
        if rate_limiter is None:
            rate_limiter = self._gates[provider, model] = RateLimiter(self._room.size, self._room)
        return rate_limiter


def open_file_room() -> int:
    """How many connections this process may have open, with some files left for everything else."""
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows has no such limit
        return 4096
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, (soft if soft != resource.RLIM_INFINITY else 65536) - 64)
