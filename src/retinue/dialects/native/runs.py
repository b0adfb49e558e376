"""The runs that a caller of `native` can name, and what an id refers to after a message continued an ended run.

A run that has ended takes no messages: it is continued by a new run with its history. The model keeps the id of the
first one. The continuations of a run are the handles `1`, `2`, ... in a handle space that is named after it.
"""

from __future__ import annotations

from msgspec import Struct

from retinue.core.commands import RunQuery
from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.core.ports import CallContext
from retinue.core.run import HOST, HandleRef
from retinue.dialects.native import NAME
from retinue.dialects.native.answers import TASK_SHOWN, state_of, unknown_run
from retinue.engine import RunView, Supervisor

MAX_LISTED = 50
"""Runs that a list shows, the newest ones."""

_SPACE = f"{NAME}/"


class NamedRun(Struct, frozen=True):
    """A run as the model names it, and the view of the run that works under that id now."""

    run_id: RunId
    view: RunView


def space_of(run_id: RunId) -> str:
    """The handle space of the continuations of a run."""
    return f"{_SPACE}{run_id}"


def named_by(handle: HandleRef | None, run_id: RunId) -> RunId:
    """The id by which a model knows a run: that of the run which it continues, else its own."""
    return handle.space.removeprefix(_SPACE) if handle is not None and handle.space.startswith(_SPACE) else run_id


class Runs:
    """Finds the runs below a caller."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def find(self, run_id: RunId, context: CallContext) -> NamedRun:
        """The run of that id below the caller; raises `CallRefused` with the ids that are valid."""
        view = await self._supervisor.look(run_id)
        if view is None or not await self._is_own(view, context):
            raise unknown_run(run_id, [named.run_id for named in await self.all(context)])
        first = named_by(view.handle, run_id)
        return NamedRun(first, await self.latest(first, context))

    async def latest(self, first: RunId, context: CallContext) -> RunView:
        """The view of the last continuation of a run, or of the run itself."""
        found, number = first, 1
        while (run_id := await self._continuation(first, number, context)) is not None:
            found, number = run_id, number + 1
        view = await self._supervisor.look(found)
        assert view is not None
        return view

    async def _continuation(self, first: RunId, number: int, context: CallContext) -> RunId | None:
        return await self._supervisor.handles.find(context.session_id, space_of(first), str(number))

    async def all(self, context: CallContext) -> list[NamedRun]:
        """The latest runs below the caller, newest first, each once; none for a caller without an identity."""
        if context.host is not None and not context.host.identified:
            return []
        found: dict[RunId, NamedRun] = {}
        for root_id in reversed(await self._trees(context)):
            for view in await self._supervisor.list(RunQuery(root_id=root_id)):
                first = named_by(view.handle, view.run_id)
                if first not in found and await self._is_own(view, context):
                    found[first] = NamedRun(first, view)
        return list(found.values())[:MAX_LISTED]

    async def rows(self, context: CallContext) -> list[dict[str, object]]:
        """The same as a list shows them, each with its first task."""
        listed = await self.all(context)
        tasks = await self._supervisor.stored.tasks([named.run_id for named in listed])
        return [
            {
                "run": named.run_id,
                "agent": named.view.agent,
                "task": tasks.get(named.run_id, "")[:TASK_SHOWN],
                "state": state_of(named.view),
            }
            for named in listed
        ]

    async def _is_own(self, view: RunView, context: CallContext) -> bool:
        """Whether a caller may name a run: one of this dialect below it, or in an earlier tree of its chat."""
        if view.dialect != NAME or view.depth == 0:
            return False
        if view.root_id == context.root_id:
            return view.path.startswith(f"{context.path}/")
        return view.root_id in await self._trees(context)

    async def _trees(self, context: CallContext) -> tuple[RunId, ...]:
        """The roots of the trees in which the caller has runs, oldest first; only a root has several.

        A program outside has all trees that programs have started in its session, also those of earlier processes.
        """
        if context.host is not None:
            roots = await self._supervisor.stored.runs(RunQuery(session_id=context.session_id, roots_only=True))
            return tuple(row.run_id for row in reversed(roots) if row.label.partition(":")[0] == HOST)
        return await self._supervisor.conversation(context.root_id) if context.depth == 0 else (context.root_id,)


def name_in_notice(accepted: RunAccepted) -> RunId:
    """The id by which the parent's model knows a run."""
    return named_by(accepted.handle, accepted.run_id)
