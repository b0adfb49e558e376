"""What a model writes to `call_subagent`, and what is said when it makes no sense."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.core.text import NOT_JSON

NAME = "call_subagent"

CATALOG = ("search_web", "scrape_webpage", "bash_find", "bash_ripgrep", "bash_read", "python_execute")
"""The tools that a subagent can be given, in the order of the document."""

NOT_CONFIGURED = "Subagent context is not configured"
LONGEST_NAME = 200
"""Characters of a tool's name that are told back."""

SPEC = ToolSpec(
    NAME,
    "Run a subagent with an optional tool subset.",
    msgspec.json.encode(
        {
            "type": "object",
            "properties": {
                "prompt": {"type": "string"},
                "system_prompt": {"type": ["string", "null"]},
                "tool_subset": {"type": ["array", "null"]},
            },
            "required": ["prompt"],
        }
    ).decode(),
)


class NotMet(Exception):
    """A call is not met; the text is what the model reads behind `Error: `."""


class Request(Struct, frozen=True):
    """What a subagent is to do, what it is told first, and its tools."""

    prompt: str
    system_prompt: str | None = None
    tool_subset: tuple[str, ...] | None = None


def parse(arguments: str) -> Request:
    """The arguments as the model wrote them.

    >>> parse('{"prompt": "Find it.", "tool_subset": null}')
    Request(prompt='Find it.', system_prompt=None, tool_subset=None)
    >>> parse('{"prompt": 7}')
    Traceback (most recent call last):
    retinue.dialects.buzzllm.requests.NotMet: Invalid arguments: Expected `str`, got `int` - at `$.prompt`
    """
    try:
        return msgspec.json.decode(arguments, type=Request)
    except NOT_JSON as unreadable:
        raise NotMet(f"Invalid arguments: {unreadable}") from unreadable


def subset(request: Request, catalog: Collection[str]) -> tuple[str, ...]:
    """The tools of the subagent, in the catalog's order; none unless some are asked for.

    >>> subset(Request("x", None, ("bash_read", "search_web")), CATALOG)
    ('search_web', 'bash_read')
    >>> subset(Request("x", None, ("shell", "call_subagent")), CATALOG)
    Traceback (most recent call last):
    retinue.dialects.buzzllm.requests.NotMet: Unknown tool names: call_subagent, shell
    """
    asked = set(request.tool_subset or ())
    unknown = sorted(name[:LONGEST_NAME] for name in asked - set(catalog))
    if unknown:
        raise NotMet(f"Unknown tool names: {', '.join(unknown)}")
    return tuple(name for name in catalog if name in asked)
