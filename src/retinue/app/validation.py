"""Validation of the arguments of `retinue.open`, and warnings about unknown tool names in settings and policies.

A tool that is excluded, or always asked about, under a wrong name is neither. So a wrong name is reported at the start
of a run and by `retinue doctor`; it is no error, because the tool may exist in another process.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace as replace_struct

from retinue.app.handle import AgentTool, HandoffTool
from retinue.config import error_texts
from retinue.core.agent import SERVER_PREFIX, Agent, is_server_tool, wrong_type
from retinue.core.errors import BadInput, Problem, UnknownName
from retinue.core.policy import DEFAULT_AUTO_APPROVE, NO_TOOLS, Policy
from retinue.core.ports import Hooks, Tool, ToolLike, as_tool
from retinue.dialects.base import Dialect
from retinue.dialects.registry import PACKAGES, tool_names
from retinue.mcp_client import GET_PROMPT, PREFIX, READ_RESOURCE
from retinue.providers.acp import TOOLS as AGENT_TOOLS
from retinue.tools.builtin import BUILTIN
from retinue.tools.function import tool

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


def check_types(
    *, model: object, provider: object, providers: object, policy: object, session: object, agents: object
) -> None:
    """Raise `BadInput` for arguments of `retinue.open` of a wrong type, with what was expected."""
    for name, value, expected in (
        ("model", model, str),
        ("policy", policy, (Policy, NoneType)),
        ("session", session, (str, NoneType)),
        ("providers", providers, (Mapping, NoneType)),
    ):
        if not isinstance(value, expected):
            raise wrong_type("open", name, value, expected)
    if not (provider is None or isinstance(provider, str) or callable(getattr(provider, "answer", None))):
        raise BadInput(
            f"open: provider={provider!r:.80} is a {type(provider).__name__}; expected the name of a wire or of a "
            "configured provider, or an object with the method `async def answer(self, request, publish)`"
        )
    if isinstance(provider, type):
        raise BadInput(f"open: provider is the class {provider.__name__}: write {provider.__name__}()")
    if isinstance(agents, Agent) or not isinstance(agents, Iterable):
        raise BadInput("open: agents is not a list: write agents=[retinue.Agent(...)]")
    for each in cast("Iterable[object]", agents):
        if not isinstance(each, Agent):
            raise BadInput(f"open: agents has a {type(each).__name__}: expected objects of retinue.Agent")


def with_own_tools(agents: Sequence[Agent], tools: Iterable[object]) -> tuple[tuple[Agent, ...], tuple[Tool, ...]]:
    """The agents with names in place of tools and functions, those that are used as tools included; and these tools."""
    named: dict[str, Agent] = {}
    found: dict[str, Tool] = {}
    waiting = [*agents, *_agents_of(tools)]
    for agent in waiting:  # grows while it is read
        if agent.name in named and agent is not named[agent.name] and agent not in agents:
            continue
        objects = [_as_tool(agent, each) for each in agent.tools if not isinstance(each, str)]
        found |= {tool.spec.name: tool for tool in objects}
        waiting += [each for each in _agents_of(objects) if each.name not in {known.name for known in waiting}]
        named.setdefault(agent.name, agent)
    ordered = [*agents, *(agent for name, agent in named.items() if name not in {known.name for known in agents})]
    bare = (replace_struct(agent, tools=tuple(_name_of(each) for each in agent.tools)) for agent in ordered)
    return tuple(bare), tuple(found.values())


def _agents_of(tools: Iterable[object]) -> list[Agent]:
    return [each.agent for each in tools if isinstance(each, AgentTool | HandoffTool)]


def _as_tool(agent: Agent, each: object) -> Tool:
    if hasattr(each, "spec") and hasattr(each, "call"):
        return as_tool(cast("ToolLike", each))
    if callable(each) and not isinstance(each, type):
        return tool(each)
    raise BadInput(f"Agent {agent.name!r}: tools has {each!r:.80}: expected names, tools or functions")


def _name_of(each: object) -> str:
    if isinstance(each, str):
        return each
    spec = getattr(each, "spec", None)
    return spec.name if spec is not None else getattr(each, "__name__", "")


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


def check_approvals(approvals: object) -> None:
    if approvals not in ("wait", "deny") and not callable(approvals):
        raise BadInput(f"approvals={approvals!r} is not valid: give 'wait', 'deny' or a callback")


def check_choices(*, approvals: object, durability: str, lease: float, dialects: object) -> None:
    """Raise `BadInput` for an option that is not one of its allowed values."""
    check_approvals(approvals)
    if durability not in ("process", "power"):
        raise BadInput(f"durability={durability!r} is not valid: give 'process' or 'power'")
    if lease <= 0:
        raise BadInput(f"lease={lease!r} is not valid: give a number of seconds above 0")
    if isinstance(dialects, str):
        raise BadInput(f"dialects={dialects!r} is a string: write dialects=[{dialects!r}]")
    if not isinstance(dialects, Iterable):
        raise BadInput("dialects is not a list: write dialects=[...]")
    for each in cast("Iterable[object]", dialects):
        if isinstance(each, type):
            raise BadInput(f"dialects: {each.__name__} is a class: write {each.__name__}()")
        if not isinstance(each, str | Dialect):
            raise BadInput(f"dialects: found a {type(each).__name__}; expected names or objects of retinue.Dialect")
        if isinstance(each, Dialect) and each.name in PACKAGES:
            raise BadInput(f"dialects: {each.name!r} is the name of a built-in dialect: choose another name")


_LISTS = ("allowed_tools", "excluded_tools", "auto_approve", "always_ask")


def unknown_in_settings(settings: Settings, own: Collection[str]) -> list[Problem]:
    """The tool names in a settings file that are neither built in, nor a dialect's, nor among its `own` tools."""
    own = (*own, *(SERVER_PREFIX + name for name in settings.server_tools))
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
    if name.startswith(PREFIX) or name in (READ_RESOURCE, GET_PROMPT):
        return True  # the tools of an MCP server are known when it has been asked
    if is_server_tool(name):
        from retinue.tools.server_tools import standard_tools  # imported late: few settings name one

        return name in own or name in standard_tools()
    return (
        name in own
        or name in AGENT_TOOLS
        or name in BUILTIN
        or name in DEFAULT_AUTO_APPROVE
        or name in NO_TOOLS
        or name in tool_names()
    )


def _complaint(name: str, own: Collection[str]) -> str:
    match = error_texts.closest_match(name, (*own, *BUILTIN, *tool_names()))
    hint = f"; did you mean {match}?" if match else ""
    return f"there is no tool named {error_texts.describe_value(name, with_kind=False)}, so this has no effect{hint}"
