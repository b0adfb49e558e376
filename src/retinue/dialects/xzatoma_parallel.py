"""The `parallel_subagent` tool of `xzatoma`: several subagents at once, and one answer about all of them."""

from __future__ import annotations

import asyncio

from retinue.core.agent import ToolSpec
from retinue.core.ids import RunId
from retinue.core.ports import CallContext, ToolResult
from retinue.dialects import xzatoma_batch
from retinue.dialects.base import DialectTool
from retinue.dialects.xzatoma_answer import answer
from retinue.dialects.xzatoma_batch import Batch, Result, check_depth, parse
from retinue.dialects.xzatoma_child import Children, Order
from retinue.dialects.xzatoma_requests import NotMet, Shape, checked, named
from retinue.dialects.xzatoma_settings import XzatomaSettings

CANCELLED = "Cancelled: another task failed and fail_fast is set"


class ParallelTool(DialectTool):
    """Start a subagent for each task, so many at a time, and answer with the results in the order of the tasks.

    Its subagents cannot delegate on, and are asked for a summary only where the task says so. Each has a key of its
    own below the call's: entered again after a crash, the call finds those that were started, and starts the rest.
    """

    waits = True

    def __init__(self, children: Children, settings: XzatomaSettings) -> None:
        self.spec: ToolSpec = xzatoma_batch.spec(settings.default_max_turns)
        self._children = children
        self._settings = settings

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Delegate all tasks, and wait; every refusal is an answer, and a task that fails is a result."""
        try:
            output = await self._delegate(arguments, context)
        except NotMet as error:
            self._children.telemetry.refused(context.depth + 1, error.error_type)
            return ToolResult(answer({}, error=str(error)), failed=True)
        return ToolResult(answer({}, output=output))

    async def _delegate(self, arguments: str, context: CallContext) -> str:
        # What was begun before a crash is gone on with, whatever the quotas and settings say by now.
        if await self._children.begun(context, _key(context, 0)) is None:
            await self._children.quotas.check(context.root_id)
            self._check_depth(context)
        return await _Work(self._children, parse(arguments), context).done()

    def _check_depth(self, context: CallContext) -> None:
        try:
            check_depth(context.depth, self._settings.max_depth)
        except NotMet:
            self._children.telemetry.too_deep("", depth=context.depth, max_depth=self._settings.max_depth)
            raise


class _Work:
    """One batch under way."""

    def __init__(self, children: Children, batch: Batch, context: CallContext) -> None:
        self._children = children
        self._batch = batch
        self._context = context
        self._room = asyncio.Semaphore(batch.max_concurrent)
        self._running: dict[int, RunId] = {}
        self._spans: list[tuple[float, float]] = []
        self._given_up = False

    async def done(self) -> str:
        """The results of all tasks, as the model reads them."""
        async with asyncio.TaskGroup() as tasks:
            results = [tasks.create_task(self._result(place, task)) for place, task in enumerate(self._batch.tasks)]
        begun, ended = [start for start, _ in self._spans], [end for _, end in self._spans]
        total = max(ended) - min(begun) if self._spans else 0.0
        return xzatoma_batch.told([each.result() for each in results], total_duration_ms=_milliseconds(total))

    async def _result(self, place: int, task: Shape) -> Result:
        label = named(task.label)
        async with self._room:
            if self._given_up:
                return Result(label=label, success=False, error=CANCELLED)
            try:
                result = await self._work(place, label, task)
            except NotMet as failure:
                self._children.telemetry.refused(self._context.depth + 1, failure.error_type)
                result = await self._failure(place, label, str(failure))
            if not result.success and self._batch.fail_fast:
                await self._give_up(but=place)
            return result

    async def _work(self, place: int, label: str, task: Shape) -> Result:
        order = Order(request=checked(task, summary=None), key=_key(self._context, place), nests=False)
        run_id = await self._children.begun(self._context, order.key)
        if run_id is None:
            run_id = await self._children.begin(order, self._context)
        self._running[place] = run_id
        found = await self._children.findings(run_id, order, self._context)
        seconds, _ = await self._measured(place)
        return Result(
            label=label,
            success=True,
            output=found.output,
            duration_ms=_milliseconds(seconds),
            tokens_used=found.tokens_consumed,
        )

    async def _failure(self, place: int, label: str, error: str) -> Result:
        if place not in self._running:
            return Result(label=label, success=False, error=error)
        seconds, tokens = await self._measured(place)
        error = CANCELLED if self._given_up else error
        return Result(label=label, success=False, duration_ms=_milliseconds(seconds), error=error, tokens_used=tokens)

    async def _measured(self, place: int) -> tuple[float, int]:
        view = await self._children.look(self._running.pop(place))
        seconds = self._children.seconds(view)
        self._spans.append((view.started_at, view.started_at + seconds))
        return seconds, view.usage.total

    async def _give_up(self, *, but: int) -> None:
        self._given_up = True
        for place, run_id in tuple(self._running.items()):
            if place != but:
                await self._children.cancel(run_id, CANCELLED)


def _key(context: CallContext, place: int) -> str:
    return f"{context.key}/{place}"


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
