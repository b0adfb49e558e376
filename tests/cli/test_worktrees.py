"""`retinue worktrees`: list, show, apply and remove."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.core.workspace import place_of, worktree_of
from retinue.local.workspaces import FetchedWorkspaces
from tests.cli.conftest import Cli
from tests.cli.test_json_outputs import FIELDS, check
from tests.local.test_workspaces import git, repository, work_in

__all__ = ["repository"]

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]


@pytest.fixture
def name(repository: Path, home: Path) -> str:
    """A worktree whose changes were handed back."""
    address = worktree_of("r1/1/0", str(repository))
    found = place_of(address, "")

    async def work() -> None:
        folders = FetchedWorkspaces(home)
        work_in(Path(await folders.fetch(found, address)))
        await folders.hand_back(found)
        folders.release(found)
        await folders.close()

    asyncio.run(work())
    return found


def test_worktrees_are_listed_shown_applied_and_removed(cli: Cli, repository: Path, name: str, tmp_path: Path) -> None:
    assert cli("worktrees", "list").stdout == f"{name}: changed, 3 files, {repository}\n"
    check("worktrees list --json", cli("worktrees", "list", "--json").json)
    shown = cli("worktrees", "show", name, "--json").json
    assert list(shown) == [*FIELDS["worktrees list --json"], "patch"]
    patch = cli("worktrees", "show", name[3:9]).stdout
    assert patch == shown["patch"]
    copy = tmp_path / "copy"
    shutil.copytree(repository, copy)
    (tmp_path / "fix.patch").write_text(patch)
    git(copy, "apply", str(tmp_path / "fix.patch"))

    applied = cli("worktrees", "apply", name)
    assert (applied.code, applied.stdout) == (0, "changed.txt\nnew/added.txt\nremoved.txt\n")
    assert (repository / "changed.txt").read_text() == "after\n"
    done = cli("worktrees", "remove", name, "--json")
    assert done.json == {"removed": [name]}
    assert cli("worktrees", "list").stdout == ""
    assert git(repository, "branch", "--list", f"retinue/{name}").split() == [f"retinue/{name}"]


def test_a_file_in_the_way_is_named(cli: Cli, repository: Path, name: str) -> None:
    (repository / "changed.txt").write_text("mine\n")

    refused = cli("worktrees", "apply", name)

    assert (refused.code, refused.stdout) == (1, "changed.txt\n")
    assert "nothing is changed: 1 file changed in both places" in refused.stderr
    assert (repository / "removed.txt").exists()


def test_an_unknown_name_lists_the_known_ones(cli: Cli, name: str) -> None:
    refused = cli("worktrees", "show", "wt-nothing")

    assert (refused.code, f"there is no worktree 'wt-nothing'; known: {name}" in refused.stderr) == (2, True)


def test_a_patch_has_every_byte_in_a_pipe_and_marks_in_json(
    cli: Cli, repository: Path, home: Path, tmp_path: Path
) -> None:
    address = worktree_of("r2/1/0", str(repository))
    found = place_of(address, "")

    async def work() -> None:
        folders = FetchedWorkspaces(home)
        folder = Path(await folders.fetch(found, address))
        (folder / "changed.txt").write_bytes(b"caf\xe9\n")
        await folders.hand_back(found)
        folders.release(found)
        await folders.close()

    asyncio.run(work())
    program = [sys.executable, "-m", "retinue", "worktrees", "show", found]
    patch = subprocess.run(program, env=os.environ | {"RETINUE_HOME": str(home)}, check=True, capture_output=True)

    assert b"+caf\xe9\n" in patch.stdout
    assert "+caf\ufffd\n" in cli("worktrees", "show", found, "--json").json["patch"]
