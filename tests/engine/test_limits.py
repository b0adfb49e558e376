"""Limits: turns, calls, tokens, cost and time, of one run and shared by a tree."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import hypothesis
import pytest
from hypothesis import strategies as st

import retinue
from retinue.core.errors import ProviderError, ProviderFault
from retinue.core.events import TurnFailed, WrapUpAsked
from retinue.core.messages import AssistantMessage, Message, Reply, StartDelta, TextDelta, ToolCall, ToolMessage
from retinue.core.ports import Publish, Request, ToolLike
from retinue.core.run import LimitMet, Limits, Outcome
from retinue.core.state import NOT_MADE
from retinue.core.usage import Usage
from retinue.engine.model_call import MAX_ATTEMPTS
from retinue.providers.scripted import (
    Line,
    LineFunction,
    Script,
    ScriptedProvider,
    ScriptedReply,
    calls,
    fails,
    hangs,
    says,
    streams,
    together,
)
from retinue.testing.harness import CountedIds, Harness
from retinue.testing.virtual_time import VirtualClock
from tests.engine.delegation import Delegate, delegates, with_delegation
from tests.engine.script_lines import recording
from tests.internals import engine_of

FREE = Usage()
PRICES = {"m": (3, 5)}


def now() -> float:
    return asyncio.get_running_loop().time()


@retinue.tool(kind="pure")
async def nap(seconds: float = 0) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "slept"


def naps(words: str = "", *, usage: Usage = FREE, times: int = 1) -> ScriptedReply:
    """A reply that calls `nap`, with this usage."""
    return together(says(words), *[calls("nap")] * times, says("", usage=usage))


def asking(heard: list[Request], line: Line) -> LineFunction:
    """A line that records its request."""

    def listen(request: Request) -> Line:
        heard.append(request)
        return line

    return listen


def harness() -> Harness:
    """A retinue whose model has a price."""
    provider = ScriptedProvider(Script(), prices=PRICES)
    return Harness(dialects=(), tools=[nap], provider=provider, model="m")


# ---- turns and calls ------------------------------------------------------------------------------------------------


async def test_a_run_out_of_turns_is_exhausted_and_its_last_calls_are_not_made() -> None:
    async with harness() as r:
        r.script("main", naps("first"), naps("second"))
        outcome = await r.run("go", limits=Limits(max_turns=2))

        assert outcome == Outcome(
            result="exhausted",
            reason="max_turns",
            text="second",
            error="the turn limit was reached without a final answer: used 2, limit 2",
            turns=2,
            limit=LimitMet("max_turns", 2, 2),
        )
        assert r.results("main") == ["slept"]


async def test_an_answer_in_the_last_turn_is_an_answer() -> None:
    async with harness() as r:
        r.script("main", naps(), says("done"))

        assert (await r.run("go", limits=Limits(max_turns=2))).ok


async def test_the_wrap_up_turn_asks_once_without_tools_for_an_answer() -> None:
    heard: list[Request] = []
    said: list[Sequence[Message]] = []
    async with harness() as r:
        r.script("main", asking(heard, naps()), asking(heard, naps()), asking(heard, says("half of it")))
        outcome = await r.run("go", limits=Limits(max_turns=3, wrap_up=True))
        said.append(tuple(heard[-1].messages))

        assert (outcome.result, outcome.text, outcome.turns) == ("exhausted", "half of it", 3)
        assert outcome.limit == LimitMet("max_turns", 3, 3)
        assert [[tool.name for tool in request.tools] for request in heard] == [["nap"], ["nap"], []]
        assert r.results("main") == ["slept", "slept"]
        (asked,) = [event for event in r.events(r.run_of("main")) if isinstance(event, WrapUpAsked)]
        assert asked.text == (
            "You have reached the limit (turns: 3) of this task. Do not call any tools. "
            "Give your final answer now, from what you have, and say what is left undone."
        )
        assert said[0][-2].text == asked.text


async def test_a_reply_beyond_the_call_limit_makes_no_calls() -> None:
    async with harness() as r:
        r.script("main", naps("one"), naps("three more", times=3))
        outcome = await r.run("go", limits=Limits(max_calls=3))

        assert (outcome.result, outcome.reason, outcome.text) == ("exhausted", "max_calls", "three more")
        assert outcome.error == "the tool call budget is spent: used 4, limit 3"
        assert r.results("main") == ["slept"]


async def test_the_wrap_up_reads_which_calls_were_not_made() -> None:
    heard: list[Sequence[Message]] = []
    async with harness() as r:
        r.script("main", naps("one", times=2), recording(heard, says("nothing yet")))
        outcome = await r.run("go", limits=Limits(max_calls=1, wrap_up=True))

        assert (outcome.result, outcome.reason, outcome.text) == ("exhausted", "max_calls", "nothing yet")
        assert [message for message in heard[0] if isinstance(message, ToolMessage)] == [
            ToolMessage("nap", NOT_MADE, failed=True)
        ] * 2


async def test_tool_calls_in_the_wrap_up_turn_are_not_made() -> None:
    async with harness() as r:
        r.script("main", naps("one", usage=Usage(700, 100)), naps("more, more"))
        outcome = await r.run("go", limits=Limits(max_tokens=1000, wrap_up=True))

        assert (outcome.result, outcome.reason, outcome.text) == ("exhausted", "max_tokens", "more, more")
        assert r.results("main") == ["slept"]


# ---- tokens and cost ------------------------------------------------------------------------------------------------


async def test_a_run_is_exhausted_before_a_call_that_does_not_fit() -> None:
    async with harness() as r:
        r.script("main", naps("one", usage=Usage(400, 100)), naps("two", usage=Usage(400, 90)))
        outcome = await r.run("go", limits=Limits(max_tokens=1000))

        assert outcome == Outcome(
            result="exhausted",
            reason="max_tokens",
            text="two",
            error=(
                "the token budget leaves too little for the next call: "
                "used 990, limit 1000, left 10, needed at least 55"
            ),
            usage=Usage(800, 190),
            cost=800 * 3 + 190 * 5,
            turns=2,
            limit=LimitMet("max_tokens", 990, 1000, dimension="tokens", left=10, needed=55),
        )
        assert len(r.provider.asked) == 2


@pytest.mark.parametrize(
    ("limits", "met"),
    [
        (Limits(max_input_tokens=500), LimitMet("max_tokens", 500, 500, dimension="input", needed=35)),
        (Limits(max_output_tokens=100), LimitMet("max_tokens", 100, 100, dimension="output", needed=16)),
        (Limits(max_nanodollars=2000), LimitMet("max_cost", 2000, 2000, dimension="cost", needed=185)),
    ],
)
async def test_input_output_and_cost_have_limits_of_their_own(limits: Limits, met: LimitMet) -> None:
    async with harness() as r:
        r.script("main", naps("one", usage=Usage(500, 100)))
        outcome = await r.run("go", limits=limits)

        assert (outcome.result, outcome.reason, outcome.limit) == ("exhausted", met.reason, met)


async def test_a_call_that_would_not_fit_is_shortened() -> None:
    heard: list[Request] = []
    async with harness() as r:
        r.script("main", asking(heard, naps(usage=Usage(400, 100))), asking(heard, says("x" * 4000)))
        outcome = await r.run("go", limits=Limits(max_tokens=1000))

        first, second = [request.max_output for request in heard]
        assert first is not None
        assert second is not None
        assert 900 < first < 1000
        assert 400 < second < 500
        assert (outcome.result, outcome.reason) == ("completed", "length")
        assert len(outcome.text) == 4 * second
        assert outcome.usage.total <= 1000


async def test_a_run_without_token_limits_has_no_output_limit() -> None:
    heard: list[Request] = []
    async with harness() as r:
        r.script("main", asking(heard, says("done")))
        await r.run("go", limits=Limits(max_turns=5))

        assert [request.max_output for request in heard] == [None]


async def test_a_fifth_of_the_budget_is_reserved_for_the_wrap_up() -> None:
    async with harness() as r:
        r.script("main", naps("one", usage=Usage(500, 290)), says("all I have", usage=Usage(100, 10)))
        outcome = await r.run("go", limits=Limits(max_tokens=1000, wrap_up=True))

        assert (outcome.result, outcome.text, outcome.turns) == ("exhausted", "all I have", 2)
        assert outcome.limit == LimitMet("max_tokens", 790, 1000, dimension="tokens", left=10, needed=51)


async def test_a_run_without_budget_for_its_wrap_up_ends_with_its_text() -> None:
    async with harness() as r:
        r.script("main", naps("one", usage=Usage(900, 100)))
        outcome = await r.run("go", limits=Limits(max_tokens=1000, wrap_up=True))

        assert (outcome.result, outcome.text, outcome.limit) == (
            "exhausted",
            "one",
            LimitMet("max_tokens", 1000, 1000, dimension="tokens", needed=51),
        )


# ---- trees ----------------------------------------------------------------------------------------------------------


async def test_a_child_and_its_parent_share_one_budget() -> None:
    r, _ = with_delegation()
    async with r:
        r.script("main", together(delegates("dig"), says("", usage=Usage(50, 50))))
        r.script("dig", says("42", usage=Usage(800, 90)))
        outcome = await r.run("go", limits=Limits(max_tokens=1000))

        assert (outcome.result, outcome.usage) == ("exhausted", Usage(50, 50))
        assert outcome.limit == LimitMet("max_tokens", 990, 1000, dimension="tokens", left=10, needed=42)
        assert r.results("main") == ["completed: 42"]


async def test_a_child_at_the_limit_of_its_parent_reports_that_limit() -> None:
    r, _ = with_delegation(tools=(nap,))
    async with r:
        r.script("main", together(delegates("dig"), says("", usage=Usage(50, 50))))
        r.script("dig", naps("one", usage=Usage(800, 95)))
        await r.run("go", limits=Limits(max_tokens=1000))
        child = await r.retinue.handle(r.run_of("dig")).wait()

        above = r.run_of("main")
        met = LimitMet("max_tokens", 995, 1000, dimension="tokens", left=5, needed=66, account=above)
        assert (child.result, child.limit) == ("exhausted", met)
        assert child.error == (
            "the token budget of a run above this one leaves too little for the next call: "
            "used 995, limit 1000, left 5, needed at least 66"
        )


async def test_a_reserved_child_stays_within_its_allowance_and_returns_the_rest() -> None:
    heard: list[Request] = []
    r, _ = with_delegation(tools=(nap,))
    async with r:
        r.script(
            "main",
            delegates("dig", reserved=True, limits={"max_tokens": 300}),
            asking(heard, says("done", usage=FREE)),
        )
        r.script("dig", naps("one", usage=Usage(200, 20)), naps("two", usage=Usage(50, 20)))
        outcome = await r.run("go", limits=Limits(max_tokens=1000))
        child = await r.retinue.handle(r.run_of("dig")).wait()

        met = LimitMet("max_tokens", 290, 300, dimension="tokens", left=10, needed=70)
        assert (child.result, child.limit) == ("exhausted", met)
        assert outcome.text == "done"
        (last,) = heard
        assert last.max_output is not None
        assert 600 < last.max_output < 710


async def test_a_parent_cannot_use_a_childs_reservation() -> None:
    r, _ = with_delegation(tools=(nap,))
    async with r:
        r.script(
            "main",
            together(
                delegates("dig", wait=False, reserved=True, limits={"max_tokens": 700}),
                says("", usage=Usage(250, 40)),
            ),
        )
        r.script("dig", hangs())
        outcome = await r.run("go", limits=Limits(max_tokens=1000))

        met = LimitMet("max_tokens", 290, 1000, dimension="tokens", left=10, needed=85)
        assert (outcome.result, outcome.limit) == ("exhausted", met)


async def test_a_child_cannot_reserve_from_an_empty_budget() -> None:
    r, _ = with_delegation()
    async with r:
        r.script(
            "main",
            together(
                delegates("dig", wait=False, reserved=True, limits={"max_output_tokens": 500}),
                delegates("dig", wait=False, reserved=True, limits={"max_output_tokens": 500}),
                says("", usage=FREE),
            ),
        )
        r.script("dig", hangs())
        outcome = await r.run("go", limits=Limits(max_output_tokens=500))
        (first, second) = r.results("main")

        assert first == "started"
        assert second == f"NoAllowance: account {r.run_of('main')} has 0 output left; 500 were asked for"
        assert outcome.result == "exhausted"


async def test_a_window_counts_all_its_runs_across_processes() -> None:
    window = {"name": "day", "span_seconds": 86400.0, "caps": {"tokens": 1000}}
    r, _ = with_delegation(tools=(nap,))
    async with r:
        r.script("main", *[together(delegates("dig", windows=[window]), says("", usage=FREE))] * 2, says("done"))
        r.script("dig", naps("one", usage=Usage(400, 90)), says("42", usage=Usage(400, 50)))
        await r.run("go")
        await r.restart()
        await r.run("go")
        ends = [view.outcome for view in await r.retinue.list(everyone=True) if view.agent == "dig" and view.outcome]

        assert [(end.result, end.reason) for end in reversed(ends)] == [
            ("completed", "answered"),
            *[("exhausted", "window")] * 3,
        ]
        met = LimitMet("window", 940, 1000, dimension="tokens", left=60, needed=62, account="day")
        assert {end.limit for end in ends} == {None, met}


class RandomUsageModel:
    """A model whose replies use a random amount: at most the allowed output, and a little more input than estimated."""

    def __init__(self, wishes: list[tuple[int, int, int]], error: int) -> None:
        self._wishes = wishes
        self._error = error
        self._asked = 0
        self.spent = 0
        self.over: list[int] = []
        """By how much more each call used than was held for it."""

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Delegate, or work for two turns."""
        if request.agent == "main" and request.turn == 1:
            order = '{"agent": "dig", "times": 50}'
            return Reply(AssistantMessage(calls=(ToolCall("delegate", order),)), usage=FREE, stop="calls")
        output, extra, seconds = self._wishes[self._asked % len(self._wishes)]
        extra = min(extra, self._error)
        self._asked += 1
        await asyncio.sleep(seconds)
        expected = sum(len(message.text) for message in request.messages) // 4
        usage = Usage(expected + extra, output if request.max_output is None else min(output, request.max_output))
        self.spent += usage.total
        self.over.append(max(0, extra))
        if request.turn == 1:
            return Reply(AssistantMessage(calls=(ToolCall("nap"),)), usage=usage, stop="calls")
        return Reply(AssistantMessage("done"), usage=usage)


