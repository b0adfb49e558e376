"""The ledger: examples first, then properties over random trees of runs with calls in flight."""

from __future__ import annotations

import math
import random
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from retinue.core.budget import DIMENSIONS, Amount, Caps, LeastInput, Window
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ledger import (
    AccountOpened,
    AccountState,
    Exhausted,
    Held,
    HoldAnswer,
    InsufficientBudget,
    Ledger,
    MustWait,
    Shortage,
)
from retinue.core.usage import Usage

NOTHING = Amount()


def hold(ledger: Ledger, account: str, input: int, output: int, *, min_output: int = 1, now: float = 0.0) -> Held:
    """A hold that must succeed."""
    answer = ledger.hold(account, input=input, output=output, min_output=min_output, now=now)
    assert isinstance(answer, Held)
    return answer


def settle(ledger: Ledger, held: Held, input: int, output: int, now: float = 0.0) -> None:
    ledger.settle(held, Amount(input=input, output=output, turns=1), now)


# ---- one account --------------------------------------------------------------------------------------------------


def test_the_amount_of_a_turn_counts_an_unknown_cost_as_zero() -> None:
    usage = Usage(input=10, output=3, cached=4, reasoning=1)

    assert Amount.of(usage, cost=7, calls=2) == Amount(input=10, output=3, cost=7, turns=1, calls=2)
    assert Amount.of(usage, cost=None) == Amount(input=10, output=3, cost=0, turns=1)
    assert Amount.of(usage, cost=7).tokens == 13


def test_a_call_is_held_at_its_worst_case_and_settled_at_its_usage() -> None:
    ledger = Ledger()
    ledger.open("run", Caps(tokens=1000, cost=10_000))

    held = ledger.hold("run", input=100, output=200, price=(3, 15), now=0.0)
    assert isinstance(held, Held)
    assert held == Held(1, "run", 200, Amount(input=100, output=200, cost=3300, turns=1))
    assert ledger.left("run", now=0.0) == Caps(tokens=700, cost=6700)

    ledger.settle(held, Amount(input=90, output=10, cost=420, turns=1), now=0.0)
    assert ledger.left("run", now=0.0) == Caps(tokens=900, cost=9580)
    assert ledger.account_state("run") == AccountState(
        caps=Caps(tokens=1000, cost=10_000),
        spent=Amount(input=90, output=10, cost=420, turns=1),
        held=NOTHING,
        reserved=Caps(tokens=0, cost=0),
    )


def test_an_unlimited_account_grants_everything_and_counts_usage() -> None:
    ledger = Ledger()
    ledger.open("run")

    settle(ledger, hold(ledger, "run", 10**12, 10**12), 5, 6)

    assert ledger.left("run", now=0.0) == Caps()
    assert ledger.spent("run") == Amount(input=5, output=6, turns=1)


@pytest.mark.parametrize(
    ("caps", "granted", "shortage"),
    [
        (Caps(output=40), 40, Shortage("run", "output", asked=400, left=40, spent=0, limit=40)),
        (Caps(tokens=150), 50, Shortage("run", "tokens", asked=500, left=150, spent=0, limit=150)),
        (Caps(cost=779), 31, Shortage("run", "cost", asked=300 + 400 * 15, left=779, spent=0, limit=779)),
        (
            Caps(output=40, tokens=135, cost=10**6),
            35,
            Shortage("run", "tokens", asked=500, left=135, spent=0, limit=135),
        ),
    ],
)
def test_output_is_shortened_to_what_fits(caps: Caps, granted: int, shortage: Shortage) -> None:
    ledger = Ledger()
    ledger.open("run", caps)

    answer = ledger.hold("run", input=100, output=400, min_output=20, price=(3, 15), now=0.0)

    assert answer == Held(1, "run", granted, Amount(100, granted, 300 + 15 * granted, turns=1), shortage)


@pytest.mark.parametrize(
    ("caps", "output", "worst"),
    [
        # The worst case fits, with the whole output or with a useful one.
        (Caps(tokens=12_000), 8_000, Amount(4_000, 8_000, 4_000 * 10 + 8_000 * 15, turns=1)),
        (Caps(tokens=6_000), 2_000, Amount(4_000, 2_000, 4_000 * 10 + 2_000 * 15, turns=1)),
        # It leaves too little, so that the least is held with all that is left.
        (Caps(tokens=4_500), 3_500, Amount(1_000, 3_500, 2_000 + 3_500 * 15, turns=1)),
        (Caps(tokens=3_000), 2_000, Amount(1_000, 2_000, 2_000 + 2_000 * 15, turns=1)),
        (Caps(cost=40_000), 2_533, Amount(1_000, 2_533, 2_000 + 2_533 * 15, turns=1)),
        (Caps(tokens=1_016), 16, Amount(1_000, 16, 2_000 + 16 * 15, turns=1)),
    ],
)
def test_what_is_left_is_held_where_the_worst_case_of_the_input_does_not_fit(
    caps: Caps, output: int, worst: Amount
) -> None:
    ledger = Ledger()
    ledger.open("run", caps)

    answer = ledger.hold(
        "run", input=4_000, output=8_000, min_output=16, price=(10, 15), least=LeastInput(1_000, 2_000), now=0.0
    )

    assert isinstance(answer, Held)
    assert (answer.output, answer.worst) == (output, worst)


