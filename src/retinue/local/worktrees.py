"""Worktrees: a commit in a folder for one run, its changes handed back as a branch, listed, applied and removed.

A worktree is the last commit of a repository in a folder of this machine, for one run and those below it. Nothing is
started in that repository, and its settings are not read: agents can write them. Its objects and branches are taken
over file by file, through descriptors and never through a link, and the result is put beside them as a pack and a
branch. What a worktree has changed stays in the state folder until it is removed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from retinue.core.errors import BadInput
from retinue.core.log_context import logger
from retinue.core.workspace import WorkspaceUnavailable, Worktree, branch_of, parse_workspace
from retinue.local.git_workspaces import RESULT, Git, GitProgram, GitSource
from retinue.local.repository_files import (
    TreeEntry,
    opened_folder,
    put_branch,
    read_entry,
    remove_folder,
    take_over,
    write_entry,
)
from retinue.local.workspace_folders import FetchedWorkspace, WorkspacePlace

log = logger("retinue.local")

MAX_FILE: Final = 64 * 1024**2
"""Bytes of one file that changes are applied to."""

MAX_APPLIED: Final = 512 * 1024**2
"""Bytes of all changed files that are applied at once: all are in memory before the first is written."""

_NAME: Final = re.compile(r"wt-[0-9a-f]{16}")
_DIFF: Final = ("--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/")


class WorktreeSource(GitSource):
    """The last commit of the repository in a folder; the changes become a branch there, and are kept here, too."""

    def fetch(self) -> FetchedWorkspace:
        try:
            return super().fetch()
        finally:
            shutil.rmtree(self._taken_over, ignore_errors=True)

    def _origin(self) -> tuple[str, str]:
        assert isinstance(self._workspace, Worktree)
        folder = Path(self._workspace.folder)
        if self._place.folder.resolve().is_relative_to(folder.resolve()):
            raise WorkspaceUnavailable(f"the state folder lies in {folder}: keep it elsewhere (RETINUE_HOME)")
        self._git.run("init", "--quiet", "--bare", str(self._taken_over), bare=False)
        take_over(folder, self._taken_over)
        return str(self._taken_over), "HEAD"

    @property
    def _taken_over(self) -> Path:
        return self._place.repository.with_suffix(".source")

    def check_out_again(self, known: FetchedWorkspace) -> bool:
        commit = self._git.run("rev-parse", "--verify", RESULT if known.changed else known.commit).strip()
        (self._place.repository / "index").unlink(missing_ok=True)
        # Another folder than before: a path that leads to another folder all at once is not trusted.
        for left in self._place.folder.parent.glob(f"{self._place.name}.*"):
            remove_folder(left)
        name = f"{self._place.name}.{secrets.token_hex(4)}"
        self._place.folder = self._place.folder.with_name(name)
        self._check_out(commit, self._place.folder)
        self._place.remember(msgspec.structs.replace(known, folder=name))
        return True

    def hand_back(self, known: FetchedWorkspace) -> str | None:
        changed = self._commit(known)
        if changed != known.changed:
            self._place.remember(msgspec.structs.replace(known, changed=changed))
        if not changed:
            return None
        assert isinstance(self._workspace, Worktree)
        folder = self._workspace.folder
        with tempfile.TemporaryDirectory(dir=self._place.repository) as scratch:
            with tempfile.TemporaryFile() as wanted:
                wanted.write(f"{RESULT}\n^{known.commit}\n".encode())
                wanted.seek(0)
                digest = self._git.run("pack-objects", "--quiet", "--revs", f"{scratch}/pack", stream=wanted).strip()
            commit = self._git.run("rev-parse", "--verify", RESULT).strip()
            try:
                put_branch(Path(folder), Path(scratch) / f"pack-{digest}", self._branch, commit)
            except OSError as error:
                log.warning("the branch %s cannot be put into %s: %s", self._branch, folder, error)
                return f"git+file://{self._place.repository}@{RESULT.removeprefix('refs/heads/')}"
        return f"git+file://{folder}@{self._branch}"

    @property
    def _subject(self) -> str:
        return f"worktree {self._place.name}"


def _too_large(view: WorktreeView, what: str) -> BadInput:
    size = f"{MAX_APPLIED / 1024**2:g} MiB"
    return BadInput(f"{what} more than {size}: take the changes over with git merge {view.branch}")


def readable_text(text: str) -> str:
    """A text of git for people, models and JSON, with marks in place of bytes that are no UTF-8.

    >>> readable_text("caf\\udce9")
    'caf\ufffd'
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class WorktreeView(Struct, frozen=True):
    """A worktree as `retinue worktrees` shows it; `state` is `changed`, `working` or `unchanged`."""

    name: str
    repository: str
    branch: str
    base: str
    files: int
    state: str
    folder: str
    changed_at: float


class Applied(Struct, frozen=True):
    """What applying changes has done: files that were written or removed, and those in the way."""

    written: tuple[str, ...]
    conflicts: tuple[str, ...]


