"""The tools of `xzatoma`: `subagent`, and `parallel_subagent` for the root."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.core.ids import RunId
from retinue.core.policy import Policy
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.core.state import Run
from retinue.dialects.arguments import compact_json
from retinue.dialects.base import Dialect, DialectTool
from retinue.dialects.context import DialectContext
from retinue.dialects.xzatoma import NAME, requests
from retinue.dialects.xzatoma.answers import SubagentRefused, result_text
from retinue.dialects.xzatoma.child import Children, ChildTask, Findings
from retinue.dialects.xzatoma.requests import PARALLEL, SUBAGENT, Shape
from retinue.dialects.xzatoma.settings import DEFAULTS, XzatomaSettings

CANCELLED = "Cancelled: another task failed and fail_fast is set"


class XzatomaDialect(Dialect):
    """Offers `subagent` to every run (at the greatest depth it refuses), and `parallel_subagent` to the root."""

    name = NAME

    def __init__(self, dialect_context: DialectContext, settings: XzatomaSettings = DEFAULTS) -> None:
        children = Children(dialect_context, settings)
        self._tools: dict[str, Tool] = {
            SUBAGENT: SubagentTool(children, settings),
            PARALLEL: ParallelTool(children, settings),
        }

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def offered(self, *, depth: int) -> tuple[str, ...]:
        return tuple(self._tools) if depth == 0 else (SUBAGENT,)

    def log_fields(self, run: Run) -> Mapping[str, object]:
        """The run, and the label and depth of a subagent."""
        accepted = run.accepted
        if accepted.dialect != NAME or accepted.parent_id is None:
            return {"run_id": accepted.run_id}
        return {"run_id": accepted.run_id, "subagent.label": accepted.label, "subagent.depth": accepted.depth}


class SubagentTool(DialectTool):
    """The `subagent` tool: start a child, ask it for a summary, and answer with the summary."""

    waits = True

    def __init__(self, children: Children, settings: XzatomaSettings) -> None:
        self.spec: ToolSpec = requests.spec(settings.default_max_turns)
        self._default_max_turns = settings.default_max_turns
        self._children = children

    def spec_for(self, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        return requests.spec(self._default_max_turns, requests.inheritable(offered))

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Delegate and wait for the summary; refusals and failures are answers too."""
        metadata = {"subagent_label": requests.label_of(arguments), "recursion_depth": str(context.depth + 1)}
        try:
            findings = await self._delegate(arguments, context)
        except SubagentRefused as error:
            self._children.telemetry.refused(context.depth + 1, error.error_type)
            return ToolResult(result_text(metadata, error=str(error)), failed=True)
        return ToolResult(result_text(metadata | _metadata(findings), output=findings.output))

    async def _delegate(self, arguments: str, context: CallContext) -> Findings:
        # A subagent that was started before a crash goes on, even if the current settings would refuse it.
        run_id = await self._children.begun(context, context.key)
        if run_id is None:
            await self._children.quotas.check(context.root_id)
            self._children.check_depth(requests.check_depth, requests.label_of(arguments), context)
        task = ChildTask(request=requests.parse(arguments), key=context.key, nests=True)
        if run_id is None:
            run_id = await self._children.begin(task, context)
        return await self._children.findings(run_id, task, context)


def _metadata(findings: Findings) -> dict[str, str]:
    """The metadata of a success; the document has strings only."""
    return {
        "completion_status": findings.status,
        "turns_used": str(findings.turns_used),
        "max_turns_reached": "true" if findings.max_turns_reached else "false",
        "tokens_consumed": str(findings.tokens_consumed),
    }