@pytest.mark.parametrize(
    ("caps", "exhausted"),
    [
        (Caps(tokens=1_015), Exhausted("run", "tokens", asked=1_016, left=1_015, spent=0, limit=1_015)),
        (Caps(cost=2_239), Exhausted("run", "cost", asked=2_240, left=2_239, spent=0, limit=2_239)),
    ],
)
def test_a_call_whose_least_input_does_not_fit_is_not_held(caps: Caps, exhausted: Exhausted) -> None:
    ledger = Ledger()
    ledger.open("run", caps)

    answer = ledger.hold(
        "run", input=4_000, output=8_000, min_output=16, price=(10, 15), least=LeastInput(1_000, 2_000), now=0.0
    )

    assert answer == exhausted


@pytest.mark.parametrize(
    ("caps", "exhausted"),
    [
        (Caps(input=99), Exhausted("run", "input", asked=100, left=99, spent=0, limit=99)),
        (Caps(output=19), Exhausted("run", "output", asked=20, left=19, spent=0, limit=19)),
        (Caps(tokens=119), Exhausted("run", "tokens", asked=120, left=119, spent=0, limit=119)),
        (Caps(cost=599), Exhausted("run", "cost", asked=600, left=599, spent=0, limit=599)),
        (Caps(turns=0), Exhausted("run", "turns", asked=1, left=0, spent=0, limit=0)),
        (Caps(calls=1), Exhausted("run", "calls", asked=2, left=1, spent=0, limit=1)),
    ],
)
def test_a_call_that_cannot_fit_names_the_limit(caps: Caps, exhausted: Exhausted) -> None:
    ledger = Ledger()
    ledger.open("run", caps)

    answer = ledger.hold("run", input=100, output=400, min_output=20, price=(3, 15), calls=2, now=0.0)

    assert answer == exhausted
    assert ledger.account_state("run").held == NOTHING


def test_min_output_above_output_is_capped_at_output() -> None:
    ledger = Ledger()
    ledger.open("run", Caps(output=8))

    assert hold(ledger, "run", 1, 5, min_output=100).output == 5
    answer = ledger.hold("run", input=1, output=5, min_output=100, now=0.0)
    assert answer == MustWait("run", "output", asked=5, left=3)


def test_tool_calls_can_be_held_without_a_turn() -> None:
    ledger = Ledger()
    ledger.open("run", Caps(turns=0, calls=2))

    held = ledger.hold("run", input=0, output=0, turns=0, calls=2, now=0.0)

    assert held == Held(1, "run", 0, Amount(calls=2))


def test_an_account_over_a_limit_stops_every_call() -> None:
    ledger = Ledger()
    ledger.open("run", Caps(calls=2))
    ledger.charge("run", Amount(calls=2), now=0.0)
    ledger.release(hold(ledger, "run", 1, 1))
    ledger.charge("run", Amount(calls=1), now=0.0)

    answer = ledger.hold("run", input=1, output=1, now=0.0)

    assert answer == Exhausted("run", "calls", asked=0, left=0, spent=3, limit=2)
    assert ledger.left("run", now=0.0) == Caps(calls=0)


def test_release_undoes_a_hold_and_has_no_effect_after_settle() -> None:
    ledger = Ledger()
    ledger.open("run", Caps(tokens=100))
    held = hold(ledger, "run", 10, 10)
    ledger.release(held)
    ledger.release(held)
    assert ledger.left("run", now=0.0) == Caps(tokens=100)

    held = hold(ledger, "run", 10, 10)
    settle(ledger, held, 10, 5)
    ledger.release(held)
    assert ledger.left("run", now=0.0) == Caps(tokens=85)


def test_a_hold_is_settled_once() -> None:
    ledger = Ledger()
    ledger.open("run")
    held = hold(ledger, "run", 10, 10)
    settle(ledger, held, 1, 1)

    with pytest.raises(BadInput, match="hold 1 of account 'run' was settled or released before"):
        settle(ledger, held, 1, 1)
    assert ledger.spent("run") == Amount(1, 1, turns=1)


def test_accounts_have_to_exist_and_are_opened_once() -> None:
    ledger = Ledger()
    ledger.open("run")

    with pytest.raises(BadInput, match="account 'run' is open already"):
        ledger.open("run")
    with pytest.raises(UnknownName, match="unknown account: 'unknown'"):
        ledger.open("child", parent="unknown")
    with pytest.raises(UnknownName, match="unknown account: 'child'"):
        ledger.spent("child")


# ---- calls in flight ----------------------------------------------------------------------------------------------


def test_a_call_waits_while_calls_in_flight_hold_the_budget() -> None:
    ledger = Ledger()
    ledger.open("pot", Caps(tokens=100))
    ledger.open("one", parent="pot")
    ledger.open("two", parent="pot")
    first = hold(ledger, "one", 20, 50)

    assert ledger.hold("two", input=20, output=50, now=0.0) == MustWait("pot", "tokens", asked=70, left=30)

    settle(ledger, first, 20, 5)
    assert hold(ledger, "two", 20, 50).output == 50


def test_output_is_not_shortened_because_of_calls_in_flight() -> None:
    ledger = Ledger()
    ledger.open("pot", Caps(tokens=100))
    first = hold(ledger, "pot", 10, 10)

    assert ledger.hold("pot", input=10, output=500, now=0.0) == MustWait("pot", "tokens", asked=100, left=80)
    ledger.release(first)
    assert hold(ledger, "pot", 10, 500).output == 90


def test_on_freed_is_called_even_if_a_settled_call_freed_nothing() -> None:
    calls: list[int] = []
    ledger = Ledger(on_freed=lambda: calls.append(ledger.version))
    ledger.open("pot", Caps(tokens=100))
    first = hold(ledger, "pot", 20, 60)
    assert isinstance(ledger.hold("pot", input=20, output=60, min_output=60, now=0.0), MustWait)

    settle(ledger, first, 20, 60)

    assert calls == [1]
    answer = ledger.hold("pot", input=20, output=60, min_output=60, now=0.0)
    assert answer == Exhausted("pot", "tokens", asked=80, left=20, spent=80, limit=100)


