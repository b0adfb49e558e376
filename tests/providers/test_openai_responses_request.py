"""Request bodies of the Responses wire: encoded once, repaired where the API is strict, always the same bytes."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.agent import ToolSpec
from retinue.core.messages import AssistantMessage, Message, Thinking, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Request
from retinue.core.state import UNFINISHED, History, forked
from retinue.providers.openai_responses.request import Spelling, encode
from tests.providers.fakes.responses import rejection_of
from tests.providers.responses_events import COMPLETED, decode_reply, done, item, text_delta

SEARCH = ToolSpec("search", "Search the logs.", '{"type":"object","properties":{"query":{"type":"string"}}}')
REASONING = '{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gA==", "new":  1}'


def asking(*messages: Message, **options: Any) -> Request:
    return Request(model="m", system=options.pop("system", ""), messages=messages, **options)


def body(request: Request, spelling: Spelling = "function_call") -> dict[str, Any]:
    return msgspec.json.decode(encode(request, spelling=spelling))


def sent(*messages: Message, spelling: Spelling = "function_call") -> list[dict[str, Any]]:
    return body(asking(*messages), spelling)["input"]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_text", "text": text}]}


def assistant(text: str, reply: int = 1, number: int = 0, **fields: str) -> dict[str, Any]:
    return {
        "type": "message",
        "id": f"msg_{reply}_{number}",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": list[object]()}],
    } | fields


def test_only_configured_options_are_sent() -> None:
    assert body(asking(UserMessage("hi"))) == {
        "model": "m",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [user("hi")],
    }


def test_all_configured_options_are_sent() -> None:
    request = asking(
        UserMessage("hi"), system="Be brief.", tools=(SEARCH,), max_output=100, temperature=0.5, think=True
    )

    assert body(request) == {
        "model": "m",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 100,
        "temperature": 0.5,
        "reasoning": {"effort": "high", "summary": "detailed"},
        "instructions": "Be brief.",
        "tools": [
            {
                "type": "function",
                "name": "search",
                "description": "Search the logs.",
                "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
                "strict": False,
            }
        ],
        "tool_choice": "auto",
        "input": [user("hi")],
    }


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("gpt-5.2", True),
        ("o4-mini", True),
        ("openai/gpt-oss-120b", True),
        ("gpt-4o", False),
        ("openai/gpt-4.1-mini", False),
        ("gpt-5.2-chat-latest", False),
    ],
)
def test_models_without_reasoning_are_not_asked_for_reasoning_items(model: str, asked: bool) -> None:
    request = Request(model=model, system="", messages=[UserMessage("hi")])

    assert ("include" in body(request)) is asked


TURN: list[Message] = [
    UserMessage("why?"),
    AssistantMessage("Let me look.", (ToolCall("search", '{"query":"pool"}', "a1"), ToolCall("ls", "", "a2"))),
    ToolMessage("ls", "", "a2", failed=True),
    ToolMessage("search", "3 lines", "a1"),
    UserMessage("a child has news", origin="notice"),
    AssistantMessage("Because."),
]


def test_calls_and_results_are_encoded_as_items() -> None:
    assert sent(*TURN) == [
        user("why?"),
        assistant("Let me look."),
        {"type": "function_call", "call_id": "a1", "name": "search", "arguments": '{"query":"pool"}'},
        {"type": "function_call", "call_id": "a2", "name": "ls", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a1", "output": "3 lines"},
        {"type": "function_call_output", "call_id": "a2", "output": ""},
        user("a child has news"),
        assistant("Because.", 2),
    ]


def test_tool_call_spelling_has_its_own_items() -> None:
    assert sent(*TURN, spelling="tool_call")[2:6] == [
        {"type": "tool_call", "id": "a1", "name": "search", "arguments": '{"query":"pool"}'},
        {"type": "tool_call", "id": "a2", "name": "ls", "arguments": "{}"},
        {"type": "tool_result", "tool_call_id": "a1", "content": "3 lines"},
        {"type": "tool_result", "tool_call_id": "a2", "content": ""},
    ]


def test_a_change_of_spelling_encodes_the_history_again() -> None:
    request = asking(*TURN)

    assert encode(request) == encode(asking(*TURN))
    assert encode(request, spelling="tool_call") == encode(asking(*TURN), spelling="tool_call")


# ---- reasoning items ------------------------------------------------------------------------------------------------


def test_reasoning_items_are_sent_back_unchanged_in_position() -> None:
    thinking = (
        Thinking("Hm.", "rs_1", REASONING),
        Thinking(signature="rs_2", opaque=REASONING.replace("rs_1", "rs_2")),
    )
    request = asking(UserMessage("why?"), AssistantMessage("So.", (ToolCall("ls", "{}", "a"),), thinking))

    assert f",{REASONING},{REASONING.replace('rs_1', 'rs_2')},{{".encode() in encode(request)
    assert [each.get("type", each.get("role")) for each in body(request)["input"]] == [
        "user", "reasoning", "reasoning", "message", "function_call", "function_call_output",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "thought",
    [
        Thinking("Hm."),
        Thinking("Hm.", signature="of another vendor"),
        Thinking(opaque="EmwKAhgBIgx3"),
        Thinking("Hm.", "x", '{"type":"gemini.signature","on":0}'),
        Thinking("Hm.", "x", '{"type":"reasoning"'),
        Thinking("Hm.", "rs_1", '{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":null}'),
    ],
)
def test_reasoning_the_vendor_cannot_read_is_not_sent(thought: Thinking) -> None:
    assert sent(AssistantMessage("So.", thinking=(thought,))) == [assistant("So.")]


def test_trailing_reasoning_is_not_sent() -> None:
    assert sent(UserMessage("a"), AssistantMessage(thinking=(Thinking("Hm.", "rs_1", REASONING),))) == [
        user("a"),
        assistant(""),
    ]


def test_an_unusual_item_order_is_kept() -> None:
    first, second = (item("reasoning", id=each, summary=[], encrypted_content="x") for each in ("rs_1", "rs_2"))
    one, two = (item("function_call", call_id=each, name="ls", arguments="{}") for each in "ab")
    reply = decode_reply(
        done(first), done(one), text_delta("Now "), done(item("message", content="Now ")), done(second), done(two),
        text_delta("the rest 🦆.", item_id="m"), COMPLETED,
    )  # fmt: skip

    assert (reply.message.text, len(reply.message.thinking)) == ("Now \n\nthe rest 🦆.", 3)
    assert sent(reply.message, ToolMessage("ls", "1", "a"), ToolMessage("ls", "2", "b"))[:6] == [
        first, one, assistant("Now "), second, two, assistant("the rest 🦆.", number=1),
    ]  # fmt: skip
    shortened = msgspec.structs.replace(reply.message, text="")  # the noted order no longer fits
    assert sent(shortened)[:4] == [first, second, one, two]


# ---- repairs --------------------------------------------------------------------------------------------------------


def ids(*messages: Message) -> list[str]:
    return [each["call_id"] for each in sent(*messages) if "call_id" in each]


def test_unusable_call_ids_are_derived_from_the_position() -> None:
    call, long = ToolCall("ls", "{}", "0"), ToolCall("ls", "{}", "x" * 65)

    assert (
        ids(
            AssistantMessage(calls=(call, call, ToolCall("ls"))),
            ToolMessage("ls", "1", "0"),
            AssistantMessage(calls=(call, long, ToolCall("ls", "{}", "call_2_3"), ToolCall("ls"))),
        )
        == ["0", "call_1_1", "call_1_2"] * 2 + ["call_2_0", "call_2_1", "call_2_3", "call_2_3_"] * 2
    )


def test_results_are_matched_to_calls_in_any_order() -> None:
    made = AssistantMessage(calls=(ToolCall("a", "{}", "1"), ToolCall("b", "{}", "2"), ToolCall("c", "{}", "3")))
    answered = sent(made, ToolMessage("c", "C", "3"), ToolMessage("b", "B"), ToolMessage("renamed", "A"))[3:]

    assert [(each["call_id"], each["output"]) for each in answered] == [("1", "A"), ("2", "B"), ("3", "C")]


def test_calls_without_a_result_get_a_placeholder_before_the_next_message() -> None:
    made = AssistantMessage(calls=(ToolCall("a", "{}", "1"), ToolCall("b", "{}", "2")))

    assert sent(made, ToolMessage("b", "done", "2"), UserMessage("go on"))[2:] == [
        {"type": "function_call_output", "call_id": "1", "output": UNFINISHED},
        {"type": "function_call_output", "call_id": "2", "output": "done"},
        user("go on"),
    ]


def test_a_late_result_replaces_its_placeholder() -> None:
    history, memo = History(), dict[str, object]()
    history.append(AssistantMessage(calls=(ToolCall("a", "{}", "1"),)))
    request = Request(model="m", system="", messages=history, memo=memo)

    before = body(request)["input"][1:]
    history.append(ToolMessage("a", "done", "1"))

    assert before == [{"type": "function_call_output", "call_id": "1", "output": UNFINISHED}]
    assert body(request)["input"][1:] == [{"type": "function_call_output", "call_id": "1", "output": "done"}]


def test_a_result_without_its_call_becomes_a_user_message() -> None:
    assert sent(ToolMessage("ls", "3 files", "gone")) == [
        user("[result of a call of ls that is no longer shown]\n3 files")
    ]


@pytest.mark.parametrize("written", ['{"query": ', "[1]", '"x"', "null", "nonsense", "\ud83d"])
def test_arguments_that_are_not_an_object_are_wrapped_in_one(written: str) -> None:
    made, _ = sent(AssistantMessage(calls=(ToolCall("ls", written, "1"),)))

    assert msgspec.json.decode(made["arguments"]) == {"not_a_json_object": written.replace("\ud83d", "?")}


def test_lone_surrogates_are_replaced() -> None:
    request = asking(UserMessage("a\udcffb 🦆"), system="s\ud800", tools=(ToolSpec("t\udc00", "d\udc00"),))

    assert (body(request)["instructions"], body(request)["input"]) == ("s?", [user("a?b 🦆")])


# ---- incremental encoding -------------------------------------------------------------------------------------------


def test_a_summary_in_place_of_old_messages_is_detected() -> None:
    history, memo = History(), dict[str, object]()
    for number in range(10):
        history.append(UserMessage(str(number)))
    request = Request(model="m", system="", messages=history, memo=memo)
    encode(request)
    history.replace_first(9, [UserMessage("nine numbers")])

    assert body(request)["input"] == [user("nine numbers"), user("9")]


def test_a_fork_begins_with_the_bytes_of_its_parent() -> None:
    parent = History()
    for message in TURN[:4]:
        parent.append(message)
    child = forked(parent)
    child.append(UserMessage("your task"))
    of_parent, of_child = (encode(Request(model="m", system="s", messages=each)) for each in (parent, child))

    assert of_child.startswith(of_parent.removesuffix(b"]}"))


WORDS = st.sampled_from(["", "a", "naïve 🦆", '"\n', "\ud800"])
IDS = st.sampled_from(["", "0", "1", "call_1_0", "call_2_0", "x" * 80])
NAMES = st.sampled_from(["ls", "search"])
CALLS = st.builds(ToolCall, NAMES, st.sampled_from(["{}", "", "nonsense", '{"a":1}']), IDS)
OPAQUE = st.sampled_from(
    ["", REASONING, '{"type":"responses.order","items":["reasoning","call"]}', '{"type":"responses.order","items":[1]}']
)
THOUGHTS = st.lists(st.builds(Thinking, WORDS, st.just("s"), OPAQUE), max_size=2).map(tuple)
MESSAGES = st.one_of(
    st.builds(UserMessage, WORDS),
    st.builds(AssistantMessage, WORDS, st.lists(CALLS, max_size=3).map(tuple), THOUGHTS),
    st.builds(ToolMessage, NAMES, WORDS, IDS),
    st.builds(ToolMessage, NAMES, WORDS, IDS),
)
SPELLINGS: st.SearchStrategy[Spelling] = st.sampled_from(["function_call", "tool_call"])


@given(st.lists(MESSAGES, min_size=1, max_size=12), SPELLINGS)
def test_any_history_is_encoded_as_one_the_vendor_accepts(history: list[Message], spelling: Spelling) -> None:
    assert rejection_of(body(asking(*history), spelling), spelling) is None


@given(st.lists(MESSAGES, min_size=1, max_size=12), st.sets(st.integers(1, 12)), SPELLINGS)
def test_incremental_encoding_equals_a_fresh_start(history: list[Message], turns: set[int], spelling: Spelling) -> None:
    memo: dict[str, object] = {}
    for turn in sorted(turns):
        so_far = history[:turn]
        kept = encode(Request(model="m", system="s", messages=so_far, tools=(SEARCH,), memo=memo), spelling=spelling)
        assert kept == encode(Request(model="m", system="s", messages=so_far, tools=(SEARCH,)), spelling=spelling)
