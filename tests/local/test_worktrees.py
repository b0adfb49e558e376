"""Worktrees: a commit of a repository in a folder of its own, and the changes as a branch, a patch, and files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from retinue.core.errors import BadInput
from retinue.core.workspace import WorkspaceUnavailable, place_of, worktree_of
from retinue.local.git_workspaces import git_program
from retinue.local.repository_files import opened_folder, read_entry
from retinue.local.workspaces import FetchedWorkspaces
from retinue.local.worktrees import Applied, Worktrees
from tests.local.test_workspaces import files_in, git, repository, work_in

__all__ = ["repository"]

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]


class Place:
    """A state folder, and one worktree of a repository."""

    def __init__(self, tmp_path: Path, repository: Path, key: str = "r1/1/0") -> None:
        self.home = tmp_path / "state" / "home"
        self.address = worktree_of(key, str(repository))
        self.name = place_of(self.address, "r1")
        self.branch = f"retinue/{self.name}"
        self.folders = FetchedWorkspaces(self.home)

    async def fetch(self) -> Path:
        return Path(await self.folders.fetch(self.name, self.address))

    async def end(self) -> str | None:
        result = await self.folders.hand_back(self.name)
        self.folders.release(self.name)
        await self.folders.close()
        return result

    @property
    def worktrees(self) -> Worktrees:
        return Worktrees(self.home, git_program())


def state_of(repository: Path) -> tuple[list[str], str, str]:
    """The files of a repository's tree, its status and its branch."""
    files = [name for name in files_in(repository) if not name.startswith(".git/")]
    return files, git(repository, "status", "--porcelain"), git(repository, "branch", "--show-current")


async def test_the_changes_are_a_branch_and_a_patch_and_the_tree_is_not_touched(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "changed.txt").write_text("not committed\n")
    before = state_of(repository)
    place = Place(tmp_path, repository)

    folder = await place.fetch()
    assert (folder / "changed.txt").read_text() == "before\n"
    assert git(folder, "status", "--porcelain") == ""
    work_in(folder)
    result = await place.end()

    assert result == f"git+file://{repository}@{place.branch}"
    assert state_of(repository) == before
    changes = git(repository, "diff", "--name-status", "main", place.branch).splitlines()
    assert changes == ["M\tchanged.txt", "A\tnew/added.txt", "D\tremoved.txt"]
    assert git(repository, "fsck", "--full").splitlines() == []
    (view,) = place.worktrees.list()
    assert (view.name, view.repository, view.branch, view.files) == (place.name, str(repository), place.branch, 3)
    assert (view.state, view.folder, view.base) == ("changed", "", git(repository, "rev-parse", "main").strip())
    patch = tmp_path / "patch"
    patch.write_text(place.worktrees.patch(view))
    git(repository, "checkout", "--quiet", "--", "changed.txt")
    git(repository, "apply", str(patch))
    assert (repository / "new" / "added.txt").read_text() == "added\n"
    assert list((tmp_path / "state" / "home-workspaces").iterdir()) == []


async def test_a_worktree_without_changes_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    place = Place(tmp_path, repository)
    await place.fetch()

    assert await place.end() is None
    assert place.worktrees.list() == []
    assert list((place.home / "workspaces").iterdir()) == []
    assert git(repository, "branch", "--format=%(refname:short)").split() == ["main"]


async def test_a_run_that_goes_on_finds_what_was_handed_back(repository: Path, tmp_path: Path) -> None:
    place = Place(tmp_path, repository)
    work_in(await place.fetch())
    await place.end()

    again = await place.fetch()
    assert (again / "changed.txt").read_text() == "after\n"
    (again / "more.txt").write_text("more\n")
    await place.end()

    assert git(repository, "show", f"{place.branch}:more.txt") == "more\n"
    assert git(repository, "rev-parse", f"{place.branch}^") == git(repository, "rev-parse", "main")
    assert place.worktrees.list()[0].files == 4


async def test_a_crash_leaves_the_folder_as_it_was(repository: Path, tmp_path: Path) -> None:
    folder = await Place(tmp_path, repository).fetch()
    (folder / "half.txt").write_text("half\n")

    place = Place(tmp_path, repository)
    assert (await place.fetch() / "half.txt").read_text() == "half\n"
    await place.end()

    assert git(repository, "show", f"{place.branch}:half.txt") == "half\n"


# ---- a repository that an agent has prepared ------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that leaves a proof."""
    script = tmp_path / "program"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/proof\ncat\n")
    script.chmod(0o755)
    return script


