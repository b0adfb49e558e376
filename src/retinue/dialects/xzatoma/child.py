"""Subagents of `xzatoma`: how they are started and waited for, their quotas, log lines and metrics.

A subagent has its caller's agent, system text and tools, the model of its caller or of the settings, and the task
prompt as its first message. It stays alive after the task's answer for the summary prompt, which is sent without tools
in the same conversation. Every step has a key derived from the call's: entered again after a crash, the call finds its
subagent and goes on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace

from msgspec import Struct

from retinue.core.agent import RunSpec
from retinue.core.budget import Caps, Window
from retinue.core.commands import RunLimit, RunQuery
from retinue.core.errors import BadInput, Refused, RunIsOver, TooManyRunning
from retinue.core.ids import Key, RunId
from retinue.core.inbox import Close, Input
from retinue.core.log_context import REPORTED, log_value, logger
from retinue.core.ports import CallContext, Meter, NoMeter
from retinue.core.run import Exchange, Lifecycle, Limits
from retinue.core.text import cut
from retinue.dialects.context import DialectContext
from retinue.dialects.xzatoma import NAME, answers
from retinue.dialects.xzatoma.answers import ErrorType, SubagentRefused
from retinue.dialects.xzatoma.requests import SUBAGENT, Delegation, inheritable, inherited
from retinue.dialects.xzatoma.settings import XzatomaSettings, unknown_provider
from retinue.dialects.xzatoma.transcripts import Retention
from retinue.engine import RunView, SpawnRequest

TARGET = "retinue.tools.subagent"
MAX_CHARACTERS = 1000
"""Characters of a value in a log line."""

log = logger(TARGET, dialect=NAME)


class SubagentTelemetry:
    """Log lines and metrics about subagents, if the settings enable them; depths are those of the subagents.

    A line has the fields of the document in its order, then the message; a model cannot forge another line.
    """

    def __init__(self, meter: Meter, *, enabled: bool) -> None:
        self._enabled = enabled
        self._meter = meter if enabled else NoMeter()

    def spawned(self, label: str, depth: int, *, max_turns: int, tools: Sequence[str]) -> None:
        facts = {"depth": depth, "max_turns": max_turns, "allowed_tools": list(tools)}
        self._log(logging.INFO, "Spawning subagent", "spawn", label, **facts)
        self._meter.count("subagent_executions_total", depth=str(depth))

    @contextmanager
    def active(self, depth: int) -> Generator[None]:
        """Count a subagent as active inside the block."""
        self._meter.move("subagent_active_count", 1, depth=str(depth))
        try:
            yield
        finally:
            self._meter.move("subagent_active_count", -1, depth=str(depth))

    def completed(self, label: str, depth: int, *, status: str, turns: int, tokens: int, seconds: float) -> None:
        facts = {"depth": depth, "turns_used": turns, "tokens_consumed": tokens, "status": status}
        self._log(logging.INFO, "Subagent completed", "complete", label, **facts)
        self._meter.count("subagent_completions_total", depth=str(depth), status=status)
        self._meter.measure("subagent_duration_seconds", seconds, depth=str(depth), status=status)
        self._meter.measure("subagent_turns_used", turns)
        self._meter.measure("subagent_tokens_consumed", tokens)

    def failed(self, label: str, depth: int, *, error: str) -> None:
        self._log(logging.ERROR, "Subagent execution failed", "error", label, depth=depth, error=error)

    def refused(self, depth: int, error_type: ErrorType) -> None:
        """Count a call that was answered with an error."""
        self._meter.count("subagent_errors_total", depth=str(depth), error_type=error_type)

    def ran_out_of_turns(self, label: str, depth: int, *, max_turns: int) -> None:
        facts = {"depth": depth, "max_turns": max_turns}
        self._log(logging.WARNING, "Subagent exceeded max turns", "max_turns_exceeded", label, **facts)

    def truncated(self, label: str, *, original: int, kept: int) -> None:
        """Log an output that was cut; sizes are in bytes."""
        facts = {"original_size": original, "truncated_size": kept}
        self._log(logging.WARNING, "Subagent output truncated", "truncation", label, **facts)

    def too_deep(self, label: str, *, depth: int, max_depth: int) -> None:
        facts = {"current_depth": depth, "max_depth": max_depth}
        self._log(logging.DEBUG, "Subagent recursion depth limit enforced", "depth_limit", label, **facts)

    def _log(self, level: int, message: str, event: str, label: str, **facts: object) -> None:
        if self._enabled and log.isEnabledFor(level):
            log.log(level, "%s %s", _line(event=event, label=label, **facts), message, extra=REPORTED)


def _line(**facts: object) -> str:
    """The facts in their order; lists are JSON.

    >>> _line(event="spawn", label="two words", depth=1, allowed_tools=["fetch", "grep"])
    'subagent.event=spawn subagent.label="two words" subagent.depth=1 subagent.allowed_tools=["fetch","grep"]'
    """
    return " ".join(f"subagent.{name}={_value(value)}" for name, value in facts.items())


def _value(value: object) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list) else log_value(value, MAX_CHARACTERS)


QUOTA_SECONDS = 366 * 86400.0
"""Seconds for which the ledger remembers tokens: longer than any session lasts."""


class Used(Struct, frozen=True, kw_only=True):
    """The usage of all subagents of a session, failed ones included."""

    executions: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Quotas:
    """What all subagents of a session may use; a session is a root run with its descendants, or a chat.

    A chat is one session however many root runs it has: when delegation is switched or an answer stopped, the next run
    inherits the history, and the usage with it. Usage is computed from the stored runs, so that it survives a crash.
    Tokens are also a window of the ledger, and time a deadline of each subagent, which stop a subagent at work.
    """

    def __init__(self, dialect_context: DialectContext, settings: XzatomaSettings) -> None:
        self.lock = asyncio.Lock()
        """Held from the check to the start: of two calls that see one execution left, one must be refused."""
        self._dialect_context = dialect_context
        self._settings = settings
        limits = (settings.max_executions, settings.max_total_tokens, settings.max_total_time)
        self.are_set = limits != (None, None, None)
        """Whether there is a limit for all subagents of a session together."""

    async def check(self, root_id: RunId) -> Used | None:
        """The usage of the session, None without quotas; raises `SubagentRefused` if a quota is used up."""
        if not self.are_set:
            return None
        used = await self._used(root_id)
        if (reason := _reason(used, self._settings)) is not None:
            raise answers.quota_exceeded(reason)
        return used

    async def windows(self, root_id: RunId) -> tuple[Window, ...]:
        """The window that stops a subagent when the session's tokens are used up."""
        max_tokens = self._settings.max_total_tokens
        if max_tokens is None:
            return ()
        first, *_ = await self._dialect_context.supervisor.conversation(root_id)
        return (Window(f"{NAME}/{first}", QUOTA_SECONDS, Caps(tokens=max_tokens), soft=True),)

    async def limit(self, root_id: RunId) -> RunLimit | None:
        """The number of executions, for the store to check: other processes may start some at the same time."""
        if (executions := self._settings.max_executions) is None:
            return None
        roots = await self._dialect_context.supervisor.conversation(root_id)
        return RunLimit(root_ids=tuple(roots), dialect=NAME, runs=executions, with_ended=True)

    def seconds_left(self, used: Used | None) -> float | None:
        """How long a subagent may run that starts now."""
        max_seconds = self._settings.max_total_time
        return None if max_seconds is None or used is None else max(max_seconds - used.seconds, 0.001)

    async def why_stopped(self, exchange: Exchange, root_id: RunId) -> SubagentRefused | None:
        """The refusal for the quota that stopped a subagent; None if no quota did."""
        if not self.are_set or exchange.reason not in ("window", "deadline"):
            return None
        used = await self._used(root_id)
        limits = XzatomaSettings(
            max_total_tokens=self._settings.max_total_tokens, max_total_time=self._settings.max_total_time
        )
        if exchange.reason == "deadline" and limits.max_total_time is not None:
            # The deadline has passed by definition; wall clock and loop clock may differ slightly.
            used = Used(tokens=0, seconds=max(used.seconds, limits.max_total_time))
        reason = _reason(used, limits)
        return None if reason is None else answers.quota_exceeded(reason)

    async def _used(self, root_id: RunId) -> Used:
        supervisor = self._dialect_context.supervisor
        trees = [await supervisor.list(RunQuery(root_id=root)) for root in await supervisor.conversation(root_id)]
        subagents = [view for tree in trees for view in tree if view.dialect == NAME and view.parent_id is not None]
        return Used(
            executions=len(subagents),
            tokens=sum(view.usage.total for view in subagents),
            seconds=_seconds_at_work(subagents, self._dialect_context.clock.now()),
        )


