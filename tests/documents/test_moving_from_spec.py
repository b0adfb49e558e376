"""The example project of a move from the specification: the commands of its README, run in its folder."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT
from tests.docs.test_example_programs import environment

PROJECT = ROOT / "examples" / "moving-from-spec"
SHOWN = re.findall(r"```console\n\$ (.+)\n((?:.*\n)*?)```", (PROJECT / "README.md").read_text(encoding="utf-8"))
PIPED = re.compile(r'printf "(.*)" \| (.*)')


def run(command: str, folder: Path, home: Path) -> str:
    """Run a command of the README; what it prints, on stdout or as a report on stderr."""
    piped = PIPED.fullmatch(command)
    stdin, command = (piped[1].replace("\\n", "\n"), piped[2]) if piped else ("", command)
    program, *arguments = shlex.split(command)
    assert program == "retinue"
    ended = subprocess.run(
        [sys.executable, "-m", "retinue", *arguments],
        input=stdin,
        cwd=folder,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def test_the_commands_print_what_the_readme_says(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))

    printed = [run(command, folder, tmp_path / "home") for command, _ in SHOWN]

    assert [re.sub(r" +", " ", text) for text in printed] == [re.sub(r" +", " ", text) for _, text in SHOWN]
    assert len(printed) == 3
