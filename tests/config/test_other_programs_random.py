"""Random files of other programs: a file gives settings or a `ConfigError`, whatever kinds of values it has."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinue.app.settings_file import TRANSLATIONS
from retinue.app.settings_sections import SECTIONS
from retinue.config.settings import load
from retinue.core.errors import ConfigError

NAMES = {
    "config.yaml": (
        *("provider", "type", "ollama", "openai", "copilot", "host", "model", "base_url", "api_key", "organization_id"),
        *("agent", "max_turns", "timeout_seconds", "subagent", "max_depth", "providers", "skills", "(root)"),
    ),
    "config.toml": (
        *(
            "providers",
            "models",
            "ollama",
            "custom",
            "bedrock",
            "default",
            "uri",
            "api_key",
            "model",
            "fallback",
            "wire",
        ),
        *("model_providers", "name", "base_url", "default_provider", "default_model", "api_url", "extra_headers"),
        *("agents", "a", "provider", "model_provider", "allowed_tools", "timeout_secs", "runtime_profile", "delegate"),
        *("autonomy", "level", "max_actions_per_hour", "agent", "max_tool_iterations", "cron", "jobs", "scheduler"),
        *("memory", "backend", "max_concurrent", "catch_up_on_startup", "(root)"),
        *("base_urls", "api_keys", "anthropic", "type", "limits", "budget", "max_duration", "max_tokens", "comms"),
        *("temperature", "system_prompt", "max_turns", "max_tokens_per_turn", "tools", "subagents_enabled"),
    ),
}
"""Keys of the programs, so that random tables hit the parts of a translation."""

LEAVES = st.sampled_from(
    [
        "",
        "x",
        "ollama",
        "ollama.default",
        "bedrock.x",
        "custom:http://h/v1",
        "http://h",
        "gpt-5.2",
        "5m",
        0,
        1,
        -1,
        True,
        0.5,
        [],
        ["a"],
    ]
)


def tables(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """Tables of tables with these names."""
    value = st.recursive(
        LEAVES, lambda below: st.dictionaries(st.sampled_from(names), below, max_size=4), max_leaves=12
    )
    return st.dictionaries(st.sampled_from(names), value, max_size=6)


@pytest.mark.parametrize("file", TRANSLATIONS)
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_files_of_other_programs(file: str, data: st.DataObject, tmp_path: Path) -> None:
    values = data.draw(tables(NAMES[file]))
    # JSON is YAML. The translation does not depend on the format, so the same text stands for both files.
    (tmp_path / "config.yaml").write_text(json.dumps(values))

    with suppress(ConfigError):
        found = load("config.yaml", cwd=tmp_path, sections=SECTIONS, translations={"config.yaml": TRANSLATIONS[file]})
        assert len(found.warnings) <= 1
