"""Whom to ask, when several places say it: flags go before the environment, and that before the settings file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from retinue.config.settings import Settings
from retinue.core.agent import split_model

Wish: TypeAlias = Literal["model", "provider", "base_url", "api_key_env"]

VARIABLES: dict[Wish, str] = {
    "model": "RETINUE_MODEL",
    "provider": "RETINUE_PROVIDER",
    "base_url": "RETINUE_BASE_URL",
    "api_key_env": "RETINUE_API_KEY_ENV",
}


class Flags(Struct, frozen=True, kw_only=True):
    """What the command line says; None is a flag that is not there."""

    model: str | None = None
    provider: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None


class Choice(Struct, frozen=True, kw_only=True):
    """Which model of whom, at which address, with the key in which variable; None is what nobody said.

    `origins` tells where each of them was said, for messages: `--model`, `RETINUE_MODEL`, `[providers.local]`.
    """

    model: str | None = None
    provider: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    origins: Mapping[str, str] = {}


FLAGS, ENVIRONMENT, FILE = range(3)
"""Where something can be said, the strongest first."""


class Said(Struct, frozen=True):
    """Something that was said, and where."""

    value: str
    origin: str
    place: int


Place: TypeAlias = Mapping[Wish, Said]


def layer(
    flags: Flags,
    environ: Mapping[str, str],
    settings: Settings,
    *,
    agent: str | None = None,
    wires: Collection[str] = (),
    called: Callable[[str], str] = str,
) -> Choice:
    """What holds in the end; `agent` is the one to be started, whose model stands in the file.

    A model written `PROVIDER:NAME` says its provider too, if there is one of that name (`wires`, or in the settings).
    Beside a provider said in the same place it is a name there, whatever it looks like. `called` gives the
    provider that people mean by a name.

    An address and the variable of a key belong to the provider they were said with, and a key to its address: said
    in a lower place for another one, they do not count, so that no key goes where it was not meant to go.

    >>> choice = layer(Flags(model="vllm:qwen3"), {"RETINUE_PROVIDER": "openai-chat"}, Settings(), wires=["vllm"])
    >>> choice.provider, choice.model, choice.origins["provider"]
    ('vllm', 'qwen3', '--model')
    """
    said, heard = _named(_flags(flags), called), _named(_environment(environ), called)
    model = _first("model", said, heard, _agent(settings, agent))
    provider = _first("provider", said, heard)
    model, provider = _split(model, provider, {*wires, *settings.providers}, called)
    places = [place for place in (said, heard, _provider(settings, provider)) if _is_about(place, provider)]
    base_url = _first("base_url", *places)
    wishes: dict[Wish, Said | None] = {
        "model": model,
        "provider": provider,
        "base_url": base_url,
        "api_key_env": next((place["api_key_env"] for place in places if _has_a_key_for(base_url, place)), None),
    }
    return Choice(
        **{spawn_request: each.value for spawn_request, each in wishes.items() if each is not None},
        origins={spawn_request: each.origin for spawn_request, each in wishes.items() if each is not None},
    )


def _flags(flags: Flags) -> Place:
    given: dict[Wish, str | None] = {
        "model": flags.model,
        "provider": flags.provider,
        "base_url": flags.base_url,
        "api_key_env": flags.api_key_env,
    }
    return {
        spawn_request: Said(value, f"--{spawn_request.replace('_', '-')}", FLAGS)
        for spawn_request, value in given.items()
        if value is not None
    }


def _environment(environ: Mapping[str, str]) -> Place:
    return {
        spawn_request: Said(environ[name], name, ENVIRONMENT)
        for spawn_request, name in VARIABLES.items()
        if environ.get(name)
    }


def _named(place: Place, called: Callable[[str], str]) -> Place:
    provider = place.get("provider")
    return place if provider is None else {**place, "provider": replace(provider, value=called(provider.value))}


def _agent(settings: Settings, agent: str | None) -> Place:
    settled = settings.agents.get(agent) if agent is not None else None
    model = settled.asked_model if settled is not None else ""
    return {"model": Said(model, f"[agents.{agent}]", FILE)} if model else {}


def _provider(settings: Settings, provider: Said | None) -> Place:
    settled = settings.providers.get(provider.value) if provider is not None else None
    if provider is None or settled is None:
        return {}
    given: dict[Wish, str | None] = {"base_url": settled.base_url, "api_key_env": settled.api_key_env}
    origin = f"[providers.{provider.value}]"
    return {spawn_request: Said(value, origin, FILE) for spawn_request, value in given.items() if value is not None}


def _first(spawn_request: Wish, *places: Place) -> Said | None:
    return next((place[spawn_request] for place in places if spawn_request in place), None)


def _split(
    model: Said | None, provider: Said | None, known: Collection[str], called: Callable[[str], str]
) -> tuple[Said | None, Said | None]:
    """Model and provider, where the model may say its provider itself."""
    if model is None or (provider is not None and provider.place == model.place):
        return model, provider
    named, name = split_model(model.value, known, called)
    if named is None:
        return model, provider
    if provider is None or provider.place > model.place:
        provider = Said(named, model.origin, model.place)
    return Said(name, model.origin, model.place), provider


def _is_about(place: Place, provider: Said | None) -> bool:
    """Whether a place speaks of the chosen provider, or of whichever is chosen."""
    return "provider" not in place or (provider is not None and place["provider"].value == provider.value)


def _has_a_key_for(base_url: Said | None, place: Place) -> bool:
    if (key := place.get("api_key_env")) is None:
        return False
    if base_url is None or key.place <= base_url.place:
        return True
    own = place.get("base_url")
    # A variable in the environment without an address is for any; a provider in the file always has one, if only its
    # vendor's.
    return key.place == ENVIRONMENT if own is None else own.value == base_url.value
