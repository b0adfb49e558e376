"""Models that think are asked in their own way, and what a server does not want is left out from then on."""

from typing import Any

import msgspec
import pytest

from retinue.core.errors import ProviderError
from retinue.core.messages import UserMessage
from retinue.core.ports import Request
from retinue.providers.openai_chat.provider import OpenAIChatProvider, encode
from retinue.providers.scripted import says
from retinue.testing.contracts.provider import Listener
from retinue.testing.fake_chat import FakeChat, Played, failed
from retinue.testing.fake_server import Heard


def asking(model: str, *, think: bool = False) -> Request:
    return Request(
        model=model, system="Be brief.", messages=[UserMessage("hi")], max_output=100, temperature=0.5, think=think
    )


def told(body: dict[str, Any]) -> dict[str, Any]:
    """What a request says besides the conversation, and who gives the orders in it."""
    plain = {
        name: value for name, value in body.items() if name not in ("model", "stream", "stream_options", "messages")
    }
    return plain | {"orders": body["messages"][0]["role"]}


@pytest.mark.parametrize("model", ["o1", "o3-mini", "o4-mini", "gpt-5", "gpt-5.2-codex", "openai/gpt-5-nano"])
def test_a_model_that_thinks_has_a_developer_no_temperature_and_effort_only_when_asked(model: str) -> None:
    at_ease = {"orders": "developer", "max_completion_tokens": 100}

    assert told(msgspec.json.decode(encode(asking(model)))) == at_ease
    assert told(msgspec.json.decode(encode(asking(model, think=True)))) == at_ease | {"reasoning_effort": "high"}


@pytest.mark.parametrize("model", ["gpt-4.1", "gpt-4o", "qwen3", "gpt-oss-120b", "olmo-2"])
@pytest.mark.parametrize("think", [False, True])
def test_any_other_model_is_asked_as_ever(model: str, think: bool) -> None:
    body = msgspec.json.decode(encode(asking(model, think=think)))

    assert told(body) == {"orders": "system", "max_tokens": 100, "temperature": 0.5}


def test_the_chatting_one_of_a_family_that_thinks_does_not() -> None:
    body = msgspec.json.decode(encode(asking("gpt-5.2-chat-latest", think=True)))

    assert told(body) == {"orders": "system", "max_completion_tokens": 100, "temperature": 0.5}


def picky(**refusals: str) -> Played:
    """A vendor that refuses options with these words, one after the other."""

    def play(heard: Heard) -> Any:
        orders = heard.body["messages"][0]["role"]
        for option, words in refusals.items():
            if option in heard.body or option == orders:
                return failed(400, words)
        return says("fine")

    return play


async def bodies(played: Played, *requests: Request) -> list[dict[str, Any]]:
    async with FakeChat(played) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        for request in requests:
            await provider.answer(request, Listener().publish)
        return [told(heard.body) for heard in vendor.heard]


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
async def test_an_option_that_is_refused_is_left_out_at_once_and_from_then_on(
    model: str, option: str, words: str, instead: dict[str, Any]
) -> None:
    question = asking(model, think=True)

    refused, again, later = await bodies(picky(**{option: words}), question, question)

    assert option in (*refused, refused["orders"])
    assert (again, later) == (instead, instead)


@pytest.mark.real_time
async def test_one_refusal_after_another_is_heeded_and_other_models_are_not_concerned() -> None:
    vendor = picky(
        max_tokens="Unrecognized request argument supplied: max_tokens",
        max_completion_tokens="Unrecognized request argument supplied: max_completion_tokens",
        temperature="temperature is not permitted",
    )
    *_, last = await bodies(vendor, asking("strange"))
    async with FakeChat(says("fine")) as fine, OpenAIChatProvider(fine.base_url) as provider:
        await provider.answer(asking("other"), Listener().publish)
        other = told(fine.heard[0].body)

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
async def test_a_refusal_that_names_none_of_the_options_is_final(status: int, words: str) -> None:
    async with FakeChat(failed(status, words)) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        with pytest.raises(ProviderError):
            await provider.answer(asking("m"), Listener().publish)

        assert len(vendor.heard) == 1


@pytest.mark.real_time
async def test_a_server_that_refuses_what_was_left_out_is_not_asked_for_ever() -> None:
    stubborn = failed(400, "Unsupported parameter: 'temperature'")
    async with FakeChat(stubborn) as vendor, OpenAIChatProvider(vendor.base_url) as provider:
        with pytest.raises(ProviderError, match="Unsupported parameter"):
            await provider.answer(asking("m"), Listener().publish)

        assert len(vendor.heard) == 2
