"""Many children under a rate limit: all finish, no request is sent too early, and the limit is used fully."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log

import pytest

from retinue.app.open import MEMORY
from retinue.app.open import open as open_retinue
from retinue.core.commands import RunQuery
from retinue.core.errors import ProviderError
from retinue.core.messages import Reply
from retinue.core.ports import Provider, Publish, Request
from retinue.core.run import Limits
from retinue.engine.model_call import MAX_ATTEMPTS, MAX_THROTTLED
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.providers.scripted import Line, Script, ScriptedProvider, fails, says
from retinue.testing.fake_chat import ChatScript, FakeChat, error_response
from retinue.testing.fake_server import FakeResponse, ReceivedRequest
from retinue.testing.harness import Harness
from tests.engine.delegation import Delegate, delegates, with_delegation

CHILDREN = 200
LATENCY = 0.1


@pytest.fixture(autouse=True)
def no_luck() -> None:
    random.seed(7)


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True)
class SentRequest:
    """One request: its time, its agent and, if it was refused, the end of the requested pause."""

    at: float
    agent: str
    path: str
    wait_until: float | None = None


class LimitedModel(ScriptedProvider):
    """A rate-limited model: `allows` returns the seconds that a request sent now has to wait, or None."""

    def __init__(self, allows: Callable[[], float | None]) -> None:
        super().__init__(Script(), latency=LATENCY)
        self.sent: list[SentRequest] = []
        self.in_flight: list[str] = []
        self.concurrent: list[tuple[str, ...]] = []
        """The agents in flight at each new request."""
        self._allows = allows

    async def answer(self, request: Request, publish: Publish) -> Reply:
        at, wait = now(), self._allows()
        self.sent.append(SentRequest(at, request.agent, request.path, None if wait is None else at + wait))
        self.in_flight.append(request.agent)
        self.concurrent.append(tuple(self.in_flight))
        try:
            if wait is None:
                return await super().answer(request, publish)
            await asyncio.sleep(LATENCY)
            raise ProviderError("too many requests", fault="rate_limited", status=429, retry_after=wait - LATENCY)
        finally:
            self.in_flight.remove(request.agent)

    def too_early(self) -> list[tuple[SentRequest, SentRequest]]:
        """Refusals, each with a request that was sent after it and before the end of its pause."""
        refusals = [sent for sent in self.sent if sent.wait_until is not None]
        return [
            (refusal, sent)
            for refusal in refusals
            for sent in self.sent
            if refusal.at + LATENCY + 1e-4 < sent.at < (refusal.wait_until or 0.0) - 1e-4
        ]

    def paused(self) -> float:
        """The seconds in which no request was allowed."""
        total, over = 0.0, 0.0
        for sent in self.sent:
            if sent.wait_until is not None:
                total += max(0.0, sent.wait_until - max(over, sent.at + LATENCY))
                over = max(over, sent.wait_until)
        return total


def every_third(wait: float) -> Callable[[], float | None]:
    """Every third request is refused."""
    count = 0

    def allows() -> float | None:
        nonlocal count
        count += 1
        return wait if count % 3 == 0 else None

    return allows


def per_window(count: int, *, a: float) -> Callable[[], float | None]:
    """Allow `count` requests in each window of `a` seconds; a refused one has to wait for the next window."""
    window, used = 0.0, 0

    def allows() -> float | None:
        nonlocal window, used
        at = now() + 1e-6  # the beginning of a window is part of it
        begin = at // a * a
        window, used = (begin, 1) if begin != window else (window, used + 1)
        return None if used <= count else max(begin + a - now(), LATENCY)

    return allows


async def two_hundred_children(model: LimitedModel) -> list[str]:
    """The results of two hundred children that one parent starts together, a line each."""
    harness, _ = with_delegation(provider=model)
    async with harness:
        harness.script("main", delegates("dig", times=CHILDREN), says("all of them"))
        harness.script("dig", says("dug"))
        outcome = await harness.run("go", limits=Limits(max_turns=5))

        assert outcome.text == "all of them"
        (told,) = harness.results("main")
        return told.splitlines()


async def test_two_hundred_children_finish_although_every_third_request_is_refused() -> None:
    model = LimitedModel(every_third(2.0))

    assert await two_hundred_children(model) == ["completed: dug"] * CHILDREN
    assert model.too_early() == []
    refused = sum(sent.wait_until is not None for sent in model.sent)
    assert refused == len(model.sent) // 3
    assert now() <= 1.3 * model.paused(), "no run waits for anything but the pauses"
    # If all refused attempts returned together each time, a third of them would be refused again.
    ticks = ceil(log(CHILDREN, 3)) + 1
    assert now() <= 1.3 * ticks * (2.0 + LATENCY)
    # Their parent holds no permit while it waits, and continues as soon as they are done and the pause is over.
    assert {crowd for crowd in model.concurrent if "main" in crowd} == {("main",)}
    done = max(sent.at for sent in model.sent if sent.agent == "dig") + LATENCY
    allowed = max([done, *(sent.wait_until or 0.0 for sent in model.sent if sent.at < done)])
    asked_again = min(sent.at for sent in model.sent if sent.agent == "main" and sent.at > LATENCY)
    assert done <= asked_again <= allowed + 1e-3


async def test_parents_among_waiting_children_are_not_starved_by_the_children_of_others() -> None:
    model = LimitedModel(every_third(2.0))
    harness, _ = with_delegation(provider=model)
    async with harness:
        harness.script("main", delegates("lead", times=10), says("all of them"))
        harness.script("lead", delegates("dig", times=20), says("led"))
        harness.script("dig", says("dug"))
        outcome = await harness.run("go", limits=Limits(max_turns=5))

        assert outcome.text == "all of them"
        assert harness.results("main") == ["\n".join(["completed: led"] * 10)]
    assert model.too_early() == []
    assert now() <= 1.3 * model.paused()
    # A lead whose children are done does not wait for the children of the others.
    answers = [sent.at for sent in model.sent if sent.agent == "lead"][10:]
    last_child = max(sent.at for sent in model.sent if sent.agent == "dig")
    assert min(answers) < last_child


class RecordingProvider:
    """Wraps a provider and records the times of requests, and the pauses with the times of their refusals."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.sent: list[float] = []
        self.pauses: list[tuple[float, float]] = []

    async def answer(self, request: Request, publish: Publish) -> Reply:
        self.sent.append(now())
        try:
            return await self._provider.answer(request, publish)
        except ProviderError as error:
            if error.retry_after is not None:
                self.pauses.append((now(), now() + error.retry_after))
            raise

    def too_early(self) -> list[float]:
        """Times of requests that were sent during a pause."""
        return [at for at in self.sent if any(heard < at < until - 1e-3 for heard, until in self.pauses)]

    def paused(self) -> float:
        """The seconds in which no request was allowed."""
        total, over = 0.0, 0.0
        for heard, until in self.pauses:
            total, over = total + max(0.0, until - max(over, heard)), max(over, until)
        return total


