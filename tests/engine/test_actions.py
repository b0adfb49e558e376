"""Actions per hour and cost per day: counted in the store, together for all runs with one identity."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import retinue
from retinue.core.agent import Agent
from retinue.core.budget import Window
from retinue.core.errors import StoreError
from retinue.core.events import CallReturned, RunAccepted
from retinue.core.messages import Reply
from retinue.core.policy import Autonomy, Policy, Risk, windows_of
from retinue.core.ports import CallRisk, Publish, Request
from retinue.core.run import Approval
from retinue.core.usage import Usage
from retinue.engine.tool_calls import INTERRUPTED, NO_ACTIONS_LEFT
from retinue.providers.scripted import Script, ScriptedProvider, ScriptedReply, calls, says, together
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness
from tests.engine.delegation import delegates, with_delegation
from tests.engine.memory_stores import SharedMemory

CENT = 10_000_000


@retinue.tool(acts=True)
async def act(what: str = "x") -> str:
    """Change something."""
    return f"did {what}"


@retinue.tool(kind="pure")
async def look() -> str:
    """Change nothing."""
    return "saw"


@retinue.tool(assess=lambda arguments: CallRisk(Risk.LOW, acts="write" in arguments))
async def file(how: str) -> str:
    """Read or write, as the argument says."""
    return f"{how} done"


@retinue.tool(kind="pure")
async def nap() -> str:
    """Wait a little."""
    await asyncio.sleep(10)
    return "slept"


def acts(times: int) -> ScriptedReply:
    return together(*(calls("act", what=str(number)) for number in range(1, times + 1)))


def hourly(actions: int, **more: Any) -> Policy:
    return Policy(max_actions_per_hour=actions, **more)


# ---- which calls count ----------------------------------------------------------------------------------------------


async def test_actions_beyond_the_hourly_limit_are_refused_until_an_hour_later() -> None:
    async with Harness(dialects=(), tools=[act], policy=hourly(2)) as r:
        r.script("main", acts(3), says("done"), task="now")
        r.script("main", acts(1), says("done"), task="later")
        await r.run("now")
        first = r.results("main")
        await asyncio.sleep(3600)
        second = await r.retinue.spawn("later")
        await second.wait()

        assert first == ["did 1", "did 2", NO_ACTIONS_LEFT]
        assert texts(r, second.run_id) == ["did 1"]


async def test_only_acting_calls_count_as_decided_by_their_arguments() -> None:
    async with Harness(dialects=(), tools=[look, file], policy=hourly(1)) as r:
        script = [calls("look"), calls("file", how="read"), calls("file", how="write"), calls("file", how="read")]
        r.script("main", *script, calls("file", how="write"), says("done"))
        await r.run("go")

        assert r.results("main") == ["saw", "read done", "write done", "read done", NO_ACTIONS_LEFT]


async def test_read_only_autonomy_refuses_acting_calls_of_any_risk() -> None:
    async with Harness(dialects=(), tools=[act, look, file], policy=Policy(autonomy=Autonomy.READONLY)) as r:
        r.script(
            "main",
            together(calls("act"), calls("look"), calls("file", how="read"), calls("file", how="write")),
            says("done"),
        )
        await r.run("go")

        assert sorted(r.results("main")) == [
            "Security policy: read-only mode, cannot perform 'act'",
            "Security policy: read-only mode, cannot perform 'file'",
            "read done",
            "saw",
        ]


@pytest.mark.parametrize("given", ["open", "spawn", "agent", "none"])
async def test_windows_apply_only_with_a_configured_policy(given: str) -> None:
    policy = hourly(1)
    worker = Agent(name="worker", tools=("act",), policy=policy if given == "agent" else None)
    options: dict[str, Any] = {"policy": policy} if given == "open" else {}
    async with Harness(dialects=(), tools=[act], agents=[worker], **options) as r:
        r.script("worker", acts(2), says("done"))
        await r.run("go", agent="worker", policy=policy if given == "spawn" else None)

        assert windows(r, "worker") == (() if given == "none" else windows_of("worker", policy))
        assert r.results("worker") == ["did 1", "did 2" if given == "none" else NO_ACTIONS_LEFT]


async def test_an_action_counts_only_after_its_approval() -> None:
    answers = iter([False, True, True])

    def person(question: Approval) -> bool:
        return next(answers)

    @retinue.tool(acts=True, risk="medium")
    async def deploy() -> str:
        """Deploy."""
        return "deployed"

    async with Harness(dialects=(), tools=[deploy], policy=hourly(1), approvals=person) as r:
        r.script("main", calls("deploy"), calls("deploy"), calls("deploy"), says("done"))
        await r.run("go")

        assert r.results("main") == ["A person refused this call", "deployed", NO_ACTIONS_LEFT]


# ---- shared windows -------------------------------------------------------------------------------------------------


async def test_children_share_their_parents_actions() -> None:
    r, _ = with_delegation(tools=(act,), policy=hourly(3))
    async with r:
        r.script("main", acts(1), delegates("dig", task="a"), delegates("dug", task="b"), acts(1), says("done"))
        r.script("dig", acts(1), says("done"))
        r.script("dug", acts(2), says("done"))
        await r.run("go")

        assert (r.results("dig"), r.results("dug")) == (["did 1"], ["did 1", NO_ACTIONS_LEFT])
        assert [text for text in r.results("main") if text.startswith(("did", "Rate"))] == ["did 1", NO_ACTIONS_LEFT]


async def test_a_named_agent_has_its_own_actions_within_those_of_its_caller() -> None:
    def agent(name: str, actions: int, *tools: str) -> Agent:
        return Agent(name=name, description="Works.", system_prompt="Work.", tools=tools, policy=hourly(actions))

    def hands_over(name: str) -> ScriptedReply:
        return calls("subagent", action="spawn", agent=name, task="work")

    agents = [agent("lead", 4, "act", "nap"), agent("small", 1, "act"), agent("large", 9, "act")]
    async with Harness(tools=[act, nap], agents=agents) as r:
        r.script("lead", hands_over("small"), calls("nap"), hands_over("large"), calls("nap"), acts(1), says("done"))
        r.script("small", acts(2), says("done"))
        r.script("large", acts(4), says("done"))
        await r.run("go", agent="lead")

        assert r.results("small") == ["did 1", NO_ACTIONS_LEFT]
        assert r.results("large") == ["did 1", "did 2", "did 3", NO_ACTIONS_LEFT]
        assert r.results("lead")[-1] == NO_ACTIONS_LEFT
        assert windows(r, "small") == windows_of("small", hourly(1))


async def test_a_narrowed_child_has_its_own_limit_in_the_same_window() -> None:
    async with Harness(dialects=(), tools=[act], policy=hourly(5)) as r:
        for task in ("first", "second", "third"):
            r.script("main", acts(2), says("done"), task=task)
        await r.run("first")
        second = await r.retinue.spawn("second", policy=hourly(3))
        await second.wait()
        third = await r.retinue.spawn("third", policy=hourly(1))  # two more than it would be allowed
        outcome = await third.wait()

        assert texts(r, second.run_id) == ["did 1", NO_ACTIONS_LEFT]
        assert texts(r, third.run_id) == [NO_ACTIONS_LEFT, NO_ACTIONS_LEFT]
        assert outcome.text == "done"


async def test_a_fork_keeps_the_windows_of_its_original_tree() -> None:
    r, _ = with_delegation(tools=(act,))
    async with r:
        r.script("main", delegates("dig"), says("done"), task="go")
        r.script("dig", acts(1), says("done"), task="dig")
        r.script("dig", acts(1), says("done"), task="again")
        await r.run("go", policy=hourly(1))
        fork = await r.retinue.fork(r.run_of("dig"), "again")
        await fork.wait()

        assert texts(r, fork.run_id) == [NO_ACTIONS_LEFT]


# ---- restarts and processes -----------------------------------------------------------------------------------------


async def test_actions_are_counted_once_across_a_restart() -> None:
    async with Harness(dialects=(), tools=[act, nap], policy=hourly(3)) as r:
        r.script("main", acts(2), calls("nap"), acts(2), says("done"))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1)
        await r.restart()
        await r.retinue.handle(handle.run_id).wait()

        assert r.results("main") == ["did 1", "did 2", "slept", "did 1", NO_ACTIONS_LEFT]


async def test_no_action_is_performed_uncounted_after_a_crash_at_any_write() -> None:
    performed: list[list[str]] = []
    for writes in range(3, 40):
        done, finished = await done_with_a_crash_after(writes)
        performed.append(done)
        assert len(done) == 2, writes
        if finished:
            break

    assert performed[-1] == ["1", "2"]  # without a crash
    assert ["2", "3"] in performed  # the crash came before the first was counted, and it was not performed
    assert len(performed) > 8


async def done_with_a_crash_after(writes: int) -> tuple[list[str], bool]:
    """The performed ones of three actions where two are allowed, and whether no crash happened."""
    done: list[str] = []

    @retinue.tool(acts=True)
    async def note(what: str) -> str:
        """Change something."""
        done.append(what)
        return f"did {what}"

    lines = [calls("note", what=str(number)) for number in (1, 2, 3)]
    harness = Harness(
        dialects=(),
        tools=[note],
        policy=hourly(2),
        provider=ScriptedProvider(Script().play("main", *lines, says("done"))),
    )
    finished = False
    with suppress(StoreError):
        await harness.open(killed_after=writes)
        await harness.run("go", key="the one")
        finished = True
    await harness.restart()
    await harness.run("go", key="the one")
    await harness.close()
    assert set(harness.results("main")) <= {"did 1", "did 2", "did 3", INTERRUPTED, NO_ACTIONS_LEFT}
    return done, finished


@retinue.tool(kind="idempotent", acts=True)
async def put(what: str) -> str:
    """Change something, any number of times."""
    return f"put {what}"


async def test_a_call_that_is_made_again_after_a_crash_at_any_write_is_one_action() -> None:
    crashes = 0
    for writes in range(3, 40):
        harness = Harness(dialects=(), tools=[put], policy=hourly(2))
        harness.script("main", *(calls("put", what=str(number)) for number in (1, 2, 3)), says("done"))
        finished = False
        with suppress(StoreError):
            await harness.open(killed_after=writes)
            await harness.run("go", key="the one")
            finished = True
        await harness.restart()
        await harness.run("go", key="the one")
        await harness.close()

        assert (writes, harness.results("main")) == (writes, ["put 1", "put 2", NO_ACTIONS_LEFT])
        if finished:
            break
        crashes += 1

    assert crashes > 8


async def test_two_processes_share_the_action_limit() -> None:
    store = SharedMemory()
    first = Harness(store=store, dialects=(), tools=[act], policy=hourly(3), session="one")
    second = Harness(store=store, dialects=(), tools=[act], policy=hourly(3), session="two")
    async with first, second:
        first.script("main", acts(1), acts(1), acts(1), says("done"))
        second.script("main", acts(1), acts(1), acts(1), says("done"))
        one, two = await first.retinue.spawn("go"), await second.retinue.spawn("go")
        await one.wait()
        await two.wait()
        said = [*texts(first, one.run_id), *texts(second, two.run_id)]

        assert said.count("did 1") == 3
        assert said.count(NO_ACTIONS_LEFT) == 3


@pytest.mark.real_time
async def test_two_processes_acting_at_once_use_up_the_limit_exactly(tmp_path: Path) -> None:
    def harness(name: str) -> Harness:
        store = SqliteStore(tmp_path / "retinue.db")
        return Harness(store=store, dialects=(), tools=[act], policy=hourly(5), session=name)

    first, second = harness("one"), harness("two")
    async with first, second:
        for each in (first, second):
            each.script("main", acts(8), says("done"))
        one, two = await first.retinue.spawn("go"), await second.retinue.spawn("go")
        await one.wait()
        await two.wait()
        said = [*texts(first, one.run_id), *texts(second, two.run_id)]
        counted = first.store.charges("actions/main", 0.0)
    first.store.close()
    second.store.close()

    assert sum(text.startswith("did") for text in said) == 5
    assert len(counted) == 5
    assert said.count(NO_ACTIONS_LEFT) == 11


# ---- cost per day ---------------------------------------------------------------------------------------------------


class PricedProvider(ScriptedProvider):
    """A model whose every token costs a tenth of a cent."""

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """The scripted reply, with its price."""
        reply = await super().answer(request, publish)
        assert reply.usage is not None
        return replace(reply, cost=reply.usage.total * CENT // 10)

    def price(self, model: str) -> tuple[int, int]:
        """Nanodollars for a token of input and of output."""
        return CENT // 10, CENT // 10


async def test_the_daily_cost_is_shared_between_processes() -> None:
    store = SharedMemory()
    policy = Policy(max_cost_per_day_cents=100)

    def harness(name: str) -> Harness:
        return Harness(store=store, dialects=(), policy=policy, session=name, provider=PricedProvider(Script()))

    first, second = harness("one"), harness("two")
    async with first, second:
        second.script("main", says("a little", usage=Usage(10, 10)), task="before")
        first.script("main", says("much", usage=Usage(450, 540)), task="go")
        before = await second.run("before")
        spent = await first.run("go")
        await asyncio.sleep(1)
        after = await second.run("after")
    await asyncio.sleep(86400)  # without heartbeats, of which there would be hundreds of thousands
    third = harness("three")
    async with third:
        third.script("main", says("a new day", usage=Usage(10, 10)), task="tomorrow")
        tomorrow = await third.run("tomorrow")

    assert (before.text, spent.text, tomorrow.text) == ("a little", "much", "a new day")
    assert (after.result, after.reason) == ("exhausted", "window")


def texts(r: Harness, run_id: str) -> list[str]:
    """The results of the calls of a run."""
    return [event.text for event in r.events(run_id) if isinstance(event, CallReturned)]


def windows(r: Harness, agent: str) -> tuple[Window, ...]:
    """The windows of an agent's one run."""
    accepted = r.events(r.run_of(agent))[0]
    assert isinstance(accepted, RunAccepted)
    return accepted.windows
