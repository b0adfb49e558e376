"""One ordered queue of writes and one writer per process, with group commit.

Order keeps causes before effects, so a run goes on while its writes are queued; it waits for a commit only before an
effect outside the process. Writes that are queued during a commit share the next one. When the store refuses a commit,
the journal is broken: it accepts nothing until `reopen` succeeds, because what was queued after the refusal is lost.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from sys import getsizeof
from time import perf_counter
from typing import ParamSpec, TypeVar

from retinue.core.commands import Accept, Post, Record, Write, WriteResult
from retinue.core.errors import Fenced, StoreError, StoreUnavailable
from retinue.core.events import CallReturned, HistoryCompacted, ReplyReceived
from retinue.core.ids import DriverId
from retinue.core.ports import CommitAtOnce, Store
from retinue.engine.timeouts import RESOLUTION, KnownLoop

P = ParamSpec("P")
T = TypeVar("T")

COMMIT_DELAY = 0.01
"""Seconds that a write stays in memory to share a commit with others, while no caller waits for it."""

MAX_INLINE_WRITES = 1000
"""Writes that are committed on the event loop, if the store can do so at once: some milliseconds at most."""

MAX_INLINE_BYTES = 1024 * 1024
"""Bytes of texts that are committed on the event loop, for the same reason."""

MAX_QUEUED_BYTES = 32 * 1024 * 1024
"""Bytes of texts in the queue, those being committed included, from which runs wait before they record more."""

BASE_SIZE = 512
"""Bytes that a write is counted with besides its texts."""


def size_of(write: Write) -> int:
    """About how many bytes a write keeps in memory until it is committed.

    Only texts that models, tools and callers determine are measured. The outcome of a run has its last reply's text.
    """
    if type(write) is Record:
        event = write.events[0] if write.events else None
        if type(event) is CallReturned:
            size = BASE_SIZE + getsizeof(event.text)
            return size + sum(len(each.data) for each in event.attachments) if event.attachments else size
        if type(event) is ReplyReceived:
            message = event.reply.message
            size = BASE_SIZE + getsizeof(message.text)
            for call in message.calls:
                size += getsizeof(call.arguments)
            for thought in message.thinking:
                size += getsizeof(thought.text)
            return size
        if type(event) is HistoryCompacted:
            return BASE_SIZE + sum(getsizeof(message.text) for message in event.messages)
    elif type(write) is Accept:
        return BASE_SIZE + getsizeof(write.accepted.task)
    elif type(write) is Post:
        return BASE_SIZE + getsizeof(getattr(write.item, "text", ""))
    return BASE_SIZE


class CommitFuture:
    """The pending answer to some writes; waiting for it is optional and makes the journal commit sooner."""

    __slots__ = ("_answers", "_error", "_journal", "_waiting", "size")

    def __init__(self, journal: Journal, size: int = 0) -> None:
        self._journal = journal
        self.size = size
        """About how many bytes its writes keep in memory."""
        self._answers: list[WriteResult] | None = None
        self._error: Exception | None = None
        self._waiting: list[asyncio.Future[None]] | None = None
        """One future per waiter: the cancellation of one must not end the wait of another."""

    @property
    def is_done(self) -> bool:
        return self._answers is not None or self._error is not None

    @property
    def is_committed(self) -> bool:
        return self._answers is not None

    @property
    def answers(self) -> list[WriteResult]:
        """The answers of the store, once they are there; raises the error with which the store refused."""
        if self._error is not None:
            raise self._error
        return self._answers or []

    async def wait(self) -> list[WriteResult]:
        """The answers of the store; raises the error with which the store refused."""
        await self.wait_done()
        return self.answers

    async def wait_done(self) -> None:
        if not self.is_done:
            self._journal.commit_soon()
            if self._answers is not None:
                return
            waiter: asyncio.Future[None] = self._journal.new_future()
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(waiter)
            await waiter

    def _resolve(self, answers: list[WriteResult] | None, error: Exception | None) -> None:
        self._answers, self._error = answers, error
        if self._waiting is not None:
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiting = None


class CommitTimes:
    """How long commits took, for metrics: their number up to each of `BOUNDS`, and the sum of their seconds."""

    BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.BOUNDS, seconds)] += 1
        self.seconds += seconds


class Journal:
    """The only way to the store's commits. `broken` is the error that closed it; `awaited` counts waits for a commit.

    `on_broken` is called with the error when the store refuses. `queued_bytes` is the size of what is queued and not
    committed; while the queue `is_full`, those that would record more wait for `room`. Only they do: ends, cancels and
    heartbeats are small, and a full queue never keeps a run from being stopped.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_broken: Callable[[StoreError], None] | None = None,
        durable: bool = False,
        commit_delay: float = COMMIT_DELAY,
    ) -> None:
        self.driver_id: DriverId | None = None
        self.broken: StoreError | None = None
        self.awaited = 0
        self.commits = 0
        self.commit_times = CommitTimes()
        self._store = store
        self._commit_at_once: CommitAtOnce | None = getattr(store, "commit_at_once", None)
        self._durable = durable
        self._commit_delay = commit_delay
        self.on_broken = on_broken
        self._queue: list[tuple[tuple[Write, ...], CommitFuture]] = []
        self._writer = ThreadPoolExecutor(1, "retinue-writer") if store.blocking else None
        self._reader = ThreadPoolExecutor(1, "retinue-reader") if store.blocking else None
        self._loop = KnownLoop()
        self._next: asyncio.Handle | None = None
        """The commit in the next iteration of the loop, if one is planned."""
        self._timer: asyncio.TimerHandle | None = None
        """Fires when a write has waited for the delay. It is left as it is when the write is committed before, because
        most are, and setting another one for each would cost more than looking again."""
        self._queued_at = 0.0
        """When the oldest write of the queue was queued."""
        self._committing: asyncio.Future[list[WriteResult]] | None = None
        self._began_at = 0.0
        """When the current commit began."""
        self._callers = 0
        """How many callers wait for the next commit."""
        self._is_shared = False
        """Whether several callers waited for the last commit that was made for a caller."""
        self._was_hurried = False
        """Whether a commit was made in this iteration of the loop, before other callers could begin to wait."""
        self._singly = 0
        """How many of the queued groups are committed one by one, because their common commit failed."""
        self._latest: CommitFuture | None = None
        self._closed = False
        self.queued_bytes = 0
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()

    @property
    def is_full(self) -> bool:
        return self.queued_bytes >= MAX_QUEUED_BYTES

    async def room(self) -> None:
        """Wait while the queue is full; the longest waiter goes first. Returns at once if the journal is broken.

        A write larger than the bound is queued like any other once there is room, so the queue exceeds the bound by
        one write at most for each caller that does not wait.
        """
        loop = asyncio.get_running_loop()
        is_first_time = True
        while self.is_full and self.broken is None:
            waiter: asyncio.Future[None] = loop.create_future()
            if is_first_time:
                self._waiting_for_room.append(waiter)
            else:
                self._waiting_for_room.appendleft(waiter)
            is_first_time = False
            self.commit_soon()
            try:
                await waiter
            finally:
                # One at a time: the next one goes on after this one has recorded, or was cancelled.
                loop.call_soon(self._wake_for_room)

    def _wake_for_room(self) -> None:
        while self._waiting_for_room and (not self.is_full or self.broken is not None):
            waiter = self._waiting_for_room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def new_future(self) -> asyncio.Future[None]:
        return self._loop.loop.create_future()

    def write(self, *writes: Write) -> CommitFuture:
        """Queue writes that belong together; they are committed in the order of these calls."""
        if self.broken is not None:
            commit_future = CommitFuture(self)
            commit_future._resolve(None, self.broken)  # pyright: ignore[reportPrivateUsage] the journal's own class
        elif self._writer is None:
            commit_future = CommitFuture(self)
            self._commit_directly(writes, commit_future)
        else:
            size = size_of(writes[0]) if len(writes) == 1 else sum(map(size_of, writes))
            commit_future = CommitFuture(self, size)
            self.queued_bytes += size
            if not self._queue:
                self._queued_at = self._loop.time()
            self._queue.append((writes, commit_future))
            self._latest = commit_future
            if self._timer is None:
                self._timer = self._loop.loop.call_later(self._commit_delay, self._check_delay)
        return commit_future

    async def commit(self, *writes: Write) -> list[WriteResult]:
        return await self.write(*writes).wait()

    def commit_soon(self) -> None:
        """Commit the queue as soon as the writer is free: a caller waits for it.

        One iteration of the loop later, so that callers that are about to wait share the commit. While each caller is
        alone, as in a single run, the first one of an iteration need not wait for others: two iterations less a commit.
        """
        self.awaited += 1
        self._callers += 1
        if self._committing is not None or self._next is not None:
            return
        if self._is_shared or self._was_hurried or self._commit_at_once is None:
            self._next = self._loop.loop.call_soon(self._flush)
        else:
            self._was_hurried = True
            self._loop.loop.call_soon(self._end_iteration)
            self._flush()

    async def flush(self) -> None:
        """Wait until everything queued so far is on disk; raises the error with which the store refused."""
        if self._latest is not None and not self._latest.is_done:
            await self._latest.wait_done()
        if self.broken is not None:
            raise self.broken

    async def read(self, query: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Query the store without blocking the loop; the answer includes everything that was queued before."""
        if self._reader is not None and self.broken is None:
            await self.flush()
        return await self.peek(query, *args, **kwargs)

    async def peek(self, query: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Query the store for what other processes wrote; does not wait for what is queued here."""
        if self._reader is None:
            return query(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, lambda: query(*args, **kwargs))

    async def reopen(self, probe: Write) -> bool:
        """Try one write after a refusal; whether the journal accepts writes again."""
        if self.broken is None or isinstance(self.broken, Fenced):
            return self.broken is None
        try:
            if self._writer is None:
                self._store.commit(self.driver_id, (probe,))
            else:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._writer, self._store_commit, [probe])
        except StoreError as error:
            self.broken = error
            return False
        self.broken = None
        return True

    async def close(self) -> None:
        """Commit what is queued and stop the threads; a refusal is raised after they have stopped. Closes once."""
        if self._closed:
            return
        try:
            if self.broken is None:
                await self.flush()
        finally:
            for handle in (self._next, self._timer):
                if handle is not None:
                    handle.cancel()
            for executor in (self._writer, self._reader):
                if executor is not None:
                    await asyncio.get_running_loop().run_in_executor(None, executor.shutdown)
            self.broken = self.broken or StoreUnavailable("this retinue was closed")
            self._closed = True

    def _end_iteration(self) -> None:
        self._was_hurried = False

    def _check_delay(self) -> None:
        self._timer = None
        if not self._queue or self._committing is not None or self._next is not None:
            return  # what is at work commits the queue, or sets the timer again
        left = self._queued_at + self._commit_delay - self._loop.time()
        if left > RESOLUTION:
            self._timer = self._loop.loop.call_later(left, self._check_delay)
        else:
            self._flush()

    def _flush(self) -> None:
        self._next = None
        if self._queue and self._committing is None:
            self._commit_queue()
        else:
            self._callers = 0

    def _commit_queue(self) -> None:
        size = 1 if self._singly else len(self._queue)
        batch, self._queue = self._queue[:size], self._queue[size:]
        self._singly = max(0, self._singly - 1)
        if self._callers:
            self._is_shared = self._callers > 1
            if not self._queue:
                self._callers = 0
        writes = [write for group, _ in batch for write in group]
        self._began_at = perf_counter()
        is_small = len(writes) <= MAX_INLINE_WRITES and sum(future.size for _, future in batch) <= MAX_INLINE_BYTES
        if is_small and self._commit_inline(batch, writes):
            return
        if self._committing is None:
            self._committing = self._loop.loop.run_in_executor(self._writer, self._store_commit, writes)
        self._committing.add_done_callback(partial(self._committed, batch))

    def _commit_inline(self, batch: list[tuple[tuple[Write, ...], CommitFuture]], writes: list[Write]) -> bool:
        """Commit on the loop, if the store can do so at once: switching to a thread and back takes longer.

        Whether the batch was committed and answered. A refusal is kept as the result of the commit, to be answered in
        the next iteration of the loop: it stops tasks, perhaps the one that waits.
        """
        if self._commit_at_once is None:
            return False
        try:
            answers = self._commit_at_once(self.driver_id, writes, durable=self._durable)
        except Exception as error:
            self._committing = self._loop.loop.create_future()
            self._committing.set_exception(error)
            return False
        if answers is None:
            return False
        self._succeeded(batch, answers)
        self._go_on()
        return True

    def _succeeded(self, batch: list[tuple[tuple[Write, ...], CommitFuture]], answers: list[WriteResult]) -> None:
        self.commits += 1
        self.commit_times.add(perf_counter() - self._began_at)
        self._answer(batch, answers, None)

    def _committed(
        self, batch: list[tuple[tuple[Write, ...], CommitFuture]], commit: asyncio.Future[list[WriteResult]]
    ) -> None:
        self._committing = None
        if commit.cancelled():
            return  # the loop is being closed, and no task waits any more
        match commit.exception():
            case None:
                self._succeeded(batch, commit.result())
            case StoreError() as refusal:
                self._answer(batch, [], refusal)
            case Exception() as bug:
                self._isolate(batch, bug)
            case worse:
                raise worse
        self._go_on()

    def _go_on(self) -> None:
        """Plan the commit of what was queued meanwhile."""
        if not self._queue:
            self._callers = 0  # every write for which a caller waits has been answered
        elif self._callers or self._singly:
            self._next = self._next or self._loop.loop.call_soon(self._flush)
        elif self._timer is None:
            self._timer = self._loop.loop.call_later(self._commit_delay, self._check_delay)

    def _isolate(self, batch: list[tuple[tuple[Write, ...], CommitFuture]], bug: Exception) -> None:
        """A write raised, such as a key-value decision: commit the groups one by one, so that only its own fails."""
        if len(batch) == 1:
            ((_, commit_future),) = batch
            self._resolve(commit_future, None, bug)
        else:
            self._queue = [*batch, *self._queue]
            self._singly = len(batch)

    def _store_commit(self, writes: list[Write]) -> list[WriteResult]:
        # `durable` for all writes, not only for awaited ones: a caller may wait for one of them a moment later.
        return self._store.commit(self.driver_id, writes, durable=self._durable)

    def _commit_directly(self, writes: tuple[Write, ...], commit_future: CommitFuture) -> None:
        try:
            answers = self._store.commit(self.driver_id, writes, durable=self._durable)
            self.commits += 1
        except StoreError as refusal:
            self._answer([(writes, commit_future)], [], refusal)
        else:
            commit_future._resolve(answers, None)  # pyright: ignore[reportPrivateUsage]

    def _answer(
        self, batch: list[tuple[tuple[Write, ...], CommitFuture]], answers: list[WriteResult], error: StoreError | None
    ) -> None:
        start = 0
        if error is not None:
            # What was queued behind the refused writes depends on them: it must not reach the disk without them.
            batch = [*batch, *self._queue]
            self._queue = []
        for group, commit_future in batch:
            end = start + len(group)
            self.queued_bytes -= commit_future.size
            commit_future._resolve(None if error else answers[start:end], error)  # pyright: ignore[reportPrivateUsage]
            start = end
        if self._waiting_for_room:
            self._wake_for_room()
        if error is not None:
            self.broken = error
            if self.on_broken is not None:
                self.on_broken(error)
            self._wake_for_room()

    def _resolve(self, commit_future: CommitFuture, answers: list[WriteResult] | None, error: Exception | None) -> None:
        self.queued_bytes -= commit_future.size
        commit_future._resolve(answers, error)  # pyright: ignore[reportPrivateUsage]
