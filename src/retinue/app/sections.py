"""The table of everything that a settings file can say, and what its sections are to the rest of the application."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from retinue.app.wires import WIRES, Contact, contact
from retinue.config.agents import AGENTS
from retinue.config.providers import providers_section
from retinue.config.sections import Section
from retinue.config.settings import Settings, load
from retinue.config.tools import TOOLS
from retinue.dialects import xzatoma_settings

DIALECT_SECTIONS: dict[str, Section] = {
    "xzatoma": Section(
        name=xzatoma_settings.SECTION,
        type=xzatoma_settings.XzatomaSettings,
        about="The dialect xzatoma (--dialect xzatoma).",
    ),
}
"""The section of each dialect that has one, by the dialect's name."""

SECTIONS: tuple[Section, ...] = (AGENTS, providers_section(tuple(WIRES)), TOOLS, *DIALECT_SECTIONS.values())


def load_settings(path: str | Path | None = None, *, cwd: Path | None = None) -> Settings:
    """The settings in a file, or in the `retinue.toml` of the current folder; see `retinue.config.settings.load`."""
    return load(path, cwd=Path.cwd() if cwd is None else cwd, sections=SECTIONS)


def contacts(settings: Settings) -> tuple[Contact, ...]:
    """The providers of the settings, ready to be reached."""
    return tuple(
        contact(
            name,
            wire=settled.wire,
            base_url=settled.base_url,
            api_key_env=settled.api_key_env,
            temperature=settled.temperature,
            headers=settled.headers,
            prices=settled.rates(),
        )
        for name, settled in settings.providers.items()
    )


def dialect_settings(settings: Settings) -> Mapping[str, object]:
    """What each dialect was told, by its name."""
    return {name: settings.section(section.name, section.type) for name, section in DIALECT_SECTIONS.items()}
