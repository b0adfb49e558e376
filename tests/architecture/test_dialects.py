"""Source above `retinue.dialects` names no dialect, and every registration is true."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

import retinue
from retinue.dialects import registry
from retinue.dialects.base import Deferred, DialectEntry

SOURCE = Path(retinue.__file__).parent
ABOVE = (
    *("__init__.py", "__main__.py", "errors.py", "events.py", "messages.py", "ports.py"),
    *("acp_server", "app", "cli", "config", "dispatch", "evals", "mcp_server", "recording", "testing", "web"),
)
ALSO_A_WORD = {"spec", "codex", "claude"}
"""Names that mean something else in a sentence; a literal that is the name and nothing else still counts."""

AGENT_FILES = SOURCE / "config" / "agent_files"
"""Here some of these names are those of the programs whose files are read."""

PUBLIC_SETTINGS = re.compile(r"retinue\.dialects\.\w+:\w+")
"""Entries of the table of lazy names in `retinue/__init__.py`, which exports the settings classes of the dialects."""


def files() -> Iterator[Path]:
    for name in ABOVE:
        place = SOURCE / name
        yield from sorted(place.rglob("*.py")) if place.is_dir() else (place,)


def literals(tree: ast.Module) -> Iterator[ast.Constant]:
    """All strings, docstrings and parts of f-strings too, but not the names of attributes (`hasattr(tool, "spec")`)."""
    attributes = {
        argument
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr")
        for argument in call.args
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in attributes:
            yield node


def named_in(text: str) -> list[str]:
    """
    >>> named_in("spec"), named_in("the run spec"), named_in("--dialect xzatoma")
    (['spec'], [], ['xzatoma'])
    """
    whole = [name for name in registry.names() if name == text]
    return whole or [name for name in registry.names() if name not in ALSO_A_WORD and name in text]


def test_no_file_above_dialects_has_the_name_of_a_dialect_in_it() -> None:
    found = [
        f"{file.relative_to(SOURCE)}:{literal.lineno}: {name}"
        for file in files()
        for literal in literals(ast.parse(file.read_text()))
        if not (file.parent == SOURCE and PUBLIC_SETTINGS.fullmatch(str(literal.value)))
        for name in named_in(str(literal.value))
        if not (file.parent == AGENT_FILES and name in ALSO_A_WORD)
    ]

    assert found == []


def test_the_settings_class_of_every_dialect_is_public() -> None:
    declared = {entry.settings.type for entry in registry.entries() if entry.settings is not None}

    assert {getattr(retinue, kind.__name__, None) for kind in declared} == declared


@pytest.mark.parametrize("name", registry.names())
def test_a_dialect_is_registered_by_its_package_name_and_can_be_loaded(name: str) -> None:
    entry = registry.entry(name)
    hooks = [entry.factory, entry.transcripts, entry.cancelled_notice]
    if entry.processes is not None:
        hooks += [entry.processes.make, entry.processes.tools]

    assert isinstance(entry, DialectEntry)
    assert entry.name == name
    assert all(callable(hook.load()) for hook in hooks if isinstance(hook, Deferred))
    assert entry.settings is None or isinstance(entry.settings.type(), Struct)


def test_the_dialects_that_commands_are_tied_to_have_the_capability() -> None:
    assert registry.entry(registry.CHAT).chat is not None
    assert registry.entry(registry.CRON).cron is not None
    assert registry.entry(registry.REPLAY).transcripts is not None
    assert registry.entry(registry.CALL).processes is not None
    assert registry.DEFAULT in registry.names()


def test_a_registration_loads_neither_the_engine_nor_asyncio() -> None:
    program = (
        "import sys; from retinue.dialects import registry; entries = [*registry.entries()]; "
        "print(*sorted({'asyncio', 'aiohttp', 'sqlite3', 'retinue.engine', 'retinue.app'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "\n"
