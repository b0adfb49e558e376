"""The rate limiter: unlimited at first, narrowed when throttled, fair between trees, and no permit is ever lost."""

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


class Attempts:
    """Attempts under a rate limiter, with the order and the times of their permits."""

    def __init__(self, rate_limiter: RateLimiter) -> None:
        self.rate_limiter = rate_limiter
        self.entered: list[str] = []
        self.at: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, *, tree: str = "t", depth: int = 0, stay: float = 1.0) -> asyncio.Task[None]:
        """Start an attempt that takes `stay` seconds."""
        task = asyncio.create_task(self._attempt(name, tree, depth, stay))
        self._tasks.append(task)
        return task

    async def _attempt(self, name: str, tree: str, depth: int, stay: float) -> None:
        async with self.rate_limiter.permit(tree=tree, depth=depth):
            self.entered.append(name)
            self.at[name] = asyncio.get_running_loop().time()
            await asyncio.sleep(stay)

    async def finish(self) -> None:
        """Wait for the end of all attempts."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert (self.rate_limiter.active, self.rate_limiter.waiting) == (0, 0)


@asynccontextmanager
async def all_permits_taken(rate_limiter: RateLimiter) -> AsyncGenerator[None]:
    """Hold all permits inside the block, so that attempts queue up."""
    async with rate_limiter.permit(tree="keeper", depth=0):
        yield
        await asyncio.sleep(0)


# ---- limit ----------------------------------------------------------------------------------------------------------


async def test_a_rate_limiter_starts_unlimited() -> None:
    rate_limiter = RateLimiter(100)
    attempts = Attempts(rate_limiter)
    for number in range(100):
        attempts.start(str(number))
    await asyncio.sleep(0.5)

    assert (rate_limiter.limit, rate_limiter.active, rate_limiter.waiting) == (100, 100, 0)
    await attempts.finish()


async def test_no_more_than_the_ceiling_are_in_flight() -> None:
    rate_limiter = RateLimiter(3)
    attempts = Attempts(rate_limiter)
    for name in "abcdefg":
        attempts.start(name)
    await asyncio.sleep(0.5)
    assert (attempts.entered, rate_limiter.active, rate_limiter.waiting) == (["a", "b", "c"], 3, 4)

    await attempts.finish()

    assert attempts.at == {"a": 0, "b": 0, "c": 0, "d": 1, "e": 1, "f": 1, "g": 2}


async def test_throttling_halves_the_attempts_in_flight() -> None:
    rate_limiter = RateLimiter(1000)
    attempts = Attempts(rate_limiter)
    for number in range(8):
        attempts.start(f"first {number}", stay=1)
    await asyncio.sleep(0.5)

    rate_limiter.throttled(2.0)
    for number in range(8):
        attempts.start(f"then {number}", stay=10)
    await asyncio.sleep(5)

    assert (rate_limiter.limit, rate_limiter.active, rate_limiter.waiting) == (4, 4, 4)
    await attempts.finish()


async def test_a_burst_of_refusals_halves_the_limit_once() -> None:
    rate_limiter = RateLimiter(1000)
    attempts = Attempts(rate_limiter)
    for number in range(64):
        attempts.start(str(number), stay=1)
    await asyncio.sleep(0.5)

    for _ in range(64):
        rate_limiter.throttled(1.0)

    assert rate_limiter.limit == 32
    await attempts.finish()


async def test_refusals_after_the_pause_halve_the_limit_down_to_one() -> None:
    rate_limiter = RateLimiter(1000)
    attempts = Attempts(rate_limiter)
    for number in range(6):
        attempts.start(str(number), stay=100)
    limits: list[int] = []
    for _ in range(5):
        await asyncio.sleep(2)
        rate_limiter.throttled(1.0)
        limits.append(rate_limiter.limit)

    assert limits == [3, 1, 1, 1, 1]
    await attempts.finish()


async def test_successes_widen_the_limit_by_one_per_round_up_to_the_ceiling() -> None:
    rate_limiter = RateLimiter(8)
    attempts = Attempts(rate_limiter)
    for number in range(8):
        attempts.start(str(number))
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
    await attempts.finish()


# ---- pauses ---------------------------------------------------------------------------------------------------------


async def test_nothing_is_sent_before_the_pause_is_over() -> None:
    rate_limiter = RateLimiter(10)
    rate_limiter.throttled(30.0)
    attempts = Attempts(rate_limiter)
    attempts.start("early")
    await asyncio.sleep(29)
    attempts.start("late")
    await attempts.finish()

    assert attempts.at == {"early": 30, "late": 31}


async def test_a_longer_pause_extends_the_current_one_and_a_shorter_does_not() -> None:
    rate_limiter = RateLimiter(10)
    rate_limiter.throttled(10.0)
    attempts = Attempts(rate_limiter)
    attempts.start("a")
    await asyncio.sleep(5)
    rate_limiter.throttled(20.0)
    rate_limiter.throttled(1.0)
    await attempts.finish()

    assert attempts.at == {"a": 25}


async def test_a_pause_that_begins_at_the_grant_of_a_permit_is_kept() -> None:
    rate_limiter = RateLimiter(1)
    attempts = Attempts(rate_limiter)
    async with rate_limiter.permit(tree="keeper", depth=0):
        attempts.start("late")
        await asyncio.sleep(0)
    rate_limiter.throttled(30)  # the permit is granted, but its attempt has not started
    await attempts.finish()
    assert attempts.at == {"late": 30}


async def test_a_permit_returned_during_a_pause_is_not_granted() -> None:
    rate_limiter = RateLimiter(2)
    attempts = Attempts(rate_limiter)
    attempts.start("a", stay=1)
    attempts.start("b", stay=2)
    attempts.start("c")
    await asyncio.sleep(0.5)

    rate_limiter.throttled(9.5)
    await attempts.finish()

    assert attempts.at == {"a": 0, "b": 0, "c": 10}


# ---- order ----------------------------------------------------------------------------------------------------------


async def test_trees_take_turns_however_many_attempts_wait() -> None:
    rate_limiter = RateLimiter(1)
    attempts = Attempts(rate_limiter)
    async with all_permits_taken(rate_limiter):
        for number in range(5):
            attempts.start(f"big {number}", tree="big")
        for number in range(2):
            attempts.start(f"small {number}", tree="small")
        attempts.start("one", tree="one")
        await asyncio.sleep(0)
    await attempts.finish()

    assert attempts.entered == ["big 0", "small 0", "one", "big 1", "small 1", "big 2", "big 3", "big 4"]


async def test_within_a_tree_deeper_runs_go_first_then_in_arrival_order() -> None:
    rate_limiter = RateLimiter(1)
    attempts = Attempts(rate_limiter)
    async with all_permits_taken(rate_limiter):
        for name, depth in [("root", 0), ("child", 1), ("leaf", 2), ("other leaf", 2), ("other child", 1)]:
            attempts.start(name, depth=depth)
        await asyncio.sleep(0)
    await attempts.finish()

    assert attempts.entered == ["leaf", "other leaf", "child", "other child", "root"]


async def test_a_new_attempt_queues_behind_waiting_ones() -> None:
    rate_limiter = RateLimiter(1)
    attempts = Attempts(rate_limiter)
    async with all_permits_taken(rate_limiter):
        attempts.start("patient")
        await asyncio.sleep(0)
    attempts.start("pushy")
    await attempts.finish()

    assert attempts.entered == ["patient", "pushy"]


# ---- cancelled attempts ---------------------------------------------------------------------------------------------


async def test_a_cancelled_waiting_attempt_is_skipped() -> None:
    rate_limiter = RateLimiter(1)
    attempts = Attempts(rate_limiter)
    async with all_permits_taken(rate_limiter):
        impatient = attempts.start("impatient", depth=5)
        attempts.start("next")
        await asyncio.sleep(0)
        assert rate_limiter.waiting == 2
        impatient.cancel()
        await asyncio.sleep(0)
        assert rate_limiter.waiting == 1
    await attempts.finish()

    assert attempts.entered == ["next"]


async def test_a_cancel_at_the_grant_of_a_permit_returns_the_permit() -> None:
    rate_limiter = RateLimiter(1)
    attempts = Attempts(rate_limiter)
    async with rate_limiter.permit(tree="keeper", depth=0):
        unlucky = attempts.start("unlucky")
        attempts.start("next")
        await asyncio.sleep(0)
    unlucky.cancel()  # it holds the permit already, but has not run since
    await attempts.finish()

    assert (unlucky.cancelled(), attempts.entered) == (True, ["next"])


async def test_an_attempt_that_fails_or_is_cancelled_gives_its_permit_back() -> None:
    rate_limiter = RateLimiter(1)
    with pytest.raises(ProviderError):
        async with rate_limiter.permit(tree="t", depth=0):
            raise ProviderError("down")
    attempts = Attempts(rate_limiter)
    stopped = attempts.start("stopped", stay=100)
    await asyncio.sleep(1)
    stopped.cancel()
    attempts.start("next")
    await attempts.finish()

    assert attempts.at == {"stopped": 0, "next": 1}


@dataclass(frozen=True)
class AttemptPlan:
    """A planned attempt: its start, duration and timeout, and the response of the provider."""

    tree: str
    depth: int
    starts_at: int
    keep_alive: int
    cancelled_after: int | None
    says: int | None
    """The pause in seconds if it is throttled; None if it succeeds."""


PLANS = st.builds(
    AttemptPlan,
    tree=st.sampled_from("abc"),
    depth=st.integers(0, 3),
    starts_at=st.integers(0, 6),
    keep_alive=st.integers(0, 4),
    cancelled_after=st.none() | st.integers(0, 8),
    says=st.none() | st.integers(0, 5),
)


@given(
    plans=st.lists(PLANS, max_size=25),
    ceiling=st.integers(1, 5),
    size=st.integers(1, 5),
    rate_limiters=st.integers(1, 2),
)
async def test_random_schedules_lose_no_permit_and_break_no_rule(
    plans: list[AttemptPlan], ceiling: int, size: int, rate_limiters: int
) -> None:
    capacity = SharedCapacity(size)
    limiters = [RateLimiter(ceiling, capacity) for _ in range(rate_limiters)]
    pause_over = [0.0] * rate_limiters
    refused_at = [-1.0] * rate_limiters
    inside = [0] * rate_limiters
    loop = asyncio.get_running_loop()
    finished = 0

    async def attempt(number: int, plan: AttemptPlan) -> None:
        nonlocal finished
        which = number % rate_limiters
        rate_limiter = limiters[which]
        await asyncio.sleep(plan.starts_at)
        async with asyncio.timeout(plan.cancelled_after), rate_limiter.permit(tree=plan.tree, depth=plan.depth):
            inside[which] += 1
            assert inside[which] <= rate_limiter.active <= ceiling
            assert sum(inside) <= capacity.used <= size
            if loop.time() != refused_at[which]:  # an attempt that was admitted before, at the same moment, may run
                assert rate_limiter.active <= rate_limiter.limit
                assert loop.time() >= pause_over[which], "an attempt ran during the pause"
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
            finished += 1

    results = await asyncio.gather(*(attempt(n, plan) for n, plan in enumerate(plans)), return_exceptions=True)

    assert [error for error in results if error is not None and not isinstance(error, TimeoutError)] == []
    assert finished + sum(isinstance(error, TimeoutError) for error in results) == len(plans)
    assert [(rate_limiter.active, rate_limiter.waiting) for rate_limiter in limiters] == [(0, 0)] * rate_limiters
    assert capacity.used == 0
    await asyncio.sleep(100)
    for rate_limiter in limiters:  # the rate limiter still admits as many as its limit
        attempts = Attempts(rate_limiter)
        for number in range(10):
            attempts.start(str(number))
        await asyncio.sleep(0.5)
        assert rate_limiter.active == min(rate_limiter.limit, size)
        await attempts.finish()


# ---- all rate limiters of a process ---------------------------------------------------------------------------------


async def test_each_model_of_each_provider_has_its_own_rate_limiter() -> None:
    rate_limiters = RateLimiters(8)
    assert rate_limiters.at("alpha", "m") is rate_limiters.at("alpha", "m")
    assert len({id(rate_limiters.at(provider, model)) for provider in "ab" for model in "mn"}) == 4

    rate_limiters.at("alpha", "m").throttled(60.0)

    attempts = Attempts(rate_limiters.at("beta", "m"))
    attempts.start("elsewhere")
    await attempts.finish()
    assert attempts.at == {"elsewhere": 0}


async def test_all_rate_limiters_share_the_ceiling_and_take_turns() -> None:
    rate_limiters = RateLimiters(2)
    busy, quiet = Attempts(rate_limiters.at("alpha", "m")), Attempts(rate_limiters.at("beta", "m"))
    for number in range(6):
        busy.start(str(number))
    quiet.start("quiet")
    await asyncio.sleep(0.5)
    assert (rate_limiters.at("alpha", "m").active, rate_limiters.at("beta", "m").active) == (2, 0)

    await busy.finish()
    await quiet.finish()

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
    """A provider that records when it was called and how many attempts were in flight."""

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
        outcomes = await run_all(harness, "a", "b", "c", "d", limits=Limits(model_timeout=5))

    assert [outcome.text for outcome in outcomes] == ["a", "b", "c", "d"]
    # Four at once; all are refused after a second with a pause; then they return one by one, at most two at a time.
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
