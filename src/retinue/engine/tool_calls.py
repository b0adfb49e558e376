"""One tool call of a reply: policy, approvals, timeout, and what to do after a crash in the middle of it.

A call never raises: it ends with one `CallReturned`. The stored reply is the intent of all its calls, so a call whose
effects cannot be undone starts only after the reply is on disk.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import cast

from msgspec.structs import replace

from retinue.core.agent import ToolSpec
from retinue.core.attachments import checked
from retinue.core.commands import Change, Post, WindowFull
from retinue.core.errors import BadInput, SandboxUnavailable, StoreError, ToolError
from retinue.core.events import CallParked, CallReturned
from retinue.core.ids import Key, call_key
from retinue.core.inbox import ApprovalAnswer
from retinue.core.log_context import logger
from retinue.core.policy import NO_ACTIONS_LEFT, Verdict, allows
from retinue.core.ports import CallContext, HostedCall, PreparedCall, Tool, ToolResult, maker_of
from retinue.core.run import Approval
from retinue.core.state import OpenCall, Run
from retinue.engine.context import Approver, EngineContext
from retinue.engine.foreign_errors import error_place, is_recordable, message_of, type_and_message_of
from retinue.engine.live_run import LiveRun

log = logger("retinue.engine")

make_context = maker_of(CallContext)

INTERRUPTED = (
    "Interrupted: the process stopped while this call was running. It may or may not have happened; "
    "check before you try again."
)

CUT_CALL = "Your reply was cut{where}; the call was not made. Write it in smaller pieces."

LARGE_RESULT = 1_000_000
"""Characters of a result above which a warning is logged: few models can read so much."""

ACTIONS = "actions"
"""The key-value namespace of the changes that charge actions; it stays empty."""

GRANTED = ToolResult("")
"""A marker, not a result: the call may be made."""

NO_APPROVER = (
    "There is no approver here: open retinue with approvals='wait' or a callback, or use --approvals on the "
    "command line."
)


async def perform_call(live: LiveRun, index: int, engine: EngineContext) -> None:
    """Make the call and record its result, or park it until a person has answered."""
    if engine.gate.is_closed:
        await engine.gate.wait()  # the next driver makes the call
    call, prepared = live.run.open[index], live.prepared(index)
    at_work = 0 if prepared is not None and prepared.waits else 1
    engine.gate.calls += at_work
    stopwatch = Stopwatch(engine.timeouts.time)
    try:
        result, crashed, acts = await _outcome(live, call, engine, stopwatch)
    finally:
        engine.gate.calls -= at_work
        live.proceed(index)
    live.forget_prepared(index)
    if result is None or live.stopping:
        return
    if result.attachments:
        result = with_checked_attachments(result)
    if len(result.text) > LARGE_RESULT:
        log.warning(
            "tool %s returned %s characters, and the model gets them all", call.call.name, f"{len(result.text):,}"
        )
    try:
        if engine.journal.is_full:
            await engine.journal.room()
    finally:  # what has happened is recorded, also if the run is stopped meanwhile
        returned = CallReturned(
            at=engine.clock.now(),
            turn=live.run.turns,
            index=index,
            text=result.text,
            failed=result.failed,
            crashed=crashed,
            refused=result.refused,
            tool=call.call.name,
            duration=stopwatch.seconds,
            attachments=result.attachments,
        )
        live.record(returned)
        if engine.on_call and (acts or result.refused is not None):
            for callback in engine.on_call:
                callback(live.run.accepted, call.call, returned, acts)


def with_checked_attachments(result: ToolResult) -> ToolResult:
    """A result whose attachments models take; without them, and with the reason, if they are too many or too large."""
    try:
        return replace(result, attachments=checked(result.attachments, of="a result"))
    except BadInput as error:
        text = f"{result.text}\n[its images and files were left out: {error}]".lstrip()
        return replace(result, text=text, attachments=())


class Stopwatch:
    """The seconds between start and stop by a clock; None if it was not started."""

    __slots__ = ("_began", "_time", "seconds")

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._began = 0.0
        self.seconds: float | None = None

    def __enter__(self) -> None:
        self._began = self._time()

    def __exit__(self, *_: object) -> None:
        self.seconds = round(self._time() - self._began, 6)


async def _outcome(
    live: LiveRun, call: OpenCall, engine: EngineContext, stopwatch: Stopwatch
) -> tuple[ToolResult | None, bool, bool]:
    """The result of a call, None if it is parked; whether the tool crashed; and whether the call acts."""
    name, run = call.call.name, live.run
    if run.cuts and call.index == len(run.open) - 1:
        return ToolResult(CUT_CALL.format(where=cut_place(run)), failed=True), False, False
    tool = live.tool(name)
    prepared = live.prepared(call.index)
    if tool is None or prepared is None:
        return *await _refuse_unknown(live, call, engine), False
    # Before anything is awaited: calls are started in the order of the reply.
    previous = live.join_order(call.index) if tool.ordered else None
    if prepared.examine is not None:
        prepared = await prepared.examine(_context(live, call, stale=False))
    acts = prepared.risk.acts
    permission = _permission(live, call, prepared, engine)
    if permission is not GRANTED:
        if permission is not None and not allows(live.run.policy, name):  # the settings may have changed since
            reason = _why_hidden(tool, live, call)
            return permission if reason is None else _denied(reason), False, acts
        return permission, False, acts
    stale = live.run.is_stale(call)
    if stale and tool.kind == "once":
        return ToolResult(INTERRUPTED, failed=True), False, acts
    if previous is not None:
        await previous
    if engine.hooks.before_tool:
        hooked = await engine.hooks.call(tool, call.call, prepared, _context(live, call, stale))
        if isinstance(hooked, ToolResult):
            return hooked, False, acts
        prepared, acts = hooked, hooked.risk.acts
    if acts:
        # A call that never runs again needs no key for its charge.
        key = None if tool.kind == "once" else call_key(live.run_id, live.run.turns, call.index)
        if not await take_action(live, engine, key, again=stale):
            return _denied(NO_ACTIONS_LEFT), False, acts
    if tool.kind == "once" and live.last_write is not None:
        await live.last_write.wait()
    context = _context(live, call, stale)
    with stopwatch:
        if engine.tracing is None:
            result, crashed = await _call_tool(tool, call, prepared, context, live, engine)
        else:
            with engine.tracing.within(context.trace):
                result, crashed = await _call_tool(tool, call, prepared, context, live, engine)
    if engine.hooks.after_tool:
        result = await engine.hooks.result(call.call, context, result)
    return result, crashed, acts


def cut_place(run: Run) -> str:
    """Where the last reply was cut off, if its tokens were counted."""
    return f" at {run.reply_tokens} tokens" if run.reply_tokens else ""


def _denied(reason: str) -> ToolResult:
    return ToolResult(reason, failed=True, refused="policy")


class UnknownTool(Tool):
    """Stands for a tool that a run calls and does not have, so that the dialects log the call like any other."""

    def __init__(self, name: str, refusal: str) -> None:
        self.spec = ToolSpec(name)
        self._refusal = refusal

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        return ToolResult(self._refusal, failed=True)


async def _refuse_unknown(live: LiveRun, call: OpenCall, engine: EngineContext) -> tuple[ToolResult, bool]:
    name, dialects = call.call.name, live.run.run_spec.dialects
    refusal = _why_hidden(engine.toolbox.find(name, dialects), live, call)
    if refusal is None:
        offered = ", ".join(live.tool_set.tools) or "none"
        refusal = f"There is no tool named {name!r}. Tools you can use: {offered}."
    log.info("%scalled the tool %.80r, which it does not have", engine.id_field(live.run), name)
    tool = engine.toolbox.wrapped(UnknownTool(name, refusal), dialects)
    context = _context(live, call, stale=False)
    return await _call_tool(tool, call, tool.prepare(call.call.arguments), context, live, engine)


def _why_hidden(tool: Tool | None, live: LiveRun, call: OpenCall) -> str | None:
    """The tool's own message for a run that may not use it, if it has one."""
    return None if tool is None else tool.why_hidden(_context(live, call, stale=False))


