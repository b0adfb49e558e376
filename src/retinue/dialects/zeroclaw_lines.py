"""Log lines of `zeroclaw`: each call of a tool, with the agent and session whose it was, and nothing that was said."""

from __future__ import annotations

import logging

from retinue.core.ports import CallContext, Tool
from retinue.dialects.lines import line
from retinue.dialects.logged import WatchedTool
from retinue.dialects.zeroclaw_subagent import about, is_subagent
from retinue.engine.supervisor import Supervisor

log = logging.getLogger("retinue.zeroclaw")


class TracedTool(WatchedTool):
    """Another tool, with one line at info for each of its calls."""

    def __init__(self, tool: Tool, supervisor: Supervisor) -> None:
        super().__init__(tool, log)
        self._supervisor = supervisor

    def told(self, context: CallContext, status: str) -> str:
        """Whose call it was, and how it went."""
        facts = {"tool": self.spec.name, "turn": context.turn, "status": status}
        driven = self._supervisor.roster.live.get(context.run_id)
        if driven is not None and is_subagent(driven.run.accepted):
            return about(context.run_id, context.identity, **facts)
        return line(agent_alias=context.identity, session_key=context.run_id, **facts)