def test_release_close_and_reserve_wrap_up_call_on_freed() -> None:
    calls: list[str] = []
    ledger = Ledger(on_freed=lambda: calls.append("freed"))
    ledger.open("pot", Caps(tokens=100))
    ledger.open("child", parent="pot", reserve=Caps(tokens=10))
    assert calls == []

    ledger.release(hold(ledger, "pot", 1, 1))
    assert calls == ["freed"]
    ledger.close("child")
    ledger.close("child")
    assert calls == ["freed"] * 2
    ledger.reserve_wrap_up("pot", NOTHING)
    assert (calls, ledger.version) == (["freed"] * 3, 3)


# ---- trees --------------------------------------------------------------------------------------------------------


def test_a_charge_counts_for_the_run_and_its_ancestors_only() -> None:
    ledger = Ledger()
    ledger.open("session")
    for account, parent in [("root", "session"), ("child", "root"), ("sibling", "root"), ("grandchild", "child")]:
        ledger.open(account, parent=parent)
    used = Amount(5, 6, cost=7, turns=1, calls=2)

    ledger.charge("grandchild", used, now=0.0)

    accounts = ("session", "root", "child", "sibling", "grandchild")
    assert [ledger.spent(account) for account in accounts] == [used, used, used, NOTHING, used]


def test_a_shared_child_is_bound_by_its_own_caps_and_by_every_account_above() -> None:
    ledger = Ledger()
    ledger.open("session", Caps(cost=900))
    ledger.open("root", Caps(tokens=100), parent="session")
    ledger.open("child", Caps(turns=5, tokens=300), parent="root")
    ledger.charge("root", Amount(input=60, cost=100, turns=2), now=0.0)

    assert ledger.left("child", now=0.0) == Caps(tokens=40, cost=800, turns=5)


def test_a_reserved_child_gets_no_more_than_is_left_above() -> None:
    ledger = Ledger()
    ledger.open("session", Caps(tokens=80))
    ledger.open("root", Caps(tokens=100, turns=9), parent="session")
    hold(ledger, "root", 5, 5)

    first = ledger.open("first", Caps(turns=3), parent="root", reserve=Caps(tokens=50))
    second = ledger.open("second", parent="root", reserve=Caps(tokens=50))
    third = ledger.open("third", parent="root", reserve=Caps(tokens=50, turns=1))

    assert first == AccountOpened("first", Caps(tokens=50, turns=3), reserved=Caps(tokens=50))
    assert second == AccountOpened("second", Caps(tokens=20), reserved=Caps(tokens=20))
    assert third == InsufficientBudget("session", "tokens", asked=50, left=0)
    assert ledger.left("root", now=0.0) == Caps(tokens=0, turns=8)
    with pytest.raises(UnknownName):
        ledger.spent("third")


def test_an_allowance_is_no_larger_than_the_childs_own_cap() -> None:
    ledger = Ledger()
    ledger.open("root", Caps(tokens=100))

    assert ledger.open("child", Caps(tokens=30), parent="root", reserve=Caps(tokens=50)) == AccountOpened(
        "child", Caps(tokens=30), reserved=Caps(tokens=30)
    )
    assert ledger.left("root", now=0.0) == Caps(tokens=70)


def test_spending_of_a_reserved_child_moves_from_reserved_to_spent() -> None:
    ledger = Ledger()
    ledger.open("root", Caps(tokens=100))
    ledger.open("child", parent="root", reserve=Caps(tokens=60))
    held = hold(ledger, "child", 10, 30)
    flying = ledger.account_state("root")
    settle(ledger, held, 10, 15)
    landed = ledger.account_state("root")
    ledger.close("child")

    assert flying == AccountState(Caps(tokens=100), NOTHING, Amount(10, 30, turns=1), Caps(tokens=20))
    assert landed == AccountState(Caps(tokens=100), Amount(10, 15, turns=1), NOTHING, Caps(tokens=35))
    assert ledger.account_state("root") == AccountState(
        Caps(tokens=100), Amount(10, 15, turns=1), NOTHING, Caps(tokens=0)
    )


def test_siblings_cannot_use_an_allowance_nor_wait_for_it() -> None:
    ledger = Ledger()
    ledger.open("root", Caps(tokens=100))
    ledger.open("idle", parent="root", reserve=Caps(tokens=60))
    ledger.open("greedy", parent="root")

    settle(ledger, hold(ledger, "greedy", 10, 500), 10, 30)

    answer = ledger.hold("root", input=1, output=1, now=0.0)
    assert answer == Exhausted("root", "tokens", asked=2, left=0, spent=40, limit=100)
    assert hold(ledger, "idle", 10, 50).output == 50


def test_a_grandchilds_allowance_is_part_of_its_parents_allowance() -> None:
    ledger = Ledger()
    ledger.open("root", Caps(tokens=100))
    ledger.open("child", parent="root", reserve=Caps(tokens=60))
    ledger.open("grandchild", parent="child", reserve=Caps(tokens=25))

    assert ledger.left("root", now=0.0) == Caps(tokens=40)
    assert ledger.left("child", now=0.0) == Caps(tokens=35)
    assert ledger.left("grandchild", now=0.0) == Caps(tokens=25)


def test_a_child_keeps_its_allowance_when_its_parent_ends() -> None:
    ledger = Ledger()
    ledger.open("root", Caps(tokens=100))
    ledger.open("child", parent="root", reserve=Caps(tokens=60))
    ledger.open("grandchild", parent="child", reserve=Caps(tokens=25))

    ledger.forget("child")
    assert ledger.left("root", now=0.0) == Caps(tokens=75)
    settle(ledger, hold(ledger, "grandchild", 5, 20), 5, 10)
    assert ledger.left("root", now=0.0) == Caps(tokens=75)
    ledger.close("grandchild")
    assert ledger.left("root", now=0.0) == Caps(tokens=85)
    with pytest.raises(UnknownName):
        ledger.spent("child")