@pytest.mark.real_time
async def test_two_hundred_children_finish_over_a_real_wire() -> None:
    _, unhindered, _ = await over_a_real_wire(refused_every=1_000_000)
    recorded, took, asked = await over_a_real_wire(refused_every=3)

    assert recorded.too_early() == []
    assert len(recorded.pauses) == asked // 3
    assert took <= 1.3 * recorded.paused() + 10 * unhindered


async def over_a_real_wire(*, refused_every: int) -> tuple[RecordingProvider, float, int]:
    """Run two hundred children; the recorded provider, the seconds that took, and the number of requests."""
    asked = 0

    def played(heard: ReceivedRequest) -> Line | FakeResponse:
        nonlocal asked
        asked += 1
        return error_response(429, "slow down", retry_after="0.3") if asked % refused_every == 0 else script(heard)

    script = ChatScript().play(delegates("dig", times=CHILDREN), says("all of them"), words="go").play(says("dug"))
    delegate = Delegate()
    async with FakeChat(played) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        recorded = RecordingProvider(provider)
        async with open_retinue(provider=recorded, tools=[delegate], dialects=(), home=MEMORY) as opened:
            delegate.retinue = lambda: opened
            begun = now()
            outcome = await opened.run("go", limits=Limits(max_turns=5))
            took = now() - begun
            views = await opened.supervisor.list(RunQuery())

    assert outcome.text == "all of them"
    assert [view.outcome and view.outcome.text for view in views if view.agent == "dig"] == ["dug"] * CHILDREN
    return recorded, took, asked


@pytest.mark.parametrize(("count", "seconds"), [(20, 1.0), (50, 10.0), (5, 1.0)])
async def test_a_limit_is_used_fully_and_never_exceeded_within_a_window(count: int, seconds: float) -> None:
    model = LimitedModel(per_window(count, a=seconds))

    assert await two_hundred_children(model) == ["completed: dug"] * CHILDREN
    assert model.too_early() == []
    ideal = (CHILDREN + 2) / count * seconds
    assert now() <= 1.3 * ideal


