"""Who can answer: wires by name, where they live, and how a provider is made from what the user says about it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from retinue.core.errors import BadInput, UnknownName
from retinue.core.ports import Provider
from retinue.providers.context_windows import ContextWindows
from retinue.providers.pricing import Priced, Rates, Tariff

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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
VERTEXAI_ANTHROPIC = "retinue.providers.anthropic:VertexAIAnthropicProvider"
OPENAI_CHAT = "retinue.providers.openai_chat:OpenAIChatProvider"
OPENAI_RESPONSES = "retinue.providers.openai_responses:OpenAIResponsesProvider"
GEMINI = "retinue.providers.gemini:GeminiProvider"
SCRIPTED = "retinue.providers.scripted:ScriptFileProvider"

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
    "scripted": Wire(SCRIPTED, "", ""),
}
"""Every wire, and the local servers that speak one of them; keys are looked for in this order. Imported when chosen.

`scripted` asks nobody: its model is a file with the lines to play.
"""

LOCAL = ("ollama", "lmstudio", "llamacpp", "vllm")
SCRIPTED_NAME = "scripted"

ResponsesWire: TypeAlias = Literal["live", "seed"]
"""How the wire of Responses writes calls: `live` as `function_call`, as OpenAI does, and `seed` as `tool_call`."""

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


Family: TypeAlias = Literal["anthropic", "openai", "gemini"]

_FAMILIES: dict[str, Family] = {
    ANTHROPIC: "anthropic",
    VERTEXAI_ANTHROPIC: "anthropic",
    OPENAI_CHAT: "openai",
    OPENAI_RESPONSES: "openai",
    GEMINI: "gemini",
}
_NAMES_OF_FAMILIES: dict[str, Family] = {
    "anthropic": "anthropic",
    "claude": "anthropic",
    "openai": "openai",
    "gpt": "openai",
    "chatgpt": "openai",
    "gemini": "gemini",
    "google": "gemini",
}


def family(wire: str) -> Family | None:
    """Whose way of talking a wire is, by any of its names. Local servers speak OpenAI's.

    >>> family("vertexai-anthropic"), family("Claude"), family("ollama"), family("scripted"), family("nobody")
    ('anthropic', 'anthropic', 'openai', None, None)
    """
    spoken = WIRES.get(called(wire))
    return None if spoken is None else _FAMILIES.get(spoken.place)


def family_called(name: str) -> Family | None:
    """The family that somebody means by a name, in any case; a wire's other names mean none.

    >>> family_called("ChatGPT"), family_called("google"), family_called("openai-chat")
    ('openai', 'gemini', None)
    """
    return _NAMES_OF_FAMILIES.get(name.lower())


class ProviderConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a provider is reached: enough for another process to reach it again, and never a key itself.

    `wire` is the API that the provider speaks, `api_key_env` the environment variable that holds the key. Pass configs
    as `retinue.open(provider_configs=[...])`; agents name their models `name:model`.

    >>> ProviderConfig(name="house", wire="openai-chat", base_url="http://localhost:8000/v1").api_key_env
    ''
    """

    name: str
    wire: str
    base_url: str = ""
    api_key_env: str = ""
    temperature: float | None = None
    headers: dict[str, str] = {}
    prices: dict[str, Rates] = {}
    context_window: int | None = None
    responses_wire: ResponsesWire | None = None


