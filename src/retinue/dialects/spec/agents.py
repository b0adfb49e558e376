"""The agents of a `spec` session: those that the application registered, and those that its orchestrator defined.

Defined agents are in a key-value namespace of the session, and exist as long as the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import Agent
from retinue.core.commands import Decision, NamespaceClosed
from retinue.core.ids import SessionId
from retinue.core.policy import Policy, allows
from retinue.core.ports import CallContext
from retinue.dialects.arguments import decoded, encoded
from retinue.dialects.context import DialectContext
from retinue.dialects.error_codes import CodedRefusal, JsonObject
from retinue.dialects.shared_context import NAME as SHARED_CONTEXT
from retinue.dialects.shared_context import session_archived, session_not_found
from retinue.dialects.spec import requests


class Defined(Struct, frozen=True, kw_only=True):
    """A stored agent; `number` keeps the order in which agents were defined, `version` counts its definitions.

    `origin` is the application's agent that it extends, directly or not: its policy and windows apply here too.
    """

    number: int
    agent: Agent
    version: int = 1
    origin: str = ""


def space_of(session_id: SessionId) -> str:
    """The namespace of a session's defined agents."""
    return f"agents/{session_id}"


def define(
    request: requests.Definition | requests.Redefine,
    key_value: Mapping[str, bytes],
    *,
    registered: Sequence[Agent],
    tools: Sequence[str],
) -> Decision:
    """The change that a definition makes to the namespace, and its answer; a refusal is an answer too.

    An agent that was defined before can be redefined, the application's own agents cannot. `tools` is the registry of
    tools that an agent can be given.
    """
    definition = request.definition if isinstance(request, requests.Redefine) else request
    name, known = definition.name, agents_of(registered, key_value)
    try:
        agent = _drafted(definition, known, tools)
        if isinstance(request, requests.Redefine):
            if name not in key_value or _is_registered(name, registered):
                raise CodedRefusal("AGENT_NOT_FOUND", f"No agent of this name was defined here: {name!r}")
        elif name in known:
            raise CodedRefusal("AGENT_ALREADY_EXISTS", f"Agent already registered: {name!r}")
    except CodedRefusal as refusal:
        return Decision(encoded(refusal.answer))
    origin = _origin(definition, registered, key_value)
    defined = Defined(number=len(key_value) + 1, agent=agent, origin=origin)
    answer: JsonObject = {"defined": name, "description": agent.description}
    if isinstance(request, requests.Redefine):
        before = _decoded(key_value[name])
        defined = replace(before, agent=agent, version=before.version + 1, origin=origin)
        answer = {"redefined": name, "description": agent.description, "version": defined.version}
    return Decision(encoded(answer), {name: msgspec.json.encode(defined)})


def agents_of(registered: Sequence[Agent], key_value: Mapping[str, bytes]) -> dict[str, Agent]:
    """Every agent of the session by name: first the registered ones, then the defined ones in their order.

    All are returned as `spec` uses them: without the delegation tool, and with turns within its bounds. A name that the
    application registers after it was defined means the application's agent.
    """
    defined = sorted(map(_decoded, key_value.values()), key=lambda stored: stored.number)
    agents: dict[str, Agent] = {}
    for agent in (*registered, *(stored.agent for stored in defined)):
        agents.setdefault(agent.name, _as_used(agent))
    return agents


def origin_of(name: str, registered: Sequence[Agent], key_value: Mapping[str, bytes]) -> str:
    """The agent whose policy and windows apply to this one: itself, or the application's agent that it extends."""
    if _is_registered(name, registered) or name not in key_value:
        return name
    return _decoded(key_value[name]).origin or name


def agent_named(agents: Mapping[str, Agent], name: str) -> Agent:
    """The agent of that name; raises `CodedRefusal` if there is none."""
    if name not in agents:
        raise CodedRefusal("AGENT_NOT_FOUND", f"Unknown agent: {name!r}")
    return agents[name]


