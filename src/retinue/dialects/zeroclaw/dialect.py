"""The `zeroclaw` dialect: its tools, and log lines about tool calls and ended subagents."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from retinue.core.agent import Agent
from retinue.core.events import RunAccepted
from retinue.core.log_context import line, logger
from retinue.core.ports import CallContext, PreparedCall, Tool
from retinue.core.run import Outcome
from retinue.core.state import Run
from retinue.dialects.base import Dialect
from retinue.dialects.context import DialectContext
from retinue.dialects.logging_tool import LoggingTool
from retinue.dialects.zeroclaw import NAME
from retinue.dialects.zeroclaw.background import Background
from retinue.dialects.zeroclaw.delegate import DelegateTool
from retinue.dialects.zeroclaw.requests import DELEGATE, SPAWN
from retinue.dialects.zeroclaw.spawn import SUBAGENT, SpawnSubagentTool, is_subagent

log = logger("retinue.zeroclaw")


class TracedTool(LoggingTool):
    """A tool whose calls are logged; the run's fields are the calling agent's alias and session key."""

    def call_line(self, call: PreparedCall, context: CallContext, status: str, result: str | None) -> str:
        return line(tool=self.spec.name, turn=context.turn, status=status)


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

    def wrapped(self, tool: Tool) -> Tool:
        return TracedTool(tool, log)

    def log_fields(self, run: Run) -> Mapping[str, object]:
        """The agent's alias and the session key; the span of a subagent comes first."""
        run_id, alias = run.accepted.run_id, run.run_spec.identity or run.accepted.agent
        if not is_subagent(run.accepted):
            return {"agent_alias": alias, "session_key": run_id}
        span = f"agent.{alias}.subagent.{run_id}"
        return {"span": span, "agent_alias": alias, "session_key": f"{SUBAGENT}-{run_id}"}

    def _ended(self, accepted: RunAccepted, outcome: Outcome) -> None:
        """Log the end of a subagent or of a target of `delegate`; called in the task of the run."""
        if accepted.dialect == NAME and accepted.parent_id is not None and log.isEnabledFor(logging.INFO):
            event = "subagent_ended" if is_subagent(accepted) else "delegate_ended"
            log.info("%s", line(event=event, status=outcome.result, reason=outcome.reason, turns=outcome.turns))
