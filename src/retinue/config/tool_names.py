"""Where a settings file names tools: for agents to use, and in what their profiles allow and ask about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from retinue.config.agents import AGENTS, AgentSettings
from retinue.config.key_paths import KeyPath
from retinue.config.profiles import RISK_PROFILES, RiskSettings


def named_tools(
    agents: Mapping[str, AgentSettings], risk_profiles: Mapping[str, RiskSettings]
) -> Iterator[tuple[KeyPath, str]]:
    """Every name with its place; whether there is such a tool is known only when all tools are there.

    >>> list(named_tools({"dig": AgentSettings(tools=("shell",))}, {}))
    [(('agents', 'dig', 'tools', 0), 'shell')]
    """
    for alias, agent in agents.items():
        for place, name in enumerate(agent.tools or ()):
            yield (AGENTS.name, alias, "tools", place), name
    for profile, risk in risk_profiles.items():
        lists = {
            "allowed_tools": risk.allowed_tools,
            "excluded_tools": risk.excluded_tools,
            "auto_approve": risk.auto_approve,
            "always_ask": risk.always_ask,
        }
        for key, names in lists.items():
            for place, name in enumerate(names):
                yield (RISK_PROFILES.name, profile, key, place), name
