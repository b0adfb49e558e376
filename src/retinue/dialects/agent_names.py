"""Names of agents as models write them: matched leniently, and listed for a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from retinue.core.agent import Agent


def agent_named(name: str, agents: Iterable[Agent]) -> Agent | None:
    """The agent of that name, in any case and with any of the signs `-`, `_` and blank; None if there is not one.

    >>> agent_named("Log Reader", [Agent(name="log_reader")]).name
    'log_reader'
    """
    known = {agent.name: agent for agent in agents}
    if name in known:
        return known[name]
    alike = [agent for agent in known.values() if plain_name(agent.name) == plain_name(name)]
    return alike[0] if len(alike) == 1 else None


def plain_name(name: str) -> str:
    """A name as it is compared: in lower case, with hyphens."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def agent_list(agents: Sequence[Agent]) -> str:
    """Lines with the names and descriptions of agents, each after a line break."""
    return "".join(f"\n- {agent.name}: {agent.description}".rstrip(": ") for agent in agents)
