"""An attempt that broke off is taken back: for live readers, for the stored text, and for runs that stop in between."""

import asyncio
from collections.abc import Sequence

import pytest

import retinue
from retinue.core.agent import Agent
from retinue.core.errors import ProviderError, ProviderFault
from retinue.core.events import Event, ReplyReceived, TurnFailed
from retinue.core.messages import AssistantMessage, Delta, DiscardDelta, Reply, StartDelta, TextDelta
from retinue.core.ports import Publish, Request
from retinue.providers.scripted import fails, says, streams
from retinue.testing.harness import Harness
from tests.engine.test_subscriptions import CAPACITY, END, RecordedRun

CUT = ProviderError("cut", fault="cut", partial="It was ")


def what_of(received: Sequence[Event | Delta]) -> list[str]:
    """The deltas, replies and failures among these events, in short."""
    short: list[str] = []
    for each in received:
        match each:
            case TextDelta(text=text):
                short.append(text)
            case StartDelta(id=id):
                short.append(f"start {id}")
            case DiscardDelta():
                short.append("discard")
            case ReplyReceived(reply=reply):
                short.append(f"reply {reply.message.text}")
            case TurnFailed(partial=partial):
                short.append(f"failed {partial}")
            case _:
                pass
    return short


async def test_a_discarded_attempt_is_followed_by_a_delta_that_takes_it_back() -> None:
    async with Harness(dialects=()) as r:
        r.script("main", fails(CUT, times=2, then=streams("The ", "pool.")))
        run = await r.retinue.spawn("why?")
        received = [each async for each in run.events()]
        outcome = await run.wait()

    assert what_of(received) == [*["It was ", "discard"] * 2, "The ", "pool.", "reply The pool."]
    assert outcome.text == "The pool."


async def test_a_discarded_attempt_is_reported_before_the_pause_and_leaves_no_text() -> None:
    async with Harness(dialects=()) as r:
        r.script("main", fails(ProviderError("cut", fault="cut", partial="It was ", retry_after=60.0)))
        run = await r.retinue.spawn("why?")
        received: list[Event | Delta] = []

        async def follow() -> None:
            async for each in run.events():
                received.append(each)  # noqa: PERF401 it is read before the run has ended

        following = asyncio.create_task(follow())
        await asyncio.sleep(30)
        assert what_of(received) == ["It was ", "discard"]
        await run.cancel()
        await following
        outcome = await run.wait()

    assert (outcome.result, outcome.text) == ("cancelled", "")


async def test_the_last_attempt_of_a_failed_turn_is_not_taken_back() -> None:
    async with Harness(dialects=()) as r:
        r.script("main", fails(CUT))
        run = await r.retinue.spawn("why?")
        received = [each async for each in run.events()]
        outcome = await run.wait()

    assert what_of(received) == [*["It was ", "discard"] * 3, "It was ", "failed It was "]
    assert (outcome.result, outcome.text) == ("failed", "It was ")


async def test_text_is_not_kept_if_the_attempts_after_it_brought_none() -> None:
    unreachable = ProviderError("no connection", fault="unreachable")
    async with Harness(dialects=()) as r:
        r.script("main", fails(CUT, times=1, then=fails(unreachable)))
        run = await r.retinue.spawn("why?")
        received = [each async for each in run.events()]
        outcome = await run.wait()

    assert what_of(received) == ["It was ", "discard", "failed "]
    assert (outcome.result, outcome.text) == ("failed", "")


class WholeAnswers:
    """A provider that publishes no deltas."""

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Answer."""
        return Reply(AssistantMessage("from the spare"))

    async def close(self) -> None:
        """Close."""


@pytest.mark.parametrize("fault", ["cut", "internal"])
async def test_the_text_of_a_model_is_taken_back_when_another_is_called(fault: ProviderFault) -> None:
    lead = Agent(name="lead", model="custom:first", fallback=("spare:second",))
    async with Harness(dialects=(), agents=[lead], providers={"spare": WholeAnswers()}) as r:
        r.script("lead", fails(ProviderError("no", fault=fault, partial="It was ")))
        run = await r.retinue.spawn("why?", agent="lead")
        received = [each async for each in run.events()]
        outcome = await run.wait()

    assert what_of(received)[-3:] == ["It was ", "discard", "reply from the spare"]
    assert outcome.text == "from the spare"


class StartsTwice:
    """A provider that begins a second attempt by itself, and then fails."""

    async def answer(self, request: Request, publish: Publish) -> Reply:
        """Fail after two beginnings."""
        for delta in (StartDelta("a"), TextDelta("It was "), StartDelta("b"), TextDelta("The po")):
            publish(delta)
        raise ProviderError("refused", fault="refused")

    async def close(self) -> None:
        """Close."""


async def test_a_provider_that_starts_again_by_itself_takes_its_text_back() -> None:
    async with retinue.open(provider=StartsTwice(), dialects=(), home=retinue.MEMORY) as r:
        outcome = await r.run("why?")

    assert (outcome.result, outcome.text) == ("failed", "The po")


async def test_nothing_is_taken_back_of_an_attempt_that_streamed_nothing() -> None:
    async with Harness(dialects=()) as r:
        r.script("main", fails(ProviderError("busy", fault="overloaded"), times=2, then=says("The pool.")))
        run = await r.retinue.spawn("why?")
        received = [each async for each in run.events()]

    assert what_of(received) == ["The pool.", "reply The pool."]


async def test_a_reader_that_lags_loses_the_deltas_and_not_that_they_were_taken_back() -> None:
    log = RecordedRun()
    stream = log.feed.join(0).read(log.catch_up)
    log.record()
    await anext(stream)

    log.feed.publish_delta(StartDelta("a"))
    log.stream("read ")
    assert [await anext(stream), await anext(stream)] == [StartDelta("a"), TextDelta("read ")]
    log.stream(*["~"] * CAPACITY * 2)
    log.feed.publish_discard()
    log.feed.publish_delta(StartDelta("b"))
    log.stream("again")
    log.record(END)

    assert what_of([each async for each in stream]) == ["discard", "start b", "again"]
    assert log.asked == [0]
