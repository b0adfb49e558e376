"""The schema of `call_subagent`, the parsing of its arguments, and its refusals."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.dialects.arguments import compact_json, decode, name_list_schema
from retinue.dialects.error_codes import CallRefused

CALL_SUBAGENT = "call_subagent"

CATALOG = ("search_web", "scrape_webpage", "bash_find", "bash_ripgrep", "bash_read", "python_execute")
"""The tools that a subagent can have, in the order of the document."""

NOT_CONFIGURED = "Subagent context is not configured"
MAX_NAME_CHARACTERS = 200
"""Characters of a tool's name that a refusal repeats."""


def spec_of(tools: Sequence[str]) -> ToolSpec:
    """`call_subagent`, with the names of the tools that its subagents can have."""
    about = "Names of the tools that the subagent has; none by default."
    schema = {
        "type": "object",
        "properties": {
            "prompt": {"type": "string"},
            "system_prompt": {"type": ["string", "null"]},
            "tool_subset": name_list_schema(tools, about) | {"type": ["array", "null"]},
        },
        "required": ["prompt"],
    }
    return ToolSpec(CALL_SUBAGENT, "Run a subagent with an optional tool subset.", compact_json(schema))


class SubagentCall(Struct, frozen=True):
    """A subagent's task, its system prompt and its tools."""

    prompt: str
    system_prompt: str | None = None
    tool_subset: tuple[str, ...] | None = None


def parse(arguments: str) -> SubagentCall:
    """The arguments of a call.

    >>> parse('{"prompt": "Find it.", "tool_subset": null}')
    SubagentCall(prompt='Find it.', system_prompt=None, tool_subset=None)
    >>> parse('{"prompt": 7}')
    Traceback (most recent call last):
    retinue.dialects.error_codes.CallRefused: Invalid arguments: Expected `str`, got `int` - at `$.prompt`
    """
    return decode(arguments, SubagentCall, refuse=lambda reason: CallRefused(f"Invalid arguments: {reason}"))


def subset(requested: Sequence[str] | None, catalog: Sequence[str] = CATALOG) -> tuple[str, ...]:
    """The requested tools in the order of `catalog`; raises `CallRefused` for others.

    >>> subset(["bash_read", "search_web"])
    ('search_web', 'bash_read')
    >>> subset(["shell"], ["search_web", "bash_read"])
    Traceback (most recent call last):
    retinue.dialects.error_codes.CallRefused: Unknown tool names: shell
    """
    names = set(requested or ())
    unknown = sorted(name[:MAX_NAME_CHARACTERS] for name in names - set(catalog))
    if unknown:
        raise CallRefused(f"Unknown tool names: {', '.join(unknown)}")
    return tuple(name for name in catalog if name in names)
