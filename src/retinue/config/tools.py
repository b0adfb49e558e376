"""The section `[tools]`: the user's own Python files with tools in them, and how the built-in ones work.

The files' code is not touched here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from retinue.config.key_paths import quoted
from retinue.config.sections import Section
from retinue.config.validation import Complaint
from retinue.tools.dependencies import PROGRAM_MEMORY_MB, ToolOptions


class ToolsSettings(Struct, frozen=True, kw_only=True):
    """Where tools come from."""

    modules: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(
            description="Python files with functions that are decorated with @retinue.tool, next to this file.",
            examples=[["./mytools.py"]],
        ),
    ] = ()
    sandbox: Annotated[
        Literal["required", "off"],
        Meta(
            description="What programs of agents run in: a sandbox or not at all (required), or without one (off).",
            examples=["required"],
        ),
    ] = "required"
    network: Annotated[
        bool, Meta(description="Whether programs of shell and terminal may reach the network.", examples=[False])
    ] = False
    web_search: Annotated[
        str,
        Meta(
            description="Who searches the web: ddgs (no key), brave (BRAVE_API_KEY) or searxng:ADDRESS.",
            examples=["ddgs"],
        ),
    ] = "ddgs"
    memory: Annotated[
        Literal["sqlite", "markdown"],
        Meta(
            description="How agents' memories are kept: sqlite, or markdown for files that people read.",
            examples=["sqlite"],
        ),
    ] = "sqlite"
    max_result: Annotated[
        int,
        Meta(
            ge=1000,
            le=10_000_000,
            description="Characters of a tool's result that a model gets at once; it can page through the rest.",
            examples=[50_000],
        ),
    ] = 50_000
    program_memory_mb: Annotated[
        int,
        Meta(
            ge=64,
            le=1_048_576,
            description="MiB of memory that a command of shell and terminal may use, with all that it starts.",
            examples=[2048],
        ),
    ] = PROGRAM_MEMORY_MB

    def options(self) -> ToolOptions:
        """How the built-in tools work."""
        return ToolOptions(
            sandbox=self.sandbox,
            network=self.network,
            web_search=self.web_search,
            memory=self.memory,
            max_result=self.max_result,
            program_memory_mb=self.program_memory_mb,
        )


ALLOWED = "a Python file (.py)"
LONGEST_PATH = 500

TOOLS = Section(name="tools", type=ToolsSettings, about="Tools of your own, in Python, and how the built-in ones work.")


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
    # Path.is_file raises some of these errors, and since Python 3.14 none.
    try:
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return "nothing"
    except OSError:  # a name that is too long, or a folder that cannot be looked into
        return "nothing readable"
    return "a file" if stat.S_ISREG(mode) else "a folder" if stat.S_ISDIR(mode) else "nothing"
