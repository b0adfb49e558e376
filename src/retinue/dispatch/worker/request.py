"""What `retinue call` reads on its stdin: one JSON object of ten fields, with defaults filled in and checked."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from retinue.core.errors import BadInput, Refused, UnknownName
from retinue.dialects import registry
from retinue.dialects.child_process import DEFAULT_TEMPERATURE, CallRequest

PROVIDERS = ("openai-chat", "openai-responses", "anthropic", "vertexai-anthropic")


class ResolvedCall(Struct, frozen=True, kw_only=True):
    """A request with a value for every field that was left out."""

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


def read_request(stdin: bytes) -> ResolvedCall:
    """The request in these bytes; raises `BadInput` with what is wrong with it.

    >>> call = read_request(b'{"model": "m", "provider": "anthropic", "url": "http://host/messages", "prompt": "Hi"}')
    >>> call.temperature, call.max_tokens, call.tools, call.api_key_name
    (0.8, None, (), '')
    """
    try:
        request = msgspec.json.decode(stdin, type=CallRequest)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as wrong:
        raise BadInput(f"what came on stdin is not the JSON of a call: {wrong}") from None
    if request.provider not in PROVIDERS:
        raise UnknownName("provider", request.provider[:200], PROVIDERS)
    return ResolvedCall(
        model=request.model,
        provider=request.provider,
        url=request.url,
        api_key_name=(request.api_key_name or "").strip(),
        prompt=request.prompt,
        system_prompt=request.system_prompt or "",
        tools=_tools(request),
        think=bool(request.think),
        temperature=DEFAULT_TEMPERATURE if request.temperature is None else request.temperature,
        max_tokens=request.max_tokens,
    )


def _tools(request: CallRequest) -> tuple[str, ...]:
    processes = registry.entry(registry.CALL).processes
    assert processes is not None
    try:
        return processes.tools.load()(request.tool_subset)
    except Refused as unknown:
        raise BadInput(str(unknown)) from None
