"""Replies that end at the output limit: calls that were cut are not made, and the model is told."""

from collections.abc import Sequence

import retinue
from retinue.core.messages import Message, Reply, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Publish, Request
from retinue.core.run import Limits
from retinue.core.usage import Usage
from retinue.providers.scripted import Line, Script, ScriptedProvider, ScriptedReply, calls, says

TOLD = "Your reply was cut at 900 tokens; the call was not made. Write it in smaller pieces."
WHOLE, CUT = '{"word": "pool"}', '{"word": "po'


@retinue.tool(kind="pure")
async def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: found"


def cut(*arguments: str) -> ScriptedReply:
    """A reply with calls that ends at the output limit, within the last of them."""
    made = tuple(ToolCall("look_up", each, f"c{number}") for number, each in enumerate(arguments))
    return ScriptedReply(calls=made, stop="length", usage=Usage(input=50, output=900))


class Listening:
    """A provider that keeps the requests to another one."""

    def __init__(self, provider: ScriptedProvider) -> None:
        self._provider = provider
        self.heard: list[Sequence[Message]] = []

    async def answer(self, request: Request, publish: Publish) -> Reply:
        self.heard.append(tuple(request.messages))
        return await self._provider.answer(request, publish)


async def played(*lines: Line) -> tuple[retinue.Outcome, list[Sequence[Message]]]:
    """The outcome of a run in which the model says these lines, and the messages of each request."""
    provider = Listening(ScriptedProvider(Script().play("main", *lines)))
    async with retinue.open(provider=provider, model="m", tools=[look_up], dialects=[], store="memory:") as r:
        outcome = await r.run("look", limits=Limits(max_turns=50))
    return outcome, provider.heard


def results_in(messages: Sequence[Message]) -> list[tuple[str, bool]]:
    return [(each.text, each.failed) for each in messages if isinstance(each, ToolMessage)]


async def test_a_call_that_was_cut_is_not_made_and_the_model_is_told() -> None:
    outcome, heard = await played(cut(CUT), says("done"))

    assert (outcome.result, outcome.text, results_in(heard[-1])) == ("completed", "done", [(TOLD, True)])


async def test_the_whole_calls_before_one_that_was_cut_are_made() -> None:
    _, heard = await played(cut(WHOLE, CUT), says("done"))

    assert results_in(heard[-1]) == [("pool: found", False), (TOLD, True)]


async def test_a_last_call_with_whole_arguments_is_made() -> None:
    _, heard = await played(cut(WHOLE), says("done"))

    assert results_in(heard[-1]) == [("pool: found", False)]


async def test_a_run_whose_calls_are_cut_three_times_in_a_row_ends_with_that_reason() -> None:
    outcome, heard = await played(*[cut(CUT)] * 3)

    assert (outcome.result, outcome.reason, len(heard)) == ("failed", "length", 3)
    assert outcome.error.startswith("the reply was cut off at the output limit 3 times in a row")


async def test_a_reply_that_is_not_cut_starts_the_count_anew() -> None:
    outcome, heard = await played(cut(CUT), cut(CUT), calls("look_up", word="a"), cut(CUT), cut(CUT), says("done"))

    assert (outcome.result, outcome.text, len(heard)) == ("completed", "done", 6)


async def test_the_model_is_informed_when_thinking_used_up_its_output() -> None:
    outcome, heard = await played(says("", stop="length", usage=Usage(input=50, output=8192)), says("done"))

    told = "Your reply was cut at 8192 tokens, before it had an answer. Think less, and give your answer in few words."
    assert (outcome.result, outcome.text) == ("completed", "done")
    assert heard[-1][-1] == UserMessage(told, "engine")


async def test_an_answer_of_which_some_text_arrived_is_the_answer() -> None:
    outcome, heard = await played(says("It is bec", stop="length"))

    assert (outcome.result, outcome.reason, outcome.text, len(heard)) == ("completed", "length", "It is bec", 1)
