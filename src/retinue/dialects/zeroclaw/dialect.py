"""The `zeroclaw` dialect: its tools, and log lines about tool calls and ended subagents."""

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
    """A tool whose calls are logged with the calling agent's alias and session key."""

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
    """Offers both tools to every run; risk profiles may exclude them, and `spawn_subagent` refuses subagents."""

    name = NAME

    def __init__(self, dialect_context: DialectContext) -> None:
        self._dialect_context = dialect_context
        self._tools: dict[str, Tool] = {
            SPAWN: SpawnSubagentTool(dialect_context),
            DELEGATE: DelegateTool(dialect_context, Background(dialect_context)),
        }
        dialect_context.supervisor.on_end(self._ended)

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def offered(self, *, depth: int) -> tuple[str, ...]:
        return tuple(self._tools)

    def default_tools(self, agent: Agent) -> tuple[str, ...]:
        """All tools of the application; the agent's risk profile excludes some."""
        return tuple(self._dialect_context.tool_names)

    def around(self, tool: Tool) -> Tool:
        return TracedTool(tool, self._dialect_context.supervisor)

    def _ended(self, accepted: RunAccepted, outcome: Outcome) -> None:
        if is_subagent(accepted) and log.isEnabledFor(logging.INFO):
            facts = {"status": outcome.result, "reason": outcome.reason, "turns": outcome.turns}
            log.info("%s", about(accepted.run_id, accepted.agent, event="subagent_ended", **facts))
