"""Requests to the Responses wire with the whole conversation or the previous response, and both spellings."""

from typing import Any

import pytest

from retinue.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Provider, Request
from retinue.providers.openai_responses.request import Spelling
from retinue.providers.openai_responses.response import Continuation, OpenAIResponsesProvider
from retinue.providers.scripted import ScriptedReply, calls, says, together
from retinue.testing.contracts.provider import TOOLS, DeltaListener
from retinue.testing.fake_server import ReceivedRequest
from tests.providers.fakes.responses import FakeResponses
from tests.providers.responses_events import decode_reply

pytestmark = pytest.mark.real_time

BOTH = together(says("Let me look.", thinking="hm"), calls("search", query="a"), calls("list_files"))


def by_turn(*lines: ScriptedReply) -> Any:
    """The line for a request, chosen by the number of tool results."""

    def play(heard: ReceivedRequest) -> ScriptedReply:
        results = sum(item.get("type") in ("function_call_output", "tool_result") for item in heard.body["input"])
        return lines[{0: 0, 2: 1, 3: 2}[results]]

    return play


LINES = by_turn(BOTH, calls("search", query="b"), says("Because."))


async def conversed(provider: Provider, memo: dict[str, object] | None = None) -> list[Message]:
    """A conversation of three replies and the results of their calls; `memo` is that of a run."""
    history: list[Message] = [UserMessage("why?")]
    while True:
        kept = {} if memo is None else memo
        request = Request(model="o3", system="s", messages=history, tools=TOOLS, memo=kept)
        reply = await provider.answer(request, DeltaListener().publish)
        history.append(reply.message)
        if not reply.message.calls:
            return history
        history += [ToolMessage(call.name, f"{call.name}!", call.id) for call in reply.message.calls]


def sent_items(vendor: FakeResponses) -> list[tuple[str | None, list[Any]]]:
    return [(heard.body.get("previous_response_id"), heard.body["input"]) for heard in vendor.requests]


ASKED = {"role": "user", "content": [{"type": "input_text", "text": "why?"}]}


def result(spelling: Spelling, call_id: str, text: str) -> dict[str, str]:
    if spelling == "tool_call":
        return {"type": "tool_result", "tool_call_id": call_id, "content": text}
    return {"type": "function_call_output", "call_id": call_id, "output": text}


@pytest.mark.promise("BZ-CALL-CONTINUES")
@pytest.mark.parametrize(("spelling", "prefix"), [("function_call", "call"), ("tool_call", "fc")])
async def test_only_new_items_are_sent_after_the_previous_response(spelling: Spelling, prefix: str) -> None:
    async with (
        FakeResponses(LINES, spelling=spelling) as vendor,
        OpenAIResponsesProvider(vendor.base_url, spelling=spelling, continues="previous") as provider,
    ):
        history = await conversed(provider, {})

    assert sent_items(vendor) == [
        (None, [ASKED]),
        (
            "resp_1",
            [result(spelling, f"{prefix}_1_0", "search!"), result(spelling, f"{prefix}_1_1", "list_files!")],
        ),
        ("resp_2", [result(spelling, f"{prefix}_7_0", "search!")]),
    ]
    assert all(heard.body["store"] is False for heard in vendor.requests)
    assert history[-1] == AssistantMessage("Because.")


async def test_whole_and_continued_requests_give_the_same_reply() -> None:
    histories: list[list[Message]] = []
    ways: tuple[Continuation, ...] = ("whole", "previous")
    for way in ways:
        async with (
            FakeResponses(LINES) as vendor,
            OpenAIResponsesProvider(vendor.base_url, continues=way) as provider,
        ):
            histories.append(await conversed(provider, {}))

    assert histories[0] == histories[1]


async def test_another_process_sends_the_whole_conversation() -> None:
    async with (
        FakeResponses(LINES) as vendor,
        OpenAIResponsesProvider(vendor.base_url, continues="previous") as provider,
    ):
        await conversed(provider)

    assert [(previous, len(items)) for previous, items in sent_items(vendor)] == [(None, 1), (None, 7), (None, 9)]


async def test_an_unknown_previous_response_falls_back_to_the_whole() -> None:
    async with (
        FakeResponses(LINES, remembers=False) as vendor,
        OpenAIResponsesProvider(vendor.base_url, continues="previous") as provider,
    ):
        history = await conversed(provider, {})

    assert [(previous, len(items)) for previous, items in sent_items(vendor)] == [
        (None, 1), ("resp_1", 2), (None, 7), (None, 9),
    ]  # fmt: skip
    assert history[-1] == AssistantMessage("Because.")


async def test_messages_after_the_reply_are_sent_and_a_rewritten_history_whole() -> None:
    memo: dict[str, object] = {}
    async with (
        FakeResponses(lambda _: says("ok")) as vendor,
        OpenAIResponsesProvider(vendor.base_url, continues="previous") as provider,
    ):
        history: list[Message] = [UserMessage("why?")]
        reply = await provider.answer(
            Request(model="o3", system="", messages=history, memo=memo), DeltaListener().publish
        )
        history += [reply.message, UserMessage("and?"), UserMessage("a child has news", origin="notice")]
        await provider.answer(Request(model="o3", system="", messages=history, memo=memo), DeltaListener().publish)
        # A summary replaced the history: the response at the vendor belongs to another conversation.
        rewritten = [UserMessage("In short."), AssistantMessage("ok"), UserMessage("so?")]
        await provider.answer(Request(model="o3", system="", messages=rewritten, memo=memo), DeltaListener().publish)

    texts = [(previous, [item["content"][0]["text"] for item in items]) for previous, items in sent_items(vendor)]
    assert texts == [
        (None, ["why?"]),
        ("resp_1", ["and?", "a child has news"]),
        (None, ["In short.", "ok", "so?"]),
    ]


# ---- spellings ------------------------------------------------------------------------------------------------------


def events(item: str, piece: str, *, call_id: bool) -> list[dict[str, Any]]:
    call: dict[str, Any] = {"type": item, "id": "fc_1", "name": "search"} | ({"call_id": "call_1"} if call_id else {})
    return [
        {"type": "response.created", "response": {"id": "resp_1", "model": "o3"}},
        {"type": "response.output_item.added", "output_index": 0, "item": call},
        {"type": f"response.{piece}.delta", "item_id": "fc_1", "output_index": 0, "delta": '{"query":'},
        {"type": f"response.{piece}.delta", "item_id": "fc_1", "output_index": 0, "delta": '"pool"}'},
        {"type": "response.output_item.done", "output_index": 0, "item": call | {"arguments": '{"query":"pool"}'}},
        {"type": "response.completed", "response": {"id": "resp_1"}},
    ]


@pytest.mark.parametrize("item", ["function_call", "tool_call"])
@pytest.mark.parametrize("piece", ["function_call_arguments", "tool_call_arguments"])
@pytest.mark.parametrize(("call_id", "known_as"), [(True, "call_1"), (False, "fc_1")])
def test_calls_are_read_in_either_spelling_and_matched_by_call_id(
    item: str, piece: str, call_id: bool, known_as: str
) -> None:
    reply = decode_reply(*events(item, piece, call_id=call_id))

    assert reply.message == AssistantMessage(calls=(ToolCall("search", '{"query":"pool"}', known_as),))
    assert (reply.stop, reply.response_id, reply.model) == ("calls", "resp_1", "o3")
