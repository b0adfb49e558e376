"""What `run`, `chat` and jobs settle in the same way before a run starts: its settings, its limits, and its price."""

from __future__ import annotations

from msgspec.structs import replace

from retinue.app.launch.model_choice import ModelChoice, unpriced
from retinue.app.run_spec import MAX_TURNS
from retinue.app.settings_file import load_settings
from retinue.config.settings import Settings
from retinue.core.agent import Agent
from retinue.core.errors import UnknownName
from retinue.core.policy import Policy
from retinue.core.run import Limits
from retinue.core.usage import NANO


def settings_for(config: str | None, *, agent: str | None) -> Settings:
    """The settings to start with; an agent that was named has to be among them."""
    settings = load_settings(config)
    if agent is not None and agent not in settings.agents:
        raise UnknownName("agent", agent, tuple(settings.agents))
    return settings


def limits_for(
    settings: Settings,
    agent: str | None,
    *,
    wrap_up: bool = False,
    max_turns: int | None = None,
    max_tokens: int | None = None,
    max_cost: float | None = None,
    timeout: float | None = None,
) -> Limits:
    """What the flags allow, on top of what the settings say about the agent, on top of what holds for everyone."""
    limits = Limits(max_turns=MAX_TURNS, wrap_up=wrap_up)
    if agent is not None and agent in settings.agents:
        limits = settings.agents[agent].limits_over(limits)
    said = {
        "max_turns": max_turns,
        "max_tokens": max_tokens,
        "max_cost": None if max_cost is None else round(max_cost * NANO),
        "seconds": timeout,
    }
    return replace(limits, **{name: value for name, value in said.items() if value is not None})


def uncounted(
    model_choice: ModelChoice, settings: Settings, limits: Limits, *, agent: str | None, delegates: bool
) -> list[str]:
    """The warnings that a limit on money cannot be enforced, whoever wrote it down: the limits, or a policy by the day.

    What limits a run also limits those it delegates to. The limit that every policy has is no news to anybody who did
    not write one down.
    """
    agents = settings.core_agents()
    root = next((each for each in agents if each.name == agent), None)
    if limits.max_cost is not None or (root is not None and _limits_money(root)):
        return unpriced(model_choice, agents if delegates else (), root.fallback if root is not None else ())
    limited = [each for each in agents if delegates and _limits_money(each)]
    asks_the_first = any(not each.model for each in limited)
    return unpriced(model_choice, limited, first=asks_the_first)


def _limits_money(agent: Agent) -> bool:
    return agent.policy is not None and agent.policy.max_cost_per_day_cents != Policy().max_cost_per_day_cents
