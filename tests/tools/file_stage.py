"""What the tests of built-in tools share: a kit that reaches nothing, and calls as the engine makes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from retinue.core.commands import Decide, WriteResult
from retinue.core.errors import ToolError
from retinue.core.ids import Key, SessionId
from retinue.core.policy import Policy
from retinue.core.ports import CallContext, Ended, Program, Tool, ToolResult
from retinue.tools.dependencies import ToolDependencies


class NoSandbox:
    """A sandbox that nobody should need here."""

    async def run(self, program: Program) -> Ended:
        raise AssertionError(f"no program was to be started: {program.argv}")


class NoKeyValue:
    """A shelf that nobody should need here."""

    async def look(self, space: str) -> Mapping[str, bytes]:
        raise AssertionError(space)

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        raise AssertionError(space)


class Noon:
    """A clock that stands still."""

    def now(self) -> float:
        return 1767268800.0


def dependencies(*, home: Path | None = None, settings: tuple[Path, ...] = ()) -> ToolDependencies:
    """A kit for tools that use only the file system."""
    return ToolDependencies(sandbox=NoSandbox(), key_value=NoKeyValue(), clock=Noon(), home=home, settings=settings)


def caller(workspace: Path | str, policy: Policy | None = None) -> CallContext:
    """Somebody who works in this folder."""
    return CallContext(
        run_id="r",
        session_id="s",
        root_id="r",
        key="r/1/0",
        turn=1,
        index=0,
        depth=0,
        agent="lead",
        path="lead",
        handle=None,
        policy=policy or Policy(),
        offered=(),
        workspace=str(workspace),
    )


class Desk:
    """Tools by name, used from one workspace."""

    def __init__(self, tools: Sequence[Tool], workspace: Path, policy: Policy | None = None) -> None:
        self.tools = {tool.spec.name: tool for tool in tools}
        self.workspace = workspace
        self.policy = policy or Policy()

    async def result(self, tool: str, /, **arguments: Any) -> ToolResult:
        """What the model reads; a tool's own error is a failed result, as the engine makes it."""
        try:
            return await self.tools[tool].call(
                msgspec.json.encode(arguments).decode(), caller(self.workspace, self.policy)
            )
        except ToolError as error:
            return ToolResult(str(error), failed=True)

    async def __call__(self, tool: str, /, **arguments: Any) -> str:
        """The text of a call that succeeds."""
        result = await self.result(tool, **arguments)
        assert not result.failed, result.text
        return result.text

    async def refused(self, tool: str, /, **arguments: Any) -> str:
        """The text of a call that fails."""
        result = await self.result(tool, **arguments)
        assert result.failed, result.text
        return result.text
