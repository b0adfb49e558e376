"""The decoder of the Anthropic wire: the same reply however the stream is split, and errors."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import ProviderError
from retinue.core.messages import (
    AssistantMessage,
    CallDelta,
    Delta,
    Reply,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolCall,
)
from retinue.core.usage import Usage
from retinue.net.sse import EventReader
from retinue.providers.anthropic.response import Decoder
from tests.providers.fakes.anthropic import event


def start(**usage: object) -> bytes:
    message: dict[str, object] = {"id": "msg_7", "type": "message", "role": "assistant", "model": "claude-x"}
    return event("message_start", message=message | ({"usage": usage} if usage else {}))


def begin(index: int, **block: object) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def grow(index: int, **delta: object) -> bytes:
    return event("content_block_delta", index=index, delta=delta)


def end(index: int) -> bytes:
    return event("content_block_stop", index=index)


def stop(reason: str = "end_turn", **usage: object) -> bytes:
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


STOP = event("message_stop")


def words(index: int, *pieces: str) -> bytes:
    grown = b"".join(grow(index, type="text_delta", text=piece) for piece in pieces)
    return begin(index, type="text", text="") + grown + end(index)


def call(index: int, name: str, *pieces: str, call_id: str = "toolu_1") -> bytes:
    grown = b"".join(grow(index, type="input_json_delta", partial_json=piece) for piece in pieces)
    return begin(index, type="tool_use", id=call_id, name=name, input={}) + grown + end(index)


def decoded(*pieces: bytes) -> tuple[Reply, list[Delta]]:
    reader, decoder, deltas = EventReader(), Decoder(), list[Delta]()
    for piece in pieces:
        for payload in reader.feed(piece):
            deltas += decoder.feed(payload)
    for payload in reader.end():
        deltas += decoder.feed(payload)
    return decoder.finish(), deltas


EVERYTHING = b"".join(
    [
        start(input_tokens=10, cache_read_input_tokens=300, cache_creation_input_tokens=40, output_tokens=1),
        event("ping"),
        begin(0, type="thinking", thinking="", signature=""),
        grow(0, type="thinking_delta", thinking="Logs "),
        grow(0, type="thinking_delta", thinking="first. 日本"),
        grow(0, type="signature_delta", signature="EqoB+/=="),
        end(0),
        begin(1, type="redacted_thinking", data="Emw+/=="),
        end(1),
        words(2, "Let me ", "", "look. 🦆\n\n"),
        call(3, "search", "", '{"que', 'ry":"ü"}', call_id="toolu_1"),
        call(4, "list_files", "", call_id="toolu_2"),
        stop("tool_use", output_tokens=55, output_tokens_details={"thinking_tokens": 20}),
        STOP,
    ]
)
EVERYTHING_SAID = Reply(
    message=AssistantMessage(
        "Let me look. 🦆\n\n",
        (ToolCall("search", '{"query":"ü"}', "toolu_1"), ToolCall("list_files", "{}", "toolu_2")),
        (Thinking("Logs first. 日本", "EqoB+/=="), Thinking(opaque="Emw+/==")),
    ),
    usage=Usage(input=350, output=55, cached=300, reasoning=20, written=40),
    stop="calls",
    model="claude-x",
    response_id="msg_7",
)
EVERYTHING_PUBLISHED: list[Delta] = [
    ThinkingDelta("Logs "),
    ThinkingDelta("first. 日本"),
    TextDelta("Let me "),
    TextDelta("look. 🦆\n\n"),
    CallDelta(0, "search", "", "toolu_1"),
    CallDelta(0, "", '{"que'),
    CallDelta(0, "", 'ry":"ü"}'),
    CallDelta(1, "list_files", "", "toolu_2"),
    CallDelta(1, "", "{}"),
]


def test_a_reply_does_not_depend_on_how_the_stream_is_split() -> None:
    for cut in range(len(EVERYTHING) + 1):
        assert decoded(EVERYTHING[:cut], EVERYTHING[cut:]) == (EVERYTHING_SAID, EVERYTHING_PUBLISHED), cut


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_a_reply_is_the_same_byte_by_byte_with_comments_and_newlines(newline: bytes) -> None:
    stream = b": hello\n\n" + EVERYTHING.replace(b"event: ping", b": keep-alive\nid: 4\nretry: 10\nevent: ping")
    stream = stream.replace(b"\n", newline)

    assert decoded(*(stream[i : i + 1] for i in range(len(stream)))) == (EVERYTHING_SAID, EVERYTHING_PUBLISHED)


def test_unknown_events_blocks_and_fields_are_ignored() -> None:
    reply, deltas = decoded(
        start(input_tokens=1, output_tokens=1, server_tool_use={"web_search_requests": 0}, service_tier="standard"),
        event("vertex_event", index="strange", delta=3, message=[1]),
        event("content_block_halfway", index=0),
        event("content_block_delta", index=0, delta={"type": "new_delta", "text": {"not": "a text"}}),
        event("content_block_start", index=7, content_block={"type": "new_block", "text": [], "data": 3}),
        grow(7, type="text_delta", text="not for us"),
        grow(7, type="input_json_delta", partial_json="{}"),
        begin(0, type="text", text="", citations=None, future={"a": 1}),
        grow(0, type="text_delta", text="yes", future=1),
        end(0),
        begin(1, type="tool_use", id="toolu_1", name="search", input={}, caller={"type": "direct"}),
        grow(1, type="input_json_delta", partial_json='{"a":1}'),
        end(1),
        event("message_delta", delta={"stop_reason": "tool_use", "container": None}, usage={"output_tokens": 5}, new=1),
        STOP,
    )

    assert reply.message == AssistantMessage("yes", (ToolCall("search", '{"a":1}', "toolu_1"),))
    assert reply.usage == Usage(input=1, output=5)
    assert deltas == [TextDelta("yes"), CallDelta(0, "search", "", "toolu_1"), CallDelta(0, "", '{"a":1}')]


def test_interleaved_blocks_are_decoded() -> None:
    reply, deltas = decoded(
        start(),
        begin(0, type="tool_use", id="a", name="search", input={}),
        begin(1, type="tool_use", id="b", name="list_files", input={}),
        begin(2, type="text", text=""),
        grow(1, type="input_json_delta", partial_json='{"b":'),
        grow(0, type="input_json_delta", partial_json='{"a":'),
        grow(2, type="text_delta", text="so"),
        grow(0, type="input_json_delta", partial_json="1}"),
        grow(1, type="input_json_delta", partial_json="2}"),
        end(1),
        end(0),
        end(2),
        stop("tool_use"),
        STOP,
    )

    assert reply.message == AssistantMessage(
        "so", (ToolCall("search", '{"a":1}', "a"), ToolCall("list_files", '{"b":2}', "b"))
    )
    assert [delta.index for delta in deltas if isinstance(delta, CallDelta)] == [0, 1, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
    ],
)
def test_stop_reasons_are_mapped_to_stop(reason: str, expected: str) -> None:
    reply, _ = decoded(start(), words(0, "It is bec"), stop(reason), STOP)

    assert (reply.message.text, reply.stop) == ("It is bec", expected)


def test_refusals_and_empty_answers_may_have_no_text() -> None:
    assert decoded(start(), stop("refusal"), STOP)[0].stop == "refusal"
    assert decoded(start(), stop("end_turn"), STOP)[0].message == AssistantMessage()


def test_a_truncated_call_keeps_its_partial_arguments() -> None:
    reply, _ = decoded(start(), call(0, "search", '{"query":"po'), stop("max_tokens"), STOP)

    assert (reply.message.calls, reply.stop) == ((ToolCall("search", '{"query":"po', "toolu_1"),), "length")


def test_arguments_may_come_with_the_block_start() -> None:
    whole = begin(0, type="tool_use", id="t", name="search", input={"query": "a"})
    reply, deltas = decoded(start(), whole, end(0), stop("tool_use"), STOP)

    assert [(made.name, json.loads(made.arguments)) for made in reply.message.calls] == [("search", {"query": "a"})]
    assert [delta.arguments for delta in deltas if isinstance(delta, CallDelta)] == ["", '{"query":"a"}']


def test_a_megabyte_of_arguments_arrives_whole() -> None:
    text = json.dumps({"text": "ä🦆" * 200_000}, ensure_ascii=False)
    pieces = [text[i : i + 5000] for i in range(0, len(text), 5000)]
    stream = start() + call(0, "write", *pieces) + stop("tool_use") + STOP

    reply, _ = decoded(*(stream[i : i + 4096] for i in range(0, len(stream), 4096)))

    assert reply.message.calls == (ToolCall("write", text, "toolu_1"),)


@pytest.mark.parametrize(
    ("first", "last", "usage"),
    [
        ({}, {}, None),
        ({"input_tokens": 9}, {"output_tokens": 3}, Usage(input=9, output=3)),
        ({"input_tokens": 9, "output_tokens": 1}, {"input_tokens": 0, "output_tokens": 3}, Usage(input=9, output=3)),
        ({"input_tokens": 0}, {"input_tokens": 9, "cache_read_input_tokens": 5}, Usage(input=14, cached=5)),
        ({"input_tokens": 9, "cache_read_input_tokens": None}, {}, Usage(input=9)),
        ({"input_tokens": "many"}, {"output_tokens": 3}, Usage(output=3)),
    ],
)
def test_usage_combines_message_start_and_message_delta(
    first: dict[str, object], last: dict[str, object], usage: Usage | None
) -> None:
    assert decoded(start(**first), words(0, "yes"), event("message_delta", usage=last), STOP)[0].usage == usage


def test_a_stop_reason_completes_a_reply_without_message_stop() -> None:
    assert decoded(start(), words(0, "yes"), stop())[0].message.text == "yes"


@pytest.mark.parametrize(
    ("stream", "partial"), [(b"", ""), (event("ping"), ""), (start() + words(0, "It ", "is"), "It is")]
)
def test_a_stream_that_ends_early_is_a_cut_error(stream: bytes, partial: str) -> None:
    with pytest.raises(ProviderError) as caught:
        decoded(stream)

    assert (caught.value.fault, caught.value.partial) == ("cut", partial)


def test_a_lone_surrogate_does_not_cost_the_answer() -> None:
    broken = grow(0, type="text_delta", text="a?b").replace(b"?", b"\\ud83e") + grow(
        0, type="text_delta", text="c?d"
    ).replace(b"?", b"\xff")

    assert decoded(start(), broken, stop(), STOP)[0].message.text == "a?bc\ufffdd"


@pytest.mark.parametrize(
    "payload",
    [b"hello", b"{", b"[]", b'{"type":"content_block_delta","index":"a"}', b'{"type":"message_start","message":1}'],
)
def test_unreadable_events_are_a_cut_error(payload: bytes) -> None:
    with pytest.raises(ProviderError) as caught:
        Decoder().feed(payload)

    assert caught.value.fault == "cut"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(string.printable, max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "input"]), inner),
    max_leaves=5,
)
KINDS = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "error"]
BLOCKS = ["text", "thinking", "tool_use", "redacted_thinking", "text_delta", "input_json_delta", "signature_delta"]
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(BLOCKS) | JSON},
    optional=dict.fromkeys(("text", "thinking", "id", "name", "input"), JSON),
)
GARBAGE = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS) | JSON},
    optional={"index": st.integers(0, 2) | JSON, "message": PARTS | JSON, "usage": JSON, "error": JSON}
    | dict.fromkeys(("delta", "content_block"), PARTS | JSON),
).map(lambda value: json.dumps(value).encode())


@given(st.lists(GARBAGE | st.binary(max_size=40), max_size=8), st.booleans())
def test_any_events_are_a_reply_or_a_provider_error(payloads: list[bytes], whole: bool) -> None:
    decoder = Decoder()
    try:
        for payload in payloads:
            if whole:
                decoder.feed_whole(payload)
            else:
                decoder.feed(payload)
        decoder.finish()
    except ProviderError:
        pass
