"""The `.rkat/config.toml` of the meerkat program in retinue's layout.

`[agent]` has the model of root runs, and the provider follows from the model's name; `[models]` has the model of each
provider. `[limits]` and `[budget]` limit root runs, and `[sub_agents]` has the same place in both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from retinue.core.key_paths import ROOT_DEFAULTS, KeyPath
from retinue.dialects.meerkat.settings import DEFAULT_MODELS, SECTION
from retinue.dialects.settings_translation import SettingsTranslation, as_table, vendor_variable, with_version

MODEL_NAMES = {
    "claude": "anthropic",
    "gemini": "gemini",
    **dict.fromkeys(("gpt", "chatgpt", "o1", "o3", "o4"), "openai"),
}
"""The provider of a model, by the first word of the model's name."""

SECONDS: dict[str, float] = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "secs"), 1.0),
    **dict.fromkeys(("m", "min", "mins"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
"""The units of durations."""


def translate(values: Mapping[str, object], environ: Mapping[str, str]) -> SettingsTranslation:
    """The file's values in retinue's layout; the environment says which variables hold keys."""
    translation = SettingsTranslation(values)
    for section in ("agent", "models", "provider", "providers", "limits", "budget"):
        translation.require_table((section,))
    _translate_providers(translation, environ)
    _translate_root(translation)
    translation.move(("comms", "auto_enable_for_subagents"), (SECTION, "enable_comms"))
    for section in ("comms", "limits", "budget"):
        translation.ignore_rest((section,))
    if translation.find(("tools", "subagents_enabled")) is True:
        translation.ignore(("tools", "subagents_enabled"), "give --dialect meerkat")
    return translation


def provider_of(model: str) -> str | None:
    """The provider of a model, by its name; None if the name does not say it.

    >>> provider_of("claude-sonnet-4-5"), provider_of("gpt-5.2"), provider_of("llama3.2")
    ('anthropic', 'openai', None)
    """
    return MODEL_NAMES.get(re.split(r"[-.\d]", model.lower(), maxsplit=1)[0]) or MODEL_NAMES.get(model.lower()[:2])


def seconds_of(duration: object) -> float | None:
    """The seconds of a duration: a text such as `1h 30m`, or milliseconds; None if it is neither.

    >>> seconds_of("1h 30m"), seconds_of("500ms"), seconds_of(2000), seconds_of("soon")
    (5400.0, 0.5, 2.0, None)
    """
    if isinstance(duration, int) and not isinstance(duration, bool):
        return duration / 1000
    if not isinstance(duration, str) or not re.fullmatch(r"\s*(?:\d{1,9}\s*[a-z]+\s*)+", duration):
        return None
    parts = re.findall(r"(\d+)\s*([a-z]+)", duration)
    return sum(int(number) * SECONDS[unit] for number, unit in parts) if all(u in SECONDS for _, u in parts) else None


def _translate_providers(translation: SettingsTranslation, environ: Mapping[str, str]) -> None:
    """The providers that the file mentions, first that of root runs: it is also the default of a Python program."""
    model, kind = translation.find(("agent", "model")), translation.find(("provider", "type"))
    named = provider_of(model) if isinstance(model, str) else None
    chosen = named or (kind if isinstance(kind, str) else None)
    origin: KeyPath = ("agent", "model") if named else ("provider", "type")
    translation.take(("provider", "type"))
    if model == "":
        translation.take(("agent", "model"))
    elif named or chosen in DEFAULT_MODELS or (model is not None and not isinstance(model, str)):
        translation.move(("agent", "model"), ("providers", str(chosen or "anthropic"), "model"))
    else:
        translation.ignore(("agent", "model"), "of no known provider: give --model WIRE:NAME")
    translation.put((ROOT_DEFAULTS, "provider"), chosen, origin)
    for name in sorted(DEFAULT_MODELS, key=lambda name: name != chosen):
        _translate_provider(translation, name, is_typed=kind == name, environ=environ)
    for table in (("provider",), ("providers", "base_urls"), ("providers", "api_keys"), ("models",)):
        translation.ignore_rest(table)


def _translate_provider(
    translation: SettingsTranslation, name: str, *, is_typed: bool, environ: Mapping[str, str]
) -> None:
    """One provider: `[provider]` if that is of this type, then `[providers]` and `[models]`."""
    here = ("providers", name)
    places: list[tuple[KeyPath, KeyPath]] = [
        (("providers", "base_urls", name), ("providers", "api_keys", name)),
        *([(("provider", "base_url"), ("provider", "api_key"))] if is_typed else []),
    ]
    address, key = next((place for place in places if translation.find(place[0]) is not None), places[-1])
    key = next((place[1] for place in places if translation.find(place[1]) is not None), key)
    base_url = translation.take(address)
    if name == "openai":
        base_url = with_version(base_url)
    variable = f"RKAT_{name.upper()}_API_KEY"
    own = vendor_variable(name, base_url)
    has_key = translation.find(key) is not None
    used = translation.key_variable(key, own=own, variable=variable, environ=environ)
    if translation.find((*here, "model")) is None:
        translation.move(("models", name), (*here, "model"))
    else:
        translation.take(("models", name))  # the model of root runs is used
    if translation.find((*here, "model")) is None and base_url is None and not has_key and not environ.get(variable):
        return
    translation.put((*here, "wire"), name, here)
    translation.put((*here, "base_url"), base_url, address)
    translation.put((*here, "api_key_env"), used, key)


def _translate_root(translation: SettingsTranslation) -> None:
    """The limits of root runs; `[limits]` is what that program applies, and `[budget]` is used for what it lacks."""
    provider = translation.find((ROOT_DEFAULTS, "provider"))
    if isinstance(provider, str) and as_table(translation.find(("providers", provider))) is not None:
        translation.move(("agent", "temperature"), ("providers", provider, "temperature"))
    for key in ("system_prompt", "max_turns"):
        translation.move(("agent", key), (ROOT_DEFAULTS, key))
    translation.move(("agent", "max_tokens_per_turn"), (ROOT_DEFAULTS, "max_output_tokens"))
    if translation.find(("max_tokens",)) == translation.find((ROOT_DEFAULTS, "max_output_tokens")):
        translation.take(("max_tokens",))
    translation.move(("max_tokens",), (ROOT_DEFAULTS, "max_output_tokens"))
    for section, tokens in (("limits", "budget"), ("budget", "max_tokens")):
        translation.move((section, tokens), (ROOT_DEFAULTS, "max_tokens"))
        _move_duration(translation, (section, "max_duration"), (ROOT_DEFAULTS, "timeout"))
    translation.move(("budget", "max_tool_calls"), (ROOT_DEFAULTS, "max_calls"))


def _move_duration(translation: SettingsTranslation, source: KeyPath, target: KeyPath) -> None:
    duration = translation.find(source)
    if duration is None or translation.find(target) is not None:
        translation.ignore(source)
    elif (seconds := seconds_of(duration)) is None:
        translation.take(source)
        translation.refuse(source, "expected a duration, as in 30s, 5m or 1h 30m")
    else:
        translation.take(source)
        translation.put(target, seconds, source)