def test_overspending_above_reduces_an_allowance() -> None:
    ledger = Ledger()
    ledger.open("root", Caps(tokens=100))
    ledger.open("child", parent="root", reserve=Caps(tokens=60))

    settle(ledger, hold(ledger, "root", 10, 30), 10, 75)

    assert ledger.left("child", now=0.0) == Caps(tokens=15)
    answer = ledger.hold("child", input=10, output=50, min_output=6, now=0.0)
    assert answer == Exhausted("root", "tokens", asked=16, left=15, spent=85, limit=100)


def test_overspending_of_a_child_frees_nothing_for_its_parent() -> None:
    ledger = Ledger()
    ledger.open("root", Caps(tokens=100))
    ledger.open("child", parent="root", reserve=Caps(tokens=60))

    settle(ledger, hold(ledger, "child", 10, 50), 10, 65)

    used = Amount(10, 65, turns=1)
    assert ledger.account_state("root") == AccountState(Caps(tokens=100), used, NOTHING, Caps(tokens=0))
    assert ledger.left("root", now=0.0) == Caps(tokens=25)


def test_an_empty_allowance_can_be_reserved_on_an_account_over_its_limit() -> None:
    ledger = Ledger()
    ledger.open("root", Caps(tokens=100))
    ledger.charge("root", Amount(input=101), now=0.0)

    opened = ledger.open("child", parent="root", reserve=Caps(tokens=0))

    assert opened == AccountOpened("child", Caps(tokens=0), reserved=Caps(tokens=0))


# ---- the wrap-up turn ---------------------------------------------------------------------------------------------


def test_the_wrap_up_reserve_is_only_for_the_wrap_up_turn() -> None:
    ledger = Ledger()
    ledger.open("run", Caps(tokens=100, turns=2))
    assert ledger.reserve_wrap_up("run", Amount(input=20, output=10, turns=1)) is None

    settle(ledger, hold(ledger, "run", 20, 500), 20, 50)

    answer = ledger.hold("run", input=20, output=10, now=0.0)
    assert answer == Exhausted("run", "tokens", asked=21, left=0, spent=70, limit=100)
    assert ledger.hold("run", input=20, output=500, now=0.0, wrap_up=True) == Held(
        2,
        "run",
        10,
        Amount(20, 10, turns=1),
        Shortage("run", "tokens", asked=520, left=30, spent=70, limit=100),
    )


def test_a_released_wrap_up_hold_restores_the_reserve() -> None:
    ledger = Ledger()
    ledger.open("run", Caps(turns=1))
    ledger.reserve_wrap_up("run", Amount(turns=1))
    held = ledger.hold("run", input=5, output=5, now=0.0, wrap_up=True)
    assert isinstance(held, Held)

    ledger.release(held)

    assert isinstance(ledger.hold("run", input=5, output=5, now=0.0), Exhausted)
    assert isinstance(ledger.hold("run", input=5, output=5, now=0.0, wrap_up=True), Held)


def test_siblings_cannot_use_a_wrap_up_reserve() -> None:
    ledger = Ledger()
    ledger.open("pot", Caps(tokens=100))
    ledger.open("one", parent="pot")
    ledger.open("two", parent="pot")
    ledger.reserve_wrap_up("one", Amount(input=10, output=20, turns=1))

    assert hold(ledger, "two", 10, 500).output == 60
    assert isinstance(ledger.hold("one", input=10, output=20, min_output=20, now=0.0, wrap_up=True), Held)


def test_a_new_wrap_up_reserve_replaces_the_old_and_close_frees_it() -> None:
    ledger = Ledger()
    ledger.open("run", Caps(tokens=100))
    ledger.reserve_wrap_up("run", Amount(input=60))
    assert ledger.reserve_wrap_up("run", Amount(input=101)) == InsufficientBudget("run", "tokens", asked=101, left=100)
    assert ledger.left("run", now=0.0) == Caps(tokens=40)

    assert ledger.reserve_wrap_up("run", Amount(input=70)) is None
    assert ledger.left("run", now=0.0) == Caps(tokens=30)
    ledger.close("run")
    assert ledger.left("run", now=0.0) == Caps(tokens=100)
    with pytest.raises(BadInput, match="account 'run' is closed; nothing can be set aside for it"):
        ledger.reserve_wrap_up("run", Amount(input=1))


def test_close_during_the_wrap_up_turn_does_not_restore_the_reserve() -> None:
    ledger = Ledger()
    ledger.open("run", Caps(turns=1))
    ledger.reserve_wrap_up("run", Amount(turns=1))
    held = ledger.hold("run", input=1, output=1, now=0.0, wrap_up=True)
    assert isinstance(held, Held)

    ledger.close("run")
    ledger.release(held)

    assert ledger.account_state("run") == AccountState(Caps(turns=1), NOTHING, NOTHING, Caps(turns=0))


# ---- windows ------------------------------------------------------------------------------------------------------

HOURLY = Window("actions", 3600.0, Caps(calls=3))


def act(ledger: Ledger, account: str, now: float) -> HoldAnswer:
    answer = ledger.hold(account, input=0, output=0, turns=0, calls=1, now=now)
    if isinstance(answer, Held):
        ledger.settle(answer, Amount(calls=1), now)
    return answer


