"""Finds the sub-agents and peers of a calling run; and the base classes of tools."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from msgspec import Struct

from retinue.core.commands import RunQuery
from retinue.core.errors import Refused
from retinue.core.ids import RunId, call_key
from retinue.core.ports import CallContext, ToolResult
from retinue.core.step import MODEL
from retinue.dialects.arguments import compact_json
from retinue.dialects.base import DialectTool
from retinue.dialects.context import DialectContext
from retinue.dialects.error_codes import CallRefused
from retinue.dialects.meerkat import NAME
from retinue.dialects.meerkat.answers import child_name, failed
from retinue.dialects.meerkat.requests import specs
from retinue.dialects.meerkat.settings import MeerkatSettings
from retinue.engine import LiveView, RunView, Supervisor

MAX_ENDED = 256
"""How many ended sub-agents of a tree are remembered."""

ROOT_NAME = "parent"
"""The name of the root among its children."""


def own_name(context: CallContext) -> str:
    """The caller's name among its peers."""
    return ROOT_NAME if context.depth == 0 else child_name(context.run_id, context.agent)


# ---- runs around a caller, read from the live runs of this process, and from the store for earlier trees of a chat ---


class RunningCounts(Struct, frozen=True):
    """Running sub-agents of the tree, running children of the caller, and running operations of the tree."""

    agents: int
    children: int
    operations: int


class Peer(Struct, frozen=True):
    """A run that the caller can message; one that has ended is offline."""

    name: str
    run_id: RunId
    is_online: bool = True

    @property
    def shown(self) -> dict[str, object]:
        """The peer as `list_peers` shows it."""
        return {"name": self.name, "peer_id": self.run_id, "address": f"inproc://{self.name}"}


