"""How a model looks after its sub-agents in `meerkat`: `agent_status`, `agent_cancel` and `agent_list`."""

from __future__ import annotations

from retinue.core.agent import ToolKind
from retinue.core.ports import CallContext
from retinue.dialects.meerkat import schema, views
from retinue.dialects.meerkat.requests import ListRequest, OneRequest, agent_id_of, parsed
from retinue.dialects.meerkat.schema import CANCEL, LIST, STATUS
from retinue.dialects.meerkat.tool import AgentTool
from retinue.dialects.meerkat.views import HOST, own_name
from retinue.engine import RunView


class StatusTool(AgentTool):
    """`agent_status`."""

    tool = STATUS
    kind: ToolKind = "pure"

    async def _answer(self, arguments: str, context: CallContext) -> dict[str, object]:
        view = self._kin.find(agent_id_of(parsed(arguments, OneRequest).agent_id), context)
        self._kin.has_read(view, context)
        return views.status(view, self._dialect_context.clock.now(), last_words=await self._last_words(view))

    async def _last_words(self, view: RunView) -> str:
        """What a host that ended without a word had said before."""
        if view.agent != HOST or view.outcome is None or view.outcome.text:
            return ""
        exchanges = (await self._supervisor.replay(view.run_id)).exchanges
        return exchanges[-1].text if exchanges else ""


class CancelTool(AgentTool):
    """`agent_cancel`."""

    tool = CANCEL

    async def _answer(self, arguments: str, context: CallContext) -> dict[str, object]:
        view = self._kin.find(agent_id_of(parsed(arguments, OneRequest).agent_id), context)
        state = views.state_of(view.outcome, view.agent)
        # Which call it was stands in the note: entered again after a crash, it answers as it would have then.
        note = f"cancelled by {own_name(context)} (turn {context.turn}, call {context.index})"
        if state == "running":
            await self._supervisor.cancel(view.run_id, note=note)
            outcome = (await self._supervisor.wait([view.run_id]))[view.run_id]
            view = self._kin.find(view.run_id, context)
            state = views.state_of(outcome, view.agent)
        is_done = view.outcome is not None and state == "cancelled" and view.outcome.error == note
        if is_done:
            self._kin.has_read(view, context)  # who cancels need not be told
        return {
            "agent_id": view.run_id,
            "success": is_done,
            "previous_state": "running" if is_done else state,
            "message": schema.CANCELLED
            if is_done
            else f"Cannot cancel sub-agent: already {state} (only running agents can be cancelled)",
        }


class ListTool(AgentTool):
    """`agent_list`."""

    tool = LIST
    kind: ToolKind = "pure"

    async def _answer(self, arguments: str, context: CallContext) -> dict[str, object]:
        parsed(arguments, ListRequest)
        now = self._dialect_context.clock.now()
        running = [views.running_row(each, now) for each in self._kin.running(context)]
        ended = self._kin.ended(context)
        for view in ended:
            self._kin.has_read(view, context)
        return views.listing([*running, *map(views.ended_row, ended)])
