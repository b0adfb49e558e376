"""The port for workspaces that are fetched: a folder of this process for a tree or a worktree, and the way back."""

from __future__ import annotations

from typing import Protocol


class WorkspaceFolders(Protocol):
    """Folders with the content of fetched workspaces, one for each tree or worktree that this process drives.

    `place` is the name of `core.workspace.place_of`.
    """

    async def check(self, workspace: str) -> None:
        """Raise `WorkspaceUnavailable` if this process may not fetch the workspace, or lacks what that needs.

        Nothing is fetched, and no other machine is asked.
        """
        ...

    async def fetch(self, place: str, workspace: str) -> str:
        """The folder of that name, fetched if it is not there; raises `WorkspaceUnavailable`."""
        ...

    async def hand_back(self, place: str) -> str | None:
        """Hand back what was changed there so far; the address of the result, None if nothing changed.

        If that is not possible, the result names the folder, which then stays.
        """
        ...

    def release(self, place: str) -> None:
        """Begin to remove the folder of a work that has ended, unless its changes could not be handed back."""
        ...
