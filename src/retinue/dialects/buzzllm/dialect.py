"""The tool `call_subagent`: it starts a run whose only model call is a child process, and returns its text."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from retinue.core.agent import ToolSpec
from retinue.core.budget import Caps
from retinue.core.errors import Refused
from retinue.core.ids import RunId
from retinue.core.policy import Policy
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.core.run import Lifecycle, Limits
from retinue.dialects.base import Dialect, DialectTool
from retinue.dialects.buzzllm import NAME
from retinue.dialects.buzzllm.process_provider import process_provider_name
from retinue.dialects.buzzllm.requests import CALL_SUBAGENT, CATALOG, NOT_CONFIGURED, parse, spec_of, subset
from retinue.dialects.buzzllm.settings import DEFAULTS, BuzzllmSettings
from retinue.dialects.context import DialectContext
from retinue.dialects.error_codes import CallRefused
from retinue.engine import SpawnRequest

MARGIN = 60.0
"""Seconds that the engine waits longer than the process, which should end first and report why."""


class BuzzllmDialect(Dialect):
    """One tool, for the root alone: a subagent cannot call another."""

    name = NAME

    def __init__(self, dialect_context: DialectContext, settings: BuzzllmSettings = DEFAULTS) -> None:
        self._tools: dict[str, Tool] = {CALL_SUBAGENT: CallSubagent(dialect_context, settings)}

    def tools(self) -> Mapping[str, Tool]:
        return self._tools


class CallSubagent(DialectTool):
    """The `call_subagent` tool: starts a process with the caller's model, its rights and a share of its budget.

    Entered again after a crash, the call finds its run and goes on waiting.
    """

    spec: ToolSpec = spec_of(CATALOG)
    waits = True

    def __init__(self, dialect_context: DialectContext, settings: BuzzllmSettings) -> None:
        self._dialect_context = dialect_context
        self._supervisor = dialect_context.supervisor
        self._seconds = settings.timeout_secs + MARGIN

    def spec_for(self, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        return spec_of(self._catalog(policy))

    def _catalog(self, policy: Policy) -> list[str]:
        """The tools that a subagent of a run with this policy can have."""
        allowed = self._dialect_context.tools_within(policy)
        return [name for name in CATALOG if name in allowed]

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Delegate and wait for the answer; the result of a refusal or failure is `Error: ` and the reason."""
        try:
            begun = await self._dialect_context.begun(context)
            run_id = await self._begin(arguments, context) if begun is None else begun.run_id
            exchange = await self._supervisor.exchange(run_id, 1)
            if exchange.result != "completed":
                raise CallRefused(exchange.error or exchange.reason)
            return ToolResult(exchange.text)
        except Refused as error:
            return ToolResult(f"Error: {error}", failed=True)

    async def _begin(self, arguments: str, context: CallContext) -> RunId:
        request, families = parse(arguments), self._dialect_context.families
        caller = self._dialect_context.run_spec_of(context.run_id)
        provider = process_provider_name(families, caller.provider)
        if provider is None or context.depth > 0:
            raise CallRefused(NOT_CONFIGURED)
        tools = subset(request.tool_subset, self._catalog(context.policy))
        run_spec = self._dialect_context.run_spec_for(
            caller, agent=caller.agent, system=request.system_prompt or "", offered=tools
        )
        fallback = ((process_provider_name(families, name), model) for name, model in caller.fallback)
        spawn_request = SpawnRequest(
            stays_here=True,
            agent=context.agent,
            run_spec=replace(
                run_spec,
                provider=provider,
                max_output=caller.max_output,
                temperature=caller.temperature,
                dialects=(),
                fallback=tuple((name, model) for name, model in fallback if name is not None),
            ),
            task=request.prompt,
            limits=self._share(context),
            reserved=True,
            lifecycle=Lifecycle(awaited=True),
            label="subagent",
            dialect=NAME,
        )
        started = await self._dialect_context.spawn(spawn_request, context)
        return started.run_id

    def _share(self, context: CallContext) -> Limits:
        """The subagent's limits: what the caller has left, divided by the calls of the same reply.

        The share is reserved, because the usage of a process is known only after its end. If other runs of the tree
        are live besides such processes, half of it is left to them.
        """
        caller = self._supervisor.live(context.run_id)
        open_calls = [
            call
            for call in (caller.run.open if caller is not None else ())
            if call.call.name == CALL_SUBAGENT and call.result is None and call.index >= context.index
        ]
        above = (context.run_id, context.root_id)
        alone = all(
            live.run_id in above or live.run.accepted.root_id != context.root_id or live.run.accepted.dialect == NAME
            for live in self._supervisor.live_runs()
        )
        left = self._supervisor.left(context.run_id)
        return _limits(left, max(1, len(open_calls)) * (1 if alone else 2), self._seconds)


def _limits(left: Caps, shares: int, seconds: float) -> Limits:
    def share(number: int | None) -> int | None:
        return None if number is None else number // shares

    return Limits(
        max_input_tokens=share(left.input),
        max_output_tokens=share(left.output),
        max_tokens=share(left.tokens),
        max_nanodollars=share(left.cost),
        model_timeout=seconds,
        idle_timeout=seconds,  # a process that prints nothing may be using a tool
    )
