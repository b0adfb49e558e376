"""An answer that is cut, wrong or nonsense is an error that says so, wherever the stream is split."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import ProviderError, ProviderFault
from retinue.core.messages import AssistantMessage, Reply, Thinking, ToolCall
from retinue.core.usage import Usage
from retinue.net.sse import EventReader
from retinue.providers.openai_chat.provider import Decoder
from retinue.testing.fake_chat import DONE, event
from tests.providers.chat_events import calling, decoded, part, saying


@pytest.mark.parametrize(
    ("events", "message", "partial"),
    [
        ([], "the stream ended without an answer", ""),
        ([{"choices": None, "usage": {"prompt_tokens": 1}}], "the stream ended without an answer", ""),
        ([saying(content="It is bec")], "the stream ended in the middle of the answer", "It is bec"),
    ],
)
def test_a_stream_that_ends_early_is_cut(events: list[object], message: str, partial: str) -> None:
    with pytest.raises(ProviderError) as cut:
        decoded(*events, done=False)

    assert (str(cut.value), cut.value.fault, cut.value.partial) == (message, "cut", partial)


def test_a_stream_of_nothing_but_its_end_is_cut() -> None:
    with pytest.raises(ProviderError, match="without an answer"):
        decoded()


def test_an_answer_that_said_why_it_stopped_is_whole_without_the_last_word() -> None:
    assert decoded(saying("stop", content="a"), done=False) == Reply(
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
def test_nonsense_counts_as_a_broken_connection(payload: bytes, message: str) -> None:
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
def test_an_error_inside_the_stream(error: dict[str, object], fault: ProviderFault, status: int | None) -> None:
    with pytest.raises(ProviderError) as told:
        decoded(saying(content="a"), {"error": error})

    assert (str(told.value), told.value.fault, told.value.status) == (error["message"], fault, status)


def test_an_error_may_be_a_mere_word_or_nothing_at_all() -> None:
    with pytest.raises(ProviderError, match=r"^out of memory$"):
        decoded({"error": "out of memory"})
    with pytest.raises(ProviderError, match="gave up in the middle") as given_up:
        decoded(saying("error", content="a"))
    assert given_up.value.fault == "overloaded"


# ---- however it is cut, and whatever it is --------------------------------------------------------------------------

STREAM = b"".join(
    [
        b": welcome\n\n",
        event(saying(role="assistant", content="")),
        event(saying(reasoning_content="hm 🦆")),
        event(saying(content="naïve ")).replace(b"\n", b"\r\n"),
        event(saying(content="日本語\u2028")),
        event(calling(part("ls", '{"ä":', index=0, id="a"))),
        event(calling(part(None, '"🦆"}', index=0))),
        event(saying("tool_calls")),
        event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}),
        DONE,
    ]
)


def through(*chunks: bytes) -> Reply:
    reader, decoder = EventReader(), Decoder()
    for chunk in chunks:
        for payload in reader.feed(chunk):
            decoder.feed(payload)
    for payload in reader.end():
        decoder.feed(payload)
    return decoder.finish()


def test_an_answer_is_the_same_wherever_the_stream_is_cut() -> None:
    whole = Reply(
        AssistantMessage("naïve 日本語\u2028", (ToolCall("ls", '{"ä":"🦆"}', "a"),), (Thinking("hm 🦆"),)),
        Usage(1, 2),
        stop="calls",
        model="m1",
        response_id="r1",
    )

    assert through(STREAM) == whole
    assert through(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == whole
    assert {through(STREAM[:i], STREAM[i:]) for i in range(len(STREAM))} == {whole}


def outcome(*chunks: bytes) -> Reply | ProviderFault:
    try:
        return through(*chunks)
    except ProviderError as error:
        return error.fault


def test_a_stream_that_stops_at_any_byte_is_cut_until_it_has_said_why_it_stopped() -> None:
    stopped = STREAM.index(b'"tool_calls"}]}') + len(b'"tool_calls"}]}')
    found = [outcome(STREAM[:end]) for end in range(len(STREAM))]

    assert found[:stopped] == ["cut"] * stopped
    assert {reply.message for reply in found[stopped:] if isinstance(reply, Reply)} == {through(STREAM).message}
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
def test_anything_in_json_is_a_reply_or_a_provider_error(events: list[object]) -> None:
    stream = b"".join(map(event, events)) + DONE

    assert outcome(stream) in get_args(ProviderFault) or isinstance(outcome(stream), Reply)


@given(st.lists(st.binary() | st.sampled_from([b"data: ", b"\n\n", b"[DONE]", b'{"choices":[{"delta":{}}]}'])))
def test_any_bytes_are_a_reply_or_a_provider_error(chunks: list[bytes]) -> None:
    assert outcome(*chunks) in get_args(ProviderFault) or isinstance(outcome(*chunks), Reply)
