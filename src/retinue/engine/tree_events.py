"""Events of a whole tree of runs in one stream: live ones of this process, and stored ones of any process.

A reader joins the runs that this process drives, and each run below them when it is created. What another process
drives is read from the store again and again. Without a reader nothing is published and nothing is kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Container, Mapping
from contextlib import suppress

from msgspec.structs import replace

from retinue.core.commands import Accepted, RunQuery, RunRow
from retinue.core.errors import StoreError, UnknownName
from retinue.core.events import Event, RunAccepted, RunEnded, TreeEvent
from retinue.core.ids import DriverId, RunId
from retinue.core.messages import Delta, DiscardDelta, StartDelta
from retinue.engine.driver_table import DriverTable
from retinue.engine.journal_writer import CommitFuture
from retinue.engine.live_run import LiveRun
from retinue.engine.registry import RunRegistry
from retinue.engine.store_access import StoreReader

POLL = 0.05
"""Seconds between two looks at the store, while other processes drive runs of the tree."""

SHARE_OF_LOOKS = 8
"""The pause after a look at the store, in lengths of a look: a large tree in a slow store is read less often."""

LONGEST_PAUSE = 1.0
"""Seconds between two looks at most."""

DRIVERS_EVERY = 0.25
"""Seconds between two looks at the drivers of the tree."""


class _Creation:
    """Stands in the queue for the acceptance of a run until it is on disk: the store may refuse it."""

    __slots__ = ("_acceptance", "_accepted")

    def __init__(self, accepted: RunAccepted, acceptance: CommitFuture) -> None:
        self._accepted = accepted
        self._acceptance = acceptance

    async def event(self) -> RunAccepted | None:
        """The acceptance as the store has it, with the handle that it gave; None if it was refused."""
        try:
            (answer,) = await self._acceptance.wait()
        except StoreError:  # the run stops, and this reader with it
            return None
        if not isinstance(answer, Accepted) or answer.existed:
            return None
        return self._accepted if answer.handle is None else replace(self._accepted, handle=answer.handle)


class _Seat:
    """The place of a tree's reader among the readers of one live run; see `live_run.Reader` for what may get lost."""

    __slots__ = ("_reader", "live", "skips_deltas")

    def __init__(self, reader: TreeReader, live: LiveRun) -> None:
        self._reader = reader
        self.live = live
        self.skips_deltas = False

    def offer(self, seq: int, what: Event | Delta) -> None:
        self._reader.offer(self, seq, what)

    def stop(self, error: StoreError) -> None:
        self._reader.stop(error)