async def test_refused_attempts_do_not_return_together() -> None:
    model = LimitedModel(per_window(20, a=1.0))
    await two_hundred_children(model)

    early = [len(crowd) for crowd, sent in zip(model.concurrent, model.sent, strict=True) if sent.at < 1.0]
    late = [len(crowd) for crowd, sent in zip(model.concurrent, model.sent, strict=True) if sent.at > 5.0]
    assert (max(early), max(late) <= 20) == (CHILDREN, True)


async def test_a_waiting_parent_holds_no_permit_and_continues_after_its_children() -> None:
    model = LimitedModel(per_window(20, a=1.0))
    await two_hundred_children(model)

    assert {crowd for crowd in model.concurrent if "main" in crowd} == {("main",)}
    last_child, last_of_all = model.sent[-2:]
    assert (last_child.agent, last_of_all.agent) == ("dig", "main")
    assert last_of_all.at - last_child.at <= 1.0 + LATENCY + 0.2


async def test_a_small_tree_is_not_starved_by_a_big_one() -> None:
    model = LimitedModel(per_window(10, a=1.0))
    harness, _ = with_delegation(provider=model)
    async with harness:
        harness.script("main", delegates("dig", times=CHILDREN), says("all of them"), task="big")
        harness.script("main", says("quick"), task="small")
        harness.script("dig", says("dug"))
        big = await harness.retinue.spawn("big")
        await asyncio.sleep(3)
        outcome = await harness.run("small")
        small_took = now() - 3

        assert (outcome.text, (await big.wait()).text) == ("quick", "all of them")
        assert small_took <= 2.5, "a tree with one question waits for a window or two, not for two hundred others"
        assert now() > 15


async def test_repeated_refusals_without_any_success_end_the_attempts() -> None:
    model = LimitedModel(lambda: 5.0)
    async with Harness(provider=model, dialects=()) as harness:
        harness.script("main", says("never"))
        outcome = await harness.run("go")
        harness.provider.script = Script()

        assert (outcome.result, outcome.reason, outcome.error) == (
            "failed",
            "model_error",
            "too many requests (4 attempts were made; try again later)",
        )
        assert len(model.sent) == MAX_ATTEMPTS
        assert all(later.at - sooner.at >= 5.0 for sooner, later in pairwise(model.sent))


async def test_refusals_count_as_attempts_only_if_no_other_call_succeeds() -> None:
    busy = ProviderError("too many requests", fault="rate_limited", status=429, retry_after=1.0)
    provider = ScriptedProvider(Script(), latency=0.1)
    async with Harness(provider=provider, dialects=()) as harness:
        refusals = 0

        def refuse(request: Request) -> Line:
            nonlocal refusals
            refusals += 1
            return fails(busy)

        harness.script("main", refuse, task="unlucky")
        harness.script("main", says("done"), task="lucky")
        unlucky = await harness.retinue.spawn("unlucky", limits=Limits(retry_for=0))
        while (await unlucky.look()).outcome is None:
            assert (await harness.run("lucky")).text == "done"
        outcome = await unlucky.wait()

    assert (outcome.result, outcome.error) == ("failed", "too many requests (24 attempts were made; try again later)")
    assert refusals == MAX_THROTTLED + MAX_ATTEMPTS


async def test_server_errors_count_as_attempts_even_if_other_calls_succeed() -> None:
    fire = ProviderError("on fire", fault="overloaded", status=500)
    provider = ScriptedProvider(Script(), latency=0.1)
    async with Harness(provider=provider, dialects=()) as harness:
        failed = 0

        def burn(request: Request) -> Line:
            nonlocal failed
            failed += 1
            return fails(fire)

        harness.script("main", burn, task="unlucky")
        harness.script("main", says("done"), task="lucky")
        unlucky = await harness.retinue.spawn("unlucky", limits=Limits(retry_for=0))
        while (await unlucky.look()).outcome is None:
            await harness.run("lucky")

    assert failed == MAX_ATTEMPTS


async def test_a_server_error_does_not_throttle_other_calls() -> None:
    fire = ProviderError("on fire", fault="overloaded", status=500)
    async with Harness(dialects=()) as harness:
        harness.script("main", fails(fire, times=3, then=says("at last")), task="unlucky")
        harness.script("main", says("done"), task="lucky")
        unlucky = await harness.retinue.spawn("unlucky")
        await asyncio.sleep(0.1)  # it was refused and waits
        before = now()
        lucky = await harness.run("lucky")
        waited = now() - before
        outcome = await unlucky.wait()

    assert (lucky.text, waited, outcome.text) == ("done", 0.0, "at last")
