"""Workspaces from git repositories and object stores: fetched into a folder, and handed back to their own place."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from retinue.core.errors import BadInput
from retinue.core.workspace import (
    WorkspaceUnavailable,
    parse_workspace,
)
from retinue.local.workspaces import FetchedWorkspaces

pytestmark = pytest.mark.real_time

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *words: str, text: str | None = None) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@localhost", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True, input=text
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "origin"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "kept.txt").write_text("kept\n")
    (folder / "changed.txt").write_text("before\n")
    (folder / "removed.txt").write_text("removed\n")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def trusting(home: Path, *addresses: str) -> FetchedWorkspaces:
    workspaces = FetchedWorkspaces(home)
    for address in addresses:
        workspaces.trust(address)
    return workspaces


def files_in(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def work_in(folder: Path) -> None:
    (folder / "changed.txt").write_text("after\n")
    (folder / "removed.txt").unlink()
    (folder / "new").mkdir()
    (folder / "new" / "added.txt").write_text("added\n")
    (folder / "build.log").write_text("ignored\n")


@needs_git
async def test_the_changes_of_a_tree_are_a_branch_of_the_repository(repository: Path, tmp_path: Path) -> None:
    address = f"git+file://{repository}@main"
    workspaces = trusting(tmp_path / "home", address)

    folder = Path(await workspaces.fetch("run-1", address))
    assert sorted(os.listdir(folder)) == [".git", ".gitignore", "changed.txt", "kept.txt", "removed.txt"]
    assert git(folder, "status", "--porcelain") == ""
    work_in(folder)
    result = await workspaces.hand_back("run-1")

    assert result == f"git+file://{repository}@retinue/run-1"
    changes = git(repository, "diff", "--name-status", "main", "retinue/run-1").splitlines()
    assert changes == ["M\tchanged.txt", "A\tnew/added.txt", "D\tremoved.txt"]
    assert git(repository, "log", "-1", "--format=%s", "retinue/run-1") == "Changes of run run-1\n"
    workspaces.release("run-1")
    await workspaces.close()
    assert os.listdir(folder.parent) == []
    assert await workspaces.hand_back("run-1") is None


@needs_git
async def test_a_tree_that_changed_nothing_leaves_no_branch(repository: Path, tmp_path: Path) -> None:
    address = f"git+file://{repository}"
    workspaces = trusting(tmp_path / "home", address)

    await workspaces.fetch("run-1", address)

    assert await workspaces.hand_back("run-1") is None
    assert git(repository, "branch", "--format=%(refname:short)").split() == ["main"]


@needs_git
async def test_another_machine_goes_on_with_what_was_handed_back(repository: Path, tmp_path: Path) -> None:
    address = f"git+file://{repository}@main"
    first, second = trusting(tmp_path / "first", address), trusting(tmp_path / "second", address)
    work_in(Path(await first.fetch("run-1", address)))
    await first.hand_back("run-1")

    folder = Path(await second.fetch("run-1", address))
    assert (folder / "changed.txt").read_text() == "after\n"
    (folder / "more.txt").write_text("more\n")
    await second.hand_back("run-1")

    assert git(repository, "show", "retinue/run-1:more.txt") == "more\n"
    assert git(repository, "show", "retinue/run-1:new/added.txt") == "added\n"


@needs_git
async def test_a_process_that_starts_again_finds_the_folder_as_it_was(repository: Path, tmp_path: Path) -> None:
    address = f"git+file://{repository}@main"
    folder = Path(await trusting(tmp_path / "home", address).fetch("run-1", address))
    (folder / "unfinished.txt").write_text("half\n")

    again = Path(await trusting(tmp_path / "home", address).fetch("run-1", address))

    assert again == folder
    assert (again / "unfinished.txt").read_text() == "half\n"


@needs_git
async def test_settings_of_git_that_an_agent_writes_start_no_program(repository: Path, tmp_path: Path) -> None:
    address = f"git+file://{repository}@main"
    workspaces = trusting(tmp_path / "home", address)
    folder, proof = Path(await workspaces.fetch("run-1", address)), tmp_path / "proof"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {proof}\n")
    program.chmod(0o755)
    nested = folder / "nested"
    nested.mkdir()
    git(nested, "init", "--quiet")
    for config in (folder / ".git" / "config", nested / ".git" / "config"):
        with config.open("a") as opened:
            opened.write(f"[core]\n\tfsmonitor = {program}\n\tsshCommand = {program}\n\thooksPath = {tmp_path}\n")
            opened.write(f'[filter "x"]\n\tclean = {program}\n\tsmudge = {program}\n')
    (folder / ".gitattributes").write_text("*.txt filter=x\n")
    for hook in ("pre-push", "post-checkout", "pre-commit"):
        (folder / ".git" / "hooks").mkdir(exist_ok=True)
        shutil.copy(program, folder / ".git" / "hooks" / hook)
    (folder / "changed.txt").write_text("after\n")

    result = await workspaces.hand_back("run-1")

    assert result == f"git+file://{repository}@retinue/run-1"
    assert not proof.exists()
    assert git(repository, "show", "retinue/run-1:changed.txt") == "after\n"


@needs_git
async def test_a_repository_larger_than_a_workspace_is_not_fetched_whole(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "large").write_bytes(os.urandom(8 << 20))
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "large")
    monkeypatch.setattr("retinue.local.git_workspaces.MAX_BYTES", 1 << 20)
    address = f"git+file://{repository}@main"

    with pytest.raises(WorkspaceUnavailable, match="in the repository"):
        await trusting(tmp_path / "home", address).fetch("run-1", address)

    assert max((file.stat().st_size for file in (tmp_path / "home").rglob("*") if file.is_file()), default=0) <= 1 << 20


@needs_git
async def test_a_list_of_files_without_end_is_not_read(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"git+file://{repository}@main"
    workspaces = trusting(tmp_path / "home", address)
    folder = Path(await workspaces.fetch("run-1", address))
    monkeypatch.setattr("retinue.local.git_workspaces.MAX_LISTING", 20_000)
    for number in range(200):
        (folder / f"{number:0200}").touch()

    result = await workspaces.hand_back("run-1")

    assert result is not None
    assert result.startswith("host:")
    assert "too many files, or too long names" in caplog.text


HOOKS = (
    *("pre-receive", "update", "post-receive", "post-update", "reference-transaction", "pre-auto-gc"),
    *("push-to-checkout", "proc-receive", "post-checkout", "post-index-change"),
)


@needs_git
@pytest.mark.parametrize("updates", ["another branch", "the checked out branch"])
async def test_a_repository_of_this_machine_starts_no_program_when_it_is_read_and_written(
    repository: Path, tmp_path: Path, updates: str
) -> None:
    git(repository, "branch", "retinue/run-1")
    address, proof = f"git+file://{repository}@main", tmp_path / "proof"
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $@" >> {proof}\n')
    program.chmod(0o755)
    for folder in (repository / ".git" / "hooks", tmp_path / "hooks"):
        folder.mkdir(exist_ok=True)
        for hook in HOOKS:
            shutil.copy(program, folder / hook)
    other = tmp_path / "other"
    shutil.copytree(repository, other)
    (repository / ".git" / "objects" / "info" / "alternates").write_text(f"{other}/.git/objects\n")
    (repository / ".git" / "info").mkdir(exist_ok=True)
    (repository / ".git" / "info" / "attributes").write_text("*.txt filter=x\n")
    with (repository / ".git" / "config").open("a") as config:
        config.write(f"[core]\n\tfsmonitor = {program}\n\talternateRefsCommand = {program}\n\tpager = {program}\n")
        config.write(f"\thooksPath = {tmp_path}/hooks\n\tsshCommand = {program}\n")
        config.write(f"[uploadpack]\n\tpackObjectsHook = {program}\n[gc]\n\tauto = 1\n\tautoDetach = false\n")
        config.write(f'[filter "x"]\n\tclean = {program}\n\tsmudge = {program}\n[receive]\n\tautogc = true\n')
        config.write("\tdenyCurrentBranch = updateInstead\n")
    if updates == "the checked out branch":
        (repository / ".git" / "HEAD").write_text("ref: refs/heads/retinue/run-1\n")
    workspaces = trusting(tmp_path / "home", address)
    folder = Path(await workspaces.fetch("run-1", address))
    work_in(folder)

    result = await workspaces.hand_back("run-1")

    assert not proof.exists(), proof.read_text()
    assert result is not None
    assert result.startswith(f"git+file://{repository}@" if updates == "another branch" else "host:")


@needs_git
async def test_links_are_stored_as_links_and_never_followed(repository: Path, tmp_path: Path) -> None:
    address = f"git+file://{repository}@main"
    workspaces = trusting(tmp_path / "home", address)
    folder = Path(await workspaces.fetch("run-1", address))
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "key.txt").write_text("secret\n")
    (folder / "kept.txt").unlink()
    (folder / "kept.txt").symlink_to(secrets / "key.txt")
    (folder / "new").symlink_to(secrets)
    (folder / 'odd "name"\\ .txt').write_text("odd\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)

    await workspaces.hand_back("run-1")

    listed = git(repository, "ls-tree", "-r", "-z", "retinue/run-1").split("\0")
    modes = {line.partition("\t")[2]: line.split()[0] for line in listed if line}
    assert modes == {
        ".gitignore": "100644",
        "changed.txt": "100644",
        "kept.txt": "120000",
        "new": "120000",
        'odd "name"\\ .txt': "100644",
        "removed.txt": "100644",
        "run.sh": "100755",
    }
    assert git(repository, "show", "retinue/run-1:kept.txt") == str(secrets / "key.txt")


@needs_git
async def test_a_repository_that_cannot_be_written_leaves_the_folder_and_names_it(
    repository: Path, tmp_path: Path
) -> None:
    address = f"git+file://{repository}@main"
    workspaces = trusting(tmp_path / "home", address)
    folder = Path(await workspaces.fetch("run-1", address))
    work_in(folder)
    shutil.rmtree(repository)

    result = await workspaces.hand_back("run-1")

    assert result is not None
    assert result.startswith("host:")
    assert result.endswith(str(folder))
    assert (folder / "changed.txt").read_text() == "after\n"


@pytest.mark.parametrize("kind", ["file", "memory"])
async def test_the_changes_of_a_tree_are_objects_beside_the_prefix(kind: str, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    address = f"file://{tmp_path}/store/project" if kind == "file" else f"memory://{tmp_path.name}/project"
    system, prefix = fsspec.core.url_to_fs(address)
    for name in ("kept.txt", "changed.txt", "removed.txt", "deep/er/file.txt"):
        system.makedirs(f"{prefix}/{name}".rpartition("/")[0], exist_ok=True)
        system.pipe_file(f"{prefix}/{name}", b"before")
    first, second = trusting(tmp_path / "first", address), trusting(tmp_path / "second", address)

    folder = Path(await first.fetch("run-1", address))
    assert (folder / "deep" / "er" / "file.txt").read_text() == "before"
    (folder / "changed.txt").write_text("after")
    (folder / "removed.txt").unlink()
    (folder / "new").mkdir()
    (folder / "new" / "added.txt").write_text("added")
    (folder / "link").symlink_to("/etc/passwd")
    result = await first.hand_back("run-1")

    assert result == f"{address}.retinue/run-1"
    written = system.find(f"{prefix}.retinue/run-1")
    assert sorted(path.rpartition("run-1/")[2] for path in written) == [
        *(".retinue-deleted.json", "changed.txt", "new/added.txt")
    ]
    assert system.cat_file(f"{prefix}/changed.txt") == b"before"

    again = Path(await second.fetch("run-1", address))
    assert files_in(again) == ["changed.txt", "deep/er/file.txt", "kept.txt", "new/added.txt"]
    assert (again / "changed.txt").read_text() == "after"
    assert await second.hand_back("run-1") == result


async def test_an_address_that_another_process_stored_needs_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a").write_text("x")
    address = f"file://{tmp_path}/store"

    with pytest.raises(WorkspaceUnavailable, match=r"\[tools\] workspaces"):
        await FetchedWorkspaces(tmp_path / "home", allow=("s3://*",)).fetch("run-1", address)
    folder = await FetchedWorkspaces(tmp_path / "home", allow=(f"file://{tmp_path}/*",)).fetch("run-1", address)

    assert os.listdir(folder) == ["a"]


@pytest.mark.parametrize(
    "address", ["git+file:///nowhere/at/all@main", "file:///nowhere/at/all", "nosuch://bucket/x", "shared:///nowhere"]
)
async def test_a_workspace_that_is_not_there_is_unavailable(address: str, tmp_path: Path) -> None:
    with pytest.raises(WorkspaceUnavailable, match=r"workspace|shared folder|git:|nothing"):
        await FetchedWorkspaces(tmp_path, allow=("*",)).fetch("run-1", address)


async def test_a_shared_folder_is_used_as_it_is(tmp_path: Path) -> None:
    workspaces = FetchedWorkspaces(tmp_path / "home", allow=("shared://*",))

    assert await workspaces.fetch("run-1", f"shared://{tmp_path}") == str(tmp_path)
    assert await workspaces.hand_back("run-1") is None


@pytest.mark.parametrize(
    "text",
    [
        "git+ext://sh -c x@main",
        "git://host/repo",
        "git+https://host",
        "git+https://host/repo@--upload-pack=x",
        "git+https://-oProxyCommand=x/repo@main",
        "git+https://host/repo@a..b",
        "simplecache::s3://bucket/x",
        "s3+x://bucket/x",
        "s3://",
        "shared://relative",
        "shared:///mnt/../etc",
        "a\n://b",
        "://x",
    ],
)
def test_an_address_that_names_no_workspace_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_workspace(text)


@needs_git
@pytest.mark.parametrize(
    "address", ["git+https://me:hidden@h/r@main", "git+ssh://me:hidden@h/r", "git+https://:hidden@h/r"]
)
def test_an_address_with_a_password_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(BadInput, match="credential helpers") as refused:
        parse_workspace(address)

    assert "hidden" not in str(refused.value)
    parse_workspace("git+ssh://git@[::1]:22/team/site.git")


async def test_git_starts_no_ssh_that_an_agent_has_put_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, own = tmp_path / "project", tmp_path / "own"
    for folder in (project / "bin", own):
        folder.mkdir(parents=True)
        (folder / "ssh").write_text(f"#!/bin/sh\necho {folder} >> {tmp_path}/started\nexit 1\n")
        (folder / "ssh").chmod(0o755)
    monkeypatch.chdir(project)
    monkeypatch.setenv("PATH", f"{project}/bin:{own}:{os.environ['PATH']}")
    address = "git+ssh://git@host.invalid/repository.git@main"

    with pytest.raises(WorkspaceUnavailable):
        await trusting(tmp_path / "home", address).fetch("root", address)

    assert set((tmp_path / "started").read_text().splitlines()) == {str(own)}
