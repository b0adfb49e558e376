"""The agents that an orchestrator can use: looked up, defined and redefined on the shelf of its session."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from retinue.core.agent import Agent
from retinue.core.policy import Risk, Verdict, verdict
from retinue.core.ports import CallContext
from retinue.core.records import Decision, ShelfClosed
from retinue.dialects import spec_agents
from retinue.dialects.desk import Desk
from retinue.dialects.render import compact
from retinue.dialects.shared_context import session_archived, session_not_found
from retinue.dialects.shared_context_schema import NAME as SHARED_CONTEXT
from retinue.dialects.spec_requests import Definition, Redefine


class Registry:
    """Keeps nothing: the application's agents stand at the desk, the defined ones on a shelf."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def list(self, context: CallContext) -> bytes:
        """What `list_agents` answers."""
        caller = self._desk.brief_of(context.run_id)
        agents = spec_agents.agents_of(self._desk.agents, await self._shelf(context))
        return compact(spec_agents.listing(agents, lambda model: self._desk.resolve(model, caller)[1])).encode()

    async def define(self, request: Definition | Redefine, context: CallContext) -> bytes:
        """What `define` and `redefine` answer; a refusal is an answer too."""
        known = self.tools(context)

        def decide(shelf: Mapping[str, bytes]) -> Decision:
            registered, has_tool = self._desk.agents, known.__contains__
            if isinstance(request, Redefine):
                asked = request.definition
                return spec_agents.redefine(asked, shelf, registered=registered, is_registered_tool=has_tool)
            return spec_agents.define(request, shelf, registered=registered, is_registered_tool=has_tool)

        return await self._change(decide, context)

    async def find(self, name: str, context: CallContext) -> tuple[Agent, str]:
        """An agent, and the name of the one whose rights and windows hold for it; refused when there is none."""
        shelf = await self._shelf(context)
        agent = spec_agents.found(spec_agents.agents_of(self._desk.agents, shelf), name)
        return agent, spec_agents.origin_of(name, self._desk.agents, shelf)

    def tools(self, context: CallContext) -> frozenset[str]:
        """What the application has and the caller's policy allows, shared context included.

        What a run is offered is no bound here: rights are a matter of its policy alone.
        """
        allowed = self._desk.tools_within(context.policy)
        shared = verdict(context.policy, tool=SHARED_CONTEXT, risk=Risk.LOW).verdict is not Verdict.REFUSE
        return frozenset((*allowed, *((SHARED_CONTEXT,) if shared else ())))

    async def _shelf(self, context: CallContext) -> Mapping[str, bytes]:
        return await self._desk.shelf.look(spec_agents.space_of(context.session_id))

    async def _change(self, decide: Callable[[Mapping[str, bytes]], Decision], context: CallContext) -> bytes:
        space = spec_agents.space_of(context.session_id)
        written = await self._desk.shelf.change(space, decide, key=context.key, session_id=context.session_id)
        match written:
            case bytes():
                return written
            case ShelfClosed(why="session_archived"):
                raise session_archived(context.session_id)
            case _:
                raise session_not_found(context.session_id)
