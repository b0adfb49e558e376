"""Permissions in `zeroclaw`: a subagent has those of its caller at most, a target those of its profile."""

from typing import Literal

import hypothesis
import hypothesis.strategies as some
import pytest

from retinue.core.agent import Agent
from retinue.core.events import RunAccepted
from retinue.core.policy import Autonomy, Policy, RuntimeProfile, intersect, narrow
from retinue.providers.scripted import calls, says, together
from tests.dialects.zeroclaw.harness import ZeroclawHarness, delegate, spawn

TOOLS = ("look", "count", "spawn_subagent", "delegate")


@some.composite
def policies(draw: some.DrawFn) -> Policy:
    """Policies that let their agent act, and use both tools of the dialect."""
    roots = some.lists(some.sampled_from(["/srv", "/srv/app", "/data"]), max_size=2).map(tuple)
    others = some.lists(some.sampled_from(["look", "count"]), max_size=2).map(tuple)
    allowed = draw(some.none() | others.map(lambda names: (*names, "spawn_subagent", "delegate")))
    return Policy(
        autonomy=draw(some.sampled_from([Autonomy.SUPERVISED, Autonomy.FULL])),
        workspace_only=draw(some.booleans()),
        allowed_roots=draw(roots),
        forbidden_paths=draw(roots),
        allowed_commands=draw(some.lists(some.sampled_from(["ls", "git", "rm"]), max_size=3).map(tuple)),
        max_actions_per_hour=draw(some.integers(min_value=10, max_value=99)),
        max_cost_per_day_cents=draw(some.integers(min_value=100, max_value=999)),
        block_high_risk_commands=draw(some.booleans()),
        require_approval_for_medium_risk=draw(some.booleans()),
        allowed_tools=allowed,
        excluded_tools=draw(others),
    )


def accepted(harness: ZeroclawHarness, agent: str, label: str = "") -> RunAccepted:
    """The acceptance of the one run of an agent below the root with that label."""
    (found,) = [row for row in harness.rows() if row.agent == agent and row.label == label and row.depth > 0]
    (event,) = [event for event in harness.events(found.run_id) if isinstance(event, RunAccepted)]
    return event


@pytest.mark.promise("ZC-SUBSET", "ZC-OWN-POLICY", "ZC-CEILING")
@hypothesis.given(
    session=some.none() | policies(),
    front=policies(),
    target=some.none() | policies(),
    ceiling=some.sampled_from(["target", "caller"]),
)
@hypothesis.settings(max_examples=30)
async def test_rights_are_the_callers_for_a_subagent_and_the_operators_for_a_target(
    session: Policy | None, front: Policy, target: Policy | None, ceiling: Literal["target", "caller"]
) -> None:
    runtime = RuntimeProfile(delegation_ceiling=ceiling)
    agents = (
        Agent(name="front", tools=("look", "count"), policy=front, runtime=runtime),
        Agent(name="reviewer", tools=("look", "count"), policy=target),
    )
    harness = ZeroclawHarness(
        together(spawn(), delegate()),
        says("Thanks."),
        root="front",
        agents=agents,
        policy=session,
        tasks={("front", "dig"): [says("Dug.")], ("reviewer", "review"): [spawn("deep"), says("Good.")]}
        | {("reviewer", "deep"): [says("Deep.")]},
    )
    await harness.play()

    mine = front if session is None else intersect(session, front)
    assert accepted(harness, "front", "subagent").policy == mine
    operators = target if session is None else session if target is None else intersect(session, target)
    operators = Policy() if operators is None else operators
    given = accepted(harness, "reviewer").policy
    assert given == (operators if ceiling == "target" else intersect(operators, mine))
    narrow(operators, given)  # raises for what is more
    assert accepted(harness, "reviewer", "subagent").policy == given
    for row in harness.rows():
        policy = next(event for event in harness.events(row.run_id) if isinstance(event, RunAccepted)).policy
        shown = set(harness.requests(row)[0].tools)
        assert shown <= set(policy.tool_ceiling or TOOLS) - set(policy.excluded_tools)