@pytest.mark.parametrize("error", [0, 40])
@hypothesis.settings(max_examples=15)
@hypothesis.given(
    limit=st.integers(500, 60_000),
    wishes=st.lists(st.tuples(st.integers(0, 9000), st.integers(-40, 40), st.integers(0, 5)), min_size=1, max_size=20),
)
async def test_fifty_parallel_children_exceed_a_limit_only_by_estimation_errors(
    limit: int, wishes: list[tuple[int, int, int]], error: int
) -> None:
    model = RandomUsageModel(wishes, error)
    delegate = Delegate()
    tools: list[ToolLike] = [delegate, nap]
    async with retinue.open(
        provider=model, tools=tools, home=retinue.MEMORY, dialects=(), clock=VirtualClock(), ids=CountedIds()
    ) as r:
        delegate.retinue = lambda: r
        outcome = await r.run("go", limits=Limits(max_tokens=limit))

    assert outcome.result in ("completed", "exhausted")
    assert model.spent <= limit + sum(model.over)


# ---- time -----------------------------------------------------------------------------------------------------------


async def test_a_run_ends_at_its_deadline_with_its_partial_text() -> None:
    async with harness() as r:
        r.script("main", naps("thinking"), hangs("It was ", "the"))
        outcome = await r.run("go", limits=Limits(timeout=90))

        assert outcome == Outcome(
            result="timed_out",
            reason="deadline",
            text="It was the",
            error="the run did not finish within 90 s",
            turns=1,
        )
        assert now() == 90


