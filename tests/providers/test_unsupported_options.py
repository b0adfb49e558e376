"""An option that a server rejects is left out at once and later, on every wire; the conversation never is."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from retinue.core.agent import Output
from retinue.core.errors import ProviderError
from retinue.core.messages import UserMessage
from retinue.core.ports import Provider, Request
from retinue.providers.anthropic.response import AnthropicProvider
from retinue.providers.anthropic.vertex import VertexAIAnthropicProvider
from retinue.providers.gemini.response import GeminiProvider
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.providers.openai_responses.response import OpenAIResponsesProvider
from retinue.providers.scripted import says
from retinue.providers.unsupported_options import rejected_option
from retinue.testing import fake_chat
from retinue.testing.contracts.provider import TOOLS, DeltaListener
from retinue.testing.fake_chat import FakeChat, Playable
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.providers.fakes import anthropic as fake_anthropic
from tests.providers.fakes import gemini as fake_gemini
from tests.providers.fakes.anthropic import FakeAnthropic
from tests.providers.fakes.gemini import FakeGemini
from tests.providers.fakes.responses import FakeResponses

pytestmark = pytest.mark.real_time

SCHEMA = Output(mode="json_schema", schema='{"type":"object"}')


@dataclass(frozen=True, kw_only=True)
class Case:
    """A vendor, and the error with which it rejects an option."""

    vendor: Callable[[Playable], FakeServer]
    create_provider: Callable[[Any], AbstractAsyncContextManager[Provider]]
    refusal: FakeResponse
    wanted: Callable[[dict[str, Any]], object]
    """The value of the option in a body; None where it is not sent."""
    sent: object
    instead: object = None
    model: str = "m"
    output: Output | None = None


def openai_error(message: str, param: str | None = None, code: str | None = None) -> FakeResponse:
    return fake_chat.error_response(400, message, param=param, code=code)


def config(body: dict[str, Any], name: str) -> object:
    return body.get("generationConfig", {}).get(name)


def chat(vendor: Any) -> AbstractAsyncContextManager[Provider]:
    return OpenAIChatProvider(vendor.base_url)


def responses(vendor: Any) -> AbstractAsyncContextManager[Provider]:
    return OpenAIResponsesProvider(vendor.base_url)


def anthropic(vendor: Any) -> AbstractAsyncContextManager[Provider]:
    return AnthropicProvider(vendor.base_url)


def vertex(vendor: Any) -> AbstractAsyncContextManager[Provider]:
    return VertexAIAnthropicProvider(vendor.google_url)


def gemini(vendor: Any) -> AbstractAsyncContextManager[Provider]:
    return GeminiProvider(vendor.base_url)


CHAT: dict[str, Any] = {"vendor": FakeChat, "create_provider": chat}
RESPONSES: dict[str, Any] = {"vendor": FakeResponses, "create_provider": responses}
ANTHROPIC: dict[str, Any] = {"vendor": FakeAnthropic, "create_provider": anthropic}
VERTEX: dict[str, Any] = {"vendor": FakeAnthropic, "create_provider": vertex}
GEMINI: dict[str, Any] = {"vendor": FakeGemini, "create_provider": gemini}


def marks(body: dict[str, Any]) -> int:
    return msgspec.json.encode(body).count(b"cache_control")


CASES: dict[str, Case] = {
    "anthropic: marks for the cache": Case(
        **ANTHROPIC,
        refusal=fake_anthropic.failed(400, "tools.0.custom.cache_control: Extra inputs are not permitted"),
        wanted=marks,
        sent=3,
        instead=0,
    ),
    "chat: temperature": Case(
        **CHAT,
        refusal=openai_error(
            "Unsupported parameter: 'temperature' is not supported with this model.",
            "temperature",
            "unsupported_parameter",
        ),
        wanted=lambda body: body.get("temperature"),
        sent=0.5,
    ),
    "chat: effort": Case(
        **CHAT,
        model="gpt-5.1",
        refusal=openai_error("Unsupported value: 'reasoning_effort' does not support 'high' with this model."),
        wanted=lambda body: body.get("reasoning_effort"),
        sent="high",
    ),
    "chat: a count of what was used": Case(
        **CHAT,
        refusal=openai_error("Unrecognized request argument supplied: stream_options"),
        wanted=lambda body: body.get("stream_options"),
        sent={"include_usage": True},
    ),
    "chat: the form of the answer": Case(
        **CHAT,
        output=SCHEMA,
        refusal=openai_error("This response_format type is unavailable now"),
        wanted=lambda body: body.get("response_format", {}).get("type"),
        sent="json_schema",
    ),
    "responses: effort": Case(
        **RESPONSES,
        refusal=openai_error(
            "Unsupported parameter: 'reasoning.effort' is not supported with this model.",
            "reasoning.effort",
            "unsupported_parameter",
        ),
        wanted=lambda body: body.get("reasoning"),
        sent={"effort": "high", "summary": "detailed"},
    ),
    "responses: a value of effort": Case(
        **RESPONSES,
        refusal=openai_error("Unsupported value: 'reasoning.effort' does not support 'high' with this model"),
        wanted=lambda body: body.get("reasoning"),
        sent={"effort": "high", "summary": "detailed"},
    ),
    "responses: summaries": Case(
        **RESPONSES,
        refusal=openai_error(
            "Your organization must be verified to generate reasoning summaries.",
            "reasoning.summary",
            "unsupported_value",
        ),
        wanted=lambda body: body["reasoning"].get("summary"),
        sent="detailed",
    ),
    "responses: reasoning": Case(
        **RESPONSES,
        refusal=openai_error("Unknown parameter: 'reasoning'.", "reasoning", "unknown_parameter"),
        wanted=lambda body: body.get("reasoning"),
        sent={"effort": "high", "summary": "detailed"},
    ),
    "responses: temperature": Case(
        **RESPONSES,
        refusal=openai_error("Unsupported parameter: 'temperature' is not supported with this model."),
        wanted=lambda body: body.get("temperature"),
        sent=0.5,
    ),
    "responses: length": Case(
        **RESPONSES,
        refusal=openai_error("Unsupported parameter: max_output_tokens"),
        wanted=lambda body: body.get("max_output_tokens"),
        sent=1000,
    ),
    "responses: thoughts": Case(
        **RESPONSES,
        refusal=openai_error("Encrypted content is not supported with this model.", "include"),
        wanted=lambda body: body.get("include"),
        sent=["reasoning.encrypted_content"],
    ),
    "responses: the form of the answer": Case(
        **RESPONSES,
        output=SCHEMA,
        refusal=openai_error(
            "Invalid parameter: 'text.format' of type 'json_schema' is not supported with this model."
        ),
        wanted=lambda body: body.get("text", {}).get("format", {}).get("type"),
        sent="json_schema",
    ),
    "anthropic: temperature": Case(
        **ANTHROPIC,
        refusal=fake_anthropic.failed(400, "temperature: Extra inputs are not permitted"),
        wanted=lambda body: body.get("temperature"),
        sent=0.5,
    ),
    "anthropic: thinking": Case(
        **ANTHROPIC,
        model="claude-sonnet-4-5",
        refusal=fake_anthropic.failed(400, "thinking: Extra inputs are not permitted"),
        wanted=lambda body: body.get("thinking"),
        sent={"type": "enabled", "budget_tokens": 3000},
    ),
    "anthropic: another way of thinking": Case(
        **ANTHROPIC,
        model="claude-sonnet-4-5",
        refusal=fake_anthropic.failed(400, '"thinking.type.enabled" is not supported for this model. Use adaptive'),
        wanted=lambda body: body.get("thinking"),
        sent={"type": "enabled", "budget_tokens": 3000},
        instead={"type": "adaptive", "display": "summarized"},
    ),
    "anthropic: no thinking as it likes": Case(
        **ANTHROPIC,
        model="claude-sonnet-6-1",
        refusal=fake_anthropic.failed(400, "adaptive thinking is not supported on this model"),
        wanted=lambda body: body["thinking"]["type"],
        sent="adaptive",
        instead="enabled",
    ),
    "anthropic: the form of the answer": Case(
        **ANTHROPIC,
        output=SCHEMA,
        refusal=fake_anthropic.failed(400, "output_config.format: Extra inputs are not permitted"),
        wanted=lambda body: body.get("output_config"),
        sent={"format": {"type": "json_schema", "schema": {"type": "object"}}},
    ),
    "vertex: temperature": Case(
        **VERTEX,
        refusal=fake_anthropic.failed(400, "temperature: Extra inputs are not permitted"),
        wanted=lambda body: body.get("temperature"),
        sent=0.5,
    ),
    "gemini: thinking": Case(
        **GEMINI,
        model="gemini-2.0-flash",
        refusal=fake_gemini.failed(
            400,
            "Invalid JSON payload received. Unknown name \"thinkingConfig\" at 'generation_config': Cannot find field.",
            "INVALID_ARGUMENT",
        ),
        wanted=lambda body: config(body, "thinkingConfig"),
        sent={"includeThoughts": True},
    ),
    "gemini: thinking, in words": Case(
        **GEMINI,
        refusal=fake_gemini.failed(400, "Thinking is not enabled for models/m", "INVALID_ARGUMENT"),
        wanted=lambda body: config(body, "thinkingConfig"),
        sent={"includeThoughts": True},
    ),
    "gemini: a budget": Case(
        **GEMINI,
        model="gemini-2.5-flash",
        refusal=fake_gemini.failed(400, "thinking_budget is not supported by this model", "INVALID_ARGUMENT"),
        wanted=lambda body: config(body, "thinkingConfig"),
        sent={"includeThoughts": True, "thinkingBudget": -1},
        instead={"includeThoughts": True},
    ),
    "gemini: the form of the answer": Case(
        **GEMINI,
        model="gemini-3-pro",
        output=SCHEMA,
        refusal=fake_gemini.failed(
            400,
            "Invalid JSON payload received. Unknown name \"responseJsonSchema\" at 'generation_config'",
            "INVALID_ARGUMENT",
        ),
        wanted=lambda body: config(body, "responseJsonSchema"),
        sent={"type": "object"},
    ),
}


def rejecting(case: Case) -> Playable:
    """A vendor that rejects the option as it was first sent."""

    def play(heard: ReceivedRequest) -> Any:
        return case.refusal if case.wanted(heard.body) == case.sent else says("fine")

    return play


def request_for(case: Case) -> Request:
    # On the Anthropic wire, thinking and a temperature exclude each other.
    thinks = not (case.sent == 0.5 and case.vendor is FakeAnthropic)
    return Request(
        model=case.model,
        system="Be brief.",
        messages=[UserMessage("hi")],
        tools=TOOLS,
        max_output=4000 if case.model.startswith("claude") else 1000,
        temperature=0.5,
        think=thinks,
        output=case.output,
    )


CARRIES: tuple[str, ...] = ("model", "messages", "input", "contents", "tools", "stream", "store", "anthropic_version")


def carried(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in CARRIES if name in body}


@pytest.mark.parametrize("name", CASES)
async def test_a_rejected_option_is_left_out_at_once_and_later(name: str) -> None:
    case = CASES[name]
    async with case.vendor(rejecting(case)) as vendor, case.create_provider(vendor) as provider:
        replies = [await provider.answer(request_for(case), DeltaListener().publish) for _ in range(2)]
        bodies = [heard.body for heard in vendor.requests]

    assert [reply.message.text for reply in replies] == ["fine", "fine"]
    sent, *others = (case.wanted(body) for body in bodies)
    assert sent == case.sent
    assert len(others) == 2
    assert others[0] == others[1] != case.sent
    if case.instead is not None:
        assert others[0] == case.instead
    if case.output is None and case.wanted is not marks:
        assert carried(bodies[0]) == carried(bodies[1]) == carried(bodies[2])


@pytest.mark.parametrize("name", CASES)
async def test_rejecting_an_omitted_option_ends_the_retries(name: str) -> None:
    case = CASES[name]
    async with case.vendor(case.refusal) as vendor, case.create_provider(vendor) as provider:
        with pytest.raises(ProviderError):
            await provider.answer(request_for(case), DeltaListener().publish)

    assert len(vendor.requests) <= 4


@pytest.mark.parametrize("name", [name for name in CASES if "form of the answer" in name])
async def test_an_output_format_without_a_field_goes_into_the_prompt(name: str) -> None:
    case = CASES[name]
    async with case.vendor(rejecting(case)) as vendor, case.create_provider(vendor) as provider:
        await provider.answer(request_for(case), DeltaListener().publish)

    first, second = (heard.raw.decode() for heard in vendor.requests)
    demand = "Give your final answer as"
    assert (demand in first, demand in second) == (False, True)


async def test_a_rejected_schema_does_not_disable_other_schemas() -> None:
    loose = Case(
        **CHAT,
        output=SCHEMA,
        refusal=openai_error("Invalid schema for response_format: 'additionalProperties' is required"),
        wanted=lambda body: body.get("response_format", {}).get("json_schema", {}).get("schema"),
        sent={"type": "object"},
    )
    strict = Output(mode="json_schema", schema='{"type":"object","additionalProperties":false}')
    async with FakeChat(rejecting(loose)) as vendor, chat(vendor) as provider:
        for output in (SCHEMA, strict):
            await provider.answer(replace(request_for(loose), output=output), DeltaListener().publish)

    assert [loose.wanted(heard.body) for heard in vendor.requests] == [
        {"type": "object"},
        None,
        {"type": "object", "additionalProperties": False},
    ]


@pytest.mark.parametrize("name", ["chat: temperature", "responses: temperature", "anthropic: temperature"])
async def test_rejections_are_remembered_per_model(name: str) -> None:
    case = CASES[name]
    async with case.vendor(rejecting(case)) as vendor, case.create_provider(vendor) as provider:
        await provider.answer(request_for(case), DeltaListener().publish)
        await provider.answer(request_for(replace(case, model="other")), DeltaListener().publish)
        requests = [(heard.body["model"], case.wanted(heard.body)) for heard in vendor.requests]

    assert requests == [("m", 0.5), ("m", None), ("other", 0.5), ("other", None)]


@pytest.mark.parametrize(
    ("create_provider", "vendor", "refusal"),
    [
        (chat, FakeChat, openai_error("Unsupported value: 'messages[0].role' does not support 'system'.")),
        (chat, FakeChat, openai_error("Unsupported parameter: 'tools' is not supported.", "tools")),
        (chat, FakeChat, openai_error("Invalid 'max_tokens': integer above maximum value.", "max_tokens")),
        (responses, FakeResponses, openai_error("Unsupported parameter: 'input'", "input")),
        (responses, FakeResponses, openai_error("Invalid text: the summary of your format is unknown")),
        (anthropic, FakeAnthropic, fake_anthropic.failed(400, "max_tokens: 9 is not permitted")),
        (anthropic, FakeAnthropic, fake_anthropic.failed(400, "messages.0: thinking blocks are unexpected")),
        (gemini, FakeGemini, fake_gemini.failed(400, 'Unknown name "contents"', "INVALID_ARGUMENT")),
        (gemini, FakeGemini, fake_gemini.failed(400, 'Unknown name "tools"', "INVALID_ARGUMENT")),
    ],
)
async def test_conversation_fields_and_values_out_of_range_are_never_omitted(
    create_provider: Callable[[Any], AbstractAsyncContextManager[Provider]],
    vendor: Callable[[Playable], FakeServer],
    refusal: FakeResponse,
) -> None:
    question = replace(request_for(CASES["chat: temperature"]), think=True)
    async with vendor(refusal) as server, create_provider(server) as provider:
        with pytest.raises(ProviderError, match="answered 400"):
            await provider.answer(question, DeltaListener().publish)

        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("words", "rejected"),
    [
        ("'reasoning.effort' is unsupported", "reasoning.effort"),
        ("Unsupported parameter: 'effort'", "reasoning.effort"),
        ("Unknown parameter: 'reasoning'", "reasoning"),
        ("reasoning: Extra inputs are not permitted", "reasoning"),
        ("[{'loc': ['body', 'max_output_tokens'], 'msg': 'Extra inputs are not permitted'}]", "max_output_tokens"),
        ("Unknown field maxOutputTokens", "max_output_tokens"),
        ("this reasoning is invalid", None),
        ("max_output_tokens is too large: unsupported", None),
    ],
)
def test_a_rejected_option_is_recognized_by_path_name_or_parent(words: str, rejected: str | None) -> None:
    options = ["max_output_tokens", "reasoning.effort", "reasoning.summary"]

    assert rejected_option(options, ProviderError(words, fault="bad_request", status=400)) == rejected
