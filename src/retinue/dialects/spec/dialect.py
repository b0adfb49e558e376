"""The tools of `spec`: `subagent` for the orchestrator, `shared_context` for every participant of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import assert_never

from retinue.core.agent import Agent, ToolSpec
from retinue.core.errors import BadInput
from retinue.core.ports import CallContext, CallRisk, PreparedCall, Tool, ToolResult
from retinue.core.run import Outcome
from retinue.dialects.arguments import Coded, JsonObject
from retinue.dialects.base import Dialect, DialectTool
from retinue.dialects.context import DialectContext
from retinue.dialects.logging_tool import LoggedTool
from retinue.dialects.shared_context import NAME as SHARED_CONTEXT
from retinue.dialects.shared_context.tool import SharedContextTool
from retinue.dialects.spec import NAME, prompts, requests, results
from retinue.dialects.spec.actions import Delegation, log
from retinue.dialects.spec.agents import AgentStore
from retinue.dialects.spec.requests import (
    Cancel,
    Collect,
    Define,
    Extend,
    ListAgents,
    Progress,
    Redefine,
    Request,
    Spawn,
    Status,
    Wait,
)
from retinue.dialects.spec.results import HANDLE_SPACE
from retinue.dialects.spec.schema import SUBAGENT, spec_of
from retinue.dialects.spec.settings import DEFAULTS, SpecSettings, mistakes
from retinue.dialects.text import compact


class SpecDialect(Dialect):
    """The two tools of the dialect; an orchestrator has both, a subagent `shared_context` if its agent names it."""

    name = NAME

    def __init__(self, dialect_context: DialectContext, settings: SpecSettings = DEFAULTS) -> None:
        if wrong := mistakes(settings):
            raise BadInput(f"spec.{wrong[0][0]}: {wrong[0][1]}")
        dialect_context.supervisor.limit_running(HANDLE_SPACE, settings.max_running)
        self._clock = dialect_context.clock
        self._extensions = settings.on
        agent_store = AgentStore(dialect_context)
        self._delegation = Delegation(dialect_context, settings, agent_store)
        self._tools: dict[str, Tool] = {
            SUBAGENT: SubagentTool(agent_store, self._delegation, settings),
            SHARED_CONTEXT: SharedContextTool(dialect_context, settings.on),
        }

    def tools(self) -> Mapping[str, Tool]:
        """Both tools, in the order of the documents."""
        return self._tools

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        """What an orchestrator is told."""
        return prompts.orchestrator_text(agents, offered, self._extensions)

    def around(self, tool: Tool) -> Tool:
        """The tool with a line in the log for each call, a subagent's under its task id."""
        return LoggedTool(tool, log, self._clock, space=HANDLE_SPACE)

    def handover(self, outcome: Outcome) -> tuple[bool, str]:
        """What tasks read that depend on one: its result as it would be collected, or why it failed."""
        if outcome.result == "completed":
            return True, results.result(outcome.text)
        return False, results.failure(self._delegation.in_words(outcome))


class SubagentTool(DialectTool):
    """The `subagent` tool: parse, do, render. It keeps nothing; tasks are runs, their ids are handles."""

    def __init__(self, agent_store: AgentStore, delegation: Delegation, settings: SpecSettings) -> None:
        self._agent_store = agent_store
        self._delegation = delegation
        self._extensions = settings.on
        self.spec: ToolSpec = spec_of(settings.on)
        self.waits = "wait" in settings.on

    def prepare(self, arguments: str) -> PreparedCall:
        """Parse the request; only the action `wait` waits for other runs."""
        try:
            request = requests.parse(arguments, self._extensions)
        except Coded as refusal:
            request = refusal.with_traceback(None)
        run = partial(self._run, request)
        return PreparedCall(arguments, CallRisk(self.risk), run, waits=isinstance(request, Wait))

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Parse the request and answer it; a refusal is an answer too."""
        return await self.prepare(arguments).run(context)

    async def _run(self, request: Request | Coded, context: CallContext) -> ToolResult:
        try:
            if context.depth > 0:  # a run that another dialect started may have inherited the tool
                raise results.only_for_the_orchestrator()
            if isinstance(request, Coded):
                raise request
            return ToolResult(compact(await self._answer(request, context)))
        except Coded as refusal:
            # The model is expected to ask for a result too early now and then; that is no failure.
            return ToolResult(compact(refusal.answer), failed=refusal.code != "TASK_NOT_READY")

    async def _answer(self, request: Request, context: CallContext) -> JsonObject:
        match request:
            case ListAgents():
                return await self._agent_store.list(context)
            case Define() | Extend() | Redefine():
                return await self._agent_store.define(request, context)
            case Spawn():
                return await self._delegation.spawn(request, context)
            case Status():
                return await self._delegation.status(request, context)
            case Collect():
                return await self._delegation.collect(request, context)
            case Cancel():
                return await self._delegation.cancel(request, context)
            case Progress():
                return await self._delegation.progress(request, context)
            case Wait():
                return await self._delegation.wait(request, context)
            case _:
                assert_never(request)
