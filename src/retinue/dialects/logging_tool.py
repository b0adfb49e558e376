"""A tool wrapper that logs one line for each call."""

from __future__ import annotations

import logging

from retinue.core.errors import ToolError
from retinue.core.ports import CallContext, PreparedCall, Tool, ToolResult, ToolWrapper


class LoggingTool(ToolWrapper):
    """Wraps a tool and logs one line at INFO for each of its calls; subclasses format the line."""

    def __init__(self, tool: Tool, log: logging.Logger) -> None:
        super().__init__(tool)
        self._log = log

    def call_line(self, call: PreparedCall, context: CallContext, status: str, result: str | None) -> str:
        """The line about a call that ended with `status`: ok, failed, crashed or stopped.

        `result` is None for a call without one. The engine logs the contents of all calls; a line has them only
        if the dialect promises it.
        """
        raise NotImplementedError

    async def run(self, call: PreparedCall, context: CallContext) -> ToolResult:
        """Make the call and log it, also if it is cancelled."""
        status, text = "stopped", None
        try:
            result = await call.run(context)
            status, text = "failed" if result.failed else "ok", result.text
            return result
        except ToolError as error:
            status, text = "failed", str(error)
            raise
        except Exception:
            status = "crashed"
            raise
        finally:
            if self._log.isEnabledFor(logging.INFO):
                self._log.info("%s", self.call_line(call, context, status, text))
