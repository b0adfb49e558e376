"""The example project with the settings file of meerkat: its commands print what its README says."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_example_programs import environment

PROJECT = ROOT / "examples" / "moving-from-meerkat"
SHOWN = re.findall(r"```console\n\$ (.+)\n((?:.*\n)*?)```", (PROJECT / "README.md").read_text(encoding="utf-8"))
PROGRAMS = {"retinue": [sys.executable, "-m", "retinue"], "python": [sys.executable]}


@pytest.mark.parametrize(("command", "printed"), SHOWN, ids=[command.split(maxsplit=1)[0] for command, _ in SHOWN])
def test_a_command_prints_what_the_readme_says(command: str, printed: str, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(PROJECT, folder)
    program, *arguments = shlex.split(command)

    ended = subprocess.run(
        [*PROGRAMS[program], *arguments],
        cwd=folder,
        env=environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, printed, "")


def test_the_readme_shows_the_command_line_and_the_program() -> None:
    assert [command.split(maxsplit=1)[0] for command, _ in SHOWN] == ["retinue", "python"]
