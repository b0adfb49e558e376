"""The `shared_context` tool: reads and changes the entries of the caller's session, and logs every change."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import assert_never

from retinue.core.agent import ToolSpec
from retinue.core.commands import Decision, NamespaceClosed
from retinue.core.log_context import line, logger, with_payloads
from retinue.core.ports import CallContext, ToolResult
from retinue.core.text import rfc3339
from retinue.dialects.arguments import compact_json, decoded
from retinue.dialects.base import DialectTool
from retinue.dialects.context import DialectContext
from retinue.dialects.error_codes import CodedRefusal, JsonObject
from retinue.dialects.shared_context import actions, requests
from retinue.dialects.shared_context.actions import ContextEntry
from retinue.dialects.shared_context.requests import Delete, WriteEntry


class SharedContextTool(DialectTool):
    """One tool for all sessions; each call sees the entries of its own session alone.

    `dialect` offers the tool; the log lines have that dialect's fields of a run in them. Calls of one reply take effect
    in their order.
    """

    ordered = True

    def __init__(
        self, dialect_context: DialectContext, extensions: AbstractSet[str] = requests.ALL, *, dialect: str
    ) -> None:
        self._log = logger("retinue.context", dialect=dialect)
        self._dialect_context = dialect_context
        self._extensions = extensions
        self.spec: ToolSpec = requests.spec_of(extensions)

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        try:
            return ToolResult(compact_json(await self._answer(requests.parse(arguments, self._extensions), context)))
        except CodedRefusal as refusal:
            # Participants are expected to look for keys that may be missing; that is no failure.
            return ToolResult(compact_json(refusal.answer), failed=refusal.code != "KEY_NOT_FOUND")

    async def _answer(self, action: requests.Action, context: CallContext) -> JsonObject:
        match action:
            case requests.ListKeys() | requests.Read() | requests.ReadBatch() | requests.ReadHistory():
                return await self._look(action, context)
            case WriteEntry() | Delete() | requests.TakeSnapshot():
                return await self._change(action, context)
            case _:
                assert_never(action)

    async def _look(self, action: requests.Look, context: CallContext) -> JsonObject:
        if await self._dialect_context.supervisor.stored.session(context.session_id) is None:
            raise actions.session_not_found(context.session_id)
        key_value = await self._dialect_context.key_value.look(actions.space_of(context.session_id))
        return actions.look(action, key_value, participant=participant(context), at=self._dialect_context.clock.now())

    async def _change(self, action: requests.ChangingAction, context: CallContext) -> JsonObject:
        by, at = participant(context), self._dialect_context.clock.now()
        changed: ContextEntry | None = None

        def decide_now(key_value: Mapping[str, bytes]) -> Decision:
            nonlocal changed
            decision = actions.decide(action, key_value, participant=by, at=at)
            changed = actions.touched(action, key_value, decision)
            return decision

        written = await self._dialect_context.key_value.change(
            actions.space_of(context.session_id), decide_now, key=context.key, session_id=context.session_id
        )
        match written:
            case NamespaceClosed(why="session_archived"):
                raise actions.session_archived(context.session_id)
            case bytes():
                pass
            case _:
                raise actions.session_not_found(context.session_id)
        # The store does not decide a remembered call again, so each change is logged once.
        if changed is not None and not isinstance(action, requests.TakeSnapshot):
            self._log_change(action, changed, by, at, context)
        return decoded(written)

    def _log_change(
        self, action: WriteEntry | Delete, entry: ContextEntry, by: str, at: float, context: CallContext
    ) -> None:
        facts = line(
            session_id=context.session_id,
            action="write" if isinstance(action, WriteEntry) else "delete",
            key=action.key,
            written_by=by,
            timestamp=rfc3339(at),
            value_size_tokens=entry.size,
            version=entry.version,
        )
        self._log.info("%s", with_payloads(facts, value=entry.value))


def participant(context: CallContext) -> str:
    """The caller's name in entries: `orchestrator`, or a subagent with its task id."""
    if context.depth == 0:
        return "orchestrator"
    if not context.agent:
        return "unknown"
    return ":".join(("subagent", context.agent, *((context.handle.name,) if context.handle else ())))
