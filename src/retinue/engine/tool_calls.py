"""Making one call of a reply: policy, approval, deadline, and what a crash in the middle meant.

A call never raises: whatever becomes of it is one `CallReturned`. The stored reply is the intent of all its calls, so a
call whose effects nobody could take back starts only after that is on disk.
"""

from __future__ import annotations

import asyncio
import logging

from retinue.core.commands import Record
from retinue.core.errors import StoreError, ToolError
from retinue.core.events import CallParked, CallReturned
from retinue.core.ids import call_key
from retinue.core.policy import Risk, Verdict, verdict
from retinue.core.ports import CallContext, KnowsWhyHidden, Tool, ToolResult, Weight, closed_by, does_wait, weight_of
from retinue.core.state import OpenCall
from retinue.engine.context import Parts
from retinue.engine.foreign_errors import is_its_own_doing, kind_and_words_of, words_of
from retinue.engine.live_run import Driven

log = logging.getLogger("retinue.engine")

INTERRUPTED = (
    "Interrupted: the process stopped while this call was running. It may or may not have happened; "
    "check before you try again."
)

MUCH = 1_000_000
"""Characters of a result from which somebody should hear of it: few models can read so much."""

GRANTED = ToolResult("")
"""Not a result: the call may be made."""

NOBODY = (
    "Nobody can be asked here: open retinue with approvals='wait' or a callback, or use --approvals on the "
    "command line."
)

NO_ACTIONS_LEFT = "Rate limit exceeded: action budget exhausted"


async def perform(driven: Driven, index: int, parts: Parts) -> None:
    """Make the call and record what it came to, or park it for a person."""
    call = driven.run.open[index]
    result, crashed = await _outcome(driven, call, parts)
    if result is None or driven.stopping:
        return
    if len(result.text) > MUCH:
        log.warning(
            "tool %s returned %s characters, and the model gets them all", call.call.name, f"{len(result.text):,}"
        )
    driven.record(
        CallReturned(
            at=parts.clock.now(),
            turn=driven.run.turns,
            index=index,
            text=result.text,
            failed=result.failed,
            crashed=crashed,
        )
    )


async def _outcome(driven: Driven, call: OpenCall, parts: Parts) -> tuple[ToolResult | None, bool]:
    name = call.call.name
    tool = driven.bench.tools.get(name)
    if tool is None:
        hidden = parts.toolbox.find(name, driven.run.brief.dialects)
        if (words := _why_hidden(hidden, driven, call)) is not None:
            return ToolResult(words, failed=True), False
        offered = ", ".join(driven.bench.tools) or "none"
        return ToolResult(f"There is no tool named {name!r}. Tools you can use: {offered}.", failed=True), False
    weight = weight_of(tool, call.call.arguments)
    permission = _permission(driven, call, tool, weight, parts)
    if permission is not GRANTED:
        if permission is not None and _is_taken_away(driven, name):
            words = _why_hidden(tool, driven, call)
            return permission if words is None else ToolResult(words, failed=True), False
        return permission, False
    stale = driven.run.is_stale(call)
    if stale and tool.kind == "once":
        return ToolResult(INTERRUPTED, failed=True), False
    if weight.acts and not await take_action(driven, parts):
        return ToolResult(NO_ACTIONS_LEFT, failed=True), False
    if tool.kind == "once" and driven.last_write is not None:
        await driven.last_write.wait()
    return await _guarded(tool, call, _context(driven, call, stale), driven, parts)


def _why_hidden(tool: Tool | None, driven: Driven, call: OpenCall) -> str | None:
    """What a tool itself says to a run that may not use it."""
    return tool.why_hidden(_context(driven, call, stale=False)) if isinstance(tool, KnowsWhyHidden) else None


async def take_action(driven: Driven, parts: Parts) -> bool:
    """Count one action of the run, and wait until that is on disk; False if its windows have none left."""
    accounts = parts.accounts
    await accounts.look_at_actions(driven.run_id)
    charges = accounts.act(driven.run_id)
    if not charges:
        return charges is not None
    run = driven.run
    driven.last_write = parts.journal.write(Record(run_id=run.run_id, seq=run.seq + 1, events=(), charges=charges))
    await driven.last_write.wait()
    # Another process may have taken the last one at the same time: then each sees both, and none of them goes on.
    await accounts.look_at_actions(driven.run_id)
    return not accounts.has_overdrawn(driven.run_id)


