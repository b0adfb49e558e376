"""Anthropic's wire keeps the promises of a provider, over a real connection to a fake vendor; so does Google's."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from retinue.core.errors import BadInput, ProviderError
from retinue.core.history import History, forked
from retinue.core.messages import (
    AssistantMessage,
    Delta,
    Message,
    Reply,
    StartDelta,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from retinue.core.ports import Provider, Request
from retinue.core.usage import Usage
from retinue.providers.anthropic.provider import AnthropicProvider
from retinue.providers.pricing import ModelPrices, PricedProvider, Rates
from retinue.providers.scripted import Line, calls, fails, says, together
from retinue.testing.contracts.provider import PROMISES, TOOLS, Listener, Promise, question
from retinue.testing.fake_chat import EVENTS
from retinue.testing.fake_prompts import Prompt
from retinue.testing.fake_server import Answer, Heard
from tests.providers.fakes.anthropic import FakeAnthropic, answer_of, event, failed, replies
from tests.providers.fakes.anthropic_rules import signature_of


@asynccontextmanager
async def stage(line: Line) -> AsyncGenerator[Provider]:
    async with FakeAnthropic(line) as vendor, AnthropicProvider(vendor.base_url) as provider:
        yield provider


@asynccontextmanager
async def stage_of_single_bytes(line: Line) -> AsyncGenerator[Provider]:
    async with FakeAnthropic(line, chunk=1) as vendor, AnthropicProvider(vendor.base_url) as provider:
        yield provider


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_wire_keeps_the_promises_of_a_provider(promise: Promise) -> None:
    await promise(stage)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_wire_keeps_them_one_byte_at_a_time(promise: Promise) -> None:
    await promise(stage_of_single_bytes)


def unstreamed(heard: Heard) -> Heard:
    return replace(heard, body=heard.body | {"stream": False})


def unheard(_: Delta) -> None:
    """Hear nothing."""


async def failure(vendor: FakeAnthropic, request: Request, *, api_key_env: str | None = None) -> ProviderError:
    async with AnthropicProvider(vendor.base_url, api_key_env) as provider:
        with pytest.raises(ProviderError) as caught:
            await provider.answer(request, unheard)
    return caught.value


# ---- requests -------------------------------------------------------------------------------------------------------


async def test_a_request_has_the_key_the_version_and_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-ant-secret")
    async with (
        FakeAnthropic(says("yes")) as vendor,
        AnthropicProvider(vendor.base_url, "MY_KEY", {"x-team": "ours"}) as provider,
    ):
        await provider.answer(question(), unheard)

    (heard,) = vendor.heard
    names = ("x-api-key", "anthropic-version", "x-team", "content-type", "content-length", "authorization")
    assert (heard.method, heard.path) == ("POST", "/v1/messages")
    assert [heard.headers.get(name) for name in names] == [
        "sk-ant-secret",
        "2023-06-01",
        "ours",
        "application/json",
        str(len(heard.raw)),
        None,
    ]


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/", "/v1/messages"])
async def test_an_address_may_be_given_in_any_usual_way(tail: str) -> None:
    async with FakeAnthropic(says("yes")) as vendor, AnthropicProvider(vendor.base_url + tail) as provider:
        await provider.answer(question(), unheard)

    assert vendor.heard[0].path == "/v1/messages"


async def test_another_version_can_be_asked_for() -> None:
    async with (
        FakeAnthropic(says("yes")) as vendor,
        AnthropicProvider(vendor.base_url, headers={"Anthropic-Version": "2030-01-01"}) as provider,
    ):
        await provider.answer(question(), unheard)

    assert vendor.heard[0].headers["anthropic-version"] == "2030-01-01"


# ---- conversations --------------------------------------------------------------------------------------------------


async def talk(vendor: FakeAnthropic, messages: list[Message], *, turns: int, think: bool = False) -> list[Reply]:
    """Ask, answer every call with its number, and ask again."""
    request = replace(question(), messages=messages, think=think)
    said: list[Reply] = []
    async with AnthropicProvider(vendor.base_url) as provider:
        for _ in range(turns):
            reply = await provider.answer(request, unheard)
            said.append(reply)
            messages.append(reply.message)
            for number, call in enumerate(reply.message.calls):
                messages.append(ToolMessage(call.name, f"result {number}", call.id))
    return said


async def test_thoughts_come_back_to_the_vendor_as_it_signed_them() -> None:
    lines = iter(
        [
            together(says("", thinking="Logs first. 🦆"), calls("search", query="a")),
            together(says("Hm.", thinking="Now files."), calls("list_files")),
            says("The pool.", thinking="Clear."),
        ]
    )
    async with FakeAnthropic(lambda _: next(lines)) as vendor:  # refuses what it has not signed
        said = await talk(vendor, [UserMessage("Why is it slow?")], turns=3, think=True)

    assert [reply.message.thinking for reply in said] == [
        (Thinking(text, signature_of(text)),) for text in ("Logs first. 🦆", "Now files.", "Clear.")
    ]
    assert [reply.message.text for reply in said] == ["", "Hm.", "The pool."]
    blocks = [block["type"] for message in vendor.heard[2].body["messages"] for block in message["content"]]
    assert blocks == ["text", "thinking", "tool_use", "tool_result", "thinking", "text", "tool_use", "tool_result"]


async def test_what_was_read_before_is_reported_as_cached() -> None:
    lines = [
        together(
            *(calls("search", query=str(number)) for number in range(30))
        ),  # more blocks than the vendor looks back
        calls("list_files"),
        says("The pool."),
    ]
    async with FakeAnthropic(lambda heard: lines[replies(heard)]) as vendor:
        said = await talk(vendor, [UserMessage("Why is it slow? " * 100)], turns=3)

    usages = [reply.usage or Usage() for reply in said]
    assert usages[0].cached == 0
    # All of a request is remembered, and the next one begins with it.
    assert [usage.cached for usage in usages[1:]] == [usage.input for usage in usages[:-1]]


async def test_a_fork_reads_what_its_parent_had_read_from_the_cache() -> None:
    async with FakeAnthropic(lambda heard: says("ok")) as vendor, AnthropicProvider(vendor.base_url) as provider:
        parent = History()
        parent.append(UserMessage("Why is it slow? " * 100))
        asked = await provider.answer(replace(question(), messages=parent), unheard)
        parent.append(AssistantMessage("", tuple(ToolCall("search", f'{{"query":"{n}"}}', f"c{n}") for n in range(30))))
        child = forked(parent)
        child.append(UserMessage("Look at the pool."))
        reply = await provider.answer(replace(question(), messages=child), unheard)

    assert asked.usage is not None
    assert reply.usage is not None
    assert reply.usage.cached == asked.usage.input


async def test_a_fork_with_one_more_message_has_the_same_marks_before_it_and_reads_all_of_its_parent() -> None:
    async with FakeAnthropic(lambda heard: says("ok")) as vendor, AnthropicProvider(vendor.base_url) as provider:
        parent = History()
        parent.append(UserMessage("Why is it slow? " * 100))
        parent.append(AssistantMessage("Because.", (ToolCall("search", "{}", "c1"),)))
        parent.append(ToolMessage("search", "3 lines", "c1"))
        asked = await provider.answer(replace(question(), messages=parent), unheard)
        children = [forked(parent) for _ in range(3)]
        for number, child in enumerate(children):
            child.append(UserMessage(f"Look at part {number}."))
        said = [await provider.answer(replace(question(), messages=child, memo={}), unheard) for child in children]

    whole = (asked.usage or Usage()).input
    assert [(reply.usage or Usage()).cached for reply in said] == [whole, whole, whole]
    first, *others = ([*heard.body["tools"], *heard.body["system"]] for heard in vendor.heard)
    assert others == [first, first, first]


async def test_what_the_vendor_is_to_remember_is_counted_and_paid_for() -> None:
    tariff = ModelPrices({"model": Rates(input=4.0, output=8.0, cached=1.0, cache_write=5.0)})
    async with FakeAnthropic(says("ok")) as vendor, AnthropicProvider(vendor.base_url) as provider:
        priced = PricedProvider(provider, tariff)
        first = await priced.answer(question(), unheard)
        second = await priced.answer(question(), unheard)

    read = (first.usage or Usage()).input
    assert first.usage == Usage(input=read, output=1, written=read)
    assert second.usage == Usage(input=read, output=1, cached=read)
    assert (first.cost, second.cost) == (read * 5_000 + 8_000, read * 1_000 + 8_000)


async def test_a_turn_without_tools_has_those_of_the_turns_before_and_may_use_none() -> None:
    memo: dict[str, object] = {}
    messages: list[Message] = [UserMessage("Why is it slow? " * 100)]
    lines = [calls("search", query="a"), says("The pool.")]
    async with (
        FakeAnthropic(lambda heard: lines[replies(heard)]) as vendor,
        AnthropicProvider(vendor.base_url) as provider,
    ):
        with_tools = replace(question(), messages=messages, memo=memo)
        first = await provider.answer(with_tools, unheard)
        messages += [first.message, ToolMessage("search", "x", first.message.calls[0].id), UserMessage("Sum up.")]
        last = await provider.answer(replace(with_tools, tools=()), unheard)

    before, after = (heard.body for heard in vendor.heard)
    assert after["tools"] == before["tools"]
    assert (before.get("tool_choice"), after["tool_choice"]) == (None, {"type": "none"})
    declared = len(before["tools"]) + len(before["system"])
    assert declared == 3
    # The vendor reads messages anew when the choice of tools changes, but neither the tools nor the system text.
    assert 0 < (last.usage or Usage()).cached < (first.usage or Usage()).input


async def test_an_agent_without_tools_or_a_conversation_without_calls_declares_none() -> None:
    memo: dict[str, object] = {}
    async with FakeAnthropic(says("ok")) as vendor, AnthropicProvider(vendor.base_url) as provider:
        await provider.answer(replace(question(), memo=memo), unheard)
        await provider.answer(replace(question(), memo=memo, tools=()), unheard)
        called = [UserMessage("hi"), AssistantMessage("", (ToolCall("search", "{}", "a"),)), ToolMessage("search", "x")]
        await provider.answer(replace(question(), memo={}, tools=(), messages=called), unheard)

    assert ["tools" in heard.body for heard in vendor.heard] == [True, False, False]
    assert not any("tool_choice" in heard.body for heard in vendor.heard)


async def test_other_tools_lose_the_cache_and_another_system_text_keeps_the_tools() -> None:
    async with FakeAnthropic(says("ok")) as vendor, AnthropicProvider(vendor.base_url) as provider:
        said = [
            await provider.answer(request, unheard)
            for request in (
                question(),
                replace(question(), tools=TOOLS[:1]),
                replace(question(), system="Be long."),
                question(),
            )
        ]

    first, other_tools, other_system, same = (reply.usage or Usage() for reply in said)
    assert (first.cached, other_tools.cached) == (0, 0)
    assert 0 < other_system.cached < same.cached == first.input


# ---- answers --------------------------------------------------------------------------------------------------------


async def test_a_thought_is_published_as_it_comes() -> None:
    async with FakeAnthropic(says("yes", thinking="hm")) as vendor, AnthropicProvider(vendor.base_url) as provider:
        listener = Listener()
        await provider.answer(question(), listener.publish)

    start, *said = listener.heard
    assert (isinstance(start, StartDelta), said) == (True, [ThinkingDelta("hm"), TextDelta("yes")])


async def test_an_answer_that_is_no_stream_is_understood() -> None:
    line = together(says("Let me look.", thinking="hm"), calls("search", query="a"), calls("list_files"))
    async with (
        FakeAnthropic(lambda heard: answer_of(line, unstreamed(heard), Prompt(total=1))) as vendor,
        AnthropicProvider(vendor.base_url) as provider,
    ):
        listener = Listener()
        reply = await provider.answer(question(), listener.publish)

    made = (ToolCall("search", '{"query":"a"}', "toolu_fake_1_0"), ToolCall("list_files", "{}", "toolu_fake_1_1"))
    assert reply.message == AssistantMessage("Let me look.", made, (Thinking("hm", signature_of("hm")),))
    assert (listener.text, listener.thinking) == ("Let me look.", "hm")
    assert listener.calls == [("search", '{"query":"a"}'), ("list_files", "{}")]
    assert (reply.stop, reply.model, reply.response_id) == ("calls", "fake-1", "msg_1")


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("overloaded_error", "overloaded"),
        ("api_error", "overloaded"),
        ("rate_limit_error", "rate_limited"),
        ("timeout_error", "timeout"),
        ("invalid_request_error", "bad_request"),
        ("authentication_error", "auth"),
        ("permission_error", "auth"),
        ("something_new", "internal"),
    ],
)
async def test_an_error_inside_the_stream_says_whether_to_try_again(kind: str, fault: str) -> None:
    begun = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "It is"})
    told = event("error", error={"type": kind, "message": "No, sorry."})
    async with FakeAnthropic(Answer(headers=EVENTS, pieces=(begun, told))) as vendor:
        error = await failure(vendor, question())

    assert (error.fault, error.partial) == (fault, "It is")
    assert "No, sorry." in str(error)


# ---- errors ---------------------------------------------------------------------------------------------------------


async def test_a_wrong_key_names_its_variable_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "my-secret")
    async with FakeAnthropic(failed(401, "invalid x-api-key my-secret", kind="authentication_error")) as vendor:
        error = await failure(vendor, question(), api_key_env="MY_KEY")

    assert (error.fault, error.status) == ("auth", 401)
    assert "invalid x-api-key [key]" in str(error)
    assert "MY_KEY" in str(error)


async def test_a_missing_key_is_noticed_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    async with FakeAnthropic(says("yes")) as vendor:
        error = await failure(vendor, question(), api_key_env="MY_KEY")

    assert (error.fault, vendor.heard) == ("auth", [])
    assert "MY_KEY is not set" in str(error)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (failed(404, "model: nobody", kind="not_found_error"), "bad_request"),
        (failed(400, "prompt is too long: 208310 tokens > 200000 maximum"), "too_long"),
        (failed(400, "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"), "too_long"),
        (failed(413, "Request exceeds the maximum size", kind="request_too_large"), "too_long"),
        (failed(429, "slow down", kind="rate_limit_error", retry_after="7"), "rate_limited"),
        (failed(529, "Overloaded", kind="overloaded_error"), "overloaded"),
        (failed(500, "Internal server error", kind="api_error"), "overloaded"),
        (failed(403, "not yours", kind="permission_error"), "auth"),
    ],
)
async def test_a_refusal_says_why(answer: Answer, fault: str) -> None:
    async with FakeAnthropic(answer) as vendor:
        error = await failure(vendor, question())

    assert (error.fault, error.status) == (fault, answer.status)
    assert error.retry_after == (7.0 if answer.status == 429 else None)
    assert "'model'" in str(error) or fault != "too_long"


async def test_after_failures_the_same_bytes_are_answered() -> None:
    line = fails(ProviderError("busy", fault="overloaded", status=529), times=2, then=says("at last"))
    async with FakeAnthropic(line) as vendor, AnthropicProvider(vendor.base_url) as provider:
        request = question()
        for _ in range(2):
            with pytest.raises(ProviderError, match="busy"):
                await provider.answer(request, unheard)
        reply = await provider.answer(request, unheard)

    assert reply.message.text == "at last"
    assert len({heard.raw for heard in vendor.heard}) == 1


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(BadInput, match="not an address"):
        AnthropicProvider("api.anthropic.com")
