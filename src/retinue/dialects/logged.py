"""A tool whose calls are logged: who called, what became of it, and nothing of what was said."""

from __future__ import annotations

import logging

from retinue.core.agent import ToolKind, ToolSpec
from retinue.core.errors import ToolError
from retinue.core.policy import Risk
from retinue.core.ports import CallContext, Clock, Tool, ToolResult
from retinue.dialects.lines import line, with_payloads
from retinue.dialects.render import rfc3339


class LoggedTool:
    """Another tool, with one line at info for each of its calls; `space` is whose handles are called task ids."""

    def __init__(self, tool: Tool, log: logging.Logger, clock: Clock, *, space: str) -> None:
        self._tool = tool
        self._log = log
        self._clock = clock
        self._space = space

    @property
    def spec(self) -> ToolSpec:
        """How the model sees it."""
        return self._tool.spec

    @property
    def kind(self) -> ToolKind:
        """What a crash in the middle means."""
        return self._tool.kind

    @property
    def risk(self) -> Risk:
        """How much there is to lose."""
        return self._tool.risk

    @property
    def timeout(self) -> float | None:
        """Seconds a call may take."""
        return self._tool.timeout

    @property
    def waits(self) -> bool:
        """Whether the call waits for other runs."""
        return self._tool.waits

    @property
    def stoppable(self) -> bool:
        """Whether cancelling the call stops the work."""
        return self._tool.stoppable

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Make the call, and tell what became of it; nothing else changes."""
        status, said = "stopped", None  # unless it comes to an end of its own
        try:
            result = await self._tool.call(arguments, context)
            status, said = "failed" if result.failed else "ok", result.text
            return result
        except ToolError as error:
            status, said = "failed", str(error)
            raise
        except Exception:
            status = "crashed"
            raise
        finally:
            if self._log.isEnabledFor(logging.INFO):
                self._tell(context, status, arguments, said)

    def _tell(self, context: CallContext, status: str, arguments: str, said: str | None) -> None:
        handle = context.handle
        told = line(
            session_id=context.session_id,
            task_id=handle.name if handle is not None and handle.space == self._space else None,
            agent=context.agent or None,
            action="call",
            tool=self.spec.name,
            turn=context.turn,
            status=status,
            timestamp=rfc3339(self._clock.now()),
        )
        self._log.info("%s", with_payloads(told, arguments=arguments, result=said))
