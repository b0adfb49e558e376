"""The `parallel_subagent` tool of `xzatoma`: several subagents at once, and one answer about all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.core.ids import RunId
from retinue.core.ports import CallContext, ToolResult
from retinue.dialects.arguments import compact
from retinue.dialects.base import DialectTool
from retinue.dialects.xzatoma.child import Children, Order
from retinue.dialects.xzatoma.requests import (
    PARALLEL,
    Shape,
    SubagentRefused,
    answer,
    checked,
    named,
    read,
    task_schema,
    whole,
)
from retinue.dialects.xzatoma.settings import XzatomaSettings

DEFAULT_CONCURRENT = 5


class Batch(Struct, frozen=True, kw_only=True):
    """Tasks as they were written down; each is checked when its turn comes."""

    tasks: tuple[Shape, ...]
    max_concurrent: int = DEFAULT_CONCURRENT
    fail_fast: bool = False


class Result(Struct, frozen=True, kw_only=True):
    """What became of one task."""

    label: str
    success: bool
    output: str = ""
    duration_ms: int = 0
    error: str | None = None
    tokens_used: int = 0


class _Shape(Struct):
    tasks: tuple[Shape, ...] | None = None
    max_concurrent: int | float | None = None
    fail_fast: bool | None = None


def spec(default_max_turns: int) -> ToolSpec:
    """The tool as a model sees it."""
    return ToolSpec(
        PARALLEL,
        "Delegate several independent tasks at once, each to an agent instance with isolated conversation context, and "
        "wait for all of them. These subagents cannot delegate further.",
        compact(
            {
                "type": "object",
                "properties": {
                    "tasks": {
                        "type": "array",
                        "minItems": 1,
                        "items": task_schema(default_max_turns, summary=None),
                        "description": "The tasks, in the order in which their results are told.",
                    },
                    "max_concurrent": {
                        "type": "integer",
                        "minimum": 1,
                        "default": DEFAULT_CONCURRENT,
                        "description": f"How many work at the same time; {DEFAULT_CONCURRENT} by default.",
                    },
                    "fail_fast": {
                        "type": "boolean",
                        "default": False,
                        "description": "Whether the first task that fails cancels the others; false by default.",
                    },
                },
                "required": ["tasks"],
            }
        ),
    )


def parse(arguments: str) -> Batch:
    """The tasks that a call asks for; no more can work at the same time than there are.

    >>> parse('{"tasks": [{"label": "a", "task_prompt": "dig"}]}').max_concurrent
    1
    """
    asked = read(arguments, _Shape)
    if asked.tasks is None:
        raise SubagentRefused("Invalid input: missing field `tasks`")
    wished = whole(asked.max_concurrent, "max_concurrent")
    most = DEFAULT_CONCURRENT if wished is None else wished
    if most < 1:
        raise SubagentRefused("Invalid input: Expected `int` >= 1 - at `$.max_concurrent`")
    if not asked.tasks:
        raise SubagentRefused("At least one task required", "empty_tasks")
    return Batch(tasks=asked.tasks, max_concurrent=min(most, len(asked.tasks)), fail_fast=bool(asked.fail_fast))


def check_depth(depth: int, max_depth: int) -> None:
    """Refuse a caller that is as deep as the settings allow."""
    if depth >= max_depth:
        raise SubagentRefused(f"Maximum subagent depth {max_depth} reached", "max_depth_reached")


def told(results: Sequence[Result], *, total_duration_ms: int) -> str:
    """All results as the model reads them.

    >>> told([], total_duration_ms=7)
    '{"results":[],"total_duration_ms":7,"successful":0,"failed":0}'
    """
    successful = sum(each.success for each in results)
    return compact(
        {
            "results": results,
            "total_duration_ms": total_duration_ms,
            "successful": successful,
            "failed": len(results) - successful,
        }
    )


CANCELLED = "Cancelled: another task failed and fail_fast is set"


class ParallelTool(DialectTool):
    """Start a subagent for each task, so many at a time, and answer with the results in the order of the tasks.

    Its subagents cannot delegate on, and are asked for a summary only where the task says so. Each has a key of its
    own below the call's: entered again after a crash, the call finds those that were started, and starts the rest.
    """

    waits = True

    def __init__(self, children: Children, settings: XzatomaSettings) -> None:
        self.spec: ToolSpec = spec(settings.default_max_turns)
        self._children = children
        self._settings = settings

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Delegate all tasks, and wait; every refusal is an answer, and a task that fails is a result."""
        try:
            output = await self._delegate(arguments, context)
        except SubagentRefused as error:
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
        except SubagentRefused:
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
        return told([each.result() for each in results], total_duration_ms=_milliseconds(total))

    async def _result(self, place: int, task: Shape) -> Result:
        label = named(task.label)
        async with self._room:
            if self._given_up:
                return Result(label=label, success=False, error=CANCELLED)
            try:
                result = await self._work(place, label, task)
            except SubagentRefused as failure:
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
