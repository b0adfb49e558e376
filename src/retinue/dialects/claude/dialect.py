"""The `claude` dialect and its four tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from retinue.core.agent import Agent, ToolKind, ToolSpec
from retinue.core.errors import BadInput, Refused, RunIsOver
from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.core.inbox import TextMessage
from retinue.core.policy import Autonomy, Policy
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.core.run import Lifecycle, Outcome
from retinue.dialects.agent_names import agent_named
from retinue.dialects.arguments import arguments_of, compact_json
from retinue.dialects.base import Dialect, DialectTool
from retinue.dialects.claude import NAME, answers, requests
from retinue.dialects.claude.requests import MAIN, READ_ONLY, AgentArguments
from retinue.dialects.claude.settings import DEFAULTS, ClaudeSettings
from retinue.dialects.context import DialectContext
from retinue.dialects.error_codes import CallRefused, JsonObject
from retinue.dialects.named_runs import NamedRun, NamedRuns
from retinue.dialects.sub_agents import ChildRequest, ChildRules, SubAgents, is_apart
from retinue.providers.catalog import CLAUDE_MODELS

STOP_SECONDS = 10.0
"""How long `TaskStop` waits for the end of a run."""

MAX_LISTED = 50
"""Sub-agents that a list shows, the newest ones."""

MAX_MAIL = 1024
"""Messages that an agent may have without having read them."""


Unknown: TypeAlias = Callable[[str, Sequence[str]], CallRefused]
"""The refusal of a reference that means none of the known sub-agents."""


class ClaudeDialect(Dialect):
    """The four tools; a sub-agent at the greatest depth can send messages."""

    name = NAME

    def __init__(self, dialect_context: DialectContext, settings: ClaudeSettings = DEFAULTS) -> None:
        made = (SpawnTool, SendTool, StopTool, ListTool)
        tools = [kind(dialect_context, settings) for kind in made]
        self._tools: dict[str, Tool] = {tool.spec.name: tool for tool in tools}
        self._agent_tool = settings.agent_tool
        self._runs = NamedRuns(dialect_context.supervisor, NAME)

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        if self._agent_tool not in offered:
            return ""
        return "\n\n".join(filter(None, (answers.USAGE, requests.types_in_system(agents))))

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str:
        return answers.notification(self._runs.name_in_notice(accepted), accepted.task, outcome)


class ClaudeTool(DialectTool):
    """Base class of the tools: an answer is one JSON object, and a refusal a text."""

    tool = ""

    def __init__(self, dialect_context: DialectContext, settings: ClaudeSettings) -> None:
        self._name = settings.agent_tool if self.tool == requests.AGENT else self.tool
        self.spec: ToolSpec = requests.specs(agent_tool=settings.agent_tool)[self._name]
        self._dialect_context = dialect_context
        self._settings = settings
        self._supervisor = dialect_context.supervisor
        self._children = SubAgents(
            dialect_context,
            ChildRules(
                dialect=NAME,
                tool_names=(settings.agent_tool, requests.SEND, requests.STOP, requests.LIST),
                max_depth=settings.max_depth,
                max_running=settings.max_running,
                max_turns=settings.max_turns,
                too_many="wait for the message about the end of one.",
                last_tools=(requests.SEND,),
            ),
        )

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        try:
            return ToolResult(compact_json(await self._answer(arguments, context)))
        except (Refused, BadInput) as refusal:
            return ToolResult(str(refusal), failed=True)

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        raise NotImplementedError

    async def _find(self, reference: str, context: CallContext, unknown: Unknown) -> NamedRun:
        """The sub-agent of that id or name below the caller; raises `CallRefused` with the valid ones."""
        known = await self._children.runs.all(context)
        wanted = reference.strip()
        by_id = next((each for each in known if wanted in (each.run_id, each.view.run_id)), None)
        found = by_id or next((each for each in known if wanted and each.view.label == wanted), None)
        if found is None:
            raise unknown(wanted, [each.view.label or each.run_id for each in known])
        return found


class SpawnTool(ClaudeTool):
    """`Agent`: start a sub-agent, and wait for its answer unless it works in the background."""

    tool = requests.AGENT
    waits = True
    effect = "starts"

    def spec_for(self, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        return requests.specs(self._dialect_context.agents, agent_tool=self._name)[self._name]

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = arguments_of(self._name, arguments, AgentArguments)
        kind = agent_named(request.subagent_type or "", self._dialect_context.agents)
        if kind is not None and kind.background:
            request = replace(request, run_in_background=True)
        row = await self._dialect_context.begun(context)
        run_id = await self._start(request, context) if row is None else row.run_id
        if not request.run_in_background:
            await self._supervisor.wait([run_id])
        view = await self._children.runs.latest(run_id, context)
        if view.outcome is None or request.run_in_background:
            return answers.launched(run_id, view, request.description[: requests.MAX_NAME])
        changes = await self._children.changes(view)
        return answers.with_changes(answers.ended(run_id, view, view.outcome), changes)

    async def _start(self, request: AgentArguments, context: CallContext) -> RunId:
        prompt = requests.text_of("prompt", request.prompt)
        apart = is_apart(request.isolation)
        kind = requests.type_named(request.subagent_type, self._dialect_context.agents)
        configured = kind if any(kind is agent for agent in self._dialect_context.agents) else None
        name = await self._free_name(request, context)
        turns = self._children.turns_of(configured)
        child = ChildRequest(
            task=prompt,
            system="\n\n".join(text for text in (kind.system_prompt, answers.child_text(turns)) if text),
            agent=configured,
            general_name=kind.name,
            policy=replace(context.policy, autonomy=Autonomy.READONLY) if kind.name in READ_ONLY else None,
            model=_model(request.model),
            effort=request.effort,
            label=name,
            apart=apart,
            lifecycle=Lifecycle(
                awaited=not request.run_in_background,
                announce=context.host is None and bool(request.run_in_background),
                on_parent_end="wait",
            ),
        )
        planned = self._children.plan(child, context)
        return await self._children.start(planned, context)

    async def _free_name(self, request: AgentArguments, context: CallContext) -> str:
        """The name of the new sub-agent; raises `CallRefused` for one that is taken or not valid."""
        name = (request.name or "").strip()
        if not name:
            return ""
        if len(name) > requests.MAX_NAME or not name.isprintable() or name == MAIN or "/" in name or ":" in name:
            raise answers.invalid_name(name, requests.MAX_NAME, MAIN)
        if name in {each.view.label for each in await self._children.runs.all(context)}:
            raise answers.taken(name)
        return name


class SendTool(ClaudeTool):
    """`SendMessage`: a message to a sub-agent, which continues one that has ended; or from one to the top."""

    tool = requests.SEND
    ordered = True
    effect = "starts"

    def __init__(self, dialect_context: DialectContext, settings: ClaudeSettings) -> None:
        super().__init__(dialect_context, settings)
        self._lock = asyncio.Lock()  # of two messages to an ended run, one continues it and the other one follows

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = arguments_of(self._name, arguments, requests.MessageArguments)
        text = requests.text_of("message", request.message)
        if request.to.strip() == MAIN and context.depth > 0:
            await self._post_to_main(text, context)
            return answers.queued_for_main()
        async with self._lock:
            named = await self._find(request.to, context, answers.unknown_agent)
            name = named.view.label or named.run_id
            if await self._dialect_context.begun(context) is None:
                if await self._posted(named, text, context):
                    return answers.queued(name)
                await self._continue(named, text, context)
        return answers.resumed(named.run_id, name, announced=context.host is None)

    async def _posted(self, named: NamedRun, text: str, context: CallContext) -> bool:
        """Whether the run could take the message; one that has ended cannot."""
        live = self._supervisor.live(named.view.run_id)
        if live is not None and len(live.inbox) >= MAX_MAIL:
            raise answers.inbox_full(MAX_MAIL)
        try:
            await self._supervisor.post(named.view.run_id, TextMessage(key=context.key, text=text))
        except RunIsOver:
            return False
        return True

    async def _continue(self, named: NamedRun, text: str, context: CallContext) -> None:
        outcome = named.view.outcome
        if outcome is not None and outcome.result == "cancelled" and not answers.is_stopped(outcome):
            raise CallRefused(answers.CANCELLED)
        lifecycle = Lifecycle(announce=context.host is None, on_parent_end="wait")
        await self._children.continue_run(named, text, lifecycle, context)

    async def _post_to_main(self, text: str, context: CallContext) -> None:
        root = await self._supervisor.acceptance(context.root_id)
        if root is None or root.lifecycle.hosted:
            raise CallRefused(answers.MAIN_READS_NOTHING)
        live = self._supervisor.live(context.run_id)
        own = live.run.accepted.label if live is not None else ""
        item = TextMessage(key=f"peer/{context.key}", text=answers.message(own or context.run_id, text), origin="peer")
        try:
            await self._supervisor.post(context.root_id, item)
        except RunIsOver as over:
            raise CallRefused(answers.MAIN_HAS_ENDED) from over


class StopTool(ClaudeTool):
    """`TaskStop`: stop a sub-agent and all below it; a message continues it."""

    tool = requests.STOP
    effect = "stops"

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = arguments_of(self._name, arguments, requests.StopArguments)
        named = await self._find(request.task_id, context, answers.unknown_task)
        run_id = named.view.run_id
        if named.view.outcome is not None and not context.again:
            raise answers.not_running(named.run_id, answers.status_of(named.view.outcome))
        await self._supervisor.cancel(run_id, note=f"{answers.STOPPED_BY}{context.agent}")
        ended = await self._supervisor.wait([run_id], timeout=STOP_SECONDS)
        if named.view.parent_id == context.run_id and ended:
            self._supervisor.mark_read(context.run_id, run_id)
        tasks = await self._supervisor.stored.tasks([named.run_id])
        command = named.view.label or tasks.get(named.run_id, "")[: answers.TASK_SHOWN]
        return answers.stopped(named.run_id, command, ended[run_id].unstopped if run_id in ended else ())


class ListTool(ClaudeTool):
    """`ListAgents`: the sub-agents of the caller, newest first."""

    tool = requests.LIST
    kind: ToolKind = "pure"

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        arguments_of(self._name, arguments, requests.NoArguments)
        listed = (await self._children.runs.all(context))[:MAX_LISTED]
        tasks = await self._supervisor.stored.tasks([named.run_id for named in listed])
        is_outside = context.host is not None
        rows = [
            answers.row(each.run_id, each.view.label, each.view, tasks.get(each.run_id, ""), with_result=is_outside)
            for each in listed
        ]
        if is_outside:
            found = [await self._children.changes(each.view) for each in listed]
            rows = [answers.with_changes(row, changes) for row, changes in zip(rows, found, strict=True)]
        return {"agents": rows}


def _model(name: str | None) -> str:
    """The model that a call names; an alias of Claude Code means a model of Anthropic, `inherit` that of the caller.

    >>> _model("Haiku") == f"anthropic:{CLAUDE_MODELS['haiku']}", _model("inherit"), _model("openai-chat:gpt-5-mini")
    (True, '', 'openai-chat:gpt-5-mini')
    """
    asked = (name or "").strip()
    alias = CLAUDE_MODELS.get(asked.lower())
    if alias is not None:
        return f"anthropic:{alias}"
    return "" if asked.lower() == "inherit" else asked
