"""The decoder of the Responses wire, in both spellings and with the deviations of many servers."""

from typing import Any

import msgspec
import pytest

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
from retinue.providers.openai_responses.response import Decoder
from tests.providers.responses_events import (
    COMPLETED,
    CREATED,
    added,
    arguments_delta,
    completed,
    decode_events,
    decode_reply,
    done,
    item,
    summary_delta,
    text_delta,
)

REASONING = item("reasoning", id="rs_1", summary=[{"type": "summary_text", "text": "Hm."}], encrypted_content="gA==")
USAGE = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 20},
    "output_tokens": 12,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 42,
}


def text(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


def call(spelling: str = "function_call", **fields: Any) -> dict[str, Any]:
    return item(spelling, **fields)


def calls(*events: object) -> list[tuple[str, str, str]]:
    """Id, name and arguments of the calls; the published deltas have to agree."""
    reply, deltas = decode_events(CREATED, *events, COMPLETED)
    made = reply.message.calls
    for index, each in enumerate(made):
        pieces = [delta for delta in deltas if isinstance(delta, CallDelta) and delta.index == index]
        assert "".join(piece.name for piece in pieces) == each.name
        assert "".join(piece.arguments for piece in pieces) == each.arguments
    assert reply.stop == "calls"
    return [(each.id, each.name, each.arguments) for each in made]


@pytest.mark.promise("BZ-RESPONSES-EVENTS")
def test_thinking_text_calls_and_usage_make_one_reply() -> None:
    message = item("message", id="msg_1", content=[{"type": "output_text", "text": "Let me look."}])
    made = call(id="fc_1", call_id="call_1", name="search", arguments='{"query":"pool"}')
    reply, deltas = decode_events(
        CREATED,
        {"type": "response.in_progress", "response": {}},
        added(item("reasoning", id="rs_1", summary=[]), output_index=0),
        summary_delta("H", item_id="rs_1", output_index=0, summary_index=0),
        summary_delta("m.", item_id="rs_1", output_index=0, summary_index=0),
        done(REASONING, output_index=0),
        added(item("message", id="msg_1", content=[]), output_index=1),
        text_delta("Let me ", item_id="msg_1", output_index=1, content_index=0),
        text_delta("look.", item_id="msg_1", output_index=1, content_index=0),
        {"type": "response.output_text.done", "item_id": "msg_1", "output_index": 1, "text": "Let me look."},
        done(message, output_index=1),
        added(call(id="fc_1", call_id="call_1", name="search", arguments=""), output_index=2),
        arguments_delta('{"query":', item_id="fc_1", output_index=2),
        arguments_delta('"pool"}', item_id="fc_1", output_index=2),
        {"type": "response.function_call_arguments.done", "item_id": "fc_1", "arguments": '{"query":"pool"}'},
        done(made, output_index=2),
        completed(model="m1", output=[REASONING, message, made], usage=USAGE),
    )

    assert reply == Reply(
        message=AssistantMessage(
            "Let me look.",
            (ToolCall("search", '{"query":"pool"}', "call_1"),),
            (Thinking("Hm.", "rs_1", text(REASONING)),),
        ),
        usage=Usage(input=30, output=12, cached=20, reasoning=5),
        stop="calls",
        model="m1",
        response_id="r1",
    )
    assert deltas == [
        ThinkingDelta("H"),
        ThinkingDelta("m."),
        TextDelta("Let me "),
        TextDelta("look."),
        CallDelta(0, "search", "", "call_1"),
        CallDelta(0, "", '{"query":'),
        CallDelta(0, "", '"pool"}'),
    ]


# ---- calls ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("BZ-RESPONSES-EVENTS")
def test_tool_call_spelling_is_read_too() -> None:
    assert calls(
        added(call("tool_call", id="tc_1", name="ls")),
        arguments_delta('{"a"', "tool_call", item_id="tc_1"),
        arguments_delta(":1}", "tool_call", item_id="tc_1"),
        done(call("tool_call", id="tc_1", name="ls", arguments='{"a":1}')),
    ) == [("tc_1", "ls", '{"a":1}')]


def test_whole_items_override_pieces_and_are_optional() -> None:
    assert calls(
        added(call("tool_call", id="a", name="one")),
        arguments_delta('{"x"', "tool_call"),
        done(call("tool_call", id="a", name="one")),
        added(call("tool_call", id="b", name="two")),
        arguments_delta("{}", "tool_call"),
        added(call("tool_call", id="c", name="three")),
        done(call("tool_call", id="c", name="three", arguments='{"y":1}')),
    ) == [("a", "one", '{"x"'), ("b", "two", "{}"), ("c", "three", '{"y":1}')]


def test_final_arguments_override_streamed_pieces() -> None:
    reply = decode_reply(
        added(call(id="a", name="ls")), arguments_delta("{x"), done(call(id="a", arguments='{"a":1}')), COMPLETED
    )

    assert reply.message.calls == (ToolCall("ls", '{"a":1}', "a"),)


@pytest.mark.parametrize("by", ["item_id", "output_index"])
def test_interleaved_calls_are_separated(by: str) -> None:
    one: dict[str, Any] = {"item_id": "a", "output_index": 0}
    two: dict[str, Any] = {"item_id": "b", "output_index": 1}
    assert calls(
        added(call(id="a", call_id="c1", name="one"), output_index=0),
        added(call(id="b", call_id="c2", name="two"), output_index=1),
        arguments_delta('{"x"', **{by: two[by]}),
        arguments_delta('{"y"', **{by: one[by]}),
        arguments_delta(":1}", **{by: two[by]}),
        arguments_delta(":2}", **{by: one[by]}),
    ) == [("c1", "one", '{"y":2}'), ("c2", "two", '{"x":1}')]


def test_whole_calls_with_the_same_index_stay_separate() -> None:
    assert calls(
        *(done(call(call_id=each, name="ls", arguments="{}"), output_index=0) for each in "ab"),
        done(call(name="rm", arguments={"a": ["ü"]})),
    ) == [("a", "ls", "{}"), ("b", "ls", "{}"), ("", "rm", '{"a":["ü"]}')]


def test_changing_item_ids_are_matched_by_index() -> None:
    assert calls(
        added(call(id="x", call_id="c1", name="ls"), output_index=0),
        arguments_delta("{}", item_id="y", output_index=0),
        done(call(id="z", call_id="c9", name="ls", arguments="{}"), output_index=0),
    ) == [("c9", "ls", "{}")]


def test_an_unannounced_call_is_still_reported() -> None:
    assert calls(
        arguments_delta("{", item_id="a"), arguments_delta("}", item_id="a"), done(call(id="a", name="ls"))
    ) == [("a", "ls", "{}")]


def test_a_million_characters_of_arguments() -> None:
    arguments = msgspec.json.encode({"text": "}{ naïve 🦆 " * 100_000}).decode()
    pieces = [arguments[start : start + 100] for start in range(0, len(arguments), 100)]

    assert calls(
        added(call(id="a", name="write")),
        *(arguments_delta(piece, item_id="a", output_index=0) for piece in pieces),
        done(call(id="a", name="write", arguments=arguments)),
    ) == [("a", "write", arguments)]


# ---- text, thinking, stop, usage ------------------------------------------------------------------------------------


def test_items_missing_from_the_stream_come_from_the_whole() -> None:
    parts = [{"type": "output_text", "text": "hel"}, {"type": "output_text", "text": "lo"}]
    output = [REASONING, item("message", content=parts), call(call_id="a", name="ls", arguments="{}")]
    expected = AssistantMessage("hello", (ToolCall("ls", "{}", "a"),), (Thinking("Hm.", "rs_1", text(REASONING)),))
    deltas = [ThinkingDelta("Hm."), TextDelta("hello"), CallDelta(0, "ls", "", "a"), CallDelta(0, "", "{}")]

    for events in ([completed(output=output)], [*map(done, output), completed(output=output)]):
        reply, published = decode_events(*events)
        assert (reply.message, published) == (expected, deltas)


def test_a_begun_item_is_completed_from_the_final_response() -> None:
    output = [call(id="a", name="ls", arguments='{"a":1}')]

    reply = decode_reply(
        added(call(id="a", name="ls"), output_index=0), arguments_delta("{", output_index=0), completed(output=output)
    )

    assert reply.message.calls == (ToolCall("ls", '{"a":1}', "a"),)


def test_summary_parts_are_separated_as_paragraphs() -> None:
    summary = [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}]
    streamed = [
        summary_delta("O", summary_index=0),
        summary_delta("ne.", summary_index=0),
        summary_delta("Two.", summary_index=1),
    ]

    assert decode_reply(*streamed, COMPLETED).message.thinking == (Thinking("One.\n\nTwo."),)
    (expected,) = decode_reply(done(item("reasoning", summary=summary)), COMPLETED).message.thinking
    assert expected.text == "One.\n\nTwo."


