"""Waiting for runs: for one, any, all or the first few, without holding a permit."""

import asyncio
from typing import Literal

import pytest

from retinue.app.handle import RunHandle
from retinue.core.errors import UnknownName
from retinue.core.ports import Request
from retinue.core.run import Limits, Outcome
from retinue.engine.rate_limiter import RateLimiters
from retinue.providers.scripted import Line, Script, ScriptedProvider, says, streams, together
from retinue.testing.harness import Harness
from tests.engine.delegation import delegates, with_delegation
from tests.engine.memory_stores import SharedMemory, SlowMemory
from tests.internals import engine_of


def now() -> float:
    return asyncio.get_running_loop().time()


async def three(r: Harness) -> dict[str, RunHandle]:
    """Three runs: b ends after one second, c after two, a after three."""
    handles: dict[str, RunHandle] = {}
    for name, seconds in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        r.script("main", streams("it is ", name, every=seconds), task=name)
        handles[name] = await r.retinue.spawn(name)
    return handles


def texts(ended: dict[str, Outcome]) -> list[str]:
    return [outcome.text for outcome in ended.values()]


# ---- modes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "ended", "at"),
    [
        ("all", ["it is b", "it is c", "it is a"], 3),
        ("any", ["it is b"], 1),
        (2, ["it is b", "it is c"], 2),
        (9, ["it is b", "it is c", "it is a"], 3),
    ],
)
async def test_wait_returns_the_requested_number_of_outcomes_in_order_of_end(
    mode: Literal["all", "any"] | int, ended: list[str], at: float
) -> None:
    async with Harness(dialects=()) as r:
        runs = await three(r)

        found = await r.retinue.wait(*runs.values(), mode=mode)

        assert texts(found) == ended
        assert now() == at


async def test_outcomes_are_in_order_of_end_even_if_all_ended_before() -> None:
    async with Harness(dialects=()) as r:
        runs = await three(r)
        await asyncio.sleep(10)

        assert texts(await r.retinue.wait(*runs.values())) == ["it is b", "it is c", "it is a"]
        assert texts(await r.retinue.wait(*runs.values(), mode="any")) == ["it is b"]
        assert texts(await r.retinue.wait(*runs.values(), mode=2)) == ["it is b", "it is c"]
        await r.restart()
        later = [runs[name].run_id for name in ("a", "b", "c")]
        assert texts(await r.retinue.wait(*later)) == ["it is b", "it is c", "it is a"]


async def test_a_timeout_returns_the_ended_runs_and_leaves_the_others() -> None:
    async with Harness(dialects=()) as r:
        runs = await three(r)

        assert texts(await r.retinue.wait(*runs.values(), timeout=0)) == []
        assert texts(await r.retinue.wait(*runs.values(), timeout=2.5)) == ["it is b", "it is c"]
        assert now() == 2.5
        with pytest.raises(TimeoutError, match=r"has not ended within 0\.1 s"):
            await runs["a"].wait(timeout=0.1)
        assert (await runs["a"].wait(timeout=60)).text == "it is a"


async def test_a_run_named_twice_in_a_wait_counts_once() -> None:
    async with Harness(dialects=()) as r:
        runs = await three(r)

        both = await asyncio.gather(r.retinue.wait(runs["b"], runs["b"].run_id), runs["b"].wait())

        assert texts(both[0]) == ["it is b"]
        assert both[1].text == "it is b"
        await r.retinue.wait(*runs.values())


async def test_waiting_for_no_run_returns_and_for_an_unknown_run_raises() -> None:
    async with Harness(dialects=()) as r:
        assert await r.retinue.wait() == {}
        with pytest.raises(UnknownName):
            await r.retinue.wait("unknown")


async def test_a_cancelled_wait_does_not_affect_the_run() -> None:
    async with Harness(dialects=()) as r:
        runs = await three(r)
        waiting = asyncio.create_task(runs["a"].wait())
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])

        assert (await runs["a"].wait()).text == "it is a"
        await r.retinue.wait(*runs.values())


async def test_an_outside_caller_gets_an_outcome_once_it_is_on_disk() -> None:
    store = SlowMemory()
    async with Harness(dialects=(), store=store) as r:
        r.script("main", says("done"))
        handle = await r.retinue.spawn("go")
        outcome = await handle.wait()
        row = store.run(handle.run_id)

        assert row is not None
        assert row.progress.outcome == outcome


async def test_another_process_gets_the_outcome() -> None:
    store = SharedMemory()
    async with Harness(store=store, dialects=()) as first, Harness(store=store, dialects=()) as second:
        runs = await three(first)
        found = await second.retinue.wait(*(run.run_id for run in runs.values()), mode="any")

        assert texts(found) == ["it is b"]
        assert now() < 2
        assert len(await second.retinue.wait(*(run.run_id for run in runs.values()))) == 3


