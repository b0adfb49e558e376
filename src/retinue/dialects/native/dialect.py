"""The `native` dialect and its six tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from retinue.core.agent import Agent, ToolKind, ToolSpec
from retinue.core.errors import BadInput, Refused, RunIsOver
from retinue.core.events import RunAccepted
from retinue.core.ids import Key, RunId
from retinue.core.inbox import TextMessage
from retinue.core.policy import Policy
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.core.run import Lifecycle, Limits, Outcome
from retinue.dialects.agent_names import agent_named
from retinue.dialects.arguments import arguments_of, compact_json
from retinue.dialects.base import Dialect, DialectTool
from retinue.dialects.context import DialectContext
from retinue.dialects.error_codes import CallRefused, JsonObject
from retinue.dialects.named_runs import NamedRun, NamedRuns
from retinue.dialects.native import NAME, answers, requests
from retinue.dialects.native.requests import MAX_SECONDS, TOOL_NAMES, RunArguments
from retinue.dialects.native.settings import DEFAULTS, NativeSettings
from retinue.dialects.sub_agents import ChildRequest, ChildRules, PlannedChild, SubAgents, is_apart

CANCEL_SECONDS = 10.0
"""How long `cancel_agent` waits for the end of a run."""


class NativeDialect(Dialect):
    """The six tools; a sub-agent has them if `max_depth` lets it delegate."""

    name = NAME

    def __init__(self, dialect_context: DialectContext, settings: NativeSettings = DEFAULTS) -> None:
        made = (RunTool, WaitTool, MessageTool, ResultTool, CancelTool, ListTool)
        self._tools: dict[str, Tool] = {kind.tool: kind(dialect_context, settings) for kind in made}
        self._runs = NamedRuns(dialect_context.supervisor, NAME)

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        return answers.usage_text(agents) if requests.RUN in offered else ""

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str:
        return answers.notice(self._runs.name_in_notice(accepted), accepted.task, outcome)


def rules_of(settings: NativeSettings) -> ChildRules:
    """What holds for all sub-agents of the dialect."""
    return ChildRules(
        dialect=NAME,
        tool_names=TOOL_NAMES,
        max_depth=settings.max_depth,
        max_running=settings.max_running,
        max_turns=settings.max_turns,
        too_many="wait for one with wait_agents first.",
    )


class NativeTool(DialectTool):
    """Base class of the tools: an answer is one JSON object, and a refusal one with the field `error`."""

    tool = ""

    def __init__(self, dialect_context: DialectContext, settings: NativeSettings) -> None:
        self.spec: ToolSpec = requests.specs()[self.tool]
        self._dialect_context = dialect_context
        self._settings = settings
        self._supervisor = dialect_context.supervisor
        self._children = SubAgents(dialect_context, rules_of(settings))
        self._runs = self._children.runs

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        try:
            return ToolResult(compact_json(await self._answer(arguments, context)))
        except (Refused, BadInput) as refusal:
            return ToolResult(compact_json({"error": str(refusal)}), failed=True)

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        raise NotImplementedError

    async def _find(self, run_id: RunId, context: CallContext) -> NamedRun:
        """The run of that id below the caller; raises `CallRefused` with the ids that are valid."""
        named = await self._runs.find(run_id, context)
        if named is None:
            known = await self._runs.all(context)
            raise answers.unknown_run(run_id, [each.run_id for each in known[: answers.MAX_LISTED]])
        return named

    def _mark_read(self, named: NamedRun, context: CallContext) -> None:
        """Drop the notice about the end of a child that the caller has read about."""
        if named.view.outcome is not None and named.view.parent_id == context.run_id:
            self._supervisor.mark_read(context.run_id, named.view.run_id)


class RunTool(NativeTool):
    """`run_agent`: start a sub-agent, and wait for its answer unless it works in the background."""

    tool = requests.RUN
    waits = True
    effect = "starts"

    def spec_for(self, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        return requests.specs(self._agent_names(), self._tool_names(offered, policy))[self.tool]

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = self._in_background(arguments_of(self.tool, arguments, RunArguments))
        if request.key is not None and context.host is not None and not context.host.identified:
            raise CallRefused(answers.NO_IDENTITY)
        run_id = await self._begun(request, context)
        cache = ""
        if run_id is None:
            planned = self._plan(request, context)
            cache = planned.cache
            run_id = await self._children.start(planned, context, key=self._key(request, context))
        if not request.background:
            await self._supervisor.wait([run_id], timeout=_seconds(request.wait_seconds, context))
        named = NamedRun(run_id, await self._runs.latest(run_id, context))
        self._mark_read(named, context)
        answer = answers.reported(run_id, named.view)
        answer = answers.with_changes(answer, await self._children.changes(named.view))
        if named.view.outcome is not None:
            answer = answers.with_usage(answer, named.view.outcome)
        elif cache:
            answer["cache"] = cache
        return answers.with_next(answer, named.view, announced=context.host is None)

    def _in_background(self, request: RunArguments) -> RunArguments:
        """The request, in the background if its agent always works there."""
        agent = agent_named(request.agent or "", self._dialect_context.agents)
        return request if agent is None or not agent.background else replace(request, background=True)

    async def _begun(self, request: RunArguments, context: CallContext) -> RunId | None:
        """The run that this call started before a crash, or an earlier call with the same idempotency key."""
        if request.key is None:
            row = await self._dialect_context.begun(context)
        else:
            row = await self._supervisor.stored.run_by_key(self._key(request, context))
        return None if row is None else row.run_id

    def _key(self, request: RunArguments, context: CallContext) -> Key:
        if request.key is None:
            return context.key
        # A program outside may come back with another root run; a model has its own tree alone.
        space = context.root_id if context.host is None else context.session_id
        return f"{space}/{NAME}/{request.key}"

    # ---- the request ------------------------------------------------------------------------------------------------

    def _plan(self, request: RunArguments, context: CallContext) -> PlannedChild:
        if not request.task.strip():
            raise CallRefused(answers.NO_TASK)
        inherited = requests.context_of(request.context)
        agent = None if not request.agent else requests.agent_named(request.agent, self._dialect_context.agents)
        is_fork = inherited != "none" and agent is None
        schema = request.output_schema
        child = ChildRequest(
            task=f"{request.instructions}\n\n{request.task}" if is_fork and request.instructions else request.task,
            system=_system(agent, request.instructions),
            agent=agent,
            inherited=inherited,
            tools=request.tools,
            model=request.model or "",
            output=None if schema is None else self._dialect_context.make_output(schema),
            limits=Limits(max_turns=request.turns, max_nanodollars=request.cost),
            lifecycle=Lifecycle(
                awaited=not request.background,
                announce=context.host is None and (bool(request.background) or request.wait_seconds is not None),
                on_parent_end="wait",
            ),
            apart=is_apart(request.isolation),
        )
        return self._children.plan(child, context, key=self._key(request, context))

    def _tool_names(self, offered: tuple[str, ...], policy: Policy) -> tuple[str, ...]:
        """The tools that a call may name: the caller's own, and those of the agents."""
        allowed = self._dialect_context.tools_within(policy)
        named = (*offered, *(name for agent in self._dialect_context.agents for name in agent.tools))
        return tuple(dict.fromkeys(name for name in named if name in allowed))

    def _agent_names(self) -> tuple[str, ...]:
        return tuple(agent.name for agent in self._dialect_context.agents)


