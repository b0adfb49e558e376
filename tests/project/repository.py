"""The files of the repository that are not Python: the project table, the Makefile, YAML, the list of files."""

import re
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))

TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)


@cache
def pyproject() -> dict[str, Any]:
    """The whole of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def extras() -> dict[str, list[str]]:
    """The requirements of each extra as they are written."""
    return pyproject()["project"]["optional-dependencies"]


def make_targets() -> set[str]:
    """The targets of the Makefile."""
    return set(TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))


def load_yaml(file: Path) -> Any:
    """The document in a YAML file."""
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def git_files() -> list[str] | None:
    """Files of the checkout that git does not ignore; None without git, as in an unpacked sdist."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return None
    listed = subprocess.run(
        # The checkout may belong to another user.
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return sorted(name for name in listed.split("\0") if name and (ROOT / name).exists())
