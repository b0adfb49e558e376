"""The rate gate: open at first, narrower when the provider says so, fair between trees, and no permit is ever lost."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import ProviderError
from retinue.core.messages import Reply
from retinue.core.ports import Publish, Request
from retinue.core.run import Limits, Outcome
from retinue.engine.rate_limiter import RateLimiter, RateLimiters, SharedCapacity, max_connections
from retinue.providers.scripted import Script, ScriptedProvider, fails, says
from retinue.testing.harness import Harness


class Crowd:
    """People at a gate: who got in, in order, and when."""

    def __init__(self, rate_limiter: RateLimiter) -> None:
        self.rate_limiter = rate_limiter
        self.entered: list[str] = []
        self.at: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def come(self, name: str, *, tree: str = "t", depth: int = 0, stay: float = 1.0) -> asyncio.Task[None]:
        """Somebody wants in, and stays a while."""
        task = asyncio.create_task(self._visit(name, tree, depth, stay))
        self._tasks.append(task)
        return task

    async def _visit(self, name: str, tree: str, depth: int, stay: float) -> None:
        async with self.rate_limiter.permit(tree=tree, depth=depth):
            self.entered.append(name)
            self.at[name] = asyncio.get_running_loop().time()
            await asyncio.sleep(stay)

    async def all_gone(self) -> None:
        """Wait until everyone has left."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert (self.rate_limiter.active, self.rate_limiter.waiting) == (0, 0)


@asynccontextmanager
async def closed_for_a_moment(rate_limiter: RateLimiter) -> AsyncGenerator[None]:
    """All permits are taken inside the block, so that others queue up."""
    async with rate_limiter.permit(tree="keeper", depth=0):
        yield
        await asyncio.sleep(0)


# ---- how wide -------------------------------------------------------------------------------------------------------


async def test_a_rate_limiter_starts_unlimited() -> None:
    rate_limiter = RateLimiter(100)
    crowd = Crowd(rate_limiter)
    for number in range(100):
        crowd.come(str(number))
    await asyncio.sleep(0.5)

    assert (rate_limiter.limit, rate_limiter.active, rate_limiter.waiting) == (100, 100, 0)
    await crowd.all_gone()


async def test_no_more_than_the_ceiling_are_in_flight() -> None:
    rate_limiter = RateLimiter(3)
    crowd = Crowd(rate_limiter)
    for name in "abcdefg":
        crowd.come(name)
    await asyncio.sleep(0.5)
    assert (crowd.entered, rate_limiter.active, rate_limiter.waiting) == (["a", "b", "c"], 3, 4)

    await crowd.all_gone()

    assert crowd.at == {"a": 0, "b": 0, "c": 0, "d": 1, "e": 1, "f": 1, "g": 2}


async def test_throttling_halves_the_attempts_in_flight() -> None:
    rate_limiter = RateLimiter(1000)
    crowd = Crowd(rate_limiter)
    for number in range(8):
        crowd.come(f"first {number}", stay=1)
    await asyncio.sleep(0.5)

    rate_limiter.throttled(2.0)
    for number in range(8):
        crowd.come(f"then {number}", stay=10)
    await asyncio.sleep(5)

    assert (rate_limiter.limit, rate_limiter.active, rate_limiter.waiting) == (4, 4, 4)
    await crowd.all_gone()


async def test_a_burst_of_refusals_halves_the_limit_once() -> None:
    rate_limiter = RateLimiter(1000)
    crowd = Crowd(rate_limiter)
    for number in range(64):
        crowd.come(str(number), stay=1)
    await asyncio.sleep(0.5)

    for _ in range(64):
        rate_limiter.throttled(1.0)

    assert rate_limiter.limit == 32
    await crowd.all_gone()


async def test_refusals_after_the_pause_halve_the_limit_down_to_one() -> None:
    rate_limiter = RateLimiter(1000)
    crowd = Crowd(rate_limiter)
    for number in range(6):
        crowd.come(str(number), stay=100)
    limits: list[int] = []
    for _ in range(5):
        await asyncio.sleep(2)
        rate_limiter.throttled(1.0)
        limits.append(rate_limiter.limit)

    assert limits == [3, 1, 1, 1, 1]
    await crowd.all_gone()


