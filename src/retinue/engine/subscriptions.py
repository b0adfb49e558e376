"""Live readers of a run's events: each has a bounded queue, loses deltas first and catches up from the store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from retinue.core.errors import StoreError
from retinue.core.events import Event, RunEnded
from retinue.core.messages import Delta, StartDelta

CatchUp = Callable[[int], Awaitable[list[tuple[int, Event]]]]
"""Reads from the store the events after a sequence number."""


class Reader:
    """The queue of one reader; `seq` is the number of the last event it has read.

    A reader that has lost a delta gets no more deltas of that attempt: what it gets of an attempt is always a prefix.
    """

    __slots__ = ("_capacity", "_error", "_lagging", "_queue", "_ready", "_skips_deltas", "seq")

    def __init__(self, seq: int, capacity: int) -> None:
        self.seq = seq
        self._capacity = capacity
        self._queue: deque[tuple[int, Event | Delta]] = deque()
        self._ready = asyncio.Event()
        self._lagging = False
        self._skips_deltas = False
        self._error: StoreError | None = None

    def offer(self, seq: int, what: Event | Delta) -> None:
        """Queue an event, or a delta (`seq` 0), if there is room."""
        if seq == 0:
            self._skips_deltas = (
                self._lagging
                or len(self._queue) >= self._capacity
                or (self._skips_deltas and not isinstance(what, StartDelta))
            )
            if self._skips_deltas:
                return
        elif len(self._queue) >= self._capacity:
            self._queue = deque(item for item in self._queue if item[0])  # drop the deltas
        if self._lagging or len(self._queue) >= self._capacity:
            self._lagging = True  # full even without deltas: the rest is read from the store
        else:
            self._skips_deltas = False  # deltas after an event belong to a new attempt
            self._queue.append((seq, what))
        self._ready.set()

    def stop(self, error: StoreError) -> None:
        """Nothing more will be offered, although the run has not ended."""
        self._error = error
        self._ready.set()

    def _drop_read(self) -> None:
        """Drop the events that were read from the store, and the deltas before them."""
        known = [place for place, (seq, _) in enumerate(self._queue) if 0 < seq <= self.seq]
        for _ in range(known[-1] + 1 if known else 0):
            self._queue.popleft()

    async def read(self, catch_up: CatchUp) -> AsyncIterator[Event | Delta]:
        """Events and deltas until the run has ended, each event once and in order. Raises the error of `stop`."""
        while True:
            # Cleared before the store is read: what is recorded during that read may be missing from its answer.
            self._lagging = False
            for seq, event in await catch_up(self.seq):
                self.seq = seq
                yield event
                if isinstance(event, RunEnded):
                    return
            self._drop_read()
            while not self._lagging or self._queue:
                while self._queue:
                    seq, what = self._queue.popleft()
                    if seq and seq <= self.seq:
                        continue
                    self.seq = seq or self.seq
                    yield what
                    if isinstance(what, RunEnded):
                        return
                if self._lagging:
                    break
                if self._error is not None:
                    raise self._error
                self._ready.clear()
                await self._ready.wait()


class Subscriptions:
    """The readers of one run; costs nothing while there are none."""

    __slots__ = ("_capacity", "_error", "_readers", "has_readers")

    def __init__(self, capacity: int) -> None:
        self.has_readers = False
        self._capacity = capacity
        self._readers: list[Reader] | None = None
        self._error: StoreError | None = None

    def publish_event(self, seq: int, event: Event) -> None:
        if self._readers:
            for reader in self._readers:
                reader.offer(seq, event)

    def publish_delta(self, delta: Delta) -> None:
        if self._readers:
            for reader in self._readers:
                reader.offer(0, delta)

    def join(self, seq: int) -> Reader:
        """A new reader that has read the events up to `seq`."""
        reader = Reader(seq, self._capacity)
        if self._error is not None:
            reader.stop(self._error)
        self._readers = [*(self._readers or ()), reader]
        self.has_readers = True
        return reader

    def leave(self, reader: Reader) -> None:
        self._readers = [other for other in self._readers or () if other is not reader] or None
        self.has_readers = self._readers is not None

    def stop(self, error: StoreError) -> None:
        """The run is no longer driven here, without having ended: all readers get `error`."""
        self._error = error
        for reader in self._readers or ():
            reader.stop(error)
