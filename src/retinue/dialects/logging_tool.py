"""A tool whose calls are logged: who called, what became of it, and nothing of what was said."""

from __future__ import annotations

import logging

from retinue.core.errors import ToolError
from retinue.core.ports import CallContext, Clock, PreparedCall, Tool, ToolResult, ToolWrapper
from retinue.dialects.log_format import line, with_payloads
from retinue.dialects.text import rfc3339


class WatchedTool(ToolWrapper):
    """Another tool, with one line at info for each of its calls; whoever watches says what stands in it."""

    def __init__(self, tool: Tool, log: logging.Logger) -> None:
        super().__init__(tool)
        self._log = log

    def told(self, context: CallContext, status: str) -> str:
        """The line about a call that came to `status`."""
        raise NotImplementedError

    async def run(self, call: PreparedCall, context: CallContext) -> ToolResult:
        """Make the call and log it."""
        status, said = "stopped", None  # unless it comes to an end of its own
        try:
            result = await call.run(context)
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
                told = self.told(context, status)
                self._log.info("%s", with_payloads(told, arguments=call.arguments, result=said))


class LoggedTool(WatchedTool):
    """A watched tool whose line has the session and the task; `space` is whose handles are called task ids."""

    def __init__(self, tool: Tool, log: logging.Logger, clock: Clock, *, space: str) -> None:
        super().__init__(tool, log)
        self._clock = clock
        self._space = space

    def told(self, context: CallContext, status: str) -> str:
        """Who called what, when, and how it went."""
        handle = context.handle
        return line(
            session_id=context.session_id,
            task_id=handle.name if handle is not None and handle.space == self._space else None,
            agent=context.agent or None,
            action="call",
            tool=self.spec.name,
            turn=context.turn,
            status=status,
            timestamp=rfc3339(self._clock.now()),
        )
