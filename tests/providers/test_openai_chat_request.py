"""Request bodies of the chat wire: encoded once, repaired where vendors are strict, always the same bytes."""

from collections.abc import Sequence
from typing import Any, overload

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.agent import ToolSpec
from retinue.core.messages import AssistantMessage, Message, Thinking, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Request
from retinue.core.state import UNFINISHED, History, forked
from retinue.providers.openai_chat.request import encode
from retinue.testing.fake_chat import request_error

SEARCH = ToolSpec("search", "Search the logs.", '{"type":"object","properties":{"query":{"type":"string"}}}')


def asking(*messages: Message, **options: Any) -> Request:
    return Request(model="m", system=options.pop("system", ""), messages=messages, **options)


def body(request: Request, *, sends_reasoning: bool = False) -> dict[str, Any]:
    return msgspec.json.decode(encode(request, sends_reasoning=sends_reasoning))


def sent(*messages: Message) -> list[dict[str, Any]]:
    return body(asking(*messages))["messages"]


def test_only_configured_options_are_sent() -> None:
    assert body(asking(UserMessage("hi"))) == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_all_configured_options_are_sent() -> None:
    request = asking(UserMessage("hi"), system="Be brief.", tools=(SEARCH,), max_output=100, temperature=0.5)

    assert body(request) == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 100,
        "temperature": 0.5,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "search",
                    "description": "Search the logs.",
                    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
                },
            }
        ],
    }


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("gpt-4.1", "max_tokens"),
        ("llama3.2", "max_tokens"),
        ("olmo-2", "max_tokens"),
        ("o4-mini", "max_completion_tokens"),
        ("gpt-5.1", "max_completion_tokens"),
        ("openai/gpt-5-mini", "max_completion_tokens"),
    ],
)
def test_reasoning_models_are_limited_by_max_completion_tokens(model: str, field: str) -> None:
    request = Request(model=model, system="", messages=[UserMessage("hi")], max_output=7)

    assert {name: value for name, value in body(request).items() if name.startswith("max")} == {field: 7}


