"""The settings template: without effect as it is, valid and complete when uncommented."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from msgspec import Struct, inspect

from retinue.app.settings_sections import SECTIONS
from retinue.config.profiles import RISK_PROFILES, RUNTIME_PROFILES
from retinue.config.settings import load
from retinue.config.template import template
from retinue.config.validation import expected_type
from retinue.dialects.meerkat.settings import MeerkatSettings
from tests.config.settings_files import section, settings


def uncommented(text: str) -> str:
    return re.sub(r"^#(?=\S)", "", text, flags=re.MULTILINE)


OF_PROGRAMS = {"command", "env", "sandbox", "readable", "writable"}


def without_the_keys_of_programs(text: str) -> str:
    """The settings without the keys of agent programs, which a provider with an address does not have."""
    begin = text.index('command = ["gemini"')
    return text[:begin] + text[text.index("\nprompt_cache_key", begin) + 1 :]


def test_the_template_gives_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    found = settings(tmp_path, template(SECTIONS))

    nothing = load("empty", cwd=tmp_path, sections=SECTIONS)
    assert (found.agents, found.providers, found.tool_modules, found.sections) == (
        nothing.agents,
        nothing.providers,
        nothing.tool_modules,
        nothing.sections,
    )


def test_the_uncommented_template_is_valid_and_complete(tmp_path: Path) -> None:
    (tmp_path / "mytools.py").touch()
    text = without_the_keys_of_programs(uncommented(template(SECTIONS)))

    found = settings(tmp_path, text)

    assert (list(found.agents), list(found.providers)) == (["researcher"], ["local"])
    assert found.tool_modules == (tmp_path / "mytools.py",)
    tables = tomllib.loads(text)
    at_top = declared(section("").type)
    assert set(tables) == {each.name.partition(".")[0] for each in SECTIONS if each.name} | at_top
    assert keys(tables["profiles"]["fast"]) == at_top | keys(tables["defaults"])
    assert keys(tables["agents"]["researcher"]) == declared(section("agents").type)
    examples = {"headers.X-Team", "prices.qwen3", "prices.qwen3.input", "prices.qwen3.output", "prices.qwen3.cached"}
    assert keys(tables["providers"]["local"]) - examples == declared(section("providers").type) - OF_PROGRAMS
    assert keys(tables["tools"]) == declared(section("tools").type)
    assert keys(tables["agent"]["subagent"]) == declared(section("agent.subagent").type)
    families = {"allowed_models.anthropic", "allowed_models.gemini", "allowed_models.openai"}
    assert keys(tables["sub_agents"]) - families == declared(MeerkatSettings)
    assert keys(tables["risk_profiles"]["careful"]) == declared(RISK_PROFILES.type)
    assert keys(tables["runtime_profiles"]["patient"]) == declared(RUNTIME_PROFILES.type)


def test_every_key_has_a_comment() -> None:
    lines = template(SECTIONS).splitlines()

    for above, line in pairwise(lines):
        if re.match(r"#\S", line):
            assert re.match(r"# \w", above), line
    assert max(map(len, lines)) <= 120


def keys(table: dict[str, Any], above: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in table.items():
        found.add(above + name)
        if isinstance(value, dict) and not name.startswith("extra_"):  # whose keys a user chooses
            found |= keys(cast("dict[str, Any]", value), f"{above}{name}.")
    return found


def declared(kind: type[Struct], above: str = "") -> set[str]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    found: set[str] = set()
    for field in info.fields:
        found.add(above + field.name)
        inner = expected_type(field.type).type
        if isinstance(inner, inspect.StructType):
            found |= declared(inner.cls, f"{above}{field.name}.")
    return found
