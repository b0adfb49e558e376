"""The `meerkat` dialect: `agent_status`, `agent_cancel`, `agent_list`, and notices about ended sub-agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retinue.core.agent import Agent, ToolKind
from retinue.core.errors import BadInput
from retinue.core.events import RunAccepted
from retinue.core.ports import CallContext, Tool
from retinue.core.run import Outcome
from retinue.core.text import quote_headers
from retinue.dialects.base import Dialect
from retinue.dialects.context import DialectContext
from retinue.dialects.meerkat import NAME, answers, comms, requests
from retinue.dialects.meerkat.answers import HOST_AGENT, child_name
from retinue.dialects.meerkat.relatives import MAX_ENDED, RelativesTool, own_name
from retinue.dialects.meerkat.requests import ListRequest, OneRequest, agent_id_of, arguments_struct
from retinue.dialects.meerkat.settings import DEFAULTS, MeerkatSettings, mistakes
from retinue.dialects.meerkat.spawn import ForkTool, SpawnTool
from retinue.engine import RunView

TASK_SHOWN = 200
"""Characters of a task that the notice about its end repeats."""


class MeerkatDialect(Dialect):
    """The five tools, and the comms tools if the settings enable them."""

    name = NAME

    def __init__(self, dialect_context: DialectContext, settings: MeerkatSettings = DEFAULTS) -> None:
        for key, complaint in mistakes(settings):
            raise BadInput(f"[sub_agents] {key}: {complaint}")
        dialect_context.supervisor.limit_remembered(NAME, MAX_ENDED)
        self._dialect_context = dialect_context
        self._settings = settings
        self._tools: dict[str, Tool] = {
            requests.SPAWN: SpawnTool(dialect_context, settings),
            requests.FORK: ForkTool(dialect_context, settings),
            requests.STATUS: StatusTool(dialect_context, settings),
            requests.CANCEL: CancelTool(dialect_context, settings),
            requests.LIST: ListTool(dialect_context, settings),
        }
        self._tools |= comms.tools(dialect_context, settings)

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        return comms.usage_of(offered, self._settings)

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str:
        """The notice to a parent about a child that has ended: its task, and its output or error."""
        state = answers.state_of(outcome, accepted.agent)
        name = child_name(accepted.run_id, accepted.agent)
        task = comms.without_block(accepted.task) if self._settings.enable_comms else accepted.task
        text = (
            answers.output_of(outcome, self._last_words(accepted))
            if state == "completed"
            else answers.error_of(outcome)
        )
        return f"[sub-agent {name} {state}] Task: {task[:TASK_SHOWN]}\n{quote_headers(text)}"

    def _last_words(self, accepted: RunAccepted) -> str:
        """The text of the last completed exchange of a host."""
        live = self._dialect_context.supervisor.live(accepted.run_id)
        return live.run.exchanges[-1].text if live is not None and live.run.exchanges else ""


class StatusTool(RelativesTool):
    tool = requests.STATUS
    kind: ToolKind = "pure"

    async def _answer(self, arguments: str, context: CallContext) -> dict[str, object]:
        view = await self._relatives.find(agent_id_of(arguments_struct(arguments, OneRequest).agent_id), context)
        self._relatives.mark_read(view, context)
        return answers.status(view, self._dialect_context.clock.now(), last_words=await self._last_words(view))

    async def _last_words(self, view: RunView) -> str:
        """The last text of a host that ended without one."""
        if view.agent != HOST_AGENT or view.outcome is None or view.outcome.text:
            return ""
        exchanges = (await self._supervisor.replay(view.run_id)).exchanges
        return exchanges[-1].text if exchanges else ""


class CancelTool(RelativesTool):
    tool = requests.CANCEL

    async def _answer(self, arguments: str, context: CallContext) -> dict[str, object]:
        view = await self._relatives.find(agent_id_of(arguments_struct(arguments, OneRequest).agent_id), context)
        state = answers.state_of(view.outcome, view.agent)
        # The note names the call, so that the same call, entered again after a crash, answers the same.
        note = f"cancelled by {own_name(context)} (turn {context.turn}, call {context.index})"
        if state == "running":
            await self._supervisor.cancel(view.run_id, note=note)
            outcome = (await self._supervisor.wait([view.run_id]))[view.run_id]
            view = await self._relatives.find(view.run_id, context)
            state = answers.state_of(outcome, view.agent)
        is_done = view.outcome is not None and state == "cancelled" and view.outcome.error == note
        if is_done:
            self._relatives.mark_read(view, context)  # no notice: the caller cancelled it
        refusal = f"Cannot cancel sub-agent: already {state} (only running agents can be cancelled)"
        return {
            "agent_id": view.run_id,
            "success": is_done,
            "previous_state": "running" if is_done else state,
            "message": answers.CANCELLED if is_done else refusal,
        }


class ListTool(RelativesTool):
    tool = requests.LIST
    kind: ToolKind = "pure"

    async def _answer(self, arguments: str, context: CallContext) -> dict[str, object]:
        arguments_struct(arguments, ListRequest)
        now = self._dialect_context.clock.now()
        known = await self._relatives.known(context)
        for view in known:
            self._relatives.mark_read(view, context)
        return answers.listing([answers.row(view, now) for view in known])