class Worktrees:
    """The worktrees that the processes of a state folder have made."""

    def __init__(self, home: Path, git: GitProgram) -> None:
        self._home = home
        self._git = git

    def list(self) -> list[WorktreeView]:
        """All of them, newest first."""
        records = (self._home / "workspaces").glob("wt-*.json")
        found = [view for record in records if (view := self._view(record.stem)) is not None]
        return sorted(found, key=lambda view: view.changed_at, reverse=True)

    def _view(self, name: str) -> WorktreeView | None:
        known = self._known(name)
        if known is None:
            return None
        place, parsed = WorkspacePlace(self._home, name), parse_workspace(known.workspace)
        is_there = place.folder.is_dir()
        return WorktreeView(
            name=name,
            repository=parsed.folder if isinstance(parsed, Worktree) else "",
            branch=branch_of(name),
            base=known.commit,
            files=known.changed,
            state="working" if is_there else "changed" if known.changed else "unchanged",
            folder=str(place.folder) if is_there else "",
            changed_at=place.record.stat().st_mtime,
        )

    def _known(self, name: str) -> FetchedWorkspace | None:
        return WorkspacePlace(self._home, name).known() if _NAME.fullmatch(name) else None

    def find(self, name: str) -> WorktreeView:
        """The worktree of that name, of its branch, or with a name that begins so; raises `BadInput`."""
        wanted = name.removeprefix(f"{branch_of('')}")
        found = [view for view in self.list() if view.name.removeprefix("wt-").startswith(wanted.removeprefix("wt-"))]
        if len(found) != 1 or not wanted:
            known = ", ".join(view.name for view in self.list()[:20]) or "none"
            raise BadInput(f"there is no worktree {name!r}; known: {known}")
        return found[0]

    def patch(self, view: WorktreeView, *, binary: bool = True, longest: int | None = None) -> str:
        """The changes that were handed back, as `git apply` reads them; at most `longest` bytes."""
        if not view.files:
            return ""
        words = ("diff", *_DIFF, *(("--binary", "--full-index") if binary else ()), view.base, RESULT)
        return self._run(view, *words, longest=longest)

    def remove(self, view: WorktreeView, *, force: bool = False) -> None:
        """Remove what the state folder has of a worktree; a branch in the repository stays."""
        if view.folder and not force:
            raise BadInput(f"{view.name} has a folder, {view.folder}: a run may work there; --force removes it")
        WorkspacePlace(self._home, view.name).clear()

    def apply(self, view: WorktreeView, folder: Path) -> Applied:
        """Apply the changes to the files of a folder (its real path): all of them, or none if one is in the way.

        A file that has changed in both places is merged if it is text. git is not started in the folder. Raises
        `BadInput` for changes that are too large.
        """
        plan: dict[str, TreeEntry | None] = {}
        size = 0
        conflicts: list[str] = []
        with opened_folder(folder) as top:
            for path, before, after in self._changes(view):
                size += 0 if after is None else len(after.content)
                if size > MAX_APPLIED:
                    raise _too_large(view, "the changed files have")
                try:
                    now = read_entry(top, path, longest=MAX_FILE)
                except OSError:
                    conflicts.append(path)
                    continue
                if now == after:
                    continue
                merged = after if now == before else self._merged(before, now, after)
                if merged is None and now != before:
                    conflicts.append(path)
                else:
                    plan[path] = merged
            if conflicts:
                return Applied((), tuple(conflicts))
            for path, entry in plan.items():
                write_entry(top, path, entry)
        return Applied(tuple(plan), ())

    def _changes(self, view: WorktreeView) -> Iterator[tuple[str, TreeEntry | None, TreeEntry | None]]:
        """Each changed path with what was there, and what is there now."""
        words = self._run(view, "diff-tree", "-r", "-z", "--raw", "--no-renames", view.base, RESULT).split("\0")
        for facts, path in zip(words[0::2], words[1::2], strict=False):
            mode_before, mode_after, before, after, _ = facts.lstrip(":").split(" ")
            yield path, self._entry(view, path, mode_before, before), self._entry(view, path, mode_after, after)

    def _entry(self, view: WorktreeView, path: str, mode: str, name: str) -> TreeEntry | None:
        if not name.strip("0"):
            return None
        content = self._run(view, "cat-file", "blob", name, longest=MAX_APPLIED + 1).encode("utf-8", "surrogateescape")
        if len(content) > MAX_APPLIED:
            raise _too_large(view, f"{readable_text(path)} has")
        return TreeEntry(mode, content)

    def _merged(self, before: TreeEntry | None, now: TreeEntry | None, after: TreeEntry | None) -> TreeEntry | None:
        """A file with the changes of both; None if they are in the way of each other."""
        if before is None or now is None or after is None or len({before.mode, now.mode, after.mode}) > 1:
            return None
        if before.mode == "120000" or any(b"\0" in entry.content for entry in (before, now, after)):
            return None
        with tempfile.TemporaryDirectory() as scratch:
            for name, entry in (("now", now), ("before", before), ("after", after)):
                (Path(scratch) / name).write_bytes(entry.content)
            ended = subprocess.run(
                [self._git.path, "merge-file", "--stdout", "--quiet", "now", "before", "after"],
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env={"PATH": os.defpath, "GIT_CEILING_DIRECTORIES": scratch, "GIT_CONFIG_NOSYSTEM": "1"},
                timeout=60,
            )
        return TreeEntry(now.mode, ended.stdout) if ended.returncode == 0 else None

    def _run(self, view: WorktreeView, *words: str, longest: int | None = None) -> str:
        return Git(self._git, WorkspacePlace(self._home, view.name).repository).run(*words, longest=longest)