async def test_successes_widen_the_limit_by_one_per_round_up_to_the_ceiling() -> None:
    rate_limiter = RateLimiter(8)
    crowd = Crowd(rate_limiter)
    for number in range(8):
        crowd.come(str(number))
    await asyncio.sleep(0.5)
    rate_limiter.throttled(0.0)
    assert rate_limiter.limit == 4

    replies = 0
    while rate_limiter.limit < 8:
        rate_limiter.succeeded()
        replies += 1
    for _ in range(100):
        rate_limiter.succeeded()

    assert 4 + 5 + 6 + 7 <= replies <= 4 + 5 + 6 + 7 + 4
    assert rate_limiter.limit == 8
    await crowd.all_gone()


# ---- when -----------------------------------------------------------------------------------------------------------


async def test_nothing_is_sent_before_the_pause_is_over() -> None:
    rate_limiter = RateLimiter(10)
    rate_limiter.throttled(30.0)
    crowd = Crowd(rate_limiter)
    crowd.come("early")
    await asyncio.sleep(29)
    crowd.come("late")
    await crowd.all_gone()

    assert crowd.at == {"early": 30, "late": 31}


async def test_a_longer_pause_extends_the_current_one_and_a_shorter_does_not() -> None:
    rate_limiter = RateLimiter(10)
    rate_limiter.throttled(10.0)
    crowd = Crowd(rate_limiter)
    crowd.come("a")
    await asyncio.sleep(5)
    rate_limiter.throttled(20.0)
    rate_limiter.throttled(1.0)
    await crowd.all_gone()

    assert crowd.at == {"a": 25}


async def test_a_pause_that_begins_at_the_grant_of_a_permit_is_kept() -> None:
    rate_limiter = RateLimiter(1)
    crowd = Crowd(rate_limiter)
    async with rate_limiter.permit(tree="keeper", depth=0):
        crowd.come("late")
        await asyncio.sleep(0)
    rate_limiter.throttled(30)  # the permit is given, and nobody has used it yet
    await crowd.all_gone()
    assert crowd.at == {"late": 30}


async def test_a_permit_returned_during_a_pause_is_not_granted() -> None:
    rate_limiter = RateLimiter(2)
    crowd = Crowd(rate_limiter)
    crowd.come("a", stay=1)
    crowd.come("b", stay=2)
    crowd.come("c")
    await asyncio.sleep(0.5)

    rate_limiter.throttled(9.5)
    await crowd.all_gone()

    assert crowd.at == {"a": 0, "b": 0, "c": 10}


# ---- who ------------------------------------------------------------------------------------------------------------


async def test_trees_take_turns_however_many_attempts_wait() -> None:
    rate_limiter = RateLimiter(1)
    crowd = Crowd(rate_limiter)
    async with closed_for_a_moment(rate_limiter):
        for number in range(5):
            crowd.come(f"big {number}", tree="big")
        for number in range(2):
            crowd.come(f"small {number}", tree="small")
        crowd.come("one", tree="one")
        await asyncio.sleep(0)
    await crowd.all_gone()

    assert crowd.entered == ["big 0", "small 0", "one", "big 1", "small 1", "big 2", "big 3", "big 4"]


async def test_within_a_tree_deeper_runs_go_first_then_in_arrival_order() -> None:
    rate_limiter = RateLimiter(1)
    crowd = Crowd(rate_limiter)
    async with closed_for_a_moment(rate_limiter):
        for name, depth in [("root", 0), ("child", 1), ("leaf", 2), ("other leaf", 2), ("other child", 1)]:
            crowd.come(name, depth=depth)
        await asyncio.sleep(0)
    await crowd.all_gone()

    assert crowd.entered == ["leaf", "other leaf", "child", "other child", "root"]


async def test_a_new_attempt_queues_behind_waiting_ones() -> None:
    rate_limiter = RateLimiter(1)
    crowd = Crowd(rate_limiter)
    async with closed_for_a_moment(rate_limiter):
        crowd.come("patient")
        await asyncio.sleep(0)
    crowd.come("pushy")
    await crowd.all_gone()

    assert crowd.entered == ["patient", "pushy"]


# ---- giving up ------------------------------------------------------------------------------------------------------


async def test_a_cancelled_waiting_attempt_is_skipped() -> None:
    rate_limiter = RateLimiter(1)
    crowd = Crowd(rate_limiter)
    async with closed_for_a_moment(rate_limiter):
        impatient = crowd.come("impatient", depth=5)
        crowd.come("next")
        await asyncio.sleep(0)
        assert rate_limiter.waiting == 2
        impatient.cancel()
        await asyncio.sleep(0)
        assert rate_limiter.waiting == 1
    await crowd.all_gone()

    assert crowd.entered == ["next"]


