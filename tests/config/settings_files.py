"""Helpers that write a settings file and load it with all sections of the application."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from retinue.app.settings_sections import SECTIONS
from retinue.config.section_type import Section
from retinue.config.settings import Settings, load
from retinue.core.errors import ConfigError


def settings(folder: Path, text: str, sections: Sequence[Section] = SECTIONS) -> Settings:
    """The settings of a `retinue.toml` with this text."""
    (folder / "retinue.toml").write_text(text, encoding="utf-8")
    return load(cwd=folder, sections=sections)


def section(name: str) -> Section:
    """The section with this name; the one without a name has the keys at the top of a file."""
    return next(each for each in SECTIONS if each.name == name)


def error_message(folder: Path, text: str | None = None, *, path: str | Path | None = None) -> str:
    """The error message for a `retinue.toml` with this text, or for the file `path`."""
    if text is not None:
        (folder / "retinue.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(path, cwd=folder, sections=SECTIONS)
    return str(caught.value)