class TreeReader:
    """The queue of one reader of a tree, and how far it has read each run of it."""

    def __init__(
        self,
        top_id: RunId,
        *,
        whole: bool,
        after: Mapping[RunId, int],
        capacity: int,
        deltas_of: Container[RunId] | None = None,
    ) -> None:
        self._top_id = top_id
        self._deltas_of = deltas_of
        self._whole = whole
        self._capacity = capacity
        self._queue: deque[tuple[_Seat, int, Event | Delta | _Creation]] = deque()
        self._seats: dict[RunId, _Seat] = {}
        self._ready = asyncio.Event()
        self._lagging = False
        self._error: StoreError | None = None
        self._read = dict(after)
        """The number of the last event that was read, by run."""
        self._members: dict[RunId, bool] = {}
        """The runs of the tree that are known, and whether their end was read."""
        self._rows: dict[RunId, RunRow] = {}
        """The rows of these runs, parents first, as they were when their last event was read from the store."""
        self._end_was_read = False
        """Whether this look at the store found the end of a run: the rows may lack children created before it."""
        self._outside: set[RunId] = set()
        """Runs of the whole tree that are not below the top."""

    # Called by the registry and by live runs

    def join(self, live: LiveRun, *, is_new: bool) -> None:
        """Read a live run, if it belongs to the tree; one that is new is announced by its acceptance."""
        accepted = live.run.accepted
        if not self._contains(accepted.run_id, accepted.parent_id):
            return
        self._members[accepted.run_id] = False
        seat = self._seats[accepted.run_id] = _Seat(self, live)
        live.subscriptions.add(seat)
        if is_new and live.acceptance is not None:
            self.offer(seat, 1, _Creation(accepted, live.acceptance))
        elif live.run.seq > self._read.get(accepted.run_id, 0):
            self._lagging = True  # the store has what was recorded before
            self._ready.set()

    def join_placed(self, accepted: RunAccepted) -> None:
        """Read a child that another process drives, if it belongs to the tree: the store has its events."""
        if self._contains(accepted.run_id, accepted.parent_id):
            self._members.setdefault(accepted.run_id, False)
            self._ready.set()

    def _contains(self, run_id: RunId, parent_id: RunId | None) -> bool:
        return run_id == self._top_id or (self._whole and parent_id in self._members)

    def offer(self, seat: _Seat, seq: int, what: Event | Delta | _Creation) -> None:
        """Queue an event, or a delta (`seq` 0), if there is room: deltas are dropped first."""
        if seq == 0 and self._deltas_of is not None and seat.live.run_id not in self._deltas_of:
            return
        if seq == 0 and type(what) is not DiscardDelta:
            seat.skips_deltas = (
                self._lagging
                or len(self._queue) >= self._capacity
                or (seat.skips_deltas and not isinstance(what, StartDelta))
            )
            if seat.skips_deltas:
                return
        elif len(self._queue) >= self._capacity:
            self._queue = deque(item for item in self._queue if item[1])
        if self._lagging or len(self._queue) >= self._capacity:
            self._lagging = True
        else:
            seat.skips_deltas = False
            self._queue.append((seat, seq, what))
        self._ready.set()

    def stop(self, error: StoreError) -> None:
        """A run of the tree is no longer driven here, without having ended."""
        self._error = error
        self._ready.set()

    def leave(self) -> None:
        for seat in self._seats.values():
            seat.live.subscriptions.leave(seat)
        self._seats.clear()

    # Called by the consumer

    async def read(
        self, stored: StoreReader, drivers: DriverTable, registry: RunRegistry, *, grace: float
    ) -> AsyncIterator[TreeEvent]:
        """The events of the tree until all its runs have ended or have had no driver for `grace` seconds."""
        first: dict[RunId, int] | None = {run_id: seat.live.run.seq for run_id, seat in self._seats.items()}
        undriven_since: float | None = None
        drivers_at = -DRIVERS_EVERY
        clock = asyncio.get_running_loop().time
        looks: deque[float] = deque(maxlen=5)  # the shortest one says what a look costs, also on a busy machine
        is_whole = True
        while True:
            # Cleared before the store is read: what is recorded during that read may be missing from its answer.
            self._lagging = self._end_was_read = False
            began = clock()
            rows = await (self._all_rows(stored) if is_whole else self._changed_rows(stored))
            is_whole = False
            self._join_missing(registry)
            news = await self._news(stored, rows, first or {})
            looks.append(clock() - began)
            pause = min(LONGEST_PAUSE, max(POLL, SHARE_OF_LOOKS * min(looks)))
            for item in news:
                yield item
            first = None
            self._drop_read()
            while not self._lagging or self._queue:
                while self._queue:
                    if (item := await self._next()) is not None:
                        yield item
                if self._lagging:
                    break
                if self._is_complete:
                    if self._end_was_read:
                        break  # look once more, for runs that were created before that end and after the rows were read
                    return
                if self._error is not None:
                    raise self._error
                self._ready.clear()
                unfinished = {run_id for run_id, ended in self._members.items() if not ended}
                if unfinished <= registry.live.keys():
                    undriven_since = None
                    await self._ready.wait()
                    continue
                now = clock()
                if unfinished & registry.live.keys():
                    undriven_since = None
                elif now - drivers_at >= DRIVERS_EVERY:
                    drivers_at = now
                    if await self._is_driven(stored, drivers):
                        undriven_since = None
                    else:
                        undriven_since = now if undriven_since is None else undriven_since
                        # What was offered meanwhile, by a run that this process has adopted, is still to be read.
                        if now - undriven_since >= grace and not self._ready.is_set():
                            return
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ready.wait(), pause)
                break  # the store may have more

    @property
    def _is_complete(self) -> bool:
        return bool(self._members) and all(self._members.values())

    async def _is_driven(self, stored: StoreReader, drivers: DriverTable) -> bool:
        """Whether a process drives a run of the tree, or has driven one since the last look.

        Rows are read anew: a run changes hands before that is an event, and what was recorded since the last look is
        still to be read, even if all runs have ended with it.
        """
        living = await drivers.living()
        if self._has_driver(list(self._rows.values()), living):
            return True
        rows = await self._all_rows(stored)
        if any(row.seq > self._read.get(row.run_id, 0) for row in rows):
            return True
        # A driver may have registered and adopted a run between the two reads.
        return self._has_driver(rows, living | await drivers.living())

    def _has_driver(self, rows: list[RunRow], living: frozenset[DriverId]) -> bool:
        """Whether a run whose end was not read has a driver, or was placed for one that is still to take it.

        Its row may be older than its last event.
        """
        return any(
            row.progress.phase != "ended"
            and (row.driver_id in living or (row.driver_id is None and row.progress.phase == "placed"))
            and not self._members[row.run_id]
            for row in rows
        )

    def _join_missing(self, registry: RunRegistry) -> None:
        """Join live runs whose parent had ended when this reader joined the others."""
        for run_id in self._members.keys() - self._seats.keys():
            if (live := registry.live.get(run_id)) is not None:
                self.join(live, is_new=False)

    async def _all_rows(self, stored: StoreReader) -> list[RunRow]:
        """The rows of the tree, parents first; new ones become members."""
        top = await stored.run(self._top_id)
        if top is None:
            raise UnknownName("run", self._top_id)
        return self._known(await stored.runs(RunQuery(root_id=top.root_id)) if self._whole else [top])

    async def _changed_rows(self, stored: StoreReader) -> list[RunRow]:
        """The rows of new runs and of those with events that were not read."""
        if not self._whole:
            return await self._all_rows(stored)
        lengths = await stored.log_lengths(self._rows[self._top_id].root_id)
        if self._top_id not in lengths:
            raise UnknownName("run", self._top_id)
        changed = [
            run_id
            for run_id, last in lengths.items()
            if (last > self._read.get(run_id, 0) or run_id not in self._members) and run_id not in self._outside
        ]
        return self._known(await stored.runs(RunQuery(run_ids=tuple(changed)))) if changed else []

    def _known(self, rows: list[RunRow]) -> list[RunRow]:
        """The rows that belong to the tree, parents first; new ones become members."""
        known: list[RunRow] = []
        # By depth first: clocks of processes differ.
        for row in sorted(rows, key=lambda row: (row.depth, row.accepted_at, row.run_id)):
            if self._contains(row.run_id, row.parent_id):
                self._members.setdefault(row.run_id, False)
                self._rows[row.run_id] = row
                known.append(row)
            else:
                self._outside.add(row.run_id)
        return known

    async def _news(self, stored: StoreReader, rows: list[RunRow], upto: Mapping[RunId, int]) -> list[TreeEvent]:
        """The stored events that were not read, in the order of their times; of runs in `upto` those up to there.

        Later ones of these are in the queue, with the deltas before them, which no store has.
        """
        news: list[tuple[float, TreeEvent]] = []
        for row in rows:
            run_id, read = row.run_id, self._read.get(row.run_id, 0)
            events = await stored.events(run_id, read) if row.seq > read else []
            last = upto.get(run_id)
            events = [(seq, event) for seq, event in events if last is None or seq <= last]
            if events:
                self._read[run_id] = events[-1][0]
            is_end_in_row = row.progress.phase == "ended" and (last is None or row.seq <= last)
            if is_end_in_row:  # its events may have been deleted
                self._read[run_id] = max(self._read.get(run_id, 0), row.seq)
            # The events are read after the row, which may not have the end yet.
            is_end = is_end_in_row or any(isinstance(event, RunEnded) for _, event in events)
            if is_end and not self._members[run_id]:
                self._members[run_id] = self._end_was_read = True
            news += [(event.at, _of_row(row, seq, event)) for seq, event in events]
        # The sort is stable: the order of each run stays, and a run comes after the run above it.
        return [item for _, item in sorted(news, key=lambda each: each[0])]

    def _drop_read(self) -> None:
        """Drop the events that were read from the store, and the deltas before them."""
        known: dict[RunId, int] = {}
        for place, (seat, seq, _) in enumerate(self._queue):
            if 0 < seq <= self._read.get(seat.live.run_id, 0):
                known[seat.live.run_id] = place
        self._queue = deque(
            item for place, item in enumerate(self._queue) if place > known.get(item[0].live.run_id, -1)
        )

    async def _next(self) -> TreeEvent | None:
        """The next item of the queue; None if it was read already or if a run was not created."""
        seat, seq, what = self._queue.popleft()
        live = seat.live
        run_id = live.run_id
        read = self._read.get(run_id, 0)
        if seq and seq <= read:
            return None
        if seq > read + 1:  # what an earlier driver recorded was not read yet
            self._lagging = True
            return None
        if isinstance(what, _Creation):
            created = await what.event()
            if created is None:
                self._members.pop(run_id, None)
                return None
            what = created
        if isinstance(what, RunEnded):
            if live.last_write is not None:
                await live.last_write.wait()  # like every waiter, a reader gets an end once it is on disk
            self._members[run_id] = True
        self._read[run_id] = seq or read
        return _of_acceptance(live.run.accepted, seq, what)


def _of_row(row: RunRow, seq: int, event: Event) -> TreeEvent:
    return TreeEvent(
        run=row.run_id,
        parent=row.parent_id,
        path=row.path,
        event=event,
        seq=seq,
        agent=row.agent,
        label=row.label,
        handle=row.handle,
    )


def _of_acceptance(accepted: RunAccepted, seq: int, event: Event | Delta) -> TreeEvent:
    return TreeEvent(
        run=accepted.run_id,
        parent=accepted.parent_id,
        path=accepted.path,
        event=event,
        seq=seq,
        agent=accepted.agent,
        label=accepted.label,
        handle=accepted.handle,
    )
