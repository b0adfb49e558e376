"""One ordered queue of writes and one writer per process, with group commit.

Order keeps causes before effects, so a run goes on while its writes travel; it waits for a commit only before the world
can notice. Whatever is queued while a commit is under way goes together into the next one. When the store refuses, the
journal is broken: nothing more is accepted until it is mended, because what was queued after the refusal is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from retinue.core.commands import Write, WriteResult
from retinue.core.errors import Fenced, StoreError, StoreUnavailable
from retinue.core.ids import DriverId
from retinue.core.ports import CommitsAtOnce, Store

P = ParamSpec("P")
T = TypeVar("T")

LINGER = 0.01
"""Seconds a write that nobody waits for may stay in memory to share a commit with others."""


FEW = 200
"""Writes that are committed on the loop, where the store can do so at once: some milliseconds at most."""


class CommitFuture:
    """A promise that some writes are on disk; waiting for it is optional and costs a commit."""

    __slots__ = ("_answers", "_error", "_journal", "_waiting")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._answers: list[WriteResult] | None = None
        self._error: Exception | None = None
        self._waiting: list[asyncio.Future[None]] | None = None
        """Whoever waits, each on their own: one who gives up must not end the wait of others."""

    @property
    def settled(self) -> bool:
        """Whether the store has answered."""
        return self._answers is not None or self._error is not None

    async def wait(self) -> list[WriteResult]:
        """What the store answered; raises what it refused with."""
        await self.answered()
        if self._error is not None:
            raise self._error
        return self._answers or []

    async def answered(self) -> None:
        """Wait until the store has answered, whatever it says."""
        if not self.settled:
            self._journal.hurry()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(waiter)
            await waiter

    def _settle(self, answers: list[WriteResult] | None, error: Exception | None) -> None:
        self._answers, self._error = answers, error
        for waiter in self._waiting or ():
            if not waiter.done():
                waiter.set_result(None)
        self._waiting = None


class Journal:
    """The only way to the store's commits; `broken` says why it is closed, `awaited` how often somebody waited."""

    def __init__(
        self, store: Store, *, on_broken: Callable[[StoreError], None] | None = None, durable: bool = False
    ) -> None:
        self.driver_id: DriverId | None = None
        self.broken: StoreError | None = None
        self.awaited = 0
        self.commits = 0
        self._store = store
        self._prompt = store if isinstance(store, CommitsAtOnce) else None
        self._durable = durable
        self.on_broken = on_broken
        self._queue: list[tuple[tuple[Write, ...], CommitFuture]] = []
        self._writer = ThreadPoolExecutor(1, "retinue-writer") if store.blocking else None
        self._reader = ThreadPoolExecutor(1, "retinue-reader") if store.blocking else None
        self._timer: asyncio.Handle | None = None
        self._committing: asyncio.Future[list[WriteResult]] | None = None
        self._hurried = False
        self._alone = 0
        """How many of the queued groups are committed one by one, because one of them failed their common commit."""
        self._latest: CommitFuture | None = None

    def write(self, *writes: Write) -> CommitFuture:
        """Queue writes that belong together; they are committed in the order of these calls."""
        commit_future = CommitFuture(self)
        if self.broken is not None:
            commit_future._settle(None, self.broken)  # pyright: ignore[reportPrivateUsage] tickets are the journal's own
        elif self._writer is None:
            self._commit_here(writes, commit_future)
        else:
            self._queue.append((writes, commit_future))
            self._latest = commit_future
            if self._timer is None and self._committing is None:
                self._timer = asyncio.get_running_loop().call_later(LINGER, self._flush)
        return commit_future

    async def commit(self, *writes: Write) -> list[WriteResult]:
        """Queue writes and wait for their answers."""
        return await self.write(*writes).wait()

    def hurry(self) -> None:
        """Somebody waits: commit as soon as the writer is free."""
        self.awaited += 1
        if self._hurried:
            return
        self._hurried = True
        if self._committing is None:
            if self._timer is not None:
                self._timer.cancel()
            # One turn of the loop, so that others who are about to wait share the commit.
            self._timer = asyncio.get_running_loop().call_soon(self._flush)

    async def settle(self) -> None:
        """Wait until all that was queued so far is on disk; raises what the store refused with."""
        if self._latest is not None and not self._latest.settled:
            await self._latest.answered()
        if self.broken is not None:
            raise self.broken

    async def read(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask the store something without holding up the loop; sees everything that was queued before."""
        if self._reader is not None and self.broken is None:
            await self.settle()
        return await self.peek(question, *args, **kwargs)

    async def peek(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask the store something about what others wrote; does not wait for what is queued here."""
        if self._reader is None:
            return question(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, lambda: question(*args, **kwargs))

    async def mend(self, probe: Write) -> bool:
        """Try to write once more after a refusal; whether writes are accepted again."""
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
        """Commit what is queued and stop the threads; a refusal is raised after they have stopped."""
        try:
            if self.broken is None:
                await self.settle()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for executor in (self._writer, self._reader):
                if executor is not None:
                    await asyncio.get_running_loop().run_in_executor(None, executor.shutdown)
            self.broken = self.broken or StoreUnavailable("this retinue was closed")

    def _flush(self) -> None:
        self._timer = None
        if self._queue and self._committing is None:
            self._commit_queue()
        else:
            self._hurried = False

    def _commit_queue(self) -> None:
        """Commit what is queued, here if that is done in a moment, else in the writer's thread, which calls back."""
        size = 1 if self._alone else len(self._queue)
        batch, self._queue = self._queue[:size], self._queue[size:]
        self._alone = max(0, self._alone - 1)
        self._hurried = self._hurried and bool(self._queue)
        writes = [write for group, _ in batch for write in group]
        if len(writes) <= FEW:
            self._committing = self._commit_at_once(writes)
        if self._committing is None:
            self._committing = asyncio.get_running_loop().run_in_executor(self._writer, self._store_commit, writes)
        self._committing.add_done_callback(partial(self._committed, batch))

    def _commit_at_once(self, writes: list[Write]) -> asyncio.Future[list[WriteResult]] | None:
        """The answers, if the store has them in a moment; waking a thread and being woken by it takes longer."""
        if self._prompt is None:
            return None
        commit: asyncio.Future[list[WriteResult]] = asyncio.get_running_loop().create_future()
        try:
            answers = self._prompt.commit_at_once(self.driver_id, writes, durable=self._durable)
        except Exception as error:
            commit.set_exception(error)
        else:
            if answers is None:
                return None
            commit.set_result(answers)
        return commit

    def _committed(
        self, batch: list[tuple[tuple[Write, ...], CommitFuture]], commit: asyncio.Future[list[WriteResult]]
    ) -> None:
        self._committing = None
        if commit.cancelled():
            return  # the loop is being closed under us, and nobody waits any more
        match commit.exception():
            case None:
                self.commits += 1
                self._answer(batch, commit.result(), None)
            case StoreError() as refusal:
                self._answer(batch, [], refusal)
            case Exception() as bug:
                self._tell_apart(batch, bug)
            case worse:
                raise worse
        if not self._queue:
            self._hurried = False  # who hurried meant what is answered now
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            at_once = self._hurried or self._alone
            self._timer = loop.call_soon(self._flush) if at_once else loop.call_later(LINGER, self._flush)

    def _tell_apart(self, batch: list[tuple[tuple[Write, ...], CommitFuture]], bug: Exception) -> None:
        """Somebody's decision about a shelf raised, say: it fails alone, and not those who shared its commit."""
        if len(batch) == 1:
            ((_, commit_future),) = batch
            commit_future._settle(None, bug)  # pyright: ignore[reportPrivateUsage]
        else:
            self._queue = [*batch, *self._queue]
            self._alone = len(batch)

    def _store_commit(self, writes: list[Write]) -> list[WriteResult]:
        # All of them, not only those that somebody waits for: who waits a moment later has to find it synced, too.
        return self._store.commit(self.driver_id, writes, durable=self._durable)

    def _commit_here(self, writes: tuple[Write, ...], commit_future: CommitFuture) -> None:
        try:
            answers = self._store.commit(self.driver_id, writes, durable=self._durable)
            self.commits += 1
        except StoreError as refusal:
            self._answer([(writes, commit_future)], [], refusal)
        else:
            commit_future._settle(answers, None)  # pyright: ignore[reportPrivateUsage]

    def _answer(
        self, batch: list[tuple[tuple[Write, ...], CommitFuture]], answers: list[WriteResult], error: StoreError | None
    ) -> None:
        start = 0
        if error is not None:
            # What was queued behind the refused writes depends on them: it must not reach the disk without them.
            batch = [*batch, *self._queue]
            self._queue = []
        for group, commit_future in batch:
            commit_future._settle(None if error else answers[start : start + len(group)], error)  # pyright: ignore[reportPrivateUsage]
            start += len(group)
        if error is not None:
            self.broken = error
            if self.on_broken is not None:
                self.on_broken(error)