async def test_a_deadline_stops_the_subtree_of_the_run() -> None:
    r, _ = with_delegation()
    async with r:
        r.script("main", delegates("dig"))
        r.script("dig", hangs())
        outcome = await r.run("go", limits=Limits(timeout=90))
        child = await r.retinue.handle(r.run_of("dig")).wait()

        assert (outcome.result, child.result, child.reason) == ("timed_out", "cancelled", "parent_ended")


async def test_a_parent_reads_the_partial_text_of_a_timed_out_child() -> None:
    r, _ = with_delegation()
    async with r:
        r.script("main", delegates("dig", limits={"seconds": 30}), says("done"))
        r.script("dig", hangs("It was"))
        outcome = await r.run("go")

        assert r.results("main") == ["timed_out: It was"]
        assert outcome.text == "done"


async def test_the_deadline_holds_across_processes() -> None:
    async with harness() as r:
        r.script("main", hangs())
        handle = await r.retinue.spawn("go", limits=Limits(timeout=90))
        await asyncio.sleep(60)
        await r.restart()
        outcome = await r.retinue.handle(handle.run_id).wait()

        assert outcome.result == "timed_out"
        assert now() == 90


async def test_the_deadline_is_paused_after_a_clean_shutdown() -> None:
    async with harness() as r:
        r.script("main", hangs())
        handle = await r.retinue.spawn("go", limits=Limits(timeout=90))
        await asyncio.sleep(60)
        await r.close()
        await asyncio.sleep(3600)
        await r.open(adopt=True)
        outcome = await r.retinue.handle(handle.run_id).wait()

        assert (outcome.result, outcome.reason) == ("timed_out", "deadline")
        assert now() == 3600 + 90


