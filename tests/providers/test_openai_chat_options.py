"""Options of the chat wire: those of reasoning models, and those that a server rejected."""

from typing import Any

import msgspec
import pytest

from retinue.core.errors import ProviderError
from retinue.core.messages import UserMessage
from retinue.core.ports import Request
from retinue.providers.openai_chat.request import encode
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.providers.scripted import says
from retinue.testing.contracts.provider import DeltaListener
from retinue.testing.fake_chat import FakeChat, Playable, error_response
from retinue.testing.fake_server import ReceivedRequest


def request_for(model: str, *, think: bool = False) -> Request:
    return Request(
        model=model, system="Be brief.", messages=[UserMessage("hi")], max_output=100, temperature=0.5, think=think
    )


def options_of(body: dict[str, Any]) -> dict[str, Any]:
    """The options of a request, and the role of its system prompt."""
    plain = {
        name: value for name, value in body.items() if name not in ("model", "stream", "stream_options", "messages")
    }
    return plain | {"orders": body["messages"][0]["role"]}


@pytest.mark.parametrize("model", ["o1", "o3-mini", "o4-mini", "gpt-5", "gpt-5.2-codex", "openai/gpt-5-nano"])
def test_reasoning_models_use_role_developer_and_no_temperature(model: str) -> None:
    expected = {"orders": "developer", "max_completion_tokens": 100}

    assert options_of(msgspec.json.decode(encode(request_for(model)))) == expected
    assert options_of(msgspec.json.decode(encode(request_for(model, think=True)))) == expected | {
        "reasoning_effort": "high"
    }


@pytest.mark.parametrize("model", ["gpt-4.1", "gpt-4o", "qwen3", "gpt-oss-120b", "olmo-2"])
@pytest.mark.parametrize("think", [False, True])
def test_other_models_use_role_system_and_max_tokens(model: str, think: bool) -> None:
    body = msgspec.json.decode(encode(request_for(model, think=think)))

    assert options_of(body) == {"orders": "system", "max_tokens": 100, "temperature": 0.5}


def test_chat_variants_of_reasoning_models_keep_system_and_temperature() -> None:
    body = msgspec.json.decode(encode(request_for("gpt-5.2-chat-latest", think=True)))

    assert options_of(body) == {"orders": "system", "max_completion_tokens": 100, "temperature": 0.5}


def picky(**refusals: str) -> Playable:
    """A vendor that rejects options with these messages, one after the other."""

    def play(heard: ReceivedRequest) -> Any:
        orders = heard.body["messages"][0]["role"]
        for option, words in refusals.items():
            if option in heard.body or option == orders:
                return error_response(400, words)
        return says("fine")

    return play


async def bodies(played: Playable, *requests: Request) -> list[dict[str, Any]]:
    async with FakeChat(played) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        for request in requests:
            await provider.answer(request, DeltaListener().publish)
        return [options_of(heard.body) for heard in vendor.requests]


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("model", "option", "words", "instead"),
    [
        (
            "new-1",
            "max_tokens",
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'.",
            {"orders": "system", "max_completion_tokens": 100, "temperature": 0.5},
        ),
        (
            "new-1",
            "temperature",
            "Unsupported value: 'temperature' does not support 0.5 with this model. Only the default (1) is supported.",
            {"orders": "system", "max_tokens": 100},
        ),
        (
            "gpt-5.4",
            "reasoning_effort",
            "Function tools with reasoning_effort are not supported for gpt-5.4 in /v1/chat/completions.",
            {"orders": "developer", "max_completion_tokens": 100},
        ),
        (
            "o3-clone",
            "developer",
            "Invalid value: 'developer'. Supported values are: 'system', 'assistant', 'user' and 'tool'.",
            {"orders": "system", "max_completion_tokens": 100, "reasoning_effort": "high"},
        ),
    ],
)  # fmt: skip
async def test_a_rejected_option_is_left_out_at_once_and_later(
    model: str, option: str, words: str, instead: dict[str, Any]
) -> None:
    question = request_for(model, think=True)

    refused, again, later = await bodies(picky(**{option: words}), question, question)

    assert option in (*refused, refused["orders"])
    assert (again, later) == (instead, instead)


@pytest.mark.real_time
async def test_several_rejections_accumulate_per_model() -> None:
    vendor = picky(
        max_tokens="Unrecognized request argument supplied: max_tokens",
        max_completion_tokens="Unrecognized request argument supplied: max_completion_tokens",
        temperature="temperature is not permitted",
    )
    *_, last = await bodies(vendor, request_for("strange"))
    async with FakeChat(says("fine")) as fine, OpenAIChatProvider(fine.base_url) as provider:
        await provider.answer(request_for("other"), DeltaListener().publish)
        other = options_of(fine.requests[0].body)

    assert last == {"orders": "system"}
    assert other == {"orders": "system", "max_tokens": 100, "temperature": 0.5}


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "Invalid messages: temperatures are fine, roles are not"),
        (400, "temperature is too hot for me"),
        (400, "unsupported parameter: 'top_k'"),
        (401, "unsupported temperature"),
    ],
)
async def test_an_error_that_names_no_sent_option_is_final(status: int, words: str) -> None:
    async with FakeChat(error_response(status, words)) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        with pytest.raises(ProviderError):
            await provider.answer(request_for("m"), DeltaListener().publish)

        assert len(vendor.requests) == 1


@pytest.mark.real_time
async def test_rejecting_an_omitted_option_ends_the_retries() -> None:
    stubborn = error_response(400, "Unsupported parameter: 'temperature'")
    async with FakeChat(stubborn) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        with pytest.raises(ProviderError, match="Unsupported parameter"):
            await provider.answer(request_for("m"), DeltaListener().publish)

        assert len(vendor.requests) == 2
