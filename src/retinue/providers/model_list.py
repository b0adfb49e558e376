"""The models that a provider's server lists, with their context windows and prices."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from retinue.core.errors import ProviderError
from retinue.core.text import NOT_JSON
from retinue.net.http import Http
from retinue.providers.catalog import WIRES, ProviderConfig, context_windows, model_prices, provider_class_of
from retinue.providers.http import Endpoint
from retinue.providers.pricing import Rates

MAX_BYTES = 4 << 20
"""Bytes of a list that are read; the longest of a vendor has 1 MB."""

_NOT_CHAT = re.compile(
    r"embed|moderation|whisper|tts|transcribe|audio|realtime|image|imagen|dall-e|veo|sora|lyria|davinci|babbage"
    r"|-search-|computer-use|rerank|aqa",
    re.IGNORECASE,
)
"""Models that answer no chat, by their names: OpenAI lists all kinds of models as one."""


class ListedModel(Struct, frozen=True, kw_only=True):
    """A model of a provider; None is an unknown window or price."""

    name: str
    window: int | None = None
    rates: Rates | None = None


class _Entry(Struct):
    """One model, as OpenAI's and Anthropic's format (`id`), Gemini's (`name`) or Bedrock's has it."""

    id: str = ""
    name: str = ""
    context_length: int | None = None
    max_model_len: int | None = None
    context_window: int | None = None
    modelId: str = ""  # noqa: N815
    inferenceProfileId: str = ""  # noqa: N815
    outputModalities: list[str] | None = None  # noqa: N815
    inputTokenLimit: int | None = None  # noqa: N815
    supportedGenerationMethods: list[str] | None = None  # noqa: N815

    @property
    def model(self) -> str:
        return self.id or self.modelId or self.inferenceProfileId or self.name.removeprefix("models/")

    @property
    def window(self) -> int | None:
        return self.context_length or self.max_model_len or self.context_window or self.inputTokenLimit

    @property
    def is_chat(self) -> bool:
        methods = self.supportedGenerationMethods
        if self.outputModalities is not None and "TEXT" not in self.outputModalities:
            return False
        return not _NOT_CHAT.search(self.model) and (methods is None or "generateContent" in methods)


class _List(Struct):
    """A list of models, under the names that vendors have for it."""

    data: list[_Entry] | None = None
    models: list[_Entry] | None = None
    modelSummaries: list[_Entry] | None = None  # noqa: N815
    inferenceProfileSummaries: list[_Entry] | None = None  # noqa: N815


def has_list(config: ProviderConfig) -> bool:
    """Whether the server of a provider can be asked for its models."""
    return bool(WIRES[config.wire].models_path) and not config.full_url


async def list_models(config: ProviderConfig, *, http: Http, every: bool = False) -> list[ListedModel]:
    """The chat models that the server lists, sorted by name; with `every`, all kinds of models.

    Raises `ProviderError` if the server cannot be reached, refuses the key, or answers with something else.
    """
    listed: list[_Entry] = []
    for endpoint in await _endpoints(config, http):
        listed += _decode(await endpoint.fetch(MAX_BYTES), config)
    prices, windows = model_prices(config), context_windows(config)
    chosen = [entry for entry in listed if entry.model and (every or entry.is_chat)]
    return sorted(
        (
            ListedModel(
                name=entry.model,
                window=config.context_window or entry.window or windows.window(entry.model),
                rates=prices.rates(entry.model),
            )
            for entry in chosen
        ),
        key=lambda model: model.name,
    )


async def _endpoints(config: ProviderConfig, http: Http) -> Sequence[Endpoint]:
    wire = WIRES[config.wire]
    if not wire.finds_credentials:
        return [_endpoint(config, http)]
    provider = provider_class_of(wire)(config.base_url, config.api_key_env or None, config.headers, http=http)
    return await provider.list_endpoints()


def _endpoint(config: ProviderConfig, http: Http) -> Endpoint:
    wire = WIRES[config.wire]
    base, _, query = config.base_url.partition("?")
    if wire.models_path.startswith("/v"):  # the path has the version, which users write in the address too
        base = base.rstrip("/").removesuffix(wire.version_path)
    joined = "&".join(filter(None, (query, wire.models_query)))
    return Endpoint(
        f"{base}?{joined}" if joined else base,
        wire.models_path,
        api_key_env=config.api_key_env or None,
        headers=wire.fixed_headers | config.headers,
        http=http,
        key_header=wire.key_header,
        key_prefix=wire.key_prefix,
    )


def _decode(body: bytes, config: ProviderConfig) -> list[_Entry]:
    try:
        listed = msgspec.json.decode(body, type=_List)
    except NOT_JSON:
        listed = _List()
    lists = (listed.data, listed.models, listed.modelSummaries, listed.inferenceProfileSummaries)
    entries = next((each for each in lists if each is not None), None)
    if entries is None:
        raise ProviderError(f"{config.base_url} does not list its models: the answer has no such list", fault="cut")
    return entries