async def test_a_cancel_at_the_grant_of_a_permit_returns_the_permit() -> None:
    rate_limiter = RateLimiter(1)
    crowd = Crowd(rate_limiter)
    async with rate_limiter.permit(tree="keeper", depth=0):
        unlucky = crowd.come("unlucky")
        crowd.come("next")
        await asyncio.sleep(0)
    unlucky.cancel()  # it holds the permit already, and has not heard of it
    await crowd.all_gone()

    assert (unlucky.cancelled(), crowd.entered) == (True, ["next"])


async def test_an_attempt_that_fails_or_is_cancelled_gives_its_permit_back() -> None:
    rate_limiter = RateLimiter(1)
    with pytest.raises(ProviderError):
        async with rate_limiter.permit(tree="t", depth=0):
            raise ProviderError("down")
    crowd = Crowd(rate_limiter)
    stopped = crowd.come("stopped", stay=100)
    await asyncio.sleep(1)
    stopped.cancel()
    crowd.come("next")
    await crowd.all_gone()

    assert crowd.at == {"stopped": 0, "next": 1}


@dataclass(frozen=True)
class Visit:
    """Somebody's plan: when to come, how long to stay, when to lose patience, and what the provider will say."""

    tree: str
    depth: int
    comes: int
    keep_alive: int
    gives_up: int | None
    says: int | None
    """A pause in seconds when refused; None when all is well."""


VISITS = st.builds(
    Visit,
    tree=st.sampled_from("abc"),
    depth=st.integers(0, 3),
    comes=st.integers(0, 6),
    keep_alive=st.integers(0, 4),
    gives_up=st.none() | st.integers(0, 8),
    says=st.none() | st.integers(0, 5),
)


@given(
    visits=st.lists(VISITS, max_size=25),
    ceiling=st.integers(1, 5),
    size=st.integers(1, 5),
    rate_limiters=st.integers(1, 2),
)
async def test_random_schedules_lose_no_permit_and_break_no_rule(
    visits: list[Visit], ceiling: int, size: int, rate_limiters: int
) -> None:
    capacity = SharedCapacity(size)
    all_gates = [RateLimiter(ceiling, capacity) for _ in range(rate_limiters)]
    pause_over = [0.0] * rate_limiters
    refused_at = [-1.0] * rate_limiters
    inside = [0] * rate_limiters
    loop = asyncio.get_running_loop()
    through = 0

    async def visit(number: int, plan: Visit) -> None:
        nonlocal through
        which = number % rate_limiters
        rate_limiter = all_gates[which]
        await asyncio.sleep(plan.comes)
        async with asyncio.timeout(plan.gives_up), rate_limiter.permit(tree=plan.tree, depth=plan.depth):
            inside[which] += 1
            assert inside[which] <= rate_limiter.active <= ceiling
            assert sum(inside) <= capacity.used <= size
            if loop.time() != refused_at[which]:  # whoever was let in before, in the same instant, may go
                assert rate_limiter.active <= rate_limiter.limit
                assert loop.time() >= pause_over[which], "somebody went during the pause"
            try:
                await asyncio.sleep(plan.keep_alive)
                if plan.says is None:
                    rate_limiter.succeeded()
                else:
                    rate_limiter.throttled(plan.says)
                    refused_at[which] = loop.time()
                    pause_over[which] = max(pause_over[which], loop.time() + plan.says)
            finally:
                inside[which] -= 1
            through += 1

    results = await asyncio.gather(*(visit(n, plan) for n, plan in enumerate(visits)), return_exceptions=True)

    assert [error for error in results if error is not None and not isinstance(error, TimeoutError)] == []
    assert through + sum(isinstance(error, TimeoutError) for error in results) == len(visits)
    assert [(rate_limiter.active, rate_limiter.waiting) for rate_limiter in all_gates] == [(0, 0)] * rate_limiters
    assert capacity.used == 0
    await asyncio.sleep(100)
    for rate_limiter in all_gates:  # and the gate still lets in as many as it says
        crowd = Crowd(rate_limiter)
        for number in range(10):
            crowd.come(str(number))
        await asyncio.sleep(0.5)
        assert rate_limiter.active == min(rate_limiter.limit, size)
        await crowd.all_gone()


