"""The Gemini wire against a fake server: the provider contract, signatures and errors."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from retinue.core.errors import BadInput, ProviderError
from retinue.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from retinue.core.ports import Provider, Request
from retinue.core.usage import Usage
from retinue.providers.catalog import create_provider, provider_config
from retinue.providers.gemini.response import GeminiProvider
from retinue.providers.scripted import Line, ScriptedReply, calls, fails, says, together
from retinue.testing.contracts.provider import PROMISES, TOOLS, DeltaListener, Promise
from retinue.testing.fake_server import FakeResponse, ReceivedRequest
from tests.providers.fakes.gemini import FakeGemini, failed, retry_in


@asynccontextmanager
async def connect(line: Line) -> AsyncGenerator[Provider]:
    async with FakeGemini(line) as vendor, GeminiProvider(vendor.base_url) as provider:
        yield provider


@asynccontextmanager
async def stage_of_single_bytes(line: Line) -> AsyncGenerator[Provider]:
    async with FakeGemini(line, chunk=1) as vendor, GeminiProvider(vendor.base_url) as provider:
        yield provider


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_gemini_wire_keeps_the_provider_contract(promise: Promise) -> None:
    await promise(connect)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_the_gemini_wire_keeps_the_provider_contract_byte_by_byte(promise: Promise) -> None:
    await promise(stage_of_single_bytes)


def asking(*messages: Message, model: str = "gemini-3-pro") -> Request:
    return Request(model=model, system="s", messages=messages or [UserMessage("hi")], tools=TOOLS)


async def answered(provider: Provider, request: Request) -> AssistantMessage:
    return (await provider.answer(request, DeltaListener().publish)).message


def by_turn(*lines: ScriptedReply) -> Any:
    """The line for a request, chosen by the number of replies in the conversation."""

    def play(heard: ReceivedRequest) -> ScriptedReply:
        return lines[sum(content["role"] == "model" for content in heard.body["contents"])]

    return play


async def test_signatures_stay_on_their_calls_over_several_turns() -> None:
    both = together(says("Let me look."), calls("search", query="a"), calls("search", query="b"))
    lines = by_turn(both, calls("list_files"), says("Because."))
    async with FakeGemini(lines, signs=True) as vendor, GeminiProvider(vendor.base_url) as provider:
        history: list[Message] = [UserMessage("why?")]
        memo: dict[str, object] = {}
        while not isinstance(history[-1], AssistantMessage):
            request = Request(model="gemini-3-pro", system="s", messages=history, tools=TOOLS, memo=memo)
            reply = await answered(provider, request)
            history += [reply, *(ToolMessage(call.name, "3 lines", call.id) for call in reply.calls)]

    sent_parts = [
        part
        for content in vendor.requests[-1].body["contents"]
        if content["role"] == "model"
        for part in content["parts"]
    ]
    assert [(part.get("text"), part.get("thoughtSignature")) for part in sent_parts] == [
        ("Let me look.", None), (None, "c2ln0"), (None, None), (None, "c2ln1"),
    ]  # fmt: skip
    assert vendor.requests[2].raw.startswith(vendor.requests[1].raw.removesuffix(b"]}"))


async def test_a_conversation_begun_by_another_model_is_accepted() -> None:
    began = AssistantMessage(calls=(ToolCall("list_files", "{}", "toolu_1"), ToolCall("search", "{}", "toolu_2")))
    async with FakeGemini(says("yes"), signs=True) as vendor, GeminiProvider(vendor.base_url) as provider:
        assert await answered(provider, asking(UserMessage("why?"), began)) == AssistantMessage("yes")


async def test_the_model_is_in_the_url_and_the_key_in_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "AIza-secret-key")
    async with FakeGemini(says("yes")) as vendor:
        for base_url in (vendor.base_url, vendor.base_url + "/", vendor.base_url + "/v1beta/"):
            async with GeminiProvider(base_url, "SOME_KEY", {"x-extra": "1"}) as provider:
                for model in ("gemini-2.5-flash", "models/gemini-2.5-flash", "tunedModels/mine", "gemini-2.5-flash"):
                    await answered(provider, asking(model=model))

    assert [heard.path for heard in vendor.requests] == 3 * [
        "/v1beta/models/gemini-2.5-flash:streamGenerateContent",
        "/v1beta/models/gemini-2.5-flash:streamGenerateContent",
        "/v1beta/tunedModels/mine:streamGenerateContent",
        "/v1beta/models/gemini-2.5-flash:streamGenerateContent",
    ]
    assert {heard.query for heard in vendor.requests} == {"alt=sse"}
    sent = vendor.requests[0].headers
    assert (sent["x-goog-api-key"], sent["x-extra"], sent.get("authorization")) == ("AIza-secret-key", "1", None)


async def test_usage_has_cached_and_reasoning_tokens() -> None:
    usage = Usage(input=30, output=12, cached=20, reasoning=5)
    async with FakeGemini(says("yes", usage=usage)) as vendor, GeminiProvider(vendor.base_url) as provider:
        reply = await provider.answer(asking(), DeltaListener().publish)

    assert (reply.usage, reply.model, reply.response_id) == (usage, "fake-1", "resp_1")


# ---- error responses ------------------------------------------------------------------------------------------------


async def refused(answer: FakeResponse, key: str | None = None) -> ProviderError:
    async with FakeGemini(answer) as vendor, GeminiProvider(vendor.base_url, key) as provider:
        with pytest.raises(ProviderError) as error:
            await answered(provider, asking())
    return error.value


async def test_an_invalid_key_error_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "AIzaSyWrongWrong")
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "x"}]
    error = await refused(failed(400, "API key not valid.", "INVALID_ARGUMENT", details=details), "SOME_KEY")

    assert (error.fault, error.status) == ("auth", 400)
    assert str(error).endswith("answered 400: API key not valid. Check the key in SOME_KEY")


async def test_an_exhausted_minute_quota_is_rate_limited_with_retry_after() -> None:
    words = "You exceeded your current quota, please check your plan and billing details."
    error = await refused(failed(429, words, "RESOURCE_EXHAUSTED", details=retry_in(34.5)))

    assert (error.fault, error.retry_after, error.transient) == ("rate_limited", 34.5, True)


async def test_a_too_long_conversation_has_fault_too_long() -> None:
    words = "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576)."

    assert (await refused(failed(400, words, "INVALID_ARGUMENT"))).fault == "too_long"


async def test_an_error_event_carries_retry_after() -> None:
    line = fails(ProviderError("The model is overloaded.", fault="overloaded", partial="It is", retry_after=3.0))
    async with FakeGemini(line) as vendor, GeminiProvider(vendor.base_url) as provider:
        with pytest.raises(ProviderError, match="The model is overloaded") as error:
            await answered(provider, asking())

    assert (error.value.fault, error.value.partial, error.value.retry_after) == ("overloaded", "It is", 3.0)


async def test_a_response_in_one_piece_is_decoded() -> None:
    body = {"candidates": [{"content": {"parts": [{"text": "hello"}]}, "finishReason": "STOP"}]}
    whole = FakeResponse(headers={"Content-Type": "application/json"}, pieces=(msgspec.json.encode(body),))
    async with FakeGemini(whole) as vendor, GeminiProvider(vendor.base_url) as provider:
        assert await answered(provider, asking()) == AssistantMessage("hello")


def test_an_invalid_address_is_rejected_at_once() -> None:
    with pytest.raises(BadInput, match="is not an address"):
        GeminiProvider("generativelanguage.googleapis.com")


def test_the_wire_is_registered_by_name() -> None:
    where = provider_config("gemini")

    assert (where.base_url, where.api_key_env) == ("https://generativelanguage.googleapis.com", "GEMINI_API_KEY")
    assert repr(create_provider(where)) == "<GeminiProvider https://generativelanguage.googleapis.com>"
