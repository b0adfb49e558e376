"""Names of agents as models write them: matched leniently, and listed for a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

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


MAX_CHARACTERS = 16_000
"""Characters of a list of agents; the ones after them are counted."""

MAX_DESCRIPTION = 1024
"""Characters of a tool's description that every vendor takes."""


def agent_list(agents: Sequence[Agent], most: int = MAX_CHARACTERS) -> str:
    r"""Lines with the names and descriptions of agents, each after a line break; the first ones that fit.

    >>> agent_list([Agent(name="dig", description="Digs."), Agent(name="write", description="Writes texts.")], 30)
    '\n- dig: Digs.\n- and 1 more'
    """
    lines = [f"\n- {agent.name}: {agent.description}".rstrip(": ") for agent in agents]
    if sum(map(len, lines)) <= most:
        return "".join(lines)
    room = most - len(f"\n- and {len(lines)} more")
    fitting = sum(total <= room for total in accumulate(map(len, lines)))
    return "".join(lines[:fitting]) + f"\n- and {len(lines) - fitting} more"
