"""The section `[memory]`: its defaults, its backend over that of `[tools]`, and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from retinue.config.memory import MemoryDefaults
from tests.config.settings_files import error_message, settings


def test_nothing_is_saved_by_itself_unless_it_is_set(tmp_path: Path) -> None:
    found = settings(tmp_path, "")

    assert found.memory == MemoryDefaults(backend=None, auto_save=False)
    assert found.tool_options.memory == "sqlite"


@pytest.mark.parametrize("backend", ["workspace", "markdown"])
def test_backend_and_auto_save_are_read(tmp_path: Path, backend: Literal["workspace", "markdown"]) -> None:
    found = settings(tmp_path, f'[memory]\nbackend = "{backend}"\nauto_save = true\n')

    assert found.memory == MemoryDefaults(backend=backend, auto_save=True)
    assert found.tool_options.memory == "workspace"


def test_the_backend_of_tools_holds_where_memory_names_none(tmp_path: Path) -> None:
    assert settings(tmp_path, '[tools]\nmemory = "markdown"\n').tool_options.memory == "markdown"
    both = settings(tmp_path, '[tools]\nmemory = "markdown"\n\n[memory]\nbackend = "none"\n')
    assert both.tool_options.memory == "none"


def test_a_backend_that_is_not_supported_is_ignored_with_a_warning(tmp_path: Path) -> None:
    found = settings(tmp_path, '[memory]\nbackend = "qdrant"\n')

    assert [str(warning) for warning in found.warnings] == [
        "retinue.toml:2: memory.backend: qdrant is not supported and ignored"
    ]
    assert found.tool_options.memory == "sqlite"


def test_the_database_of_the_store_is_a_backend(tmp_path: Path) -> None:
    found = settings(tmp_path, '[memory]\nbackend = "postgres"\n\n[agents.dig.memory]\nbackend = "postgres"\n')

    assert found.warnings == ()
    assert found.tool_options.memory == "postgres"
    assert [agent.memory for agent in found.core_agents()] == ["postgres"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'backend = "redis"',
            'memory.backend: found "redis"; expected one of: sqlite, postgres, workspace, markdown, none',
        ),
        ("auto_save = 1", "memory.auto_save: found 1 (a whole number); expected true or false"),
    ],
)
def test_wrong_values_are_errors(tmp_path: Path, line: str, message: str) -> None:
    assert error_message(tmp_path, f"[memory]\n{line}\n") == f"retinue.toml:2: {message}"