def _seconds_at_work(runs: Iterable[RunView], now: float) -> float:
    """How long at least one of the runs was live; overlapping times count once."""
    total, until = 0.0, float("-inf")
    for start, end in sorted((view.started_at, view.ended_at or now) for view in runs):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _reason(used: Used, settings: XzatomaSettings) -> str | None:
    """The first quota that is used up; None if none is.

    >>> _reason(Used(executions=3), XzatomaSettings(max_executions=3))
    'Execution limit reached: 3/3'
    >>> _reason(Used(seconds=61.25), XzatomaSettings(max_total_time=60))
    'Time limit exceeded: 61.25s >= 60s'
    >>> _reason(Used(tokens=10500), XzatomaSettings(max_total_tokens=10000))
    'Token limit exceeded: 10500/10000'
    """
    executions, seconds, tokens = settings.max_executions, settings.max_total_time, settings.max_total_tokens
    if executions is not None and used.executions >= executions:
        return f"Execution limit reached: {used.executions}/{executions}"
    if seconds is not None and used.seconds >= seconds:
        rounded = f"{used.seconds:.3f}".rstrip("0").rstrip(".")
        return f"Time limit exceeded: {rounded}s >= {seconds}s"
    if tokens is not None and used.tokens >= tokens:
        return f"Token limit exceeded: {used.tokens}/{tokens}"
    return None


