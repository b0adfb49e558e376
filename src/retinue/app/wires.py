"""Who can answer: wires by name, where they live, and how a provider is made from what the user says about it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from retinue.core.errors import BadInput, UnknownName
from retinue.core.ports import Provider
from retinue.providers.pricing import Priced, Rates, Tariff

_SECRET = re.compile(r"key|token|secret|password|auth|sig", re.IGNORECASE)


class Wire(Struct, frozen=True):
    """A way of talking to models: the class that speaks it, and the vendor it speaks to when nobody says otherwise.

    A vendor that has another address for every customer has none here, but an `example` of one.
    """

    place: str
    base_url: str
    api_key_env: str
    example: str = ""


ANTHROPIC = "retinue.providers.anthropic:AnthropicProvider"
VERTEXAI_ANTHROPIC = "retinue.providers.vertexai_anthropic:VertexAIAnthropicProvider"
OPENAI_CHAT = "retinue.providers.openai_chat:OpenAIChatProvider"
OPENAI_RESPONSES = "retinue.providers.openai_responses:OpenAIResponsesProvider"
GEMINI = "retinue.providers.gemini:GeminiProvider"

WIRES: dict[str, Wire] = {
    "anthropic": Wire(ANTHROPIC, "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "openai": Wire(OPENAI_RESPONSES, "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openai-chat": Wire(OPENAI_CHAT, "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openai-responses": Wire(OPENAI_RESPONSES, "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "gemini": Wire(GEMINI, "https://generativelanguage.googleapis.com", "GEMINI_API_KEY"),
    "vertexai-anthropic": Wire(
        VERTEXAI_ANTHROPIC, "", "", "https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION"
    ),
    "ollama": Wire(OPENAI_CHAT, "http://localhost:11434/v1", ""),
    "lmstudio": Wire(OPENAI_CHAT, "http://localhost:1234/v1", ""),
    "llamacpp": Wire(OPENAI_CHAT, "http://localhost:8080/v1", ""),
    "vllm": Wire(OPENAI_CHAT, "http://localhost:8000/v1", ""),
}
"""Every wire, and the local servers that speak one of them; keys are looked for in this order. Imported when chosen."""

LOCAL = ("ollama", "lmstudio", "llamacpp", "vllm")

ALIASES: dict[str, str] = {"claude": "anthropic", "gpt": "openai", "chatgpt": "openai", "google": "gemini"}
"""What people call vendors, and the wire they mean."""


def called(name: str, settled: Collection[str] = ()) -> str:
    """The provider that people mean by a name: one of their own first, then a wire in any spelling.

    >>> called("Claude"), called("OPENAI"), called("claude", ["claude"]), called("nobody")
    ('anthropic', 'openai', 'claude', 'nobody')
    """
    if name in settled or name in WIRES:
        return name
    plain = name.lower()
    meant = ALIASES.get(plain, plain)
    return meant if meant in WIRES or meant in settled else name


class Contact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a provider is reached: enough to reach it again in another process, and never a key itself."""

    name: str
    wire: str
    base_url: str = ""
    api_key_env: str = ""
    temperature: float | None = None
    headers: dict[str, str] = {}
    prices: dict[str, Rates] = {}


def contact(
    name: str,
    *,
    wire: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    temperature: float | None = None,
    headers: Mapping[str, str] | None = None,
    prices: Mapping[str, Rates] | None = None,
) -> Contact:
    """A provider by the name of its wire or of a local server, with the vendor's address and key unless others are
    given.

    The vendor's key goes to the vendor only: with another address, no key is sent unless its variable is named.

    >>> contact("openai-chat", base_url="http://localhost:9/v1").api_key_env
    ''
    """
    if wire is None:
        name = wire = called(name)
    spoken = WIRES.get(wire)
    if spoken is None:
        raise UnknownName("provider", wire, tuple(WIRES))
    address = base_url or spoken.base_url
    if not address:
        raise BadInput(f"{wire} has no address of its own: give its base URL, such as {spoken.example}")
    if not address.startswith(("http://", "https://")):
        raise BadInput(f"base URL {address!r} is not an address: it has to begin with http:// or https://")
    _check_no_secret(address)
    vendors_own = address.rstrip("/") == spoken.base_url
    key = api_key_env if api_key_env is not None else spoken.api_key_env if vendors_own else ""
    return Contact(
        name=name,
        wire=wire,
        base_url=address.rstrip("/"),
        api_key_env=key,
        temperature=temperature,
        headers=dict(headers or {}),
        prices=dict(prices or {}),
    )


def _check_no_secret(address: str) -> None:
    """An address is shown and stored, a key never is: a key inside an address is refused before it goes anywhere."""
    parts = urlsplit(address)
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if "@" in parts.netloc or any(_SECRET.search(name) for name in names):
        raise BadInput(
            f"the base URL for {parts.hostname} has a secret in it: put the key into an environment variable and name "
            'that (--api-key-env NAME, api_key_env = "NAME")'
        )


def reach(where: Contact) -> Provider:
    """The provider itself, whose replies say what they cost; its module is imported now."""
    module, _, attribute = WIRES[where.wire].place.partition(":")
    maker: Any = getattr(import_module(module), attribute)
    provider: Provider = maker(
        base_url=where.base_url, api_key_env=where.api_key_env or None, headers=dict(where.headers)
    )
    return Priced(provider, tariff(where))


def tariff(where: Contact) -> Tariff:
    """What a provider's models cost: what the user says, else the list; nothing on one's own model server.

    >>> tariff(contact("ollama")).price("qwen3"), tariff(contact("openai-chat")).price("qwen3")
    ((0, 0), None)
    """
    on_this_machine = urlsplit(where.base_url).hostname in ("localhost", "127.0.0.1", "::1")
    # Any wire may have an address on this machine, such as a proxy's: only the name of a local server says it is free.
    return Tariff(where.prices, free=where.wire in LOCAL and on_this_machine)


def keys_found(environ: Mapping[str, str] | None = None) -> dict[str, bool]:
    """Which vendors' key variables are set; names only."""
    found = os.environ if environ is None else environ
    return {wire.api_key_env: bool(found.get(wire.api_key_env)) for wire in WIRES.values() if wire.api_key_env}
