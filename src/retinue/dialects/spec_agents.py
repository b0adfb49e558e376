"""The agents of a `spec` session: those that the application registered, and those that its orchestrator defined.

Defined agents stand on a shelf of the session, so they stay with it for as long as it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct

from retinue.core.agent import Agent
from retinue.core.ids import SessionId
from retinue.core.records import Decision
from retinue.dialects.coded import Coded
from retinue.dialects.render import compact
from retinue.dialects.spec_requests import Define, check_definition, clamped, without_delegation


class Defined(Struct, frozen=True, kw_only=True):
    """An agent on the shelf; `number` keeps the order in which agents were defined."""

    number: int
    agent: Agent


def space_of(session_id: SessionId) -> str:
    """The shelf of a session's defined agents."""
    return f"agents/{session_id}"


def define(
    request: Define,
    shelf: Mapping[str, bytes],
    *,
    registered: Sequence[Agent],
    is_registered_tool: Callable[[str], bool],
) -> Decision:
    """What a definition puts on the shelf, and what the orchestrator reads; refusals are answers too."""
    try:
        check_definition(request, is_registered_tool)
        if request.name in agents_of(registered, shelf):
            raise Coded("AGENT_ALREADY_EXISTS", f"Agent already registered: {request.name!r}")
    except Coded as refusal:
        return Decision(refusal.answer)
    defined = Defined(number=len(shelf) + 1, agent=msgspec.convert(request, Agent, from_attributes=True))
    answer = compact({"defined": request.name, "description": request.description})
    return Decision(answer.encode(), {request.name: msgspec.json.encode(defined)})


def agents_of(registered: Sequence[Agent], shelf: Mapping[str, bytes]) -> dict[str, Agent]:
    """Every agent of the session by name: the registered ones first, then the defined ones as they came.

    All are shown as `spec` uses them: without the delegation tool, and with turns within its bounds. A name that the
    application registers after it was defined means the application's agent.
    """
    defined = sorted((msgspec.json.decode(kept, type=Defined) for kept in shelf.values()), key=lambda one: one.number)
    agents: dict[str, Agent] = {}
    for agent in (*registered, *(one.agent for one in defined)):
        agents.setdefault(agent.name, _as_used(agent))
    return agents


def found(agents: Mapping[str, Agent], name: str) -> Agent:
    """The agent of that name; refused when there is none."""
    if name not in agents:
        raise Coded("AGENT_NOT_FOUND", f"Unknown agent: {name!r}")
    return agents[name]


def listing(agents: Mapping[str, Agent], shown_model: Callable[[str], str]) -> dict[str, object]:
    """What `list_agents` answers; `shown_model` gives the printed name of an agent's model."""
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


def _as_used(agent: Agent) -> Agent:
    return msgspec.structs.replace(agent, tools=without_delegation(agent.tools), max_turns=clamped(agent.max_turns))
