"""What `retinue call` reads on its stdin: one JSON object of ten fields.

Four have to be there: the model, its provider, its address and the prompt.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from retinue.core.errors import BadInput, UnknownName
from retinue.dialects.buzzllm import CATALOG, NotMet, Request, subset

PROVIDERS = ("openai-chat", "openai-responses", "anthropic", "vertexai-anthropic")
TEMPERATURE = 0.8

Filled = Annotated[str, Meta(min_length=1)]


class _Said(Struct, frozen=True):
    """The fields as whoever calls may write them; others are passed over."""

    model: Filled
    provider: str
    url: Filled
    prompt: str
    api_key_name: str | None = None
    system_prompt: str | None = None
    tool_subset: tuple[str, ...] | None = None
    think: bool | None = None
    temperature: float | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None


class CallOrder(Struct, frozen=True, kw_only=True):
    """What is to be done; what was left out has its default by now."""

    model: str
    provider: str
    url: str
    api_key_name: str
    prompt: str
    system_prompt: str
    tools: tuple[str, ...]
    think: bool
    temperature: float
    max_tokens: int | None


def read_order(stdin: bytes) -> CallOrder:
    """The order in these bytes; raises `BadInput` with what is wrong about it.

    >>> order = read_order(b'{"model": "m", "provider": "anthropic", "url": "http://host/v1/messages", "prompt": "Hi"}')
    >>> order.temperature, order.max_tokens, order.tools, order.api_key_name
    (0.8, None, (), '')
    """
    try:
        said = msgspec.json.decode(stdin, type=_Said)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as wrong:
        raise BadInput(f"what came on stdin is not the JSON of a call: {wrong}") from None
    if said.provider not in PROVIDERS:
        raise UnknownName("provider", said.provider[:200], PROVIDERS)
    try:
        tools = subset(Request(said.prompt, said.system_prompt, said.tool_subset), CATALOG)
    except NotMet as unknown:
        raise BadInput(str(unknown)) from None
    return CallOrder(
        model=said.model,
        provider=said.provider,
        url=said.url,
        api_key_name=(said.api_key_name or "").strip(),
        prompt=said.prompt,
        system_prompt=said.system_prompt or "",
        tools=tools,
        think=bool(said.think),
        temperature=TEMPERATURE if said.temperature is None else said.temperature,
        max_tokens=said.max_tokens,
    )
