"""The decoder of the chat wire, with the deviations of many servers."""

from typing import Any

import msgspec
import pytest

from retinue.core.messages import (
    AssistantMessage,
    CallDelta,
    Reply,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolCall,
)
from retinue.core.usage import Usage
from retinue.providers.openai_chat.response import Decoder
from tests.providers.chat_events import (
    STOP,
    call_piece,
    calls,
    calls_event,
    decode_events,
    decode_reply,
    delta_event,
    thought,
)


def test_text_thinking_calls_and_usage_make_one_reply() -> None:
    reply, deltas = decode_events(
        delta_event(role="assistant", content=""),
        delta_event(reasoning_content="Hm, "),
        delta_event(reasoning_content="the pool.", content=None),
        delta_event(content="Let me "),
        delta_event(content="look."),
        calls_event(call_piece("search", "", index=0, id="a", type="function")),
        calls_event(call_piece(None, '{"query":', index=0)),
        calls_event(call_piece(None, '"pool"}', index=0)),
        delta_event("tool_calls"),
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 30,
                "completion_tokens": 12,
                "total_tokens": 42,
                "prompt_tokens_details": {"cached_tokens": 20},
                "completion_tokens_details": {"reasoning_tokens": 5},
            },
        },
    )

    assert reply == Reply(
        message=AssistantMessage(
            "Let me look.", (ToolCall("search", '{"query":"pool"}', "a"),), (thought("Hm, the pool."),)
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
        CallDelta(0, "search", "", "a"),
        CallDelta(0, "", '{"query":'),
        CallDelta(0, "", '"pool"}'),
    ]


# ---- calls ----------------------------------------------------------------------------------------------------------


def test_interleaved_calls_are_separated_by_index() -> None:
    assert calls(
        calls_event(call_piece("one", "", index=0, id="a"), call_piece("two", "", index=1, id="b")),
        calls_event(call_piece(None, '{"x"', index=1)),
        calls_event(call_piece(None, '{"y"', index=0)),
        calls_event(call_piece(None, ":1}", index=1), call_piece(None, ":2}", index=0)),
    ) == [("a", "one", '{"y":2}'), ("b", "two", '{"x":1}')]


def test_name_and_id_repeated_in_every_piece_count_once() -> None:
    assert calls(
        calls_event(call_piece("ls", "", index=0, id="0")),
        calls_event(call_piece("ls", '{"a"', index=0, id="0")),
        calls_event(call_piece("ls", ":{}}", index=0, id="0")),
    ) == [("0", "ls", '{"a":{}}')]


def test_whole_calls_in_one_event() -> None:
    assert calls(calls_event(call_piece("a", "{}", index=0, id="1"), call_piece("b", '{"x":1}', index=1, id="2"))) == [
        ("1", "a", "{}"),
        ("2", "b", '{"x":1}'),
    ]


@pytest.mark.parametrize("others", [{}, {"index": 0}, {"id": ""}, {"id": None, "index": None}])
def test_whole_calls_in_one_event_without_ids_and_indexes(others: dict[str, Any]) -> None:
    assert calls(
        calls_event(call_piece("ls", "{}", **others), call_piece("ls", "{}", **others), call_piece("rm", "", **others))
    ) == [
        ("", "ls", "{}"),
        ("", "ls", "{}"),
        ("", "rm", ""),
    ]


@pytest.mark.parametrize(
    "others",
    [
        ({"index": 0, "id": "a"}, {"index": 0, "id": "b"}),
        ({"id": "a"}, {"id": "b"}),
        ({"index": 0, "id": "a"}, {"index": 0, "id": "a"}),
        ({"index": 0}, {"index": 0}),
        ({}, {}),
    ],
    ids=str,
)
def test_successive_whole_calls_with_any_numbering(
    others: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    first, second = others
    made = calls(calls_event(call_piece("ls", '{"a":1}', **first)), calls_event(call_piece("ls", '{"a":2}', **second)))

    assert [call[1:] for call in made] == [("ls", '{"a":1}'), ("ls", '{"a":2}')]


def test_pieces_without_index_continue_the_call_of_their_id_or_the_last() -> None:
    assert calls(
        calls_event(call_piece("one", "", id="a")),
        calls_event(call_piece(None, '{"x"')),
        calls_event(call_piece("two", '{"y"', id="b")),
        calls_event(call_piece(None, ":2}")),
        calls_event(call_piece(None, ":1}", id="a")),
    ) == [("a", "one", '{"x":1}'), ("b", "two", '{"y":2}')]


def test_a_new_name_begins_a_new_call_whatever_its_index() -> None:
    assert calls(
        calls_event(call_piece("one", "", index=0, id="0")),
        calls_event(call_piece("two", "{}", index=0, id="0")),
    ) == [("0", "one", ""), ("0", "two", "{}")]


def test_numeric_ids_object_arguments_and_late_ids_are_accepted() -> None:
    assert calls(
        calls_event(call_piece("ls", {"a": [1, "ü"]}, index=0, id=7)),
        calls_event(call_piece("rm", "{}", index=1)),
        calls_event(call_piece(None, None, index=1, id="late")),
    ) == [
        ("7", "ls", '{"a":[1,"ü"]}'),
        ("late", "rm", "{}"),
    ]


def test_a_call_without_a_name_is_still_reported() -> None:
    assert calls(calls_event({"index": 0}), calls_event(call_piece(None, "{}", index=0))) == [("", "", "{}")]


@pytest.mark.parametrize("name", ["write", None])
def test_a_million_characters_of_arguments(name: str | None) -> None:
    text = msgspec.json.encode({"text": "} { naïve 🦆 " * 100_000}).decode()
    pieces = [text[start : start + 100] for start in range(0, len(text), 100)]

    ((_, _, arguments),) = calls(
        calls_event(call_piece("write", "", index=0, id="a")),
        *(calls_event(call_piece(name, piece, index=0)) for piece in pieces),
    )
    assert arguments == text


# ---- text, thinking, stop, usage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delta", "thinking"),
    [
        ({"reasoning": "hm", "content": "so"}, thought("hm", "reasoning")),
        ({"reasoning_content": "hm", "reasoning": "hm", "content": "so"}, thought("hm")),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                    {"type": "text", "text": "so"},
                ]
            },
            Thinking("hm"),
        ),
        (
            {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}, {"type": "image"}]},
            Thinking("hm"),
        ),
    ],
)
def test_reasoning_is_read_from_several_fields(delta: dict[str, Any], thinking: Thinking) -> None:
    reply, deltas = decode_events(delta_event(**delta), STOP)

    assert reply.message == AssistantMessage("so", thinking=(thinking,))
    assert deltas == [ThinkingDelta("hm"), TextDelta("so")]


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        ("stop", "end"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("content_filter", "refusal"),
        ("eos", "end"),
        ("tool_calls", "end"),
        (None, "end"),
    ],
)
def test_finish_reasons_are_mapped_to_stop(finish: str | None, stop: str) -> None:
    assert decode_reply(delta_event(content="a"), delta_event(finish)).stop == stop


