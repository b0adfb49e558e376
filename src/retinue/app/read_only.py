"""`ReadOnlyClient`: the runs of a store for programs that only inspect them; no run is driven or adopted here.

It works while other processes drive runs. It changes a run only as any process can from outside: by inbox messages and
cancellation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from retinue.app.approvals import Approvals
from retinue.app.run_spec import LaunchConfig
from retinue.app.sessions import Sessions
from retinue.core.commands import Charge, DriverRow, RunQuery
from retinue.core.errors import BadInput, StoreError, UnknownName
from retinue.core.events import Event
from retinue.core.ids import RunId, SessionId
from retinue.core.ports import PruneRequest
from retinue.core.state import Run
from retinue.engine import RunView, Supervisor

MIN_LENGTH = 4
"""Characters of a run's id that `ReadOnlyClient.find` needs at least."""

MAX_MATCHES_SHOWN = 8
"""Run ids that the error for an ambiguous part of an id lists at most."""


class ReadOnlyClient:
    """An open store without a driver of its own; an async context manager. Created by `app.open.open_read_only`.

    `unwritable` is the reason if the store can only be read.
    """

    def __init__(self, supervisor: Supervisor, *, unwritable: StoreError | None = None) -> None:
        self.supervisor = supervisor
        self.unwritable = unwritable
        self.sessions = Sessions(supervisor)
        self.approvals = Approvals(supervisor)
        self.key_value = supervisor.key_value

    async def __aenter__(self) -> ReadOnlyClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.supervisor.close()

    async def list(
        self,
        *,
        everyone: bool = False,
        session: SessionId | None = None,
        before: tuple[float, RunId] | None = None,
        limit: int | None = None,
    ) -> list[RunView]:
        """Views of root runs, newest first, or with `everyone` of their descendants too.

        `before` is the start and the id of the last run of the page before.
        """
        query = RunQuery(session_id=session, roots_only=not everyone, before=before, limit=limit)
        return await self.supervisor.with_tasks(await self.supervisor.list(query))

    async def tree(self, root_id: RunId) -> list[RunView]:
        """Views of a root run and all its descendants, newest first."""
        return await self.supervisor.with_tasks(await self.supervisor.list(RunQuery(root_id=root_id)))

    async def look(self, run_id: RunId) -> RunView:
        """The current view of a run; raises `UnknownName` if there is no such run."""
        view = await self.supervisor.look(run_id)
        if view is None:
            raise UnknownName("run", run_id)
        return await self._with_task(view)

    async def _with_task(self, view: RunView) -> RunView:
        (view,) = await self.supervisor.with_tasks([view])
        return view

    async def find(self, name: str) -> RunView:
        """The run with this id, or with an id that begins or ends like this; raises if there is none, or several."""
        name = name.strip().lower()
        if (exact := await self.supervisor.look(name)) is not None:
            return await self._with_task(exact)
        if len(name) < MIN_LENGTH:
            raise BadInput(f"{name!r} is too short for a run's id: give {MIN_LENGTH} or more of its characters")
        part = RunQuery(id_part=name, limit=MAX_MATCHES_SHOWN + 1)
        found = [row.run_id for row in await self.supervisor.stored.runs(part)]
        number = len(found)
        if number > MAX_MATCHES_SHOWN:
            number = await self.supervisor.stored.count(RunQuery(id_part=name))
        return await self.look(only_match(name, found, number))

    async def find_in(self, tree: str, name: str) -> RunView:
        """The newest run of a tree with this name in its dialect, such as `t_01`; `tree` names any run of the tree.

        Raises `UnknownName` with the names of the tree if there is none.
        """
        named = [view for view in await self.tree((await self.find(tree)).root_id) if view.handle is not None]
        for view in named:
            if view.handle is not None and view.handle.name == name:
                return view
        known = dict.fromkeys(view.handle.name for view in reversed(named) if view.handle is not None)
        raise UnknownName("task", name, known=tuple(known))

    async def count(self, *, unfinished: bool = False, everyone: bool = True, session: SessionId | None = None) -> int:
        """The number of runs, of unfinished ones, of root runs, or of those of a session."""
        query = RunQuery(unfinished_only=unfinished, roots_only=not everyone, session_id=session)
        return await self.supervisor.stored.count(query)

    async def events(self, run_id: RunId) -> list[Event]:
        return [event for _, event in await self.supervisor.stored.events(run_id)]

    async def replay(self, run_id: RunId) -> Run:
        return await self.supervisor.replay(run_id)

    async def driver_of(self, run_id: RunId) -> DriverRow | None:
        """The process that drives a run, if one does."""
        row = await self.supervisor.row(run_id)
        return await self.supervisor.drivers.find(row.driver_id) if await self.supervisor.is_driven(row) else None

    async def launch_config(self, run_id: RunId) -> LaunchConfig | None:
        """The launch config of the process that started the tree of a run, if it was stored."""
        root = await self.supervisor.row((await self.supervisor.row(run_id)).root_id)
        text = (await self.supervisor.stored.run_spec(root.run_spec)).launch_config
        return msgspec.json.decode(text, type=LaunchConfig) if text else None

    async def cancel(self, run_id: RunId, note: str = "") -> tuple[RunId, ...]:
        """Cancel a run and its descendants, and return their ids; runs without a driver end at once."""
        return await self.supervisor.cancel(run_id, note=note)

    async def charges(self, window: str, since: float) -> list[Charge]:
        return await self.supervisor.stored.charges(window, since)

    async def prune(self, request: PruneRequest, *, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Remove trees of ended runs until `should_stop` returns True; returns the number of removed runs."""
        return await self.supervisor.prune(request, should_stop=should_stop)


def only_match(name: str, found: Sequence[RunId], number: int) -> RunId:
    """The id that matches `name`; raises unless it is the only one of `number`, of which `found` are the newest.

    >>> only_match("cafe", ["0194-cafe"], 1)
    '0194-cafe'
    """
    if not found:
        raise UnknownName("run", name)
    if number > 1:
        listed = ", ".join(found[:MAX_MATCHES_SHOWN]) + (", ..." if number > MAX_MATCHES_SHOWN else "")
        raise BadInput(f"{name!r} matches {number} runs: {listed}; give more of the id")
    return found[0]
