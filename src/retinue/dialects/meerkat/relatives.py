"""Whom a run of `meerkat` knows: the sub-agents below it, running and lately ended, and the peers that it may message.

All of it is read off the runs of this process; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.core.ports import CallContext
from retinue.core.step import MODEL
from retinue.dialects.meerkat import NAME
from retinue.dialects.meerkat.requests import failed
from retinue.dialects.meerkat.views import ROOT_NAME, name_of
from retinue.engine import LiveView, RunView, Supervisor


class Crowd(Struct, frozen=True):
    """How many are at work: sub-agents of the tree, children of the caller, and operations in the tree."""

    agents: int
    children: int
    operations: int


class Peer(Struct, frozen=True):
    """Somebody that a run can message; one that has ended is remembered as offline."""

    name: str
    run_id: RunId
    is_online: bool = True

    @property
    def shown(self) -> dict[str, object]:
        """The peer in a list."""
        return {"name": self.name, "peer_id": self.run_id, "address": f"inproc://{self.name}"}


class Kin:
    """Looks around from where a call is made."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def caller(self, context: CallContext) -> LiveView:
        """The run that calls."""
        live = self._supervisor.live(context.run_id)
        if live is None:
            raise failed("the caller is being stopped")
        return live

    def running(self, context: CallContext) -> Iterator[RunAccepted]:
        """The sub-agents below the caller that run."""
        for live in self._supervisor.subtree(context.run_id):
            accepted = live.run.accepted
            if accepted.dialect == NAME and accepted.run_id != context.run_id:
                yield accepted

    def ended(self, context: CallContext) -> list[RunView]:
        """Those that are over and still known, in the order of their ends."""
        ended = self._supervisor.ended_in(context.root_id, NAME).values()
        return [view for view in ended if _is_below(view.path, context)]

    def find(self, run_id: RunId, context: CallContext) -> RunView:
        """One sub-agent below the caller."""
        live = self._supervisor.live(run_id)
        if live is not None and self._is_below(live, context):
            return live.view()
        ended = self._supervisor.ended_in(context.root_id, NAME).get(run_id)
        if ended is not None and _is_below(ended.path, context):
            return ended
        raise failed(f"Sub-agent not found: {run_id}")

    def crowd(self, context: CallContext) -> Crowd:
        """How many are at work, the calling call left out."""
        agents = calls = children = 0
        for live in self._supervisor.subtree(context.root_id):
            accepted = live.run.accepted
            if accepted.dialect == NAME and accepted.depth > 0:
                agents += 1
                children += accepted.parent_id == context.run_id
            calls += sum(index != MODEL for index in live.in_flight)
        return Crowd(agents, children, agents + calls - 1)

    def peers(self, context: CallContext) -> Iterator[Peer]:
        """Those that the caller trusts: its parent, and its children, also those that have ended lately."""
        caller = self.caller(context)
        if (above := caller.run.accepted.parent_id) is not None:
            parent = self._supervisor.live(above)
            name = ROOT_NAME if context.depth == 1 else name_of(above, parent.run.accepted.agent if parent else "")
            yield Peer(name, above, parent is not None)
        for child_id in caller.children:
            child = self._supervisor.live(child_id)
            if child is not None and child.run.accepted.parent_id == context.run_id and self._is_below(child, context):
                yield Peer(name_of(child_id, child.run.accepted.agent), child_id)
        for run_id, ended in self._supervisor.ended_in(context.root_id, NAME).items():
            if ended.parent_id == context.run_id:
                yield Peer(name_of(run_id, ended.agent), run_id, is_online=False)

    def has_read(self, view: RunView, context: CallContext) -> None:
        """The caller has read how a child of its own ended: that is no news to it any more."""
        if view.outcome is not None and view.parent_id == context.run_id:
            self._supervisor.mark_read(context.run_id, view.run_id)

    def _is_below(self, live: LiveView, context: CallContext) -> bool:
        accepted = live.run.accepted
        return accepted.dialect == NAME and accepted.root_id == context.root_id and _is_below(accepted.path, context)


def _is_below(path: str, context: CallContext) -> bool:
    return path.startswith(f"{context.path}/")
