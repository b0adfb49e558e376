"""Ask every provider for its models: those of the settings, vendors whose key is set, and servers on this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from retinue.app.settings_file import provider_configs
from retinue.config.settings import Settings
from retinue.core.errors import RetinueError, UnknownName
from retinue.net.http import Http
from retinue.providers.catalog import LOCAL_SERVERS, WIRES, ProviderConfig, check_key_address, provider_config
from retinue.providers.model_list import ListedModel, has_list, list_models

SECONDS = 10.0
"""How long one provider may take to list its models."""

LOCAL_SECONDS = 1.0
"""The same for a server on this machine that the settings do not name."""


class AskedProvider(Struct, frozen=True, kw_only=True):
    """A provider and the models that it listed, or why it listed none.

    `is_configured` is false for a local server that was only looked for: that none is there is not an error.
    """

    config: ProviderConfig
    models: tuple[ListedModel, ...] = ()
    error: str = ""
    is_configured: bool = True


def known_providers(settings: Settings, environ: Mapping[str, str] | None = None) -> list[ProviderConfig]:
    """The providers of the settings, and the vendors whose key is in the environment, one for each key."""
    environ = os.environ if environ is None else environ
    configured = provider_configs(settings)
    known = {(config.api_key_env, config.base_url) for config in configured}
    found = list(configured)
    for name, wire in WIRES.items():
        if wire.api_key_env and wire.found_by_key and environ.get(wire.api_key_env, "").strip():
            config = provider_config(name)
            if (config.api_key_env, config.base_url) not in known:
                known.add((config.api_key_env, config.base_url))
                found.append(config)
    return found


async def ask_providers(
    settings: Settings,
    *,
    only: str | None = None,
    every: bool = False,
    environ: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> list[AskedProvider]:
    """All providers with their models, asked at once; `only` names one, `every` includes models that do not chat.

    Servers on this machine that the settings do not name are left out if they do not answer.
    """
    configured = known_providers(settings, environ)
    names = [config.name for config in configured]
    local = [provider_config(name) for name in LOCAL_SERVERS if name not in names]
    if only is not None:
        known = [config for config in (*configured, *local) if config.name == only]
        if not known and only not in WIRES:
            raise UnknownName("provider", only, (*names, *WIRES))
        configured, local = known or [provider_config(only)], []
    http = Http()
    try:
        asked = await asyncio.gather(
            *(_ask(config, configured, http, every=every, seconds=seconds) for config in configured),
            *(_look_for(config, http, every=every, seconds=min(seconds, LOCAL_SECONDS)) for config in local),
        )
    finally:
        await http.close()
    return [each for each in asked if each.is_configured or not each.error]


async def ask_provider(
    config: ProviderConfig, settings: Settings, *, every: bool = False, seconds: float = SECONDS
) -> AskedProvider:
    """One provider with its models."""
    http = Http()
    try:
        return await _ask(config, known_providers(settings), http, every=every, seconds=seconds)
    finally:
        await http.close()


async def _look_for(config: ProviderConfig, http: Http, *, every: bool, seconds: float) -> AskedProvider:
    return replace(await _ask(config, (), http, every=every, seconds=seconds), is_configured=False)


async def _ask(
    config: ProviderConfig, configured: Sequence[ProviderConfig], http: Http, *, every: bool, seconds: float
) -> AskedProvider:
    if not has_list(config):
        return AskedProvider(config=config, error=f"the wire {config.wire} has no list of models")
    try:
        check_key_address(config, configured)
        async with asyncio.timeout(seconds):
            models = await list_models(config, http=http, every=every)
    except TimeoutError:
        return AskedProvider(config=config, error=f"no answer within {seconds:g} s")
    except RetinueError as error:
        return AskedProvider(config=config, error=str(error))
    return AskedProvider(config=config, models=tuple(models))


def provider_row(asked: AskedProvider) -> dict[str, object]:
    """A provider with its models as a JSON object; the same in every front end."""
    return {
        "provider": asked.config.name,
        "wire": asked.config.wire,
        "base_url": asked.config.base_url,
        "api_key_env": asked.config.api_key_env or None,
        "error": asked.error or None,
        "models": [
            {
                "name": model.name,
                "context_window": model.window,
                "input_price": None if model.rates is None else model.rates.input,
                "output_price": None if model.rates is None else model.rates.output,
                "cached_price": None if model.rates is None else model.rates.cached,
            }
            for model in asked.models
        ],
    }
