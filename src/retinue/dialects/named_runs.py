"""The runs that a caller can name by id, and what an id refers to after a message continued an ended run.

A run that has ended takes no messages: it is continued by a new run with its history. The model keeps the id of the
first one. The continuations of a run are the handles `1`, `2`, ... in a handle space that is named after it and after
the dialect.
"""

from __future__ import annotations

from msgspec import Struct

from retinue.core.commands import RunQuery
from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.core.ports import CallContext
from retinue.core.run import HOST, HandleRef
from retinue.engine import RunView, Supervisor


class NamedRun(Struct, frozen=True):
    """A run as the model names it, and the view of the run that works under that id now."""

    run_id: RunId
    view: RunView


class NamedRuns:
    """Finds the runs of one dialect in the trees of a caller."""

    def __init__(self, supervisor: Supervisor, dialect: str) -> None:
        self._supervisor = supervisor
        self._dialect = dialect

    def space_of(self, run_id: RunId) -> str:
        """The handle space of the continuations of a run."""
        return f"{self._dialect}/{run_id}"

    def named_by(self, handle: HandleRef | None, run_id: RunId) -> RunId:
        """The id by which a model knows a run: that of the run which it continues, else its own."""
        prefix = self.space_of("")
        return handle.space.removeprefix(prefix) if handle is not None and handle.space.startswith(prefix) else run_id

    def name_in_notice(self, accepted: RunAccepted) -> RunId:
        """The id by which the parent's model knows a run."""
        return self.named_by(accepted.handle, accepted.run_id)

    async def find(self, run_id: RunId, context: CallContext) -> NamedRun | None:
        """The run of that id below the caller; None if there is none."""
        view = await self._supervisor.look(run_id)
        if view is None or not await self._is_own(view, context):
            return None
        first = self.named_by(view.handle, run_id)
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
        return await self._supervisor.handles.find(context.session_id, self.space_of(first), str(number))

    async def all(self, context: CallContext, *, whole_tree: bool = False) -> list[NamedRun]:
        """The latest runs below the caller, newest first, each once; none for a caller without an identity.

        With `whole_tree`, those beside and above the caller, too.
        """
        if context.host is not None and not context.host.identified:
            return []
        found: dict[RunId, NamedRun] = {}
        for root_id in reversed(await self.trees(context)):
            for view in await self._supervisor.list(RunQuery(root_id=root_id)):
                first = self.named_by(view.handle, view.run_id)
                is_known = self._is_of_dialect(view) if whole_tree else await self._is_own(view, context)
                if first not in found and is_known:
                    found[first] = NamedRun(first, view)
        return list(found.values())

    def _is_of_dialect(self, view: RunView) -> bool:
        return view.dialect == self._dialect and view.depth > 0

    async def _is_own(self, view: RunView, context: CallContext) -> bool:
        """Whether a caller may name a run: one of this dialect below it, or in an earlier tree of its chat."""
        if not self._is_of_dialect(view):
            return False
        if view.root_id == context.root_id:
            return view.path.startswith(f"{context.path}/")
        return view.root_id in await self.trees(context)

    async def trees(self, context: CallContext) -> tuple[RunId, ...]:
        """The roots of the trees in which the caller has runs, oldest first; only a root has several.

        A program outside has all trees that programs have started in its session, also those of earlier processes.
        """
        if context.host is not None:
            roots = await self._supervisor.stored.runs(RunQuery(session_id=context.session_id, roots_only=True))
            return tuple(row.run_id for row in reversed(roots) if row.label.partition(":")[0] == HOST)
        return await self._supervisor.conversation(context.root_id) if context.depth == 0 else (context.root_id,)
