"""The check of commit messages, as the hook and as `make titles` run it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.repository import ROOT

SCRIPT = ROOT / "scripts" / "commit_title.py"


def check(*arguments: str, folder: Path) -> tuple[int, str]:
    """The exit status and what is printed to stderr."""
    ended = subprocess.run([sys.executable, str(SCRIPT), *arguments], cwd=folder, capture_output=True, text=True)
    return ended.returncode, ended.stderr


def check_message(message: str, folder: Path) -> tuple[int, str]:
    (folder / "message").write_text(message, encoding="utf-8")
    return check("message", folder=folder)


@pytest.mark.parametrize(
    "message",
    [
        "store: close every connection\n\nPython 3.13 warns of the others.\n",
        "tests/engine, core: add a case\n# Please enter the commit message\n",
        "build: pin packages\n# ------------------------ >8 ------------------------\ndiff --git a b\n",
        "Merge branch 'main' into topic\n",
        'Revert "store: close every connection"\n',
        f"store: {'x' * 65}\n",
    ],
)
def test_valid_commit_messages_are_accepted(message: str, tmp_path: Path) -> None:
    assert check_message(message, tmp_path) == (0, "")


@pytest.mark.parametrize(
    ("message", "violation"),
    [
        ("Close every connection\n", "the title has no component: write 'store: close every connection'"),
        ("store: close every connection.\n", "the title ends with a full stop"),
        (f"store: {'x' * 66}\n", "the title has 73 characters, at most 72 are allowed"),
        ("store: close every connection\nbecause\n", "the second line is not blank"),
        ("", "the title has no component: write 'store: close every connection'"),
    ],
)
def test_bad_messages_fail_with_the_reason(message: str, violation: str, tmp_path: Path) -> None:
    title = message.partition("\n")[0]

    assert check_message(message, tmp_path) == (1, f"{title}\n  {violation}\n")


def test_a_range_reports_each_bad_title_and_skips_merges(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    for title in ("core: add rules", "Fixed it", "store: close files"):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", title], cwd=tmp_path, check=True)

    status, printed = check("--range", "HEAD", folder=tmp_path)

    assert (status, printed.splitlines()[0]) == (1, "Fixed it")
    assert check("--range", "HEAD~1..HEAD", folder=tmp_path) == (0, "")


def test_missing_arguments_are_a_usage_error(tmp_path: Path) -> None:
    assert check(folder=tmp_path) == (2, "usage: commit_title.py FILE | --range COMMITS\n")
