"""The section `[tools]`: the user's own Python files with tools in them. Their code is not touched here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from retinue.config.checking import Complaint
from retinue.config.keys import quoted
from retinue.config.sections import Section


class ToolsSettings(Struct, frozen=True, kw_only=True):
    """Where tools come from."""

    modules: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(
            description="Python files with functions that are decorated with @retinue.tool, next to this file.",
            examples=[["./mytools.py"]],
        ),
    ] = ()


ALLOWED = "a Python file (.py)"
LONGEST_PATH = 500

TOOLS = Section(name="tools", type=ToolsSettings, about="Tools of your own, in Python.")


def module_files(modules: Sequence[str], folder: Path) -> tuple[Path, ...]:
    """The files that modules are, seen from the folder of the settings."""
    return tuple(Path(os.path.abspath(folder / module)) for module in modules)


def missing_modules(modules: Sequence[str], folder: Path) -> Iterator[Complaint]:
    """Modules that are not there, or no Python."""
    for place, file in enumerate(module_files(modules, folder)):
        there = _what_is_there(file)
        if there == "a file" and file.suffix == ".py":
            continue
        found = f"{there} at {quoted(str(file), longest=LONGEST_PATH)}"
        yield Complaint(
            path=("tools", "modules", place), text=f"found {found}; expected {ALLOWED}", found=found, allowed=ALLOWED
        )


def _what_is_there(file: Path) -> str:
    try:
        return "a file" if file.is_file() else "a folder" if file.is_dir() else "nothing"
    except OSError:  # a name that is too long, or a folder that cannot be looked into
        return "nothing readable"
