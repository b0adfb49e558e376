"""Responses that are truncated, failed or unreadable are errors, however the stream is split."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import ProviderError, ProviderFault
from retinue.core.messages import AssistantMessage, Reply, ToolCall
from retinue.core.usage import Usage
from retinue.net.sse import EventReader
from retinue.providers.openai_chat.response import Decoder
from retinue.testing.fake_chat import DONE, event
from tests.providers.chat_events import call_piece, calls_event, decode_reply, delta_event, thought


@pytest.mark.parametrize(
    ("events", "message", "partial"),
    [
        ([], "the stream ended without an answer", ""),
        ([{"choices": None, "usage": {"prompt_tokens": 1}}], "the stream ended without an answer", ""),
        ([delta_event(content="It is bec")], "the stream ended in the middle of the answer", "It is bec"),
    ],
)
def test_a_stream_that_ends_early_is_a_cut_error(events: list[object], message: str, partial: str) -> None:
    with pytest.raises(ProviderError) as cut:
        decode_reply(*events, done=False)

    assert (str(cut.value), cut.value.fault, cut.value.partial) == (message, "cut", partial)


def test_an_end_mark_alone_is_a_cut_error() -> None:
    with pytest.raises(ProviderError, match="without an answer"):
        decode_reply()


def test_a_finish_reason_completes_a_reply_without_an_end_mark() -> None:
    assert decode_reply(delta_event("stop", content="a"), done=False) == Reply(
        AssistantMessage("a"), usage=None, model="m1", response_id="r1"
    )


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"nonsense", "an event of the stream cannot be read: nonsense"),
        (b'{"choices":[{"del', 'an event of the stream cannot be read: {"choices":[{"del'),
        (b"[1]", "an event of the stream is not what was expected: [1]"),
        (b'{"choices":7}', 'an event of the stream is not what was expected: {"choices":7}'),
        (b"[" * 100_000, "an event of the stream cannot be read: " + "[" * 120),
    ],
)
def test_unreadable_data_is_a_cut_error(payload: bytes, message: str) -> None:
    with pytest.raises(ProviderError) as cut:
        Decoder().feed(payload)

    assert (str(cut.value), cut.value.fault) == (message, "cut")


@pytest.mark.parametrize(
    ("error", "fault", "status"),
    [
        ({"message": "m", "type": "rate_limit_exceeded"}, "rate_limited", None),
        ({"message": "m", "code": 429}, "rate_limited", 429),
        ({"message": "m", "code": "429"}, "rate_limited", 429),
        ({"message": "m", "type": "overloaded_error"}, "overloaded", None),
        ({"message": "m", "type": "server_error", "code": None}, "overloaded", None),
        ({"message": "m", "code": 502}, "overloaded", 502),
        ({"message": "m", "status": "UNAVAILABLE", "code": 503}, "overloaded", 503),
        ({"message": "The model is overloaded"}, "overloaded", None),
        ({"message": "Rate limit reached for requests"}, "rate_limited", None),
        ({"message": "m", "type": "invalid_request_error"}, "bad_request", None),
        ({"message": "m", "code": "context_length_exceeded"}, "too_long", None),
        ({"message": "m", "code": "content_filter"}, "refused", None),
        ({"message": "m", "type": "authentication_error"}, "auth", None),
        ({"message": "m", "type": "insufficient_quota"}, "auth", None),
        ({"message": "m", "type": "of a new kind"}, "internal", None),
    ],
)
def test_an_error_event_raises_with_its_fault(
    error: dict[str, object], fault: ProviderFault, status: int | None
) -> None:
    with pytest.raises(ProviderError) as raised:
        decode_reply(delta_event(content="a"), {"error": error})

    assert (str(raised.value), raised.value.fault, raised.value.status) == (error["message"], fault, status)


def test_an_error_event_may_be_a_string_or_empty() -> None:
    with pytest.raises(ProviderError, match=r"^out of memory$"):
        decode_reply({"error": "out of memory"})
    with pytest.raises(ProviderError, match="gave up in the middle") as given_up:
        decode_reply(delta_event("error", content="a"))
    assert given_up.value.fault == "overloaded"


# ---- arbitrary splits and data --------------------------------------------------------------------------------------

STREAM = b"".join(
    [
        b": welcome\n\n",
        event(delta_event(role="assistant", content="")),
        event(delta_event(reasoning_content="hm 🦆")),
        event(delta_event(content="naïve ")).replace(b"\n", b"\r\n"),
        event(delta_event(content="日本語\u2028")),
        event(calls_event(call_piece("ls", '{"ä":', index=0, id="a"))),
        event(calls_event(call_piece(None, '"🦆"}', index=0))),
        event(delta_event("tool_calls")),
        event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}),
        DONE,
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


def test_a_reply_does_not_depend_on_how_the_stream_is_split() -> None:
    whole = Reply(
        AssistantMessage("naïve 日本語\u2028", (ToolCall("ls", '{"ä":"🦆"}', "a"),), (thought("hm 🦆"),)),
        Usage(1, 2),
        stop="calls",
        model="m1",
        response_id="r1",
    )

    assert decode_stream(STREAM) == whole
    assert decode_stream(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == whole
    assert {decode_stream(STREAM[:i], STREAM[i:]) for i in range(len(STREAM))} == {whole}


def outcome(*chunks: bytes) -> Reply | ProviderFault:
    try:
        return decode_stream(*chunks)
    except ProviderError as error:
        return error.fault


def test_a_stream_truncated_before_its_finish_reason_is_a_cut_error() -> None:
    stopped = STREAM.index(b'"tool_calls"}]}') + len(b'"tool_calls"}]}')
    found = [outcome(STREAM[:end]) for end in range(len(STREAM))]

    assert found[:stopped] == ["cut"] * stopped
    assert {reply.message for reply in found[stopped:] if isinstance(reply, Reply)} == {decode_stream(STREAM).message}
    assert "cut" not in found[stopped:]


FIELDS = st.sampled_from(
    ["choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "index", "id", "error"]
) | st.sampled_from(["usage", "finish_reason", "reasoning", "prompt_tokens", "refusal", "model", "type", "code"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["stop", "{}", "ls"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(ANYTHING, max_size=5))
def test_any_json_is_a_reply_or_a_provider_error(events: list[object]) -> None:
    stream = b"".join(map(event, events)) + DONE

    assert outcome(stream) in get_args(ProviderFault) or isinstance(outcome(stream), Reply)


@given(st.lists(st.binary() | st.sampled_from([b"data: ", b"\n\n", b"[DONE]", b'{"choices":[{"delta":{}}]}'])))
def test_any_bytes_are_a_reply_or_a_provider_error(chunks: list[bytes]) -> None:
    assert outcome(*chunks) in get_args(ProviderFault) or isinstance(outcome(*chunks), Reply)