def test_a_full_window_reports_when_it_is_free_again() -> None:
    ledger = Ledger()
    ledger.open("run", windows=[HOURLY])
    for now in (0.1, 10.0, 20.0):
        assert isinstance(act(ledger, "run", now), Held)

    full = Exhausted("actions", "calls", asked=1, left=0, spent=3, limit=3, window=True, until=3600.1)
    assert act(ledger, "run", 30.0) == full
    assert act(ledger, "run", 3600.0) == full
    assert isinstance(act(ledger, "run", 3600.1), Held)
    assert act(ledger, "run", 3600.1) == Exhausted("actions", "calls", 1, 0, 3, 3, window=True, until=3610.0)
    assert ledger.left("run", now=3620.0) == Caps(calls=2)
    assert ledger.spent("run") == Amount(calls=4)


def test_a_call_larger_than_the_whole_window_never_fits() -> None:
    ledger = Ledger()
    ledger.open("run", windows=[HOURLY])
    ledger.charge("run", Amount(calls=1), now=0.0)

    answer = ledger.hold("run", input=0, output=0, calls=4, now=0.0)

    assert answer == Exhausted("actions", "calls", asked=4, left=2, spent=1, limit=3, window=True, until=None)


def test_a_window_is_shared_by_name_and_children_may_only_narrow_it() -> None:
    ledger = Ledger()
    ledger.open("root", windows=[HOURLY])
    ledger.open("child", parent="root")
    ledger.open("narrow", parent="root", windows=[Window("actions", 3600.0, Caps(calls=2, turns=7))])
    ledger.open("wide", parent="root", windows=[Window("actions", 3600.0, Caps(calls=50))])
    ledger.open("stranger", windows=[Window("actions", 60.0, Caps(calls=5))])

    act(ledger, "child", 0.0)

    accounts = ("root", "child", "narrow", "wide", "stranger")
    assert [ledger.left(account, now=0.0).calls for account in accounts] == [2, 2, 1, 2, 5]
    act(ledger, "wide", 0.0)
    assert act(ledger, "narrow", 0.0) == Exhausted("actions", "calls", 1, 0, 2, 2, window=True, until=3600.0)


def test_a_full_window_does_not_prevent_reserving_a_child() -> None:
    ledger = Ledger()
    ledger.open("root", Caps(calls=100), windows=[HOURLY])
    ledger.charge("root", Amount(calls=3), now=0.0)

    opened = ledger.open("child", parent="root", reserve=Caps(calls=40))

    assert opened == AccountOpened("child", Caps(calls=40), reserved=Caps(calls=40))
    assert ledger.reserve_wrap_up("root", Amount(calls=1)) is None


def test_calls_in_flight_count_in_a_window() -> None:
    ledger = Ledger()
    ledger.open("run", windows=[Window("daily", 86400.0, Caps(cost=100))])
    first = ledger.hold("run", input=0, output=8, price=(0, 10), now=0.0)
    assert isinstance(first, Held)

    assert ledger.hold("run", input=0, output=8, price=(0, 10), now=0.0) == MustWait("daily", "cost", asked=80, left=20)
    ledger.settle(first, Amount(output=3, cost=30), now=5.0)
    again = ledger.hold("run", input=0, output=8, price=(0, 10), now=5.0)
    shortage = Shortage("daily", "cost", asked=80, left=70, spent=30, limit=100, window=True)
    assert again == Held(2, "run", 7, Amount(output=7, cost=70, turns=1), shortage)


def test_charge_window_accepts_charges_in_any_order() -> None:
    ledger = Ledger()
    ledger.charge_window(HOURLY, Amount(calls=1), at=50.0)
    ledger.charge_window(HOURLY, Amount(calls=1), at=20.0)
    ledger.open("run", windows=[HOURLY])
    ledger.charge("run", Amount(calls=1), now=30.0)

    assert act(ledger, "run", 100.0) == Exhausted("actions", "calls", 1, 0, 3, 3, window=True, until=3620.0)
    assert [ledger.left("run", now=now).calls for now in (3620.0, 3630.0, 3650.0)] == [1, 2, 3]


@given(st.lists(st.tuples(st.floats(0.0, 40.0), st.integers(1, 9), st.integers(0, 9)), max_size=60))
def test_a_window_never_exceeds_its_limit_and_until_is_exact(
    calls: list[tuple[float, int, int]],
) -> None:
    window = Window("output", 60.0, Caps(output=20))
    ledger = Ledger()
    ledger.open("run", windows=[window])
    now = 0.0
    settled: list[tuple[float, int]] = []
    for pause, worst, unused in calls:
        now += pause
        answer = ledger.hold("run", input=0, output=worst, min_output=worst, now=now)
        if isinstance(answer, Exhausted):
            assert answer.until is not None
            assert answer.until > now
            just_before = math.nextafter(answer.until, 0.0)
            too_early = ledger.hold("run", input=0, output=worst, min_output=worst, now=just_before)
            assert isinstance(too_early, Exhausted)
            assert too_early.until == answer.until
            now = answer.until
            answer = ledger.hold("run", input=0, output=worst, min_output=worst, now=now)
        assert isinstance(answer, Held)
        settled.append((now, max(worst - unused, 0)))
        ledger.settle(answer, Amount(output=settled[-1][1]), now)
        counted = sum(used for at, used in settled if at + 60.0 > now)
        assert counted <= 20
        assert ledger.left("run", now=now) == Caps(output=20 - counted)


# ---- random trees -------------------------------------------------------------------------------------------------

PRICE = (2, 5)
Six: TypeAlias = tuple[int, ...]
ZERO: Six = (0,) * 6


def six(numbers: Amount | Caps) -> Six:
    """A number for each dimension; 0 where it is missing."""
    return tuple(getattr(numbers, name) or 0 for name in DIMENSIONS)


