"""Tool calls that the person at a chat makes: `!command` and `@file`, within the policy of the chat's agent."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from retinue.app.launch.start import Launch
from retinue.app.retinue import Retinue
from retinue.core.errors import RunIsOver
from retinue.core.ids import RunId
from retinue.core.inbox import Close
from retinue.core.ports import HostedCall, ToolResult
from retinue.core.run import HOST
from retinue.tools.files import Undone, undo

SHELL, FILE_READ = "shell", "file_read"

LABEL = f"{HOST}:chat"
"""Label of the run in whose name the calls are made."""


class PersonCalls:
    """Calls of `shell` and `file_read` by a person, with the workspace, policy and sandbox of the agent.

    A call that the policy refuses is refused. One that needs approval is made: it is the person's
    own. The calls belong to a run of their own, which is started with the first one.
    """

    def __init__(self, retinue: Retinue, launch: Launch) -> None:
        self._retinue = retinue
        self._agent = launch.options.agent
        self._run_id: RunId | None = None

    async def run_command(self, command: str) -> ToolResult:
        """Run a shell command; a refusal or a failure is a result, too."""
        return await self._call(SHELL, {"command": command})

    async def read_file(self, path: str) -> ToolResult:
        """The lines of a text file with their numbers, as many as `file_read` returns at once."""
        return await self._call(FILE_READ, {"path": path})

    def undo_files(self) -> list[Undone]:
        """Undo what the file tools have changed since the latest `FileChanges.begin`; empty if that is nothing."""
        return undo(self._retinue.file_changes.take_latest())

    async def close(self) -> None:
        """End the run of these calls."""
        if self._run_id is not None:
            with suppress(RunIsOver):
                await self._retinue.supervisor.post(self._run_id, Close(key="close"), durable=True)
            await self._retinue.wait(self._run_id)

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        if self._run_id is None:
            self._run_id = await self._retinue.host(
                dialects=(), agent=self._agent, tools=(SHELL, FILE_READ), label=LABEL
            )
        return await self._retinue.supervisor.call_for_host(
            self._run_id,
            name,
            msgspec.json.encode(arguments).decode(),
            key=f"{self._run_id}/{self._retinue.supervisor.new_id()}",
            host=HostedCall(approved=True),
            again=False,
        )
