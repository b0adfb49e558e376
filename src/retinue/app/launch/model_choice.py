"""Choose the model of a run: from flags, environment and settings, else a provider whose key or server is found."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.app.settings_file import default_model, default_provider, provider_configs
from retinue.config.precedence import BARE_ADDRESS, Flags, ModelSelection, resolve
from retinue.config.settings import Settings
from retinue.core.agent import Agent, split_model
from retinue.core.errors import BadInput, UnknownName
from retinue.core.text import NOT_JSON
from retinue.local.bounded_file import read_bounded
from retinue.providers import catalog
from retinue.providers.catalog import LOCAL_SERVERS, SCRIPTED, WIRES, ProviderConfig, canonical_name, provider_config

NO_PROVIDER = (
    "no model is configured: no provider is named, no key is set and no model server answers on this machine. "
    "Set the key of a vendor, such as {keys} (retinue doctor lists all), or start a local server ({local}), "
    "or give --provider W --base-url URL --model M"
)
EXAMPLES = 3
"""Key variables that the message names."""


class ModelChoice(Struct, frozen=True, kw_only=True):
    """A model and its provider; `others` are further providers that children may use."""

    provider_config: ProviderConfig
    model: str
    others: tuple[ProviderConfig, ...] = ()

    def __str__(self) -> str:
        key = f", key in {self.provider_config.api_key_env}" if self.provider_config.api_key_env else ""
        wire = ", ".join(dict.fromkeys((self.provider_config.name, self.provider_config.wire)))
        where = f" at {self.provider_config.base_url}" if self.provider_config.base_url else ""
        return f"model {self.model}{where} ({wire}{key})"

    @property
    def full_name(self) -> str:
        return f"{self.provider_config.name}:{self.model}"

    @property
    def providers(self) -> tuple[ProviderConfig, ...]:
        return (self.provider_config, *self.others)


async def choose_model(
    flags: Flags, settings: Settings, *, agent: str | None = None, environ: Mapping[str, str] | None = None
) -> ModelChoice:
    """The model by flags, profile, RETINUE_* variables, settings, the key of a vendor, or a server on this machine."""
    environ = os.environ if environ is None else environ
    choice = resolve(
        flags,
        environ,
        settings,
        agent=agent,
        wires=tuple(WIRES),
        canonical=partial(canonical_name, configured=settings.providers),
    )
    configured = provider_configs(settings)
    if choice.provider is None and choice.base_url is None:
        choice = replace(choice, provider=default_provider(settings))
    chosen = _named(choice, configured) or _by_key(choice, environ)
    if chosen is None:
        known = {each.name: each for each in configured}
        servers = await find_servers([known.get(name) or provider_config(name) for name in LOCAL_SERVERS])
        if not servers:
            raise _no_provider(choice, environ)
        chosen, model = _on_server(servers, choice.model)
    else:
        catalog.check_key_address(chosen, configured)
        check_key(chosen, environ)
        named = choice.model or default_model(settings, chosen.name) or catalog.vendor_model(chosen)
        model = named or await _only_model(chosen)
        if chosen.wire == SCRIPTED:
            model = script_of(model)
    others = tuple(each for each in configured if each.name != chosen.name)
    return ModelChoice(provider_config=chosen, model=model, others=others)


def other_model(model_choice: ModelChoice, model: str, environ: Mapping[str, str] | None = None) -> ModelChoice:
    """The choice of another model: `provider:name`, or a name at the chosen provider.

    Raises `BadInput` if the name is empty, or if the key of its provider is not set.
    """
    provider, name = _provider_and_name(model, model_choice)
    if not name.strip():
        raise BadInput("the name of the model is empty: write provider:name, or a name at the current provider")
    known = {each.name: each for each in model_choice.providers}
    chosen = known.get(provider) or provider_config(provider)
    check_key(chosen, os.environ if environ is None else environ)
    others = tuple(each for each in model_choice.providers if each.name != chosen.name)
    named = script_of(name) if chosen.wire == SCRIPTED else name
    return ModelChoice(provider_config=chosen, model=named, others=others)


def own_providers(settings: Settings, environ: Mapping[str, str]) -> tuple[ProviderConfig, ...]:
    """The providers of a worker: the one that variables and settings choose first, and those of the settings.

    No model has to be named: each run has its own. Raises `BadInput` if there is no provider at all.
    """
    canonical = partial(canonical_name, configured=settings.providers)
    choice = resolve(Flags(), environ, settings, wires=tuple(WIRES), canonical=canonical)
    configured = provider_configs(settings)
    if choice.provider is None and choice.base_url is None:
        choice = replace(choice, provider=default_provider(settings))
    chosen = _named(choice, configured) or _by_key(choice, environ)
    if chosen is None:
        raise _no_provider(choice, environ)
    catalog.check_key_address(chosen, configured)
    return (chosen, *(each for each in configured if each.name != chosen.name))


def unpriced(
    model_choice: ModelChoice, agents: Sequence[Agent] = (), fallback: Sequence[str] = (), *, first: bool = True
) -> list[str]:
    """Warnings that a limit on cost cannot be enforced: one for each model without a known price.

    Checks the chosen model if `first`, the models of the `agents`, and the fallbacks of both. `wire:name` is a model
    of another provider, a bare name a model of the chosen one.
    """
    known = {each.name: each for each in model_choice.providers}
    named = [*fallback, *(model for agent in agents for model in (agent.model, *agent.fallback) if model)]
    asked = [(model_choice.provider_config.name, model_choice.model)] if first else []
    asked += [_provider_and_name(model, model_choice) for model in named]
    return [
        f"no price known for model {model} (provider {name}), so a limit on cost cannot be enforced; "
        f"set it in the settings ([providers.{name}] prices), or limit --max-tokens instead"
        for name, model in dict.fromkeys(asked)
        if catalog.model_prices(known.get(name) or _default(name)).price(model) is None
    ]


def _default(name: str) -> ProviderConfig:
    return ProviderConfig(name=name, wire=name, base_url=WIRES[name].base_url)


def _provider_and_name(model: str, model_choice: ModelChoice) -> tuple[str, str]:
    names = tuple(each.name for each in model_choice.providers)
    provider, name = split_model(model, (*names, *WIRES), lambda prefix: canonical_name(prefix, names))
    return (model_choice.provider_config.name if provider is None else provider), name


def _named(choice: ModelSelection, configured: Sequence[ProviderConfig]) -> ProviderConfig | None:
    """The named provider; else the first of the settings; else the wire of a bare address."""
    name = choice.provider
    if name is None and configured and choice.base_url is None:
        name = configured[0].name
    if name is None and choice.base_url is not None:
        name = BARE_ADDRESS
    if name is None:
        return None
    known = next((each for each in configured if each.name == name), None)
    if known is None:
        if name not in WIRES:
            raise UnknownName("provider", name, (*(each.name for each in configured), *WIRES))
        return provider_config(name, base_url=choice.base_url, api_key_env=choice.api_key_env)
    return catalog.with_address(known, choice.base_url, choice.api_key_env)


def _by_key(choice: ModelSelection, environ: Mapping[str, str]) -> ProviderConfig | None:
    """The vendor whose key is set, or whose key variable was named; a key is never sent to another vendor."""
    named = choice.api_key_env
    catalog.check_key_variable(named)
    for name, wire in WIRES.items():
        is_set = wire.found_by_key and environ.get(wire.api_key_env)
        if wire.api_key_env and (wire.api_key_env == named if named else is_set):
            return provider_config(name)
    if named:
        raise BadInput(f"the key in {named} belongs to no known provider: give --provider W or --base-url URL as well")
    return None


def _no_provider(choice: ModelSelection, environ: Mapping[str, str]) -> BadInput:
    keys = tuple(catalog.api_key_variables(environ))[:EXAMPLES]
    message = NO_PROVIDER.format(keys=" or ".join(keys), local=", ".join(LOCAL_SERVERS))
    provider, _ = split_model(choice.model or "")
    if provider is not None:
        known = ", ".join(WIRES)
        message = f"{provider!r} is not a provider; known: {known}. If it belongs to a model's name, {message}"
    return BadInput(message)


def _on_server(servers: Sequence[LocalServer], model: str | None) -> tuple[ProviderConfig, str]:
    """The first server with the model; without a name, the first chat model of the first server that has any."""
    if model is not None:
        server = next((server for server in servers if model in server.models), servers[0])
        return server.provider_config, model
    for server in servers:
        if server.chat_models:
            return server.provider_config, server.chat_models[0]
    where = ", ".join(server.provider_config.base_url for server in servers)
    raise BadInput(f"no model at {where}: load one there, or name one with --model")


async def _only_model(chosen: ProviderConfig) -> str:
    """The first chat model of a server on this machine; the models of a vendor are too many to choose from."""
    for server in await find_servers([chosen]):
        if server.chat_models:
            return server.chat_models[0]
    if chosen.wire == SCRIPTED:
        raise BadInput("no script is named: give --model FILE, or set RETINUE_MODEL to scripted:FILE")
    raise BadInput(f"no model is named for {chosen.base_url}: give --model NAME, or set RETINUE_MODEL")


def script_of(file: str) -> str:
    """The absolute path of a script, because a run can be resumed from another folder; raises if it is unreadable."""
    from retinue.providers.scripted import MAX_SCRIPT_BYTES, read_script

    path = Path(file).expanduser().absolute()
    try:
        if not path.is_fifo() and not path.is_char_device():  # a pipe can be read only once
            read_script(read_bounded(path, MAX_SCRIPT_BYTES))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadInput(f"the script {path} cannot be read: {reason}") from None
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    return str(path)


def check_key(chosen: ProviderConfig, environ: Mapping[str, str], *, flag: str = "--api-key-env") -> None:
    """Raise if the key variable is not set: a run that was started without a key would fail for good.

    `flag` is the flag of the command that names the variable.
    """
    wire = WIRES[chosen.wire]
    if wire.finds_credentials and chosen.api_key_env == wire.api_key_env:
        return  # the provider may find others than those in the variable, and says what to set if it does not
    if chosen.api_key_env and not environ.get(chosen.api_key_env, "").strip():
        raise BadInput(
            f"the environment variable {chosen.api_key_env} is not set; set it to the key for {chosen.base_url}, "
            f"or name another variable with {flag}"
        )


def override_provider(stored: ProviderConfig, flags: Flags, settings: Settings) -> ProviderConfig:
    """The provider of a stored run with the flags on top; it keeps its name, by which the run asks for it."""
    if flags.provider is None and flags.base_url is None and flags.api_key_env is None:
        return stored
    named = None if flags.provider is None else canonical_name(flags.provider, settings.providers)
    choice = ModelSelection(provider=named, base_url=flags.base_url, api_key_env=flags.api_key_env)
    if flags.provider is None:
        choice = replace(choice, provider=stored.name)
        chosen = _named(choice, [stored])
    else:
        chosen = _named(choice, provider_configs(settings))
    assert chosen is not None  # there is a name
    return replace(chosen, name=stored.name)


# ---- servers on this machine -----------------------------------------------------------------------------------------

SERVER_TIMEOUT = 0.3
"""Timeout of a request to a server on this machine."""

_MAX_BYTES = 1 << 20
"""Bytes of a list of models that are read at most."""


_NOT_FOR_CHAT = re.compile(r"embed|rerank|whisper|minilm|(?:^|[/_-])(?:bge|gte|e5|tts|clip)(?=[-_:])", re.IGNORECASE)
"""Names of models that embed or rank texts, or turn speech into text or text into speech."""


class LocalServer(Struct, frozen=True):
    """A server that responded."""

    provider_config: ProviderConfig
    models: tuple[str, ...] = ()

    @property
    def chat_models(self) -> tuple[str, ...]:
        """The models that can answer, by their names; lists of models do not say what a model is for.

        >>> LocalServer(ProviderConfig(name="ollama", wire="ollama"), ("nomic-embed-text:latest", "qwen3")).chat_models
        ('qwen3',)
        """
        return tuple(model for model in self.models if not _NOT_FOR_CHAT.search(model))


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model] | None = None


async def find_servers(
    provider_configs: Iterable[ProviderConfig], *, timeout: float = SERVER_TIMEOUT
) -> list[LocalServer]:
    """The servers that respond, in the order given; all are requested at once."""
    requests = [asyncio.to_thread(_request, config, timeout) for config in provider_configs if _is_local(config)]
    return [server for server in await asyncio.gather(*requests) if server is not None]


def _is_local(provider_config: ProviderConfig) -> bool:
    """Whether a server is on this machine; others receive no request before a run makes one."""
    address = urlsplit(provider_config.base_url)
    return address.scheme == "http" and address.hostname in ("localhost", "127.0.0.1", "::1")


def _request(provider_config: ProviderConfig, timeout: float) -> LocalServer | None:
    address = urlsplit(provider_config.base_url)
    # The plain client of the standard library: no proxy is used, and aiohttp is not loaded.
    connection = HTTPConnection(address.hostname or "", address.port or 80, timeout=timeout)
    try:
        connection.request("GET", f"{address.path.rstrip('/')}/models")
        response = connection.getresponse()
        body = response.read(_MAX_BYTES)
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
    return LocalServer(provider_config, _names(body)) if response.status == 200 else None


def _names(body: bytes) -> tuple[str, ...]:
    try:
        listed: Any = msgspec.json.decode(body, type=_Models)
    except NOT_JSON:
        return ()
    return tuple(model.id for model in listed.data or ())
