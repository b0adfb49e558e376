"""Request bodies of the Gemini wire: encoded once, repaired where the API is strict, always the same bytes."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.agent import ToolSpec
from retinue.core.messages import AssistantMessage, Message, Thinking, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Request
from retinue.core.state import UNFINISHED, History, forked
from retinue.providers.gemini.request import encode
from tests.providers.fakes.gemini import rejection_of
from tests.providers.gemini_events import call, chunk, decode_reply, text

SEARCH = ToolSpec("search", "Search the logs.", '{"type":"object","properties":{"query":{"type":"string"}}}')


def asking(*messages: Message, **options: Any) -> Request:
    return Request(
        model=options.pop("model", "gemini-2.5-pro"), system=options.pop("system", ""), messages=messages, **options
    )


def body(request: Request) -> dict[str, Any]:
    return msgspec.json.decode(encode(request))


def sent(*messages: Message, model: str = "gemini-2.5-pro") -> list[dict[str, Any]]:
    return body(asking(*messages, model=model))["contents"]


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def result(name: str, content: str, kind: str = "result", **others: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": {kind: content}} | others}


def test_only_configured_options_are_sent() -> None:
    assert body(asking(UserMessage("hi"))) == {"contents": [user(text("hi"))]}


def test_all_configured_options_are_sent() -> None:
    request = asking(
        UserMessage("hi"), system="Be brief.", tools=(SEARCH,), max_output=100, temperature=0.5, think=True
    )

    assert body(request) == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "search",
                        "description": "Search the logs.",
                        "parametersJsonSchema": {"type": "object", "properties": {"query": {"type": "string"}}},
                    }
                ]
            }
        ],
        "generationConfig": {
            "maxOutputTokens": 100,
            "temperature": 0.5,
            "thinkingConfig": {"includeThoughts": True, "thinkingBudget": -1},
        },
        "contents": [user(text("hi"))],
    }


def test_newer_models_get_no_thinking_budget() -> None:
    request = asking(UserMessage("hi"), model="gemini-3-pro-preview", think=True)

    assert body(request)["generationConfig"] == {"thinkingConfig": {"includeThoughts": True}}


def test_calls_and_results_are_encoded_as_contents() -> None:
    assert sent(
        UserMessage("why?"),
        AssistantMessage("Let me look.", (ToolCall("search", '{"query":"pool"}'), ToolCall("ls", "", "a2"))),
        ToolMessage("ls", "no such folder", "a2", failed=True),
        ToolMessage("search", "3 lines"),
        UserMessage("a child has news", origin="notice"),
        AssistantMessage("Because."),
    ) == [
        user(text("why?")),
        model(
            text("Let me look."),
            {"functionCall": {"name": "search", "args": {"query": "pool"}}},
            {"functionCall": {"id": "a2", "name": "ls", "args": {}}},
        ),
        user(result("search", "3 lines"), result("ls", "no such folder", "error", id="a2")),
        user(text("a child has news")),
        model(text("Because.")),
    ]


# ---- signatures -----------------------------------------------------------------------------------------------------


def test_each_signature_is_sent_back_on_its_part() -> None:
    reply = decode_reply(
        chunk(text("Hm.", thought=True), text("So.", thought=True, thoughtSignature="a")),
        chunk(text("naïve "), text("日本 "), text("🦆 ", thoughtSignature="b"), text("yes")),
        chunk(call("ls", {"a": 1}, thoughtSignature="c"), call("rm", {}), call("rm", {}, thoughtSignature="d")),
        chunk(text("", thoughtSignature="e"), finish="STOP"),
    )

    assert sent(reply.message)[0] == model(
        text("So.", thought=True, thoughtSignature="a"),
        text("naïve 日本 "),
        text("🦆 ", thoughtSignature="b"),
        text("yes"),
        text("", thoughtSignature="e"),
        call("ls", {"a": 1}, thoughtSignature="c"),
        call("rm", {}),
        call("rm", {}, thoughtSignature="d"),
    )


def test_a_signature_without_its_part_is_left_out() -> None:
    reply = decode_reply(chunk(text("yes", thoughtSignature="b"), call("ls", {}, thoughtSignature="c"), finish="STOP"))
    shortened = msgspec.structs.replace(reply.message, text="no", calls=())

    assert sent(shortened) == [model(text("no"))]


@pytest.mark.parametrize(
    "thought",
    [
        Thinking("Hm."),
        Thinking("Hm.", "of another vendor"),
        Thinking(opaque="EmwKAhgBIgx3"),
        Thinking("Hm.", "rs_1", '{"type":"reasoning","encrypted_content":"x"}'),
        Thinking("Hm.", "", '{"type":"gemini.signature","on":"thought"}'),
        Thinking("Hm.", "a", '{"type":"gemini.signature","on":"elsewhere"}'),
    ],
)
def test_unsigned_thinking_is_not_sent(thought: Thinking) -> None:
    assert sent(AssistantMessage("So.", thinking=(thought,))) == [model(text("So."))]


@pytest.mark.parametrize(
    ("name", "wants"),
    [
        ("gemini-3-pro", True),
        ("models/gemini-3.5-flash", True),
        ("gemini-flash-latest", True),
        ("gemini-2.5-pro", False),
    ],
)
def test_calls_of_other_models_get_a_placeholder_signature(name: str, wants: bool) -> None:
    made = AssistantMessage(calls=(ToolCall("ls"), ToolCall("rm")))
    first, second = sent(made, model=name)[0]["parts"]

    assert first == call("ls", {}) | ({"thoughtSignature": "skip_thought_signature_validator"} if wants else {})
    assert second == call("rm", {})


def test_a_change_of_model_variant_encodes_the_history_again() -> None:
    made, memo = AssistantMessage(calls=(ToolCall("ls"),)), dict[str, object]()
    for name in ("gemini-2.5-pro", "gemini-3-pro", "gemini-2.5-pro"):
        assert encode(asking(made, model=name, memo=memo)) == encode(asking(made, model=name))


# ---- repairs --------------------------------------------------------------------------------------------------------


def test_repeated_or_too_long_call_ids_are_replaced() -> None:
    one, long = ToolCall("ls", "{}", "0"), ToolCall("ls", "{}", "x" * 129)
    made, answered, *_ = sent(AssistantMessage(calls=(one, one, long, ToolCall("ls"))))

    assert [part["functionCall"].get("id") for part in made["parts"]] == ["0", "call_1_1", "call_1_2", None]
    assert [part["functionResponse"].get("id") for part in answered["parts"]] == ["0", "call_1_1", "call_1_2", None]


def test_calls_without_a_result_get_a_placeholder_before_the_next_message() -> None:
    made = AssistantMessage(calls=(ToolCall("a"), ToolCall("b")))

    assert sent(made, ToolMessage("b", "done"), UserMessage("go on"))[1:] == [
        user(result("a", UNFINISHED), result("b", "done")),
        user(text("go on")),
    ]


def test_a_late_result_replaces_its_placeholder() -> None:
    history, memo = History(), dict[str, object]()
    history.append(AssistantMessage(calls=(ToolCall("a"),)))
    request = Request(model="m", system="", messages=history, memo=memo)

    before = body(request)["contents"][1:]
    history.append(ToolMessage("a", "done"))

    assert before == [user(result("a", UNFINISHED))]
    assert body(request)["contents"][1:] == [user(result("a", "done"))]


def test_a_result_without_its_call_becomes_a_user_message() -> None:
    assert sent(ToolMessage("ls", "3 files", "gone")) == [
        user(text("[result of a call of ls that is no longer shown]\n3 files"))
    ]


@pytest.mark.parametrize("written", ['{"query": ', "[1]", '"x"', "null", "nonsense", "\ud83d"])
def test_arguments_that_are_not_an_object_are_wrapped_in_one(written: str) -> None:
    made, _ = sent(AssistantMessage(calls=(ToolCall("ls", written),)))

    assert made["parts"] == [call("ls", {"not_a_json_object": written.replace("\ud83d", "?")})]


def test_lone_surrogates_are_replaced_even_when_escaped() -> None:
    made = AssistantMessage(calls=(ToolCall("ls", '{"a":"\\ud83d","b":"\\ud83e\\udd86"}'),))

    assert sent(UserMessage("a\udcffb 🦆"), made)[:2] == [
        user(text("a?b 🦆")),
        model(call("ls", {"a": "?", "b": "🦆"})),
    ]


def test_empty_text_is_sent_as_a_blank_and_an_empty_reply_left_out() -> None:
    assert sent(UserMessage(""), AssistantMessage(), UserMessage("go on")) == [user(text(" ")), user(text("go on"))]


# ---- incremental encoding -------------------------------------------------------------------------------------------


def test_a_fork_begins_with_the_bytes_of_its_parent() -> None:
    parent = History()
    for message in (UserMessage("why?"), AssistantMessage("b", (ToolCall("ls"),)), ToolMessage("ls", "x")):
        parent.append(message)
    child = forked(parent)
    child.append(UserMessage("your task"))
    of_parent, of_child = (encode(Request(model="m", system="s", messages=each)) for each in (parent, child))

    assert of_child.startswith(of_parent.removesuffix(b"]}"))


WORDS = st.sampled_from(["", "a", "naïve 🦆", '"\n', "\ud800"])
IDS = st.sampled_from(["", "0", "1", "call_1_0", "call_2_0", "x" * 200])
NAMES = st.sampled_from(["ls", "search"])
CALLS = st.builds(ToolCall, NAMES, st.sampled_from(["{}", "", "nonsense", '{"a":1}']), IDS)
PLACES = st.builds(
    '{{"type":"gemini.signature","on":"{}","start":{},"end":{}}}'.format,
    st.sampled_from(["thought", "text", "call", "elsewhere"]),
    st.integers(-1, 3),
    st.integers(-1, 3),
)
THOUGHTS = st.lists(st.builds(Thinking, WORDS, st.sampled_from(["", "s"]), PLACES), max_size=3).map(tuple)
MESSAGES = st.one_of(
    st.builds(UserMessage, WORDS),
    st.builds(AssistantMessage, WORDS, st.lists(CALLS, max_size=3).map(tuple), THOUGHTS),
    st.builds(ToolMessage, NAMES, WORDS, IDS, st.booleans()),
    st.builds(ToolMessage, NAMES, WORDS, IDS),
)
MODELS = st.sampled_from(["gemini-2.5-pro", "gemini-3-pro"])


@given(st.lists(MESSAGES, max_size=12), MODELS)
def test_any_history_is_encoded_as_one_the_vendor_accepts(history: list[Message], name: str) -> None:
    request = asking(UserMessage("why?"), *history, model=name)

    assert rejection_of(body(request), signs=name == "gemini-3-pro") is None


@given(st.lists(MESSAGES, min_size=1, max_size=12), st.sets(st.integers(1, 12)), MODELS)
def test_incremental_encoding_equals_a_fresh_start(history: list[Message], turns: set[int], name: str) -> None:
    memo: dict[str, object] = {}
    for turn in sorted(turns):
        so_far = history[:turn]
        kept = encode(Request(model=name, system="s", messages=so_far, tools=(SEARCH,), memo=memo))
        assert kept == encode(Request(model=name, system="s", messages=so_far, tools=(SEARCH,)))
