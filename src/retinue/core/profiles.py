"""What an operator grants to agents by name: how each works, what each may do, and how often within an hour and a day.

A policy that somebody wrote down is kept to by windows as well: so many actions an hour, so much money a day, counted
together for all runs that work under one name. Where nobody wrote one, nothing is counted.
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
MOST = 2**63 - 1

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
    """The policies that somebody wrote down: for everyone (`session`), and for agents by name.

    `memories` says of each agent that is written down whose memory it may read besides its own.
    """

    session: Policy | None = None
    agents: Mapping[str, Policy] = {}
    memories: Mapping[str, tuple[str, ...]] = {}

    def given_to(self, agent: str) -> Policy | None:
        """What was written down for an agent, or None where nobody wrote anything.

        >>> rules = Rules(agents={"reader": Policy(autonomy="readonly")})
        >>> rules.given_to("reader").autonomy, rules.given_to("main")
        (<Autonomy.READONLY: 'readonly'>, None)
        """
        own = self.agents.get(agent)
        if own is None or self.session is None:
            return self.session if own is None else own
        return intersect(self.session, own)

    def ceiling_of(self, agent: str) -> Policy:
        """All that an agent may do when a person starts it."""
        given = self.given_to(agent)
        return UNWRITTEN if given is None else given

    def still_readable(self, agent: str, memory_from: tuple[str, ...]) -> tuple[str, ...]:
        """Of these memories, those that an agent may read; all, where nobody wrote anything about it.

        >>> Rules(memories={"reader": ("b", "c")}).still_readable("reader", ("a", "b"))
        ('b',)
        """
        allowed = self.memories.get(agent)
        return memory_from if allowed is None else tuple(name for name in memory_from if name in allowed)


UNWRITTEN = Policy()
"""What holds where nobody wrote anything."""


def windows_of(identity: str, policy: Policy) -> tuple[Window, Window]:
    """The windows that keep a policy's two limits on stretches of time, for everyone who works under this name.

    >>> [(window.name, window.caps) for window in windows_of("reader", Policy(max_actions_per_hour=3))]
    [('actions/reader', Caps(calls=3)), ('cost/reader', Caps(cost=5000000000))]
    """
    return (
        Window(f"{ACTIONS}{identity}", HOUR, Caps(calls=policy.max_actions_per_hour)),
        Window(f"{COST}{identity}", DAY, Caps(cost=_nanodollars(policy.max_cost_per_day_cents))),
    )


def tightened(windows: tuple[Window, ...], policy: Policy) -> tuple[Window, ...]:
    """A run's windows under a policy that may have become narrower since they were made."""
    return tuple(_tightened(window, policy) for window in windows)


def _tightened(window: Window, policy: Policy) -> Window:
    caps = window.caps
    if window.name.startswith(ACTIONS) and caps.calls is not None:
        return replace(window, caps=replace(caps, calls=min(caps.calls, policy.max_actions_per_hour)))
    if window.name.startswith(COST) and caps.cost is not None:
        return replace(window, caps=replace(caps, cost=min(caps.cost, _nanodollars(policy.max_cost_per_day_cents))))
    return window


def _nanodollars(cents: int) -> int:
    """As many as a store can hold; more than that nobody has."""
    return min(cents * NANODOLLARS_IN_A_CENT, MOST)