class WaitTool(NativeTool):
    """`wait_agents`: wait for several runs, and read their answers."""

    tool = requests.WAIT
    kind: ToolKind = "pure"
    waits = True

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = arguments_of(self.tool, arguments, requests.WaitArguments)
        if not request.run_ids:
            raise CallRefused(answers.NO_RUNS)
        found = [await self._find(run_id, context) for run_id in request.run_ids]
        missing = request.needed - sum(named.view.outcome is not None for named in found)
        # A run without a driver does not end while this process waits for it.
        driven = [named.view.run_id for named in found if named.view.state not in ("ended", "interrupted")]
        if missing > 0 and driven:
            await self._supervisor.wait(driven, count=missing, timeout=_seconds(request.seconds, context))
            found = [NamedRun(named.run_id, await self._runs.latest(named.run_id, context)) for named in found]
        for named in found:
            self._mark_read(named, context)
        is_short = sum(named.view.outcome is not None for named in found) < request.needed
        is_working = any(named.view.state not in ("ended", "interrupted") for named in found)
        return {"runs": [await self._row(named) for named in found], "timed_out": is_short and is_working}

    async def _row(self, named: NamedRun) -> JsonObject:
        row = answers.reported(named.run_id, named.view)
        row = answers.with_changes(row, await self._children.changes(named.view))
        is_working = named.view.state not in ("ended", "interrupted") and named.view.waiting_for != "approval"
        return row if is_working else answers.with_next(row, named.view)