def total(numbers: list[Six]) -> Six:
    return tuple(map(sum, zip(*numbers, strict=True))) if numbers else ZERO


def minus(one: Six, other: Six) -> Six:
    return tuple(a - b for a, b in zip(one, other, strict=True))


def priced(input: int, output: int) -> Amount:
    return Amount(input, output, cost=input * PRICE[0] + output * PRICE[1], turns=1)


class Model:
    """Model of one account: computes its expected state from the definition, without the ledger."""

    def __init__(self, opened: AccountOpened, parent: Model | None) -> None:
        self.id = opened.account
        self.caps = opened.caps
        self.reserved = opened.reserved
        self.parent = parent
        self.line: list[Model] = [self, *(parent.line if parent else [])]
        self.children: list[Model] = []
        self.closed = False
        self.own_spent: list[Six] = []
        self.own_flights: dict[int, Held] = {}
        self.reserve = ZERO
        self.taken: dict[int, Six] = {}
        self.flying_at_last_grant: set[int] = set()
        self.allowed_over = ZERO
        if parent:
            parent.children.append(self)

    def spent(self) -> Six:
        return total([*self.own_spent, *(child.spent() for child in self.children)])

    def flights(self) -> dict[int, Held]:
        found = dict(self.own_flights)
        for child in self.children:
            found |= child.flights()
        return found

    def held(self) -> Six:
        return total([six(held.worst) for held in self.flights().values()])

    def promised(self) -> Six:
        """Its reserve and, for each child, what is left of its allowance, or what the child itself has promised."""
        parts = [self.reserve]
        for child in self.children:
            spent, held, deeper = child.spent(), child.held(), child.promised()
            parts.append(
                tuple(
                    deeper[d] if child.closed or allowance is None else max(0, allowance - spent[d] - held[d])
                    for d, allowance in enumerate(getattr(child.reserved, name) for name in DIMENSIONS)
                )
            )
        return total(parts)

    def limits(self) -> list[tuple[int, int]]:
        numbers = ((d, getattr(self.caps, name)) for d, name in enumerate(DIMENSIONS))
        return [(d, number) for d, number in numbers if number is not None]


some_caps = st.builds(
    Caps,
    input=st.none() | st.integers(0, 300),
    output=st.none() | st.integers(0, 300),
    tokens=st.none() | st.integers(0, 500),
    cost=st.none() | st.integers(0, 2000),
    turns=st.none() | st.integers(0, 12),
)


class RandomTrees(RuleBasedStateMachine):
    """Random trees of runs with reserved and shared budgets; each call may exceed its estimate by `error` tokens."""

    error = 0

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        session = self.ledger.open("session", Caps(tokens=1500, cost=6000))
        assert isinstance(session, AccountOpened)
        self.accounts = [Model(session, None)]

    def pick(self, which: int) -> Model:
        return self.accounts[which % len(self.accounts)]

    def flying(self) -> list[tuple[Model, Held]]:
        return [(account, held) for account in self.accounts for held in account.own_flights.values()]

    def flight(self, which: int) -> tuple[Model, Held]:
        flying = self.flying()
        return flying[which % len(flying)]

    @precondition(lambda self: len(self.accounts) < 9)
    @rule(parent=st.integers(0, 99), caps=some_caps, reserve=st.none() | some_caps)
    def open(self, parent: int, caps: Caps, reserve: Caps | None) -> None:
        above = self.pick(parent)
        answer = self.ledger.open(f"run-{len(self.accounts)}", caps, parent=above.id, reserve=reserve)
        if isinstance(answer, InsufficientBudget):
            left = six(self.ledger.left(above.id, now=0.0))[DIMENSIONS.index(answer.dimension)]
            assert (answer.left, left) == (0, 0)
            assert answer.asked > 0
        else:
            self.accounts.append(Model(answer, above))

    @rule(which=st.integers(0, 99), input=st.integers(0, 80), output=st.integers(1, 120), wrap_up=st.booleans())
    def hold(self, which: int, input: int, output: int, wrap_up: bool) -> None:
        account = self.pick(which)
        answer = self.ledger.hold(
            account.id, input=input, output=output, min_output=5, price=PRICE, now=0.0, wrap_up=wrap_up
        )
        if isinstance(answer, Held):
            assert answer.worst == priced(input, answer.output)
            assert min(5, output) <= answer.output <= output
            self.granted(account, answer, wrap_up=wrap_up)
        elif isinstance(answer, MustWait):
            assert any(known.id == answer.account and known.flights() for known in account.line)

    def granted(self, account: Model, held: Held, *, wrap_up: bool) -> None:
        account.own_flights[held.id] = held
        if wrap_up:
            taken = tuple(map(min, account.reserve, six(held.worst)))
            account.reserve = minus(account.reserve, taken)
            account.taken[held.id] = taken
        for each in account.line:
            each.flying_at_last_grant = set(each.flights())
            each.allowed_over = ZERO

    @precondition(lambda self: self.flying())
    @rule(which=st.integers(0, 99), unused=st.integers(0, 200), error=st.integers(0, 40))
    def settle(self, which: int, unused: int, error: int) -> None:
        account, held = self.flight(which)
        error = min(error, self.error)
        used = priced(held.worst.input + error, max(0, held.output - unused) + error)
        self.ledger.settle(held, used, now=0.0)
        del account.own_flights[held.id]
        account.own_spent.append(six(used))
        beyond = tuple(max(0, number) for number in minus(six(used), six(held.worst)))
        for each in account.line:
            if held.id in each.flying_at_last_grant:
                each.allowed_over = total([each.allowed_over, beyond])

    @precondition(lambda self: self.flying())
    @rule(which=st.integers(0, 99))
    def release(self, which: int) -> None:
        account, held = self.flight(which)
        self.ledger.release(held)
        del account.own_flights[held.id]
        if not account.closed:
            account.reserve = total([account.reserve, account.taken.pop(held.id, ZERO)])

    @rule(which=st.integers(0, 99), input=st.integers(0, 60), output=st.integers(0, 60))
    def set_aside(self, which: int, input: int, output: int) -> None:
        account = self.pick(which)
        if not account.closed and self.ledger.reserve_wrap_up(account.id, priced(input, output)) is None:
            account.reserve = six(priced(input, output))

    @rule(which=st.integers(1, 99))
    def close(self, which: int) -> None:
        account = self.pick(which)
        self.ledger.close(account.id)
        account.closed = True
        account.reserve = ZERO

    @invariant()
    def every_account_matches_its_model(self) -> None:
        for account in self.accounts:
            state = self.ledger.account_state(account.id)
            promised = account.promised()
            reserved = Caps(**{DIMENSIONS[d]: promised[d] for d, _ in account.limits()})
            assert state == AccountState(account.caps, state.spent, state.held, reserved)
            assert (six(state.spent), six(state.held)) == (account.spent(), account.held())
            assert min(six(state.held) + six(reserved)) >= 0

    @invariant()
    def limits_are_exceeded_only_by_errors_of_calls_in_flight_at_the_last_grant(self) -> None:
        for account in self.accounts:
            spent = six(self.ledger.spent(account.id))
            for d, limit in account.limits():
                assert spent[d] <= limit + account.allowed_over[d]

    def teardown(self) -> None:
        """With nothing in flight and all accounts closed, only spent amounts remain."""
        while self.flying():
            self.release(0)
        self.check_rebuilt_accounts()
        for account in self.accounts:
            self.ledger.close(account.id)
        for account in self.accounts:
            nothing = Caps(**{DIMENSIONS[d]: 0 for d, _ in account.limits()})
            state = self.ledger.account_state(account.id)
            assert state == AccountState(account.caps, state.spent, NOTHING, nothing)

    def check_rebuilt_accounts(self) -> None:
        """Accounts rebuilt from recorded facts, as after a crash, equal the original ones."""
        rebuilt = Ledger()
        for account in self.accounts:
            above = account.parent.id if account.parent else None
            reserve = None if account.closed else account.reserved
            assert rebuilt.open(account.id, account.caps, parent=above, reserve=reserve) == AccountOpened(
                account.id, account.caps, reserve or Caps()
            )
            if not account.closed:
                self.ledger.reserve_wrap_up(
                    account.id, NOTHING
                )  # a wrap-up reserve is not recorded: a rebuilt account reserves it again
        for account in self.accounts:
            for input, output, _, cost, turns, calls in account.own_spent:
                rebuilt.charge(account.id, Amount(input, output, cost, turns, calls), now=0.0)
        for account in self.accounts:
            assert rebuilt.account_state(account.id) == self.ledger.account_state(account.id)
            assert rebuilt.left(account.id, now=0.0) == self.ledger.left(account.id, now=0.0)


