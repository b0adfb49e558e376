"""The `spec` dialect: an orchestrator delegates with `subagent`, and everyone shares state with `shared_context`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import assert_never

from retinue.core.agent import Agent, ToolKind, ToolSpec
from retinue.core.errors import DepthExceeded, SessionClosed, TooManyRunning
from retinue.core.policy import Risk, Verdict, verdict
from retinue.core.ports import CallContext, Tool, ToolResult
from retinue.core.records import Decision, ShelfClosed
from retinue.core.run import Manner
from retinue.dialects import shared_context, spec_agents, spec_tasks, spec_texts
from retinue.dialects.coded import Coded, code_of
from retinue.dialects.desk import Desk
from retinue.dialects.lines import line, with_payloads
from retinue.dialects.logged import LoggedTool
from retinue.dialects.render import compact, rfc3339
from retinue.dialects.shared_context_tool import SharedContextTool
from retinue.dialects.spec_requests import (
    Collect,
    Define,
    ListAgents,
    Request,
    Spawn,
    Status,
    check_task,
    parse,
)
from retinue.dialects.spec_tasks import HANDLE_FORMAT, HANDLE_SPACE, MAX_RUNNING, Task
from retinue.engine import admission

NAME = "spec"

log = logging.getLogger("retinue.spec")


class SpecDialect:
    """The two tools of the dialect; an orchestrator has both, a subagent `shared_context` if its agent names it."""

    name = NAME

    def __init__(self, desk: Desk) -> None:
        self._clock = desk.clock
        self._tools: dict[str, Tool] = {
            spec_texts.NAME: SubagentTool(desk),
            shared_context.NAME: SharedContextTool(desk),
        }

    def tools(self) -> Mapping[str, Tool]:
        """Both tools, in the order of the documents."""
        return self._tools

    def offered(self, *, depth: int) -> tuple[str, ...]:
        """Both for the root, none for anyone else: a subagent has what its agent names."""
        return tuple(self._tools) if depth == 0 else ()

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        """What an orchestrator is told."""
        return spec_texts.orchestrator_text(agents, offered)

    def around(self, tool: Tool) -> Tool:
        """The tool with a line in the log for each call, a subagent's under its task id."""
        return LoggedTool(tool, log, self._clock, space=HANDLE_SPACE)