class MessageTool(NativeTool):
    """`message_agent`: a message to a run; a run that has ended is continued by a new one with its history."""

    tool = requests.MESSAGE
    ordered = True
    effect = "starts"

    def __init__(self, dialect_context: DialectContext, settings: NativeSettings) -> None:
        super().__init__(dialect_context, settings)
        self._lock = asyncio.Lock()  # of two messages to an ended run, one continues it and the other one follows

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = arguments_of(self.tool, arguments, requests.MessageArguments)
        if not request.text.strip():
            raise CallRefused(answers.NO_TEXT)
        async with self._lock:
            named = await self._find(request.run, context)
            if await self._dialect_context.begun(context) is None and not await self._posted(
                named, request.text, context
            ):
                await self._continue(named, request.text, context)
            view = await self._runs.latest(named.run_id, context)
        return {"run": named.run_id, "state": answers.state_of(view)}

    async def _posted(self, named: NamedRun, text: str, context: CallContext) -> bool:
        """Whether the run could take the message; one that has ended cannot."""
        try:
            await self._supervisor.post(named.view.run_id, TextMessage(key=context.key, text=text))
        except RunIsOver:
            return False
        return True

    async def _continue(self, named: NamedRun, text: str, context: CallContext) -> None:
        if named.view.outcome is not None and named.view.outcome.result == "cancelled":
            raise answers.cancelled(named.run_id)
        lifecycle = Lifecycle(announce=context.host is None, on_parent_end="wait")
        await self._children.continue_run(named, text, lifecycle, context)


class ResultTool(NativeTool):
    """`agent_result`: the state of a run and one page of its answer."""

    tool = requests.RESULT
    kind: ToolKind = "pure"

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = arguments_of(self.tool, arguments, requests.ResultArguments)
        named = await self._find(request.run, context)
        answer = answers.page_of(named.run_id, named.view, request.page or 1)
        answer = answers.with_changes(answer, await self._children.changes(named.view))
        self._mark_read(named, context)
        return answer


class CancelTool(NativeTool):
    """`cancel_agent`: stop a run and all below it; a run that has ended stays as it is."""

    tool = requests.CANCEL
    effect = "stops"

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = arguments_of(self.tool, arguments, requests.OneRunArguments)
        named = await self._find(request.run, context)
        if named.view.outcome is None:
            await self._supervisor.cancel(named.view.run_id, note=f"cancelled by {context.agent}")
            await self._supervisor.wait([named.view.run_id], timeout=CANCEL_SECONDS)
            named = NamedRun(named.run_id, await self._runs.latest(named.run_id, context))
        self._mark_read(named, context)
        answer: JsonObject = {"run": named.run_id, "state": answers.state_of(named.view)}
        if named.view.outcome is not None and named.view.outcome.unstopped:
            answer["unstopped"] = list(named.view.outcome.unstopped)
        return answer


class ListTool(NativeTool):
    """`list_agents`: the configured agents, and the runs of the caller."""

    tool = requests.LIST
    kind: ToolKind = "pure"

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        arguments_of(self.tool, arguments, requests.NoArguments)
        agents = [{"name": agent.name, "description": agent.description} for agent in self._dialect_context.agents]
        return {"agents": agents, "runs": await self._rows(context)}

    async def _rows(self, context: CallContext) -> list[JsonObject]:
        """The caller's runs, each with its first task."""
        listed = (await self._runs.all(context))[: answers.MAX_LISTED]
        tasks = await self._supervisor.stored.tasks([named.run_id for named in listed])
        return [answers.row(named.run_id, named.view, tasks.get(named.run_id, "")) for named in listed]


def _system(agent: Agent | None, instructions: str | None) -> str:
    """The system text of a child without a conversation of its caller."""
    texts = ("" if agent is None else agent.system_prompt, instructions or "", answers.CHILD)
    return "\n\n".join(text for text in texts if text)


def _seconds(asked: float | None, context: CallContext) -> float | None:
    """How long a call waits: as long as it asks for, and as long as its caller lets it."""
    limits = (asked, None if context.host is None else context.host.max_wait)
    given = [limit for limit in limits if limit is not None]
    return min(*given, MAX_SECONDS) if given else None
