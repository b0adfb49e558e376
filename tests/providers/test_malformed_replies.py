"""Malformed replies over HTTP: what the server of a model rejects is explained to the model, which answers again."""

from collections.abc import Callable
from typing import Any

import pytest

import retinue
from retinue.testing.fake_chat import EVENTS, JSON, event
from retinue.testing.fake_server import FakeResponse, FakeServer
from tests.providers.raw_answers import PROVIDERS, answer

FAILED_CALL = {
    "error": {
        "message": "Failed to call a function. Please adjust your prompt.",
        "type": "invalid_request_error",
        "code": "tool_use_failed",
        "failed_generation": '<function=search{"query": pool}>',
    }
}
FAILED_JSON = {
    "error": {
        "message": "Failed to generate JSON. Please adjust your prompt.",
        "type": "invalid_request_error",
        "code": "json_validate_failed",
        "failed_generation": '{"a": ',
    }
}


def status_400(body: dict[str, Any]) -> FakeResponse:
    return FakeResponse(status=400, headers=JSON, pieces=(event(body)[len(b"data: ") :],))


def in_stream(body: dict[str, Any]) -> FakeResponse:
    return FakeResponse(headers=EVENTS, pieces=(event({"choices": [{"delta": {"content": "Hm"}}]}), event(body)))


SLIPS: list[tuple[str, FakeResponse, str]] = [
    ("chat", status_400(FAILED_CALL), '<function=search{"query": pool}>'),
    ("chat", status_400(FAILED_JSON), '{"a":'),
    ("chat", in_stream(FAILED_CALL), "Failed to call a function."),
    ("gemini", answer("gemini", stop="MALFORMED_FUNCTION_CALL"), "the function call was malformed."),
    ("gemini", answer("gemini", "Hm", stop="UNEXPECTED_TOOL_CALL"), "a function was called that was not offered."),
    ("bedrock", answer("bedrock", stop="malformed_tool_use"), "the tool call was malformed."),
    ("bedrock", answer("bedrock", "Hm", stop="malformed_model_output"), "the answer was malformed."),
]


def last_text(wire: str, body: dict[str, Any]) -> str:
    if wire == "bedrock":
        return body["messages"][-1]["content"][-1]["text"]
    return body["messages"][-1]["content"] if wire == "chat" else body["contents"][-1]["parts"][-1]["text"]


async def run_against(wire: str, respond: Callable[[], FakeResponse]) -> tuple[retinue.Outcome, list[str]]:
    async with (
        FakeServer(lambda _: respond()) as server,
        retinue.open(model="m", provider=PROVIDERS[wire](server.url), dialects=(), home=retinue.MEMORY) as r,
    ):
        outcome = await r.run("Why is it slow?")
    return outcome, [last_text(wire, heard.body) for heard in server.requests]


@pytest.mark.parametrize(("wire", "rejection", "told"), SLIPS)
async def test_a_malformed_reply_is_explained_to_the_model_and_repeated(
    wire: str, rejection: FakeResponse, told: str
) -> None:
    answers = [rejection, answer(wire, "It was the pool.")]

    outcome, asked = await run_against(wire, lambda: answers.pop(0))

    assert (outcome.result, outcome.text, outcome.turns) == ("completed", "It was the pool.", 1)
    assert asked[0] == "Why is it slow?"
    assert asked[1].startswith("[Your last reply was rejected by the server of the model and has no effect.")
    assert told in asked[1]


@pytest.mark.parametrize(("wire", "rejection", "told"), SLIPS)
async def test_a_model_that_keeps_slipping_fails_the_run(wire: str, rejection: FakeResponse, told: str) -> None:
    outcome, asked = await run_against(wire, lambda: rejection)

    assert (outcome.result, outcome.reason, len(asked)) == ("failed", "model_error", 4)
    assert "4 attempts were made" in outcome.error
