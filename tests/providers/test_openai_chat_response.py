"""A streamed answer is put together rightly, with every accent that servers speak with."""

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
from retinue.providers.openai_chat.provider import Decoder
from tests.providers.chat_events import STOP, calling, calls, decoded, heard, part, saying


def test_words_thoughts_calls_and_usage_make_one_reply() -> None:
    reply, deltas = heard(
        saying(role="assistant", content=""),
        saying(reasoning_content="Hm, "),
        saying(reasoning_content="the pool.", content=None),
        saying(content="Let me "),
        saying(content="look."),
        calling(part("search", "", index=0, id="a", type="function")),
        calling(part(None, '{"query":', index=0)),
        calling(part(None, '"pool"}', index=0)),
        saying("tool_calls"),
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
            "Let me look.", (ToolCall("search", '{"query":"pool"}', "a"),), (Thinking("Hm, the pool."),)
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


def test_calls_that_stream_at_the_same_time_are_told_apart_by_index() -> None:
    assert calls(
        calling(part("one", "", index=0, id="a"), part("two", "", index=1, id="b")),
        calling(part(None, '{"x"', index=1)),
        calling(part(None, '{"y"', index=0)),
        calling(part(None, ":1}", index=1), part(None, ":2}", index=0)),
    ) == [("a", "one", '{"y":2}'), ("b", "two", '{"x":1}')]


def test_a_name_and_id_that_come_with_every_piece_are_taken_once() -> None:
    assert calls(
        calling(part("ls", "", index=0, id="0")),
        calling(part("ls", '{"a"', index=0, id="0")),
        calling(part("ls", ":{}}", index=0, id="0")),
    ) == [("0", "ls", '{"a":{}}')]


def test_whole_calls_in_one_event() -> None:
    assert calls(calling(part("a", "{}", index=0, id="1"), part("b", '{"x":1}', index=1, id="2"))) == [
        ("1", "a", "{}"),
        ("2", "b", '{"x":1}'),
    ]


@pytest.mark.parametrize("others", [{}, {"index": 0}, {"id": ""}, {"id": None, "index": None}])
def test_whole_calls_in_one_event_without_ids_and_indexes(others: dict[str, Any]) -> None:
    assert calls(calling(part("ls", "{}", **others), part("ls", "{}", **others), part("rm", "", **others))) == [
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
def test_whole_calls_one_after_the_other_however_they_are_numbered(
    others: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    first, second = others
    made = calls(calling(part("ls", '{"a":1}', **first)), calling(part("ls", '{"a":2}', **second)))

    assert [call[1:] for call in made] == [("ls", '{"a":1}'), ("ls", '{"a":2}')]


def test_pieces_without_an_index_go_on_with_the_last_call_or_the_one_of_their_id() -> None:
    assert calls(
        calling(part("one", "", id="a")),
        calling(part(None, '{"x"')),
        calling(part("two", '{"y"', id="b")),
        calling(part(None, ":2}")),
        calling(part(None, ":1}", id="a")),
    ) == [("a", "one", '{"x":1}'), ("b", "two", '{"y":2}')]


def test_another_name_is_another_call_whatever_its_number() -> None:
    assert calls(
        calling(part("one", "", index=0, id="0")),
        calling(part("two", "{}", index=0, id="0")),
    ) == [("0", "one", ""), ("0", "two", "{}")]


def test_a_number_as_id_an_object_as_arguments_and_a_late_id() -> None:
    assert calls(
        calling(part("ls", {"a": [1, "ü"]}, index=0, id=7)),
        calling(part("rm", "{}", index=1)),
        calling(part(None, None, index=1, id="late")),
    ) == [
        ("7", "ls", '{"a":[1,"ü"]}'),
        ("late", "rm", "{}"),
    ]


def test_a_call_without_a_name_is_still_told() -> None:
    assert calls(calling({"index": 0}), calling(part(None, "{}", index=0))) == [("", "", "{}")]


@pytest.mark.parametrize("name", ["write", None])
def test_a_million_characters_of_arguments(name: str | None) -> None:
    text = msgspec.json.encode({"text": "} { naïve 🦆 " * 100_000}).decode()
    pieces = [text[start : start + 100] for start in range(0, len(text), 100)]

    ((_, _, arguments),) = calls(
        calling(part("write", "", index=0, id="a")), *(calling(part(name, piece, index=0)) for piece in pieces)
    )
    assert arguments == text


# ---- words, thoughts, stops, usage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "hm", "content": "so"},
        {"reasoning_content": "hm", "reasoning": "hm", "content": "so"},
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                {"type": "text", "text": "so"},
            ]
        },
        {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}, {"type": "image"}]},
    ],
)
def test_thoughts_come_under_several_names(delta: dict[str, Any]) -> None:
    reply, deltas = heard(saying(**delta), STOP)

    assert reply.message == AssistantMessage("so", thinking=(Thinking("hm"),))
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
def test_why_it_stopped(finish: str | None, stop: str) -> None:
    assert decoded(saying(content="a"), saying(finish)).stop == stop


