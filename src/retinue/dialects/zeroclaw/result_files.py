"""Result files of background tasks: `<workspace>/delegate_results/<task id>.json`, written atomically.

A file is a copy of the stored result, for people and for `jq`. It is written under a temporary name and renamed, in a
folder that is held open and is no symbolic link.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from retinue.core.text import NOT_JSON
from retinue.tools.path_walk import WorkspaceRefused, Workspaces

FOLDER = "delegate_results"

Status = Literal["Running", "Completed", "Failed", "Cancelled"]
STATUSES: dict[str, Status] = {
    "running": "Running",
    "completed": "Completed",
    "failed": "Failed",
    "cancelled": "Cancelled",
}

TASK_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MAX_BYTES = 64 * 1024 * 1024
"""A larger file was not written by retinue, and is not read."""

STALE_SECONDS = 60.0
"""The age from which a temporary file is left over from a process that is gone."""

_LOOK = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)


class TaskResult(Struct, frozen=True, kw_only=True):
    """The content of a file, with its fields in order."""

    task_id: str
    agent: str
    status: Status
    output: str | None = None
    error: str | None = None
    started_at: str
    finished_at: str | None = None

    @property
    def text(self) -> str:
        """The file's content.

        >>> print(TaskResult(task_id="t", agent="a", status="Running", started_at="2026-02-20T14:30:00Z").text)
        {
          "task_id": "t",
          "agent": "a",
          "status": "Running",
          "output": null,
          "error": null,
          "started_at": "2026-02-20T14:30:00Z",
          "finished_at": null
        }
        """
        return pretty(self)


class _Written(Struct, frozen=True, kw_only=True):
    """A file as another program may have written it."""

    task_id: str
    agent: str = ""
    status: str
    output: str | None = None
    error: str | None = None
    started_at: str = ""
    finished_at: str | None = None


def pretty(value: object) -> str:
    """JSON on several lines, as the files and the answers have it."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


class ResultFolder:
    """The folder with the results of a workspace. Raises `OSError` if the folder or a file cannot be used."""

    def __init__(self, workspace: str, workspaces: Workspaces | None = None) -> None:
        self.workspace = os.path.abspath(workspace or os.curdir)
        self._workspaces = workspaces or Workspaces()

    @property
    def path(self) -> str:
        return os.path.join(self.workspace, FOLDER)

    def prepare(self) -> None:
        """Create the folder, if there is none."""
        with self._errors_mapped():
            self._workspaces.make(self.workspace)
        with self._folder(make=True):
            pass

    def read(self, task_id: str) -> TaskResult | None:
        """The result in the file of a task; None if there is no valid file."""
        with suppress(OSError), self._folder() as folder:
            return _read(folder, task_id)
        return None

    def all(self) -> list[TaskResult]:
        """The results in all valid files, oldest task first."""
        results: list[TaskResult] = []
        with suppress(OSError), self._folder() as folder:
            results = [result for task_id in _task_ids(folder) if (result := _read(folder, task_id)) is not None]
        return sorted(results, key=lambda result: (result.started_at, result.task_id))

    def write(self, result: TaskResult, *, new: bool = False) -> None:
        """Write a result atomically; a `new` one only if there is no file yet."""
        with self._folder(make=True) as folder:
            name, temporary = f"{result.task_id}.json", f".{result.task_id}.{secrets.token_hex(8)}.tmp"
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666, dir_fd=folder)
            try:
                with open(fd, "wb") as file:
                    file.write(result.text.encode())
                if new:
                    with suppress(FileExistsError):
                        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                else:
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)

    def sweep(self) -> None:
        """Remove the temporary files of processes that are gone."""
        with suppress(OSError), self._folder() as folder:
            for name in os.listdir(folder):
                if name.startswith(".") and name.endswith(".tmp") and TASK_ID.fullmatch(name[1:37]):
                    with suppress(OSError):
                        if time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > STALE_SECONDS:
                            os.unlink(name, dir_fd=folder)

    @contextmanager
    def _folder(self, *, make: bool = False) -> Generator[int]:
        """The folder, held open, so that files go there even if its name is replaced by a link meanwhile."""
        with self._errors_mapped():
            workspace = self._workspaces.open(self.workspace).descriptor
        if workspace is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if make:
            with suppress(FileExistsError):
                os.mkdir(FOLDER, dir_fd=workspace.number)
        folder = os.open(FOLDER, _LOOK | _NO_LINK, dir_fd=workspace.number)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _errors_mapped(self) -> Generator[None]:
        try:
            yield
        except WorkspaceRefused as refused:
            raise PermissionError(errno.EACCES, str(refused)) from refused


def _task_ids(folder: int) -> Iterator[str]:
    for name in os.listdir(folder):
        task_id, dot, kind = name.partition(".")
        if dot and kind == "json" and TASK_ID.fullmatch(task_id):
            yield task_id


def _read(folder: int, task_id: str) -> TaskResult | None:
    """The content of a valid file, with the status in upper or lower case."""
    try:
        written = msgspec.json.decode(_body(folder, f"{task_id}.json"), type=_Written)
    except (OSError, *NOT_JSON):
        return None
    status = STATUSES.get(written.status.lower())
    if status is None or written.task_id != task_id:
        return None
    return msgspec.convert(asdict(written) | {"status": status}, TaskResult)


def _body(folder: int, name: str) -> bytes:
    """The content of a regular file of at most `MAX_BYTES`; empty for anything else."""
    fd = os.open(name, os.O_RDONLY | _NO_LINK | _NO_WAIT, dir_fd=folder)
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_BYTES:
        os.close(fd)
        return b""
    with open(fd, "rb") as file:
        return file.read(MAX_BYTES)
