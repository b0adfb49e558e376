"""The `codex` dialect and its six tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import Struct

from retinue.core.agent import Agent, ToolKind, ToolSpec
from retinue.core.errors import BadInput, Refused, RunIsOver
from retinue.core.events import RunAccepted
from retinue.core.inbox import TextMessage
from retinue.core.policy import Policy
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.core.run import Lifecycle, Outcome
from retinue.dialects.agent_names import agent_list
from retinue.dialects.arguments import arguments_of, compact_json
from retinue.dialects.base import Dialect, DialectTool
from retinue.dialects.codex import NAME, answers, requests
from retinue.dialects.codex.requests import ROOT, TOOL_NAMES
from retinue.dialects.codex.settings import DEFAULTS, CodexSettings
from retinue.dialects.context import DialectContext
from retinue.dialects.error_codes import CallRefused, JsonObject
from retinue.dialects.named_runs import NamedRun
from retinue.dialects.sub_agents import ChildRequest, ChildRules, SubAgents
from retinue.engine import RunView

INTERRUPT_SECONDS = 10.0
"""How long `interrupt_agent` waits for the end of a run."""

MAX_LISTED = 100
"""Agents that a list shows, the newest ones."""

MAX_MAIL = 1024
"""Messages that an agent may have without having read them."""


class CodexDialect(Dialect):
    """The six tools; an agent at the greatest depth can send messages and list agents."""

    name = NAME

    def __init__(self, dialect_context: DialectContext, settings: CodexSettings = DEFAULTS) -> None:
        made = (SpawnTool, SendTool, FollowUpTool, WaitTool, InterruptTool, ListTool)
        self._tools: dict[str, Tool] = {kind.tool: kind(dialect_context, settings) for kind in made}

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        if requests.SPAWN not in offered:
            return ""
        listed = agent_list(agents)
        return f"{answers.USAGE}\n\nAgent types:{listed}" if listed else answers.USAGE

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str:
        return answers.final_answer(accepted.label, accepted.task, outcome)


class NamedAgent(Struct, frozen=True):
    """An agent of the tree: its path, and the run that works under it now."""

    path: str
    named: NamedRun

    @property
    def view(self) -> RunView:
        return self.named.view


class CodexTool(DialectTool):
    """Base class of the tools: an answer is one JSON object, and a refusal a text."""

    tool = ""

    def __init__(self, dialect_context: DialectContext, settings: CodexSettings) -> None:
        self.spec: ToolSpec = requests.specs(settings=settings)[self.tool]
        self._dialect_context = dialect_context
        self._settings = settings
        self._supervisor = dialect_context.supervisor
        self._children = SubAgents(
            dialect_context,
            ChildRules(
                dialect=NAME,
                tool_names=TOOL_NAMES,
                max_depth=settings.max_depth,
                max_running=settings.max_threads - 1,
                max_turns=settings.max_turns,
                too_many="wait_agent until one ends, or interrupt_agent.",
                last_tools=(requests.SEND, requests.LIST),
            ),
        )

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        try:
            return ToolResult(compact_json(await self._answer(arguments, context)))
        except (Refused, BadInput) as refusal:
            return ToolResult(str(refusal), failed=True)

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        raise NotImplementedError

    # ---- agents by path ----------------------------------------------------------------------------------------------

    def _own_path(self, context: CallContext) -> str:
        live = self._supervisor.live(context.run_id)
        label = "" if live is None or context.depth == 0 else live.run.accepted.label
        return label if label.startswith(f"{ROOT}/") else ROOT

    async def _agents(self, context: CallContext) -> dict[str, NamedAgent]:
        """All agents of the tree by path, newest first, and for a root those of earlier trees of its chat."""
        found: dict[str, NamedAgent] = {}
        for named in await self._children.runs.all(context, whole_tree=True):
            found.setdefault(named.view.label, NamedAgent(named.view.label, named))
        return found

    async def _agent(self, reference: str, context: CallContext, *, below: bool) -> NamedAgent:
        """The agent that a reference means; with `below` only one that the caller or a run below it has started."""
        own, known = self._own_path(context), await self._agents(context)
        valid = {path: agent for path, agent in known.items() if not below or path.startswith(f"{own}/")}
        by_run = next((agent for agent in valid.values() if reference in (agent.named.run_id, agent.view.run_id)), None)
        found = by_run or valid.get(requests.resolved(reference, own))
        if found is None:
            raise answers.unknown_agent(reference, [path for path in valid if path != own])
        if found.path == own:
            raise CallRefused(answers.TO_ITSELF)
        return found

    async def _post(self, agent: NamedAgent, text: str, context: CallContext) -> bool:
        """Whether the agent could take the message; one that has ended cannot."""
        live = self._supervisor.live(agent.view.run_id)
        if live is not None and len(live.inbox) >= MAX_MAIL:
            raise answers.inbox_full(agent.path, MAX_MAIL)
        item = TextMessage(key=f"peer/{context.key}", text=text, origin="peer")
        try:
            await self._supervisor.post(agent.view.run_id, item)
        except RunIsOver:
            return False
        return True

    def _longest(self, context: CallContext) -> int:
        return answers.LONGEST_IN_LIST if context.host is None else answers.LONGEST


class SpawnTool(CodexTool):
    """`spawn_agent`: start an agent in the background."""

    tool = requests.SPAWN
    ordered = True
    effect = "starts"

    def spec_for(self, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        return requests.specs(self._dialect_context.agents, self._settings)[self.tool]

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = arguments_of(self.tool, arguments, requests.SpawnArguments)
        own = self._own_path(context)
        path = requests.path_of(own, request.task_name)
        if (row := await self._dialect_context.begun(context)) is not None:
            return {"task_name": row.label}
        message = requests.message_of(request.message)
        role = requests.role_named(request.agent_type, self._dialect_context.agents)
        child = ChildRequest(
            task=answers.new_task(path, own, message, self._children.turns_of(role)),
            system="" if role is None else role.system_prompt,
            agent=role,
            general_name=requests.DEFAULT_ROLE,
            inherited=requests.inherited(request.fork_turns),
            model=(request.model or "").strip(),
            effort=request.reasoning_effort,
            service_tier=(request.service_tier or "")[: requests.MAX_NAME],
            label=path,
            lifecycle=self._lifecycle(context),
        )
        planned = self._children.plan(child, context)
        if path in await self._agents(context):
            raise answers.taken(path)
        await self._children.start(planned, context)
        answer: JsonObject = {"task_name": path}
        return answer | {"cache": planned.cache} if planned.cache else answer

    def _lifecycle(self, context: CallContext) -> Lifecycle:
        return Lifecycle(announce=context.host is None, on_parent_end="wait")


class SendTool(CodexTool):
    """`send_message`: a message to an agent that runs, beside or above or below the caller."""

    tool = requests.SEND
    effect = "starts"

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = arguments_of(self.tool, arguments, requests.MessageArguments)
        own = self._own_path(context)
        text = answers.message(own, requests.message_of(request.message))
        if own != ROOT and requests.resolved(request.target, own) == ROOT:
            await self._post_to_root(text, context)
            return {"agent_status": "running"}
        agent = await self._agent(request.target, context, below=False)
        if not await self._post(agent, text, context):
            raise answers.has_ended(agent.path)
        return {"agent_status": answers.status(agent.view, self._longest(context))}

    async def _post_to_root(self, text: str, context: CallContext) -> None:
        root = await self._supervisor.acceptance(context.root_id)
        if root is None or root.lifecycle.hosted:
            raise answers.root_reads_nothing(ROOT)
        try:
            item = TextMessage(key=f"peer/{context.key}", text=text, origin="peer")
            await self._supervisor.post(context.root_id, item)
        except RunIsOver as over:
            raise answers.root_has_ended(ROOT) from over


class FollowUpTool(CodexTool):
    """`followup_task`: a further task; an agent that has ended is continued by a new run with its history."""

    tool = requests.FOLLOW_UP
    ordered = True
    effect = "starts"

    def __init__(self, dialect_context: DialectContext, settings: CodexSettings) -> None:
        super().__init__(dialect_context, settings)
        self._lock = asyncio.Lock()  # of two tasks for an ended agent, one continues it and the other one follows

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = arguments_of(self.tool, arguments, requests.MessageArguments)
        message = requests.message_of(request.message)
        own = self._own_path(context)
        if requests.resolved(request.target, own) == ROOT:
            raise CallRefused(answers.NO_TASK_FOR_ROOT)
        async with self._lock:
            agent = await self._agent(request.target, context, below=True)
            if await self._dialect_context.begun(context) is None:
                text = answers.followup(agent.path, own, message)
                if not await self._post(agent, text, context):
                    await self._continue(agent, text, context)
        return {"agent_status": "running"}

    async def _continue(self, agent: NamedAgent, text: str, context: CallContext) -> None:
        outcome = agent.view.outcome
        if outcome is not None and outcome.result == "cancelled" and not answers.is_interrupted(outcome):
            raise answers.shut_down(agent.path)
        lifecycle = Lifecycle(announce=context.host is None, on_parent_end="wait")
        await self._children.continue_run(agent.named, text, lifecycle, context)


class WaitTool(CodexTool):
    """`wait_agent`: wait until an agent ends or a message arrives; what it is reaches the caller by itself."""

    tool = requests.WAIT
    kind: ToolKind = "pure"
    waits = True

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = arguments_of(self.tool, arguments, requests.WaitArguments)
        seconds, remark = requests.seconds_of(request, self._settings)
        own = self._own_path(context)
        below = [agent for path, agent in (await self._agents(context)).items() if path.startswith(f"{own}/")]
        # A run without a driver does not end while this process waits for it.
        running = [each.view.run_id for each in below if each.view.state not in ("ended", "interrupted")]
        if context.host is not None:
            longest = context.host.max_wait
            seconds = seconds if longest is None else min(seconds, longest)
            came = not running or bool(await self._supervisor.wait(running, count=1, timeout=seconds))
        else:
            came = await self._supervisor.wait_for_mail(context.run_id, running, timeout=seconds)
        if not running and (context.host is not None or not came):
            return answers.nothing_to_wait_for(remark)
        return answers.waited(remark, timed_out=not came)


class InterruptTool(CodexTool):
    """`interrupt_agent`: stop an agent and all below it; `followup_task` continues it."""

    tool = requests.INTERRUPT
    effect = "stops"

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = arguments_of(self.tool, arguments, requests.InterruptArguments)
        own = self._own_path(context)
        if requests.resolved(request.target, own) == ROOT:
            raise CallRefused(answers.ROOT_CANNOT_BE_STOPPED)
        agent = await self._agent(request.target, context, below=True)
        answer: JsonObject = {"previous_status": answers.status(agent.view, self._longest(context))}
        if agent.view.outcome is not None:
            return answer
        run_id = agent.view.run_id
        await self._supervisor.cancel(run_id, note=f"{answers.INTERRUPTED_BY}{own}")
        ended = await self._supervisor.wait([run_id], timeout=INTERRUPT_SECONDS)
        if agent.view.parent_id == context.run_id and ended:
            self._supervisor.mark_read(context.run_id, run_id)
        if run_id in ended and ended[run_id].unstopped:
            answer["unstopped"] = list(ended[run_id].unstopped)
        return answer


class ListTool(CodexTool):
    """`list_agents`: the agents of the tree with their statuses, by path."""

    tool = requests.LIST
    kind: ToolKind = "pure"

    async def _answer(self, arguments: str, context: CallContext) -> JsonObject:
        request = arguments_of(self.tool, arguments, requests.ListArguments)
        own = self._own_path(context)
        prefix = requests.resolved(request.path_prefix, own) if request.path_prefix else ROOT
        newest = list((await self._agents(context)).values())[:MAX_LISTED]
        statuses = {agent.path: answers.status(agent.view, self._longest(context)) for agent in newest}
        rows = {ROOT: "running", **dict(sorted(statuses.items()))}
        listed = [
            {"agent_name": path, "agent_status": status}
            for path, status in rows.items()
            if path == prefix or path.startswith(f"{prefix}/")
        ]
        return {"agents": listed}