class SubagentTool:
    """The `subagent` tool: parse, do, render. It keeps nothing; tasks are runs, their ids are handles."""

    spec: ToolSpec = spec_texts.SPEC
    kind: ToolKind = "keyed"
    risk = Risk.LOW
    timeout: float | None = None
    waits = False
    stoppable = True

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Do what the orchestrator asks for; every refusal is an answer."""
        try:
            request = parse(arguments)
            answer = await self._answer(request, context)
        except Coded as refusal:
            answer = refusal.answer
        # "Check back later" is the expected course of things, and no failure.
        return ToolResult(answer.decode(), failed=code_of(answer) not in (None, "TASK_NOT_READY"))

    async def _answer(self, request: Request, context: CallContext) -> bytes:
        match request:
            case ListAgents():
                return await self._list_agents(context)
            case Define():
                return await self._define(request, context)
            case Spawn():
                return await self._spawn(request, context)
            case Status():
                return await self._status(request, context)
            case Collect():
                return await self._collect(request, context)
            case _:
                assert_never(request)

    # Agents

    async def _list_agents(self, context: CallContext) -> bytes:
        caller = self._desk.brief_of(context.run_id)
        agents = await self._agents(context)
        return _bytes(spec_agents.listing(agents, lambda model: self._desk.resolve(model, caller)[1]))

    async def _define(self, request: Define, context: CallContext) -> bytes:
        known = self._registered_tools(context)

        def decide(shelf: Mapping[str, bytes]) -> Decision:
            return spec_agents.define(
                request, shelf, registered=self._desk.agents, is_registered_tool=known.__contains__
            )

        space = spec_agents.space_of(context.session_id)
        written = await self._desk.shelf.change(space, decide, key=context.key, session_id=context.session_id)
        match written:
            case bytes():
                return written
            case ShelfClosed(why="session_archived"):
                raise shared_context.session_archived(context.session_id)
            case _:
                raise shared_context.session_not_found(context.session_id)

    async def _agents(self, context: CallContext) -> dict[str, Agent]:
        shelf = await self._desk.shelf.look(spec_agents.space_of(context.session_id))
        return spec_agents.agents_of(self._desk.agents, shelf)

    def _registered_tools(self, context: CallContext) -> frozenset[str]:
        """What the application has and the caller's policy allows, shared context included."""
        shared = verdict(context.policy, tool=shared_context.NAME, risk=Risk.LOW).verdict is not Verdict.REFUSE
        return frozenset((*self._desk.tools_within(context.policy), *((shared_context.NAME,) if shared else ())))

    # Tasks

    async def _spawn(self, request: Spawn, context: CallContext) -> bytes:
        try:
            task = await self._spawned(request, context)
        except Coded as refusal:
            self._tell("spawn", context, agent=request.agent, error=refusal.code)
            raise
        self._tell("spawn", context, task, task=request.task)
        return _bytes(spec_tasks.spawned(task))

    async def _spawned(self, request: Spawn, context: CallContext) -> Task:
        begun = await self._desk.begun(context)
        if begun is not None and begun.handle is not None:
            return Task(task_id=begun.handle.name, agent=begun.agent)
        check_task(request.task)
        agent = spec_agents.found(await self._agents(context), request.agent)
        try:
            started = await self._desk.supervisor.spawn(
                self._wish(agent, request.task, context),
                session_id=context.session_id,
                caller=context,
                key=context.key,
            )
        except TooManyRunning as refused:
            raise spec_tasks.too_many_running() from refused
        except DepthExceeded as refused:
            raise Coded("INVALID_REQUEST", "Subagents cannot delegate; only the orchestrator can.") from refused
        except SessionClosed as refused:
            closed = (
                shared_context.session_archived if refused.state == "archived" else shared_context.session_not_found
            )
            raise closed(context.session_id) from refused
        assert started.handle is not None
        return Task(task_id=started.handle.name, agent=agent.name)

    def _wish(self, agent: Agent, task: str, context: CallContext) -> admission.Spawn:
        known = self._registered_tools(context)
        offered = tuple(name for name in agent.tools if name in known)
        return admission.Spawn(
            agent=agent.name,
            brief=self._desk.brief_for(
                self._desk.brief_of(context.run_id),
                agent=agent.name,
                system=spec_texts.subagent_text(agent.system_prompt, offered),
                offered=offered,
                model=agent.model,
                fallback=agent.fallback,
            ),
            task=task,
            limits=agent.limits_with(agent.max_turns),
            manner=Manner(on_parent_end="cancel", crash_fails=True),
            dialect=NAME,
            handle_space=HANDLE_SPACE,
            handle_format=HANDLE_FORMAT,
            max_depth=1,
            max_running=MAX_RUNNING,
        )

    async def _status(self, request: Status, context: CallContext) -> bytes:
        task = await self._task(request.task_id, context)
        if task is None:
            raise self._unknown("status", request.task_id, context)
        self._tell("status", context, task)
        return _bytes(spec_tasks.status(task))

    async def _collect(self, request: Collect, context: CallContext) -> bytes:
        task = await self._task(request.task_id, context)
        if task is not None and task.outcome is None:
            self._tell("collect", context, task, error="TASK_NOT_READY")
            raise spec_tasks.not_ready(task)
        # Of two who collect the same task one gets it. The same call, entered again after a crash, gets it again,
        # although the id leads nowhere any more.
        run_id = await self._desk.supervisor.handles.retire(
            context.session_id, HANDLE_SPACE, request.task_id, key=context.key
        )
        task = None if run_id is None else await self._seen(request.task_id, run_id)
        if task is None:
            raise self._unknown("collect", request.task_id, context)
        answer = spec_tasks.collected(task)
        self._tell("collect", context, task, result=answer["result"])
        return _bytes(answer)

    async def _task(self, task_id: str, context: CallContext) -> Task | None:
        run_id = await self._desk.supervisor.handles.find(context.session_id, HANDLE_SPACE, task_id)
        return None if run_id is None else await self._seen(task_id, run_id)

    async def _seen(self, task_id: str, run_id: str) -> Task | None:
        view = await self._desk.supervisor.look(run_id)
        if view is None:
            return None
        return Task(task_id=task_id, agent=view.agent, turns_used=view.turns, outcome=view.outcome)

    # The log

    def _unknown(self, action: str, task_id: str, context: CallContext) -> Coded:
        refusal = spec_tasks.not_found(task_id)
        self._tell(action, context, task_id=task_id, error=refusal.code)
        return refusal

    def _tell(
        self,
        action: str,
        context: CallContext,
        seen: Task | None = None,
        *,
        task_id: str | None = None,
        agent: str | None = None,
        error: str | None = None,
        **contents: object,
    ) -> None:
        """One line for what was done or refused; contents only for those who ask for them."""
        if not log.isEnabledFor(logging.INFO):
            return
        told = line(
            session_id=context.session_id,
            task_id=seen.task_id if seen else task_id,
            agent=seen.agent if seen else agent,
            action=action,
            status=seen.status if seen else None,
            turns_used=seen.turns_used if seen and action != "spawn" else None,
            error=error,
            timestamp=rfc3339(self._desk.clock.now()),
        )
        log.info("%s", with_payloads(told, **contents))


def _bytes(answer: object) -> bytes:
    return compact(answer).encode()
