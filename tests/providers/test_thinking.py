"""The thinking options of each wire: only what is set, and with `explicit` the defaults too."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from retinue.core.messages import UserMessage
from retinue.core.ports import Request
from retinue.providers.anthropic import request as anthropic
from retinue.providers.gemini import request as gemini
from retinue.providers.openai_chat import request as openai_chat
from retinue.providers.openai_responses import request as openai_responses

PLAIN = Request(model="m", system="Be brief.", messages=[UserMessage("hi")])
SET = replace(PLAIN, max_output=100, temperature=0.5)
MARK = {"cache_control": {"type": "ephemeral"}}

THINKERS = ("gpt-5.2", "gpt-5.1", "gpt-5", "gpt-5-mini", "o4-mini", "o3", "o3-pro", "gpt-5-pro")


def chat(request: Request, *, explicit: bool = False) -> dict[str, Any]:
    return msgspec.json.decode(openai_chat.encode(request, explicit=explicit))


def responses(request: Request, *, explicit: bool = False) -> dict[str, Any]:
    return msgspec.json.decode(openai_responses.encode(request, explicit=explicit))


def as_chat(model: str, orders: str, **fields: object) -> dict[str, Any]:
    conversation = [{"role": orders, "content": "Be brief."}, {"role": "user", "content": "hi"}]
    return {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": conversation,
    } | fields


def as_response(model: str, **fields: object) -> dict[str, Any]:
    conversation = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    return {"model": model, "stream": True, "store": False, "instructions": "Be brief.", "input": conversation} | fields


# ---- chat -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", THINKERS)
def test_chat_reasoning_models_get_effort_on_request_and_no_temperature(model: str) -> None:
    assert chat(replace(PLAIN, model=model)) == as_chat(model, "developer")
    assert chat(replace(SET, model=model)) == as_chat(model, "developer", max_completion_tokens=100)
    assert chat(replace(SET, model=model, think=True)) == as_chat(
        model, "developer", max_completion_tokens=100, reasoning_effort="high"
    )


@pytest.mark.parametrize("model", THINKERS)
def test_explicit_chat_requests_state_format_and_effort(model: str) -> None:
    explicit = {"response_format": {"type": "text"}, "reasoning_effort": "high"}
    idle = explicit | {"reasoning_effort": "none"} if model == "gpt-5.1" else explicit

    assert chat(replace(PLAIN, model=model), explicit=True) == as_chat(model, "developer", **idle)
    assert chat(replace(SET, model=model, think=True), explicit=True) == as_chat(
        model, "developer", max_completion_tokens=100, **explicit
    )


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("think", [False, True])
def test_chat_models_without_reasoning_get_no_reasoning_options(think: bool, explicit: bool) -> None:
    asked = replace(SET, model="qwen3", think=think)

    assert chat(asked, explicit=explicit) == as_chat("qwen3", "system", max_tokens=100, temperature=0.5)


# ---- responses ------------------------------------------------------------------------------------------------------

ENCRYPTED = {"include": ["reasoning.encrypted_content"]}
THINKING = {"reasoning": {"effort": "high", "summary": "detailed"}}


def test_responses_get_high_effort_and_a_detailed_summary_on_request() -> None:
    assert responses(replace(PLAIN, model="o3")) == as_response("o3", **ENCRYPTED)
    assert responses(replace(PLAIN, model="o3", think=True)) == as_response("o3", **ENCRYPTED, **THINKING)
    assert responses(replace(SET, model="o3", think=True)) == as_response(
        "o3", max_output_tokens=100, temperature=0.5, **ENCRYPTED, **THINKING
    )


@pytest.mark.parametrize("model", ["o3", "gpt-5.1", "gpt-4o"])
def test_explicit_responses_requests_always_state_the_effort(model: str) -> None:
    idle = {"reasoning": {"effort": "none"}}

    assert responses(replace(PLAIN, model=model), explicit=True) == as_response(model, **idle)
    assert responses(replace(SET, model=model, think=True), explicit=True) == as_response(
        model, max_output_tokens=100, temperature=0.5, **THINKING
    )


# ---- anthropic ------------------------------------------------------------------------------------------------------


def as_messages(**fields: object) -> dict[str, Any]:
    return {
        "stream": True,
        "system": [{"type": "text", "text": "Be brief."} | MARK],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"} | MARK]}],
    } | fields


BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 24_000}}


def test_anthropic_gets_a_thinking_budget_below_max_tokens() -> None:
    asked = replace(PLAIN, model="claude-sonnet-4-5")

    assert msgspec.json.decode(anthropic.encode(asked)) == as_messages(model="claude-sonnet-4-5", max_tokens=64_000)
    assert msgspec.json.decode(anthropic.encode(replace(asked, think=True))) == as_messages(
        model="claude-sonnet-4-5", max_tokens=64_000, **BUDGET
    )


def test_vertex_gets_the_same_budget_and_no_model_in_the_body() -> None:
    asked = replace(PLAIN, model="claude-sonnet-4-5", think=True)

    assert msgspec.json.decode(anthropic.encode(asked, version="vertex-2023-10-16")) == as_messages(
        anthropic_version="vertex-2023-10-16", max_tokens=64_000, **BUDGET
    )


def test_newer_anthropic_models_get_adaptive_thinking() -> None:
    asked = replace(PLAIN, model="claude-opus-4-8", think=True)

    assert msgspec.json.decode(anthropic.encode(asked)) == as_messages(
        model="claude-opus-4-8", max_tokens=128_000, thinking={"type": "adaptive", "display": "summarized"}
    )


# ---- gemini ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("gemini-3-pro", {"includeThoughts": True}),
        ("gemini-2.5-flash-lite", {"includeThoughts": True, "thinkingBudget": -1}),
    ],
)
def test_gemini_is_asked_to_include_thoughts(model: str, fields: dict[str, Any]) -> None:
    body: dict[str, Any] = {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
    }

    assert msgspec.json.decode(gemini.encode(replace(PLAIN, model=model))) == body
    assert msgspec.json.decode(gemini.encode(replace(SET, model=model, think=True))) == body | {
        "generationConfig": {"maxOutputTokens": 100, "temperature": 0.5, "thinkingConfig": fields}
    }