async def test_settings_and_hooks_of_the_repository_start_no_program(
    repository: Path, tmp_path: Path, program: Path
) -> None:
    (repository / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "attributes")
    hooks = repository / ".git" / "hooks"
    for name in ("post-checkout", "reference-transaction", "pre-receive", "update", "post-index-change", "pre-auto-gc"):
        shutil.copy(program, hooks / name)
    with (repository / ".git" / "config").open("a") as opened:
        opened.write(f"[core]\n\tfsmonitor = {program}\n\tsshCommand = {program}\n\thooksPath = {hooks}\n")
        opened.write(f"\talternateRefsCommand = {program}\n\tworktree = /\n\tattributesFile = /etc/passwd\n")
        opened.write(f'[filter "evil"]\n\tclean = {program}\n\tsmudge = {program}\n\tprocess = {program}\n')
        opened.write(f'[diff "evil"]\n\tcommand = {program}\n\ttextconv = {program}\n[diff]\n\texternal = {program}\n')
        opened.write(f"[uploadpack]\n\tpackObjectsHook = {program}\n[include]\n\tpath = /nowhere\n")

    place = Place(tmp_path, repository)
    work_in(await place.fetch())
    result = await place.end()
    (view,) = place.worktrees.list()
    place.worktrees.patch(view)
    place.worktrees.apply(view, repository)

    assert result == f"git+file://{repository}@{place.branch}"
    assert not (tmp_path / "proof").exists()


async def test_what_the_child_does_to_its_own_git_folder_has_no_effect(
    repository: Path, tmp_path: Path, program: Path
) -> None:
    place = Place(tmp_path, repository)
    folder = await place.fetch()
    work_in(folder)
    shutil.rmtree(folder / ".git")
    (folder / ".git").symlink_to(repository / ".git")
    (folder / "link").symlink_to(repository / ".git" / "config")
    (folder / "outside").symlink_to("/etc")
    before = (repository / ".git" / "config").read_text()

    assert await place.end() == f"git+file://{repository}@{place.branch}"
    assert (repository / ".git" / "config").read_text() == before
    assert git(repository, "ls-tree", place.branch, "link").split()[:2] == ["120000", "blob"]
    assert git(repository, "ls-tree", "-r", "--name-only", place.branch, "outside").split() == ["outside"]


@pytest.mark.parametrize("what", ["git", "objects", "folder", "object", "refs", "alternates", "file", "head"])
async def test_a_repository_that_leads_to_another_one_is_refused(repository: Path, tmp_path: Path, what: str) -> None:
    private = tmp_path / "private"
    shutil.copytree(repository, private)
    (private / "secret.txt").write_text("secret\n")
    git(private, "add", ".")
    git(private, "commit", "--quiet", "-m", "secret")
    secret = git(private, "rev-parse", "HEAD").strip()
    own, other = repository / ".git", private / ".git"
    (own / "refs" / "heads" / "main").write_text(f"{secret}\n")
    match what:
        case "git":
            shutil.rmtree(own)
            own.symlink_to(other)
        case "objects":
            shutil.rmtree(own / "objects")
            (own / "objects").symlink_to(other / "objects")
        case "folder" | "object":
            for folder in (other / "objects").iterdir():
                if len(folder.name) == 2 and what == "folder":
                    shutil.rmtree(own / "objects" / folder.name, ignore_errors=True)
                    (own / "objects" / folder.name).symlink_to(folder)
                for file in folder.iterdir() if len(folder.name) == 2 and what == "object" else ():
                    (own / "objects" / folder.name).mkdir(exist_ok=True)
                    if not (own / "objects" / folder.name / file.name).exists():
                        (own / "objects" / folder.name / file.name).symlink_to(file)
        case "refs":
            shutil.rmtree(own / "refs")
            (own / "refs").symlink_to(other / "refs")
        case "alternates":
            (own / "objects" / "info" / "alternates").write_text(f"{other}/objects\n")
        case "file":
            shutil.rmtree(own)
            own.write_text(f"gitdir: {other}\n")
        case _:
            (own / "HEAD").unlink()
            (own / "HEAD").symlink_to(other / "HEAD")

    place = Place(tmp_path, repository)
    with pytest.raises(WorkspaceUnavailable):
        await place.fetch()
    assert [path for path in files_in(tmp_path) if path.endswith("secret.txt")] == ["private/secret.txt"]