# ---- permits --------------------------------------------------------------------------------------------------------


async def test_a_parent_that_waits_holds_no_permit() -> None:
    r, _ = with_delegation(provider=ScriptedProvider(Script(), latency=1.0))
    async with r:
        rate_limiters = engine_of(r.retinue).rate_limiters = RateLimiters(ceiling=1)
        r.script("main", delegates("dig"), says("done"))
        r.script("dig", says("42"))
        handle = await r.retinue.spawn("go")
        await asyncio.sleep(1.5)
        rate_limiter = rate_limiters.at("custom", "")
        views = {view.path: (view.state, view.waiting_for) for view in await r.retinue.tree(handle)}

        assert (rate_limiter.active, rate_limiter.waiting, rate_limiter.limit) == (1, 0, 1)
        assert views == {"root": ("waiting", "child"), "root/dig/1": ("working", None)}
        await handle.wait()
        assert rate_limiter.active == 0


async def test_two_hundred_nested_runs_share_one_permit_and_do_not_deadlock() -> None:
    depth = 200

    def down(request: Request) -> Line:
        return delegates("nest") if request.path.count("/") < 2 * depth else says("the bottom")

    r, _ = with_delegation(provider=ScriptedProvider(Script(), latency=1.0))
    async with r:
        engine_of(r.retinue).rate_limiters = RateLimiters(ceiling=1)
        r.script("main", delegates("nest"), says("done"))
        r.script("nest", down, says("and up"))
        outcome = await r.run("go")
        tree = await r.retinue.list(everyone=True)

        assert outcome.text == "done"
        assert len(tree) == depth + 1
        assert max(view.depth for view in tree) == depth
        assert r.results("main") == ["completed: and up"]
        assert now() == 2 * depth + 1  # one model call at a time: two for each run, one for the deepest


async def test_two_hundred_concurrent_children_share_one_permit() -> None:
    r, delegate = with_delegation(provider=ScriptedProvider(Script(), latency=1.0))
    async with r:
        engine_of(r.retinue).rate_limiters = RateLimiters(ceiling=1)
        r.script("main", delegates("dig", times=200), says("done"))
        r.script("dig", says("42"))
        outcome = await r.run("go")

        assert outcome.text == "done"
        assert len({started.run_id for started in delegate.started}) == 200
        assert r.results("main") == ["\n".join(["completed: 42"] * 200)]
        assert now() == 202


async def test_waiting_for_a_permit_does_not_count_towards_the_timeout() -> None:
    async with Harness(dialects=(), provider=ScriptedProvider(Script(), latency=5.0)) as r:
        engine_of(r.retinue).rate_limiters = RateLimiters(ceiling=1)
        r.script("main", says("done"))
        handles = [await r.retinue.spawn(f"go {n}", limits=Limits(model_timeout=6)) for n in range(5)]
        outcomes = await r.retinue.wait(*handles)

        assert texts(outcomes) == ["done"] * 5
        assert now() == 25


# ---- limits on spawns -----------------------------------------------------------------------------------------------


async def test_a_run_may_not_delegate_deeper_than_its_tree_allows() -> None:
    r, _ = with_delegation()
    async with r:
        r.script("main", delegates("dig", max_depth=1), says("done"))
        r.script("dig", delegates("deeper", max_depth=1), says("stayed here"))
        await r.run("go")

        assert r.results("dig") == ["DepthExceeded: cannot delegate at depth 1; this tree stops at 1"]
        assert r.results("main") == ["completed: stayed here"]


async def test_no_more_children_run_at_once_than_the_rule_allows() -> None:
    r, _ = with_delegation()
    async with r:
        r.script(
            "main",
            together(*(delegates("dig", task=f"t{n}", space="s", max_running=2) for n in range(3))),
            delegates("dig", task="t4", space="s", max_running=2),
            says("done"),
        )
        r.script("dig", streams("4", "2", every=10))
        await r.run("go")
        views = await r.retinue.list(everyone=True)

        assert r.results("main") == [
            "TooManyRunning: 2 runs are running already; the limit is 2",
            "completed: 42",
            "completed: 42",
            "completed: 42",
        ]
        names = sorted(view.handle.name for view in views if view.handle is not None)
        assert names == ["t_01", "t_02", "t_03"]
        find = r.retinue.supervisor.handles.find
        assert [await find("session", "s", name) for name in names] == [
            view.run_id for view in reversed(views) if view.agent == "dig"
        ]
