"""How a conversation is told to Anthropic: what it refuses is repaired, and what was told once stays."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from retinue.core.agent import ToolSpec
from retinue.core.history import LEFT_OUT, UNFINISHED
from retinue.core.messages import AssistantMessage, Message, Thinking, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Request
from retinue.providers.anthropic.provider import Decoder, encode
from retinue.testing.fake_server import ReceivedRequest
from tests.providers.fakes.anthropic_rules import objection, signature_of

MARK = {"type": "ephemeral"}
TOOLS = (ToolSpec("search", "Search.", '{"type":"object","properties":{"q":{}}}'), ToolSpec("list_files"))


def ask(*messages: Message, **fields: Any) -> Request:
    request = Request(model="claude-sonnet-4-5", system="", messages=messages)
    return replace(request, **fields)


def body(*messages: Message, **fields: Any) -> dict[str, Any]:
    return json.loads(encode(ask(*messages, **fields)))


def told(*messages: Message) -> list[tuple[str, list[dict[str, Any]]]]:
    """Who says what, without marks."""
    return [(role, [bare(block) for block in content]) for role, content in talk(body(*messages))]


def talk(encoded: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(message["role"], message["content"]) for message in encoded["messages"]]


def bare(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key != "cache_control"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, words: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": words}


def failure(call_id: str, words: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "is_error": True, "content": words}


def test_a_request_says_all_there_is_to_say() -> None:
    encoded = body(UserMessage("Why? 🦆"), system="Be brief.", tools=TOOLS, max_output=100, temperature=0.5)

    assert encoded == {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "stream": True,
        "temperature": 0.5,
        "tools": [
            {
                "name": "search",
                "description": "Search.",
                "input_schema": {"type": "object", "properties": {"q": {}}},
            },
            {
                "name": "list_files",
                "description": "",
                "input_schema": {"type": "object", "properties": {}},
                "cache_control": MARK,
            },
        ],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": MARK}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Why? 🦆", "cache_control": MARK}]}],
    }


def test_a_request_says_nothing_that_nobody_set() -> None:
    assert body(UserMessage("hi")).keys() == {"model", "max_tokens", "stream", "messages"}
    assert body(UserMessage("hi"))["max_tokens"] == 8192


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (32000, {"type": "enabled", "budget_tokens": 24000}, None)),
        ({"temperature": 0.5}, (32000, {"type": "enabled", "budget_tokens": 24000}, None)),
        ({"max_output": 64000}, (64000, {"type": "enabled", "budget_tokens": 24000}, None)),
        ({"max_output": 8000}, (8000, {"type": "enabled", "budget_tokens": 6000}, None)),
        ({"max_output": 1000, "temperature": 0.5}, (1000, None, 0.5)),  # no room for a thought
        (
            {"model": "claude-opus-5-5", "temperature": 0.5},
            (32000, {"type": "adaptive", "display": "summarized"}, None),
        ),
    ],
)
def test_thinking_is_asked_for_within_what_the_answer_may_cost(
    fields: dict[str, Any], expected: tuple[object, ...]
) -> None:
    encoded = body(UserMessage("hi"), think=True, **fields)

    assert (encoded["max_tokens"], encoded.get("thinking"), encoded.get("temperature")) == expected


def test_a_model_that_takes_no_temperature_gets_none() -> None:
    assert "temperature" not in body(UserMessage("hi"), model="claude-opus-4-8", temperature=0.5)


def test_no_thinking_is_asked_for_amid_calls_that_were_made_without() -> None:
    unthought = (UserMessage("hi"), AssistantMessage("", (ToolCall("search", "{}", "a"),)), ToolMessage("search", "x"))
    signed = AssistantMessage("", (ToolCall("search", "{}", "b"),), (Thinking("hm", "sig"),))

    assert "thinking" not in body(*unthought, think=True)
    assert "thinking" in body(*unthought, AssistantMessage("done"), UserMessage("more"), think=True)
    assert "thinking" in body(*unthought, signed, ToolMessage("search", "y"), think=True)


def test_results_stand_in_one_message_before_the_words_that_follow_them() -> None:
    reply = AssistantMessage("Let me look.", (ToolCall("search", '{"q": 1}', "a"), ToolCall("list_files", "", "b")))

    assert told(
        UserMessage("Why?"),
        reply,
        ToolMessage("search", "found", "a"),
        ToolMessage("list_files", "no", "b", failed=True),
        UserMessage("Hurry."),
        UserMessage("Please."),
    ) == [
        ("user", [text("Why?")]),
        ("assistant", [text("Let me look."), use("a", "search", q=1), use("b", "list_files")]),
        ("user", [result("a", "found"), failure("b", "no"), text("Hurry."), text("Please.")]),
    ]


def test_ids_that_are_missing_repeated_or_strange_are_made_new_and_results_find_their_calls() -> None:
    strange = (ToolCall("search", '{"q":1}'), ToolCall("search", '{"q":2}', "a|b"))
    first = AssistantMessage("", (*strange, ToolCall("list_files", "{}", "c")))
    second = AssistantMessage("", (ToolCall("search", '{"q":3}', "c"),))

    assert told(
        UserMessage("Why?"),
        first,
        ToolMessage("list_files", "files", "c"),
        ToolMessage("search", "two", "a|b"),
        ToolMessage("search", "one"),
        second,
        ToolMessage("search", "three", "c"),
    ) == [
        ("user", [text("Why?")]),
        ("assistant", [use("toolu_1_0", "search", q=1), use("toolu_1_1", "search", q=2), use("c", "list_files")]),
        ("user", [result("c", "files"), result("toolu_1_1", "two"), result("toolu_1_0", "one")]),
        ("assistant", [use("toolu_2_0", "search", q=3)]),
        ("user", [result("toolu_2_0", "three")]),
    ]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ("", {}),
        ("  ", {}),
        ('{"a": [1, "ü"]}', {"a": [1, "ü"]}),
        ("[1]", {"not_a_json_object": "[1]"}),
        ('{"a":', {"not_a_json_object": '{"a":'}),
        ('{"a":"\\ud83e"}', {"a": "?"}),
        ('{"a":"\\ud83e\\udd86"}', {"a": "🦆"}),
        ('{"a":"\ud83e"}', {"not_a_json_object": '{"a":"?"}'}),
    ],
)
def test_arguments_are_sent_as_an_object(arguments: str, sent: dict[str, Any]) -> None:
    reply = AssistantMessage("", (ToolCall("search", arguments, "a"),))

    assert told(UserMessage("Why?"), reply, ToolMessage("search", "x", "a"))[1][1] == [use("a", "search", **sent)]


def test_a_tool_that_does_not_exist_is_named_so_that_it_can_be() -> None:
    reply = AssistantMessage("", (ToolCall("my tool.v2", "{}", "a"), ToolCall("", "{}", "b")))

    assert told(UserMessage("Why?"), reply)[1][1] == [use("a", "my_tool_v2"), use("b", "_")]


def test_own_thoughts_go_back_and_those_of_other_vendors_do_not() -> None:
    thoughts = (
        Thinking("hm", "sig"),
        Thinking("", "only signed"),
        Thinking(opaque="data"),
        Thinking("unsigned"),
        Thinking("other", "id", "encrypted"),
        Thinking("other", opaque="encrypted"),
        Thinking(opaque='{"type":"reasoning","encrypted_content":"x"}'),  # of a model that this one stands in for
    )

    assert told(UserMessage("Why?"), AssistantMessage("So.", (), thoughts), UserMessage("And?"))[1] == (
        "assistant",
        [
            {"type": "thinking", "thinking": "hm", "signature": "sig"},
            {"type": "thinking", "thinking": "", "signature": "only signed"},
            {"type": "redacted_thinking", "data": "data"},
            text("So."),
        ],
    )


def decoded(*content: dict[str, Any]) -> AssistantMessage:
    decoder = Decoder()
    decoder.feed_whole(json.dumps({"type": "message", "content": content, "stop_reason": "tool_use"}).encode())
    return decoder.finish().message


def test_thoughts_between_words_and_calls_keep_their_places() -> None:
    first, second = ({"type": "thinking", "thinking": word, "signature": f"sig {word}"} for word in ("hm", "ah"))
    content = [
        first,
        text("Let me "),
        text("look."),
        second,
        use("a", "search", q=1),
        text("🦆"),
        use("b", "ls"),
    ]

    reply = decoded(*content)

    assert (reply.text, [call.id for call in reply.calls]) == ("Let me look.🦆", ["a", "b"])
    assert told(UserMessage("Why?"), reply)[1][1] == content
    # What was changed since is told in the usual order.
    assert told(UserMessage("Why?"), structs.replace(reply, text="Done."))[1][1] == [
        first,
        second,
        text("Done."),
        use("a", "search", q=1),
        use("b", "ls"),
    ]


def test_a_reply_in_the_usual_order_needs_no_note_of_it() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "sig"}

    assert decoded(thought, text("So."), use("a", "search")).thinking == (Thinking("hm", "sig"),)
    assert decoded(use("a", "search"), text("So.")).thinking == ()


def test_thoughts_that_led_to_nothing_are_left_out() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "sig"}

    assert told(UserMessage("Why?"), decoded(text("So."), thought), UserMessage("And?"))[1][1] == [text("So.")]


def test_what_must_not_be_empty_is_filled_or_left_out() -> None:
    call = AssistantMessage(" \n", (ToolCall("search", "{}", "a"), ToolCall("search", "{}", "b")))

    assert told(
        AssistantMessage("", (), (Thinking("hm", "sig"),)),
        AssistantMessage("Hello."),
        UserMessage("  "),
        call,
        ToolMessage("search", "", "a"),
        ToolMessage("search", "", "b", failed=True),
        AssistantMessage(),
    ) == [
        ("user", [text(LEFT_OUT)]),
        ("assistant", [text("Hello.")]),
        ("user", [text("[an empty message]")]),
        ("assistant", [use("a", "search"), use("b", "search")]),
        ("user", [{"type": "tool_result", "tool_use_id": "a"}, failure("b", "[no reason given]")]),
    ]
    assert "system" not in body(UserMessage("hi"), system=" \n")


def test_calls_without_a_result_and_results_without_a_call_are_repaired() -> None:
    calls = AssistantMessage("", (ToolCall("search", "{}", "a"), ToolCall("list_files", "{}", "b")))

    assert told(UserMessage("Why?"), calls, ToolMessage("list_files", "x", "b"))[-1] == (
        "user",
        [result("b", "x"), failure("a", UNFINISHED)],
    )
    assert told(UserMessage("Why?"), calls)[-1][1] == [failure("a", UNFINISHED), failure("b", UNFINISHED)]
    assert told(UserMessage("Why?"), calls, UserMessage("Stop."), ToolMessage("search", "late", "a"))[-1][1] == [
        failure("a", UNFINISHED),
        failure("b", UNFINISHED),
        text("Stop."),
        text("[result of a call of search that is no longer shown]\nlate"),
    ]


def test_a_conversation_in_which_nothing_was_said_has_a_word_all_the_same() -> None:
    assert told() == told(AssistantMessage()) == [("user", [text("[go on]")])]


def test_the_model_is_not_asked_to_finish_its_own_words() -> None:
    assert told(UserMessage("Why?"), AssistantMessage("Because "))[-1] == ("user", [text("[go on]")])


def test_marks_are_where_the_last_request_ended_and_at_the_end() -> None:
    history: list[Message] = [UserMessage("Why?"), UserMessage("Now."), AssistantMessage("Hm.", (ToolCall("search"),))]
    history += [ToolMessage("search", "x"), UserMessage("Well?")]
    encoded = body(*history, system="Be brief.", tools=TOOLS)
    blocks = [block for _, content in talk(encoded) for block in content]

    assert ["cache_control" in block for block in blocks] == [False, True, False, False, False, True]
    assert encoded["system"][-1]["cache_control"] == encoded["tools"][-1]["cache_control"] == MARK


def test_a_history_that_was_replaced_is_encoded_anew() -> None:
    old: list[Message] = [UserMessage("Why?"), AssistantMessage("So."), UserMessage("And?")]
    request = ask(*old)
    encode(request)
    new = replace(request, messages=[UserMessage("a summary"), *old[1:]])

    assert encode(new) == encode(ask(*new.messages))


WORDS = st.sampled_from(["", " ", "so", "ü🦆\n", 'a "quoted" \\ word', "\ud83e"])
IDS = st.sampled_from(["", "a", "b", "toolu_1_0", "toolu_2_0", "a|b", "x" * 65])
NAMES = st.sampled_from(["search", "list_files", "no such", ""])
CALLS = st.builds(ToolCall, NAMES, st.sampled_from(["", "{}", '{"q":1}', "[]", "{", '"', '{"a":"\\udc00"}']), IDS)
THOUGHTS = st.sampled_from(
    [Thinking("hm", signature_of("hm")), Thinking(opaque="data"), Thinking("unsigned"), Thinking("x", "id", "enc")]
)
MESSAGES = st.lists(
    st.builds(UserMessage, WORDS)
    | st.builds(
        AssistantMessage, WORDS, st.lists(CALLS, max_size=3).map(tuple), st.lists(THOUGHTS, max_size=2).map(tuple)
    )
    | st.builds(ToolMessage, NAMES, WORDS, IDS, st.booleans()),
    min_size=1,
    max_size=12,
)


STOPGAPS = ((UNFINISHED, None), (None, "[go on]"))


def blocks_of(raw: bytes) -> list[dict[str, Any]]:
    return [bare(block) | {"role": role} for role, content in talk(json.loads(raw)) for block in content]


@given(MESSAGES, st.booleans())
def test_any_history_is_accepted_and_told_the_same_way_at_every_turn(history: list[Message], think: bool) -> None:
    growing: list[Message] = []
    request = ask(think=think, tools=TOOLS, system="Be brief.", messages=growing)
    before: list[dict[str, Any]] = []
    for message in history:
        growing.append(message)
        raw = encode(request)
        assert raw == encode(replace(request, messages=list(growing), memo={}))
        headers = {"anthropic-version": "2023-06-01"}
        heard = ReceivedRequest(
            method="POST", path="/v1/messages", headers=headers, raw=raw, body=json.loads(raw), attempt=1
        )
        assert objection(heard) is None
        # What was said stays; only what had to be added at the end, for want of something better, may give way.
        now = blocks_of(raw)
        given_way = len(before)
        while given_way and (before[given_way - 1].get("content"), before[given_way - 1].get("text")) in STOPGAPS:
            given_way -= 1
        assert now[:given_way] == before[:given_way]
        before = now
