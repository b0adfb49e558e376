"""One subagent of `xzatoma` from its birth to its findings, for whichever tool has started it.

The subagent has its caller's agent, system text and tools, the model of its caller or of the settings, and the task
prompt as its first message. It stays after the task's answer for the summary prompt, which is sent without tools in
the same conversation. Every step has a key that follows from the call's: entered again after a crash, the call finds
its subagent and goes on.
"""

from __future__ import annotations

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
from retinue.dialects.xzatoma import NAME, TOOL_NAMES
from retinue.dialects.xzatoma.quotas import Quotas, Used
from retinue.dialects.xzatoma.requests import SUBAGENT, Delegation, ErrorType, SubagentRefused, inherited
from retinue.dialects.xzatoma.retention import Keeping
from retinue.dialects.xzatoma.settings import XzatomaSettings, unknown_provider
from retinue.dialects.xzatoma.telemetry import Telemetry
from retinue.engine import RunView, SpawnRequest

TRUNCATED = "[Output truncated]"
FAILED = "Subagent execution failed: "


class Order(Struct, frozen=True, kw_only=True):
    """A task for a subagent, and how it is given: the key of its birth, and whether it may delegate on."""

    request: Delegation
    key: Key
    nests: bool


class Findings(Struct, frozen=True, kw_only=True):
    """What a subagent came to."""

    output: str
    max_turns_reached: bool
    turns_used: int
    tokens_consumed: int
    seconds: float

    @property
    def status(self) -> str:
        """The document's word for it."""
        return "incomplete" if self.max_turns_reached else "complete"