async def test_a_folder_above_that_has_become_a_link_is_refused(repository: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    shutil.copytree(repository, outer / "inner")
    place = Place(tmp_path, outer / "inner")
    outer.rename(tmp_path / "moved")
    outer.symlink_to(tmp_path / "moved")

    with pytest.raises(WorkspaceUnavailable, match="cannot be opened"):
        await place.fetch()


async def test_a_pipe_among_the_objects_blocks_nothing(repository: Path, tmp_path: Path) -> None:
    loose = repository / ".git" / "objects" / "aa"
    loose.mkdir(exist_ok=True)
    os.mkfifo(loose / ("0" * 38))

    with pytest.raises(WorkspaceUnavailable, match="is no file"):
        await Place(tmp_path, repository).fetch()


def commit_of_tree(repository: Path, *entries: str) -> None:
    """Make a tree of these lines of `git ls-tree`, in place of what the last commit has."""
    tree = git(repository, "mktree", text="".join(f"{entry}\n" for entry in entries)).strip()
    commit = git(repository, "commit-tree", tree, "-m", "made by hand").strip()
    git(repository, "update-ref", "HEAD", commit)


async def test_a_commit_of_few_objects_with_too_many_files_is_refused(repository: Path, tmp_path: Path) -> None:
    """Each tree has the one below it ten times: 10^12 files in 13 objects, which git would all keep in memory."""
    below = "100644 blob " + git(repository, "hash-object", "-w", "kept.txt").strip()
    for _ in range(12):
        tree = git(repository, "mktree", text="".join(f"{below}\tf{number}\n" for number in range(10))).strip()
        below = f"040000 tree {tree}"
    commit_of_tree(repository, f"{below}\tmany")

    with pytest.raises(WorkspaceUnavailable, match="more than 200000 files and folders"):
        await Place(tmp_path, repository).fetch()


async def test_a_commit_with_one_large_file_many_times_is_refused(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.local.git_workspaces.MAX_BYTES", 1_000_000)
    (repository / "zeros").write_bytes(bytes(100_000))
    blob = git(repository, "hash-object", "-w", "zeros").strip()
    commit_of_tree(repository, *(f"100644 blob {blob}\tf{number}" for number in range(11)))

    with pytest.raises(WorkspaceUnavailable, match="the files of the commit have more than"):
        await Place(tmp_path, repository).fetch()


@pytest.mark.parametrize("name", ["..", ".git", ".GIT"])
async def test_a_commit_with_the_name_of_a_folder_outside_is_refused(
    repository: Path, tmp_path: Path, name: str
) -> None:
    blob = git(repository, "hash-object", "-w", "kept.txt").strip()
    tree = git(repository, "mktree", text=f"100644 blob {blob}\tvictim\n").strip()
    commit_of_tree(repository, f"040000 tree {tree}\t{name}")

    with pytest.raises(WorkspaceUnavailable):
        await Place(tmp_path, repository).fetch()


async def test_a_branch_that_cannot_be_put_there_stays_in_the_state_folder(repository: Path, tmp_path: Path) -> None:
    place = Place(tmp_path, repository)
    work_in(await place.fetch())
    target = tmp_path / "target"
    target.mkdir()
    (repository / ".git" / "refs" / "heads" / "retinue").symlink_to(target)

    result = await place.end()

    assert result == f"git+file://{place.home}/workspaces/{place.name}.git@result"
    assert os.listdir(target) == []
    assert place.worktrees.list()[0].files == 3


async def test_a_huge_file_is_not_handed_back_and_the_folder_stays(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.local.workspace_folders.MAX_FILE_BYTES", 1024)
    place = Place(tmp_path, repository)
    folder = await place.fetch()
    (folder / "huge").write_bytes(b"x" * 1025)

    result = await place.end()

    assert result is not None
    assert result.endswith(f":{folder}")
    assert place.worktrees.list()[0].state == "working"
    assert git(repository, "branch", "--format=%(refname:short)").split() == ["main"]


async def test_the_data_of_a_repository_are_not_handed_back_in_any_case(repository: Path, tmp_path: Path) -> None:
    """Where a file system does not tell cases apart, `.Git/hooks` is the folder of the repository's hooks."""
    place = Place(tmp_path, repository)
    folder = await place.fetch()
    (folder / "changed.txt").write_text("after\n")
    (folder / ".Git" / "hooks").mkdir(parents=True)
    (folder / ".Git" / "hooks" / "pre-commit").write_text("#!/bin/sh\n")
    (folder / "below" / ".GIT").mkdir(parents=True)
    (folder / "below" / ".GIT" / "config").write_text("[core]\n")

    await place.end()

    (view,) = place.worktrees.list()
    assert place.worktrees.apply(view, repository) == Applied(("changed.txt",), ())


@pytest.mark.parametrize(
    "path", ["../outside", "a/../../outside", ".git/hooks/update", ".GIT/config", "/etc/x", "a//b"]
)
def test_changes_are_not_applied_to_paths_outside_or_to_a_repository(tmp_path: Path, path: str) -> None:
    with opened_folder(tmp_path.resolve()) as top, pytest.raises(OSError, match="Invalid argument"):
        read_entry(top, path, longest=100)


async def test_folders_without_end_are_not_handed_back_and_can_be_removed(repository: Path, tmp_path: Path) -> None:
    """A program of an agent made them; a walk with a call for each folder ended with an error of Python."""
    place = Place(tmp_path, repository)
    folder = await place.fetch()
    os.symlink(repository, folder / "link")
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    (folder / "closed").mkdir()
    (folder / "closed" / "file").write_text("x")
    (folder / "closed").chmod(0)

    result = await place.end()

    assert result is not None
    assert result.endswith(f":{folder}")
    (view,) = place.worktrees.list()
    place.worktrees.remove(view, force=True)
    assert list(folder.parent.iterdir()) == []
    assert (repository / "kept.txt").read_text() == "kept\n"


async def test_a_folder_without_a_repository_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()

    with pytest.raises(WorkspaceUnavailable, match="is not the top folder of a git repository"):
        await Place(tmp_path, tmp_path / "plain").fetch()


async def test_a_state_folder_inside_the_repository_is_refused(repository: Path) -> None:
    with pytest.raises(WorkspaceUnavailable, match="keep it elsewhere"):
        await Place(repository, repository).fetch()


# ---- apply and remove -----------------------------------------------------------------------------------------------


async def test_changes_are_applied_to_files_that_changed_elsewhere(repository: Path, tmp_path: Path) -> None:
    (repository / "long.txt").write_text("one\n" + "same\n" * 8 + "two\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "long")
    place = Place(tmp_path, repository)
    folder = await place.fetch()
    work_in(folder)
    (folder / "long.txt").write_text("ONE\n" + "same\n" * 8 + "two\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    await place.end()
    (repository / "long.txt").write_text("one\n" + "same\n" * 8 + "TWO\n")
    (view,) = place.worktrees.list()

    done = place.worktrees.apply(view, repository)

    assert done == Applied(("changed.txt", "long.txt", "new/added.txt", "removed.txt", "run.sh"), ())
    assert (repository / "long.txt").read_text() == "ONE\n" + "same\n" * 8 + "TWO\n"
    assert not (repository / "removed.txt").exists()
    assert os.access(repository / "run.sh", os.X_OK)


async def test_a_file_in_the_way_leaves_all_as_it_is(repository: Path, tmp_path: Path) -> None:
    place = Place(tmp_path, repository)
    work_in(await place.fetch())
    await place.end()
    (repository / "changed.txt").write_text("mine\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (repository / "new").symlink_to(outside)
    (view,) = place.worktrees.list()

    assert place.worktrees.apply(view, repository) == Applied((), ("changed.txt", "new/added.txt"))
    assert (repository / "removed.txt").exists()
    assert os.listdir(outside) == []


@pytest.mark.parametrize("sizes", [(1025,), (600, 600)])
async def test_changes_that_are_too_large_for_the_memory_are_not_applied(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    place = Place(tmp_path, repository)
    folder = await place.fetch()
    for number, size in enumerate(sizes):
        (folder / f"large{number}").write_bytes(b"x" * size)
    await place.end()
    (view,) = place.worktrees.list()
    monkeypatch.setattr("retinue.local.worktrees.MAX_APPLIED", 1024)

    with pytest.raises(BadInput, match=f"more than .* MiB: take the changes over with git merge {view.branch}"):
        place.worktrees.apply(view, repository)
    assert "large0" not in os.listdir(repository)
    monkeypatch.setattr("retinue.local.worktrees.MAX_APPLIED", sum(sizes))
    assert len(place.worktrees.apply(view, repository).written) == len(sizes)


async def test_a_worktree_is_found_by_name_branch_or_beginning_and_removed(repository: Path, tmp_path: Path) -> None:
    place = Place(tmp_path, repository)
    folder = await place.fetch()
    work_in(folder)
    worktrees = place.worktrees

    assert worktrees.find(place.branch).name == worktrees.find(place.name[3:7]).name == place.name
    with pytest.raises(BadInput, match=f"there is no worktree 'wt-x'; known: {place.name}"):
        worktrees.find("wt-x")
    with pytest.raises(BadInput, match="a run may work there"):
        worktrees.remove(worktrees.find(place.name))
    worktrees.remove(worktrees.find(place.name), force=True)
    assert (worktrees.list(), folder.exists()) == ([], False)