# ---- all gates of a process -----------------------------------------------------------------------------------------


async def test_each_model_of_each_provider_has_its_own_rate_limiter() -> None:
    rate_limiters = RateLimiters(8)
    assert rate_limiters.at("alpha", "m") is rate_limiters.at("alpha", "m")
    assert len({id(rate_limiters.at(provider, model)) for provider in "ab" for model in "mn"}) == 4

    rate_limiters.at("alpha", "m").throttled(60.0)

    crowd = Crowd(rate_limiters.at("beta", "m"))
    crowd.come("elsewhere")
    await crowd.all_gone()
    assert crowd.at == {"elsewhere": 0}


async def test_all_rate_limiters_share_the_ceiling_and_take_turns() -> None:
    rate_limiters = RateLimiters(2)
    busy, quiet = Crowd(rate_limiters.at("alpha", "m")), Crowd(rate_limiters.at("beta", "m"))
    for number in range(6):
        busy.come(str(number))
    quiet.come("quiet")
    await asyncio.sleep(0.5)
    assert (rate_limiters.at("alpha", "m").active, rate_limiters.at("beta", "m").active) == (2, 0)

    await busy.all_gone()
    await quiet.all_gone()

    assert busy.at == {"0": 0, "1": 0, "2": 1, "3": 2, "4": 2, "5": 3}
    assert quiet.at == {"quiet": 1}


def test_the_ceiling_leaves_file_descriptors_for_other_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")

    def with_limit(soft: int) -> int:
        def getrlimit(_: int) -> tuple[int, int]:
            return soft, soft

        monkeypatch.setattr(resource, "getrlimit", getrlimit)
        return max_connections()

    assert with_limit(1024) == 1024 - 64
    assert with_limit(65) == 8, "a few always go"
    assert with_limit(resource.RLIM_INFINITY) == 65536 - 64


# ---- through the front door -----------------------------------------------------------------------------------------


class Timed(ScriptedProvider):
    """A provider that notes when it was asked and how many attempts were under way."""

    def __init__(self, script: Script, latency: float = 1.0) -> None:
        super().__init__(script, latency=latency)
        self.at: list[float] = []
        self.most = 0
        self._active = 0

    async def answer(self, request: Request, publish: Publish) -> Reply:
        self.at.append(asyncio.get_running_loop().time())
        self._active += 1
        self.most = max(self.most, self._active)
        try:
            return await super().answer(request, publish)
        finally:
            self._active -= 1


def refused(retry_after: float) -> ProviderError:
    return ProviderError("too many requests", fault="rate_limited", status=429, retry_after=retry_after)


async def run_all(harness: Harness, *tasks: str, limits: Limits | None = None) -> list[Outcome]:
    return await asyncio.gather(*(harness.run(task, limits=limits) for task in tasks))


async def test_after_a_429_no_request_is_sent_before_retry_after() -> None:
    script = Script()
    for task in ("a", "b", "c", "d"):
        script.play("main", fails(refused(40.0), then=says(task)), task=task)
    provider = Timed(script)
    async with Harness(provider=provider, dialects=()) as harness:
        outcomes = await run_all(harness, "a", "b", "c", "d", limits=Limits(model_seconds=5))

    assert [outcome.text for outcome in outcomes] == ["a", "b", "c", "d"]
    # Four at once; all are refused after a second and told to wait; they come back one by one, at most two at a time.
    assert provider.at[:4] == [0.0] * 4
    assert [41 <= at < 44 for at in provider.at[4:]] == [True] * 4


async def test_a_pause_beyond_the_limit_is_an_error_for_each_call() -> None:
    script = Script().play("main", fails(refused(7200.0)))
    provider = Timed(script)
    async with Harness(provider=provider, dialects=()) as harness:
        first = await harness.run("a")
        second = await harness.run("b")

    assert first.error == second.error == "too many requests (it asks to wait 7200 s, which is too long)"
    assert provider.at == [0.0, 1.0]


async def test_five_hundred_runs_call_their_models_at_once() -> None:
    provider = Timed(Script().play("main", says("done")))
    async with Harness(provider=provider, dialects=()) as harness:
        await run_all(harness, *(str(number) for number in range(500)))

    assert provider.most == 500