def test_reasoning_text_of_open_models_is_read() -> None:
    reply, deltas = decode_events({"type": "response.reasoning_text.delta", "delta": "hm"}, text_delta("so"), COMPLETED)

    assert reply.message == AssistantMessage("so", thinking=(Thinking("hm"),))
    assert deltas == [ThinkingDelta("hm"), TextDelta("so")]


@pytest.mark.parametrize(
    ("end", "stop"),
    [
        (COMPLETED, "end"),
        ({"type": "response.completed"}, "end"),
        (
            {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "max_output_tokens"}}},
            "length",
        ),
        ({"type": "response.incomplete", "response": {"incomplete_details": {"reason": "content_filter"}}}, "refusal"),
        ({"type": "response.incomplete", "response": {"incomplete_details": None}}, "length"),
    ],
)
def test_finish_reasons_are_mapped_to_stop(end: dict[str, Any], stop: Stop) -> None:
    assert decode_reply(text_delta("a"), end).stop == stop


def test_truncated_calls_have_stop_length() -> None:
    reply = decode_reply(added(call(id="a", name="ls")), arguments_delta('{"a'), {"type": "response.incomplete"})

    assert (reply.message.calls, reply.stop) == ((ToolCall("ls", '{"a', "a"),), "length")


def test_a_refusal_is_text_with_stop_refusal() -> None:
    pieces = [{"type": "response.refusal.delta", "delta": piece} for piece in ("I would ", "rather not.")]
    whole = item("message", content=[{"type": "refusal", "refusal": "I would rather not."}])

    for events in (pieces, [done(whole)], [*pieces, done(whole)]):
        reply, deltas = decode_events(*events, COMPLETED)
        assert (reply.message.text, reply.stop) == ("I would rather not.", "refusal")
        assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "I would rather not."


