"""Loading of the settings file, and its conversion into provider configs and dialect settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from retinue.app.settings_sections import DIALECT_SECTIONS, SECTIONS
from retinue.app.state_folder import default_home
from retinue.config.other_programs import Translate, Translated
from retinue.config.settings import Settings, load
from retinue.core.errors import ConfigError
from retinue.core.log_context import logger
from retinue.dialects import registry
from retinue.dialects.base import ProgramSettings
from retinue.providers.catalog import ProviderConfig, provider_config

log = logger("retinue.config")


def _translate(programs: Sequence[ProgramSettings]) -> Translate:
    """The translation of a file whose name these programs have in common.

    The file belongs to the program of which it has the most keys; of equals, to the last one in the table of dialects.
    """

    def translate(values: Mapping[str, object]) -> Translated:
        program = max(reversed(programs), key=lambda each: each.count_own_keys(values))
        return program.translate.load()(values, os.environ)

    return translate


PROGRAMS = tuple(registry.having(lambda entry: entry.program_settings))

TRANSLATIONS: dict[str, Translate] = {
    file: _translate([program for program in PROGRAMS if program.file == file])
    for file in dict.fromkeys(program.file for program in PROGRAMS)
}
"""The settings files of other programs that are read leniently, by their names."""


def load_settings(path: str | Path | None = None, *, cwd: Path | None = None, home: Path | None = None) -> Settings:
    """The settings in a file, or in the `retinue.toml` or `retinue.yaml` of the current folder.

    A file with the name of another program's settings file, `config.yaml` or `config.toml`, is translated and read
    leniently if its path is given. See `retinue.config.settings.load`. Warnings about ignored keys are logged.

    A file in a folder in which agents may write is refused unless a person has accepted it as it is. `home` is the
    state folder that has the records of that, by default the one of this process.
    """
    from retinue.tools.settings_trust import check_trusted

    check = partial(check_trusted, home=home or default_home())
    settings = load(path, cwd=cwd or Path.cwd(), sections=SECTIONS, translations=TRANSLATIONS, check=check)
    for warning in settings.warnings:
        log.warning("%s", warning)
    return settings


def provider_configs(settings: Settings) -> tuple[ProviderConfig, ...]:
    return tuple(
        provider_config(
            name,
            wire=provider.wire,
            base_url=provider.base_url,
            api_key_env=provider.api_key_env,
            temperature=provider.temperature,
            headers=provider.headers,
            prices=provider.rates(),
            context_window=provider.context_window,
            responses_wire=provider.responses_wire,
        )
        for name, provider in settings.providers.items()
    )


def default_provider(settings: Settings) -> str | None:
    """The provider that the file chooses; raises `ConfigError` if it is one that retinue does not have."""
    if settings.unusable_provider is not None:
        raise ConfigError(settings.unusable_provider)
    return settings.root.provider


def default_model(settings: Settings, provider: str) -> str | None:
    """The model that the file names for a provider."""
    configured = settings.providers.get(provider)
    return None if configured is None else configured.model


def dialect_settings(settings: Settings) -> Mapping[str, object]:
    return {name: settings.section(section.name, section.type) for name, section in DIALECT_SECTIONS.items()}