class ParallelTool(DialectTool):
    """The `parallel_subagent` tool: several subagents at once, and one answer with the results in their order.

    Its subagents cannot delegate, and are asked for a summary only if the task has a summary prompt. Each has a key of
    its own below the call's: entered again after a crash, the call finds those that were started, and starts the rest.
    """

    waits = True

    def __init__(self, children: Children, settings: XzatomaSettings) -> None:
        self.spec: ToolSpec = requests.parallel_spec(settings.default_max_turns)
        self._default_max_turns = settings.default_max_turns
        self._children = children

    def spec_for(self, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        return requests.parallel_spec(self._default_max_turns, requests.inheritable(offered))

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Delegate all tasks and wait; a refusal is an answer, and a failed task a result."""
        try:
            output = await self._delegate(arguments, context)
        except SubagentRefused as error:
            self._children.telemetry.refused(context.depth + 1, error.error_type)
            return ToolResult(result_text({}, error=str(error)), failed=True)
        return ToolResult(result_text({}, output=output))

    async def _delegate(self, arguments: str, context: CallContext) -> str:
        # Tasks that were started before a crash go on, even if the current quotas and settings would refuse them.
        if await self._children.begun(context, _key(context, 0)) is None:
            await self._children.quotas.check(context.root_id)
            self._children.check_depth(requests.check_parallel_depth, requests.NO_LABEL, context)
        return await _BatchRun(self._children, requests.parse_batch(arguments), context).output()


class BatchResult(Struct, frozen=True, kw_only=True):
    """The result of one task of a batch."""

    label: str
    success: bool
    output: str = ""
    duration_ms: int = 0
    error: str | None = None
    tokens_used: int = 0


class _BatchRun:
    """The execution of one batch."""

    def __init__(self, children: Children, batch: requests.Batch, context: CallContext) -> None:
        self._children = children
        self._batch = batch
        self._context = context
        self._slots = asyncio.Semaphore(batch.max_concurrent)
        self._running: dict[int, RunId] = {}
        self._spans: list[tuple[float, float]] = []
        self._is_cancelled = False

    async def output(self) -> str:
        """Run all tasks; their results as the model reads them."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._result(index, task)) for index, task in enumerate(self._batch.tasks)]
        results = [task.result() for task in tasks]
        successful = sum(result.success for result in results)
        seconds = max(end for _, end in self._spans) - min(start for start, _ in self._spans) if self._spans else 0.0
        return compact_json(
            {
                "results": results,
                "total_duration_ms": _milliseconds(seconds),
                "successful": successful,
                "failed": len(results) - successful,
            }
        )

    async def _result(self, index: int, task: Shape) -> BatchResult:
        label = requests.named(task.label)
        async with self._slots:
            if self._is_cancelled:
                return BatchResult(label=label, success=False, error=CANCELLED)
            try:
                result = await self._work(index, label, task)
            except SubagentRefused as failure:
                self._children.telemetry.refused(self._context.depth + 1, failure.error_type)
                result = await self._failure(index, label, str(failure))
            if not result.success and self._batch.fail_fast:
                await self._cancel_others(index)
            return result

    async def _work(self, index: int, label: str, shape: Shape) -> BatchResult:
        task = ChildTask(request=requests.checked(shape, summary=None), key=_key(self._context, index), nests=False)
        run_id = await self._children.begun(self._context, task.key)
        if run_id is None:
            run_id = await self._children.begin(task, self._context)
        self._running[index] = run_id
        findings = await self._children.findings(run_id, task, self._context)
        seconds, _ = await self._measured(index)
        return BatchResult(
            label=label,
            success=True,
            output=findings.output,
            duration_ms=_milliseconds(seconds),
            tokens_used=findings.tokens_consumed,
        )

    async def _failure(self, index: int, label: str, error: str) -> BatchResult:
        if index not in self._running:
            return BatchResult(label=label, success=False, error=error)
        seconds, tokens = await self._measured(index)
        return BatchResult(
            label=label,
            success=False,
            duration_ms=_milliseconds(seconds),
            error=CANCELLED if self._is_cancelled else error,
            tokens_used=tokens,
        )

    async def _measured(self, index: int) -> tuple[float, int]:
        """Seconds and tokens of a task that has ended."""
        view = await self._children.look(self._running.pop(index))
        seconds = self._children.seconds(view)
        self._spans.append((view.started_at, view.started_at + seconds))
        return seconds, view.usage.total

    async def _cancel_others(self, failed: int) -> None:
        self._is_cancelled = True
        for index, run_id in tuple(self._running.items()):
            if index != failed:
                await self._children.cancel(run_id, CANCELLED)


def _key(context: CallContext, index: int) -> str:
    return f"{context.key}/{index}"


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
