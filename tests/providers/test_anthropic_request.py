"""Request bodies of the Anthropic wire: rejected histories are repaired, and encoded messages stay the same."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from retinue.core.agent import ToolSpec
from retinue.core.messages import AssistantMessage, Message, Thinking, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Request
from retinue.core.state import LEFT_OUT, UNFINISHED
from retinue.providers.anthropic.request import encode
from retinue.providers.anthropic.response import Decoder
from retinue.testing.fake_server import ReceivedRequest
from tests.providers.fakes.anthropic_rules import rejection_of, signature_of

MARK = {"type": "ephemeral"}
TOOLS = (ToolSpec("search", "Search.", '{"type":"object","properties":{"q":{}}}'), ToolSpec("list_files"))


def ask(*messages: Message, **fields: Any) -> Request:
    request = Request(model="claude-sonnet-4-5", system="", messages=messages)
    return replace(request, **fields)


def body(*messages: Message, **fields: Any) -> dict[str, Any]:
    return json.loads(encode(ask(*messages, **fields)))


def encoded_messages(*messages: Message) -> list[tuple[str, list[dict[str, Any]]]]:
    """Role and blocks of each message, without cache marks."""
    return [(role, [without_mark(block) for block in content]) for role, content in messages_of(body(*messages))]


def messages_of(encoded: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(message["role"], message["content"]) for message in encoded["messages"]]


def without_mark(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key != "cache_control"}


def text(string: str) -> dict[str, Any]:
    return {"type": "text", "text": string}


def use(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, string: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": string}


def failure(call_id: str, string: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "is_error": True, "content": string}


def test_every_setting_is_sent() -> None:
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


def test_settings_that_are_not_set_are_not_sent() -> None:
    assert body(UserMessage("hi")).keys() == {"model", "max_tokens", "stream", "messages"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "claude-3-opus-20240229"}, 4096),
        ({"model": "claude-sonnet-4-5"}, 64_000),
        ({"model": "claude-opus-5-5", "think": True}, 128_000),
        ({"model": "someones-own-model"}, 8192),
        ({"model": "someones-own-model", "effort": "high"}, 32_000),
        ({"model": "claude-sonnet-4-5", "max_output": 100}, 100),
    ],
)
def test_a_reply_may_be_as_long_as_its_model_can_write(fields: dict[str, Any], expected: int) -> None:
    assert body(UserMessage("hi"), **fields)["max_tokens"] == expected


def test_a_long_conversation_leaves_less_of_the_window_for_the_reply() -> None:
    lengths = [
        body(UserMessage("x" * 3 * tokens), model="claude-sonnet-4-5")["max_tokens"]
        for tokens in (100_000, 150_000, 190_000)
    ]

    assert lengths[0] == 64_000
    assert 30_000 < lengths[1] < 200_000 - 150_000
    assert lengths[2] == 8192


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (64000, {"type": "enabled", "budget_tokens": 24000}, None)),
        ({"temperature": 0.5}, (64000, {"type": "enabled", "budget_tokens": 24000}, None)),
        ({"max_output": 64000}, (64000, {"type": "enabled", "budget_tokens": 24000}, None)),
        ({"max_output": 8000}, (8000, {"type": "enabled", "budget_tokens": 6000}, None)),
        ({"max_output": 1000, "temperature": 0.5}, (1000, None, 0.5)),  # no room for thinking
        (
            {"model": "claude-opus-5-5", "temperature": 0.5},
            (128000, {"type": "adaptive", "display": "summarized"}, None),
        ),
    ],
)
def test_the_thinking_budget_stays_below_max_output(fields: dict[str, Any], expected: tuple[object, ...]) -> None:
    encoded = body(UserMessage("hi"), think=True, **fields)

    assert (encoded["max_tokens"], encoded.get("thinking"), encoded.get("temperature")) == expected


def test_no_temperature_is_sent_to_models_without_one() -> None:
    assert "temperature" not in body(UserMessage("hi"), model="claude-opus-4-8", temperature=0.5)


def test_thinking_is_not_requested_after_calls_made_without_it() -> None:
    without_thinking = (
        UserMessage("hi"),
        AssistantMessage("", (ToolCall("search", "{}", "a"),)),
        ToolMessage("search", "x"),
    )
    signed = AssistantMessage("", (ToolCall("search", "{}", "b"),), (Thinking("hm", "sig"),))

    assert "thinking" not in body(*without_thinking, think=True)
    assert "thinking" in body(*without_thinking, AssistantMessage("done"), UserMessage("more"), think=True)
    assert "thinking" in body(*without_thinking, signed, ToolMessage("search", "y"), think=True)


def test_results_share_one_message_with_the_text_that_follows() -> None:
    reply = AssistantMessage("Let me look.", (ToolCall("search", '{"q": 1}', "a"), ToolCall("list_files", "", "b")))

    assert encoded_messages(
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


def test_missing_repeated_or_invalid_call_ids_are_replaced() -> None:
    invalid = (ToolCall("search", '{"q":1}'), ToolCall("search", '{"q":2}', "a|b"))
    first = AssistantMessage("", (*invalid, ToolCall("list_files", "{}", "c")))
    second = AssistantMessage("", (ToolCall("search", '{"q":3}', "c"),))

    assert encoded_messages(
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
def test_arguments_are_sent_as_a_json_object(arguments: str, sent: dict[str, Any]) -> None:
    reply = AssistantMessage("", (ToolCall("search", arguments, "a"),))

    assert encoded_messages(UserMessage("Why?"), reply, ToolMessage("search", "x", "a"))[1][1] == [
        use("a", "search", **sent)
    ]


def test_invalid_characters_in_tool_names_are_replaced() -> None:
    reply = AssistantMessage("", (ToolCall("my tool.v2", "{}", "a"), ToolCall("", "{}", "b")))

    assert encoded_messages(UserMessage("Why?"), reply)[1][1] == [use("a", "my_tool_v2"), use("b", "_")]


def test_thinking_is_sent_back_unless_another_vendor_made_it() -> None:
    thoughts = (
        Thinking("hm", "sig"),
        Thinking("", "only signed"),
        Thinking(opaque="data"),
        Thinking("unsigned"),
        Thinking("other", "id", "encrypted"),
        Thinking("other", opaque="encrypted"),
        Thinking(opaque='{"type":"reasoning","encrypted_content":"x"}'),  # of another vendor's model, before a fallback
    )

    assert encoded_messages(UserMessage("Why?"), AssistantMessage("So.", (), thoughts), UserMessage("And?"))[1] == (
        "assistant",
        [
            {"type": "thinking", "thinking": "hm", "signature": "sig"},
            {"type": "thinking", "thinking": "", "signature": "only signed"},
            {"type": "redacted_thinking", "data": "data"},
            text("So."),
        ],
    )


def decode_reply(*content: dict[str, Any]) -> AssistantMessage:
    decoder = Decoder()
    decoder.feed_whole(json.dumps({"type": "message", "content": content, "stop_reason": "tool_use"}).encode())
    return decoder.finish().message


def test_thinking_between_text_and_calls_keeps_its_position() -> None:
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

    reply = decode_reply(*content)

    assert (reply.text, [call.id for call in reply.calls]) == ("Let me look.🦆", ["a", "b"])
    assert encoded_messages(UserMessage("Why?"), reply)[1][1] == content
    # A changed reply is sent in the usual order.
    assert encoded_messages(UserMessage("Why?"), structs.replace(reply, text="Done."))[1][1] == [
        first,
        second,
        text("Done."),
        use("a", "search", q=1),
        use("b", "ls"),
    ]


def test_a_reply_in_the_usual_order_has_no_order_note() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "sig"}

    assert decode_reply(thought, text("So."), use("a", "search")).thinking == (Thinking("hm", "sig"),)
    assert decode_reply(use("a", "search"), text("So.")).thinking == ()


def test_trailing_thinking_is_left_out() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "sig"}

    assert encoded_messages(UserMessage("Why?"), decode_reply(text("So."), thought), UserMessage("And?"))[1][1] == [
        text("So.")
    ]


def test_empty_texts_are_replaced_or_left_out() -> None:
    call = AssistantMessage(" \n", (ToolCall("search", "{}", "a"), ToolCall("search", "{}", "b")))

    assert encoded_messages(
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


def test_unmatched_calls_and_results_are_repaired() -> None:
    calls = AssistantMessage("", (ToolCall("search", "{}", "a"), ToolCall("list_files", "{}", "b")))

    assert encoded_messages(UserMessage("Why?"), calls, ToolMessage("list_files", "x", "b"))[-1] == (
        "user",
        [result("b", "x"), failure("a", UNFINISHED)],
    )
    assert encoded_messages(UserMessage("Why?"), calls)[-1][1] == [failure("a", UNFINISHED), failure("b", UNFINISHED)]
    assert encoded_messages(UserMessage("Why?"), calls, UserMessage("Stop."), ToolMessage("search", "late", "a"))[-1][
        1
    ] == [
        failure("a", UNFINISHED),
        failure("b", UNFINISHED),
        text("Stop."),
        text("[result of a call of search that is no longer shown]\nlate"),
    ]


def test_an_empty_conversation_gets_a_user_message() -> None:
    assert encoded_messages() == encoded_messages(AssistantMessage()) == [("user", [text("[go on]")])]


def test_a_conversation_never_ends_with_the_model() -> None:
    assert encoded_messages(UserMessage("Why?"), AssistantMessage("Because "))[-1] == ("user", [text("[go on]")])


def test_cache_marks_are_at_the_end_of_this_and_the_last_request() -> None:
    history: list[Message] = [UserMessage("Why?"), UserMessage("Now."), AssistantMessage("Hm.", (ToolCall("search"),))]
    history += [ToolMessage("search", "x"), UserMessage("Well?")]
    encoded = body(*history, system="Be brief.", tools=TOOLS)
    blocks = [block for _, content in messages_of(encoded) for block in content]

    assert ["cache_control" in block for block in blocks] == [False, True, False, False, False, True]
    assert encoded["system"][-1]["cache_control"] == encoded["tools"][-1]["cache_control"] == MARK


def test_a_replaced_history_is_encoded_again() -> None:
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
    return [without_mark(block) | {"role": role} for role, content in messages_of(json.loads(raw)) for block in content]


@given(MESSAGES, st.booleans())
def test_any_history_is_accepted_and_encoded_the_same_at_every_turn(history: list[Message], think: bool) -> None:
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
        assert rejection_of(heard) is None
        # Encoded messages stay; only placeholders at the end may be replaced.
        now = blocks_of(raw)
        given_way = len(before)
        while given_way and (before[given_way - 1].get("content"), before[given_way - 1].get("text")) in STOPGAPS:
            given_way -= 1
        assert now[:given_way] == before[:given_way]
        before = now
