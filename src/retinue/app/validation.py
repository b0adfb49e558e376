"""Validation of the arguments of `retinue.open`, and warnings about unknown tool names in settings and policies.

A tool that is excluded, or always asked about, under a wrong name is neither. So a wrong name is reported at the start
of a run and by `retinue doctor`; it is no error, because the tool may exist in another process.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.config import error_texts
from retinue.core.agent import Agent
from retinue.core.errors import BadInput, Problem, UnknownName
from retinue.core.policy import DEFAULT_AUTO_APPROVE, NO_TOOLS, Policy
from retinue.core.ports import Hooks, Tool, ToolLike, as_tool
from retinue.dialects.registry import tool_names
from retinue.tools.builtin import BUILTIN

if TYPE_CHECKING:
    from retinue.config.settings import Settings

AGENT_NAME = re.compile(r"[a-z0-9_-]{1,64}")


def check_agents(agents: Sequence[Agent]) -> None:
    """Raise `BadInput` for an agent name of the wrong form, or one that two agents share."""
    for agent in agents:
        if not AGENT_NAME.fullmatch(agent.name):
            raise BadInput(f"agent name {agent.name!r} does not match [a-z0-9_-]{{1,64}}: rename the agent")
    names = [agent.name for agent in agents]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(f"two agents are named {twice[0]!r}: rename one of them")


def check_tools(tools: Iterable[ToolLike | str]) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """The caller's own tools and the names of built-in ones; raises `BadInput` or `UnknownName` for anything else."""
    if isinstance(tools, str):
        raise BadInput(f"tools={tools!r} is a string: write tools=[{tools!r}]")
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
            own.append(as_tool(each))
    return tuple(own), tuple(named)


def check_hooks(hooks: Sequence[Hooks]) -> tuple[Hooks, ...]:
    """The hooks; raises `BadInput` for anything else, and for a method that is not `async def`."""
    if isinstance(hooks, Hooks):
        raise BadInput("hooks is one object: write hooks=[...]")
    for each in hooks:
        if not isinstance(each, Hooks):  # pyright: ignore[reportUnnecessaryIsInstance] callers may be untyped
            name = getattr(each, "__name__", repr(each))
            raise BadInput(f"hooks: {name} is not an object of a subclass of retinue.Hooks")
        for method in ("before_model", "after_model", "before_tool", "after_tool"):
            if not inspect.iscoroutinefunction(getattr(each, method)):
                raise BadInput(f"hooks: {type(each).__name__}.{method} has to be written with `async def`")
    return tuple(hooks)


def check_choices(*, approvals: object, durability: str, lease: float, dialects: object) -> None:
    """Raise `BadInput` for an option that is not one of its allowed values."""
    if approvals not in ("wait", "deny") and not callable(approvals):
        raise BadInput(f"approvals={approvals!r} is not valid: give 'wait', 'deny' or a callback")
    if durability not in ("process", "power"):
        raise BadInput(f"durability={durability!r} is not valid: give 'process' or 'power'")
    if lease <= 0:
        raise BadInput(f"lease={lease!r} is not valid: give a number of seconds above 0")
    if isinstance(dialects, str):
        raise BadInput(f"dialects={dialects!r} is a string: write dialects=[{dialects!r}]")


_LISTS = ("allowed_tools", "excluded_tools", "auto_approve", "always_ask")


def unknown_in_settings(settings: Settings, own: Collection[str]) -> list[Problem]:
    """The tool names in a settings file that are neither built in, nor a dialect's, nor among its `own` tools."""
    return [
        replace(named, complaint=_complaint(named.found, own))
        for named in settings.tool_references
        if not _is_known(named.found, own)
    ]


def unknown_in_code(agents: Sequence[Agent], policy: Policy | None, own: Collection[str]) -> Iterator[str]:
    """Warnings about unknown tool names in the arguments of `retinue.open`."""
    for agent in agents:
        yield from _warnings(f"agent {agent.name!r}: tools", agent.tools, own)
        if agent.policy is not None:
            yield from _policy_warnings(f"agent {agent.name!r}", agent.policy, own)
    if policy is not None:
        yield from _policy_warnings("policy", policy, own)


def _policy_warnings(owner: str, policy: Policy, own: Collection[str]) -> Iterator[str]:
    for key in _LISTS:
        yield from _warnings(f"{owner}: {key}", getattr(policy, key) or (), own)


def _warnings(where: str, names: Sequence[str], own: Collection[str]) -> Iterator[str]:
    yield from (f"{where}: {_complaint(name, own)}" for name in names if not _is_known(name, own))


def _is_known(name: str, own: Collection[str]) -> bool:
    # The default approvals name tools of another program; settings may repeat them. A profile may name tools of a
    # dialect that is not in use.
    return name in own or name in BUILTIN or name in DEFAULT_AUTO_APPROVE or name in NO_TOOLS or name in tool_names()


def _complaint(name: str, own: Collection[str]) -> str:
    match = error_texts.closest_match(name, (*own, *BUILTIN, *tool_names()))
    hint = f"; did you mean {match}?" if match else ""
    return f"there is no tool named {error_texts.describe_value(name, with_kind=False)}, so this has no effect{hint}"