TRUNCATED = "[Output truncated]"


class ChildTask(Struct, frozen=True, kw_only=True):
    """A task for a subagent, the key of its run, and whether it may delegate."""

    request: Delegation
    key: Key
    nests: bool


class Findings(Struct, frozen=True, kw_only=True):
    """The result of a subagent."""

    output: str
    max_turns_reached: bool
    turns_used: int
    tokens_consumed: int
    seconds: float

    @property
    def status(self) -> str:
        return "incomplete" if self.max_turns_reached else "complete"


class Children:
    """Starts subagents and waits for them."""

    def __init__(self, dialect_context: DialectContext, settings: XzatomaSettings) -> None:
        self.quotas = Quotas(dialect_context, settings)
        self.telemetry = SubagentTelemetry(dialect_context.meter, enabled=settings.telemetry_enabled)
        self._retention = Retention(dialect_context, settings)
        self._dialect_context = dialect_context
        self._supervisor = dialect_context.supervisor
        self._settings = settings
        if settings.provider is not None:  # an unknown one is refused here, not when the first subagent starts
            known, _ = dialect_context.resolve(f"{settings.provider}:", RunSpec(agent="", provider=""))
            if not known:
                raise BadInput(unknown_provider(settings.provider, dialect_context.families.names()))

    def check_depth(self, check: Callable[[int, int], None], label: str, context: CallContext) -> None:
        """Refuse a caller at the maximum depth, with the text of `check`."""
        try:
            check(context.depth, self._settings.max_depth)
        except SubagentRefused:
            self.telemetry.too_deep(label, depth=context.depth, max_depth=self._settings.max_depth)
            raise

    async def begun(self, context: CallContext, key: Key) -> RunId | None:
        """The subagent that a task with this key started before a crash."""
        row = await self._dialect_context.begun(replace(context, key=key))
        return None if row is None else row.run_id

    async def begin(self, task: ChildTask, context: CallContext) -> RunId:
        """Start the subagent; raises `SubagentRefused` if a quota or the engine refuses it."""
        label, depth = task.request.label, context.depth + 1
        tools = self._tools(task, context)
        self._retention.expect(context.root_id)
        try:
            async with AsyncExitStack() as stack:
                if self.quotas.are_set:
                    await stack.enter_async_context(self.quotas.lock)
                used = await self.quotas.check(context.root_id)
                windows = await self.quotas.windows(context.root_id)
                limit = await self.quotas.limit(context.root_id)
                spawn_request = self._spawn_request(task, tools, context, used, windows, limit)
                started = await self._dialect_context.spawn(spawn_request, context, key=task.key)
        except SubagentRefused:
            raise
        except Refused as refused:
            if isinstance(refused, TooManyRunning):  # another process has started one meanwhile
                used_up = _reason(Used(executions=refused.running), self._settings)
                if used_up is not None:
                    raise answers.quota_exceeded(used_up) from refused
            self.telemetry.failed(label, depth, error=str(refused))
            raise answers.failed(str(refused), "initialization_failed") from refused
        if not started.existed:
            offered = inheritable(self._dialect_context.run_spec_of(started.run_id).offered)
            self.telemetry.spawned(label, depth, max_turns=self._max_turns(task.request), tools=offered)
        return started.run_id

    async def findings(self, run_id: RunId, task: ChildTask, context: CallContext) -> Findings:
        """Wait for a subagent's result; raises `SubagentRefused` if it fails."""
        label, depth = task.request.label, context.depth + 1
        with self.telemetry.active(depth):
            try:
                findings = await self._findings(run_id, task, context)
            except SubagentRefused as failure:
                self.telemetry.failed(label, depth, error=str(failure).removeprefix(answers.FAILED))
                raise
        self.telemetry.completed(
            label,
            depth,
            status=findings.status,
            turns=findings.turns_used,
            tokens=findings.tokens_consumed,
            seconds=findings.seconds,
        )
        return findings

    async def look(self, run_id: RunId) -> RunView:
        view = await self._supervisor.look(run_id)
        assert view is not None
        return view

    def seconds(self, view: RunView) -> float:
        """How long a subagent has been running."""
        return max(0.0, (view.ended_at or self._dialect_context.clock.now()) - view.started_at)

    async def cancel(self, run_id: RunId, note: str) -> None:
        await self._supervisor.cancel(run_id, note=note)

    def _tools(self, task: ChildTask, context: CallContext) -> tuple[str, ...]:
        kept = inherited(task.request.allowed_tools, inheritable(context.offered))
        return (*kept, SUBAGENT) if task.nests else kept

    def _spawn_request(
        self,
        task: ChildTask,
        tools: tuple[str, ...],
        context: CallContext,
        used: Used | None,
        windows: tuple[Window, ...],
        limit: RunLimit | None,
    ) -> SpawnRequest:
        request = task.request
        caller = self._dialect_context.run_spec_of(context.run_id)
        return SpawnRequest(
            agent=context.agent,
            run_spec=self._dialect_context.run_spec_for(
                caller, agent=caller.agent, system=caller.system, offered=tools, model=self._model(caller)
            ),
            task=request.task_prompt,
            limits=Limits(exchange_turns=self._max_turns(request), timeout=self.quotas.seconds_left(used)),
            windows=windows,
            lifecycle=Lifecycle(keep_alive=request.summary_prompt is not None, awaited=True),
            label=request.label,
            dialect=NAME,
            limit=limit,
        )

    def _max_turns(self, request: Delegation) -> int:
        return request.max_turns or self._settings.default_max_turns

    def _model(self, caller: RunSpec) -> str:
        """The model of the settings, in the form of `DialectContext.resolve`; empty for the caller's."""
        if self._settings.provider is None:
            return self._settings.model or ""
        return f"{self._settings.provider}:{self._settings.model or caller.model}"

    async def _findings(self, run_id: RunId, task: ChildTask, context: CallContext) -> Findings:
        request = task.request
        exchange = await self._supervisor.exchange(run_id, 1)
        out_of_turns = exchange.result == "exhausted" and exchange.reason == "max_turns"
        if out_of_turns:
            self.telemetry.ran_out_of_turns(request.label, context.depth + 1, max_turns=self._max_turns(request))
        if exchange.result != "completed" and not (out_of_turns and request.summary_prompt is not None):
            await self._close(run_id, task)
            raise await self._failure(exchange, context)
        text = exchange.text if request.summary_prompt is None else await self._summary(run_id, task, context)
        output = cut(text, self._settings.output_max_size, TRUNCATED, unit="bytes")
        if output.shortened:
            self.telemetry.truncated(request.label, original=output.size, kept=output.kept)
        view = await self.look(run_id)
        return Findings(
            output=output.text,
            max_turns_reached=out_of_turns,
            turns_used=view.turns,
            tokens_consumed=view.usage.total,
            seconds=self.seconds(view),
        )

    async def _summary(self, run_id: RunId, task: ChildTask, context: CallContext) -> str:
        # A run that has ended takes no messages; after a crash its summary is in the log already.
        with suppress(RunIsOver):
            summary_prompt = Input(key=f"{task.key}/summary", text=task.request.summary_prompt or "", tools=False)
            await self._supervisor.post(run_id, summary_prompt)
        summary = await self._supervisor.exchange(run_id, 2)
        await self._close(run_id, task)
        if summary.result != "completed":
            raise await self._failure(summary, context)
        return summary.text

    async def _close(self, run_id: RunId, task: ChildTask) -> None:
        """End the child's conversation before the call returns, so that no crash leaves it waiting."""
        with suppress(RunIsOver):
            await self._supervisor.post(run_id, Close(key=f"{task.key}/close"))
        if self._supervisor.placed_spec(run_id) is not None:
            # The process that drives it may read this later than the caller ends, which would cancel it.
            await self._supervisor.wait((run_id,))

    async def _failure(self, exchange: Exchange, context: CallContext) -> SubagentRefused:
        quota = await self.quotas.why_stopped(exchange, context.root_id)
        return quota or answers.failed(exchange.error or exchange.reason, "execution_failed")
