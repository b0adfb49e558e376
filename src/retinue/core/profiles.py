"""Runtime profiles and configured policies of agents, and the windows that enforce a policy's hourly and daily limits.

A configured policy is also enforced by windows: actions per hour and cost per day, counted over all runs with the same
identity. Without a configured policy nothing is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.budget import Caps, Window
from retinue.core.policy import Policy, intersect

HOUR = 3600.0
DAY = 86400.0
NANODOLLARS_IN_A_CENT = 10_000_000
MAX_STORED = 2**63 - 1
"""The largest integer that a store can hold."""

ACTIONS = "actions/"
COST = "cost/"


class RuntimeProfile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Runtime options of an agent that are not permissions.

    `agentic` gives it tools and several turns; otherwise it answers once. The two timeouts apply to tasks delegated to
    it. `delegation_ceiling` says whether agents to which it delegates are bound by its policy as well as by their own.

    >>> RuntimeProfile(delegation_ceiling="caller").agentic
    True
    """

    agentic: bool = True
    max_tool_iterations: int = 10
    max_delegation_depth: int = 3
    delegation_timeout_secs: float | None = None
    agentic_timeout_secs: float | None = None
    delegation_ceiling: Literal["target", "caller"] = "target"
    sandbox_enabled: bool = True


class Rules(Struct, frozen=True, kw_only=True):
    """Configured policies: for all agents (`session`) and by agent name.

    `memories` lists for each configured agent the agents whose memory it may read besides its own.
    """

    session: Policy | None = None
    agents: Mapping[str, Policy] = {}
    memories: Mapping[str, tuple[str, ...]] = {}

    def policy_for(self, agent: str) -> Policy | None:
        """The configured policy of an agent, or None.

        >>> rules = Rules(agents={"reader": Policy(autonomy="readonly")})
        >>> rules.policy_for("reader").autonomy, rules.policy_for("main")
        (<Autonomy.READONLY: 'readonly'>, None)
        """
        own = self.agents.get(agent)
        if own is None or self.session is None:
            return self.session if own is None else own
        return intersect(self.session, own)

    def ceiling_of(self, agent: str) -> Policy:
        """The policy of a root run of the agent: the configured one, or the default."""
        return self.policy_for(agent) or DEFAULT_POLICY

    def readable_memories(self, agent: str, memory_from: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `memory_from` that the agent may read; all, if none are configured for it.

        >>> Rules(memories={"reader": ("b", "c")}).readable_memories("reader", ("a", "b"))
        ('b',)
        """
        allowed = self.memories.get(agent)
        return memory_from if allowed is None else tuple(name for name in memory_from if name in allowed)


DEFAULT_POLICY = Policy()


def windows_of(identity: str, policy: Policy) -> tuple[Window, Window]:
    """The windows that enforce a policy's hourly and daily limits, shared by all runs with this identity.

    >>> [(window.name, window.caps) for window in windows_of("reader", Policy(max_actions_per_hour=3))]
    [('actions/reader', Caps(calls=3)), ('cost/reader', Caps(cost=5000000000))]
    """
    return (
        Window(f"{ACTIONS}{identity}", HOUR, Caps(calls=policy.max_actions_per_hour)),
        Window(f"{COST}{identity}", DAY, Caps(cost=_nanodollars(policy.max_cost_per_day_cents))),
    )


def narrowed_windows(windows: tuple[Window, ...], policy: Policy) -> tuple[Window, ...]:
    """The windows with caps lowered to `policy`, which may be narrower than when they were created."""
    return tuple(_narrowed_window(window, policy) for window in windows)


def _narrowed_window(window: Window, policy: Policy) -> Window:
    caps = window.caps
    if window.name.startswith(ACTIONS) and caps.calls is not None:
        return replace(window, caps=replace(caps, calls=min(caps.calls, policy.max_actions_per_hour)))
    if window.name.startswith(COST) and caps.cost is not None:
        return replace(window, caps=replace(caps, cost=min(caps.cost, _nanodollars(policy.max_cost_per_day_cents))))
    return window


def _nanodollars(cents: int) -> int:
    return min(cents * NANODOLLARS_IN_A_CENT, MAX_STORED)