def test_calls_that_were_cut_off_say_so() -> None:
    assert decoded(calling(part("ls", '{"a', index=0)), saying("length")).stop == "length"


def test_calls_under_a_plain_stop_are_calls() -> None:
    assert decoded(calling(part("ls", "{}", index=0)), STOP).stop == "calls"


def test_a_refusal_is_told_in_its_own_words() -> None:
    reply, deltas = heard(saying(refusal="I would "), saying(refusal="rather not."), STOP)

    assert (reply.message.text, reply.stop) == ("I would rather not.", "refusal")
    assert deltas == [TextDelta("I would "), TextDelta("rather not.")]


@pytest.mark.parametrize(
    ("usage", "told"),
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
def test_usage_is_told_as_far_as_it_was_counted(usage: object, told: Usage | None) -> None:
    assert decoded(saying("stop", content="a"), {"choices": [], "usage": usage}).usage == told


def test_of_several_counts_the_last_holds() -> None:
    counting = [saying(content="a") | {"usage": {"prompt_tokens": 3, "completion_tokens": n}} for n in (1, 2)]

    assert decoded(*counting, STOP | {"usage": None}).usage == Usage(3, 2)


def test_unknown_fields_events_and_choices_are_passed_over() -> None:
    reply = decoded(
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


def test_a_whole_answer_in_place_of_a_stream() -> None:
    decoder = Decoder()
    message = {"role": "assistant", "content": "hello", "tool_calls": [part("ls", "{}", id="a", type="function")]}
    answer = {"id": "r", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}

    deltas = decoder.feed_whole(msgspec.json.encode(answer | {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}))

    assert deltas == (TextDelta("hello"), CallDelta(0, "ls", "{}", "a"))
    assert decoder.finish() == Reply(
        AssistantMessage("hello", (ToolCall("ls", "{}", "a"),)), Usage(1, 2), stop="calls", model="m", response_id="r"
    )


def test_a_message_that_repeats_what_was_streamed_is_passed_over() -> None:
    last = {"choices": [{"index": 0, "message": {"content": "hello"}, "finish_reason": "stop"}]}

    assert decoded(saying(content="hello"), last).message.text == "hello"


def test_an_event_without_data_is_passed_over() -> None:
    decoder = Decoder()

    assert (decoder.feed(b""), decoder.feed(b" "), decoder.done) == ((), (), False)


def test_nothing_counts_after_the_end() -> None:
    decoder = Decoder()
    decoder.feed(msgspec.json.encode(saying("stop", content="a")))

    assert (decoder.feed(b" [DONE] "), decoder.feed(b"nonsense"), decoder.done) == ((), (), True)
    assert decoder.finish().message.text == "a"


def test_half_a_character_costs_that_character_alone() -> None:
    decoder = Decoder()
    deltas = [
        *decoder.feed(b'{"choices":[{"delta":{"content":"a\\ud83d"}}]}'),
        *decoder.feed(b'{"choices":[{"delta":{"content":"b\xff"},"finish_reason":"stop"}]}'),
    ]

    assert deltas == [TextDelta("a?"), TextDelta("b\ufffd")]
    assert decoder.finish().message.text == "a?b\ufffd"
