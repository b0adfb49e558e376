"""Resolve model, provider, address and API key variable.

Flags override the chosen profile, which overrides the environment, which overrides the files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from retinue.config.defaults import FileDefaults
from retinue.config.settings import Settings
from retinue.core.agent import split_model

Option: TypeAlias = Literal["model", "provider", "base_url", "api_key_env"]

VARIABLES: dict[Option, str] = {
    "model": "RETINUE_MODEL",
    "provider": "RETINUE_PROVIDER",
    "base_url": "RETINUE_BASE_URL",
    "api_key_env": "RETINUE_API_KEY_ENV",
}


class Flags(Struct, frozen=True, kw_only=True):
    """The command-line flags; None is a flag that was not given."""

    model: str | None = None
    provider: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None


class ModelSelection(Struct, frozen=True, kw_only=True):
    """The resolved model, provider, address and API key variable; None where no source sets it.

    `origins` names the source of each, for messages: `--model`, `RETINUE_MODEL`, `[providers.local]`.
    """

    model: str | None = None
    provider: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    origins: Mapping[str, str] = {}


FLAGS, PROFILE, ENVIRONMENT, FILE, DEFAULTS = range(5)
"""Ranks of the sources, the highest priority first; the defaults of several files have ranks from `DEFAULTS` on."""

BARE_ADDRESS = "openai-chat"
"""The wire of an address without a provider: that of nearly every server."""


class SourcedValue(Struct, frozen=True):
    """A value with the name and the rank of its source."""

    value: str
    origin: str
    rank: int


OptionSource: TypeAlias = Mapping[Option, SourcedValue]


def resolve(
    flags: Flags,
    environ: Mapping[str, str],
    settings: Settings,
    *,
    agent: str | None = None,
    wires: Collection[str] = (),
    canonical: Callable[[str], str] = str,
) -> ModelSelection:
    """The options that apply; `agent` is the agent to start, whose model is in the file.

    A model written `PROVIDER:NAME` also sets the provider, if a provider of that name exists (in `wires` or in the
    settings). If the same source sets a provider, the whole text is the model's name. `canonical` maps aliases of
    providers to their names.

    An address and a key variable belong to the provider they were set with, and a key to its address: those that a
    lower source sets for another provider or address are ignored, so that no key is sent to the wrong server. So is the
    default model of a file, if a higher source chooses another provider.

    >>> selection = resolve(Flags(model="vllm:qwen3"), {"RETINUE_PROVIDER": "openai-chat"}, Settings(), wires=["vllm"])
    >>> selection.provider, selection.model, selection.origins["provider"]
    ('vllm', 'qwen3', '--model')
    """
    known = {*wires, *settings.providers}
    from_flags = _canonical(_flags(flags), canonical)
    from_environment = _canonical(_environment(environ), canonical)
    profile, files = _layers(settings)
    given = [from_flags, *(_of_defaults(each, PROFILE, known, canonical) for each in profile), from_environment]
    defaults = [_of_defaults(each, DEFAULTS + index, known, canonical) for index, each in enumerate(files)]
    model = _first("model", *given, _agent(settings, agent))
    provider = _first("provider", *given)
    model, provider = _split(model, provider, known, canonical)
    address = _first("base_url", *given)
    for source in defaults:
        own = source.get("provider")
        if provider is None and (own is None or address is None):
            provider = own
        elif own is None or provider is None or own.value != provider.value:
            continue  # its model is one of another provider
        model = model or source.get("model")
    candidates = (*given, *defaults, _provider(settings, provider))
    sources = [source for source in candidates if _applies_to(source, provider)]
    base_url = _first("base_url", *sources)
    resolved: dict[Option, SourcedValue | None] = {
        "model": model,
        "provider": provider,
        "base_url": base_url,
        "api_key_env": next((source["api_key_env"] for source in sources if _has_key_for(base_url, source)), None),
    }
    return ModelSelection(
        **{option: sourced.value for option, sourced in resolved.items() if sourced is not None},
        origins={option: sourced.origin for option, sourced in resolved.items() if sourced is not None},
    )


def _flags(flags: Flags) -> OptionSource:
    given: dict[Option, str] = {option: value for option in VARIABLES if (value := getattr(flags, option)) is not None}
    return {option: SourcedValue(value, f"--{option.replace('_', '-')}", FLAGS) for option, value in given.items()}


def _environment(environ: Mapping[str, str]) -> OptionSource:
    given: dict[Option, str] = {option: name for option, name in VARIABLES.items() if environ.get(name)}
    return {option: SourcedValue(environ[name], name, ENVIRONMENT) for option, name in given.items()}


def _layers(settings: Settings) -> tuple[Sequence[FileDefaults], Sequence[FileDefaults]]:
    """The defaults of the chosen profile, if any, and those of the files."""
    count = 0 if settings.profile is None else 1
    return settings.defaults[:count], settings.defaults[count:]


def _of_defaults(
    defaults: FileDefaults, rank: int, known: Collection[str], canonical: Callable[[str], str]
) -> dict[Option, SourcedValue]:
    """The defaults of one place as a source, with the provider that its model or its bare address names."""
    values: dict[Option, str | None] = {
        "model": defaults.values.model,
        "provider": defaults.values.provider,
        "base_url": defaults.values.base_url,
    }
    source: dict[Option, SourcedValue] = {
        key: SourcedValue(value, defaults.origin, rank) for key, value in values.items() if value is not None
    }
    model, provider = _split(source.get("model"), _canonical(source, canonical).get("provider"), known, canonical)
    if model is not None and provider is not None:
        model = replace(model, value=model.value.removeprefix(f"{provider.value}:"))
    if provider is None and "base_url" in source:
        provider = SourcedValue(BARE_ADDRESS, defaults.origin, rank)
    split: dict[Option, SourcedValue | None] = {"model": model, "provider": provider}
    source.update({key: each for key, each in split.items() if each is not None})
    return source


def _canonical(source: OptionSource, canonical: Callable[[str], str]) -> OptionSource:
    provider = source.get("provider")
    return source if provider is None else {**source, "provider": replace(provider, value=canonical(provider.value))}


def _agent(settings: Settings, agent: str | None) -> OptionSource:
    configured = settings.agents.get(agent) if agent is not None else None
    model = configured.qualified_model if configured is not None else ""
    return {"model": SourcedValue(model, f"[agents.{agent}]", FILE)} if model else {}


def _provider(settings: Settings, provider: SourcedValue | None) -> OptionSource:
    configured = settings.providers.get(provider.value) if provider is not None else None
    if provider is None or configured is None:
        return {}
    given: dict[Option, str | None] = {"base_url": configured.base_url, "api_key_env": configured.api_key_env}
    origin = f"[providers.{provider.value}]"
    return {option: SourcedValue(value, origin, FILE) for option, value in given.items() if value is not None}


def _first(option: Option, *sources: OptionSource) -> SourcedValue | None:
    return next((source[option] for source in sources if option in source), None)


def _split(
    model: SourcedValue | None, provider: SourcedValue | None, known: Collection[str], canonical: Callable[[str], str]
) -> tuple[SourcedValue | None, SourcedValue | None]:
    """Model and provider, with a provider prefix of the model split off."""
    if model is None or (provider is not None and provider.rank == model.rank):
        return model, provider
    prefix, name = split_model(model.value, known, canonical)
    if prefix is None:
        return model, provider
    if provider is None or provider.rank > model.rank:
        provider = SourcedValue(prefix, model.origin, model.rank)
    return SourcedValue(name, model.origin, model.rank), provider


def _applies_to(source: OptionSource, provider: SourcedValue | None) -> bool:
    """Whether a source sets the selected provider, or none in particular."""
    return "provider" not in source or (provider is not None and source["provider"].value == provider.value)


def _has_key_for(base_url: SourcedValue | None, source: OptionSource) -> bool:
    if (key := source.get("api_key_env")) is None:
        return False
    if base_url is None or key.rank <= base_url.rank:
        return True
    own = source.get("base_url")
    # A key variable in the environment without an address is for any address; a provider in the file always has an
    # address, if only the vendor's.
    return key.rank == ENVIRONMENT if own is None else own.value == base_url.value
