"""Workspaces from git repositories and object stores, fetched into folders of this machine and handed back.

The changes of a tree go to a branch or a prefix of its own, `retinue/ROOT`, so that nothing of others is overwritten. A
tree that is taken over by another machine begins with what was handed back last.
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from retinue.core.errors import BadInput
from retinue.core.log_context import logger
from retinue.core.workspace import (
    GitRef,
    LocalFolder,
    ObjectPrefix,
    SharedFolder,
    Workspace,
    WorkspaceUnavailable,
    Worktree,
    host_tag,
    is_allowed,
    parse_workspace,
)
from retinue.local.workspace_folders import WorkspacePlace, WorkspaceSource

if TYPE_CHECKING:
    from retinue.local.git_workspaces import GitProgram

log = logger("retinue.local")

_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


class FetchedWorkspaces:
    """A `core.ports.WorkspaceFolders` of the state folder `home`; without one, in a temporary folder.

    The files are in a folder beside it, because no agent may read the state folder; what belongs to them is in it.
    Addresses that this process was given by its own caller are fetched (`trust`); one that another process has stored
    only if a pattern of `allow` matches.
    """

    def __init__(self, home: Path | None, *, allow: Sequence[str] = (), agents_write: Sequence[str] = ()) -> None:
        self._home = home
        self._allow = tuple(allow)
        self._agents_write = agents_write
        self._trusted: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._in_use: set[str] = set()
        self._removals: dict[str, asyncio.Future[None]] = {}
        self._kept: set[str] = set()
        """Places whose changes could not be handed back."""

    def trust(self, workspace: str) -> None:
        """Fetch this address: the caller of this process has named it. Raises `BadInput` if it is none."""
        if isinstance(parse_workspace(workspace), ObjectPrefix):
            from retinue.local.object_workspaces import imported_fsspec

            imported_fsspec()
        self._trusted.add(workspace)

    async def check(self, workspace: str) -> None:
        await asyncio.to_thread(self._check, workspace)

    async def fetch(self, place: str, workspace: str) -> str:
        if (removal := self._removals.get(place)) is not None:  # a run goes on that has just ended
            await asyncio.wait((removal,))
        async with self._locks.setdefault(place, asyncio.Lock()):
            folder = await asyncio.to_thread(self._fetch, place, workspace)
        self._in_use.add(place)
        return folder

    async def hand_back(self, place: str) -> str | None:
        async with self._locks.setdefault(place, asyncio.Lock()):
            return await asyncio.to_thread(self._hand_back, place)

    def release(self, place: str) -> None:
        self._in_use.discard(place)
        self._locks.pop(place, None)
        if place not in self._kept:
            removal = asyncio.get_running_loop().run_in_executor(None, self._place(place).release)
            self._removals[place] = removal
            removal.add_done_callback(lambda _: self._removals.pop(place, None))

    async def close(self) -> None:
        """Hand back what unfinished trees have changed, because another process goes on with them."""
        await asyncio.gather(*map(self.hand_back, tuple(self._in_use)))
        await asyncio.gather(*self._removals.values(), return_exceptions=True)

    @property
    def home(self) -> Path:
        """The state folder, or the temporary one."""
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="retinue-")) / "home"
        return self._home

    def _check(self, workspace: str) -> Workspace:
        """The parsed workspace, if this process can fetch it."""
        try:
            parsed = parse_workspace(workspace)
            # The folder of a worktree is one of this machine, like that of a run without a worktree.
            is_known = isinstance(parsed, Worktree) or workspace in self._trusted
            if not is_known and not is_allowed(workspace, self._allow):
                raise WorkspaceUnavailable(
                    f"the workspace {workspace} is not fetched by this process: "
                    "add a pattern for it to [tools] workspaces"
                )
            match parsed:
                case SharedFolder(path=path):
                    if not Path(path).is_dir():
                        raise WorkspaceUnavailable(f"the shared folder {path} does not exist on this machine")
                case GitRef() | Worktree():
                    _ = self.git
                case ObjectPrefix():
                    from retinue.local.object_workspaces import imported_fsspec

                    imported_fsspec()
                case LocalFolder():
                    pass
        except (OSError, BadInput) as error:
            raise WorkspaceUnavailable(f"the workspace {workspace} cannot be fetched: {error}") from error
        return parsed

    def _fetch(self, name: str, workspace: str) -> str:
        parsed = self._check(workspace)
        if isinstance(parsed, SharedFolder):
            return parsed.path
        try:
            place = self._place(name)
            known = place.known()
            if known is not None and known.workspace == workspace and place.folder.is_dir():
                return str(place.folder)
            source = self._source(parsed, place)
            if known is not None and known.workspace == workspace and source.check_out_again(known):
                return str(place.folder)
            place.clear()
            place.remember(msgspec.structs.replace(source.fetch(), workspace=workspace))
        except (OSError, BadInput) as error:
            raise WorkspaceUnavailable(f"the workspace {workspace} cannot be fetched: {error}") from error
        return str(place.folder)

    def _hand_back(self, name: str) -> str | None:
        place = self._place(name)
        known = place.known()
        if known is None:
            return None
        try:
            result = self._source(parse_workspace(known.workspace), place).hand_back(known)
        except (OSError, WorkspaceUnavailable, BadInput) as error:
            kept = f"{host_tag(platform.node())}:{place.folder}"
            log.warning("the workspace of %s is not handed back and stays at %s: %s", name, kept, error)
            self._kept.add(name)
            return kept
        self._kept.discard(name)
        return result

    def _place(self, name: str) -> WorkspacePlace:
        return WorkspacePlace(
            self.home, name if _PLAIN_ID.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()
        )

    def _source(self, workspace: object, place: WorkspacePlace) -> WorkspaceSource:
        # Most trees work in a folder of this machine: the modules of fetched workspaces are imported for those alone.
        match workspace:
            case GitRef():
                from retinue.local.git_workspaces import GitSource

                return GitSource(workspace, place, self.git)
            case Worktree():
                from retinue.local.worktrees import WorktreeSource

                return WorktreeSource(workspace, place, self.git)
            case ObjectPrefix():
                from retinue.local.object_workspaces import ObjectSource

                return ObjectSource(workspace, place)
            case _:
                raise BadInput("only git repositories and object stores are fetched")

    @property
    def git(self) -> GitProgram:
        """git, where no agent can have placed it; raises `WorkspaceUnavailable` if there is none."""
        from retinue.local.git_workspaces import git_program

        return git_program(self._agents_write)
