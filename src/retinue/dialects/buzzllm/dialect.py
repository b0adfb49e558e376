"""The `buzzllm` dialect: `call_subagent` runs a subagent in a process of its own and answers with what it said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from retinue.core.agent import Agent
from retinue.core.budget import Caps
from retinue.core.errors import Refused
from retinue.core.ids import RunId
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.core.run import Exchange, Lifecycle, Limits
from retinue.dialects.base import DialectTool
from retinue.dialects.buzzllm import requests
from retinue.dialects.buzzllm.requests import CATALOG, NOT_CONFIGURED, NotMet, Request, parse, subset
from retinue.dialects.buzzllm.settings import DEFAULTS, BuzzllmSettings
from retinue.dialects.context import DialectContext
from retinue.engine import SpawnRequest

NAME = "buzzllm"
LABEL = "subagent"
MARGIN = 60.0
"""Seconds by which the engine is more patient than the process, which is to end first and say why."""


class BuzzllmDialect:
    """One tool, for the root alone: a subagent has no way to call another."""

    name = NAME

    def __init__(self, dialect_context: DialectContext, settings: BuzzllmSettings = DEFAULTS) -> None:
        self._tools: dict[str, Tool] = {requests.NAME: CallSubagent(dialect_context, settings)}

    def tools(self) -> Mapping[str, Tool]:
        """The dialect's tools."""
        return self._tools

    def offered(self, *, depth: int) -> tuple[str, ...]:
        """The tool, to the root."""
        return tuple(self._tools) if depth == 0 else ()

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        """Nothing: the tool speaks for itself."""
        return ""

    def around(self, tool: Tool) -> Tool:
        """The tool just as it is."""
        return tool


class CallSubagent(DialectTool):
    """The `call_subagent` tool: a run of the tree whose model calls are one process, and whose words are the answer.

    The process has the caller's model, its rights and a share of what it has left. Entered again after a crash, the
    call finds its run and goes on waiting.
    """

    spec = requests.SPEC
    waits = True

    def __init__(self, dialect_context: DialectContext, settings: BuzzllmSettings) -> None:
        self._dialect_context = dialect_context
        self._supervisor = dialect_context.supervisor
        self._seconds = settings.timeout_secs + MARGIN

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Delegate, and wait for the words; every refusal and every failure is `Error: ` and why."""
        try:
            begun = await self._dialect_context.begun(context)
            run_id = await self._begin(arguments, context) if begun is None else begun.run_id
            exchange = await self._supervisor.exchange(run_id, 1)
            return ToolResult(_words(exchange))
        except (NotMet, Refused) as error:
            return ToolResult(f"Error: {error}", failed=True)

    async def _begin(self, arguments: str, context: CallContext) -> RunId:
        request = parse(arguments)
        provider = self._dialect_context.families.in_process(self._dialect_context.run_spec_of(context.run_id).provider)
        if provider is None or context.depth > 0:
            raise NotMet(NOT_CONFIGURED)
        allowed = self._dialect_context.tools_within(context.policy)
        tools = subset(request, [name for name in CATALOG if name in allowed])
        spawn_request = self._spawn_request(request, provider, tools, context)
        started = await self._supervisor.spawn(
            spawn_request, session_id=context.session_id, caller=context, key=context.key
        )
        return started.run_id

    def _spawn_request(
        self, request: Request, provider: str, tools: tuple[str, ...], context: CallContext
    ) -> SpawnRequest:
        caller = self._dialect_context.run_spec_of(context.run_id)
        run_spec = self._dialect_context.run_spec_for(
            caller, agent=caller.agent, system=request.system_prompt or "", offered=tools
        )
        others = ((self._dialect_context.families.in_process(name), model) for name, model in caller.fallback)
        return SpawnRequest(
            agent=context.agent,
            run_spec=replace(
                run_spec,
                provider=provider,
                dialects=(),
                fallback=tuple((name, model) for name, model in others if name is not None),
            ),
            task=request.prompt,
            limits=self._share(context),
            reserved=True,
            lifecycle=Lifecycle(awaited=True),
            label=LABEL,
            dialect=NAME,
        )

    def _share(self, context: CallContext) -> Limits:
        """What the subagent may use: an equal share, with those called by the same reply, of what the caller has left.

        It is set aside, because nobody sees what a process uses before it is over. If other runs of the tree are at
        work besides such processes, half of it is left to them.
        """
        caller = self._supervisor.live(context.run_id)
        mine = [
            call
            for call in (caller.run.open if caller is not None else ())
            if call.call.name == requests.NAME and call.result is None and call.index >= context.index
        ]
        above = (context.run_id, context.root_id)
        alone = all(
            each.run_id in above or each.run.accepted.root_id != context.root_id or each.run.accepted.dialect == NAME
            for each in self._supervisor.live_runs()
        )
        left = self._supervisor.left(context.run_id)
        return _limits(left, max(1, len(mine)) * (1 if alone else 2), self._seconds)


def _limits(left: Caps, shares: int, seconds: float) -> Limits:
    def share(number: int | None) -> int | None:
        return None if number is None else number // shares

    return Limits(
        max_input_tokens=share(left.input),
        max_output_tokens=share(left.output),
        max_tokens=share(left.tokens),
        max_cost=share(left.cost),
        model_seconds=seconds,
        idle_seconds=seconds,  # a process that says nothing may be at work with a tool
    )


def _words(exchange: Exchange) -> str:
    if exchange.result != "completed":
        raise NotMet(exchange.error or exchange.reason)
    return exchange.text
