"""Runs whose model repeats its calls: the model is told, the run ends as looping, a crash changes nothing."""

from __future__ import annotations

from contextlib import suppress

import pytest

import retinue
from retinue.core.errors import StoreError
from retinue.core.events import AdviceGiven
from retinue.core.messages import AssistantMessage, Message, Reply, ToolCall, UserMessage
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


SILENT = "You have not answered. The results of your calls are above. Give the answer now, in plain words."
SAME_RESULT = (
    "This result is the same as before: it is above. If it has the answer, give the answer now, in plain words."
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


class Replies:
    """A provider that replies so, one after the other."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = iter(replies)
        self.requests: list[Request] = []

    async def answer(self, request: Request, publish: object) -> Reply:
        self.requests.append(request)
        return next(self._replies)


def answers(text: str) -> Reply:
    return Reply(AssistantMessage(text))


def writes_call(name: str, arguments: str = "{}") -> Reply:
    """A reply whose call was written as text."""
    return Reply(AssistantMessage("", (ToolCall(name, arguments),)), calls_in_text=True)


UNREADABLE = Reply(AssistantMessage('{"name": "lok"}'), call_error="there is no tool named 'lok'")


@pytest.mark.parametrize(("name", "arguments"), [("look", '{"at": "logs"}'), ("is_ready", "{}")])
async def test_a_model_that_writes_its_calls_as_text_is_told_when_a_result_comes_again(
    name: str, arguments: str
) -> None:
    provider = Replies(writes_call(name), writes_call(name, arguments), answers("nothing there"))
    async with retinue.open(provider=provider, tools=[look, is_ready], dialects=(), store="memory:") as r:
        outcome = await r.run("look", model="m")

    assert (outcome.text, outcome.turns) == ("nothing there", 3)
    assert provider.requests[2].messages[5] == UserMessage(SAME_RESULT, origin="engine")


async def test_a_model_that_writes_its_calls_as_text_and_then_nothing_is_asked_for_its_answer() -> None:
    provider = Replies(writes_call("look"), answers(""), answers("nothing there"))
    async with retinue.open(provider=provider, tools=[look], dialects=(), store="memory:") as r:
        outcome = await r.run("look", model="m")

    assert (outcome.text, outcome.turns) == ("nothing there", 3)
    assert provider.requests[2].messages[4] == UserMessage(SILENT, origin="engine")


async def test_a_failed_attempt_without_any_tool_is_answered_with_that() -> None:
    provider = Replies(UNREADABLE, answers("42"))
    async with retinue.open(provider=provider, dialects=(), store="memory:") as r:
        outcome = await r.run("look", model="m")

    assert (outcome.text, outcome.turns) == ("42", 2)
    (told,) = [message for message in provider.requests[1].messages if message.text.startswith("Your last message")]
    assert "you have no tools here" in told.text
    assert told.text.endswith('Instead, answer this in plain words, without JSON: "look"')


async def test_a_failed_attempt_at_a_call_is_answered_with_the_tools_there_are_and_the_task() -> None:
    provider = Replies(UNREADABLE, answers("42"))
    async with retinue.open(provider=provider, tools=[look], dialects=(), store="memory:") as r:
        outcome = await r.run("look", model="m")

    assert (outcome.text, outcome.turns) == ("42", 2)
    assert provider.requests[1].messages[2] == UserMessage(HOW_TO_CALL, origin="engine")