@pytest.mark.promise("ZC-CEILING")
async def test_a_callers_ceiling_applies_to_targets_of_its_targets() -> None:
    front = Policy(allowed_tools=("look", "spawn_subagent", "delegate"), max_actions_per_hour=9)
    bound = RuntimeProfile(delegation_ceiling="caller")
    free = Policy(autonomy=Autonomy.FULL, max_actions_per_hour=50)
    agents = (
        Agent(name="front", tools=("look",), policy=front, runtime=bound),
        Agent(name="reviewer", tools=("look", "count"), policy=free),
        Agent(name="helper", tools=("look", "count"), policy=free),
    )
    harness = ZeroclawHarness(
        delegate(),
        says("Thanks."),
        root="front",
        agents=agents,
        tasks={
            ("reviewer", "review"): [spawn("deep"), says("Good.")],
            ("reviewer", "deep"): [delegate("helper", "help"), says("Deep.")],
            ("helper", "help"): [calls("count"), says("Helped.")],
        },
    )
    await harness.play()

    assert accepted(harness, "helper").policy == intersect(free, front)
    assert harness.texts(harness.row("helper")) == [
        "There is no tool named 'count'. Tools you can use: look, spawn_subagent, delegate."
    ]


@pytest.mark.promise("ZC-OWN-POLICY")
@pytest.mark.parametrize("own", [None, Policy(autonomy=Autonomy.FULL)])
async def test_without_a_setting_a_target_has_its_own_profile_or_else_the_rights_of_its_caller(
    own: Policy | None,
) -> None:
    narrow_policy = Policy(allowed_tools=("look", "delegate"), forbidden_paths=("/srv/keys",), max_actions_per_hour=5)
    agents = (Agent(name="front", policy=narrow_policy), Agent(name="reviewer", tools=("look", "count"), policy=own))
    harness = ZeroclawHarness(
        delegate(),
        says("Thanks."),
        root="front",
        agents=agents,
        policy=Policy(autonomy=Autonomy.FULL, max_actions_per_hour=50),
        tasks={("reviewer", "review"): [says("Good.")]},
    )
    await harness.play()

    given = accepted(harness, "reviewer").policy
    if own is not None:
        assert given == intersect(Policy(autonomy=Autonomy.FULL, max_actions_per_hour=50), own)
    else:
        assert (given.allowed_tools, given.forbidden_paths, given.max_actions_per_hour) == (
            ("look", "delegate"),
            ("/srv/keys",),
            5,
        )
        assert given.autonomy == Autonomy.SUPERVISED


@pytest.mark.promise("ZC-OWN-POLICY")
async def test_no_argument_of_the_caller_changes_the_policy_of_a_target() -> None:
    own = Policy(allowed_tools=("look",), max_actions_per_hour=3)
    wishes = {"policy": {"autonomy": "full"}, "allowed_tools": ["count"], "risk_profile": "root", "tools": ["count"]}
    harness = ZeroclawHarness(
        delegate(**wishes),
        says("Thanks."),
        agents=(Agent(name="reviewer", tools=("look", "count"), policy=own),),
        tasks={("reviewer", "review"): [together(calls("count"), calls("look", where="here")), says("Good.")]},
    )
    await harness.play()

    assert accepted(harness, "reviewer").policy == own
    assert harness.texts(harness.row("reviewer")) == [
        "There is no tool named 'count'. Tools you can use: look.",
        "seen here",
    ]


@pytest.mark.promise("ZC-WINDOWS")
async def test_usage_counts_in_later_runs_and_for_all_runs_above() -> None:
    front = Agent(name="front", tools=("look",), policy=Policy(max_actions_per_hour=9))
    busy = Agent(name="reviewer", tools=("look",), policy=Policy(max_actions_per_hour=1))
    on = {("reviewer", "review"): [delegate("front", "on"), says("Handed on.")], ("front", "on"): [says("Done.")]}
    harness = ZeroclawHarness(
        delegate(), delegate(prompt="review again"), says("Thanks."), root="front", agents=(front, busy), tasks=on
    )
    await harness.play()

    first, second = harness.row("reviewer"), harness.row("reviewer", 1)
    assert harness.texts(first) == ["[Agent 'front' (custom/m)]\nDone."]
    assert harness.texts(second) == ["Rate limit exceeded: action budget exhausted"]