def provider_config(
    name: str,
    *,
    wire: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    temperature: float | None = None,
    headers: Mapping[str, str] | None = None,
    prices: Mapping[str, Rates] | None = None,
    context_window: int | None = None,
    responses_wire: ResponsesWire | None = None,
    whole_url: bool = False,
) -> ProviderConfig:
    """A provider by the name of its wire or of a local server, with the vendor's address and key unless others are
    given.

    The vendor's key goes to the vendor only: with another address, no key is sent unless its variable is named. With
    `whole_url`, what is wrong is told to whoever wrote the fields of `retinue call`.

    >>> provider_config("openai-chat", base_url="http://localhost:9/v1").api_key_env
    ''
    """
    check_variable(api_key_env, "api_key_name" if whole_url else "api_key_env")
    if wire is None:
        name = wire = called(name)
    spoken = WIRES.get(wire)
    if spoken is None:
        raise UnknownName("provider", wire, tuple(WIRES))
    if responses_wire == "seed" and spoken.place != OPENAI_RESPONSES:
        raise BadInput(f"responses_wire of {name!r} says how the wire openai-responses writes; its wire is {wire}")
    if spoken.place == SCRIPTED:
        if base_url:
            raise BadInput(f"{wire} asks nobody: it has no base URL; its model is the file that it plays")
        return ProviderConfig(name=name, wire=wire, temperature=temperature, prices=dict(prices or {}))
    address = base_url or spoken.base_url
    if not address:
        raise BadInput(f"{wire} has no address of its own: give its base URL, such as {spoken.example}")
    if not address.startswith(("http://", "https://")):
        field = "url" if whole_url else "base URL"
        raise BadInput(f"{field} {address!r} is not an address: it has to begin with http:// or https://")
    _check_address(address, whole_url=whole_url)
    vendors_own = address.rstrip("/") == spoken.base_url
    key = api_key_env if api_key_env is not None else spoken.api_key_env if vendors_own else ""
    return ProviderConfig(
        name=name,
        wire=wire,
        base_url=address.rstrip("/"),
        api_key_env=key,
        temperature=temperature,
        headers=dict(headers or {}),
        prices=dict(prices or {}),
        context_window=context_window,
        responses_wire=responses_wire,
    )


def moved(known: ProviderConfig, base_url: str | None, api_key_env: str | None) -> ProviderConfig:
    """A provider with another address or another key's variable, where they are given. Neither its key nor its headers
    go to another address: they were meant for one.

    >>> moved(provider_config("openai", api_key_env="MINE"), "http://localhost:9/v1", None).api_key_env
    ''
    """
    elsewhere = base_url is not None and base_url.rstrip("/") != known.base_url
    key = known.api_key_env if api_key_env is None and not elsewhere else api_key_env
    return provider_config(
        known.name,
        wire=known.wire,
        base_url=base_url or known.base_url,
        api_key_env=key,
        temperature=known.temperature,
        headers={} if elsewhere else known.headers,
        prices=known.prices,
        context_window=known.context_window,
        responses_wire=known.responses_wire,
    )


def check_variable(name: str | None, field: str = "api_key_env") -> None:
    """Refuse what is no name of a variable: it may be the key itself, which is neither stored nor shown.

    >>> check_variable("sk-1234567890")
    Traceback (most recent call last):
    retinue.core.errors.BadInput: api_key_env: found a string of 13 characters; expected the name of an environment \
variable, never a key itself
    """
    if name and not _VARIABLE.fullmatch(name):
        raise BadInput(
            f"{field}: found a string of {len(name)} characters; expected the name of an environment variable, never a "
            "key itself"
        )


def _check_address(address: str, *, whole_url: bool) -> None:
    """An address is shown and stored, a key never is: a key inside an address is refused before it goes anywhere."""
    field = "url" if whole_url else "base URL"
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:  # half of an IPv6 address, or a port that there is not; what else is in it may be a secret
        raise BadInput(f"the {field} is not an address: what follows the // is no host with a port") from None
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if "@" in parts.netloc or any(_SECRET.search(name) for name in names):
        name = '"api_key_name": "NAME"' if whole_url else '--api-key-env NAME, api_key_env = "NAME"'
        raise BadInput(
            f"the {field} for {host} has a secret in it: put the key into an environment variable and name that "
            f"({name})"
        )


