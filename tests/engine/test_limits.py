"""Limits that really stop things: turns, calls, tokens, money and time, alone and shared by a whole tree."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import hypothesis
import pytest
from hypothesis import strategies as st

import retinue
from retinue.core.errors import ProviderError, ProviderFault
from retinue.core.events import TurnFailed, WrapUpAsked
from retinue.core.history import NOT_MADE
from retinue.core.messages import AssistantMessage, Message, Reply, StartDelta, TextDelta, ToolCall, ToolMessage
from retinue.core.ports import Publish, Request, ToolLike
from retinue.core.run import LimitMet, Limits, Outcome
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
from tests.engine.lines import hearing
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
    """A turn that uses a tool, and so much."""
    return together(says(words), *[calls("nap")] * times, says("", usage=usage))


def asking(heard: list[Request], line: Line) -> LineFunction:
    """A line whose speaker keeps the question."""

    def listen(request: Request) -> Line:
        heard.append(request)
        return line

    return listen


def harness() -> Harness:
    """A retinue whose model has a price."""
    provider = ScriptedProvider(Script(), prices=PRICES)
    return Harness(dialects=(), tools=[nap], provider=provider, model="m")


# ---- turns and calls ------------------------------------------------------------------------------------------------


async def test_a_run_that_uses_up_its_turns_is_exhausted_and_its_last_calls_are_not_made() -> None:
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


async def test_with_a_wrap_up_turn_the_model_is_asked_once_without_tools_for_what_it_has() -> None:
    heard: list[Request] = []
    said: list[Sequence[Message]] = []
    async with harness() as r:
        r.script("main", asking(heard, naps()), asking(heard, naps()), asking(heard, says("half of it")))
        outcome = await r.run("go", limits=Limits(max_turns=3, wrap_up=True))
        said.append(tuple(heard[-1].messages))

        assert (outcome.result, outcome.text, outcome.turns) == ("exhausted", "half of it", 3)
        assert outcome.limit == LimitMet("max_turns", 2, 3)
        assert [[tool.name for tool in request.tools] for request in heard] == [["nap"], ["nap"], []]
        assert r.results("main") == ["slept", "slept"]
        (asked,) = [event for event in r.events(r.run_of("main")) if isinstance(event, WrapUpAsked)]
        assert asked.text == (
            "You have reached the limit (turns: 3) of this task. Do not call any tools. "
            "Give your final answer now, from what you have, and say what is left undone."
        )
        assert said[0][-2].text == asked.text


async def test_calls_beyond_the_limit_are_not_made_not_even_some_of_them() -> None:
    async with harness() as r:
        r.script("main", naps("one"), naps("three more", times=3))
        outcome = await r.run("go", limits=Limits(max_calls=3))

        assert (outcome.result, outcome.reason, outcome.text) == ("exhausted", "max_calls", "three more")
        assert outcome.error == "the tool call budget is spent: used 4, limit 3"
        assert r.results("main") == ["slept"]


async def test_calls_that_were_not_made_are_told_to_the_model_that_wraps_up() -> None:
    heard: list[Sequence[Message]] = []
    async with harness() as r:
        r.script("main", naps("one", times=2), hearing(heard, says("nothing yet")))
        outcome = await r.run("go", limits=Limits(max_calls=1, wrap_up=True))

        assert (outcome.result, outcome.reason, outcome.text) == ("exhausted", "max_calls", "nothing yet")
        assert [message for message in heard[0] if isinstance(message, ToolMessage)] == [
            ToolMessage("nap", NOT_MADE, failed=True)
        ] * 2


async def test_a_model_that_calls_tools_in_its_wrap_up_turn_has_had_its_turn() -> None:
    async with harness() as r:
        r.script("main", naps("one", usage=Usage(700, 100)), naps("more, more"))
        outcome = await r.run("go", limits=Limits(max_tokens=1000, wrap_up=True))

        assert (outcome.result, outcome.reason, outcome.text) == ("exhausted", "max_tokens", "more, more")
        assert r.results("main") == ["slept"]


# ---- tokens and money -----------------------------------------------------------------------------------------------


async def test_a_run_ends_exhausted_before_a_call_that_does_not_fit_any_more() -> None:
    async with harness() as r:
        r.script("main", naps("one", usage=Usage(400, 100)), naps("two", usage=Usage(400, 90)))
        outcome = await r.run("go", limits=Limits(max_tokens=1000))

        assert outcome == Outcome(
            result="exhausted",
            reason="max_tokens",
            text="two",
            error="the token budget is spent: used 990, limit 1000",
            usage=Usage(800, 190),
            cost=800 * 3 + 190 * 5,
            turns=2,
            limit=LimitMet("max_tokens", 990, 1000),
        )
        assert len(r.provider.asked) == 2


@pytest.mark.parametrize(
    ("limits", "met"),
    [
        (Limits(max_input_tokens=500), LimitMet("max_tokens", 500, 500)),
        (Limits(max_output_tokens=100), LimitMet("max_tokens", 100, 100)),
        (Limits(max_cost=2000), LimitMet("max_cost", 2000, 2000)),
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


async def test_a_run_without_such_limits_is_asked_without_a_bound() -> None:
    heard: list[Request] = []
    async with harness() as r:
        r.script("main", asking(heard, says("done")))
        await r.run("go", limits=Limits(max_turns=5))

        assert [request.max_output for request in heard] == [None]


async def test_a_fifth_is_set_aside_for_the_wrap_up_turn() -> None:
    async with harness() as r:
        r.script("main", naps("one", usage=Usage(500, 290)), says("all I have", usage=Usage(100, 10)))
        outcome = await r.run("go", limits=Limits(max_tokens=1000, wrap_up=True))

        assert (outcome.result, outcome.text, outcome.turns) == ("exhausted", "all I have", 2)
        assert outcome.limit == LimitMet("max_tokens", 790, 1000)


async def test_a_run_that_cannot_even_pay_for_its_wrap_up_turn_ends_with_what_it_has() -> None:
    async with harness() as r:
        r.script("main", naps("one", usage=Usage(900, 100)))
        outcome = await r.run("go", limits=Limits(max_tokens=1000, wrap_up=True))

        assert (outcome.result, outcome.text, outcome.limit) == (
            "exhausted",
            "one",
            LimitMet("max_tokens", 1000, 1000),
        )


# ---- trees ----------------------------------------------------------------------------------------------------------


async def test_a_child_and_its_parent_draw_on_one_pot() -> None:
    r, _ = with_delegation()
    async with r:
        r.script("main", together(delegates("dig"), says("", usage=Usage(50, 50))))
        r.script("dig", says("42", usage=Usage(800, 90)))
        outcome = await r.run("go", limits=Limits(max_tokens=1000))

        assert (outcome.result, outcome.usage) == ("exhausted", Usage(50, 50))
        assert outcome.limit == LimitMet("max_tokens", 990, 1000)
        assert r.results("main") == ["completed: 42"]


async def test_a_child_that_meets_the_limit_of_its_parent_says_whose_it_was() -> None:
    r, _ = with_delegation(tools=(nap,))
    async with r:
        r.script("main", together(delegates("dig"), says("", usage=Usage(50, 50))))
        r.script("dig", naps("one", usage=Usage(800, 95)))
        await r.run("go", limits=Limits(max_tokens=1000))
        child = await r.retinue.handle(r.run_of("dig")).wait()

        assert (child.result, child.limit) == ("exhausted", LimitMet("max_tokens", 995, 1000))


async def test_a_carved_child_cannot_use_more_than_its_allowance_and_gives_back_the_rest() -> None:
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

        assert (child.result, child.limit) == ("exhausted", LimitMet("max_tokens", 290, 300))
        assert outcome.text == "done"
        (last,) = heard
        assert last.max_output is not None
        assert 600 < last.max_output < 710


async def test_a_parent_cannot_use_what_it_promised_to_a_child() -> None:
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

        assert (outcome.result, outcome.limit) == ("exhausted", LimitMet("max_tokens", 290, 1000))


async def test_no_child_is_carved_from_nothing() -> None:
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


async def test_a_window_counts_all_who_share_it_and_is_remembered_in_the_next_life() -> None:
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
        assert {end.limit for end in ends} == {None, LimitMet("window", 940, 1000)}


class Spender:
    """A model whose every answer uses a random amount: at most the output it was allowed, and a little more input than
    anybody expected."""

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
async def test_fifty_parallel_children_never_overspend_a_shared_limit_by_more_than_the_error_of_the_estimates(
    limit: int, wishes: list[tuple[int, int, int]], error: int
) -> None:
    model = Spender(wishes, error)
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


async def test_a_run_ends_at_its_deadline_with_the_words_it_had() -> None:
    async with harness() as r:
        r.script("main", naps("thinking"), hangs("It was ", "the"))
        outcome = await r.run("go", limits=Limits(seconds=90))

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
        outcome = await r.run("go", limits=Limits(seconds=90))
        child = await r.retinue.handle(r.run_of("dig")).wait()

        assert (outcome.result, child.result, child.reason) == ("timed_out", "cancelled", "parent_ended")


async def test_a_child_that_meets_its_deadline_tells_its_parent_what_it_had() -> None:
    r, _ = with_delegation()
    async with r:
        r.script("main", delegates("dig", limits={"seconds": 30}), says("done"))
        r.script("dig", hangs("It was"))
        outcome = await r.run("go")

        assert r.results("main") == ["timed_out: It was"]
        assert outcome.text == "done"


async def test_the_deadline_holds_across_lives() -> None:
    async with harness() as r:
        r.script("main", hangs())
        handle = await r.retinue.spawn("go", limits=Limits(seconds=90))
        await asyncio.sleep(60)
        await r.restart()
        outcome = await r.retinue.handle(handle.run_id).wait()

        assert outcome.result == "timed_out"
        assert now() == 90


async def test_no_time_passes_while_nobody_drives_a_run_that_was_left_in_good_order() -> None:
    async with harness() as r:
        r.script("main", hangs())
        handle = await r.retinue.spawn("go", limits=Limits(seconds=90))
        await asyncio.sleep(60)
        await r.close()
        await asyncio.sleep(3600)
        await r.open(adopt=True)
        outcome = await r.retinue.handle(handle.run_id).wait()

        assert (outcome.result, outcome.reason) == ("timed_out", "deadline")
        assert now() == 3600 + 90


async def test_no_time_passes_for_a_run_that_was_left_before_it_began_to_work() -> None:
    async with harness() as r:
        r.script("main", hangs())
        handle = await r.retinue.spawn("go", limits=Limits(seconds=90))
        await r.close()
        await asyncio.sleep(3600)
        await r.open(adopt=True)
        await r.close()
        await asyncio.sleep(3600)
        await r.open(adopt=True)
        outcome = await r.retinue.handle(handle.run_id).wait()

        assert (outcome.result, outcome.reason) == ("timed_out", "deadline")
        assert now() == 3600 + 3600 + 90


async def test_no_time_passes_for_a_run_that_was_left_while_it_waited_for_another() -> None:
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


async def test_a_model_that_does_not_answer_in_time_is_asked_again_and_then_given_up() -> None:
    async with harness() as r:
        r.script("main", hangs("Well"))
        outcome = await r.run("go", limits=Limits(model_seconds=30))

        assert (outcome.result, outcome.reason, outcome.text) == ("failed", "model_error", "Well")
        assert outcome.error == "the model did not answer: stopped after 30 s (4 attempts were made; try again later)"
        assert len(r.provider.asked) == MAX_ATTEMPTS
        assert 120 < now() < 125


async def test_a_stream_that_falls_silent_is_given_up_and_its_words_are_kept() -> None:
    async with harness() as r:
        r.script("main", streams("It was", " the pool", every=11))
        outcome = await r.run("go", limits=Limits(idle_seconds=10))

        assert (outcome.result, outcome.text) == ("failed", "It was")
        assert (
            outcome.error
            == "the model did not answer: stopped after 10 s of silence (4 attempts were made; try again later)"
        )


class Pondering:
    """A model that is silent for a while before each of its words; servers greet at once."""

    def __init__(self, *pauses: float) -> None:
        self.pauses = pauses

    async def answer(self, request: Request, publish: Publish) -> Reply:
        publish(StartDelta("r1"))
        for pause in self.pauses:
            await asyncio.sleep(pause)
            publish(TextDelta("well "))
        return Reply(AssistantMessage("well " * len(self.pauses)))


async def test_a_model_may_think_for_longer_before_its_first_word_than_between_words() -> None:
    async with retinue.open(provider=Pondering(299, 119), home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("go")

        assert (outcome.result, outcome.text) == ("completed", "well well ")
        assert now() == 418


async def test_a_model_that_may_not_pause_within_its_answer_may_still_think_before_it() -> None:
    async with retinue.open(provider=Pondering(299), home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("go", limits=Limits(idle_seconds=0))

        assert (outcome.result, outcome.text) == ("completed", "well ")
        assert now() == 299


@pytest.mark.parametrize(
    ("pauses", "limits", "silence", "text"),
    [
        ((301,), Limits(), 300, ""),
        ((31,), Limits(first_seconds=30, idle_seconds=10), 30, ""),
        ((29, 11), Limits(first_seconds=30, idle_seconds=10), 10, "well "),
        ((1, 11), Limits(first_seconds=30, idle_seconds=10), 10, "well "),
        ((41,), Limits(first_seconds=30, idle_seconds=40), 40, ""),
    ],
    ids=str,
)
async def test_silence_is_bounded_before_the_first_word_and_after_it(
    pauses: tuple[float, ...], limits: Limits, silence: float, text: str
) -> None:
    async with retinue.open(provider=Pondering(*pauses), home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("go", limits=limits)

        assert (outcome.result, outcome.text) == ("failed", text)
        assert outcome.error == (
            f"the model did not answer: stopped after {silence} s of silence (4 attempts were made; try again later)"
        )
        spoken = sum(pauses[:-1])
        assert 4 * (spoken + silence) < now() < 4 * (spoken + silence) + 5


async def test_a_stream_that_goes_on_slowly_is_not_silent() -> None:
    async with harness() as r:
        r.script("main", streams("It ", "was ", "the ", "pool", every=9))
        outcome = await r.run("go", limits=Limits(idle_seconds=10))

        assert outcome.text == "It was the pool"
        assert now() == 27


async def test_a_server_that_says_it_is_at_work_is_not_silent() -> None:
    class Thinker:
        async def answer(self, request: Request, publish: Publish) -> Reply:
            for _ in range(5):
                await asyncio.sleep(9)
                request.alive()
            return Reply(AssistantMessage("It was the pool"))

    async with retinue.open(provider=Thinker(), home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("go", limits=Limits(idle_seconds=10))

        assert outcome.text == "It was the pool"
        assert now() == 45


# ---- failures of the model ------------------------------------------------------------------------------------------


async def test_a_provider_that_says_when_to_come_back_is_asked_again_then() -> None:
    busy = ProviderError("slow down", fault="rate_limited", status=429, retry_after=30)
    async with harness() as r:
        r.script("main", fails(busy, times=2, then=says("done")))
        outcome = await r.run("go")

        assert outcome.text == "done"
        assert 60 <= now() < 62
        assert len(r.provider.asked) == 3


async def test_without_a_wish_of_the_provider_each_pause_is_longer_than_the_one_before() -> None:
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


async def test_a_throttled_provider_is_asked_by_fewer_at_once_and_by_all_in_the_end() -> None:
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
async def test_a_failure_that_will_not_go_away_is_not_tried_again(fault: ProviderFault) -> None:
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


async def test_a_connection_that_breaks_in_the_middle_is_tried_again_and_the_words_of_the_last_attempt_are_kept() -> (
    None
):
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


class Quitter:
    """A provider whose connection pool is cancelled under it."""

    def __init__(self) -> None:
        self.asked = 0

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Give up."""
        self.asked += 1
        raise asyncio.CancelledError


async def test_a_provider_that_gives_up_by_itself_is_asked_again_a_few_times_and_no_more() -> None:
    model = Quitter()
    async with retinue.open(provider=model, home=retinue.MEMORY, dialects=()) as r:
        outcome = await r.run("go")

        assert (outcome.result, outcome.error) == (
            "failed",
            "the provider gave up without a reason (4 attempts were made; try again later)",
        )
        assert model.asked == MAX_ATTEMPTS


async def test_money_is_given_back_when_a_call_fails() -> None:
    cut = ProviderError("connection reset", fault="cut")
    r, _ = with_delegation()
    async with r:
        r.script("main", delegates("dig"), says("done", usage=FREE))
        r.script("dig", fails(cut))
        outcome = await r.run("go", limits=Limits(max_tokens=9000))

        assert outcome.text == "done"
        assert r.results("main") == ["failed: connection reset (4 attempts were made; try again later)"]
