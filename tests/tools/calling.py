"""What the tests of built-in tools share: a call's context, and a shelf in a real store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from retinue.core.commands import Change, Decide, WriteResult
from retinue.core.errors import ToolError
from retinue.core.ids import Key, SessionId
from retinue.core.policy import Policy
from retinue.core.ports import CallContext, Store, Tool, ToolResult
from retinue.testing.harness import Harness


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
        "offered": (),
        "identity": "researcher",
    }
    return CallContext(key=key, **(fields | changes))


class DirectShelf:
    """A shelf in a store, with nobody in between."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def look(self, space: str) -> Mapping[str, bytes]:
        return self.store.key_value(space)

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        (answer,) = self.store.commit(None, [Change(space=space, decide=decide, key=key, session_id=session_id)])
        return answer


class LateShelf:
    """The shelf of a harness that is made after the tools it has."""

    harness: Harness

    async def look(self, space: str) -> Mapping[str, bytes]:
        return await self.harness.retinue.supervisor.key_value.look(space)

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        return await self.harness.retinue.supervisor.key_value.change(space, decide, key=key, session_id=session_id)


class FixedClock:
    """A clock that stands where the test put it."""

    def __init__(self, at: float = 1767225600.0) -> None:
        self.at = at

    def now(self) -> float:
        return self.at


class NoSandbox:
    """No program is started."""

    async def run(self, program: object) -> Any:
        raise AssertionError("a program was started")


async def told(tool: Tool, where: CallContext | None = None, /, **arguments: object) -> str:
    """What a call that goes well says."""
    result = await tool.call(msgspec.json.encode(arguments).decode(), where or context())
    assert not result.failed, result.text
    return result.text


async def refused(tool: Tool, where: CallContext | None = None, /, **arguments: object) -> str:
    """What a call that goes wrong says."""
    try:
        result = await tool.call(msgspec.json.encode(arguments).decode(), where or context())
    except ToolError as error:
        result = ToolResult(str(error), failed=True)
    assert result.failed, result.text
    return result.text
