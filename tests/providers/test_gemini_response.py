"""The decoder of the Gemini wire, and the errors for truncated, failed and unreadable responses."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import ProviderError, ProviderFault
from retinue.core.messages import (
    AssistantMessage,
    CallDelta,
    Reply,
    Stop,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolCall,
)
from retinue.core.usage import Usage
from retinue.net.sse import EventReader
from retinue.providers.gemini.response import Decoder
from retinue.testing.fake_chat import DONE, event
from tests.providers.gemini_events import STOP, call, chunk, decode_events, decode_reply, text


def test_thinking_text_calls_and_usage_make_one_reply() -> None:
    reply, deltas = decode_events(
        chunk(text("Hm, ", thought=True), responseId="r1", modelVersion="m1", usageMetadata={"promptTokenCount": 9}),
        chunk(text("the pool.", thought=True)),
        chunk(text("Let me ")),
        chunk(text("look.")),
        chunk(call("search", {"query": "pool 🦆"}, thoughtSignature="c2ln"), call("ls")),
        chunk(
            text(""),
            finish="STOP",
            usageMetadata={
                "promptTokenCount": 30,
                "candidatesTokenCount": 7,
                "thoughtsTokenCount": 5,
                "cachedContentTokenCount": 20,
                "totalTokenCount": 42,
            },
        ),
    )

    assert reply == Reply(
        message=AssistantMessage(
            "Let me look.",
            (ToolCall("search", '{"query":"pool 🦆"}'), ToolCall("ls")),
            (
                Thinking("Hm, the pool."),
                Thinking("", "c2ln", '{"type":"gemini.signature","on":"call"}'),
            ),
        ),
        usage=Usage(input=30, output=12, cached=20, reasoning=5),
        stop="calls",
        model="m1",
        response_id="r1",
    )
    assert deltas == [
        ThinkingDelta("Hm, "),
        ThinkingDelta("the pool."),
        TextDelta("Let me "),
        TextDelta("look."),
        CallDelta(0, "search", '{"query":"pool 🦆"}'),
        CallDelta(1, "ls", "{}"),
    ]


def test_calls_keep_the_arguments_of_the_model() -> None:
    decoder = Decoder()
    decoder.feed(
        b'{"candidates":[{"content":{"parts":[{"functionCall":{"id":"7","name":"ls","args":{ "a": [1.0] }}}]}}]}'
    )
    decoder.feed(msgspec.json.encode(chunk(call("rm", None), {"functionCall": {"args": None}}, finish="STOP")))

    assert decoder.finish().message.calls == (ToolCall("ls", '{ "a": [1.0] }', "7"), ToolCall("rm"), ToolCall(""))


def test_a_million_characters_of_arguments() -> None:
    args = {"text": "}{ naïve 🦆 " * 100_000}

    (made,) = decode_reply(chunk(call("write", args), finish="STOP")).message.calls
    assert msgspec.json.decode(made.arguments) == args


def test_each_signature_is_stored_with_its_position() -> None:
    reply = decode_reply(
        chunk(text("Hm.", thought=True), text("So.", thought=True, thoughtSignature="a")),
        chunk(text("Aha.", thought=True)),
        chunk(text("naïve "), text("🦆 ", thoughtSignature="b"), text("yes")),
        chunk(call("ls"), call("rm", thoughtSignature="c")),
        chunk(text("", thoughtSignature="d"), finish="STOP"),
    )

    assert reply.message == AssistantMessage(
        "naïve 🦆 yes",
        (ToolCall("ls"), ToolCall("rm")),
        (
            Thinking("Hm."),
            Thinking("So.", "a", '{"type":"gemini.signature","on":"thought"}'),
            Thinking("Aha."),
            Thinking("", "b", '{"type":"gemini.signature","on":"text","start":6,"end":8}'),
            Thinking("", "c", '{"type":"gemini.signature","on":"call","start":1}'),
            Thinking("", "d", '{"type":"gemini.signature","on":"text","start":11,"end":11}'),
        ),
    )


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        ("STOP", "end"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "refusal"),
        ("RECITATION", "refusal"),
        ("PROHIBITED_CONTENT", "refusal"),
        ("BLOCKLIST", "refusal"),
        ("SPII", "refusal"),
    ],
)
def test_finish_reasons_are_mapped_to_stop(finish: str, stop: Stop) -> None:
    assert decode_reply(chunk(text("a")), chunk(finish=finish)).stop == stop


def test_a_blocked_prompt_is_a_refusal_without_text() -> None:
    blocked = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 4}}

    assert decode_reply(blocked) == Reply(AssistantMessage(), Usage(4), stop="refusal", model="asked")


def test_a_response_without_content_is_an_empty_reply() -> None:
    assert decode_reply(STOP) == Reply(AssistantMessage(), None, model="asked")
    assert (
        decode_reply({"candidates": [{"content": {"role": "model"}, "finishReason": "STOP"}]}).message
        == AssistantMessage()
    )


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"promptTokenCount": 3, "candidatesTokenCount": 2}, Usage(3, 2)),
        ({"promptTokenCount": 3}, Usage(3, 0)),
        ({"promptTokenCount": 3, "toolUsePromptTokenCount": 4, "thoughtsTokenCount": 5}, Usage(7, 5, 0, 5)),
        ({"promptTokenCount": -3, "candidatesTokenCount": 2, "cachedContentTokenCount": 9}, Usage(0, 2)),
        ({}, None),
        ({"promptTokenCount": "many"}, None),
        (None, None),
    ],
)
def test_usage_is_read_as_far_as_it_was_counted(usage: object, expected: Usage | None) -> None:
    assert decode_reply(chunk(text("a"), finish="STOP", usageMetadata=usage)).usage == expected


def test_unknown_fields_parts_and_candidates_are_ignored() -> None:
    reply = decode_reply(
        {},
        {"candidates": [], "promptFeedback": {"safetyRatings": [], "blockReason": None}},
        {"candidates": [{"index": 1, "content": {"parts": [text("another answer")]}}]},
        chunk({"inlineData": {"data": ""}}, {"newKindOfPart": {}}, text("a", videoMetadata={}), createTime="now"),
        {"candidates": [{"finishReason": "STOP", "groundingMetadata": {}, "citationMetadata": {"x": [1]}}]},
    )

    assert reply == Reply(AssistantMessage("a"), None, model="asked")


def test_events_after_the_end_are_ignored() -> None:
    decoder = Decoder()
    decoder.feed(msgspec.json.encode(chunk(text("a"))))

    assert (decoder.feed(b" "), decoder.done, decoder.feed(b"[DONE]"), decoder.feed(b"nonsense")) == ((), False, (), ())
    assert decoder.finish().message.text == "a"


def test_a_lone_surrogate_costs_one_character() -> None:
    decoder = Decoder()
    deltas = [
        *decoder.feed(b'{"candidates":[{"content":{"parts":[{"text":"a\\ud83d"}]}}]}'),
        *decoder.feed(b'{"candidates":[{"content":{"parts":[{"text":"b\xff"}]}}]}'),
    ]

    assert deltas == [TextDelta("a?"), TextDelta("b\ufffd")]


# ---- truncated, failed and unreadable responses ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "message", "partial"),
    [
        ([], "the stream ended without an answer", ""),
        ([{"usageMetadata": {"promptTokenCount": 1}}], "the stream ended without an answer", ""),
        ([chunk(text("It is bec"))], "the stream ended in the middle of the answer", "It is bec"),
        (
            [chunk(text("a"), finish="FINISH_REASON_UNSPECIFIED")],
            "the stream ended in the middle of the answer",
            "a",
        ),
    ],
)
def test_a_stream_that_ends_early_is_a_cut_error(events: list[object], message: str, partial: str) -> None:
    with pytest.raises(ProviderError) as cut:
        decode_reply(*events)

    assert (str(cut.value), cut.value.fault, cut.value.partial) == (message, "cut", partial)


@pytest.mark.parametrize(
    ("finish", "fault"),
    [
        ("MALFORMED_FUNCTION_CALL", "cut"),
        ("UNEXPECTED_TOOL_CALL", "cut"),
        ("OTHER", "cut"),
        ("MISSING_THOUGHT_SIGNATURE", "bad_request"),
    ],
)
def test_an_answer_given_up_by_the_vendor_is_an_error(finish: str, fault: ProviderFault) -> None:
    end = {"candidates": [{"finishReason": finish, "finishMessage": "Malformed function call: ls("}]}
    with pytest.raises(ProviderError) as given_up:
        decode_reply(chunk(text("Let me"), call("ls")), end)

    assert str(given_up.value) == f"the server gave up the model's answer ({finish}): Malformed function call: ls("
    assert (given_up.value.fault, given_up.value.partial) == (fault, "Let me")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"nonsense", "an event of the stream cannot be read: nonsense"),
        (b'{"candidates":[{"con', 'an event of the stream cannot be read: {"candidates":[{"con'),
        (b"[1]", "an event of the stream is not what was expected: [1]"),
        (b'{"candidates":7}', 'an event of the stream is not what was expected: {"candidates":7}'),
        (b"[" * 100_000, "an event of the stream cannot be read: " + "[" * 120),
    ],
)
def test_unreadable_data_is_a_cut_error(payload: bytes, message: str) -> None:
    with pytest.raises(ProviderError) as cut:
        Decoder().feed(payload)

    assert (str(cut.value), cut.value.fault) == (message, "cut")


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ({"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}, "rate_limited"),
        ({"code": 503, "message": "m", "status": "UNAVAILABLE"}, "overloaded"),
        ({"code": 500, "message": "m", "status": "INTERNAL"}, "overloaded"),
        ({"code": 504, "message": "m", "status": "DEADLINE_EXCEEDED"}, "timeout"),
        ({"code": 400, "message": "m", "status": "INVALID_ARGUMENT"}, "bad_request"),
        ({"code": 403, "message": "m", "status": "PERMISSION_DENIED"}, "auth"),
    ],
)
def test_an_error_event_raises_with_its_fault(error: dict[str, Any], fault: ProviderFault) -> None:
    with pytest.raises(ProviderError) as expected:
        decode_reply(chunk(text("a")), {"error": error})

    assert (str(expected.value), expected.value.fault, expected.value.status) == ("m", fault, error["code"])


# ---- arbitrary splits and data --------------------------------------------------------------------------------------

STREAM = b"".join(
    [
        b": welcome\n\n",
        event(chunk(text("hm 🦆", thought=True), responseId="r1")),
        event(chunk(text("naïve "))).replace(b"\n", b"\r\n"),
        event(chunk(text("日本語\u2028", thoughtSignature="c2ln"))),
        event(chunk(call("ls", {"ä": "🦆"}))),
        event(STOP | {"usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2}}),
    ]
)


def decode_stream(*chunks: bytes) -> Reply:
    reader, decoder = EventReader(), Decoder()
    for piece in chunks:
        for payload in reader.feed(piece):
            decoder.feed(payload)
    for payload in reader.end():
        decoder.feed(payload)
    return decoder.finish()


def outcome(*chunks: bytes) -> Reply | ProviderFault:
    try:
        return decode_stream(*chunks)
    except ProviderError as error:
        return error.fault


def test_a_reply_does_not_depend_on_how_the_stream_is_split() -> None:
    signature = Thinking("", "c2ln", '{"type":"gemini.signature","on":"text","start":6,"end":10}')
    whole = Reply(
        AssistantMessage("naïve 日本語\u2028", (ToolCall("ls", '{"ä":"🦆"}'),), (Thinking("hm 🦆"), signature)),
        Usage(1, 2),
        stop="calls",
        response_id="r1",
    )

    assert decode_stream(STREAM) == whole
    assert decode_stream(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == whole
    assert {decode_stream(STREAM[:i], STREAM[i:]) for i in range(len(STREAM))} == {whole}


def test_a_stream_truncated_at_any_byte_is_a_cut_error() -> None:
    complete = len(STREAM.rstrip(b"\n"))

    assert {outcome(STREAM[:end]) for end in range(complete)} == {"cut"}
    assert outcome(STREAM[:complete]) == decode_stream(STREAM)


FIELDS = st.sampled_from(
    ["candidates", "content", "parts", "text", "thought", "thoughtSignature", "functionCall", "name", "args", "id"]
) | st.sampled_from(["finishReason", "index", "usageMetadata", "promptTokenCount", "promptFeedback", "error", "code"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["STOP", "OTHER", "c2ln"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)
PARTS = st.lists(st.dictionaries(FIELDS, ANYTHING, max_size=3), max_size=3).map(lambda found: chunk(*found))


@given(st.lists(ANYTHING | PARTS, max_size=5))
def test_any_json_is_a_reply_or_a_provider_error(events: list[object]) -> None:
    stream = b"".join(map(event, events)) + DONE

    assert outcome(stream) in get_args(ProviderFault) or isinstance(outcome(stream), Reply)


@given(st.lists(st.binary() | st.sampled_from([b"data: ", b"\n\n", b"[DONE]", event(STOP), event(chunk(text("a")))])))
def test_any_bytes_are_a_reply_or_a_provider_error(chunks: list[bytes]) -> None:
    assert outcome(*chunks) in get_args(ProviderFault) or isinstance(outcome(*chunks), Reply)