def listing(agents: Mapping[str, Agent], shown_model: Callable[[str], str]) -> JsonObject:
    """The answer to `list_agents`; `shown_model` returns the printed name of an agent's model."""
    return {
        "agents": [
            {
                "name": agent.name,
                "description": agent.description,
                "model": shown_model(agent.model),
                "max_turns": agent.max_turns,
                "tools": agent.tools,
            }
            for agent in agents.values()
        ]
    }


def _drafted(request: requests.Definition, known: Mapping[str, Agent], tools: Sequence[str]) -> Agent:
    """The agent that a definition describes; raises `CodedRefusal` if it is not valid."""
    match request:
        case requests.Define():
            requests.check_definition(request, tools)
            return msgspec.convert(request, Agent, from_attributes=True)
        case requests.Extend():
            requests.check_agent_name(request.name)
            agent = _extended(agent_named(known, request.extends), request)
            requests.check_prompt(agent.system_prompt)
            # Inherited tools were checked when they were defined, and are cut to the policy with every task.
            requests.check_tools(request.tools or (), tools)
            return agent


def _extended(base: Agent, request: requests.Extend) -> Agent:
    prompt = base.system_prompt if request.system_prompt is None else request.system_prompt
    parts = (prompt, request.system_prompt_append)
    optional = {name: getattr(request, name) for name in ("description", "tools", "model", "max_turns")}
    return replace(
        base,
        name=request.name,
        system_prompt="\n\n".join(part for part in parts if part),
        fallback=base.fallback if request.model is None else (),  # a fallback belongs to its model
        policy=None,  # the current policy of its origin applies
        **{name: value for name, value in optional.items() if value is not None},
    )


def _origin(request: requests.Definition, registered: Sequence[Agent], key_value: Mapping[str, bytes]) -> str:
    if not isinstance(request, requests.Extend):
        return ""
    origin = origin_of(request.extends, registered, key_value)
    return origin if _is_registered(origin, registered) else ""


def _is_registered(name: str, registered: Sequence[Agent]) -> bool:
    return any(agent.name == name for agent in registered)


def _decoded(stored: bytes) -> Defined:
    return msgspec.json.decode(stored, type=Defined)


def _as_used(agent: Agent) -> Agent:
    return replace(agent, tools=requests.without_delegation(agent.tools), max_turns=requests.clamped(agent.max_turns))


class AgentStore:
    """The actions on agents, which are in the dialect context (registered) and in the store (defined)."""

    def __init__(self, dialect_context: DialectContext) -> None:
        self._dialect_context = dialect_context

    async def list(self, context: CallContext) -> JsonObject:
        """The answer to `list_agents`."""
        caller = self._dialect_context.run_spec_of(context.run_id)
        agents = agents_of(self._dialect_context.agents, await self._key_value(context))
        return listing(agents, lambda model: self._dialect_context.resolve(model, caller)[1])

    async def define(self, request: requests.Definition | requests.Redefine, context: CallContext) -> JsonObject:
        """The answer to `define` and `redefine`."""
        tools = self.tools(context.policy)
        written = await self._dialect_context.key_value.change(
            space_of(context.session_id),
            lambda key_value: define(request, key_value, registered=self._dialect_context.agents, tools=tools),
            key=context.key,
            session_id=context.session_id,
        )
        match written:
            case bytes():
                return decoded(written)
            case NamespaceClosed(why="session_archived"):
                raise session_archived(context.session_id)
            case _:
                raise session_not_found(context.session_id)

    async def find(self, name: str, context: CallContext) -> tuple[Agent, str]:
        """An agent, and the name of the one whose policy and windows apply to it; raises `CodedRefusal`."""
        key_value = await self._key_value(context)
        agent = agent_named(agents_of(self._dialect_context.agents, key_value), name)
        return agent, origin_of(name, self._dialect_context.agents, key_value)

    def tools(self, policy: Policy) -> tuple[str, ...]:
        """The application's tools and `shared_context`, as far as the orchestrator's policy allows them."""
        allowed = self._dialect_context.tools_within(policy)
        return (*allowed, *((SHARED_CONTEXT,) if allows(policy, SHARED_CONTEXT) else ()))

    async def _key_value(self, context: CallContext) -> Mapping[str, bytes]:
        return await self._dialect_context.key_value.look(space_of(context.session_id))
