"""The tools of `zeroclaw`, and its log lines about tool calls and subagents that have ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from retinue.core.agent import Agent
from retinue.core.events import RunAccepted
from retinue.core.ports import CallContext, Tool
from retinue.core.run import Outcome
from retinue.dialects.base import Dialect
from retinue.dialects.context import DialectContext
from retinue.dialects.log_format import LoggingTool, line
from retinue.dialects.zeroclaw import NAME
from retinue.dialects.zeroclaw.background import Background
from retinue.dialects.zeroclaw.delegate import DelegateTool
from retinue.dialects.zeroclaw.requests import DELEGATE, SPAWN
from retinue.dialects.zeroclaw.spawn import SpawnSubagentTool, about, is_subagent
from retinue.engine import Supervisor

log = logging.getLogger("retinue.zeroclaw")


class TracedTool(LoggingTool):
    """Another tool, with one line at info for each of its calls."""

    def __init__(self, tool: Tool, supervisor: Supervisor) -> None:
        super().__init__(tool, log)
        self._supervisor = supervisor

    def call_line(self, context: CallContext, status: str) -> str:
        facts = {"tool": self.spec.name, "turn": context.turn, "status": status}
        live = self._supervisor.live(context.run_id)
        if live is not None and is_subagent(live.run.accepted):
            return about(context.run_id, context.identity, **facts)
        return line(agent_alias=context.identity, session_key=context.run_id, **facts)


class ZeroclawDialect(Dialect):
    """Two tools, which every run has whose risk profile does not take them away; a subagent's refuses."""

    name = NAME

    def __init__(self, dialect_context: DialectContext) -> None:
        self._dialect_context = dialect_context
        self._tools: dict[str, Tool] = {
            SPAWN: SpawnSubagentTool(dialect_context),
            DELEGATE: DelegateTool(dialect_context, Background(dialect_context)),
        }
        dialect_context.supervisor.on_end(self._ended)

    def tools(self) -> Mapping[str, Tool]:
        """The dialect's tools, in the order of its document."""
        return self._tools

    def offered(self, *, depth: int) -> tuple[str, ...]:
        """Both, however deep the run is."""
        return tuple(self._tools)

    def default_tools(self, agent: Agent) -> tuple[str, ...]:
        """Every tool there is: the agent's risk profile says which of them it has."""
        return tuple(self._dialect_context.tool_names)

    def around(self, tool: Tool) -> Tool:
        """The tool, with a line for each of its calls that says whose it was."""
        return TracedTool(tool, self._dialect_context.supervisor)

    def _ended(self, accepted: RunAccepted, outcome: Outcome) -> None:
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
