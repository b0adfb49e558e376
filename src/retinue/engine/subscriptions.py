"""Live readers of a run: each has a bounded queue, loses deltas first and catches up from the store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from retinue.core.errors import StoreError
from retinue.core.events import Event, RunEnded
from retinue.core.messages import Delta, StartDelta

ROOM = 1024
"""Items a reader may lag behind before deltas are dropped; what the network brings at once is often several hundred."""

CatchUp = Callable[[int], Awaitable[list[tuple[int, Event]]]]


class Reader:
    """One reader's queue; `told` is the number of the last event it has seen.

    A reader that has lost a delta hears no more of that attempt: what it hears of any is always its beginning.
    """

    __slots__ = ("_deaf", "_lagging", "_news", "_over", "_queue", "told")

    def __init__(self, told: int) -> None:
        self.told = told
        self._queue: deque[tuple[int, Event | Delta]] = deque()
        self._news = asyncio.Event()
        self._lagging = False
        self._deaf = False
        self._over: StoreError | None = None

    def offer(self, seq: int, what: Event | Delta) -> None:
        """Show the reader something; deltas have number 0."""
        if seq == 0:
            self._deaf = self._lagging or len(self._queue) >= ROOM or (self._deaf and not isinstance(what, StartDelta))
            if self._deaf:
                return
        elif len(self._queue) >= ROOM:
            self._drop_deltas()
        if self._lagging or len(self._queue) >= ROOM:
            self._lagging = True  # too far behind even without deltas: the store knows the rest
        else:
            self._deaf = False  # whatever streams after an event is new
            self._queue.append((seq, what))
        self._news.set()

    def stop(self, why: StoreError) -> None:
        """Nothing more will be offered, although the run has not ended."""
        self._over = why
        self._news.set()

    def _drop_deltas(self) -> None:
        self._queue = deque(item for item in self._queue if item[0])

    def _skip_what_was_told(self) -> None:
        """Drop the events that the store has told already, and the deltas before them."""
        known = [place for place, (seq, _) in enumerate(self._queue) if 0 < seq <= self.told]
        for _ in range(known[-1] + 1 if known else 0):
            self._queue.popleft()

    async def read(self, catch_up: CatchUp) -> AsyncIterator[Event | Delta]:
        """What happens, until the run has ended; events each once and in order. Raises why there will be no end."""
        while True:
            # Before the store is asked: it may not know what happens while it is, or while its answer is read.
            self._lagging = False
            for seq, event in await catch_up(self.told):
                self.told = seq
                yield event
                if isinstance(event, RunEnded):
                    return
            self._skip_what_was_told()
            while not self._lagging or self._queue:
                while self._queue:
                    seq, what = self._queue.popleft()
                    if seq and seq <= self.told:
                        continue
                    self.told = seq or self.told
                    yield what
                    if isinstance(what, RunEnded):
                        return
                if self._lagging:
                    break
                if self._over is not None:
                    raise self._over
                self._news.clear()
                await self._news.wait()


class Subscriptions:
    """Where a run's driver tells what happens; costs nothing while nobody reads."""

    __slots__ = ("_over", "_readers", "has_readers")

    def __init__(self) -> None:
        self.has_readers = False
        self._readers: list[Reader] | None = None
        self._over: StoreError | None = None

    def tell(self, seq: int, event: Event) -> None:
        """An event was recorded."""
        if self._readers:
            for reader in self._readers:
                reader.offer(seq, event)

    def stream(self, delta: Delta) -> None:
        """A few more characters arrived."""
        if self._readers:
            for reader in self._readers:
                reader.offer(0, delta)

    def join(self, told: int) -> Reader:
        """A new reader that has seen events up to `told`."""
        reader = Reader(told)
        if self._over is not None:
            reader.stop(self._over)
        self._readers = [*(self._readers or ()), reader]
        self.has_readers = True
        return reader

    def leave(self, reader: Reader) -> None:
        """The reader goes."""
        self._readers = [other for other in self._readers or () if other is not reader] or None
        self.has_readers = self._readers is not None

    def stop(self, why: StoreError) -> None:
        """The run is no longer driven here, without having ended."""
        self._over = why
        for reader in self._readers or ():
            reader.stop(why)