async def test_the_deadline_is_paused_for_a_run_left_before_it_began() -> None:
    async with harness() as r:
        r.script("main", hangs())
        handle = await r.retinue.spawn("go", limits=Limits(timeout=90))
        await r.close()
        await asyncio.sleep(3600)
        await r.open(adopt=True)
        await r.close()
        await asyncio.sleep(3600)
        await r.open(adopt=True)
        outcome = await r.retinue.handle(handle.run_id).wait()

        assert (outcome.result, outcome.reason) == ("timed_out", "deadline")
        assert now() == 3600 + 3600 + 90


async def test_the_deadline_is_paused_for_a_pending_run_that_was_left() -> None:
    r, _ = with_delegation()
    async with r:
        then = delegates("then", wait=False, after=["dig"], limits={"seconds": 90})
        r.script("main", delegates("dig", wait=False), then, hangs())
        r.script("dig", hangs())
        await r.retinue.spawn("go")
        await asyncio.sleep(60)
        await r.close()
        await asyncio.sleep(3600)
        await r.open(adopt=True)
        outcome = await r.retinue.handle(r.run_of("then")).wait()

        assert outcome.result == "timed_out"
        assert now() == 3600 + 90


async def test_a_model_that_times_out_is_retried_and_then_given_up() -> None:
    async with harness() as r:
        r.script("main", hangs("Well"))
        outcome = await r.run("go", limits=Limits(model_timeout=30))

        assert (outcome.result, outcome.reason, outcome.text) == ("failed", "model_error", "Well")
        assert outcome.error == "the model did not answer: stopped after 30 s (4 attempts were made; try again later)"
        assert len(r.provider.asked) == MAX_ATTEMPTS
        assert 120 < now() < 125


