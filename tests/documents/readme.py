"""Commands in the README of an example project: parsed, run in a shell as they stand, and their output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.docs.pages import read
from tests.docs.test_example_programs import environment

COMMAND = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)

WARNING = re.compile(r"^\S+ WARNING retinue\.config (.*)\n", re.MULTILINE)
"""A warning about ignored settings; a README shows it once."""

ASIDE = (
    (
        re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
        "00000000-0000-0000-0000-000000000000",
    ),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "2000-01-01T00:00:00Z"),
)
"""Ids and times, which differ from run to run."""


class Shown(NamedTuple):
    """A command and the output that the README shows."""

    command: str
    output: str


class Ended(NamedTuple):
    """The end of a command: what it printed on stdout and then on stderr, and its warnings about settings."""

    code: int
    output: str
    warnings: tuple[str, ...]


class Shell(NamedTuple):
    """A shell in a copy of a project, with a state folder of its own; `before` are lines that run first."""

    folder: Path
    home: Path
    before: str = ""

    def run(self, command: str) -> Ended:
        functions = "".join(
            f'{name}() {{ "{sys.executable}" {module}"$@"; }}\n'
            for name, module in (("retinue", "-m retinue "), ("python", ""))
        )
        ended = subprocess.run(
            ["sh", "-e"],
            input=f"{functions}{self.before}\n{command}\n",
            cwd=self.folder,
            env=environment(self.home) | {"TZ": "UTC"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        output = ended.stdout + WARNING.sub("", ended.stderr)
        return Ended(ended.returncode, self._as_shown(output), tuple(WARNING.findall(ended.stderr)))

    def _as_shown(self, output: str) -> str:
        """The output with the places that the READMEs show."""
        for place, shown in (
            (str(self.folder), "/srv/desk/project"),
            (str(self.home), "/srv/desk/state"),
            (sys.executable, "/usr/bin/python3"),
        ):
            output = output.replace(place, shown)
        return output


def commands(project: Path) -> list[Shown]:
    """The commands of the README, in its order."""
    blocks = read(project / "README.md").of("console")
    return [Shown(*found) for block in blocks for found in COMMAND.findall(block.code + "\n")]


def without_ids_and_times(text: str) -> str:
    for pattern, replacement in ASIDE:
        text = pattern.sub(replacement, text)
    return text