async def take_action(live: LiveRun, engine: EngineContext, key: Key | None = None, *, again: bool = False) -> bool:
    """Charge one action of the run, and wait until that is on disk; False if its windows have none left.

    `key` is the key of the call that acts. A call that is made `again` after a crash is charged unless it was before.
    """
    budgets = engine.budgets
    charged = None if key is None else f"{key}/action"
    if again and charged is not None and await engine.journal.read(engine.store.answered, charged) is not None:
        return True
    if budgets.has_used_up_actions(live.run_id):
        return False
    action = budgets.action(live.run_id)
    if action is None:
        return True
    live.last_write = engine.journal.write(Change(space=ACTIONS, decide=lambda _: action, key=charged))
    (answer,) = await live.last_write.wait()
    is_charged = not isinstance(answer, WindowFull)
    budgets.settle_action(live.run_id, action, charged=is_charged)
    if not is_charged:
        await budgets.refresh_actions(live.run_id)
    return is_charged


def _permission(live: LiveRun, call: OpenCall, prepared: PreparedCall, engine: EngineContext) -> ToolResult | None:
    """GRANTED, the result of a refused call, or None for a call that is parked now."""
    decision = live.tool_set.decision(call.call.name, prepared.risk.risk, prepared.risk.acts)
    if decision.verdict is Verdict.REFUSE:
        return _denied(decision.reason)
    if (reason := prepared.denied_by(live.run.policy)) is not None:
        return _denied(reason)
    if decision.verdict is Verdict.ALLOW:
        return GRANTED
    if call.answer is not None:
        return GRANTED if call.answer.allow else _unapproved(call.answer.note, decision.reason)
    if _approver_of(live, engine) == "deny":
        return _unapproved(NO_APPROVER, decision.reason)
    now = engine.clock.now()
    live.record(CallParked(at=now, turn=live.run.turns, index=call.index, tool=call.call.name, reason=decision.reason))
    return None


