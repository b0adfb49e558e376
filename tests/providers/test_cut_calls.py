"""Calls that the output limit cut, over HTTP: they are not made, the model is told, and a run does not ask for ever."""

import pytest

import retinue
from retinue.core.messages import ToolCall
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.providers.raw_answers import PROVIDERS, answer

LENGTH = {"chat": "length", "responses": "max_output_tokens", "anthropic": "max_tokens", "gemini": "MAX_TOKENS"}
LENGTH["bedrock"] = "max_tokens"
STREAMED = [wire for wire in PROVIDERS if wire != "gemini"]
"""Gemini sends the arguments of a call as a whole: its calls are never cut."""
TOLD = "Your reply was cut at 800 tokens; the call was not made. Write it in smaller pieces."


@retinue.tool(kind="pure")
def write(text: str) -> str:
    """Write a text."""
    raise AssertionError(f"half a text was written: {text}")


async def outcome_of(wire: str, *answers: FakeResponse) -> tuple[retinue.Outcome, list[ReceivedRequest]]:
    left = list(answers)

    def respond(_: ReceivedRequest) -> FakeResponse:
        return left.pop(0) if len(left) > 1 else left[0]

    async with (
        FakeServer(respond) as server,
        retinue.open(
            model="m", provider=PROVIDERS[wire](server.url), tools=[write], dialects=(), home=retinue.MEMORY
        ) as r,
    ):
        outcome = await r.run("Write a book.")
    return outcome, server.requests


def cut(wire: str, arguments: str = '{"text": "once upon a ti') -> FakeResponse:
    return answer(wire, "", ToolCall("write", arguments, "toolu_1"), stop=LENGTH[wire], usage=(50, 800))


@pytest.mark.parametrize("arguments", ['{"text": "once upon a ti', '{"text":', ""])
@pytest.mark.parametrize("wire", STREAMED)
async def test_a_call_that_was_cut_is_not_made_and_the_model_is_told(wire: str, arguments: str) -> None:
    outcome, requests = await outcome_of(wire, cut(wire, arguments), answer(wire, "Done."))

    assert (outcome.result, outcome.text, len(requests)) == ("completed", "Done.", 2)
    assert TOLD in requests[1].raw.decode()


@pytest.mark.parametrize("wire", STREAMED)
async def test_calls_that_are_always_cut_end_the_run_after_the_third(wire: str) -> None:
    outcome, requests = await outcome_of(wire, cut(wire))

    assert (outcome.result, outcome.reason, len(requests)) == ("failed", "length", 3)


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_thinking_that_is_always_cut_ends_the_run_after_the_third(wire: str) -> None:
    outcome, requests = await outcome_of(wire, answer(wire, "", stop=LENGTH[wire], usage=(50, 800)))

    assert (outcome.result, outcome.reason, len(requests)) == ("failed", "length", 3)
    assert "Your reply was cut at 800 tokens, before it had an answer." in requests[-1].raw.decode()
