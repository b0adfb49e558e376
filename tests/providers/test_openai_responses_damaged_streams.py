"""Responses that are truncated, failed or unreadable are errors, however the stream is split."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import ProviderError, ProviderFault
from retinue.core.messages import AssistantMessage, Reply, Thinking, ToolCall
from retinue.core.usage import Usage
from retinue.net.sse import EventReader
from retinue.providers.openai_responses.response import Decoder
from retinue.testing.fake_chat import DONE, event
from tests.providers.responses_events import (
    COMPLETED,
    CREATED,
    added,
    arguments_delta,
    completed,
    decode_reply,
    done,
    item,
    summary_delta,
    text_delta,
)


@pytest.mark.parametrize(
    ("events", "message", "partial"),
    [
        ([], "the stream ended without an answer", ""),
        ([CREATED], "the stream ended without an answer", ""),
        ([CREATED, text_delta("It is bec")], "the stream ended in the middle of the answer", "It is bec"),
        ([done(item("message", content="all"))], "the stream ended in the middle of the answer", "all"),
    ],
)
def test_a_stream_that_ends_early_is_a_cut_error(events: list[object], message: str, partial: str) -> None:
    with pytest.raises(ProviderError) as cut:
        decode_reply(*events)

    assert (str(cut.value), cut.value.fault, cut.value.partial) == (message, "cut", partial)


def test_an_end_mark_alone_is_a_cut_error() -> None:
    decoder = Decoder()

    assert (decoder.feed(b"[DONE]"), decoder.done) == ((), False)
    with pytest.raises(ProviderError, match="without an answer"):
        decoder.finish()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"nonsense", "an event of the stream cannot be read: nonsense"),
        (b'{"type":"resp', 'an event of the stream cannot be read: {"type":"resp'),
        (b"[1]", "an event of the stream is not what was expected: [1]"),
        (b'{"type":7}', 'an event of the stream is not what was expected: {"type":7}'),
        (
            b'{"type":"response.output_text.delta","delta":7}',
            'an event of the stream is not what was expected: {"type":"response.output_text.delta","delta":7}',
        ),
        (b'{"type":"response.output_item.done","item":7}', "an event of the stream is not what was expected: 7"),
        (b'{"type":"response.completed","response":[]}', "an event of the stream is not what was expected: []"),
        (b"[" * 100_000, "an event of the stream cannot be read: " + "[" * 120),
    ],
)
def test_unreadable_data_is_a_cut_error(payload: bytes, message: str) -> None:
    with pytest.raises(ProviderError) as cut:
        Decoder().feed(payload)

    assert (str(cut.value), cut.value.fault) == (message, "cut")


def test_a_json_object_that_is_no_response_is_an_error() -> None:
    with pytest.raises(ProviderError, match="is not what was expected"):
        Decoder().feed_whole(b'{"object":"list"}')


ERRORS: list[tuple[dict[str, Any], ProviderFault]] = [
    ({"code": "rate_limit_exceeded", "message": "m"}, "rate_limited"),
    ({"code": "server_error", "message": "m"}, "overloaded"),
    ({"code": "invalid_prompt", "message": "m"}, "bad_request"),
    ({"code": "context_length_exceeded", "message": "m"}, "too_long"),
    ({"code": "insufficient_quota", "message": "m"}, "auth"),
    ({"code": "of_a_new_kind", "message": "m"}, "internal"),
]


@pytest.mark.parametrize(("error", "fault"), ERRORS)
@pytest.mark.parametrize("how", ["failed", "error", "inner", "bare"])
def test_an_error_event_raises_with_its_fault(how: str, error: dict[str, Any], fault: ProviderFault) -> None:
    error_events: dict[str, dict[str, Any]] = {
        "failed": {"type": "response.failed", "response": {"status": "failed", "error": error}},
        "error": {"type": "error", "param": None} | error,
        "inner": {"type": "error", "error": error},
        "bare": {"error": error},
    }
    with pytest.raises(ProviderError) as failed:
        decode_reply(CREATED, text_delta("a"), error_events[how])

    assert (str(failed.value), failed.value.fault) == ("m", fault)


def test_failed_responses_with_and_without_an_error_object() -> None:
    with pytest.raises(ProviderError, match="gave up in the middle") as given_up:
        decode_reply(text_delta("a"), {"type": "response.failed", "response": {"error": None}})
    with pytest.raises(ProviderError, match="slow down") as slow:
        Decoder().feed_whole(b'{"error":{"message":"slow down","type":"rate_limit_error"}}')

    assert (given_up.value.fault, slow.value.fault) == ("overloaded", "rate_limited")


# ---- arbitrary splits and data --------------------------------------------------------------------------------------

REASONING = item("reasoning", id="rs_1", summary=[], encrypted_content="gA==🦆")
STREAM = b"".join(
    [
        b": welcome\n\n",
        event(CREATED),
        event(added(item("reasoning", id="rs_1"), output_index=0)),
        event(summary_delta("hm 🦆", item_id="rs_1")).replace(
            b"data", b"event: response.reasoning_summary_text.delta\ndata"
        ),
        event(done(REASONING, output_index=0)),
        event(text_delta("naïve ", item_id="m", output_index=1)).replace(b"\n", b"\r\n"),
        event(text_delta("日本語\u2028", item_id="m", output_index=1)),
        event(added(item("function_call", id="f", call_id="a", name="ls"), output_index=2)),
        event(arguments_delta('{"ä":', item_id="f")),
        event(arguments_delta('"🦆"}', item_id="f")),
        event(completed(usage={"input_tokens": 1, "output_tokens": 2})),
    ]
)


def decode_stream(*chunks: bytes) -> Reply:
    reader, decoder = EventReader(), Decoder()
    for chunk in chunks:
        for payload in reader.feed(chunk):
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
    whole = Reply(
        AssistantMessage(
            "naïve 日本語\u2028",
            (ToolCall("ls", '{"ä":"🦆"}', "a"),),
            (Thinking("hm 🦆", "rs_1", msgspec.json.encode(REASONING).decode()),),
        ),
        Usage(1, 2),
        stop="calls",
        model="m1",
        response_id="r1",
    )

    assert decode_stream(STREAM) == whole
    assert decode_stream(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == whole
    assert {decode_stream(STREAM[:i], STREAM[i:]) for i in range(len(STREAM))} == {whole}


def test_a_stream_truncated_at_any_byte_is_a_cut_error() -> None:
    complete = len(STREAM.rstrip(b"\n"))

    assert {outcome(STREAM[:end]) for end in range(complete)} == {"cut"}
    assert outcome(STREAM[:complete]) == decode_stream(STREAM)


KINDS = st.sampled_from(
    [
        CREATED["type"],
        COMPLETED["type"],
        "response.output_item.added",
        "response.output_item.done",
        "response.output_text.delta",
        "response.function_call_arguments.delta",
        "response.tool_call_arguments.done",
        "response.reasoning_summary_text.delta",
        "response.incomplete",
        "response.failed",
        "error",
        "message",
        "function_call",
        "tool_call",
        "reasoning",
    ]
)
FIELDS = st.sampled_from(
    ["type", "delta", "item", "response", "item_id", "output_index", "id", "call_id", "name", "arguments", "output"]
) | st.sampled_from(["usage", "error", "status", "content", "summary", "text", "incomplete_details", "summary_index"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | KINDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)
EVENTS = st.fixed_dictionaries({"type": KINDS}, optional=dict.fromkeys(("delta", "item", "response"), ANYTHING))


@given(st.lists(ANYTHING | EVENTS, max_size=5))
def test_any_json_is_a_reply_or_a_provider_error(events: list[object]) -> None:
    stream = b"".join(map(event, events)) + DONE

    assert outcome(stream) in get_args(ProviderFault) or isinstance(outcome(stream), Reply)


@given(st.lists(st.binary() | st.sampled_from([b"data: ", b"\n\n", b"[DONE]", b'{"type":"response.completed"}'])))
def test_any_bytes_are_a_reply_or_a_provider_error(chunks: list[bytes]) -> None:
    assert outcome(*chunks) in get_args(ProviderFault) or isinstance(outcome(*chunks), Reply)
