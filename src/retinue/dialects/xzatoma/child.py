"""Subagents of `xzatoma`: how they are started and waited for.

A subagent has its caller's agent, system text and tools, the model of its caller or of the settings, and the task
prompt as its first message. It stays alive after the task's answer for the summary prompt, which is sent without tools
in the same conversation. Every step has a key derived from the call's: entered again after a crash, the call finds its
subagent and goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

from msgspec import Struct

from retinue.core.agent import RunSpec
from retinue.core.budget import Window
from retinue.core.errors import BadInput, Refused, RunIsOver
from retinue.core.ids import Key, RunId
from retinue.core.inbox import Close, Input
from retinue.core.ports import CallContext
from retinue.core.run import Exchange, Lifecycle, Limits
from retinue.core.text import cut
from retinue.dialects.context import DialectContext
from retinue.dialects.xzatoma import NAME
from retinue.dialects.xzatoma.quotas import Quotas, Used
from retinue.dialects.xzatoma.requests import SUBAGENT, Delegation, ErrorType, SubagentRefused, inheritable, inherited
from retinue.dialects.xzatoma.settings import XzatomaSettings, unknown_provider
from retinue.dialects.xzatoma.telemetry import Telemetry
from retinue.dialects.xzatoma.transcripts import Retention
from retinue.engine import RunView, SpawnRequest

TRUNCATED = "[Output truncated]"
FAILED = "Subagent execution failed: "


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
        self.telemetry = Telemetry(dialect_context.meter, enabled=settings.telemetry_enabled)
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
                if self._settings.has_quotas:
                    await stack.enter_async_context(self.quotas.lock)
                used = await self.quotas.check(context.root_id)
                windows = await self.quotas.windows(context.root_id)
                spawn_request = self._spawn_request(task, tools, context, used, windows)
                started = await self._dialect_context.spawn(spawn_request, context, key=task.key)
        except SubagentRefused:
            raise
        except Refused as refused:
            self.telemetry.failed(label, depth, error=str(refused))
            raise _failed(str(refused), "initialization_failed") from refused
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
                self.telemetry.failed(label, depth, error=str(failure).removeprefix(FAILED))
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
    ) -> SpawnRequest:
        request = task.request
        caller = self._dialect_context.run_spec_of(context.run_id)
        return SpawnRequest(
            agent=context.agent,
            run_spec=self._dialect_context.run_spec_for(
                caller, agent=caller.agent, system=caller.system, offered=tools, model=self._model(caller)
            ),
            task=request.task_prompt,
            limits=Limits(exchange_turns=self._max_turns(request), seconds=self.quotas.seconds_left(used)),
            windows=windows,
            lifecycle=Lifecycle(keep_alive=request.summary_prompt is not None, awaited=True),
            label=request.label,
            dialect=NAME,
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

    async def _failure(self, exchange: Exchange, context: CallContext) -> SubagentRefused:
        quota = await self.quotas.why_stopped(exchange, context.root_id)
        return quota or _failed(exchange.error or exchange.reason, "execution_failed")


def _failed(reason: str, error_type: ErrorType) -> SubagentRefused:
    return SubagentRefused(f"{FAILED}{reason}", error_type)
