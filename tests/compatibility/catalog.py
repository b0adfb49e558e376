"""The list of scenarios and the conditions of each."""

from __future__ import annotations

import importlib
import json
import pkgutil
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

from tests.compatibility.stage import Stage, environment

Need: TypeAlias = Literal["sandbox", "ripgrep"]
Play: TypeAlias = Callable[[Stage], None]


@dataclass(frozen=True)
class Scenario:
    """A named sequence of commands with a deterministic result."""

    name: str
    play: Play
    needs: tuple[Need, ...]

    @property
    def lacks(self) -> str:
        """The conditions that this machine does not meet, separated by commas."""
        return ", ".join(need for need in self.needs if not _CHECKS[need]())


_KNOWN: dict[str, Scenario] = {}


def scenario(*needs: Need) -> Callable[[Play], Play]:
    """Register a function as a scenario; the scenario has the name of the function, with hyphens."""

    def register(play: Play) -> Play:
        name = play.__name__.replace("_", "-")
        if name in _KNOWN:
            raise ValueError(f"two scenarios are named {name}")
        _KNOWN[name] = Scenario(name, play, needs)
        return play

    return register


@cache
def scenarios() -> tuple[Scenario, ...]:
    """All scenarios, sorted by name."""
    package = importlib.import_module("tests.compatibility.scenarios")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return tuple(_KNOWN[name] for name in sorted(_KNOWN))


@cache
def _has_sandbox() -> bool:
    """Whether the tool `shell` runs a command here."""
    script = [{"call": {"name": "shell", "arguments": {"command": "echo works"}}}, {"say": "Done."}]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.json").write_text(json.dumps(script))
        run = [sys.executable, "-P", "-m", "retinue", "run", "--sse", "--dialect", "none", "--tools", "shell"]
        events = subprocess.run(
            [*run, "--provider", "scripted", "--model", "script.json", "Go."],
            cwd=folder,
            env=environment() | {"RETINUE_HOME": f"{folder}/home"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        ).stdout
    return r"\nworks\n" in events


@cache
def _has_ripgrep() -> bool:
    return shutil.which("rg") is not None


_CHECKS: dict[Need, Callable[[], bool]] = {"sandbox": _has_sandbox, "ripgrep": _has_ripgrep}
