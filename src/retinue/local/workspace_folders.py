"""The folders of fetched workspaces: what is remembered beside each, and the files in it up to a size."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from retinue.core.workspace import WorkspaceUnavailable
from retinue.local.private_folder import create_private
from retinue.local.repository_files import is_repository, remove_folder

MAX_FILES: Final = 50_000
MAX_ENTRIES: Final = 200_000
"""Files and folders of a commit that is checked out, and of a folder that is handed back."""
MAX_DEPTH: Final = 100
"""Folders in one another."""
MAX_LISTING: Final = 256 * 1024**2
"""Bytes of their names."""
MAX_BYTES: Final = 4 * 1024**3
MAX_FILE_BYTES: Final = 512 * 1024**2


class FetchedWorkspace(Struct):
    """What is remembered of a fetched workspace: its address, how it looked, and the changes of a worktree."""

    workspace: str
    commit: str = ""
    digests: dict[str, str] = {}
    changed: int = 0
    """Files in the result of a worktree."""
    folder: str = ""
    """The name of the folder, where it is not that of the place."""


class WorkspaceSource(Protocol):
    """Where the files of a workspace come from and go to."""

    def fetch(self) -> FetchedWorkspace:
        """Fetch the files into the folder."""
        ...

    def check_out_again(self, known: FetchedWorkspace) -> bool:
        """Make the folder anew with what was handed back; False where it has to be fetched."""
        ...

    def hand_back(self, known: FetchedWorkspace) -> str | None:
        """The address of the changes, None without changes."""
        ...


class WorkspacePlace:
    """The folder of a tree's workspace, and beside it what only this process may write."""

    def __init__(self, home: Path, name: str) -> None:
        self.name = name
        self.repository = home / "workspaces" / f"{name}.git"
        self.record = home / "workspaces" / f"{name}.json"
        known = self.known()
        self.folder = Path(f"{home}-workspaces") / ((known and known.folder) or name)

    def known(self) -> FetchedWorkspace | None:
        try:
            return msgspec.json.decode(self.record.read_bytes(), type=FetchedWorkspace)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def remember(self, fetched: FetchedWorkspace) -> None:
        """Written last: it means that the folder is complete."""
        half = self.record.with_suffix(".new")
        half.write_bytes(msgspec.json.encode(fetched))
        half.replace(self.record)

    def clear(self) -> None:
        self.record.unlink(missing_ok=True)
        shutil.rmtree(self.repository, ignore_errors=True)
        remove_folder(self.folder)
        for folder in (self.folder, self.repository):
            create_private(folder.parent)

    def release(self) -> None:
        """Remove the folder, and all else unless a worktree has changes: these stay until they are removed."""
        known = self.known()
        if known is not None and known.changed:
            remove_folder(self.folder)
        else:
            self.clear()


class WorkspaceEntry(Struct, frozen=True):
    """A file or link of a workspace, in a folder that is held open: nothing on its path can become a link meanwhile."""

    path: str
    name: str
    folder: int
    is_link: bool
    is_program: bool

    def read(self) -> bytes:
        """The content of a file, or the target of a link."""
        if self.is_link:
            return os.readlink(os.fsencode(self.name), dir_fd=self.folder)
        descriptor = os.open(self.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.folder)
        with open(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise WorkspaceUnavailable(f"{self.path} is not a file any more")
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise WorkspaceUnavailable(f"the file {self.path} has more than {MAX_FILE_BYTES // 1024**2} MiB")
        return content


def folder_entries(folder: Path) -> Iterator[WorkspaceEntry]:
    """Files and links below a folder, without repositories: neither its own `.git` nor nested ones."""
    count = seen = 0
    for parent, folders, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        above = os.path.relpath(parent, folder)
        seen += len(folders) + len(names)
        if above.count("/") >= MAX_DEPTH or seen > MAX_ENTRIES:
            raise WorkspaceUnavailable(f"it has too deep folders, or more than {MAX_ENTRIES} files and folders")
        if above != "." and any(map(is_repository, (*folders, *names))):
            folders[:] = []
            continue
        folders[:] = sorted(name for name in folders if not is_repository(name))
        for name in sorted((*(name for name in names if not is_repository(name)), *folders)):
            kind = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            if stat.S_ISREG(kind) or stat.S_ISLNK(kind):
                count += 1
                if count > MAX_FILES:
                    raise WorkspaceUnavailable(f"it has more than {MAX_FILES} files")
                path = name if above == "." else f"{above}/{name}"
                yield WorkspaceEntry(path, name, descriptor, stat.S_ISLNK(kind), bool(kind & stat.S_IXUSR))
