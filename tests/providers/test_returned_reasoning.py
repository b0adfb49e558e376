"""The chat wire over HTTP: thinking goes back in the form in which the server sent it, and call ids as they came."""

from collections.abc import Callable
from typing import Any

import pytest

from retinue.core.messages import AssistantMessage, Message, ToolMessage, UserMessage
from retinue.core.ports import Request
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.testing.contracts.provider import TOOLS, DeltaListener
from retinue.testing.fake_chat import DONE, EVENTS, error_response, event
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.providers.chat_events import call_piece, calls_event, delta_event

Body = dict[str, Any]


def answered(*events: Body, finish: str = "tool_calls") -> FakeResponse:
    return FakeResponse(headers=EVENTS, pieces=(*map(event, (*events, delta_event(finish))), DONE))


def called(call_id: str = "call_1", **fields: Any) -> Body:
    return calls_event(call_piece("search", "{}", index=0, id=call_id, **fields))


async def conversed(
    *answers: FakeResponse, reject: Callable[[Body], FakeResponse | None] = lambda body: None
) -> tuple[list[AssistantMessage], list[Body]]:
    """The replies of a conversation with these answers, and all requests; `reject` may refuse one with an error."""

    def respond(heard: ReceivedRequest) -> FakeResponse:
        replies = sum(message["role"] == "assistant" for message in heard.body["messages"])
        return reject(heard.body) or answers[replies]

    history: list[Message] = [UserMessage("why?")]
    memo: dict[str, object] = {}
    replies: list[AssistantMessage] = []
    async with FakeServer(respond) as server, OpenAIChatProvider(f"{server.url}/v1") as provider:
        for _ in answers:
            request = Request(model="m", system="", messages=history, tools=TOOLS, memo=memo)
            reply = (await provider.answer(request, DeltaListener().publish)).message
            replies.append(reply)
            history += [reply, *(ToolMessage(call.name, "3 lines", call.id) for call in reply.calls)]
            history += [] if reply.calls else [UserMessage("go on")]
    return replies, [heard.body for heard in server.requests]


def replies_in(body: Body) -> list[Body]:
    return [message for message in body["messages"] if message["role"] == "assistant"]


END = answered(delta_event(content="Because."), finish="stop")
CALL = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{}"}}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_goes_back_in_the_field_it_came_in(field: str) -> None:
    first = answered(delta_event(**{field: "Hm, "}), delta_event(**{field: "the pool."}), called())

    _, bodies = await conversed(first, END)

    assert replies_in(bodies[-1]) == [
        {"role": "assistant", "content": None, field: "Hm, the pool.", "tool_calls": [CALL]}
    ]


async def test_a_reply_without_reasoning_has_the_field_once_the_server_has_sent_it() -> None:
    first = answered(delta_event(reasoning_content="Hm."), called("call_1"))
    second = answered(called("call_2"))

    _, bodies = await conversed(first, second, END)

    assert [reply["reasoning_content"] for reply in replies_in(bodies[-1])] == ["Hm.", ""]


async def test_nothing_is_added_for_a_server_that_sends_no_reasoning() -> None:
    _, bodies = await conversed(answered(called()), END)

    assert replies_in(bodies[-1]) == [{"role": "assistant", "content": None, "tool_calls": [CALL]}]


async def test_reasoning_details_go_back_as_whole_blocks() -> None:
    text = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    encrypted = {"type": "reasoning.encrypted", "data": "gAAA", "id": "rs_1", "index": 1}
    first = answered(
        delta_event(reasoning="Hm, ", reasoning_details=[text | {"text": "Hm, "}]),
        delta_event(reasoning="the pool.", reasoning_details=[text | {"text": "the pool."}]),
        delta_event(reasoning_details=[text | {"text": "", "signature": "c2ln"}]),
        delta_event(reasoning_details=[encrypted]),
        delta_event(reasoning_details=None),
        called(),
    )

    replies, bodies = await conversed(first, END)

    assert replies[0].thinking[0].text == "Hm, the pool."
    assert replies_in(bodies[-1]) == [
        {
            "role": "assistant",
            "content": None,
            "reasoning_details": [text | {"text": "Hm, the pool.", "signature": "c2ln"}, encrypted],
            "tool_calls": [CALL],
        }
    ]


async def test_details_of_a_reply_without_calls_go_back_too() -> None:
    details = [{"type": "reasoning.summary", "summary": "Hm."}]
    first = answered(delta_event(content="Well.", reasoning_details=details), finish="stop")

    replies, bodies = await conversed(first, END)

    assert replies[0].thinking[0].text == "Hm."
    assert replies_in(bodies[-1]) == [{"role": "assistant", "content": "Well.", "reasoning_details": details}]


