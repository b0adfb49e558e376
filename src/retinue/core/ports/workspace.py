"""The port for workspaces that are fetched: a folder of this process for a tree, and the way back."""

from __future__ import annotations

from typing import Protocol

from retinue.core.ids import RunId


class WorkspaceFolders(Protocol):
    """Folders with the content of fetched workspaces, one for each tree that this process drives."""

    async def fetch(self, root_id: RunId, workspace: str) -> str:
        """The folder of a tree, fetched if it is not there; raises `WorkspaceUnavailable`."""
        ...

    async def hand_back(self, root_id: RunId) -> str | None:
        """Hand back what a tree has changed so far; the address of the result, None if nothing changed.

        If that is not possible, the result names the folder, which then stays.
        """
        ...

    def release(self, root_id: RunId) -> None:
        """Begin to remove the folder of a tree that has ended, unless its changes could not be handed back."""
        ...
