"""What a model reads back from the tools of `xzatoma`: results and refusals, in the sentences of the document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from retinue.dialects.arguments import compact_json
from retinue.dialects.error_codes import CallRefused

FAILED = "Subagent execution failed: "

NO_TASKS = "At least one task required"
NO_PROMPT = "task_prompt cannot be empty"

ErrorType = Literal[
    "quota_exceeded", "max_depth_reached", "invalid_input", "initialization_failed", "execution_failed", "empty_tasks"
]
"""The kinds of errors in metrics."""


class SubagentRefused(CallRefused):
    """A call that was refused or failed; its text is the `error` that the model reads."""

    def __init__(self, text: str, error_type: ErrorType = "invalid_input") -> None:
        super().__init__(text)
        self.error_type: ErrorType = error_type


def result_text(metadata: Mapping[str, str], *, output: str = "", error: str | None = None) -> str:
    """The result of a call as the model reads it.

    >>> result_text({}, error="task_prompt cannot be empty")
    '{"success":false,"output":"","error":"task_prompt cannot be empty","metadata":{}}'
    """
    return compact_json({"success": error is None, "output": output, "error": error, "metadata": metadata})


# ---- refusals --------------------------------------------------------------------------------------------------------


def invalid_input(reason: str) -> SubagentRefused:
    """The refusal of arguments with another shape."""
    return SubagentRefused(f"Invalid input: {reason}")


def missing(field: str) -> SubagentRefused:
    """The refusal of a call without a field."""
    return invalid_input(f"missing field `{field}`")


def wrong_turns(least: int, most: int) -> SubagentRefused:
    """The refusal of a number of turns."""
    return SubagentRefused(f"max_turns must be between {least} and {most}")


def not_inherited(tool: str) -> SubagentRefused:
    """The refusal to give a subagent the tool for delegation."""
    return SubagentRefused(f"Tool '{tool}' cannot be used by subagents")


def unknown_tool(name: str) -> SubagentRefused:
    """The refusal of a tool that the caller does not have."""
    return SubagentRefused(f"Unknown tool in allowed_tools: {name}")


def too_deep(depth: int, max_depth: int) -> SubagentRefused:
    """The refusal of `subagent` at the greatest depth."""
    return SubagentRefused(
        f"Maximum subagent recursion depth ({max_depth}) exceeded. Current depth: {depth}. "
        "Cannot spawn nested subagent.",
        "max_depth_reached",
    )


def too_deep_for_parallel(max_depth: int) -> SubagentRefused:
    """The refusal of `parallel_subagent` at the greatest depth."""
    return SubagentRefused(f"Maximum subagent depth {max_depth} reached", "max_depth_reached")


def quota_exceeded(reason: str) -> SubagentRefused:
    """The refusal of a call whose session has used up a quota."""
    return SubagentRefused(f"Resource quota exceeded: {reason}", "quota_exceeded")


def failed(reason: str, error_type: ErrorType) -> SubagentRefused:
    """The failure of a subagent that ran, or could not be started."""
    return SubagentRefused(f"{FAILED}{reason}", error_type)
