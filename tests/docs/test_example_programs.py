"""Every program in examples/ runs without a key, prints what its docstring says, and is in the list of examples."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.docs.pages import ROOT

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
PRINTS = re.compile(r"It prints:\n\n((?:(?: {4}.*)?\n)+)")
KEY = re.compile(r".*_(API_KEY|TOKEN)")


def name_of(program: Path) -> str:
    return program.name


def docstring(program: Path) -> str:
    """The module docstring as it stands in the file."""
    return ast.get_docstring(ast.parse(program.read_text(encoding="utf-8")), clean=False) or ""


def environment(home: Path) -> dict[str, str]:
    """The environment without keys and settings of retinue, and with its state in a folder of the test."""
    kept = {name: value for name, value in os.environ.items() if not re.match(r"RETINUE_|COV_", name)}
    return {name: value for name, value in kept.items() if not KEY.fullmatch(name)} | {"RETINUE_HOME": str(home)}


def run(program: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(program)], cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=name_of)
def test_the_program_prints_what_its_docstring_says_and_leaves_no_state(program: Path, tmp_path: Path) -> None:
    shown = PRINTS.search(docstring(program))
    assert shown is not None, "the docstring has no block after 'It prints:'"

    ended = run(program, tmp_path)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == dedent(shown[1]).rstrip("\n") + "\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", PROGRAMS, ids=name_of)
def test_the_docstring_names_the_command_and_the_file_the_line_for_a_real_model(program: Path) -> None:
    assert f"Run: `python examples/{program.name}`." in docstring(program)
    assert "For a real model, " in program.read_text(encoding="utf-8")


def test_the_bookkeeper_of_host_mode_runs(tmp_path: Path) -> None:
    ended = run(EXAMPLES / "host-mode" / "bookkeeper.py", tmp_path)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == "so far: 250 cents"


def test_the_list_of_examples_is_complete() -> None:
    listed = re.findall(r"^\| \[([^\]]+)\]", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    others = ["host-mode/bookkeeper.py", "incident/retinue.toml"]
    others += [f"{page.parent.name}/{page.name}" for page in EXAMPLES.glob("moving-from-*/README.md")]

    assert sorted(listed) == sorted([*map(name_of, PROGRAMS), *others])
