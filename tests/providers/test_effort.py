"""Effort on every wire: what is sent for each step, what a server that rejects a step gets, and thinking in tags."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

import retinue
from retinue.core.messages import Delta, TextDelta, ThinkingDelta, UserMessage
from retinue.core.model_options import EFFORTS, Effort
from retinue.core.ports import Request
from retinue.providers.anthropic import request as anthropic
from retinue.providers.gemini import request as gemini
from retinue.providers.openai_chat import request as chat
from retinue.providers.openai_chat.quirks import LOCAL_SERVER, ChatQuirks
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.providers.openai_responses import request as responses
from retinue.testing.fake_chat import DONE, EVENTS, error_response, event
from retinue.testing.fake_server import FakeResponse, FakeServer, ReceivedRequest
from tests.providers.raw_answers import PROVIDERS, answer

PLAIN = Request(model="m", system="", messages=[UserMessage("hi")])

WRITTEN: dict[str, tuple[str, ...]] = {
    # none, minimal, low, medium, high, xhigh, max
    "o3": ("low", "low", "low", "medium", "high", "high", "high"),
    "gpt-5": ("minimal", "minimal", "low", "medium", "high", "high", "high"),
    "gpt-5.1": ("none", "none", "low", "medium", "high", "high", "high"),
    "gpt-5.4": ("none", "none", "low", "medium", "high", "xhigh", "xhigh"),
}


def steps_of(encode: Any, model: str, *path: str) -> tuple[object, ...]:
    """The value at a path of the body, for each effort."""
    found: list[object] = []
    for effort in EFFORTS:
        value: Any = msgspec.json.decode(encode(replace(PLAIN, model=model, effort=effort, memo={})))
        for key in path:
            value = value.get(key, {})
        found.append(value or None)
    return tuple(found)


@pytest.mark.parametrize("model", WRITTEN)
def test_openai_gets_the_nearest_step_of_the_model(model: str) -> None:
    assert steps_of(chat.encode, model, "reasoning_effort") == WRITTEN[model]
    assert steps_of(responses.encode, model, "reasoning", "effort") == WRITTEN[model]


def test_a_model_without_reasoning_gets_no_effort() -> None:
    assert steps_of(chat.encode, "gpt-4o", "reasoning_effort") == (None,) * 7
    assert steps_of(responses.encode, "gpt-4o", "reasoning") == (None,) * 7


def test_an_adaptive_model_of_anthropic_gets_its_steps_and_none_switches_thinking_off() -> None:
    effort = steps_of(anthropic.encode, "claude-opus-5-5", "output_config", "effort")
    thinking = steps_of(anthropic.encode, "claude-opus-5-5", "thinking", "type")

    assert effort == (None, "low", "low", "medium", "high", "xhigh", "max")
    assert thinking == ("disabled", *("adaptive",) * 6)


def test_a_model_of_anthropic_with_a_budget_gets_tokens_below_the_longest_reply() -> None:
    budgets = steps_of(anthropic.encode, "claude-sonnet-4-5", "thinking", "budget_tokens")

    assert budgets == (None, 1024, 4096, 12_000, 24_000, 48_000, 48_000)


def test_gemini_gets_budgets_or_levels() -> None:
    path = ("generationConfig", "thinkingConfig")

    assert steps_of(gemini.encode, "gemini-2.5-pro", *path, "thinkingBudget") == (
        (128, 512, 1024, 8192, -1, 24_576, 24_576)
    )
    flash = gemini.options(replace(PLAIN, model="gemini-2.5-flash", effort="none", memo={}))
    assert flash == {"thinkingConfig.thinkingBudget": 0}
    assert steps_of(gemini.encode, "gemini-3.5-flash", *path, "thinkingLevel") == (
        ("minimal", "minimal", "low", "medium", "high", "high", "high")
    )


@pytest.mark.parametrize(
    ("quirks", "none", "low"),
    [
        (ChatQuirks(effort="reasoning_effort"), {"reasoning_effort": "none"}, {"reasoning_effort": "low"}),
        (ChatQuirks(effort="reasoning"), {"reasoning": {"enabled": False}}, {"reasoning": {"effort": "low"}}),
        (
            ChatQuirks(effort="thinking"),
            {"thinking": {"type": "disabled"}},
            {"thinking": {"type": "enabled"}, "reasoning_effort": "low"},
        ),
        (
            LOCAL_SERVER,
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": True}},
        ),
    ],
    ids=lambda each: each.effort if isinstance(each, ChatQuirks) else "",
)
def test_other_servers_of_chat_completions_get_effort_in_their_own_fields(
    quirks: ChatQuirks, none: dict[str, object], low: dict[str, object]
) -> None:
    for effort, expected in (("none", none), ("low", low)):
        sent = chat.options(replace(PLAIN, effort=cast(Effort, effort)), {"stream_options"}, quirks=quirks)
        assert sent == {"stream": True} | expected


def test_think_alone_asks_for_a_high_effort_and_effort_none_switches_it_off() -> None:
    asked = replace(PLAIN, model="o3", think=True)

    assert chat.options(asked)["reasoning_effort"] == "high"
    assert chat.options(replace(asked, effort="none"))["reasoning_effort"] == "low"
    assert (asked.thinks, replace(asked, effort="none").thinks, replace(PLAIN, effort="low").thinks) == (
        True,
        False,
        True,
    )


# ---- over HTTP -------------------------------------------------------------------------------------------------------

MODELS = {"chat": "gpt-5.4", "responses": "gpt-5.4", "anthropic": "claude-opus-5-5", "gemini": "gemini-3.5-flash"}
MODELS["bedrock"] = "global.anthropic.claude-opus-5-5"
FIELDS = {
    "bedrock": ("additionalModelRequestFields", "output_config", "effort"),
    "chat": ("reasoning_effort",),
    "responses": ("reasoning", "effort"),
    "anthropic": ("output_config", "effort"),
    "gemini": ("generationConfig", "thinkingConfig", "thinkingLevel"),
}
NAMES = {"responses": "reasoning.effort", "gemini": "thinking_level"}


def sent_step(wire: str, body: Any) -> object:
    for key in FIELDS[wire]:
        body = body.get(key, {})
    return body or None


async def steps_at(wire: str, *rejections: FakeResponse, effort: Effort = "high") -> list[object]:
    """The steps in the requests of two runs, at a server that answers with these errors first."""
    left = list(rejections)

    def respond(_: ReceivedRequest) -> FakeResponse:
        return left.pop(0) if left else answer(wire, "Yes.")

    async with (
        FakeServer(respond) as server,
        retinue.open(model=MODELS[wire], provider=PROVIDERS[wire](server.url), dialects=(), home=retinue.MEMORY) as r,
    ):
        for _ in range(2):
            assert (await r.run("Why?", effort=effort)).text == "Yes."
    return [sent_step(wire, heard.body) for heard in server.requests]


def rejected(wire: str, step: str, supported: str = "") -> FakeResponse:
    name = NAMES.get(wire, FIELDS[wire][-1])
    listed = f" Supported values are: {supported}." if supported else ""
    return error_response(400, f"Unsupported value: '{name}' does not support '{step}' with this model.{listed}")


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_the_effort_of_a_run_is_sent(wire: str) -> None:
    assert await steps_at(wire) == ["high", "high"]


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_a_step_that_a_model_rejects_is_replaced_by_the_nearest_and_remembered(wire: str) -> None:
    assert await steps_at(wire, rejected(wire, "high", "'low', 'medium'")) == ["high", "medium", "medium"]


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_a_model_that_rejects_every_step_gets_none(wire: str) -> None:
    steps = await steps_at(wire, *[rejected(wire, step) for step in ("high", "medium")])

    assert steps == ["high", "medium", None, None]


async def test_the_effort_of_an_agent_holds_unless_the_run_has_one() -> None:
    async with FakeServer(lambda _: answer("chat", "Yes.")) as server:
        provider, careful = PROVIDERS["chat"](server.url), retinue.Agent(name="careful", effort="low")
        async with retinue.open(
            model="gpt-5.4", provider=provider, agents=[careful], dialects=(), home=retinue.MEMORY
        ) as r:
            await r.run("Why?", agent="careful")
            await r.run("Why?", agent="careful", effort="xhigh")
            await r.run("Why?")

    assert [heard.body.get("reasoning_effort") for heard in server.requests] == ["low", "xhigh", None]


# ---- thinking in tags ------------------------------------------------------------------------------------------------


def streamed(*pieces: str) -> FakeResponse:
    choices: list[dict[str, object]] = [{"index": 0, "delta": {"content": piece}} for piece in pieces]
    choices.append({"index": 0, "finish_reason": "stop"})
    return FakeResponse(pieces=(*(event({"choices": [each]}) for each in choices), DONE), headers=EVENTS)


async def deltas_of(*pieces: str, quirks: ChatQuirks = LOCAL_SERVER) -> tuple[str, str, Sequence[Delta]]:
    """The text and the thinking of a reply, and its deltas."""
    deltas: list[Delta] = []
    async with FakeServer(lambda _: streamed(*pieces)) as server:
        provider = OpenAIChatProvider(server.url, quirks=quirks)
        reply = await provider.answer(replace(PLAIN, memo={}), deltas.append)
        await provider.close()
    thinking = "".join(block.text for block in reply.message.thinking)
    shown = [each for each in deltas if isinstance(each, (TextDelta, ThinkingDelta))]
    return reply.message.text, thinking, shown


TAGGED = "<think>\nHm. 1 < 2.\n</think>\n\nYes, <think> is a tag."


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(TAGGED)])
async def test_thinking_in_tags_of_a_local_server_is_thinking_however_it_is_cut(size: int) -> None:
    pieces = [TAGGED[start : start + size] for start in range(0, len(TAGGED), size)]
    text, thinking, deltas = await deltas_of(*pieces)

    assert (text, thinking) == ("Yes, <think> is a tag.", "\nHm. 1 < 2.\n")
    assert "".join(each.text for each in deltas if isinstance(each, TextDelta)) == text
    assert "".join(each.text for each in deltas if isinstance(each, ThinkingDelta)) == thinking


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yes, <think>no</think>", ("Yes, <think>no</think>", "")),
        ("<thin", ("<thin", "")),
        ("<thinking>no</thinking>", ("<thinking>no</thinking>", "")),
        ("<think>never closed", ("", "never closed")),
        ("  <think></think>Yes.", ("Yes.", "")),
    ],
)
async def test_only_a_tag_at_the_beginning_is_thinking(text: str, expected: tuple[str, str]) -> None:
    assert (await deltas_of(text))[:2] == expected


async def test_tags_in_answers_of_vendors_are_text() -> None:
    assert (await deltas_of(TAGGED, quirks=ChatQuirks()))[:2] == (TAGGED, "")