def test_truncated_calls_have_stop_length() -> None:
    assert decode_reply(calls_event(call_piece("ls", '{"a', index=0)), delta_event("length")).stop == "length"


def test_a_plain_finish_reason_with_calls_has_stop_calls() -> None:
    assert decode_reply(calls_event(call_piece("ls", "{}", index=0)), STOP).stop == "calls"


def test_a_refusal_is_text_with_stop_refusal() -> None:
    reply, deltas = decode_events(delta_event(refusal="I would "), delta_event(refusal="rather not."), STOP)

    assert (reply.message.text, reply.stop) == ("I would rather not.", "refusal")
    assert deltas == [TextDelta("I would "), TextDelta("rather not.")]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2}, Usage(3, 2)),
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}, Usage(9, 2, 4)),
        ({"prompt_tokens": 3, "completion_tokens": None, "completion_tokens_details": None}, Usage(3, 0)),
        (
            {
                "prompt_tokens": 3,
                "completion_tokens": 2,
                "total_tokens": 9,
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
            Usage(3, 6, 0, 4),
        ),
        ({"prompt_tokens": -3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 9}}, Usage(0, 2)),
        ({}, None),
        ({"prompt_tokens": "many"}, None),
        ("unknown", None),
        (None, None),
    ],
)
def test_usage_is_read_as_far_as_it_was_counted(usage: object, expected: Usage | None) -> None:
    assert decode_reply(delta_event("stop", content="a"), {"choices": [], "usage": usage}).usage == expected


def test_the_last_of_several_usage_counts_wins() -> None:
    counting = [delta_event(content="a") | {"usage": {"prompt_tokens": 3, "completion_tokens": n}} for n in (1, 2)]

    assert decode_reply(*counting, STOP | {"usage": None}).usage == Usage(3, 2)


def test_unknown_fields_events_and_choices_are_ignored() -> None:
    reply = decode_reply(
        {"object": "something.new", "choices": []},
        {"choices": None},
        {},
        {"prompt_filter_results": [{"prompt_index": 0}], "choices": [], "id": "", "model": ""},
        {
            "id": "r",
            "choices": [{"index": 0, "delta": {"content": "a", "audio": {"x": 1}}, "logprobs": {"top": 1}}],
        },
        {"id": "r", "choices": [{"index": 1, "delta": {"content": "another answer"}}]},
        {"id": "r", "choices": [{"index": 0, "delta": None, "finish_reason": "stop"}], "error": None},
    )

    assert reply == Reply(AssistantMessage("a"), usage=None, model="asked", response_id="r")


def test_a_response_as_one_json_object_is_decoded() -> None:
    decoder = Decoder()
    message = {"role": "assistant", "content": "hello", "tool_calls": [call_piece("ls", "{}", id="a", type="function")]}
    answer = {"id": "r", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}

    deltas = decoder.feed_whole(msgspec.json.encode(answer | {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}))

    assert deltas == (TextDelta("hello"), CallDelta(0, "ls", "{}", "a"))
    assert decoder.finish() == Reply(
        AssistantMessage("hello", (ToolCall("ls", "{}", "a"),)), Usage(1, 2), stop="calls", model="m", response_id="r"
    )


def test_a_final_message_that_repeats_the_stream_is_ignored() -> None:
    last = {"choices": [{"index": 0, "message": {"content": "hello"}, "finish_reason": "stop"}]}

    assert decode_reply(delta_event(content="hello"), last).message.text == "hello"


def test_an_event_without_data_is_ignored() -> None:
    decoder = Decoder()

    assert (decoder.feed(b""), decoder.feed(b" "), decoder.done) == ((), (), False)


def test_events_after_the_end_are_ignored() -> None:
    decoder = Decoder()
    decoder.feed(msgspec.json.encode(delta_event("stop", content="a")))

    assert (decoder.feed(b" [DONE] "), decoder.feed(b"nonsense"), decoder.done) == ((), (), True)
    assert decoder.finish().message.text == "a"


def test_a_lone_surrogate_costs_one_character() -> None:
    decoder = Decoder()
    deltas = [
        *decoder.feed(b'{"choices":[{"delta":{"content":"a\\ud83d"}}]}'),
        *decoder.feed(b'{"choices":[{"delta":{"content":"b\xff"},"finish_reason":"stop"}]}'),
    ]

    assert deltas == [TextDelta("a?"), TextDelta("b\ufffd")]
    assert decoder.finish().message.text == "a?b\ufffd"