class ExactTrees(RandomTrees):
    """All calls stay within their worst case, so every promise is kept exactly."""

    @invariant()
    def spent_held_and_promised_stay_within_every_limit(self) -> None:
        for account in self.accounts:
            spent, held, promised = account.spent(), account.held(), account.promised()
            for d, limit in account.limits():
                assert spent[d] + held[d] + promised[d] <= limit

    @invariant()
    def an_allowance_is_unaffected_by_spending_above(self) -> None:
        for account in self.accounts:
            spent, held, promised = account.spent(), account.held(), account.promised()
            left = self.ledger.left(account.id, now=0.0)
            for d, name in enumerate(DIMENSIONS):
                allowance: int | None = getattr(account.reserved, name)
                if allowance is not None and not account.closed:
                    assert getattr(left, name) == allowance - spent[d] - held[d] - promised[d]

    @invariant()
    def the_wrap_up_reserve_is_available_for_the_wrap_up_turn(self) -> None:
        for account in self.accounts:
            input, output, _, _, turns, _ = account.reserve
            if turns and account.reserve == six(priced(input, output)):
                held = self.ledger.hold(
                    account.id, input=input, output=output, min_output=output, price=PRICE, now=0.0, wrap_up=True
                )
                assert isinstance(held, Held)
                self.ledger.release(held)


class UnderestimatingTrees(RandomTrees):
    """Calls that use up to 40 tokens of each kind more than estimated."""

    error = 40


TestExactTrees = ExactTrees.TestCase
TestExactTrees.settings = settings(stateful_step_count=40)
TestUnderestimatingTrees = UnderestimatingTrees.TestCase


