"""Runs whose model repeats its calls: the model is told, the run ends as looping, a crash changes nothing."""

from __future__ import annotations

from contextlib import suppress

import retinue
from retinue.core.errors import StoreError
from retinue.core.events import AdviceGiven
from retinue.core.messages import AssistantMessage, Message, Reply, UserMessage
from retinue.core.ports import Request
from retinue.core.run import Limits, Outcome
from retinue.providers.scripted import Line, calls, says
from retinue.testing.harness import Harness

TOLD = (
    "Your last 3 replies made the same calls and got the same results. Calling again will not change them. "
    "Do something else, or give your final answer from what you have."
)


HOW_TO_CALL = (
    "Your last message looks like a tool call, but it is not one: there is no tool named 'lok'. Nothing was done. Your "
    "tools are: look. If you need one of them, use the tool calls of this interface, or write exactly this and nothing "
    'else:\n<tool_call>\n{"name": "TOOL", "arguments": {"PARAMETER": "VALUE"}}\n</tool_call>\n'
    'If not, answer this in plain words, without JSON: "look"'
)


@retinue.tool(kind="pure")
def look(at: str = "") -> str:
    """Look at something."""
    return "nothing there"


@retinue.tool(kind="pure", polls=True)
def is_ready() -> str:
    """Ask whether it is ready."""
    return "not yet"


def advice(harness: Harness) -> list[str]:
    return [event.text for event in harness.events(harness.run_of("main")) if isinstance(event, AdviceGiven)]


async def test_a_repeating_model_is_told_and_may_go_on() -> None:
    heard: list[Message] = []

    def listens(request: Request) -> Line:
        heard.append(request.messages[-1])
        return says("there is nothing")

    async with Harness(tools=[look], dialects=()) as harness:
        harness.script("main", *[calls("look", at="logs")] * 3, listens)
        outcome = await harness.run("look")

        assert (outcome.text, outcome.reason, advice(harness)) == ("there is nothing", "answered", [TOLD])
        assert heard == [UserMessage(TOLD, origin="engine")]


async def test_a_run_whose_model_goes_on_repeating_ends_as_looping() -> None:
    async with Harness(tools=[look], dialects=()) as harness:
        harness.script("main", *[calls("look", at="logs")] * 5)
        outcome = await harness.run("look", limits=Limits())

        assert (outcome.result, outcome.reason, outcome.turns, advice(harness)) == ("exhausted", "looping", 5, [TOLD])
        assert "max_repeats" in outcome.error


async def test_calls_of_an_unknown_tool_are_repeats_too() -> None:
    async with Harness(tools=[look], dialects=()) as harness:
        harness.script("main", *[calls("lok")] * 5)

        assert (await harness.run("look", limits=Limits())).reason == "looping"


async def test_tools_that_poll_and_other_limits_allow_repeats() -> None:
    async with Harness(tools=[look, is_ready], dialects=()) as harness:
        harness.script("main", *[calls("is_ready")] * 8, says("gave up"), task="wait")
        harness.script("main", *[calls("look")] * 8, says("gave up"), task="look")
        waited = await harness.run("wait")
        looked = await harness.run("look", limits=Limits(max_repeats=None))

        assert (waited.text, waited.turns, looked.text, looked.turns) == ("gave up", 9, "gave up", 9)


async def test_tools_of_a_dialect_may_be_repeated() -> None:
    async with Harness() as harness:
        harness.script("main", *[calls("subagent", action="list")] * 8, says("done"))

        assert (await harness.run("wait")).text == "done"


async def test_a_crash_at_any_write_does_not_reset_the_count() -> None:
    after, crashed = 0, True
    while crashed:
        after += 1
        harness = Harness(tools=[look], dialects=())
        harness.script("main", *[calls("look", at="logs")] * 5)
        outcome = None
        with suppress(StoreError):
            await harness.open(killed_after=after)
            outcome = await looks(harness)
            crashed = False
        if crashed:
            await harness.kill()
            await harness.open(adopt=True)
            outcome = await looks(harness)
        assert outcome is not None
        assert (outcome.reason, outcome.turns, advice(harness)) == ("looping", 5, [TOLD]), f"stopped after {after}"
        with suppress(StoreError):
            await harness.close()
    assert after > 10


async def looks(harness: Harness) -> Outcome:
    """Start the run, or find the one that an earlier process has started."""
    started = await harness.retinue.spawn("look", key="once", limits=Limits())
    return await started.wait()


class WritesCalls:
    """A provider whose model first writes a call that cannot be read, and then what `then` says."""

    def __init__(self, then: str) -> None:
        self.then = then
        self.requests: list[Request] = []

    async def answer(self, request: Request, publish: object) -> Reply:
        self.requests.append(request)
        if len(self.requests) == 1:
            return Reply(AssistantMessage('{"name": "lok"}'), call_error="there is no tool named 'lok'")
        return Reply(AssistantMessage(self.then))


async def test_a_failed_attempt_without_any_tool_is_answered_with_that() -> None:
    provider = WritesCalls("42")
    async with retinue.open(provider=provider, dialects=(), store="memory:") as r:
        outcome = await r.run("look", model="m")

    assert (outcome.text, outcome.turns) == ("42", 2)
    (told,) = [message for message in provider.requests[1].messages if message.text.startswith("Your last message")]
    assert "you have no tools here" in told.text
    assert told.text.endswith('Instead, answer this in plain words, without JSON: "look"')


async def test_a_failed_attempt_at_a_call_is_answered_with_the_tools_there_are_and_the_task() -> None:
    provider = WritesCalls("42")
    async with retinue.open(provider=provider, tools=[look], dialects=(), store="memory:") as r:
        outcome = await r.run("look", model="m")

    assert (outcome.text, outcome.turns) == ("42", 2)
    assert provider.requests[1].messages[2] == UserMessage(HOW_TO_CALL, origin="engine")