def _unapproved(note: str, reason: str) -> ToolResult:
    if note == NO_APPROVER:
        text = f"{reason} {NO_APPROVER}"
    else:
        text = f"A person refused this call: {note}" if note else "A person refused this call"
    return ToolResult(text, failed=True, refused="approval")


async def _call_tool(
    tool: Tool, call: OpenCall, prepared: PreparedCall, context: CallContext, live: LiveRun, engine: EngineContext
) -> tuple[ToolResult, bool]:
    seconds = tool.timeout or live.run.accepted.limits.tool_timeout
    scope = engine.timeouts.within(None if prepared.waits else seconds)
    try:
        with scope:
            return await prepared.run(context), False
    except SandboxUnavailable as error:
        return ToolResult(message_of(error), failed=True, refused="sandbox"), False
    except ToolError as error:
        return ToolResult(message_of(error), failed=True), False
    except StoreError:
        raise  # not a failure of the tool: the run stops where it is
    except TimeoutError as error:
        if scope.expired:
            state = "was stopped" if tool.stoppable else "cannot be stopped; it may still be at work"
            return ToolResult(f"{call.call.name} did not finish within {seconds:g} s and {state}.", failed=True), False
        return _crash(call, error, live)
    except asyncio.CancelledError as error:
        if live.stopping:
            raise
        return _crash(call, error, live)  # not the call was cancelled, but something that the tool awaited
    except BaseException as error:  # a SystemExit in a tool must not end the process
        if not is_recordable(error, live.in_flight.values()):
            raise
        return _crash(call, error, live)


