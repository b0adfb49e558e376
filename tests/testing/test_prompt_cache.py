"""Fake vendors cache prompt prefixes and report cached tokens."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.agent import ToolSpec
from retinue.core.messages import AssistantMessage, Message, UserMessage
from retinue.core.ports import Provider, Request
from retinue.core.usage import Usage
from retinue.providers.anthropic.response import AnthropicProvider
from retinue.providers.openai_chat.response import OpenAIChatProvider
from retinue.providers.openai_responses.response import OpenAIResponsesProvider
from retinue.providers.scripted import says
from retinue.testing.contracts.provider import TOOLS, DeltaListener
from retinue.testing.fake_chat import FakeChat, Playable
from retinue.testing.fake_server import FakeServer
from tests.providers.fakes.anthropic import FakeAnthropic
from tests.providers.fakes.responses import FakeResponses

pytestmark = pytest.mark.real_time

Vendor = Callable[[Playable], FakeServer]
Reach = Callable[[Any], AbstractAsyncContextManager[Provider]]

VENDORS: dict[str, tuple[Vendor, Reach]] = {
    "anthropic": (FakeAnthropic, lambda vendor: AnthropicProvider(vendor.base_url)),
    "chat": (FakeChat, lambda vendor: OpenAIChatProvider(vendor.base_url)),
    "responses": (FakeResponses, lambda vendor: OpenAIResponsesProvider(vendor.base_url)),
}
TALK: tuple[Message, ...] = (UserMessage("Why? " * 50), AssistantMessage("Because. " * 50), UserMessage("And?"))


async def cached(name: str, *requests: Request) -> list[int]:
    """The cached tokens of each request."""
    vendor, reach = VENDORS[name]
    async with vendor(says("ok")) as server, reach(server) as provider:
        usages = [(await provider.answer(request, DeltaListener().publish)).usage or Usage() for request in requests]
    return [usage.cached for usage in usages]


def asking(*messages: Message, tools: tuple[ToolSpec, ...] = TOOLS, system: str = "Be brief.") -> Request:
    return Request(model="m", system=system, messages=messages, tools=tools)


@pytest.mark.parametrize("name", VENDORS)
async def test_a_fork_is_cached_up_to_its_beginning(name: str) -> None:
    fork = asking(*TALK, AssistantMessage("So."), UserMessage("You look at the pool."))
    other = asking(*TALK, AssistantMessage("So."), UserMessage("You look at the logs."))

    first, again, forked, sibling = await cached(name, asking(*TALK), asking(*TALK), fork, other)

    assert first == 0
    assert again == forked > 0
    assert sibling >= forked


@pytest.mark.parametrize("name", VENDORS)
async def test_other_tools_system_text_or_model_are_not_cached(name: str) -> None:
    begun = asking(*TALK)

    first, tools, system, model, other_words = await cached(
        name,
        begun,
        replace(begun, tools=TOOLS[:1], memo={}),
        replace(begun, system="Be long.", memo={}),
        replace(begun, model="n", memo={}),
        asking(TALK[0], AssistantMessage("No."), UserMessage("And?")),
    )

    assert (first, model) == (0, 0)
    # The prefix before the difference is cached; the first tool is the same.
    assert tools <= system < other_words