def test_calls_and_results_are_encoded_by_role() -> None:
    assert sent(
        UserMessage("why?"),
        AssistantMessage("Let me look.", (ToolCall("search", '{"query":"pool"}', "a1"), ToolCall("ls", "", "a2"))),
        ToolMessage("search", "3 lines", "a1"),
        ToolMessage("ls", "", "a2", failed=True),
        UserMessage("a child has news", origin="notice"),
        AssistantMessage("Because."),
    ) == [
        {"role": "user", "content": "why?"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                {"id": "a1", "type": "function", "function": {"name": "search", "arguments": '{"query":"pool"}'}},
                {"id": "a2", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a1", "content": "3 lines"},
        {"role": "tool", "tool_call_id": "a2", "content": ""},
        {"role": "user", "content": "a child has news"},
        {"role": "assistant", "content": "Because."},
    ]


def test_empty_reply_text_is_null_with_calls_and_empty_without() -> None:
    calling, _, empty = sent(
        AssistantMessage(calls=(ToolCall("ls", "{}", "a"),)), ToolMessage("ls", "x"), AssistantMessage()
    )

    assert (calling["content"], empty) == (None, {"role": "assistant", "content": ""})


def ids(*messages: Message) -> list[str | list[str]]:
    """The ids of calls, one list per reply, and the ids of results."""
    found: list[str | list[str]] = []
    for message in sent(*messages):
        if message["role"] == "assistant":
            found.append([call["id"] for call in message["tool_calls"]])
        elif message["role"] == "tool":
            found.append(message["tool_call_id"])
    return found


def test_missing_call_ids_are_derived_from_the_position() -> None:
    one, other = ToolCall("one"), ToolCall("other")

    assert ids(
        AssistantMessage(calls=(one, other)), ToolMessage("one", "1"), ToolMessage("other", "2"),
        AssistantMessage(calls=(one,)), ToolMessage("one", "3"),
    ) == [["call_1_0", "call_1_1"], "call_1_0", "call_1_1", ["call_2_0"], "call_2_0"]  # fmt: skip


def test_repeated_call_ids_are_replaced() -> None:
    call = ToolCall("ls", "{}", "0")

    assert ids(
        AssistantMessage(calls=(call, call)), ToolMessage("ls", "1", "0"), ToolMessage("ls", "2", "0"),
        AssistantMessage(calls=(call,)), ToolMessage("ls", "3", "0"),
    ) == [["0", "call_1_1"], "0", "call_1_1", ["call_2_0"], "call_2_0"]  # fmt: skip


def test_a_derived_id_never_collides_with_a_vendors_id() -> None:
    assert ids(
        AssistantMessage(calls=(ToolCall("ls", "{}", "call_1_1"), ToolCall("ls"))),
        ToolMessage("ls", "1"),
        ToolMessage("ls", "2"),
    ) == [["call_1_1", "call_1_1_"], "call_1_1_", "call_1_1"]


@pytest.mark.parametrize("call_id", ["x" * 41, "functions.ls:0", "größe"])
def test_an_unusual_call_id_is_left_as_it_is(call_id: str) -> None:
    assert ids(AssistantMessage(calls=(ToolCall("ls", "{}", call_id),)), ToolMessage("ls", "1", call_id)) == [
        [call_id],
        call_id,
    ]


def test_results_are_matched_to_calls_in_any_order() -> None:
    made = AssistantMessage(calls=(ToolCall("a", "{}", "1"), ToolCall("b", "{}", "2"), ToolCall("c", "{}", "3")))

    assert ids(made, ToolMessage("c", "", "3"), ToolMessage("b", ""), ToolMessage("renamed", "")) == [
        ["1", "2", "3"], "3", "2", "1",
    ]  # fmt: skip


def test_calls_without_a_result_get_a_placeholder_before_the_next_message() -> None:
    made = AssistantMessage(calls=(ToolCall("a", "{}", "1"), ToolCall("b", "{}", "2")))

    assert sent(made, ToolMessage("b", "done", "2"), UserMessage("go on"))[1:] == [
        {"role": "tool", "tool_call_id": "2", "content": "done"},
        {"role": "tool", "tool_call_id": "1", "content": UNFINISHED},
        {"role": "user", "content": "go on"},
    ]


def test_a_late_result_replaces_its_placeholder() -> None:
    history, memo = History(), dict[str, object]()
    history.append(AssistantMessage(calls=(ToolCall("a", "{}", "1"),)))
    request = Request(model="m", system="", messages=history, memo=memo)

    before = body(request)["messages"][1:]
    history.append(ToolMessage("a", "done", "1"))

    assert before == [{"role": "tool", "tool_call_id": "1", "content": UNFINISHED}]
    assert body(request)["messages"][1:] == [{"role": "tool", "tool_call_id": "1", "content": "done"}]


def test_a_result_without_its_call_becomes_a_user_message() -> None:
    assert sent(ToolMessage("ls", "3 files", "gone")) == [
        {"role": "user", "content": "[result of a call of ls that is no longer shown]\n3 files"}
    ]


@pytest.mark.parametrize("written", ['{"query": ', "[1]", '"x"', "null", "nonsense", "\ud83d"])
def test_arguments_that_are_not_an_object_are_wrapped_in_one(written: str) -> None:
    reply, _ = sent(AssistantMessage(calls=(ToolCall("ls", written, "1"),)))

    utf8_safe = written.replace("\ud83d", "?")
    assert msgspec.json.decode(reply["tool_calls"][0]["function"]["arguments"]) == {"not_a_json_object": utf8_safe}


def test_reasoning_is_sent_back_only_with_calls_and_if_enabled() -> None:
    thought = (Thinking("hm"), Thinking("!"))
    request = asking(
        AssistantMessage("a", thinking=thought),
        AssistantMessage("b", (ToolCall("ls", "{}", "1"),), thought),
        ToolMessage("ls", "x"),
    )

    assert [message.get("reasoning_content") for message in body(request)["messages"]] == [None, None, None]
    wanted = body(request, sends_reasoning=True)["messages"]
    assert [message.get("reasoning_content") for message in wanted] == [None, "hm!", None]


def test_lone_surrogates_are_replaced() -> None:
    tool = ToolSpec("t\udc00", "d\udc00")
    request = asking(UserMessage("a\udcffb 🦆"), system="s\ud800", tools=(tool,))

    assert body(request)["messages"] == [{"role": "system", "content": "s?"}, {"role": "user", "content": "a?b 🦆"}]


# ---- incremental encoding -------------------------------------------------------------------------------------------


class Watched(Sequence[Message]):
    """A sequence of messages that records which ones were read."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.seen: set[int] = set()

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        places = range(len(self.messages))[index]
        self.seen |= {places} if isinstance(places, int) else set(places)
        return self.messages[index]

    def __len__(self) -> int:
        return len(self.messages)


def test_encoded_messages_are_not_read_again() -> None:
    history: list[Message] = [UserMessage(str(number)) for number in range(100)]
    memo: dict[str, object] = {}
    encode(Request(model="m", system="s", messages=history, memo=memo))
    history += [AssistantMessage("a"), UserMessage("b")]
    watched = Watched(history)

    again = encode(Request(model="m", system="s", messages=watched, memo=memo))

    assert watched.seen == {0, 99, 100, 101}  # the check of the first and last, and the new ones
    assert again == encode(Request(model="m", system="s", messages=history))


def test_a_repeated_request_has_the_same_bytes() -> None:
    request = asking(UserMessage("hi"), AssistantMessage("b", (ToolCall("ls", "{}"),)), system="s", tools=(SEARCH,))

    assert encode(request) == encode(request)


def test_a_summary_in_place_of_old_messages_is_detected() -> None:
    history, memo = History(), dict[str, object]()
    for number in range(10):
        history.append(UserMessage(str(number)))
    request = Request(model="m", system="", messages=history, memo=memo)
    encode(request)
    history.replace_first(9, [UserMessage("nine numbers")])

    assert [message["content"] for message in body(request)["messages"]] == ["nine numbers", "9"]


def test_changed_tools_and_system_text_are_sent() -> None:
    memo: dict[str, object] = {}
    messages = [UserMessage("hi")]
    one = encode(Request(model="m", system="s", messages=messages, tools=(SEARCH,), memo=memo))
    other = encode(Request(model="m", system="t", messages=messages, memo=memo))

    assert one == encode(Request(model="m", system="s", messages=messages, tools=(SEARCH,)))
    assert other == encode(Request(model="m", system="t", messages=messages))


def test_a_fork_begins_with_the_bytes_of_its_parent() -> None:
    parent = History()
    for message in (UserMessage("why?"), AssistantMessage("b", (ToolCall("ls", "{}"),)), ToolMessage("ls", "x")):
        parent.append(message)
    child = forked(parent)
    child.append(UserMessage("your task"))
    of_parent, of_child = (encode(Request(model="m", system="s", messages=each)) for each in (parent, child))

    assert of_child.startswith(of_parent.removesuffix(b"]}"))


WORDS = st.sampled_from(["", "a", "naïve 🦆", '"\n', "\ud800"])
IDS = st.sampled_from(["", "0", "1", "call_1_0", "call_2_0", "x" * 50])
NAMES = st.sampled_from(["ls", "search"])
CALLS = st.builds(ToolCall, NAMES, st.sampled_from(["{}", "", "nonsense", '{"a":1}']), IDS)
MESSAGES = st.one_of(
    st.builds(UserMessage, WORDS),
    st.builds(AssistantMessage, WORDS, st.lists(CALLS, max_size=3).map(tuple)),
    st.builds(ToolMessage, NAMES, WORDS, IDS),
    st.builds(ToolMessage, NAMES, WORDS, IDS),
)


@given(st.lists(MESSAGES, min_size=1, max_size=12))
def test_any_history_is_encoded_as_one_vendors_accept(history: list[Message]) -> None:
    assert request_error(body(asking(*history))) is None


@given(st.lists(MESSAGES, min_size=1, max_size=12), st.sets(st.integers(1, 12)))
def test_incremental_encoding_equals_a_fresh_start(history: list[Message], turns: set[int]) -> None:
    memo: dict[str, object] = {}
    for turn in sorted(turns):
        so_far = history[:turn]
        kept = encode(Request(model="m", system="s", messages=so_far, tools=(SEARCH,), memo=memo))
        assert kept == encode(Request(model="m", system="s", messages=so_far, tools=(SEARCH,)))