class Children:
    """Starts subagents, and waits for them."""

    def __init__(self, dialect_context: DialectContext, settings: XzatomaSettings) -> None:
        self.quotas = Quotas(dialect_context, settings)
        self.telemetry = Telemetry(dialect_context.meter, enabled=settings.telemetry_enabled)
        self._keeping = Keeping(dialect_context, settings)
        self._dialect_context = dialect_context
        self._supervisor = dialect_context.supervisor
        self._settings = settings
        _check_provider(dialect_context, settings)

    async def begun(self, context: CallContext, key: Key) -> RunId | None:
        """The subagent that an order of this key started before a crash."""
        row = await self._dialect_context.begun(replace(context, key=key))
        return None if row is None else row.run_id

    async def begin(self, order: Order, context: CallContext) -> RunId:
        """Start the subagent, unless a quota or a rule of the engine says no."""
        label, depth = order.request.label, context.depth + 1
        tools = self._tools(order, context)
        self._keeping.expect(context.root_id)
        try:
            async with AsyncExitStack() as stack:
                if self._settings.has_quotas:
                    await stack.enter_async_context(self.quotas.birth)
                used = await self.quotas.check(context.root_id)
                windows = await self.quotas.windows(context.root_id)
                spawn_request = self._spawn_request(order, tools, context, used, windows)
                started = await self._supervisor.spawn(
                    spawn_request, session_id=context.session_id, caller=context, key=order.key
                )
        except SubagentRefused:
            raise
        except Refused as refused:
            self.telemetry.failed(label, depth, error=str(refused))
            raise _failed(str(refused), "initialization_failed") from refused
        if not started.existed:
            offered = [
                name for name in self._dialect_context.run_spec_of(started.run_id).offered if name not in TOOL_NAMES
            ]
            self.telemetry.spawned(label, depth, max_turns=self._max_turns(order.request), tools=offered)
        return started.run_id

    async def findings(self, run_id: RunId, order: Order, context: CallContext) -> Findings:
        """Wait for what a subagent finds; whatever keeps it from that is a `SubagentRefused`."""
        label, depth = order.request.label, context.depth + 1
        with self.telemetry.at_work(depth):
            try:
                found = await self._findings(run_id, order, context)
            except SubagentRefused as failure:
                self.telemetry.failed(label, depth, error=str(failure).removeprefix(FAILED))
                raise
        self.telemetry.completed(
            label,
            depth,
            turns=found.turns_used,
            tokens=found.tokens_consumed,
            status=found.status,
            seconds=found.seconds,
        )
        return found

    async def look(self, run_id: RunId) -> RunView:
        """A subagent as it stands."""
        view = await self._supervisor.look(run_id)
        assert view is not None
        return view

    def seconds(self, view: RunView) -> float:
        """How long a subagent has been there."""
        return max(0.0, (view.ended_at or self._dialect_context.clock.now()) - view.started_at)

    async def cancel(self, run_id: RunId, note: str) -> None:
        """Stop a subagent whose findings nobody wants any more."""
        await self._supervisor.cancel(run_id, note=note)

    # Birth

    def _tools(self, order: Order, context: CallContext) -> tuple[str, ...]:
        own = tuple(name for name in context.offered if name not in TOOL_NAMES)
        kept = inherited(order.request.allowed_tools, own)
        return (*kept, SUBAGENT) if order.nests else kept

    def _spawn_request(
        self,
        order: Order,
        tools: tuple[str, ...],
        context: CallContext,
        used: Used | None,
        windows: tuple[Window, ...],
    ) -> SpawnRequest:
        request = order.request
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
        """The model of the settings, as the desk understands it; empty for the caller's."""
        if self._settings.provider is None:
            return self._settings.model or ""
        return f"{self._settings.provider}:{self._settings.model or caller.model}"

    # Work

    async def _findings(self, run_id: RunId, order: Order, context: CallContext) -> Findings:
        request = order.request
        task = await self._supervisor.exchange(run_id, 1)
        out_of_turns = task.result == "exhausted" and task.reason == "max_turns"
        if out_of_turns:
            self.telemetry.ran_out_of_turns(request.label, context.depth + 1, max_turns=self._max_turns(request))
        if task.result != "completed" and not (out_of_turns and request.summary_prompt is not None):
            await self._close(run_id, order)
            raise await self._failure(task, context)
        text = task.text if request.summary_prompt is None else await self._summary(run_id, order, context)
        shown = cut(text, self._settings.output_max_size, TRUNCATED, unit="bytes")
        if shown.shortened:
            self.telemetry.truncated(request.label, original=shown.size, kept=shown.kept)
        view = await self.look(run_id)
        return Findings(
            output=shown.text,
            max_turns_reached=out_of_turns,
            turns_used=view.turns,
            tokens_consumed=view.usage.total,
            seconds=self.seconds(view),
        )

    async def _summary(self, run_id: RunId, order: Order, context: CallContext) -> str:
        # A run that has ended takes no mail; after a crash that is one whose summary is in the log already.
        with suppress(RunIsOver):
            summary_prompt = Input(key=f"{order.key}/summary", text=order.request.summary_prompt or "", tools=False)
            await self._supervisor.post(run_id, summary_prompt)
        summary = await self._supervisor.exchange(run_id, 2)
        await self._close(run_id, order)
        if summary.result != "completed":
            raise await self._failure(summary, context)
        return summary.text

    async def _close(self, run_id: RunId, order: Order) -> None:
        """Nothing more is asked of the child. Said before the call returns, so that no crash leaves it waiting."""
        with suppress(RunIsOver):
            await self._supervisor.post(run_id, Close(key=f"{order.key}/close"))

    async def _failure(self, exchange: Exchange, context: CallContext) -> SubagentRefused:
        quota = await self.quotas.why_stopped(exchange, context.root_id)
        return quota or _failed(exchange.error or exchange.reason, "execution_failed")


def _failed(reason: str, error_type: ErrorType) -> SubagentRefused:
    return SubagentRefused(f"{FAILED}{reason}", error_type)


def _check_provider(dialect_context: DialectContext, settings: XzatomaSettings) -> None:
    """A provider that nobody knows is found out at the start, and not by the first subagent."""
    if settings.provider is not None:
        known, _ = dialect_context.resolve(f"{settings.provider}:", RunSpec(agent="", provider=""))
        if not known:
            raise BadInput(unknown_provider(settings.provider, dialect_context.families.names()))
