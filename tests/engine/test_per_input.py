"""Keep-alive runs whose limits apply to each input: a limit or a failure ends the exchange and not the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import retinue
from retinue.core.agent import RunSpec
from retinue.core.budget import Caps, Window
from retinue.core.errors import ProviderError
from retinue.core.events import MailTaken
from retinue.core.messages import AssistantMessage, Message, UserMessage
from retinue.core.ports import Request
from retinue.core.run import Exchange, Lifecycle, LimitMet, Limits
from retinue.core.usage import Usage
from retinue.engine import SpawnRequest
from retinue.providers.scripted import Line, Script, ScriptedProvider, ScriptedReply, calls, fails, says, together
from retinue.testing.harness import Harness
from tests.engine.delegation import delegates, with_delegation
from tests.engine.memory_stores import SharedMemory


@retinue.tool(kind="pure")
async def nap(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "slept"


def harness() -> Harness:
    return Harness(dialects=(), tools=[nap], provider=ScriptedProvider(Script()))


def answer(text: str, tokens: int, *more: ScriptedReply) -> ScriptedReply:
    """A reply that uses so many tokens, with the calls of the others."""
    return together(says(text), *more, says("", usage=Usage(tokens - 10, 10)))


def met(exchange: Exchange) -> LimitMet | None:
    """The limit that ended an exchange: which, what was used, and how much it is."""
    limit = exchange.limit
    return None if limit is None else LimitMet(limit.reason, limit.used, limit.limit)


async def test_tokens_count_anew_with_each_input() -> None:
    async with harness() as r:
        r.script("main", answer("one", 700), answer("two", 700), answer("three", 700))
        handle = await r.retinue.spawn("first", keep_alive=True, per_input=True, limits=Limits(max_tokens=1000))
        texts = [(await handle.answer()).text, (await handle.ask("second")).text, (await handle.ask("third")).text]
        outcome = await handle.close()

    assert (texts, outcome.result, outcome.usage.total) == (["one", "two", "three"], "completed", 2100)


@pytest.mark.parametrize("wrap_up", [False, True])
async def test_a_spent_budget_ends_the_exchange_and_not_the_run(wrap_up: bool) -> None:
    limits = Limits(max_tokens=1000, wrap_up=wrap_up)
    ending = (answer("half of it", 100),) if wrap_up else ()
    used = 790 if wrap_up else 990  # a fifth is reserved for the wrap-up turn
    async with harness() as r:
        naps = answer("still looking", used, calls("nap", seconds=1))
        r.script("main", naps, *ending, answer("two", 700), naps, *ending, answer("four", 700))
        handle = await r.retinue.spawn("first", keep_alive=True, per_input=True, limits=limits)
        first = await handle.answer()
        others = [await handle.ask(text) for text in ("second", "third", "fourth")]
        outcome = await handle.close()

    limit = LimitMet("max_tokens", used, 1000)
    text = "half of it" if wrap_up else "still looking"
    assert (first.result, first.text, met(first)) == ("exhausted", text, limit)
    assert [(each.result, each.text) for each in others] == [
        ("completed", "two"),
        ("exhausted", text),
        ("completed", "four"),
    ]
    assert (outcome.result, outcome.text, outcome.exchanges) == ("completed", "four", 4)


async def test_children_share_the_limit_of_the_input_during_which_they_work() -> None:
    r, _ = with_delegation()
    async with r:
        r.script(
            "main",
            answer("", 300, delegates("dig")),
            answer("one", 300),
            answer("", 300, delegates("dig", task="more")),
        )
        r.script("dig", answer("dug", 300), task="dig")
        r.script("dig", answer("dug more", 800), task="more")
        handle = await r.retinue.spawn("first", keep_alive=True, per_input=True, limits=Limits(max_tokens=1000))
        first = await handle.answer()
        second = await handle.ask("second")
        await handle.close()

    assert (first.result, first.text) == ("completed", "one")
    assert (second.result, met(second)) == ("exhausted", LimitMet("max_tokens", 1100, 1000))


async def test_calls_count_anew_with_each_input() -> None:
    async with harness() as r:
        naps = calls("nap", seconds=1)
        r.script("main", naps, says("one"), naps, together(naps, naps), says("three"))
        handle = await r.retinue.spawn("first", keep_alive=True, per_input=True, limits=Limits(max_calls=2))
        first, second, third = await handle.answer(), await handle.ask("second"), await handle.ask("third")
        await handle.close()

    assert (first.text, second.result, third.text) == ("one", "exhausted", "three")
    assert met(second) == LimitMet("max_calls", 3, 2)


async def test_a_failed_model_call_ends_the_exchange_and_its_text_is_kept() -> None:
    heard: list[Sequence[Message]] = []

    def line(request: Request) -> Line:
        if request.messages[-1].text == "Why?":
            return fails(ProviderError("no", fault="bad_request", partial="It was "))
        heard.append(tuple(request.messages))
        return says("The pool.")

    async with harness() as r:
        r.script("main", line)
        handle = await r.retinue.spawn("Why?", keep_alive=True, per_input=True)
        failed, answered = await handle.answer(), await handle.ask("Go on.")
        outcome = await handle.close()

    assert failed == Exchange(result="failed", reason="model_error", text="It was ", error="no")
    assert (answered.text, outcome.result) == ("The pool.", "completed")
    assert [(type(each), each.text) for each in heard[0]] == [
        (UserMessage, "Why?"),
        (AssistantMessage, "It was "),
        (UserMessage, "Go on."),
    ]


async def test_the_time_limit_is_that_of_one_exchange() -> None:
    async with harness() as r:
        r.script(
            "main",
            calls("nap", seconds=50),
            says("one"),
            calls("nap", seconds=50),
            says("two"),
            calls("nap", seconds=70),
        )
        handle = await r.retinue.spawn("first", keep_alive=True, per_input=True, limits=Limits(timeout=60))
        first = await handle.answer()
        await asyncio.sleep(3600)
        second = await handle.ask("second")
        third = await handle.ask("third")
        outcome = await handle.wait()

    assert (first.text, second.text, third.result) == ("one", "two", "timed_out")
    assert outcome.error == "the run did not finish within 60 s"


async def test_the_limit_of_an_input_is_the_same_after_a_crash() -> None:
    r = Harness(dialects=(), tools=[nap], provider=ScriptedProvider(Script()), store=SharedMemory())
    async with r:
        naps = answer("looking", 495, calls("nap", seconds=60))
        r.script("main", answer("one", 900), naps, naps, answer("never", 400))
        handle = await r.retinue.spawn("first", keep_alive=True, per_input=True, limits=Limits(max_tokens=1000))
        await handle.answer()
        asking = asyncio.ensure_future(handle.ask("second", key="second"))
        await asyncio.sleep(30)
        asking.cancel()
        await r.restart()
        handle = r.retinue.handle(handle.run_id)
        second = await handle.answer(2)
        third = await handle.ask("third")
        await handle.close()

        (_, taken) = [each for each in r.events(handle.run_id) if isinstance(each, MailTaken) and each.spent_before]
    assert (second.result, met(second)) == ("exhausted", LimitMet("max_tokens", 990, 1000))
    assert third.text == "never"
    assert taken.spent_before is not None
    assert taken.spent_before.tokens == 1890


async def test_a_used_up_window_ends_the_exchange_and_the_run_goes_on_when_it_is_free() -> None:
    hour = Window("main/hour", 3600.0, Caps(tokens=100))
    async with harness() as r:
        r.script("main", answer("one", 95), answer("three", 80))
        spawn_request = SpawnRequest(
            agent="main",
            run_spec=RunSpec(agent="main", provider="custom", model="m", max_output=20),
            task="first",
            windows=(hour,),
            lifecycle=Lifecycle(keep_alive=True, per_input=True),
        )
        started = await r.retinue.supervisor.spawn(spawn_request, session_id="session")
        handle = r.retinue.handle(started.run_id)
        first, second = await handle.answer(), await handle.ask("second")
        await asyncio.sleep(3600)
        third = await handle.ask("third")
        await handle.close()

    assert (first.text, second.reason, third.text) == ("one", "window", "three")
