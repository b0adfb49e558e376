"""Budgets of sub-agents in the ledger, and the four concurrency limits."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.commands import RunQuery
from retinue.core.errors import StoreError
from retinue.core.events import CallReturned, ReplyReceived, RunAccepted
from retinue.core.ports import Request
from retinue.core.run import Limits
from retinue.core.usage import Usage
from retinue.dialects.meerkat.settings import ConcurrencyLimits, MeerkatSettings
from retinue.providers.scripted import Line, ScriptedReply, calls, says, together
from retinue.store.sqlite.store import SqliteStore
from tests.dialects.meerkat.harness import TASK, MeerkatHarness, about, fork, grep, slowly, spawn

FULL = "Execution failed: Cannot {}: concurrency or depth limit reached"
NO_SPAWN, NO_FORK = FULL.format("spawn sub-agent"), FULL.format("fork agent")


@retinue.tool(kind="pure")
async def pause(seconds: float = 5.0) -> str:
    """Do nothing for a while."""
    await asyncio.sleep(seconds)
    return "Rested."


def limited(**limits: int) -> MeerkatSettings:
    return MeerkatSettings(nested_tools=True, concurrency_limits=ConcurrencyLimits(**limits))


def limits_of(harness: MeerkatHarness, path: str) -> Limits:
    """What a sub-agent was given."""
    accepted = harness.events(harness.row(path).run_id)[0]
    assert isinstance(accepted, RunAccepted)
    return accepted.limits


# ---- budgets --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("MK-BUDGET", "MK-STATUS-FAILED")
@pytest.mark.parametrize(
    ("budget", "error"),
    [
        ({"max_turns": 2}, "Max turns reached: 2"),
        ({"max_turns": 0}, "Max turns reached: 0"),
        ({"max_tool_calls": 3}, "Tool call budget exceeded: 4 calls > 3 limit"),
        ({"max_tool_calls": 0}, "Tool call budget exceeded: 2 calls > 0 limit"),
        ({"max_tokens": 0}, "Token budget exceeded: used 0, limit 0"),
    ],
)
@pytest.mark.parametrize("written", [dict, json.dumps])
async def test_a_sub_agent_that_used_up_its_budget_has_failed(budget: dict[str, int], error: str, written: Any) -> None:
    def looks(_: Request) -> Line:
        return together(calls("grep"), calls("fetch"))

    harness = MeerkatHarness(spawn(budget=written(budget)), about("agent_status"), says("Failed."), latency=1.0)
    harness.script("sub-agent", *[looks] * 9)
    async with harness:
        await harness.run(TASK)
        harness.provider.script.verify = lambda: None  # how many of its lines are played is the question

    assert harness.answers()[1] == {
        "agent_id": harness.row("root/sub-agent/1").run_id,
        "state": "failed",
        "error": error,
        "is_final": True,
        "duration_ms": 0,
        "tokens_used": 0,
    }


@pytest.mark.promise("MK-BUDGET", "MK-NOTICE")
async def test_tokens_are_held_before_a_call_so_the_budget_is_never_exceeded() -> None:
    def on_and_on(request: Request) -> Line:
        return together(says("word " * 100), calls("grep", pattern=str(request.turn)))

    harness = MeerkatHarness(spawn(budget={"max_tokens": 2_000}), says("Waiting."), says("Failed."))
    harness.script("sub-agent", *[on_and_on] * 40)
    async with harness:
        await harness.run(TASK)
        harness.provider.script.verify = lambda: None

    outcome = harness.outcome("root/sub-agent/1")
    assert (outcome.result, outcome.reason) == ("exhausted", "max_tokens")
    assert 1_000 < outcome.usage.total <= 2_000 + 200  # over by at most the estimate of one call
    assert f"\nToken budget exceeded: used {outcome.usage.total}, limit 2000" in harness.last()[-1]


@pytest.mark.promise("MK-BUDGET", "MK-BUDGET-HELD")
async def test_what_is_left_of_a_budget_is_the_longest_output_of_the_next_call() -> None:
    """After 5,000 of 9,000 tokens the next call may use the other 4,000, and the last one ends with the budget."""
    first = together(calls("grep"), says("", usage=Usage(4_000, 1_000)))
    second = together(calls("grep"), says("", usage=Usage(200, 3_800)))
    harness = MeerkatHarness(spawn(budget={"max_tokens": 9_000}), about("agent_status"), says("Failed."), latency=1.0)
    harness.script("sub-agent", first, second)

    await harness.play()

    (_, request) = harness.requests("root/sub-agent/1")
    assert request.max_output is not None
    assert 3_900 < request.max_output < 4_000
    answer = harness.answers()[1]
    assert (answer["error"], "detail" in answer) == ("Token budget exceeded: used 9000, limit 9000", False)


@pytest.mark.promise("MK-BUDGET-HELD", "MK-STATUS-FAILED")
async def test_the_status_says_what_was_left_where_the_next_call_did_not_fit() -> None:
    harness = MeerkatHarness(
        spawn("x" * 18_000, budget={"max_tokens": 9_000}), about("agent_status"), says("Failed."), latency=1.0
    )
    harness.script("sub-agent", together(calls("grep"), says("", usage=Usage(4_500, 500))))

    await harness.play()

    needed = harness.outcome("root/sub-agent/1").limit
    assert needed is not None
    assert 4_500 < needed.needed < 4_700
    assert harness.answers()[1] == {
        "agent_id": harness.row("root/sub-agent/1").run_id,
        "state": "failed",
        "error": "Token budget exceeded: used 5000, limit 9000",
        "detail": "the token budget leaves too little for the next call: used 5000, limit 9000, left 4000, "
        f"needed at least {needed.needed}",
        "is_final": True,
        "duration_ms": 0,
        "tokens_used": 0,
    }


@pytest.mark.promise("MK-BUDGET-HELD", "MK-STATUS")
async def test_the_status_says_that_the_budget_cut_the_output_off() -> None:
    harness = MeerkatHarness(spawn(budget={"max_tokens": 1_000}), about("agent_status"), says("Ok."), latency=1.0)
    harness.script("sub-agent", says("word " * 4_000))

    await harness.play()

    (request,) = harness.requests("root/sub-agent/1")
    answer = harness.answers()[1]
    assert answer["state"] == "completed"
    assert answer["detail"] == (
        f"The output was cut off after {request.max_output} output tokens, all that the token budget left "
        f"(used {answer['tokens_used']}, limit 1000)."
    )


@pytest.mark.promise("MK-BUDGET-DEFAULT", "MK-BUDGET-CAP")
@pytest.mark.parametrize(
    ("spawn_request", "budget", "tokens"),
    [
        ({}, {}, 50_000),
        ({}, {"budget": {"max_turns": 3}}, 50_000),
        ({}, {"budget": {"max_tokens": 70_000}}, 70_000),
        ({"default_budget": 7_000}, {}, 7_000),
        ({"default_budget": None}, {}, None),
        ({"max_budget_per_agent": 20_000}, {}, 20_000),
        ({"max_budget_per_agent": 20_000}, {"budget": {"max_tokens": 70_000}}, 20_000),
        ({"max_budget_per_agent": 20_000}, {"budget": {"max_tokens": 7_000}}, 7_000),
        ({"max_budget_per_agent": 20_000, "default_budget": None}, {}, 20_000),
    ],
)
async def test_tokens_of_a_spawn_are_requested_or_default_and_never_above_the_cap(
    spawn_request: dict[str, Any], budget: dict[str, Any], tokens: int | None
) -> None:
    lines = {"find it": [says("Found.")]}
    harness = MeerkatHarness(
        spawn(**budget), says("Ok."), says("Ok."), spawned=lines, settings=MeerkatSettings(**spawn_request)
    )

    await harness.play()

    assert limits_of(harness, "root/sub-agent/1").max_tokens == tokens


@pytest.mark.promise("MK-BUDGET-FORK")
@pytest.mark.parametrize(
    ("policy", "spawn_request", "tokens"),
    [
        (None, {}, 50_000),
        ("equal", {}, 50_000),
        ("equal", {"max_budget_per_agent": 20_000}, 20_000),
        ("fixed:500", {}, 500),
        ("fixed:90000", {"max_budget_per_agent": 20_000}, 20_000),
        ("fixed:abc", {}, 50_000),
        ("fixed:-5", {}, 50_000),
        ("half", {}, 50_000),
        ("remaining", {}, 50_000),
        ("proportional", {}, 50_000),
    ],
)
async def test_a_forks_tokens_follow_its_policy(policy: str | None, spawn_request: dict[str, Any], tokens: int) -> None:
    lines = {"look below": [says("Found.")]}
    more = {} if policy is None else {"budget_policy": policy}
    harness = MeerkatHarness(
        fork(**more), says("Ok."), says("Ok."), forked=lines, settings=MeerkatSettings(**spawn_request)
    )

    await harness.play()

    assert limits_of(harness, "root/fork/1").max_tokens == tokens


@pytest.mark.promise("MK-BUDGET-FORK")
async def test_where_the_parent_has_a_budget_its_forks_get_the_rest_or_their_share_of_it() -> None:
    harness = MeerkatHarness(
        together(fork("one", budget_policy="remaining"), fork("two", budget_policy="proportional")),
        fork("three", budget_policy="proportional"),
        says("Ok."),
        *[says("Ok.")] * 2,
        forked={"one": [slowly("Found.", 9)], "two": [slowly("Found.", 9)], "three": [slowly("Found.", 8)]},
    )

    await harness.play(limits=Limits(max_tokens=100_000, max_turns=50))

    events = harness.events(harness.row("root").run_id)
    used = [event.reply.usage.total for event in events if isinstance(event, ReplyReceived) and event.reply.usage]
    left = 100_000 - used[0]
    given = [limits_of(harness, f"root/fork/{n}").max_tokens for n in (1, 2, 3)]
    assert given[:2] == [left, left // 4]  # one runs already, so that there may be four more
    assert given[2] is not None
    assert 0 < given[2] <= (left - used[1]) // 3


# ---- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("MK-LIMITS", "MK-LIMITS-RUNNING")
async def test_at_most_so_many_children_run_at_once_and_an_end_makes_room() -> None:
    harness = MeerkatHarness(
        together(*(spawn(f"child {n}") for n in range(6)), fork("look below")),
        about("agent_cancel", 0),
        together(fork("look below"), fork("look below")),
        says("Waiting."),
        says("Ok."),
        spawned={"child": [slowly("Done.", 9)]},
        forked={"look below": [slowly("Done.", 9)]},
    )

    await harness.play()

    texts = harness.texts()
    assert texts[5:7] == [NO_SPAWN, NO_FORK]
    assert texts[9] == NO_FORK
    assert [row.path for row in harness.rows()[1:]] == [*(f"root/sub-agent/{n}" for n in range(1, 6)), "root/fork/6"]


@pytest.mark.promise("MK-ORDER")
async def test_without_room_for_a_child_only_invalid_arguments_are_refused_first() -> None:
    harness = MeerkatHarness(
        together(spawn("one"), spawn(" ", provider="unknown"), calls("agent_spawn"), fork(" "), calls("agent_fork")),
        says("Waiting."),
        says("Ok."),
        spawned={"one": [slowly("1.", 9)]},
        settings=limited(max_concurrent_agents=1),
    )

    await harness.play()

    missing = "Invalid arguments: Invalid parameters: Object missing required field `prompt`"
    assert harness.texts()[1:] == [NO_SPAWN, missing, NO_FORK, missing]


@pytest.mark.promise("MK-LIMITS", "MK-LIMITS-RUNNING")
async def test_running_sub_agents_of_the_whole_tree_are_limited() -> None:
    harness = MeerkatHarness(
        together(spawn("lead"), spawn("lead")),
        says("Waiting."),
        spawned={"lead": [together(spawn("dig"), spawn("dig")), slowly("Led.", 9)], "dig": [slowly("Dug.", 9)]},
        settings=limited(max_concurrent_agents=3),
    )
    harness.script("main", says("Ok."))

    await harness.play()

    refused = [harness.texts(f"root/sub-agent/{n}").count(NO_SPAWN) for n in (1, 2)]
    assert sum(refused) == 3
    assert len(harness.rows()) == 1 + 3


@pytest.mark.promise("MK-LIMITS", "MK-LIMITS-ORDER")
@pytest.mark.parametrize(
    ("reply", "refused", "agents"),
    [
        (together(*(spawn(f"child {n}") for n in range(5))), [3, 4], 3),
        (together(*(fork(f"look {n}") for n in range(5))), [3, 4], 3),
        (together(spawn("child"), calls("pause"), calls("pause"), spawn("child"), spawn("child")), [3, 4], 1),
        (together(calls("pause"), calls("pause"), spawn("child"), spawn("child")), [3], 1),
        (together(spawn("child"), *[calls("pause")] * 3), [], 1),
    ],
    ids=["spawns", "forks", "calls between", "calls before", "calls after"],
)
async def test_operations_of_a_reply_are_served_in_order_and_the_surplus_is_refused(
    reply: ScriptedReply, refused: list[int], agents: int
) -> None:
    """An operation is a running sub-agent or a tool call under way; the call that starts a sub-agent is part of it."""
    harness = MeerkatHarness(
        reply,
        *[says("Ok.")] * 4,
        spawned={"child": [slowly("Done.", 9)]},
        forked={"look": [slowly("Done.", 9)]},
        tools=(pause, grep),
        settings=limited(max_concurrent_ops=3),
    )

    async with harness:
        await harness.run(TASK)
        harness.provider.script.verify = lambda: None  # how many ends the root reads at once depends on the reply

    returned = [event for event in harness.events(harness.row("root").run_id) if isinstance(event, CallReturned)]
    assert sorted(event.index for event in returned if event.text in (NO_SPAWN, NO_FORK)) == refused
    assert len(harness.rows()) == 1 + agents


@pytest.mark.promise("MK-LIMITS", "MK-NESTED")
async def test_a_run_at_max_depth_can_neither_spawn_nor_fork() -> None:
    harness = MeerkatHarness(
        spawn("one"),
        says("Ok."),
        says("Ok."),
        spawned={"one": [together(spawn("two"), fork("two")), says("1.")]},
        settings=limited(max_depth=1),
    )

    await harness.play()

    assert harness.texts("root/sub-agent/1") == [NO_SPAWN, NO_FORK]


@pytest.mark.promise("MK-LIMITS-BIRTH")
@pytest.mark.parametrize(
    ("limits", "inner"),
    [
        ({"max_concurrent_agents": 1}, "Sub-agent limit exceeded: max 1 concurrent sub-agents"),
        ({"max_children_per_agent": 1}, "Concurrency limit exceeded: max 1 children per agent"),
    ],
)
@pytest.mark.parametrize(
    ("start", "outer"), [(spawn, "Failed to spawn sub-agent"), (fork, "Failed to spawn forked agent")]
)
async def test_a_call_that_exceeds_a_limit_at_its_start_is_refused(
    limits: dict[str, int], inner: str, start: Any, outer: str, tmp_path: Path
) -> None:
    """After a restart calls are entered again, and ask the store before they go on: so two of them can be at one
    point at once.
    """
    both: ScriptedReply = together(start("first"), start("second"))
    lines = {task: [slowly("Done.", 9)] for task in ("first", "second")}
    spawned, forked = (lines, None) if start is spawn else (None, lines)
    for n in range(20):
        store = SqliteStore(tmp_path / f"{n}.db")
        harness = MeerkatHarness(
            both, says("Ok."), says("Ok."), spawned=spawned, forked=forked, settings=limited(**limits), store=store
        )
        with suppress(StoreError):
            await harness.open(killed_after=n)
            await harness.run(TASK, key="root")
        await harness.kill()
        replies = len(harness.replies())
        if replies == 1 and len(harness.store.runs(RunQuery())) == 1:
            break
        store.close()
    else:
        raise AssertionError("no life ended between the reply and its calls")

    await harness.open(adopt=True)
    await harness.run(TASK, key="root")
    await harness.close()

    refusals = [text for text in harness.texts() if text.startswith("Execution")]
    rows = harness.rows()
    store.close()

    assert refusals == [f"Execution failed: {outer}: {inner}"]
    assert len(rows) == 2


@pytest.mark.promise("MK-LIMITS", "MK-SETTINGS")
def test_the_limits_of_the_document_are_the_defaults() -> None:
    limits = MeerkatSettings().concurrency_limits

    assert (limits.max_depth, limits.max_concurrent_ops) == (3, 32)
    assert (limits.max_concurrent_agents, limits.max_children_per_agent) == (8, 5)
