"""Calls of built-in tools in tests: contexts, dependencies, and key-value access to a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from retinue.core.commands import Change, Decide, WriteResult
from retinue.core.errors import ToolError
from retinue.core.ids import Key, SessionId
from retinue.core.policy import Policy
from retinue.core.ports import CallContext, Store, Tool, ToolResult
from retinue.testing.harness import Harness
from retinue.tools.dependencies import ToolDependencies


def context(key: str = "run/1/0", **changes: Any) -> CallContext:
    """The context of a call that a root run makes."""
    fields: dict[str, Any] = {
        "run_id": "run",
        "session_id": "session",
        "root_id": "run",
        "turn": 1,
        "index": 0,
        "depth": 0,
        "agent": "researcher",
        "path": "researcher",
        "handle": None,
        "policy": Policy(),
        "offered": ("artifact_read",),
        "identity": "researcher",
    }
    return CallContext(key=key, **(fields | changes))


class StoreKeyValue:
    """Key-value access to a store, without an engine in between."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def look(self, space: str) -> Mapping[str, bytes]:
        return self.store.key_value(space)

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        (answer,) = self.store.commit(None, [Change(space=space, decide=decide, key=key, session_id=session_id)])
        return answer


class HarnessKeyValue:
    """Key-value access to a harness that is created after its tools."""

    harness: Harness

    async def look(self, space: str) -> Mapping[str, bytes]:
        return await self.harness.retinue.supervisor.key_value.look(space)

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        return await self.harness.retinue.supervisor.key_value.change(space, decide, key=key, session_id=session_id)


class FixedClock:
    """A clock that shows the time that the test sets."""

    def __init__(self, at: float = 1767225600.0) -> None:
        self.at = at

    def now(self) -> float:
        return self.at


class NoSandbox:
    """A sandbox for tools that must start no program."""

    async def run(self, program: object) -> Any:
        raise AssertionError("a program was started")


async def result_of(tool: Tool, where: CallContext | None = None, /, **arguments: object) -> str:
    """The text of a call that succeeds."""
    result = await tool.call(msgspec.json.encode(arguments).decode(), where or context())
    assert not result.failed, result.text
    return result.text


async def error_of(tool: Tool, where: CallContext | None = None, /, **arguments: object) -> str:
    """The text of a call that fails."""
    try:
        result = await tool.call(msgspec.json.encode(arguments).decode(), where or context())
    except ToolError as error:
        result = ToolResult(str(error), failed=True)
    assert result.failed, result.text
    return result.text


class UnusedKeyValue:
    """Key-value access for tools that must not use it."""

    async def look(self, space: str) -> Mapping[str, bytes]:
        raise AssertionError(space)

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        raise AssertionError(space)


def dependencies(*, home: Path | None = None, settings: tuple[Path, ...] = ()) -> ToolDependencies:
    """Dependencies of tools that use only the file system."""
    return ToolDependencies(
        sandbox=NoSandbox(), key_value=UnusedKeyValue(), clock=FixedClock(), home=home, settings=settings
    )


class ToolCaller:
    """Tools by name, used from one workspace."""

    def __init__(self, tools: Sequence[Tool], workspace: Path, policy: Policy | None = None) -> None:
        self.tools = {tool.spec.name: tool for tool in tools}
        self.workspace = workspace
        self.policy = policy or Policy()

    async def result(self, tool: str, /, **arguments: Any) -> ToolResult:
        """The result of a call; a `ToolError` becomes a failed result, as in the engine."""
        try:
            return await self.tools[tool].call(
                msgspec.json.encode(arguments).decode(), context(policy=self.policy, workspace=str(self.workspace))
            )
        except ToolError as error:
            return ToolResult(str(error), failed=True)

    async def __call__(self, tool: str, /, **arguments: Any) -> str:
        """The text of a call that succeeds."""
        result = await self.result(tool, **arguments)
        assert not result.failed, result.text
        return result.text

    async def error(self, tool: str, /, **arguments: Any) -> str:
        """The text of a call that fails."""
        result = await self.result(tool, **arguments)
        assert result.failed, result.text
        return result.text
