"""The wrap-up turn over HTTP: the tools of earlier turns are sent again, and calls are forbidden."""

from typing import Any

import pytest

import retinue
from retinue.core.messages import ToolCall
from retinue.testing.fake_chat import error_response
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.providers.raw_answers import PROVIDERS, answer

CALL = ToolCall("search", '{"query":"pool"}', "toolu_1")

NONE: dict[str, tuple[str, Any]] = {
    "chat": ("tool_choice", "none"),
    "responses": ("tool_choice", "none"),
    "anthropic": ("tool_choice", {"type": "none"}),
    "gemini": ("toolConfig", {"functionCallingConfig": {"mode": "NONE"}}),
}


@retinue.tool(kind="pure")
def search(query: str) -> str:
    """Search the logs."""
    return f"3 lines about {query}"


async def wrapped_up(wire: str, last: FakeResponse | None = None) -> tuple[retinue.Outcome, list[dict[str, Any]]]:
    """The outcome of a run with two turns, and the bodies of its requests; `last` is the first answer to the second."""
    answers = [answer(wire, "", CALL), *([last] if last else []), answer(wire, "It was the pool.")]

    def respond(_: ReceivedRequest) -> FakeResponse:
        return answers.pop(0)

    limits = retinue.Limits(max_turns=2, wrap_up=True)
    async with (
        FakeServer(respond) as server,
        retinue.open(
            model="gemini-3-pro", provider=PROVIDERS[wire](server.url), tools=[search], dialects=(), home=retinue.MEMORY
        ) as r,
    ):
        outcome = await r.run("Why is it slow?", limits=limits)
    return outcome, [heard.body for heard in server.requests]


@pytest.mark.parametrize("wire", NONE)
async def test_the_wrap_up_turn_keeps_the_tools_and_forbids_calls(wire: str) -> None:
    outcome, (first, last) = await wrapped_up(wire)
    field, none = NONE[wire]

    assert (outcome.result, outcome.text) == ("exhausted", "It was the pool.")
    tools_without_marks = [
        [{k: v for k, v in tool.items() if k != "cache_control"} for tool in each["tools"]] for each in (first, last)
    ]
    assert tools_without_marks[0] == tools_without_marks[1]
    assert first.get(field) in (None, "auto")
    assert last[field] == none


@pytest.mark.parametrize("wire", NONE)
async def test_a_server_that_cannot_forbid_calls_gets_no_tools(wire: str) -> None:
    field, _ = NONE[wire]
    rejection = error_response(400, f"Unsupported parameter: '{field}'", param=field)
    outcome, (_, refused, last) = await wrapped_up(wire, rejection)

    assert (outcome.result, outcome.text) == ("exhausted", "It was the pool.")
    assert field in refused
    assert {field, "tools"}.isdisjoint(last)
