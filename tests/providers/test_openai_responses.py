"""The Responses wire against a fake server: the provider contract, reasoning items and errors."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from retinue.core.errors import ProviderError
from retinue.core.messages import Message, ToolMessage, UserMessage
from retinue.core.ports import Provider, Request
from retinue.core.usage import Usage
from retinue.providers.catalog import create_provider, provider_config
from retinue.providers.openai_responses.response import OpenAIResponsesProvider
from retinue.providers.scripted import Line, ScriptedReply, calls, fails, says, together
from retinue.testing.contracts.provider import PROMISES, TOOLS, DeltaListener, Promise
from retinue.testing.fake_chat import EVENTS, event
from retinue.testing.fake_server import FakeResponse, ReceivedRequest
from tests.providers.fakes.responses import FakeResponses


@asynccontextmanager
async def connect(line: Line) -> AsyncGenerator[Provider]:
    async with FakeResponses(line) as vendor, OpenAIResponsesProvider(vendor.base_url) as provider:
        yield provider


@asynccontextmanager
async def stage_of_single_bytes(line: Line) -> AsyncGenerator[Provider]:
    async with FakeResponses(line, chunk=1) as vendor, OpenAIResponsesProvider(vendor.base_url) as provider:
        yield provider


@asynccontextmanager
async def stage_in_the_other_spelling(line: Line) -> AsyncGenerator[Provider]:
    async with (
        FakeResponses(line, spelling="tool_call") as vendor,
        OpenAIResponsesProvider(vendor.base_url, spelling="tool_call") as provider,
    ):
        yield provider


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_responses_wire_keeps_the_provider_contract(promise: Promise) -> None:
    await promise(connect)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_responses_wire_keeps_the_provider_contract_byte_by_byte(promise: Promise) -> None:
    await promise(stage_of_single_bytes)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_responses_wire_keeps_the_provider_contract_as_tool_call(promise: Promise) -> None:
    await promise(stage_in_the_other_spelling)


def by_turn(*lines: ScriptedReply) -> Any:
    """The line for a request, chosen by the number of calls in the conversation."""

    def play(heard: ReceivedRequest) -> ScriptedReply:
        return lines[sum(item.get("type") in ("function_call", "tool_call") for item in heard.body["input"])]

    return play


async def conversed(provider: Provider, *results: str) -> list[Message]:
    """Run a conversation with these results of its calls, until a reply without a call."""
    history: list[Message] = [UserMessage("why?")]
    memo: dict[str, object] = {}
    given = iter(results)
    while True:
        request = Request(model="m", system="s", messages=history, tools=TOOLS, think=True, memo=memo)
        reply = await provider.answer(request, DeltaListener().publish)
        history.append(reply.message)
        if not reply.message.calls:
            return history
        history += [ToolMessage(call.name, next(given), call.id) for call in reply.message.calls]


def streamed(*events: dict[str, Any]) -> FakeResponse:
    return FakeResponse(headers=EVENTS, pieces=tuple(map(event, events)))


def message_item(item_id: str, text: str, **fields: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": list[object]()}]
    return {"type": "message", "id": item_id, "role": "assistant", "status": "completed", "content": content} | fields


async def test_tools_are_not_strict_and_a_reply_goes_back_as_whole_items() -> None:
    lines = by_turn(together(says("Let me look."), calls("search", query="a")), says("Because."))
    async with FakeResponses(lines) as vendor, OpenAIResponsesProvider(vendor.base_url) as provider:
        await conversed(provider, "3 lines")

    last = vendor.requests[-1].body
    assert [tool["strict"] for tool in last["tools"]] == [False] * len(TOOLS)
    assert last["input"][1] == {
        "type": "message",
        "id": "msg_1_0",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
    }


async def test_explicit_requests_have_the_documented_fields_of_tools_alone() -> None:
    async with (
        FakeResponses(says("Because.")) as vendor,
        OpenAIResponsesProvider(vendor.base_url, explicit=True) as provider,
    ):
        await conversed(provider)

    assert {frozenset(tool) for tool in vendor.requests[0].body["tools"]} == {
        frozenset({"type", "name", "description", "parameters"})
    }


async def test_two_messages_with_phases_stay_two_messages() -> None:
    commentary = message_item("msg_a", "I look into it.", phase="commentary")
    final = message_item("msg_b", "It is the pool.", phase="final_answer")
    first = streamed(
        {"type": "response.output_item.added", "output_index": 0, "item": commentary | {"content": list[object]()}},
        {"type": "response.output_text.delta", "item_id": "msg_a", "output_index": 0, "delta": "I look "},
        {"type": "response.output_text.delta", "item_id": "msg_a", "output_index": 0, "delta": "into it."},
        {"type": "response.output_item.done", "output_index": 0, "item": commentary},
        {"type": "response.output_item.added", "output_index": 1, "item": final | {"content": list[object]()}},
        {"type": "response.output_text.delta", "item_id": "msg_b", "output_index": 1, "delta": "It is the pool."},
        {"type": "response.output_item.done", "output_index": 1, "item": final},
        {"type": "response.completed", "response": {"id": "r1", "output": [commentary, final]}},
    )
    answers: list[FakeResponse | ScriptedReply] = [first, says("Yes.")]
    listener, history = DeltaListener(), list[Message]([UserMessage("why?")])
    async with (
        FakeResponses(lambda _: answers.pop(0)) as vendor,
        OpenAIResponsesProvider(vendor.base_url) as provider,
    ):
        reply = await provider.answer(Request(model="m", system="s", messages=history), listener.publish)
        history += [reply.message, UserMessage("sure?")]
        await provider.answer(Request(model="m", system="s", messages=history), listener.publish)

    assert reply.message.text == "I look into it.\n\nIt is the pool."
    assert listener.text == reply.message.text + "Yes."
    assert vendor.requests[-1].body["input"][1:3] == [
        commentary | {"id": "msg_1_0"},
        final | {"id": "msg_1_1"},
    ]


@pytest.mark.parametrize(
    ("streamed_text", "whole", "text"),
    [
        ("It is", "It is the pool.", "It is the pool."),
        ("", "It is the pool.", "It is the pool."),
        ("It was", "It is the pool.", "It is the pool."),
        ("It is the pool.", "It is", "It is the pool."),
    ],
)
async def test_a_finished_item_wins_over_shorter_deltas(streamed_text: str, whole: str, text: str) -> None:
    delta = {"type": "response.output_text.delta", "item_id": "msg_a", "output_index": 0, "delta": streamed_text}
    answer = streamed(
        {"type": "response.output_item.added", "output_index": 0, "item": message_item("msg_a", "")},
        delta,
        {"type": "response.output_item.done", "output_index": 0, "item": message_item("msg_a", whole)},
        {"type": "response.completed", "response": {"id": "r1"}},
    )
    async with FakeResponses(answer) as vendor, OpenAIResponsesProvider(vendor.base_url) as provider:
        reply = await provider.answer(
            Request(model="m", system="s", messages=[UserMessage("a")]), DeltaListener().publish
        )

    assert reply.message.text == text


@pytest.mark.parametrize("spelling", ["function_call", "tool_call"])
async def test_reasoning_items_are_sent_back_unchanged_before_their_calls(spelling: Any) -> None:
    lines = by_turn(together(says("", thinking="hm"), calls("search", query="a")), says("Because."))
    async with (
        FakeResponses(lines, spelling=spelling) as vendor,
        OpenAIResponsesProvider(vendor.base_url, spelling=spelling) as provider,
    ):
        history = await conversed(provider, "3 lines")

    thought = (
        b'{"type":"reasoning","id":"rs_1","encrypted_content":"gAAA","summary":[{"type":"summary_text","text":"hm"}]}'
    )
    call, result = {
        "function_call": (
            b',{"type":"function_call","call_id":"call_1_0",',
            b',{"type":"function_call_output","call_id":',
        ),
        "tool_call": (b',{"type":"tool_call","id":"fc_1_0",', b',{"type":"tool_result","tool_call_id":'),
    }[spelling]
    first, second = vendor.requests
    assert second.raw.startswith(first.raw.removesuffix(b"]}") + b"," + thought + call)
    assert result in second.raw
    assert [getattr(message, "text", "") for message in history] == ["why?", "", "3 lines", "Because."]


async def test_each_request_has_the_whole_conversation_and_asks_for_reasoning() -> None:
    async with FakeResponses(says("yes")) as vendor, OpenAIResponsesProvider(vendor.base_url) as provider:
        await conversed(provider)

    (heard,) = vendor.requests
    assert heard.path == "/v1/responses"
    assert "authorization" not in heard.headers
    assert heard.headers["content-length"] == str(len(heard.raw))
    assert heard.body | {"tools": None, "input": None} == {
        "model": "m",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "high", "summary": "detailed"},
        "instructions": "s",
        "tools": None,
        "tool_choice": "auto",
        "input": None,
    }


async def test_the_key_is_sent_as_a_bearer_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret-key")
    async with FakeResponses(says("yes")) as vendor, OpenAIResponsesProvider(vendor.base_url, "SOME_KEY") as provider:
        await conversed(provider)

    assert vendor.requests[0].headers["authorization"] == "Bearer sk-secret-key"


async def test_a_response_that_fails_midway_is_an_error_with_its_fault() -> None:
    line = fails(ProviderError("The server had an error", fault="overloaded", partial="It is"))
    async with FakeResponses(line) as vendor, OpenAIResponsesProvider(vendor.base_url) as provider:
        with pytest.raises(ProviderError, match="The server had an error") as failed:
            await conversed(provider)

    assert (failed.value.fault, failed.value.partial) == ("overloaded", "It is")


async def test_usage_has_cached_and_reasoning_tokens() -> None:
    usage = Usage(input=30, output=12, cached=20, reasoning=5)
    async with (
        FakeResponses(says("yes", usage=usage)) as vendor,
        OpenAIResponsesProvider(vendor.base_url) as provider,
    ):
        reply = await provider.answer(
            Request(model="m", system="", messages=[UserMessage("hi")]), DeltaListener().publish
        )

    assert (reply.usage, reply.model, reply.response_id) == (usage, "fake-1", "resp_1")


@pytest.mark.parametrize("name", ["openai", "openai-responses"])
def test_the_wire_is_registered_by_its_names(name: str) -> None:
    where = provider_config(name)

    assert (where.base_url, where.api_key_env) == ("https://api.openai.com/v1", "OPENAI_API_KEY")
    assert repr(create_provider(where)) == "<OpenAIResponsesProvider https://api.openai.com/v1>"
