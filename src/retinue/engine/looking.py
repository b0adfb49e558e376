"""The verbs that look: a run as it stands, lists of them, and what happens in one. Looking starts nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

from retinue.core.errors import Fenced, UnknownName
from retinue.core.events import Event, RunAccepted, RunEnded
from retinue.core.history import History
from retinue.core.ids import RunId
from retinue.core.messages import Delta
from retinue.core.records import RunQuery, RunRow
from retinue.core.run import HistoryRef
from retinue.core.state import Run
from retinue.engine.driven import Driven
from retinue.engine.parts import Parts
from retinue.engine.recall import Recall
from retinue.engine.roster import Roster
from retinue.engine.view import RunView, of_driven, of_row


class Looking:
    """Who is alive here, and everyone that the store knows."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.roster = Roster()
        self._recall = Recall(parts, self.roster)

    async def recall(self, run_id: RunId) -> Run:
        """A run as its stored events tell it, whoever drives it; starts nothing."""
        return await self._recall.run(run_id)

    async def inherited(self, inherits: HistoryRef | None) -> History | None:
        """The history that a run with this inheritance begins with."""
        return await self._recall.history(inherits)

    async def acceptance(self, run_id: RunId) -> RunAccepted | None:
        """How a run came to be; None if there is none, or nothing is kept of it."""
        if (driven := self.here(run_id)) is not None:
            return driven.run.accepted
        events = await self.parts.journal.read(self.parts.store.events, run_id)
        return events[0][1] if events and isinstance(events[0][1], RunAccepted) else None

    async def origins(self, root_id: RunId) -> tuple[RunId, ...]:
        """The roots of the trees whose conversation this one goes on with, the latest first."""
        found: list[RunId] = []
        accepted = await self.acceptance(root_id)
        while accepted is not None and accepted.inherits is not None:
            accepted = await self.acceptance(accepted.inherits.run_id)
            if accepted is not None and accepted.root_id not in (root_id, *found[-1:]):
                found.append(accepted.root_id)
        return tuple(found)

    async def look(self, run_id: RunId) -> RunView | None:
        """A run as it stands now, or None if there is none."""
        if (driven := self.here(run_id)) is not None:
            return of_driven(driven)
        if (ended := self.roster.ended.get(run_id)) is not None:
            return ended.view
        row = await self.parts.journal.read(self.parts.store.run, run_id)
        return None if row is None else of_row(row, alive=await self._is_driven(row))

    async def list(self, query: RunQuery) -> list[RunView]:
        """Runs as they stand now, newest first; looking starts nothing."""
        rows = await self.parts.journal.read(self.parts.store.runs, query)
        awaited = {row.parent_id for row in rows if row.awaited and row.progress.phase != "ended"}
        living = await self.parts.living() if self.parts.living is not None else frozenset[str]()
        return [
            of_driven(driven)
            if (driven := self.here(row.run_id)) is not None
            else of_row(row, alive=row.driver_id in living, has_awaited_child=row.run_id in awaited)
            for row in rows
        ]

    async def events(self, run_id: RunId, *, after: int = 0) -> AsyncIterator[Event | Delta]:
        """What happens in a run, from its beginning until its end, with deltas while it streams here.

        Of a run that another process drives, whatever it stores; of one that nobody drives, what is stored.
        """
        driven = self.here(run_id)
        if driven is None:
            async for event in self._events_elsewhere(run_id, after):
                yield event
            return

        async def catch_up(told: int) -> list[tuple[int, Event]]:
            events = await self.parts.journal.read(self.parts.store.events, run_id, told)
            outcome = driven.run.outcome
            if not events and outcome is not None and told < driven.run.seq:  # its messages were not to be kept
                return [(driven.run.seq, RunEnded(at=self.parts.clock.now(), outcome=outcome))]
            return events

        reader = driven.feed.join(after)
        try:
            async for what in reader.read(catch_up):
                if isinstance(what, RunEnded) and driven.last_write is not None:
                    await driven.last_write.wait()  # like every waiter, a reader hears of an end once it is on disk
                yield what
        finally:
            driven.feed.leave(reader)

    async def _events_elsewhere(self, run_id: RunId, after: int) -> AsyncIterator[Event]:
        with self.roster.watch((run_id,)) as watch:
            while True:
                row = await self.row(run_id)
                for seq, event in await self.parts.journal.read(self.parts.store.events, run_id, after):
                    after = seq
                    yield event
                    if isinstance(event, RunEnded):
                        return
                if row.progress.phase == "ended" or not await self._is_driven(row):
                    return
                await watch.news()

    def here(self, run_id: RunId) -> Driven | None:
        """The run, if it is driven here; a process that was declared dead drives nothing any more."""
        return None if isinstance(self.parts.journal.broken, Fenced) else self.roster.live.get(run_id)

    async def row(self, run_id: RunId) -> RunRow:
        """What the store lists of a run; raises for one that is not there."""
        row = await self.parts.journal.read(self.parts.store.run, run_id)
        if row is None:
            raise UnknownName("run", run_id)
        return row

    async def _is_driven(self, row: RunRow) -> bool:
        return self.parts.living is not None and row.driver_id in await self.parts.living()

    def check_open(self) -> None:
        """Raise why nothing more is heard or written here, if that is so."""
        if self.parts.journal.broken is not None:
            raise self.parts.journal.broken
