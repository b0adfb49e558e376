"""Configured policies of agents, and the windows that enforce their hourly and daily limits."""

from __future__ import annotations

import pytest

from retinue.core.budget import Caps, Window
from retinue.core.policy import (
    DAY,
    HOUR,
    Autonomy,
    Policy,
    Risk,
    Rules,
    Verdict,
    intersect,
    narrowed_windows,
    verdict,
    windows_of,
)

READS, WRITES = Policy(autonomy=Autonomy.READONLY), Policy(autonomy=Autonomy.FULL, max_actions_per_hour=50)


@pytest.mark.parametrize(
    ("rules", "given", "ceiling"),
    [
        (Rules(), None, Policy()),
        (Rules(session=WRITES), WRITES, WRITES),
        (Rules(agents={"reader": READS}), READS, READS),
        (Rules(agents={"writer": WRITES}), None, Policy()),
        (Rules(session=WRITES, agents={"reader": READS}), intersect(WRITES, READS), intersect(WRITES, READS)),
    ],
)
def test_an_agent_is_bound_by_its_own_and_the_session_policy(
    rules: Rules, given: Policy | None, ceiling: Policy
) -> None:
    assert (rules.policy_for("reader"), rules.ceiling_of("reader")) == (given, ceiling)


def test_policy_windows_count_actions_per_hour_and_nanodollars_per_day() -> None:
    assert windows_of("reader", Policy(max_actions_per_hour=7, max_cost_per_day_cents=300)) == (
        Window("actions/reader", HOUR, Caps(calls=7)),
        Window("cost/reader", DAY, Caps(cost=3_000_000_000)),
    )


def test_a_cost_limit_is_capped_at_the_largest_stored_integer() -> None:
    _, cost = windows_of("rich", Policy(max_cost_per_day_cents=2**63 - 1))

    assert cost.caps == Caps(cost=2**63 - 1)


def test_windows_are_narrowed_but_never_widened_by_a_policy() -> None:
    other = Window("tokens/reader", HOUR, Caps(tokens=9))
    before = (*windows_of("reader", Policy(max_actions_per_hour=7, max_cost_per_day_cents=300)), other)

    narrower = Policy(max_actions_per_hour=3, max_cost_per_day_cents=900)

    assert narrowed_windows(before, narrower) == (
        *windows_of("reader", Policy(max_actions_per_hour=3, max_cost_per_day_cents=300)),
        other,
    )


@pytest.mark.parametrize("risk", Risk)
@pytest.mark.parametrize("acts", [True, False])
def test_read_only_mode_allows_only_low_risk_calls_without_effects(risk: Risk, acts: bool) -> None:
    decision = verdict(READS, tool="note", risk=risk, acts=acts)

    harmless = risk == Risk.LOW and not acts
    assert decision.verdict is (Verdict.ALLOW if harmless else Verdict.REFUSE)
    if not harmless:
        assert decision.reason == "Security policy: read-only mode, cannot perform 'note'"
