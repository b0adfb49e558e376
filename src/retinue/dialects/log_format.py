"""Log lines of dialects: `key=value` facts without contents, and a tool wrapper that logs one line per call."""

from __future__ import annotations

import json
import logging
import os
import re

from retinue.core.errors import ToolError
from retinue.core.ports import CallContext, PreparedCall, Tool, ToolResult, ToolWrapper

PAYLOADS = "RETINUE_LOG_PAYLOADS"
"""The environment variable that lets contents (arguments, results, values) into the logs."""

_BARE = re.compile(r"[\w.:/@+-]+", re.ASCII)
_MAX_CHARACTERS = 80


def line(**facts: object) -> str:
    """The facts in their order; facts that are None are left out.

    A value that is not a plain word is quoted and cut, so that a model cannot forge log lines.

    >>> line(action="status", task_id="t_01", error=None, turns_used=4)
    'action=status task_id=t_01 turns_used=4'
    >>> line(task_id="x\\nERROR forged")
    'task_id="x\\\\nERROR forged"'
    """
    return " ".join(f"{name}={quoted(value)}" for name, value in facts.items() if value is not None)


def quoted(value: object, limit: int = _MAX_CHARACTERS) -> str:
    """A value as it stands in a log line: bare if it is a short plain word, else a JSON string of `limit` characters.

    >>> quoted("t_01"), quoted("two words"), quoted("xxxx", 3)
    ('t_01', '"two words"', '"xxx"')
    """
    text = str(value)
    return text if _BARE.fullmatch(text) and len(text) <= limit else json.dumps(text[:limit])


def with_payloads(facts: str, **contents: object) -> str:
    """The line with contents, if the environment asks for them.

    >>> with_payloads("action=spawn", task="Find it.")
    'action=spawn'
    """
    if os.environ.get(PAYLOADS) != "1":
        return facts
    payloads = (f"{name}={json.dumps(str(value))}" for name, value in contents.items() if value is not None)
    return " ".join((facts, *payloads))


class LoggingTool(ToolWrapper):
    """Wraps a tool and logs one line at INFO for each of its calls; subclasses format the line."""

    def __init__(self, tool: Tool, log: logging.Logger) -> None:
        super().__init__(tool)
        self._log = log

    def call_line(self, context: CallContext, status: str) -> str:
        """The line about a call that ended with `status`: ok, failed, crashed or stopped."""
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
                facts = self.call_line(context, status)
                self._log.info("%s", with_payloads(facts, arguments=call.arguments, result=text))
