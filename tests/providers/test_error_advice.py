"""Errors have the same texts on every wire: what happened, and what to do."""

import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import pytest

from retinue.core.errors import ProviderError
from retinue.core.messages import UserMessage
from retinue.core.ports import Provider, Request
from retinue.providers.anthropic.response import AnthropicProvider
from retinue.providers.anthropic.vertex import VertexAIAnthropicProvider
from retinue.providers.gemini.response import GeminiProvider
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.providers.openai_responses.response import OpenAIResponsesProvider
from retinue.providers.scripted import says
from retinue.testing import fake_chat
from retinue.testing.contracts.provider import DeltaListener
from retinue.testing.fake_chat import FakeChat, Playable
from retinue.testing.fake_server import FakeResponse, FakeServer
from tests.providers.fakes import anthropic, gemini
from tests.providers.fakes.anthropic import FakeAnthropic
from tests.providers.fakes.gemini import FakeGemini
from tests.providers.fakes.responses import FakeResponses

pytestmark = pytest.mark.real_time

KEY, VARIABLE = "s3cret-and-long-enough", "FAKE_VENDOR_KEY"

Refuse = Callable[[int, str], FakeResponse]


class Wire(NamedTuple):
    """A wire, its fake server, the path below its address, and its error format."""

    vendor: Callable[[Playable], FakeServer]
    create_provider: Callable[[str, str | None], AbstractAsyncContextManager[Provider]]
    base: str
    path: str
    refuse: Refuse


def googles(status: int, message: str) -> FakeResponse:
    kinds = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}
    return gemini.failed(status, message, kinds.get(status, "INVALID_ARGUMENT"))


WIRES: dict[str, Wire] = {
    "anthropic": Wire(FakeAnthropic, AnthropicProvider, "", "/v1/messages", anthropic.failed),
    "vertexai-anthropic": Wire(
        FakeAnthropic,
        VertexAIAnthropicProvider,
        "/v1/projects/p/locations/l",
        "/publishers/anthropic/models/some-model:streamRawPredict",
        anthropic.failed,
    ),
    "openai-chat": Wire(FakeChat, OpenAIChatProvider, "/v1", "/chat/completions", fake_chat.error_response),
    "openai-responses": Wire(FakeResponses, OpenAIResponsesProvider, "/v1", "/responses", fake_chat.error_response),
    "gemini": Wire(FakeGemini, GeminiProvider, "", "/v1beta/models/some-model:streamGenerateContent", googles),
}

QUESTION = Request(model="some-model", system="", messages=[UserMessage("hi")])


async def error_of(wire: Wire, url: str, variable: str | None = VARIABLE) -> ProviderError:
    async with wire.create_provider(url + wire.base, variable) as provider:
        with pytest.raises(ProviderError) as caught:
            await provider.answer(QUESTION, DeltaListener().publish)
    return caught.value


async def error_facts(name: str, played: Playable, variable: str | None = VARIABLE) -> tuple[str, str, int | None]:
    """The error of a request; the server's address is replaced by VENDOR, and with the wire's path by BASE."""
    wire = WIRES[name]
    async with wire.vendor(played) as vendor:
        error = await error_of(wire, vendor.url, variable)
        words = str(error).replace(vendor.url + wire.base, "BASE").replace(vendor.url.removeprefix("http://"), "VENDOR")
    return words, error.fault, error.status


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)


@pytest.mark.parametrize("name", WIRES)
async def test_a_missing_key_names_its_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)

    assert await error_facts(name, says("hi")) == (
        f"the environment variable {VARIABLE} is not set; set it to the key for BASE",
        "auth",
        None,
    )


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("status", [401, 403])
async def test_an_invalid_key_names_its_variable(name: str, status: int) -> None:
    refusal = WIRES[name].refuse(status, f"Incorrect API key provided: {KEY}")

    assert await error_facts(name, refusal) == (
        f"BASE answered {status}: Incorrect API key provided: [key]. Check the key in {VARIABLE}",
        "auth",
        status,
    )


@pytest.mark.parametrize("name", WIRES)
async def test_an_auth_error_without_a_key_suggests_api_key_env(name: str) -> None:
    assert await error_facts(name, WIRES[name].refuse(401, "Who are you?"), None) == (
        "BASE answered 401: Who are you? No key was sent: name the variable that holds it (api_key_env)",
        "auth",
        401,
    )


