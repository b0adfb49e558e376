"""The hooks port: functions of a program around model calls and tool calls."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from retinue.core.messages import Reply, ToolCall
from retinue.core.ports.provider import Request
from retinue.core.ports.tool import CallContext, ToolResult


class Denial(Struct, frozen=True, gc=False):
    """Returned by a hook: the call is not made. The model reads `reason` if it is a tool call.

    >>> Denial("no commits on Fridays").reason
    'no commits on Fridays'
    """

    reason: str


BeforeModel: TypeAlias = Request | Reply | Denial | None
"""What a hook before a model call returns: another request, a reply in place of the call, a refusal, or nothing."""

BeforeTool: TypeAlias = ToolCall | ToolResult | Denial | None
"""What a hook before a tool call returns: another call, a result in place of it, a refusal, or nothing."""


class Hooks:
    """Base class of hooks: what happens before and after each model call and each tool call of every run.

    A subclass overrides the methods that it needs, with `async def`. A hook that returns None observes. Several hooks
    are called in the order of `retinue.open(hooks=[...])` before a call, and in the opposite order after it; each gets
    what the one before it returned. The first hook that denies a call, or answers it, ends the round.

    A hook that raises fails closed: the model call fails, the tool call is not made, or its result is withheld; the
    error names the hook and the place. A hook never widens rights: replaced arguments are checked against the policy.

    Hooks are called again when a call is made again after a crash. What they return is not stored: only the reply and
    the result that come out of the last hook are.

    >>> import asyncio, retinue
    >>> from retinue.testing import Script, ScriptedProvider, calls, says
    >>> @retinue.tool
    ... def deploy(target: str) -> str:
    ...     return f"deployed to {target}"
    >>> class Friday(retinue.Hooks):
    ...     async def before_tool(self, call, context):
    ...         return retinue.Denial("no deployments on Fridays") if call.name == "deploy" else None
    >>> model = ScriptedProvider(
    ...     Script().play("main", calls("deploy", target="live"), lambda ask: says(ask.messages[-1].text))
    ... )
    >>> async def main() -> None:
    ...     async with retinue.open(
    ...         provider=model, tools=[deploy], hooks=[Friday()], dialects=(), home=retinue.MEMORY
    ...     ) as r:
    ...         print((await r.run("Deploy it.")).text)
    >>> asyncio.run(main())
    no deployments on Fridays
    """

    async def before_model(self, request: Request) -> BeforeModel:
        """Called before a request is sent, also for fallback models and for summaries (`Request.purpose`).

        Return another `Request` to send that instead, a `Reply` to answer without the model, or a `Denial` to fail the
        call. Retries of one call do not call it again.
        """
        return None

    async def after_model(self, request: Request, reply: Reply) -> Reply | None:
        """Called with the complete reply, before it is stored; return another one to replace it.

        What has streamed was published before: readers get a `DiscardDelta` if the reply is replaced.
        """
        return None

    async def before_tool(self, call: ToolCall, context: CallContext) -> BeforeTool:
        """Called when a call is permitted, before it is made.

        Return another `ToolCall` of the same tool to call it with other arguments, a `ToolResult` to answer without the
        tool, or a `Denial`. Arguments that need a person's approval are refused: the person would not have seen them.
        """
        return None

    async def after_tool(self, call: ToolCall, context: CallContext, result: ToolResult) -> ToolResult | None:
        """Called with the result of a call that was made, failed or not; return another one to replace it."""
        return None
