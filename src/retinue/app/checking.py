"""What `retinue.open` refuses, with words that say what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from retinue.app.builtin import BUILTIN
from retinue.core.agent import Agent
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ports import Tool

AGENT_NAME = re.compile(r"[a-z0-9_-]{1,64}")


def check_agents(agents: Sequence[Agent]) -> None:
    """Names have one form in every dialect, and each means one agent."""
    for agent in agents:
        if not AGENT_NAME.fullmatch(agent.name):
            raise BadInput(f"agent name {agent.name!r} does not match [a-z0-9_-]{{1,64}}: rename the agent")
    names = [agent.name for agent in agents]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(f"two agents are named {twice[0]!r}: rename one of them")


def check_tools(tools: Iterable[Tool | str]) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """Everything that is meant to be a tool is one: the caller's own, and the names of built-in ones."""
    if isinstance(tools, str):
        raise BadInput(f"tools={tools!r} is a text: write tools=[{tools!r}]")
    own: list[Tool] = []
    named: list[str] = []
    for each in tools:
        if isinstance(each, str):
            if each not in BUILTIN:
                raise UnknownName("built-in tool", each, tuple(BUILTIN))
            named.append(each)
        elif not hasattr(each, "spec") or not hasattr(each, "call"):
            name = getattr(each, "__name__", repr(each))
            raise BadInput(f"{name} is not a tool: decorate the function with @retinue.tool")
        else:
            own.append(each)
    return tuple(own), tuple(named)


def check_choices(*, approvals: object, durability: str, lease: float, dialects: object) -> None:
    """Options that have a few right values."""
    if approvals not in ("wait", "deny") and not callable(approvals):
        raise BadInput(f"approvals={approvals!r} is none of 'wait', 'deny' and a callback")
    if durability not in ("process", "power"):
        raise BadInput(f"durability={durability!r} is neither 'process' nor 'power'")
    if lease <= 0:
        raise BadInput(f"lease={lease!r} is not a number of seconds above 0")
    if isinstance(dialects, str):
        raise BadInput(f"dialects={dialects!r} is a text: write dialects=[{dialects!r}]")