@pytest.mark.parametrize("name", WIRES)
async def test_an_unknown_model_error_names_model_and_url(name: str) -> None:
    wire = WIRES[name]

    assert await error_facts(name, wire.refuse(404, "The model 'some-model' does not exist")) == (
        "BASE answered 404: The model 'some-model' does not exist. Check the model name 'some-model' and the base URL "
        f"(asked: BASE{wire.path})",
        "bad_request",
        404,
    )


TOO_LONG = {
    "anthropic": "prompt is too long: 208310 tokens > 200000 maximum",
    "vertexai-anthropic": "prompt is too long: 208310 tokens > 200000 maximum",
    "openai-chat": "This model's maximum context length is 128000 tokens",
    "openai-responses": "Your input exceeds the context window of this model",
    "gemini": "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576)",
}


@pytest.mark.parametrize("name", WIRES)
async def test_a_too_long_conversation_names_the_model(name: str) -> None:
    assert await error_facts(name, WIRES[name].refuse(400, TOO_LONG[name])) == (
        f"BASE answered 400: {TOO_LONG[name]}. The conversation is longer than model 'some-model' takes",
        "too_long",
        400,
    )


NO_MONEY: dict[str, tuple[int, str]] = {
    "anthropic": (400, "Your credit balance is too low to access the Anthropic API."),
    "vertexai-anthropic": (402, "This project has no billing account."),
    "openai-chat": (429, "You exceeded your current quota, please check your plan and billing details."),
    "openai-responses": (429, "You exceeded your current quota, please check your plan and billing details."),
    "gemini": (402, "This project has no billing account."),
}


@pytest.mark.parametrize("name", WIRES)
async def test_an_exhausted_account_suggests_checking_the_balance(name: str) -> None:
    status, words = NO_MONEY[name]

    assert await error_facts(name, WIRES[name].refuse(status, words)) == (
        f"BASE answered {status}: {words} Check the plan and the balance of the key in {VARIABLE}",
        "auth",
        status,
    )


@pytest.mark.parametrize("name", WIRES)
async def test_a_refused_connection_is_unreachable(name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    wire = WIRES[name]
    error = await error_of(wire, f"http://{address}")

    assert (str(error), error.fault) == (
        f"cannot reach {address} (base URL http://{address}{wire.base}): Connection refused. "
        "Check that the server runs and the base URL is right",
        "unreachable",
    )


@pytest.mark.parametrize("name", WIRES)
async def test_a_response_that_is_no_stream_suggests_checking_the_url(name: str) -> None:
    page = FakeResponse(headers={"Content-Type": "text/html"}, pieces=(b"<html>Please log in</html>",))

    assert await error_facts(name, page) == (
        "BASE: the answer (text/html) is not an event stream: <html>Please log in</html>. Check the base URL",
        "cut",
        None,
    )


@pytest.mark.parametrize("name", WIRES)
async def test_an_event_that_is_not_json_is_a_cut_error(name: str) -> None:
    nonsense: dict[str, Any] = {"headers": fake_chat.EVENTS, "pieces": (b"data: oops\n\n",)}

    assert await error_facts(name, FakeResponse(**nonsense)) == (
        "BASE: an event of the stream cannot be read: oops",
        "cut",
        None,
    )


@pytest.mark.parametrize("name", WIRES)
async def test_a_truncated_response_is_a_cut_error(name: str) -> None:
    words, fault, status = await error_facts(
        name, FakeResponse(headers=fake_chat.EVENTS, pieces=(b": hello\n\n",), ending="cut")
    )

    assert (words, fault, status) == ("BASE: the stream ended without an answer", "cut", None)


@pytest.mark.parametrize("name", WIRES)
async def test_an_auth_error_inside_a_stream_names_the_variable(name: str) -> None:
    refused = b'{"error":{"message":"wrong key","type":"authentication_error"}}'

    assert await error_facts(name, FakeResponse(headers=fake_chat.JSON, pieces=(refused,))) == (
        f"BASE: wrong key. Check the key in {VARIABLE}",
        "auth",
        None,
    )
