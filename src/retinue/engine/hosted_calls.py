"""Tool calls that a program outside makes in the name of a hosted run, such as those of an MCP client.

They are checked against the policy of the run like the calls of a model. No reply is stored before them and no result
after them: the caller has its own record.
"""

from __future__ import annotations

from retinue.core.errors import StoreError, ToolError
from retinue.core.ids import Key
from retinue.core.messages import ToolCall
from retinue.core.policy import NO_ACTIONS_LEFT, Verdict, verdict
from retinue.core.ports import CallContext, HostedCall, PreparedCall, Tool, ToolResult
from retinue.engine.context import EngineContext
from retinue.engine.foreign_errors import message_of, type_and_message_of
from retinue.engine.live_run import LiveRun
from retinue.engine.tool_calls import call_context, log_crash, take_action, with_checked_attachments

NO_QUESTIONS = "A call from outside cannot wait for a person: change the policy, or let an agent make the call."


async def call_for_host(
    live: LiveRun, name: str, arguments: str, key: Key, host: HostedCall, engine: EngineContext, *, again: bool
) -> ToolResult:
    """Make one call. A failure is a result; cancelling this stops the call, and not the runs that it has started."""
    tool = live.tool_set.tools.get(name)
    if tool is None:
        return _refused(
            f"There is no tool named {name!r}. Tools you can use: {', '.join(live.tool_set.tools) or 'none'}."
        )
    context = call_context(live, key, index=0, again=again, host=host)
    prepared = tool.prepare(arguments)
    if prepared.examine is not None:
        prepared = await prepared.examine(context)
    if (refusal := _refusal(live, name, prepared, host)) is not None:
        return refusal
    call = ToolCall(name, arguments)
    if engine.hooks.before_tool:
        hooked = await engine.hooks.call(tool, call, prepared, context)
        if isinstance(hooked, ToolResult):
            return hooked
        prepared = hooked
    if prepared.risk.acts and not await take_action(live, engine, key, again=again):
        return _refused(NO_ACTIONS_LEFT)
    result = await _make(tool, prepared, context, live, engine)
    if engine.hooks.after_tool:
        result = await engine.hooks.result(call, context, result)
    return with_checked_attachments(result) if result.attachments else result


def _refusal(live: LiveRun, name: str, prepared: PreparedCall, host: HostedCall) -> ToolResult | None:
    policy = live.run.policy
    decision = verdict(policy, tool=name, risk=prepared.risk.risk, acts=prepared.risk.acts)
    if decision.verdict is Verdict.REFUSE:
        return _refused(decision.reason)
    if (reason := prepared.denied_by(policy)) is not None:
        return _refused(reason)
    return None if decision.verdict is Verdict.ALLOW or host.approved else _refused(f"{decision.reason} {NO_QUESTIONS}")


async def _make(
    tool: Tool, prepared: PreparedCall, context: CallContext, live: LiveRun, engine: EngineContext
) -> ToolResult:
    seconds = tool.timeout or live.run.accepted.limits.tool_timeout
    scope = engine.timeouts.within(None if prepared.waits else seconds)
    try:
        with scope:
            return await prepared.run(context)
    except ToolError as error:
        return _refused(message_of(error))
    except StoreError:
        raise
    except Exception as error:
        if isinstance(error, TimeoutError) and scope.expired:
            return _refused(f"{tool.spec.name} did not finish within {seconds:g} s.")
        log_crash(tool.spec.name, error)
        return _refused(f"{tool.spec.name} failed: {type_and_message_of(error)}")


def _refused(text: str) -> ToolResult:
    return ToolResult(text, failed=True)
