"""The example project with the settings of buzzllm: its commands print what its README says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.testing.fake_chat import FakeChat, read_script
from tests.cli.stage import open_in_a_thread
from tests.docs.pages import ROOT
from tests.docs.test_example_programs import environment

PROJECT = ROOT / "examples" / "moving-from-buzzllm"
SHOWN = re.findall(r"```console\n\$ (.+)\n((?:.*\n)*?)```", (PROJECT / "README.md").read_text(encoding="utf-8"))
ADDRESS = "http://127.0.0.1:8000"
"""The address of the scripted model in the files of the project."""


@pytest.mark.parametrize(("command", "printed"), SHOWN, ids=range(len(SHOWN)))
def test_a_command_prints_what_the_readme_says(command: str, printed: str, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(PROJECT, folder)
    with open_in_a_thread(FakeChat(read_script((PROJECT / "lines.json").read_bytes()))) as vendor:
        for file in ("env.sh", "order.json"):
            text = (folder / file).read_text(encoding="utf-8")
            assert ADDRESS in text
            (folder / file).write_text(text.replace(ADDRESS, vendor.url), encoding="utf-8")
        program = f'retinue() {{ "{sys.executable}" -m retinue "$@"; }}\n. ./env.sh\n{command}\n'
        ended = subprocess.run(
            ["sh", "-e"],
            input=program,
            cwd=folder,
            env=environment(tmp_path / "home"),
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, printed, "")
    assert {request.headers["authorization"] for request in vendor.requests} == {"Bearer not-a-real-key"}


def test_the_readme_shows_both_commands() -> None:
    assert [command.split()[:2] for command, _ in SHOWN] == [["retinue", "buzz"]] * 4 + [["retinue", "call"]]