class Children:
    """Fifty children of one root that make calls in parallel and, like the engine, wait for `on_freed`."""

    def __init__(self, seed: int, *, error: int, reserved: bool) -> None:
        self.chance = random.Random(seed)
        self.error = error
        self.ledger = Ledger(on_freed=self.wake)
        self.ledger.open("session", Caps(cost=60_000))
        self.ledger.open("root", Caps(tokens=12_000), parent="session")
        self.calls_left: dict[str, int] = {}
        self.ready: list[str] = []
        self.waiting: list[str] = []
        self.flying: list[Held] = []
        self.ended: dict[str, str] = {}
        self.most_flying = 0
        for number in range(50):
            reserve = Caps(tokens=self.chance.randint(100, 400)) if reserved and number % 2 else None
            child = f"child-{number}"
            if isinstance(self.ledger.open(child, parent="root", reserve=reserve), AccountOpened):
                self.calls_left[child] = self.chance.randint(1, 6)
                self.ready.append(child)

    def wake(self) -> None:
        self.ready += self.waiting
        self.waiting.clear()

    def run(self) -> None:
        while self.ready or self.flying:
            if self.ready and (not self.flying or self.chance.random() < 0.7):
                self.ask(self.ready.pop(self.chance.randrange(len(self.ready))))
            else:
                self.answer(self.flying.pop(self.chance.randrange(len(self.flying))))

    def ask(self, child: str) -> None:
        worst = self.chance.randint(10, 60), self.chance.randint(100, 900)
        answer = self.ledger.hold(child, input=worst[0], output=worst[1], min_output=20, price=PRICE, now=0.0)
        match answer:
            case Held():
                self.flying.append(answer)
                self.most_flying = max(self.most_flying, len(self.flying))
            case MustWait():
                assert self.flying, "must wait although nothing is in flight"
                self.waiting.append(child)
            case Exhausted():
                self.end(child, "exhausted")

    def answer(self, held: Held) -> None:
        error = self.chance.randint(0, self.error)
        used = priced(held.worst.input + error, self.chance.randint(held.output // 4, held.output))
        self.ledger.settle(held, used, now=0.0)
        self.calls_left[held.account] -= 1
        if self.calls_left[held.account]:
            self.ready.append(held.account)
        else:
            self.end(held.account, "answered")

    def end(self, child: str, how: str) -> None:
        self.ledger.close(child)
        self.ended[child] = how


@given(seed=st.integers(0, 2**32), reserved=st.booleans())
def test_fifty_parallel_children_stay_within_limits_and_all_finish(seed: int, reserved: bool) -> None:
    children = Children(seed, error=0, reserved=reserved)

    children.run()

    assert children.most_flying > 5
    assert children.waiting == []
    assert set(children.ended) == set(children.calls_left)
    root, session = children.ledger.account_state("root"), children.ledger.account_state("session")
    assert root == AccountState(Caps(tokens=12_000), session.spent, NOTHING, Caps(tokens=0))
    assert session == AccountState(Caps(cost=60_000), root.spent, NOTHING, Caps(cost=0))
    assert root.spent.tokens <= 12_000
    assert session.spent.cost <= 60_000
    # Holds do not waste the limit: on a shared budget, not even the smallest form of a refused call would have fitted.
    if not reserved and "exhausted" in children.ended.values():
        assert root.spent.tokens > 12_000 - 80 or session.spent.cost > 60_000 - 60 * PRICE[0] - 20 * PRICE[1]


@given(seed=st.integers(0, 2**32), reserved=st.booleans())
def test_wrong_estimates_exceed_limits_only_by_calls_in_flight(seed: int, reserved: bool) -> None:
    children = Children(seed, error=30, reserved=reserved)

    children.run()

    assert children.waiting == []
    assert children.ledger.spent("root").tokens <= 12_000 + 30 * children.most_flying
    assert children.ledger.spent("session").cost <= 60_000 + 30 * PRICE[0] * children.most_flying


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 200), st.integers(0, 50)), min_size=1, max_size=40))
def test_sequential_calls_exceed_a_limit_only_by_the_last_error(calls: list[tuple[int, int, int]]) -> None:
    ledger = Ledger()
    ledger.open("run", Caps(tokens=1000))
    over = 0
    for input, output, error in calls:
        answer = ledger.hold("run", input=input, output=output, now=0.0)
        if isinstance(answer, Exhausted):
            break
        assert isinstance(answer, Held)
        assert over <= 0, "a call was granted after the limit was passed"
        settle(ledger, answer, input + error, answer.output)
        over = ledger.spent("run").tokens - 1000
        assert over <= error


# ---- soft windows -------------------------------------------------------------------------------------------------


def soft(tokens: int) -> Window:
    return Window("session", 1000.0, Caps(tokens=tokens), soft=True)


def test_the_last_call_may_exceed_a_soft_window() -> None:
    ledger = Ledger()
    ledger.open("run", windows=[soft(100)])

    held = ledger.hold("run", input=500, output=4000, now=0.0)
    assert isinstance(held, Held)
    assert held.output == 4000
    ledger.settle(held, Amount(input=500, output=20), now=1.0)

    answer = ledger.hold("run", input=1, output=1, now=2.0)
    assert isinstance(answer, Exhausted)
    assert (answer.spent, answer.limit, answer.window) == (520, 100, True)


def test_a_call_in_flight_under_a_soft_window_blocks_other_calls() -> None:
    ledger = Ledger()
    for run in ("one", "two"):
        ledger.open(run, windows=[soft(100)])
    held = ledger.hold("one", input=50, output=50, now=0.0)
    assert isinstance(held, Held)

    assert isinstance(ledger.hold("two", input=1, output=1, now=0.0), MustWait)
    ledger.settle(held, Amount(input=50, output=10), now=1.0)
    assert isinstance(ledger.hold("two", input=500, output=500, now=1.0), Held)


def test_a_soft_window_does_not_shorten_output() -> None:
    ledger = Ledger()
    ledger.open("run", Caps(tokens=300), windows=[soft(100)])

    held = ledger.hold("run", input=100, output=4000, now=0.0)

    assert isinstance(held, Held)
    assert held.output == 200


def test_a_child_is_bound_by_its_parents_soft_window() -> None:
    ledger = Ledger()
    ledger.open("parent", windows=[soft(100)])
    ledger.open("child", parent="parent", windows=[soft(100)])
    held = ledger.hold("child", input=150, output=1, now=0.0)
    assert isinstance(held, Held)
    ledger.settle(held, Amount(input=150, output=1), now=0.0)

    assert isinstance(ledger.hold("parent", input=1, output=1, now=0.0), Exhausted)
