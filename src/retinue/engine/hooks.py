"""Hooks around model calls and tool calls: called in order, and failing closed. Without hooks nothing is called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from retinue.core.errors import ProviderError
from retinue.core.log_context import logger
from retinue.core.messages import Reply, ToolCall
from retinue.core.policy import Policy, Verdict, verdict
from retinue.core.ports import CallContext, Denial, Hooks, PreparedCall, Request, Tool, ToolResult
from retinue.core.usage import NO_USAGE
from retinue.engine.foreign_errors import error_place, type_and_message_of

log = logger("retinue.engine")

T = TypeVar("T")

METHODS = ("before_model", "after_model", "before_tool", "after_tool")


class HookError(Exception):
    """A hook raised an error or returned something else than its result."""


class HookSet:
    """The hooks of a process, by the methods that they override."""

    __slots__ = METHODS

    def __init__(self, hooks: Sequence[Hooks] = ()) -> None:
        def having(method: str) -> tuple[Hooks, ...]:
            return tuple(hook for hook in hooks if getattr(type(hook), method) is not getattr(Hooks, method))

        self.before_model = having("before_model")
        self.after_model = having("after_model")[::-1]
        self.before_tool = having("before_tool")
        self.after_tool = having("after_tool")[::-1]

    async def request(self, request: Request) -> Request | Reply:
        """The request to send, or the reply of a hook. Raises `ProviderError` if a hook denies or fails."""
        for hook in self.before_model:
            try:
                answer = await _called(hook, "before_model", lambda: hook.before_model(request))  # noqa: B023 called here
                if isinstance(answer, Denial):
                    raise ProviderError(f"{_name(hook)} denied the model call: {answer.reason}", fault="refused")
                if isinstance(answer, Reply):
                    return answer
                request = (
                    _expected(hook, "before_model", answer, Request, "a Request, Reply, Denial or None") or request
                )
            except HookError as error:
                raise ProviderError(str(error), fault="bad_request") from error
        return request

    async def reply(self, request: Request, reply: Reply) -> Reply:
        """The reply to store. Raises `ProviderError`, with the usage of the reply, if a hook fails."""
        for hook in self.after_model:
            try:
                answer = await _called(hook, "after_model", lambda: hook.after_model(request, reply))  # noqa: B023
                reply = _expected(hook, "after_model", answer, Reply, "a Reply or None") or reply
            except HookError as error:
                usage = reply.usage or NO_USAGE
                raise ProviderError(str(error), fault="bad_request", usage=usage, cost=reply.cost) from error
        return reply

    async def call(
        self, tool: Tool, call: ToolCall, prepared: PreparedCall, context: CallContext
    ) -> PreparedCall | ToolResult:
        """The call to make, or the result of one that is not made."""
        asked = call
        for hook in self.before_tool:
            try:
                answer = await _called(hook, "before_tool", lambda: hook.before_tool(asked, context))  # noqa: B023
                if isinstance(answer, Denial):
                    return ToolResult(answer.reason, failed=True, refused="policy")
                if isinstance(answer, ToolResult):
                    return answer
                expected = "a ToolCall, ToolResult, Denial or None"
                asked = _expected(hook, "before_tool", answer, ToolCall, expected) or asked
                if asked.name != call.name:
                    raise HookError(
                        f"{_name(hook)}.before_tool returned a call of {asked.name!r}, not of {call.name!r}"
                    )
            except HookError as error:
                return ToolResult(f"The call was not made: {error}", failed=True, refused="policy")
        if asked is call or asked.arguments == call.arguments:
            return prepared
        prepared = tool.prepare(asked.arguments)
        if prepared.examine is not None:
            prepared = await prepared.examine(context)
        reason = _not_allowed(context.policy, call.name, prepared)
        return prepared if reason is None else ToolResult(reason, failed=True, refused="policy")

    async def result(self, call: ToolCall, context: CallContext, result: ToolResult) -> ToolResult:
        """The result to store; one that says so if a hook failed: the call was made."""
        for hook in self.after_tool:
            try:
                answer = await _called(hook, "after_tool", lambda: hook.after_tool(call, context, result))  # noqa: B023
                result = _expected(hook, "after_tool", answer, ToolResult, "a ToolResult or None") or result
            except HookError as error:
                text = f"The call was made, and its result is withheld: {error}"
                return replace(result, text=text, failed=True, attachments=())
        return result


NO_HOOKS = HookSet()


async def _called(hook: Hooks, method: str, call: Callable[[], Awaitable[T]]) -> T:
    try:
        return await call()
    except Exception as error:
        place = error_place(error)
        where = f" at {place}" if place else ""
        log.warning("hook %s.%s failed: %s%s", _name(hook), method, type_and_message_of(error), where)
        log.debug("hook %s.%s failed", _name(hook), method, exc_info=error)
        raise HookError(f"hook {_name(hook)}.{method} failed: {type_and_message_of(error)}") from error


def _expected(hook: Hooks, method: str, answer: object, kind: type[T], expected: str) -> T | None:
    if answer is None or isinstance(answer, kind):
        return answer
    raise HookError(f"hook {_name(hook)}.{method} returned {type(answer).__name__}: expected {expected}")


def _name(hook: Hooks) -> str:
    return type(hook).__name__


def _not_allowed(policy: Policy, name: str, prepared: PreparedCall) -> str | None:
    decision = verdict(policy, tool=name, risk=prepared.risk.risk, acts=prepared.risk.acts)
    if decision.verdict is Verdict.REFUSE:
        return decision.reason
    if (reason := prepared.denied_by(policy)) is not None:
        return reason
    if decision.verdict is Verdict.ALLOW:
        return None
    return f"A hook replaced the arguments by some that need an approval. {decision.reason}"
