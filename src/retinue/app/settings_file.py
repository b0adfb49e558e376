"""The sections of a settings file, and their conversion into provider configs and dialect settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from retinue.config.agents import AGENTS
from retinue.config.cron import CRON
from retinue.config.profiles import RISK_PROFILES, RUNTIME_PROFILES
from retinue.config.providers import ProviderSettings, providers_section
from retinue.config.sections import Section
from retinue.config.settings import Settings, load
from retinue.config.tools import TOOLS
from retinue.core.errors import PRESCRIBED, BadInput
from retinue.dialects.buzzllm import settings as buzzllm_settings
from retinue.dialects.meerkat import settings as meerkat_settings
from retinue.dialects.spec import settings as spec_settings
from retinue.dialects.xzatoma import settings as xzatoma_settings
from retinue.providers.catalog import WIRES, ProviderConfig, canonical_name, provider_config

log = logging.getLogger("retinue.config")

DIALECT_SECTIONS: dict[str, Section] = {
    "xzatoma": Section(
        name=xzatoma_settings.SECTION,
        type=xzatoma_settings.XzatomaSettings,
        about="The dialect xzatoma (--dialect xzatoma).",
        strangers=lambda section, providers: _unknown_provider(section, providers),
    ),
    "meerkat": Section(
        name=meerkat_settings.SECTION,
        type=meerkat_settings.MeerkatSettings,
        about="The dialect meerkat (--dialect meerkat).",
        mistakes=meerkat_settings.mistakes,
    ),
    "buzzllm": Section(
        name=buzzllm_settings.SECTION,
        type=buzzllm_settings.BuzzllmSettings,
        about="The dialect buzzllm (--dialect buzzllm).",
    ),
    "spec": Section(
        name=spec_settings.SECTION,
        type=spec_settings.SpecSettings,
        about="The dialect spec (--dialect spec, the default).",
        mistakes=spec_settings.mistakes,
    ),
}
"""The settings section of each dialect that has one, by the dialect's name."""

SECTIONS: tuple[Section, ...] = (
    AGENTS,
    providers_section(tuple(WIRES), mistakes=lambda settled: _wrong_of_provider(settled)),
    TOOLS,
    *DIALECT_SECTIONS.values(),
    RISK_PROFILES,
    RUNTIME_PROFILES,
    CRON,
)


def _wrong_of_provider(settled: ProviderSettings) -> Sequence[tuple[str, str]]:
    """Errors in the settings of a provider, each with its key: an unusable address or `responses_wire`."""
    wire, address = settled.wire, settled.base_url
    try:
        provider_config(wire, wire=wire, base_url=address)
    except BadInput as wrong:
        return (("base_url", str(wrong)),)
    try:
        provider_config(wire, wire=wire, base_url=address, responses_wire=settled.responses_wire)
    except BadInput as wrong:
        return (("responses_wire", str(wrong)),)
    return ()


def _unknown_provider(section: xzatoma_settings.XzatomaSettings, providers: Sequence[str]) -> Sequence[tuple[str, str]]:
    known = tuple(dict.fromkeys((*WIRES, *providers)))
    if section.provider is None or canonical_name(section.provider, known) in known:
        return ()
    return (("provider", f"{PRESCRIBED}{xzatoma_settings.unknown_provider(section.provider, known)}"),)


def load_settings(path: str | Path | None = None, *, cwd: Path | None = None) -> Settings:
    """The settings in a file, or in the `retinue.toml` or `retinue.yaml` of the current folder.

    See `retinue.config.settings.load`. Warnings about ignored keys are logged.
    """
    settings = load(path, cwd=Path.cwd() if cwd is None else cwd, sections=SECTIONS)
    for warning in settings.warnings:
        log.warning("%s", warning)
    return settings


def provider_configs(settings: Settings) -> tuple[ProviderConfig, ...]:
    """The configs of the providers in the settings."""
    return tuple(
        provider_config(
            name,
            wire=settled.wire,
            base_url=settled.base_url,
            api_key_env=settled.api_key_env,
            temperature=settled.temperature,
            headers=settled.headers,
            prices=settled.rates(),
            context_window=settled.context_window,
            responses_wire=settled.responses_wire,
        )
        for name, settled in settings.providers.items()
    )


def dialect_settings(settings: Settings) -> Mapping[str, object]:
    """The settings of each dialect, by its name."""
    return {name: settings.section(section.name, section.type) for name, section in DIALECT_SECTIONS.items()}