def _crash(call: OpenCall, error: BaseException, live: LiveRun) -> tuple[ToolResult, bool]:
    name = call.call.name
    log_crash(name, error)
    if live.run.accepted.lifecycle.crash_fails:
        return ToolResult(
            message_of(error) or type(error).__name__, failed=True
        ), True  # read by the caller of the run only
    return ToolResult(f"{name} failed: {type_and_message_of(error)}", failed=True), True


def log_crash(name: str, error: BaseException) -> None:
    """Log that a tool raised an error that is none of its answers."""
    place = error_place(error)
    log.warning("tool %s failed unexpectedly: %s%s", name, type(error).__name__, f" at {place}" if place else "")
    log.debug("tool %s failed unexpectedly", name, exc_info=error)


def _context(live: LiveRun, call: OpenCall, stale: bool) -> CallContext:
    run = live.run
    key = call_key(run.accepted.run_id, run.turns, call.index)
    return call_context(live, key, index=call.index, again=stale)


def call_context(live: LiveRun, key: Key, *, index: int, again: bool, host: HostedCall | None = None) -> CallContext:
    """What a tool is told about a call of this run; `host` is the program outside that makes it, if one does."""
    run = live.run
    accepted = run.accepted
    return make_context(
        run_id=accepted.run_id,
        session_id=accepted.session_id,
        root_id=accepted.root_id,
        key=key,
        turn=run.turns,
        index=index,
        depth=accepted.depth,
        agent=accepted.agent,
        path=accepted.path,
        handle=accepted.handle,
        policy=run.policy,
        offered=run.run_spec.offered,
        again=again,
        workspace=live.folder or run.run_spec.workspace,
        identity=run.run_spec.identity or accepted.agent,
        memory_from=run.run_spec.memory_from,
        host=host,
        trace="" if live.tracing is None else live.tracing.context_of_tool_call(accepted, run.turns, index),
        spawner=live.spawner,
    )


class Unanswered(Exception):
    """Raised by an approver that leaves its question open, for another terminal or a later process."""


def answer_to(question: Approval, *, allow: bool, note: str = "") -> ApprovalAnswer:
    """The inbox item that answers a question; a second answer to the same question has the same key."""
    return ApprovalAnswer(
        key=f"answer/{question.turn}/{question.index}", turn=question.turn, index=question.index, allow=allow, note=note
    )


def _approver_of(live: LiveRun, engine: EngineContext) -> Approver:
    """How calls of a run's tree that need a person are answered."""
    return engine.approvers.get(live.run.accepted.root_id, engine.approver) if engine.approvers else engine.approver


def request_approvals(live: LiveRun, engine: EngineContext) -> None:
    """Ask the approver the open questions of a run, each once; with `wait` the answers come through the inbox.

    Without an approver, a question that an earlier process has left is refused.
    """
    approver = _approver_of(live, engine)
    if approver != "wait":
        for question in live.run.open_questions():
            mark = f"asked/{question.turn}/{question.index}"
            if mark not in live.memo:
                live.memo[mark] = True
                engine.start_background(_ask(live, question, approver, engine))


async def _ask(live: LiveRun, question: Approval, approver: Approver, engine: EngineContext) -> None:
    try:
        if live.last_write is not None:
            await live.last_write.wait()  # the approver can find its question in the store
        allow, note = await _decision(question, approver)
    except (Unanswered, StoreError):
        return
    except Exception as error:
        log.exception("the approval callback failed")
        allow, note = False, f"the approval callback failed: {message_of(error) or type(error).__name__}"
    answer = answer_to(question, allow=allow, note=note)
    if live.deliver(answer):
        engine.journal.write(Post(run_id=live.run_id, item=answer))


async def _decision(question: Approval, approver: Approver) -> tuple[bool, str]:
    if not callable(approver):
        return False, NO_APPROVER
    returned = approver(question)
    answer = cast("object", await returned if inspect.isawaitable(returned) else returned)
    if not isinstance(answer, bool):
        raise TypeError(f"it answered {answer!r}; expected True or False")  # a non-empty "no" would count as true
    return answer, ""
