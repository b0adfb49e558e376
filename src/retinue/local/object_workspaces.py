"""Workspaces from object stores: the objects of a prefix, and what a tree changed goes to a prefix beside it."""

from __future__ import annotations

import hashlib
from importlib import import_module
from typing import Any, Final, Protocol, cast

import msgspec

from retinue.core.errors import BadInput
from retinue.core.workspace import ObjectPrefix, WorkspaceUnavailable
from retinue.local.workspace_folders import MAX_BYTES, MAX_FILES, FetchedWorkspace, WorkspacePlace, folder_entries

_DELETED: Final = ".retinue-deleted.json"
"""Among handed-back objects: the names of those that the tree has deleted."""


class _FileSystem(Protocol):
    """The part of `fsspec.AbstractFileSystem` that is used."""

    def find(self, path: str, *, detail: bool) -> dict[str, dict[str, Any]]: ...
    def get_file(self, rpath: str, lpath: str) -> None: ...
    def pipe_file(self, path: str, value: bytes) -> None: ...
    def cat_file(self, path: str) -> bytes: ...
    def exists(self, path: str) -> bool: ...
    def makedirs(self, path: str, *, exist_ok: bool) -> None: ...


class ObjectSource:
    """Objects below a prefix; those that a tree changed go to the prefix with `.retinue/ROOT` behind it."""

    def __init__(self, workspace: ObjectPrefix, place: WorkspacePlace) -> None:
        self._workspace = workspace
        self._place = place
        self._results = f"{workspace.url}.retinue/{place.name}"
        fsspec = imported_fsspec()
        try:
            system, self._prefix = fsspec.core.url_to_fs(workspace.url)
            self._system = cast("_FileSystem", system)
            self._results_path = cast("str", fsspec.core.url_to_fs(self._results)[1])
        except (ValueError, ImportError) as error:
            raise BadInput(f"the workspace {workspace.url}: {error}") from error

    def fetch(self) -> FetchedWorkspace:
        self._place.folder.mkdir(mode=0o700)
        self._download(self._prefix)
        digests = {each.path: _digest(each.read()) for each in folder_entries(self._place.folder)}
        if not digests and not self._system.exists(self._prefix):
            raise WorkspaceUnavailable(f"there is nothing at {self._workspace.url}")
        self._download(self._results_path, without=_DELETED)
        deleted = f"{self._results_path}/{_DELETED}"
        if self._system.exists(deleted):
            for name in msgspec.json.decode(self._system.cat_file(deleted), type=list[str]):
                (self._place.folder / _checked(name)).unlink(missing_ok=True)
        return FetchedWorkspace("", "", digests)

    def check_out_again(self, known: FetchedWorkspace) -> bool:
        return False

    def hand_back(self, known: FetchedWorkspace) -> str | None:
        deleted = set(known.digests)
        changed = 0
        for entry in folder_entries(self._place.folder):
            if entry.is_link:
                continue
            deleted.discard(entry.path)
            content = entry.read()
            if known.digests.get(entry.path) != _digest(content):
                changed += 1
                target = f"{self._results_path}/{entry.path}"
                self._system.makedirs(target.rpartition("/")[0], exist_ok=True)
                self._system.pipe_file(target, content)
        if not changed and not deleted:
            return None
        self._system.makedirs(self._results_path, exist_ok=True)
        self._system.pipe_file(f"{self._results_path}/{_DELETED}", msgspec.json.encode(sorted(deleted)))
        return self._results

    def _download(self, prefix: str, *, without: str = "") -> None:
        if not self._system.exists(prefix):
            return
        found = self._system.find(prefix, detail=True)
        if len(found) > MAX_FILES or sum(int(each.get("size") or 0) for each in found.values()) > MAX_BYTES:
            raise WorkspaceUnavailable(f"it has more than {MAX_FILES} objects or {MAX_BYTES // 1024**3} GiB")
        for path in found:
            name = path[len(prefix) :].lstrip("/") if path.startswith(prefix) else ""
            if name and name != without:
                target = self._place.folder / _checked(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                self._system.get_file(path, str(target))


def _checked(name: str) -> str:
    """The name of an object as a relative path; raises `WorkspaceUnavailable` if it would leave the folder."""
    if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise WorkspaceUnavailable(f"the object {name!r} has a name that is no relative path")
    return name


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def imported_fsspec() -> Any:
    """The package `fsspec`; raises `BadInput` where it is not installed."""
    try:
        fsspec = import_module("fsspec")
        import_module("fsspec.core")
    except ImportError as error:
        raise BadInput(f"a workspace in an object store needs fsspec ({error}): install retinue[workspaces]") from error
    return fsspec