def _is_taken_away(driven: Driven, name: str) -> bool:
    """Whether the run's policy has the tool no more, though it was offered: the settings may have changed since."""
    return verdict(driven.run.policy, tool=name, risk=Risk.LOW).verdict is Verdict.REFUSE


def _permission(driven: Driven, call: OpenCall, tool: Tool, weight: Weight, parts: Parts) -> ToolResult | None:
    """GRANTED to go on, a result that says no, or None for a call that is parked now."""
    policy = driven.run.policy
    decision = verdict(policy, tool=call.call.name, risk=weight.risk, acts=weight.acts)
    if decision.verdict is Verdict.REFUSE:
        return ToolResult(decision.reason, failed=True)
    if (closed := closed_by(policy, tool, call.call.arguments)) is not None:
        return ToolResult(closed, failed=True)
    if decision.verdict is Verdict.ALLOW:
        return GRANTED
    if call.answer is not None:
        return GRANTED if call.answer.allow else ToolResult(_no(call.answer.note, decision.reason), failed=True)
    if parts.approver == "deny":
        return ToolResult(_no(NOBODY, decision.reason), failed=True)
    now = parts.clock.now()
    driven.record(
        CallParked(at=now, turn=driven.run.turns, index=call.index, tool=call.call.name, reason=decision.reason)
    )
    return None


def _no(note: str, reason: str) -> str:
    if note == NOBODY:
        return f"{reason} {NOBODY}"
    return f"A person refused this call: {note}" if note else "A person refused this call"


async def _guarded(
    tool: Tool, call: OpenCall, context: CallContext, driven: Driven, parts: Parts
) -> tuple[ToolResult, bool]:
    seconds = tool.timeout or driven.run.accepted.limits.tool_seconds
    scope = parts.deadlines.within(None if does_wait(tool, call.call.arguments) else seconds)
    try:
        with scope:
            return await tool.call(call.call.arguments, context), False
    except ToolError as error:
        return ToolResult(words_of(error), failed=True), False
    except StoreError:
        raise  # not the tool's doing: the run stops where it is
    except TimeoutError as error:
        if scope.expired:
            left = "was stopped" if tool.stoppable else "cannot be stopped; it may still be at work"
            return ToolResult(f"{call.call.name} did not finish within {seconds:g} s and {left}.", failed=True), False
        return _crash(call, error, driven)
    except asyncio.CancelledError as error:
        if driven.stopping:
            raise
        return _crash(call, error, driven)  # nobody cancelled the call: the tool waited for something that was
    except BaseException as error:  # a tool that leaves does not take the whole process with it
        if not is_its_own_doing(error, driven.busy.values()):
            raise
        return _crash(call, error, driven)


def _crash(call: OpenCall, error: BaseException, driven: Driven) -> tuple[ToolResult, bool]:
    name, kind = call.call.name, type(error).__name__
    log.warning("tool %s failed unexpectedly: %s", name, kind)
    log.debug("tool %s failed unexpectedly", name, exc_info=error)
    if driven.run.accepted.manner.crash_fails:
        return ToolResult(words_of(error) or kind, failed=True), True  # nobody but the caller will read it
    return ToolResult(f"{name} failed: {kind_and_words_of(error)}", failed=True), True


def _context(driven: Driven, call: OpenCall, stale: bool) -> CallContext:
    run = driven.run
    accepted = run.accepted
    return CallContext(
        run_id=accepted.run_id,
        session_id=accepted.session_id,
        root_id=accepted.root_id,
        key=call_key(accepted.run_id, run.turns, call.index),
        turn=run.turns,
        index=call.index,
        depth=accepted.depth,
        agent=accepted.agent,
        path=accepted.path,
        handle=accepted.handle,
        policy=run.policy,
        offered=run.brief.offered,
        again=stale,
        workspace=run.brief.workspace,
        identity=run.brief.identity or accepted.agent,
        memory_from=run.brief.memory_from,
    )
