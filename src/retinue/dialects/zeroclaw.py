"""The `zeroclaw` dialect: an agent runs itself again for a subtask, or hands work to one with rights of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from retinue.core.agent import Agent
from retinue.core.events import RunAccepted
from retinue.core.ports import Tool
from retinue.core.run import Outcome
from retinue.dialects.desk import Desk
from retinue.dialects.zeroclaw_background import Background
from retinue.dialects.zeroclaw_delegate import DelegateTool
from retinue.dialects.zeroclaw_launching import NAME
from retinue.dialects.zeroclaw_lines import TracedTool
from retinue.dialects.zeroclaw_requests import DELEGATE, SPAWN
from retinue.dialects.zeroclaw_subagent import SpawnSubagentTool, about, is_subagent
from retinue.engine.journal import Ticket

log = logging.getLogger("retinue.zeroclaw")


class ZeroclawDialect:
    """Two tools, which every run has whose risk profile does not take them away; a subagent's refuses."""

    name = NAME

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._tools: dict[str, Tool] = {
            SPAWN: SpawnSubagentTool(desk),
            DELEGATE: DelegateTool(desk, Background(desk)),
        }
        desk.supervisor.parts.on_end.append(self._ended)

    def tools(self) -> Mapping[str, Tool]:
        """The dialect's tools, in the order of its document."""
        return self._tools

    def offered(self, *, depth: int) -> tuple[str, ...]:
        """Both, however deep the run is."""
        return tuple(self._tools)

    def default_tools(self, agent: Agent) -> tuple[str, ...]:
        """Every tool there is: the agent's risk profile says which of them it has."""
        return tuple(self._desk.registry)

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        """Nothing: what there is to know about the tools stands in their descriptions."""
        return ""

    def around(self, tool: Tool) -> Tool:
        """The tool, with a line for each of its calls that says whose it was."""
        return TracedTool(tool, self._desk.supervisor)

    def _ended(self, accepted: RunAccepted, outcome: Outcome, ticket: Ticket | None) -> None:
        if is_subagent(accepted) and log.isEnabledFor(logging.INFO):
            told = about(
                accepted.run_id,
                accepted.agent,
                event="subagent_ended",
                status=outcome.result,
                reason=outcome.reason,
                turns=outcome.turns,
            )
            log.info("%s", told)