def reach(where: ProviderConfig, *, spelled_out: bool = False, whole_url: bool = False) -> Provider:
    """The provider itself, whose replies say what they cost; its module is imported now.

    With `spelled_out`, OpenAI's wires say even what nobody asked for, and Responses go on from the response before.
    With `whole_url`, its base URL is the whole address of requests, and nothing is added to it.
    """
    wire = WIRES[where.wire]
    module, _, attribute = wire.place.partition(":")
    maker: Any = getattr(import_module(module), attribute)
    if wire.place == SCRIPTED:
        return Priced(maker(), tariff(where), windows(where).window)
    options: dict[str, object] = {"whole_url": True} if whole_url else {}
    if spelled_out and wire.place in (OPENAI_CHAT, OPENAI_RESPONSES):
        options["explicit"] = True
    if wire.place == OPENAI_RESPONSES:
        options["continues"] = "previous" if spelled_out else "whole"
        options["spelling"] = "tool_call" if where.responses_wire == "seed" else "function_call"
    provider: Provider = maker(
        base_url=where.base_url, api_key_env=where.api_key_env or None, headers=dict(where.headers), **options
    )
    return Priced(provider, tariff(where), windows(where).window)


IN_PROCESS: dict[str, str] = {
    OPENAI_CHAT: "openai-chat",
    OPENAI_RESPONSES: "openai-responses",
    ANTHROPIC: "anthropic",
    VERTEXAI_ANTHROPIC: "vertexai-anthropic",
}
"""The wires that `retinue call` speaks, under the name that it knows them by."""


def whole_url(where: ProviderConfig, model: str) -> str:
    """The whole address at which a model of this provider is asked, for whoever builds no address of their own.

    >>> local, vendor = provider_config("ollama"), provider_config("anthropic", base_url="https://host/v1")
    >>> whole_url(local, "qwen3"), whole_url(vendor, "m")
    ('http://localhost:11434/v1/chat/completions', 'https://host/v1/messages')
    """
    base, query = where.base_url.partition("?")[::2]
    base = base.rstrip("/")
    place = WIRES[where.wire].place
    if place == ANTHROPIC:
        base = base.removesuffix("/v1")
    paths = {
        OPENAI_CHAT: "/chat/completions",
        OPENAI_RESPONSES: "/responses",
        ANTHROPIC: "/v1/messages",
        VERTEXAI_ANTHROPIC: f"/publishers/anthropic/models/{model}:streamRawPredict",
    }
    path = paths[place]
    whole = base if base.endswith(path) else base + path
    return f"{whole}?{query}" if query else whole


def tariff(where: ProviderConfig) -> Tariff:
    """What a provider's models cost: what the user says, else the list; nothing on one's own model server.

    >>> tariff(provider_config("ollama")).price("qwen3"), tariff(provider_config("openai-chat")).price("qwen3")
    ((0, 0), None)
    """
    on_this_machine = urlsplit(where.base_url).hostname in ("localhost", "127.0.0.1", "::1")
    # Any wire may have an address on this machine, such as a proxy's: only the name of a local server says it is free.
    nobodys = where.wire == SCRIPTED_NAME
    return Tariff(where.prices, free=nobodys or (where.wire in LOCAL and on_this_machine))


def windows(where: ProviderConfig) -> ContextWindows:
    """How much a provider's models can read: what the user says, else the list; unknown on one's own model server.

    >>> windows(provider_config("ollama")).window("gpt-4o")
    >>> windows(provider_config("ollama", context_window=8192)).window("qwen3")
    8192
    """
    return ContextWindows(where.context_window, listed=where.wire not in (*LOCAL, SCRIPTED_NAME))


def keys_found(environ: Mapping[str, str] | None = None) -> dict[str, bool]:
    """Which vendors' key variables are set; names only."""
    found = os.environ if environ is None else environ
    return {wire.api_key_env: bool(found.get(wire.api_key_env)) for wire in WIRES.values() if wire.api_key_env}
