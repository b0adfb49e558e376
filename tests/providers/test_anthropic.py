"""The Anthropic wire against a fake server: the provider contract, prompt caching, thinking and errors."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.errors import BadInput, ProviderError
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
from retinue.core.state import History, forked
from retinue.core.usage import Usage
from retinue.providers.anthropic.response import AnthropicProvider
from retinue.providers.pricing import ModelPrices, PricedProvider, Rates
from retinue.providers.scripted import Line, calls, fails, says, together
from retinue.testing.contracts.provider import PROMISES, TOOLS, DeltaListener, Promise, sample_request
from retinue.testing.fake_chat import EVENTS, PromptTokens
from retinue.testing.fake_server import FakeResponse, ReceivedRequest
from tests.providers.fakes.anthropic import FakeAnthropic, answer_of, event, failed, replies
from tests.providers.fakes.anthropic_rules import signature_of


@asynccontextmanager
async def connect(line: Line) -> AsyncGenerator[Provider]:
    async with FakeAnthropic(line) as vendor, AnthropicProvider(vendor.base_url) as provider:
        yield provider


@asynccontextmanager
async def stage_of_single_bytes(line: Line) -> AsyncGenerator[Provider]:
    async with FakeAnthropic(line, chunk=1) as vendor, AnthropicProvider(vendor.base_url) as provider:
        yield provider


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_wire_keeps_the_provider_contract(promise: Promise) -> None:
    await promise(connect)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_wire_keeps_the_provider_contract_byte_by_byte(promise: Promise) -> None:
    await promise(stage_of_single_bytes)


def unstreamed(heard: ReceivedRequest) -> ReceivedRequest:
    return replace(heard, body=heard.body | {"stream": False})


def ignore(_: Delta) -> None:
    """Ignore all deltas."""


async def failure(vendor: FakeAnthropic, request: Request, *, api_key_env: str | None = None) -> ProviderError:
    async with AnthropicProvider(vendor.base_url, api_key_env) as provider:
        with pytest.raises(ProviderError) as caught:
            await provider.answer(request, ignore)
    return caught.value


# ---- requests -------------------------------------------------------------------------------------------------------


async def test_a_request_has_key_version_and_content_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-ant-secret")
    async with (
        FakeAnthropic(says("yes")) as vendor,
        AnthropicProvider(vendor.base_url, "MY_KEY", {"x-team": "ours"}) as provider,
    ):
        await provider.answer(sample_request(), ignore)

    (heard,) = vendor.requests
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
async def test_the_base_url_may_have_a_version_or_path_suffix(tail: str) -> None:
    async with FakeAnthropic(says("yes")) as vendor, AnthropicProvider(vendor.base_url + tail) as provider:
        await provider.answer(sample_request(), ignore)

    assert vendor.requests[0].path == "/v1/messages"


async def test_the_api_version_can_be_set_by_header() -> None:
    async with (
        FakeAnthropic(says("yes")) as vendor,
        AnthropicProvider(vendor.base_url, headers={"Anthropic-Version": "2030-01-01"}) as provider,
    ):
        await provider.answer(sample_request(), ignore)

    assert vendor.requests[0].headers["anthropic-version"] == "2030-01-01"


# ---- conversations --------------------------------------------------------------------------------------------------


async def converse(vendor: FakeAnthropic, messages: list[Message], *, turns: int, think: bool = False) -> list[Reply]:
    """Run a conversation to its end; the result of every call is its number."""
    request = replace(sample_request(), messages=messages, think=think)
    answers: list[Reply] = []
    async with AnthropicProvider(vendor.base_url) as provider:
        for _ in range(turns):
            reply = await provider.answer(request, ignore)
            answers.append(reply)
            messages.append(reply.message)
            for number, call in enumerate(reply.message.calls):
                messages.append(ToolMessage(call.name, f"result {number}", call.id))
    return answers


async def test_signed_thinking_is_sent_back_unchanged() -> None:
    lines = iter(
        [
            together(says("", thinking="Logs first. 🦆"), calls("search", query="a")),
            together(says("Hm.", thinking="Now files."), calls("list_files")),
            says("The pool.", thinking="Clear."),
        ]
    )
    async with FakeAnthropic(lambda _: next(lines)) as vendor:  # rejects what it has not signed
        answers = await converse(vendor, [UserMessage("Why is it slow?")], turns=3, think=True)

    assert [reply.message.thinking for reply in answers] == [
        (Thinking(text, signature_of(text)),) for text in ("Logs first. 🦆", "Now files.", "Clear.")
    ]
    assert [reply.message.text for reply in answers] == ["", "Hm.", "The pool."]
    blocks = [block["type"] for message in vendor.requests[2].body["messages"] for block in message["content"]]
    assert blocks == ["text", "thinking", "tool_use", "tool_result", "thinking", "text", "tool_use", "tool_result"]


async def test_cached_input_is_reported_in_usage() -> None:
    lines = [
        together(
            *(calls("search", query=str(number)) for number in range(30))
        ),  # more blocks than the vendor looks back
        calls("list_files"),
        says("The pool."),
    ]
    async with FakeAnthropic(lambda heard: lines[replies(heard)]) as vendor:
        answers = await converse(vendor, [UserMessage("Why is it slow? " * 100)], turns=3)

    usages = [reply.usage or Usage() for reply in answers]
    assert usages[0].cached == 0
    # The whole request is cached, and the next one begins with it.
    assert [usage.cached for usage in usages[1:]] == [usage.input for usage in usages[:-1]]


async def test_a_fork_reads_its_parents_prefix_from_the_cache() -> None:
    async with FakeAnthropic(lambda heard: says("ok")) as vendor, AnthropicProvider(vendor.base_url) as provider:
        parent = History()
        parent.append(UserMessage("Why is it slow? " * 100))
        asked = await provider.answer(replace(sample_request(), messages=parent), ignore)
        parent.append(AssistantMessage("", tuple(ToolCall("search", f'{{"query":"{n}"}}', f"c{n}") for n in range(30))))
        child = forked(parent)
        child.append(UserMessage("Look at the pool."))
        reply = await provider.answer(replace(sample_request(), messages=child), ignore)

    assert asked.usage is not None
    assert reply.usage is not None
    assert reply.usage.cached == asked.usage.input


async def test_a_longer_fork_keeps_the_marks_of_its_parent() -> None:
    async with FakeAnthropic(lambda heard: says("ok")) as vendor, AnthropicProvider(vendor.base_url) as provider:
        parent = History()
        parent.append(UserMessage("Why is it slow? " * 100))
        parent.append(AssistantMessage("Because.", (ToolCall("search", "{}", "c1"),)))
        parent.append(ToolMessage("search", "3 lines", "c1"))
        asked = await provider.answer(replace(sample_request(), messages=parent), ignore)
        children = [forked(parent) for _ in range(3)]
        for number, child in enumerate(children):
            child.append(UserMessage(f"Look at part {number}."))
        answers = [
            await provider.answer(replace(sample_request(), messages=child, memo={}), ignore) for child in children
        ]

    whole = (asked.usage or Usage()).input
    assert [(reply.usage or Usage()).cached for reply in answers] == [whole, whole, whole]
    first, *others = ([*heard.body["tools"], *heard.body["system"]] for heard in vendor.requests)
    assert others == [first, first, first]


async def test_cache_writes_are_counted_and_priced() -> None:
    tariff = ModelPrices({"model": Rates(input=4.0, output=8.0, cached=1.0, cache_write=5.0)})
    async with FakeAnthropic(says("ok")) as vendor, AnthropicProvider(vendor.base_url) as provider:
        priced = PricedProvider(provider, tariff)
        first = await priced.answer(sample_request(), ignore)
        second = await priced.answer(sample_request(), ignore)

    read = (first.usage or Usage()).input
    assert first.usage == Usage(input=read, output=1, written=read)
    assert second.usage == Usage(input=read, output=1, cached=read)
    assert (first.cost, second.cost) == (read * 5_000 + 8_000, read * 1_000 + 8_000)


async def test_a_turn_without_tools_repeats_earlier_tools_and_forbids_calls() -> None:
    memo: dict[str, object] = {}
    messages: list[Message] = [UserMessage("Why is it slow? " * 100)]
    lines = [calls("search", query="a"), says("The pool.")]
    async with (
        FakeAnthropic(lambda heard: lines[replies(heard)]) as vendor,
        AnthropicProvider(vendor.base_url) as provider,
    ):
        with_tools = replace(sample_request(), messages=messages, memo=memo)
        first = await provider.answer(with_tools, ignore)
        messages += [first.message, ToolMessage("search", "x", first.message.calls[0].id), UserMessage("Sum up.")]
        last = await provider.answer(replace(with_tools, tools=(), withheld_tools=with_tools.tools), ignore)

    before, after = (heard.body for heard in vendor.requests)
    assert after["tools"] == before["tools"]
    assert (before.get("tool_choice"), after["tool_choice"]) == (None, {"type": "none"})
    declared = len(before["tools"]) + len(before["system"])
    assert declared == 3
    # A changed tool choice invalidates the cached messages, but neither the tools nor the system text.
    assert 0 < (last.usage or Usage()).cached < (first.usage or Usage()).input


async def test_changed_tools_miss_the_cache_and_a_changed_prompt_keeps_tools() -> None:
    async with FakeAnthropic(says("ok")) as vendor, AnthropicProvider(vendor.base_url) as provider:
        answers = [
            await provider.answer(request, ignore)
            for request in (
                sample_request(),
                replace(sample_request(), tools=TOOLS[:1]),
                replace(sample_request(), system="Be long."),
                sample_request(),
            )
        ]

    first, other_tools, other_system, same = (reply.usage or Usage() for reply in answers)
    assert (first.cached, other_tools.cached) == (0, 0)
    assert 0 < other_system.cached < same.cached == first.input


# ---- answers --------------------------------------------------------------------------------------------------------


async def test_thinking_is_published_while_it_streams() -> None:
    async with FakeAnthropic(says("yes", thinking="hm")) as vendor, AnthropicProvider(vendor.base_url) as provider:
        listener = DeltaListener()
        await provider.answer(sample_request(), listener.publish)

    start, *answers = listener.deltas
    assert (isinstance(start, StartDelta), answers) == (True, [ThinkingDelta("hm"), TextDelta("yes")])


def streamed(*events: bytes) -> FakeResponse:
    return FakeResponse(headers=EVENTS, pieces=events)


def begun(message_id: str, *content: dict[str, Any]) -> bytes:
    return event("message_start", message={"id": message_id, "model": "m1", "content": content})


ENDED = (event("message_delta", delta={"stop_reason": "end_turn"}), event("message_stop"))


async def test_content_of_the_beginning_is_read() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"query": "a"}}
    answer = streamed(begun("msg_1", {"type": "text", "text": "Let me look."}, call), *ENDED)
    async with FakeAnthropic(answer) as vendor, AnthropicProvider(vendor.base_url) as provider:
        listener = DeltaListener()
        reply = await provider.answer(sample_request(), listener.publish)

    assert reply.message == AssistantMessage("Let me look.", (ToolCall("search", '{"query":"a"}', "toolu_1"),))
    assert listener.text == "Let me look."


async def test_a_second_answer_inside_the_stream_is_an_error() -> None:
    text = {"type": "text", "text": "It is"}
    answer = streamed(begun("msg_1", text), begun("msg_1"), begun("msg_2", text), *ENDED)
    async with FakeAnthropic(answer) as vendor, AnthropicProvider(vendor.base_url) as provider:
        with pytest.raises(ProviderError, match="a second answer began inside the stream") as failed:
            await provider.answer(sample_request(), ignore)

    assert (failed.value.fault, failed.value.partial) == ("cut", "It is")


async def test_a_response_without_streaming_is_decoded() -> None:
    line = together(says("Let me look.", thinking="hm"), calls("search", query="a"), calls("list_files"))
    async with (
        FakeAnthropic(lambda heard: answer_of(line, unstreamed(heard), PromptTokens(total=1))) as vendor,
        AnthropicProvider(vendor.base_url) as provider,
    ):
        listener = DeltaListener()
        reply = await provider.answer(sample_request(), listener.publish)

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
async def test_an_error_event_has_a_fault_that_decides_about_retries(kind: str, fault: str) -> None:
    begun = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "It is"})
    error_event = event("error", error={"type": kind, "message": "No, sorry."})
    async with FakeAnthropic(FakeResponse(headers=EVENTS, pieces=(begun, error_event))) as vendor:
        error = await failure(vendor, sample_request())

    assert (error.fault, error.partial) == (fault, "It is")
    assert "No, sorry." in str(error)


# ---- errors ---------------------------------------------------------------------------------------------------------


async def test_an_invalid_key_error_names_the_variable_not_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "my-secret")
    async with FakeAnthropic(failed(401, "invalid x-api-key my-secret", kind="authentication_error")) as vendor:
        error = await failure(vendor, sample_request(), api_key_env="MY_KEY")

    assert (error.fault, error.status) == ("auth", 401)
    assert "invalid x-api-key [key]" in str(error)
    assert "MY_KEY" in str(error)


async def test_a_missing_key_is_an_error_before_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    async with FakeAnthropic(says("yes")) as vendor:
        error = await failure(vendor, sample_request(), api_key_env="MY_KEY")

    assert (error.fault, vendor.requests) == ("auth", [])
    assert "MY_KEY is not set" in str(error)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (failed(404, "model: unknown", kind="not_found_error"), "bad_request"),
        (failed(400, "prompt is too long: 208310 tokens > 200000 maximum"), "too_long"),
        (failed(400, "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"), "too_long"),
        (failed(413, "Request exceeds the maximum size", kind="request_too_large"), "too_long"),
        (failed(429, "slow down", kind="rate_limit_error", retry_after="7"), "rate_limited"),
        (failed(529, "Overloaded", kind="overloaded_error"), "overloaded"),
        (failed(500, "Internal server error", kind="api_error"), "overloaded"),
        (failed(403, "not yours", kind="permission_error"), "auth"),
    ],
)
async def test_an_error_response_carries_the_vendors_reason(answer: FakeResponse, fault: str) -> None:
    async with FakeAnthropic(answer) as vendor:
        error = await failure(vendor, sample_request())

    assert (error.fault, error.status) == (fault, answer.status)
    assert error.retry_after == (7.0 if answer.status == 429 else None)
    assert "'model'" in str(error) or fault != "too_long"


async def test_a_retry_sends_the_same_bytes() -> None:
    line = fails(ProviderError("busy", fault="overloaded", status=529), times=2, then=says("at last"))
    async with FakeAnthropic(line) as vendor, AnthropicProvider(vendor.base_url) as provider:
        request = sample_request()
        for _ in range(2):
            with pytest.raises(ProviderError, match="busy"):
                await provider.answer(request, ignore)
        reply = await provider.answer(request, ignore)

    assert reply.message.text == "at last"
    assert len({heard.raw for heard in vendor.requests}) == 1


def test_an_invalid_base_url_is_rejected_at_once() -> None:
    with pytest.raises(BadInput, match="not an address"):
        AnthropicProvider("api.anthropic.com")
