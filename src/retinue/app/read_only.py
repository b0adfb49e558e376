"""The runs of a store for those who only look: nothing is driven, adopted or asked of a model from here.

Works while others drive. What it can do to a run is what anyone can do from outside: post to it, and cancel it.
"""

from __future__ import annotations

from types import TracebackType

from retinue.app.approvals import Approvals
from retinue.app.launch_config import Setup, setup_of
from retinue.app.sessions import Sessions
from retinue.core.commands import Charge, DriverRow, Prune, RunQuery, RunRow
from retinue.core.errors import StoreError, UnknownName
from retinue.core.events import Event
from retinue.core.ids import RunId, SessionId
from retinue.core.state import Run
from retinue.engine.driver import Driver
from retinue.engine.key_value import StoreShelf
from retinue.engine.run_view import RunView
from retinue.engine.supervisor import Supervisor


class Archive:
    """An open store without a driver of its own; an async context manager. Made by `compose.open_archive`.

    `unwritable` says why it can only be looked at, if that is so.
    """

    def __init__(self, supervisor: Supervisor, watcher: Driver, *, unwritable: StoreError | None = None) -> None:
        self.supervisor = supervisor
        self.unwritable = unwritable
        self.sessions = Sessions(supervisor)
        self.approvals = Approvals(supervisor)
        self.shelf = StoreShelf(supervisor.parts)
        # Never enlisted: it only knows how to tell which of the others are alive.
        self._watcher = watcher
        self._parts = supervisor.parts
        self._parts.living = watcher.living

    async def __aenter__(self) -> Archive:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._parts.journal.close()
        finally:
            self._parts.store.close()

    async def list(
        self, *, everyone: bool = False, session: SessionId | None = None, limit: int | None = None
    ) -> list[RunView]:
        """Root runs, newest first, or with `everyone` their descendants too."""
        return await self.supervisor.list(RunQuery(session_id=session, roots_only=not everyone, limit=limit))

    async def tree(self, root_id: RunId) -> list[RunView]:
        """A root run and all its descendants, newest first."""
        return await self.supervisor.list(RunQuery(root_id=root_id))

    async def look(self, run_id: RunId) -> RunView:
        """A run as it stands now."""
        view = await self.supervisor.look(run_id)
        if view is None:
            raise UnknownName("run", run_id)
        return view

    async def events(self, run_id: RunId) -> list[Event]:
        """What has happened in a run so far."""
        return [event for _, event in await self._parts.journal.read(self._parts.store.events, run_id)]

    async def recall(self, run_id: RunId) -> Run:
        """A run as its events tell it."""
        return await self.supervisor.recall(run_id)

    async def driver_of(self, run_id: RunId) -> DriverRow | None:
        """The process that works on a run, if one does."""
        row = await self._row(run_id)
        living = await self._watcher.living()
        drivers = await self._parts.journal.peek(self._parts.store.drivers)
        return next((each for each in drivers if each.driver_id == row.driver_id and each.driver_id in living), None)

    async def setup(self, run_id: RunId) -> Setup | None:
        """How the process was set up that started the tree of a run, if that was kept."""
        root = await self._row((await self._row(run_id)).root_id)
        return setup_of(await self._parts.journal.read(self._parts.store.brief, root.brief))

    async def cancel(self, run_id: RunId, note: str = "") -> tuple[RunId, ...]:
        """Stop a run and everything below it; what nobody drives ends on the spot. The runs that this concerned."""
        await self._watcher.bury_the_gone()
        return await self.supervisor.cancel(run_id, note=note)

    async def charges(self, window: str, since: float) -> list[Charge]:
        """What a named window remembers from then on."""
        return await self._parts.journal.read(self._parts.store.charges, window, since)

    async def prune(self, before: float) -> int:
        """Forget trees that ended before a moment; how many runs that were."""
        (removed,) = await self._parts.journal.commit(Prune(before=before))
        assert isinstance(removed, int)
        return removed

    async def _row(self, run_id: RunId) -> RunRow:
        row = await self._parts.journal.read(self._parts.store.run, run_id)
        if row is None:
            raise UnknownName("run", run_id)
        return row