class Relatives:
    """Finds the runs around a calling run."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._earlier_trees: dict[RunId, list[RunView]] = {}
        """The sub-agents of trees that have ended as a whole, by their roots."""

    def caller(self, context: CallContext) -> LiveView:
        """The calling run; raises `CallRefused` if it is being stopped."""
        live = self._supervisor.live(context.run_id)
        if live is None:
            raise failed("the caller is being stopped")
        return live

    async def known(self, context: CallContext) -> list[RunView]:
        """The sub-agents below the caller: all that run, and the latest that have ended."""
        others = await self._ended(context)
        running = [live.view() for live in self._supervisor.subtree(context.run_id) if self._is_below(live, context)]
        return [*running, *others]

    async def find(self, run_id: RunId, context: CallContext) -> RunView:
        """A sub-agent below the caller; raises `CallRefused` if there is none of that id."""
        live = self._supervisor.live(run_id)
        if live is not None and self._is_below(live, context):
            return live.view()
        found = next((view for view in await self._ended(context) if view.run_id == run_id), None)
        if found is None:
            raise failed(f"Sub-agent not found: {run_id}")
        return found

    async def _ended(self, context: CallContext) -> list[RunView]:
        """The latest sub-agents below the caller that have ended, in the order of their ends."""
        earlier = await self._earlier(context)
        ended = self._supervisor.ended_in(context.root_id, NAME).values()
        return [*earlier, *(view for view in ended if _is_below(view.path, context))][-MAX_ENDED:]

    async def _earlier(self, context: CallContext) -> list[RunView]:
        """The sub-agents in the earlier trees of the caller's chat, in the order of their ends; only a root has any."""
        if context.depth > 0:
            return []
        found: list[RunView] = []
        for root_id in (await self._supervisor.conversation(context.root_id))[:-1]:
            views = self._earlier_trees.get(root_id)
            if views is None:
                tree = await self._supervisor.list(RunQuery(root_id=root_id))
                views = [view for view in tree if view.dialect == NAME and view.parent_id is not None]
                if all(view.outcome is not None for view in tree):
                    self._earlier_trees[root_id] = views
            found += views
        return sorted(found, key=lambda view: (view.ended_at or inf, view.run_id))

    def running_counts(self, context: CallContext) -> RunningCounts:
        """The counts that concurrency limits apply to, as the calling call sees them.

        The calls of one reply are served in order: those after the calling call do not count. A call that has started a
        sub-agent and that sub-agent are one operation.
        """
        runs = list(self._supervisor.subtree(context.root_id))
        agents = [live.run.accepted for live in runs if live.run.accepted.dialect == NAME and live.run.accepted.depth]
        children = sum(accepted.parent_id == context.run_id for accepted in agents)
        started_by = {accepted.key for accepted in agents}
        calls = sum(
            call_key(live.run_id, live.run.turns, index) not in started_by
            for live in runs
            for index in live.in_flight
            if index != MODEL and (live.run_id != context.run_id or index < context.index)
        )
        return RunningCounts(len(agents), children, len(agents) + calls)

    async def peers(self, context: CallContext) -> list[Peer]:
        """The runs that the caller may message: its parent and its children, ended ones included."""
        earlier = [view for view in await self._earlier(context) if view.depth == 1]
        offline = [Peer(child_name(view.run_id, view.agent), view.run_id, is_online=False) for view in earlier]
        return [*self._peers_in_tree(context), *offline]

    def _peers_in_tree(self, context: CallContext) -> Iterator[Peer]:
        caller = self.caller(context)
        if (above := caller.run.accepted.parent_id) is not None:
            parent = self._supervisor.live(above)
            name = ROOT_NAME if context.depth == 1 else child_name(above, parent.run.accepted.agent if parent else "")
            yield Peer(name, above, parent is not None)
        for child_id in caller.children:
            child = self._supervisor.live(child_id)
            if child is not None and child.run.accepted.parent_id == context.run_id and self._is_below(child, context):
                yield Peer(child_name(child_id, child.run.accepted.agent), child_id)
        for run_id, ended in self._supervisor.ended_in(context.root_id, NAME).items():
            if ended.parent_id == context.run_id:
                yield Peer(child_name(run_id, ended.agent), run_id, is_online=False)

    def mark_read(self, view: RunView, context: CallContext) -> None:
        """Drop the notice about the end of a child that the caller has read about."""
        if view.outcome is not None and view.parent_id == context.run_id:
            self._supervisor.mark_read(context.run_id, view.run_id)

    def _is_below(self, live: LiveView, context: CallContext) -> bool:
        accepted = live.run.accepted
        return accepted.dialect == NAME and accepted.root_id == context.root_id and _is_below(accepted.path, context)


def _is_below(path: str, context: CallContext) -> bool:
    return path.startswith(f"{context.path}/")


# ---- base classes of tools ------------------------------------------------------------------------------------------


class MeerkatTool(DialectTool):
    """A tool that answers with a JSON object, or with the text of a refusal."""

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        try:
            return ToolResult(compact_json(await self._answer(arguments, context)))
        except CallRefused as refusal:
            return ToolResult(str(refusal), failed=True)
        except Refused as refusal:
            return ToolResult(str(failed(str(refusal))), failed=True)

    async def _answer(self, arguments: str, context: CallContext) -> dict[str, object]:
        raise NotImplementedError


class RelativesTool(MeerkatTool):
    """A tool for sub-agents; subclasses name it."""

    tool = ""

    def __init__(self, dialect_context: DialectContext, settings: MeerkatSettings) -> None:
        self.spec = specs(settings)[self.tool]
        self._dialect_context = dialect_context
        self._settings = settings
        self._supervisor = dialect_context.supervisor
        self._relatives = Relatives(dialect_context.supervisor)

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        # A fork may be shown tools that it may not use, so that its parent's prompt cache is shared.
        if context.depth > 0 and not self._settings.nested_tools:
            return ToolResult(self.why_hidden(context), failed=True)
        return await super().call(arguments, context)

    def why_hidden(self, context: CallContext) -> str:
        return str(failed(f"Tool access denied: {self.tool}"))