async def test_thinking_blocks_go_back_with_their_signature() -> None:
    block = {"type": "thinking", "thinking": "", "signature": ""}
    first = answered(
        delta_event(reasoning_content="Hm, ", thinking_blocks=[block | {"thinking": "Hm, "}]),
        delta_event(reasoning_content="the pool.", thinking_blocks=[block | {"thinking": "the pool."}]),
        delta_event(thinking_blocks=[{"type": "thinking", "thinking": "Hm, the pool.", "signature": "c2ln"}]),
        delta_event(thinking_blocks=[{"type": "redacted_thinking", "data": "gAAA"}]),
        called(),
    )

    replies, bodies = await conversed(first, END)

    assert replies[0].thinking[0].text == "Hm, the pool."
    assert replies_in(bodies[-1])[0]["thinking_blocks"] == [
        {"type": "thinking", "thinking": "Hm, the pool.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "gAAA"},
    ]


async def test_a_thought_signature_of_google_stays_on_its_call() -> None:
    extra = {"google": {"thought_signature": "c2ln"}}
    first = answered(
        calls_event(call_piece("search", "{}", index=0, id="a", extra_content=extra)),
        calls_event(call_piece("search", "{}", index=1, id="b")),
    )

    _, bodies = await conversed(first, END)

    (reply,) = replies_in(bodies[-1])
    assert [call.get("extra_content") for call in reply["tool_calls"]] == [extra, None]


REJECTIONS = [
    ("reasoning_content", "'messages.1' : property 'reasoning_content' is unsupported, did you mean 'reasoning'?"),
    ("reasoning", "'messages.1' : property 'reasoning' is unsupported"),
    ("reasoning_details", "messages.1.reasoning_details: Extra inputs are not permitted"),
    ("thinking_blocks", "Unknown name \"thinking_blocks\" at 'messages[1]': Cannot find field."),
]


@pytest.mark.parametrize(("field", "message"), REJECTIONS)
async def test_a_rejected_field_is_left_out_from_then_on(field: str, message: str) -> None:
    value: Any = (
        [{"type": "thinking", "thinking": "Hm."}] if field in ("reasoning_details", "thinking_blocks") else "Hm."
    )
    first, second = (answered(delta_event(**{field: value}), called(f"call_{n}")) for n in (1, 2))

    def reject(body: Body) -> FakeResponse | None:
        return error_response(400, message) if any(field in reply for reply in replies_in(body)) else None

    _, bodies = await conversed(first, second, END, reject=reject)

    sent = [[field in reply for reply in replies_in(body)] for body in bodies]
    assert sent == [[], [True], [False], [False, False]]


async def test_a_rejected_thought_signature_is_left_out() -> None:
    def reject(body: Body) -> FakeResponse | None:
        has_extra = any("extra_content" in call for reply in replies_in(body) for call in reply["tool_calls"])
        return error_response(400, "property 'extra_content' is unsupported") if has_extra else None

    _, bodies = await conversed(answered(called(extra_content={"google": {}})), END, reject=reject)

    assert replies_in(bodies[-1]) == [{"role": "assistant", "content": None, "tool_calls": [CALL]}]


# ---- call ids -------------------------------------------------------------------------------------------------------


def ids_in(body: Body) -> list[str]:
    made = [call["id"] for reply in replies_in(body) for call in reply["tool_calls"]]
    assert made == [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
    return made


@pytest.mark.parametrize("call_id", ["functions.search:0", "x" * 80, "größe"])
async def test_a_call_id_goes_back_as_it_came(call_id: str) -> None:
    _, bodies = await conversed(answered(called(call_id)), END)

    assert ids_in(bodies[-1]) == [call_id]


@pytest.mark.parametrize(
    ("status", "message", "details"),
    [
        (400, "Tool call id was xxx but must be a-z, A-Z, 0-9, with a length of 9.", {}),
        (
            400,
            "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40.",
            {"param": "messages[1].tool_calls[0].id", "code": "string_above_max_length"},
        ),
        (422, "tool_call_id: String should have at most 40 characters", {}),
    ],
)
async def test_call_ids_are_rewritten_after_a_refusal(status: int, message: str, details: dict[str, str]) -> None:
    first, second = answered(called("x" * 41)), answered(called("abc123DEF"))

    def reject(body: Body) -> FakeResponse | None:
        is_rejected = any(len(call_id) != 9 for call_id in ids_in(body))
        return error_response(status, message, **details) if is_rejected else None

    _, bodies = await conversed(first, second, END, reject=reject)

    assert [ids_in(body) for body in bodies] == [[], ["x" * 41], ["000010000"], ["000010000", "abc123DEF"]]
