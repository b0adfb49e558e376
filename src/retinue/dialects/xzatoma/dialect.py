"""The tools of `xzatoma`: `subagent`, and `parallel_subagent` for the root."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.core.agent import ToolSpec
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.dialects.base import Dialect, DialectTool
from retinue.dialects.context import DialectContext
from retinue.dialects.xzatoma import NAME
from retinue.dialects.xzatoma.child import Children, Findings, Order
from retinue.dialects.xzatoma.parallel import ParallelTool
from retinue.dialects.xzatoma.requests import (
    PARALLEL,
    SUBAGENT,
    SubagentRefused,
    answer,
    check_depth,
    label_of,
    parse,
    spec,
)
from retinue.dialects.xzatoma.settings import DEFAULTS, XzatomaSettings


class XzatomaDialect(Dialect):
    """`subagent`, which every run has (at the greatest depth it is there too, and refuses), and for the root
    `parallel_subagent`.
    """

    name = NAME

    def __init__(self, dialect_context: DialectContext, settings: XzatomaSettings = DEFAULTS) -> None:
        children = Children(dialect_context, settings)
        self._tools: dict[str, Tool] = {
            SUBAGENT: SubagentTool(children, settings),
            PARALLEL: ParallelTool(children, settings),
        }

    def tools(self) -> Mapping[str, Tool]:
        """The dialect's tools, in the order of its document."""
        return self._tools

    def offered(self, *, depth: int) -> tuple[str, ...]:
        """Both for the root, and one however deep the run is."""
        return tuple(self._tools) if depth == 0 else (SUBAGENT,)


class SubagentTool(DialectTool):
    """The `subagent` tool: start a child, have it summarize, answer with what it said."""

    waits = True

    def __init__(self, children: Children, settings: XzatomaSettings) -> None:
        self.spec: ToolSpec = spec(settings.default_max_turns)
        self._children = children
        self._settings = settings

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Delegate, and wait for the summary; every refusal and every failure is an answer."""
        about = {"subagent_label": label_of(arguments), "recursion_depth": str(context.depth + 1)}
        try:
            findings = await self._delegate(arguments, context)
        except SubagentRefused as error:
            self._children.telemetry.refused(context.depth + 1, error.error_type)
            return ToolResult(answer(about, error=str(error)), failed=True)
        return ToolResult(answer(about | _told(findings), output=findings.output))

    async def _delegate(self, arguments: str, context: CallContext) -> Findings:
        # A subagent that was begun before a crash is gone on with, whatever today's settings would say about it.
        run_id = await self._children.begun(context, context.key)
        if run_id is None:
            await self._children.quotas.check(context.root_id)
            self._check_depth(arguments, context)
        order = Order(request=parse(arguments), key=context.key, nests=True)
        if run_id is None:
            run_id = await self._children.begin(order, context)
        return await self._children.findings(run_id, order, context)

    def _check_depth(self, arguments: str, context: CallContext) -> None:
        depth, most = context.depth, self._settings.max_depth
        try:
            check_depth(depth, most)
        except SubagentRefused:
            self._children.telemetry.too_deep(label_of(arguments), depth=depth, max_depth=most)
            raise


def _told(findings: Findings) -> dict[str, str]:
    """The metadata of a success; the document has strings only."""
    return {
        "completion_status": findings.status,
        "turns_used": str(findings.turns_used),
        "max_turns_reached": "true" if findings.max_turns_reached else "false",
        "tokens_consumed": str(findings.tokens_consumed),
    }
