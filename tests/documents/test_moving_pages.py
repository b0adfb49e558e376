"""Pages about moving from other programs: each tool, action and setting of a dialect has a row in a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import fields

from retinue.config.agents import AgentSettings
from retinue.config.cron import CronSettings
from retinue.config.memory import MemoryDefaults
from retinue.config.profiles import RiskSettings, RuntimeSettings
from retinue.dialects import registry
from retinue.dialects.shared_context import requests as shared_context
from retinue.dialects.spec import requests as spec
from retinue.dialects.zeroclaw import requests as zeroclaw
from tests.docs.pages import DOCS

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "spec": (*spec.CORE, *spec.EXTRA_ACTIONS, *shared_context.CORE, *shared_context.EXTRA_ACTIONS),
    "zeroclaw": zeroclaw.ACTIONS,
}
"""The actions of tools that have some, by dialect."""

SETTINGS: Mapping[str, tuple[type[Struct], ...]] = {
    "zeroclaw": (AgentSettings, RiskSettings, RuntimeSettings, MemoryDefaults, CronSettings),
}
"""Sections that a dialect's program has, besides the dialect's own section."""

GENERAL = {"limits"}
"""Keys whose own keys are none of the program's."""


def field_names(kind: type[Struct]) -> Iterator[str]:
    """The keys of a section and of the tables in it."""
    for field in fields(kind):
        yield field.name
        if isinstance(field.default, Struct) and field.name not in GENERAL:
            yield from field_names(type(field.default))


def names_in_tables(page: Path) -> set[str]:
    """The names in code in the first column of the tables, and in a column that is headed `here`."""
    names: set[str] = set()
    columns: tuple[int, ...] = ()
    for line in page.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            columns = ()
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not columns:
            columns = (0, *(index for index, head in enumerate(cells) if head == "here" and index > 0))
        for code in re.findall(r"`([^`]+)`", " ".join(cells[index] for index in columns)):
            names.update(re.findall(r"\w+", code))
    return names


WITHOUT_A_PROGRAM = ("native", "codex", "claude")
"""Dialects of retinue itself: there is no other program to move from."""


def required(dialect: str) -> set[str]:
    entry = registry.entry(dialect)
    sections = [*([entry.settings.type] if entry.settings is not None else []), *SETTINGS.get(dialect, ())]
    own_keys = () if entry.program_settings is None else entry.program_settings.own_keys
    return {
        *entry.tool_names,
        *entry.root_tools,
        *ACTIONS.get(dialect, ()),
        *(name for section in sections for name in field_names(section)),
        *(key.rpartition(".")[2] for key in own_keys),
    }


@pytest.mark.parametrize("dialect", [name for name in registry.names() if name not in WITHOUT_A_PROGRAM])
def test_the_page_has_a_row_for_each_tool_action_and_setting(dialect: str) -> None:
    listed = names_in_tables(DOCS / "how-to" / f"moving-from-{dialect}.md")

    assert sorted(required(dialect) - listed) == []


def test_the_names_of_nested_sections_are_required() -> None:
    assert {"concurrency_limits", "max_children_per_agent", "agent_fork", "send", "models"} <= required("meerkat")
    assert {"read_memory_from", "allowed_roots", "list_results", "autonomy"} <= required("zeroclaw")