def test_a_response_without_content_is_an_empty_reply() -> None:
    assert decode_reply(CREATED, completed(output=[])) == Reply(AssistantMessage(), None, model="m1", response_id="r1")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (USAGE, Usage(30, 12, 20, 5)),
        ({"input_tokens": 3, "output_tokens": 2}, Usage(3, 2)),
        ({"input_tokens": 3, "output_tokens": None, "input_tokens_details": None}, Usage(3, 0)),
        ({"input_tokens": -3, "output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 9}}, Usage(0, 2, 0, 2)),
        ({}, None),
        ({"input_tokens": "many"}, None),
        (None, None),
    ],
)
def test_usage_is_read_as_far_as_it_was_counted(usage: object, expected: Usage | None) -> None:
    assert decode_reply(text_delta("a"), completed(usage=usage)).usage == expected


def test_unknown_events_items_and_fields_are_ignored() -> None:
    reply, deltas = decode_events(
        CREATED | {"sequence_number": 0},
        {"type": "response.something.new", "delta": {"a": 1}, "output_index": "first"},
        {"type": "response.code_interpreter_call.failed", "error": {"message": "elsewhere"}},
        {},
        added(item("new_call", id="ws_1", action={"query": "x"}), output_index=0),
        done(item("new_call", id="ws_1"), output_index=0),
        text_delta("a", obfuscation="xyz", logprobs=[]),
        done(item("message", content="a", mood="fine")),
        completed(output=[item("new_call", id="ws_1")], billing={"payer": "developer"}),
    )

    assert reply == Reply(AssistantMessage("a"), None, model="m1", response_id="r1")
    assert deltas == [TextDelta("a")]


def test_a_response_as_one_json_object_is_decoded() -> None:
    decoder = Decoder()
    output = [item("message", content=[{"type": "output_text", "text": "hello"}])]
    body = {"id": "r", "model": "m", "status": "incomplete", "output": output, "usage": USAGE, "error": None}

    assert decoder.feed_whole(msgspec.json.encode(body)) == (TextDelta("hello"),)
    assert decoder.finish() == Reply(
        AssistantMessage("hello"), Usage(30, 12, 20, 5), stop="length", model="m", response_id="r"
    )


def test_events_after_the_end_are_ignored() -> None:
    decoder = Decoder()
    decoder.feed(msgspec.json.encode(text_delta("a")))

    assert (decoder.feed(b" "), decoder.feed(b" [DONE] "), decoder.feed(b"nonsense"), decoder.done) == (
        (),
        (),
        (),
        True,
    )
    assert decoder.finish().message.text == "a"


def test_a_lone_surrogate_costs_one_character() -> None:
    decoder = Decoder()
    deltas = [
        *decoder.feed(b'{"type":"response.output_text.delta","delta":"a\\ud83d"}'),
        *decoder.feed(b'{"type":"response.output_text.delta","delta":"b\xff"}'),
    ]

    assert deltas == [TextDelta("a?"), TextDelta("b\ufffd")]