async def test_a_silent_stream_is_given_up_and_its_text_kept() -> None:
    async with harness() as r:
        r.script("main", streams("It was", " the pool", every=11))
        outcome = await r.run("go", limits=Limits(idle_timeout=10))

        assert (outcome.result, outcome.text) == ("failed", "It was")
        assert (
            outcome.error
            == "the model did not answer: stopped after 10 s of silence (4 attempts were made; try again later)"
        )


class SilentModel:
    """A model that is silent for a while before each of its deltas, but not before the start."""

    def __init__(self, *pauses: float) -> None:
        self.pauses = pauses

    async def answer(self, request: Request, publish: Publish) -> Reply:
        publish(StartDelta("r1"))
        for pause in self.pauses:
            await asyncio.sleep(pause)
            publish(TextDelta("well "))
        return Reply(AssistantMessage("well " * len(self.pauses)))


async def test_the_silence_before_the_first_token_may_be_longer() -> None:
    async with retinue.open(provider=SilentModel(299, 119), home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("go")

        assert (outcome.result, outcome.text) == ("completed", "well well ")
        assert now() == 418


async def test_a_short_idle_limit_does_not_shorten_the_first_silence() -> None:
    async with retinue.open(provider=SilentModel(299), home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("go", limits=Limits(idle_timeout=0))

        assert (outcome.result, outcome.text) == ("completed", "well ")
        assert now() == 299


@pytest.mark.parametrize(
    ("pauses", "limits", "silence", "text"),
    [
        ((301,), Limits(), 300, ""),
        ((31,), Limits(first_timeout=30, idle_timeout=10), 30, ""),
        ((29, 11), Limits(first_timeout=30, idle_timeout=10), 10, "well "),
        ((1, 11), Limits(first_timeout=30, idle_timeout=10), 10, "well "),
        ((41,), Limits(first_timeout=30, idle_timeout=40), 40, ""),
    ],
    ids=str,
)
async def test_silence_is_limited_before_and_after_the_first_token(
    pauses: tuple[float, ...], limits: Limits, silence: float, text: str
) -> None:
    async with retinue.open(provider=SilentModel(*pauses), home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("go", limits=limits)

        assert (outcome.result, outcome.text) == ("failed", text)
        assert outcome.error == (
            f"the model did not answer: stopped after {silence} s of silence (4 attempts were made; try again later)"
        )
        spoken = sum(pauses[:-1])
        assert 4 * (spoken + silence) < now() < 4 * (spoken + silence) + 5


async def test_a_slow_stream_is_not_silent() -> None:
    async with harness() as r:
        r.script("main", streams("It ", "was ", "the ", "pool", every=9))
        outcome = await r.run("go", limits=Limits(idle_timeout=10))

        assert outcome.text == "It was the pool"
        assert now() == 27


async def test_keep_alive_signals_of_a_server_end_a_silence() -> None:
    class Thinker:
        async def answer(self, request: Request, publish: Publish) -> Reply:
            for _ in range(5):
                await asyncio.sleep(9)
                request.alive()
            return Reply(AssistantMessage("It was the pool"))

    async with retinue.open(provider=Thinker(), home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("go", limits=Limits(idle_timeout=10))

        assert outcome.text == "It was the pool"
        assert now() == 45


# ---- provider errors ------------------------------------------------------------------------------------------------


async def test_a_retry_waits_for_retry_after() -> None:
    busy = ProviderError("slow down", fault="rate_limited", status=429, retry_after=30)
    async with harness() as r:
        r.script("main", fails(busy, times=2, then=says("done")))
        outcome = await r.run("go")

        assert outcome.text == "done"
        assert 60 <= now() < 62
        assert len(r.provider.asked) == 3


async def test_without_retry_after_each_pause_is_longer() -> None:
    at: list[float] = []

    def unreachable(request: Request) -> Line:
        at.append(now())
        return fails(ProviderError("no route to host", fault="unreachable"))

    async with harness() as r:
        r.script("main", unreachable)
        outcome = await r.run("go")

        pauses = [later - earlier for earlier, later in pairwise(at)]
        assert (outcome.result, outcome.reason, outcome.error) == (
            "failed",
            "model_error",
            "no route to host (4 attempts were made; try again later)",
        )
        assert len(at) == MAX_ATTEMPTS
        for pause, usual in zip(pauses, (0.5, 1.0, 2.0), strict=True):
            assert 0.75 * usual <= pause <= 1.25 * usual


async def test_a_throttled_provider_gets_fewer_concurrent_calls_and_all_finish() -> None:
    busy = ProviderError("slow down", fault="overloaded", retry_after=10)
    provider = ScriptedProvider(Script().play("main", fails(busy, then=says("done"))), latency=1.0)
    async with Harness(dialects=(), provider=provider) as r:
        handles = [await r.retinue.spawn(f"go {n}") for n in range(8)]
        rate_limiter = engine_of(r.retinue).rate_limiters.at("custom", "")
        wide = rate_limiter.limit
        await asyncio.sleep(5)
        narrow = rate_limiter.limit
        outcomes = await r.retinue.wait(*handles)

        assert [outcome.text for outcome in outcomes.values()] == ["done"] * 8
        assert (narrow, wide > 8) == (4, True)
        assert now() > 11


@pytest.mark.parametrize("fault", ["auth", "bad_request", "refused", "internal"])
async def test_a_permanent_failure_is_not_retried(fault: ProviderFault) -> None:
    async with harness() as r:
        r.script("main", naps("I will look"), fails(ProviderError("no", fault=fault, partial="It was")))
        outcome = await r.run("go")
        (failed,) = [event for event in r.events(r.run_of("main")) if isinstance(event, TurnFailed)]

        assert (outcome.result, outcome.reason, outcome.error, outcome.text) == (
            "failed",
            "model_error",
            "no",
            "It was",
        )
        assert (failed.turn, failed.fault, failed.error, failed.partial) == (2, fault, "no", "It was")
        assert len(r.provider.asked) == 2


async def test_a_broken_stream_is_retried_and_the_last_partial_text_kept() -> None:
    cut = ProviderError("connection reset", fault="cut", partial="It was the")
    async with harness() as r:
        r.script("main", fails(cut))
        outcome = await r.run("go")

        assert (outcome.result, outcome.text) == ("failed", "It was the")
        assert len(r.provider.asked) == MAX_ATTEMPTS


async def test_a_provider_with_a_bug_fails_the_run_and_nothing_else() -> None:
    def buggy(request: Request) -> Line:
        raise ZeroDivisionError("division by zero")

    async with harness() as r:
        r.script("main", buggy)
        outcome = await r.run("go")

        assert (outcome.result, outcome.error) == ("failed", "ZeroDivisionError: division by zero")


class SelfCancellingProvider:
    """A provider whose own task is cancelled."""

    def __init__(self) -> None:
        self.asked = 0

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Give up."""
        self.asked += 1
        raise asyncio.CancelledError


async def test_a_provider_that_cancels_itself_is_retried_a_few_times() -> None:
    model = SelfCancellingProvider()
    async with retinue.open(provider=model, home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("go")

        assert (outcome.result, outcome.error) == (
            "failed",
            "the provider gave up without a reason (4 attempts were made; try again later)",
        )
        assert model.asked == MAX_ATTEMPTS


async def test_the_hold_of_a_failed_call_is_released() -> None:
    cut = ProviderError("connection reset", fault="cut")
    r, _ = with_delegation()
    async with r:
        r.script("main", delegates("dig"), says("done", usage=FREE))
        r.script("dig", fails(cut))
        outcome = await r.run("go", limits=Limits(max_tokens=9000))

        assert outcome.text == "done"
        assert r.results("main") == ["failed: connection reset (4 attempts were made; try again later)"]
