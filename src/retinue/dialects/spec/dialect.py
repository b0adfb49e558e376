"""The tool `subagent`: actions on tasks and agents. And the dialect that offers it with `shared_context`.

A task is a run, and its id a handle. Defined agents are in a key-value namespace of the session, and exist as long as
the session. All that is kept here is how often the status of each task was requested.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import Agent, ToolSpec
from retinue.core.budget import Window
from retinue.core.commands import Decision, NamespaceClosed
from retinue.core.errors import BadInput, SessionClosed, TooManyRunning, UnknownName
from retinue.core.ids import RunId, SessionId
from retinue.core.log_context import line, logger, with_payloads
from retinue.core.policy import Policy, allows
from retinue.core.ports import CallContext, CallRisk, Clock, PreparedCall, Tool, ToolResult
from retinue.core.run import HandleRef, Lifecycle, LimitMet, Limits, Outcome
from retinue.core.state import Run
from retinue.core.text import rfc3339
from retinue.dialects.arguments import compact_json, decoded, encoded
from retinue.dialects.base import Dialect, DialectTool
from retinue.dialects.context import DialectContext
from retinue.dialects.error_codes import CodedRefusal, JsonObject
from retinue.dialects.logging_tool import LoggingTool
from retinue.dialects.shared_context import NAME as SHARED_CONTEXT
from retinue.dialects.shared_context import session_archived, session_not_found
from retinue.dialects.shared_context.tool import SharedContextTool
from retinue.dialects.spec import NAME, answers, requests
from retinue.dialects.spec.answers import CANCELLED, HANDLE_FORMAT, HANDLE_SPACE, Task
from retinue.dialects.spec.requests import SUBAGENT, Spawn, SubagentRequest, WaitForTasks
from retinue.dialects.spec.settings import DEFAULTS, SpecSettings, mistakes
from retinue.engine import SpawnRequest

MAX_POLLS = 10
POLL_SECONDS = 10.0
REMEMBERED = 10_000
"""Tasks whose status requests are counted; beyond it, the tasks that were polled least recently are forgotten."""

log = logger("retinue.spec", dialect=NAME)


class SpecDialect(Dialect):
    """The two tools of the dialect; an orchestrator has both, a subagent `shared_context` if its agent names it."""

    name = NAME

    def __init__(self, dialect_context: DialectContext, settings: SpecSettings = DEFAULTS) -> None:
        if errors := mistakes(settings):
            raise BadInput(f"spec.{errors[0][0]}: {errors[0][1]}")
        dialect_context.supervisor.limit_running(HANDLE_SPACE, settings.max_running)
        self._clock = dialect_context.clock
        self._extensions = settings.on
        self._subagent = SubagentTool(dialect_context, settings)
        self._tools: dict[str, Tool] = {
            SUBAGENT: self._subagent,
            SHARED_CONTEXT: SharedContextTool(dialect_context, settings.on, dialect=NAME),
        }

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def system_text(self, agents: Sequence[Agent], offered: tuple[str, ...]) -> str:
        return answers.orchestrator_text(agents, offered, self._extensions)

    def log_fields(self, run: Run) -> Mapping[str, object]:
        return _log_fields(run.accepted.session_id, run.accepted.handle, run.accepted.agent)

    def wrapped(self, tool: Tool) -> Tool:
        return LoggedTool(tool, self._clock)

    def handover(self, outcome: Outcome) -> tuple[bool, str]:
        if outcome.result == "completed":
            return True, answers.result(outcome.text)
        return False, answers.failure(self._subagent.task_outcome(outcome))


class LoggedTool(LoggingTool):
    """A tool whose calls are logged with the session, and with the task id if a subagent calls."""

    def __init__(self, tool: Tool, clock: Clock) -> None:
        super().__init__(tool, log)
        self._clock = clock

    def call_line(self, call: PreparedCall, context: CallContext, status: str, result: str | None) -> str:
        facts = line(
            **_log_fields(context.session_id, context.handle, context.agent),
            action="call",
            tool=self.spec.name,
            turn=context.turn,
            status=status,
            timestamp=rfc3339(self._clock.now()),
        )
        return with_payloads(facts, arguments=call.arguments, result=result)


def _log_fields(session_id: SessionId, handle: HandleRef | None, agent: str) -> dict[str, object]:
    """The fields of a log line about a run: its session, its task id if it is a task, and its agent."""
    task_id = handle.name if handle is not None and handle.space == HANDLE_SPACE else None
    return {"session_id": session_id, "task_id": task_id, "agent": agent or None}


class StatusPolls:
    """The times of the latest status requests for each task."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: OrderedDict[tuple[SessionId, str], deque[float]] = OrderedDict()

    def is_storm(self, session_id: SessionId, task_id: str) -> bool:
        """Count one request; whether there were more than `MAX_POLLS` within `POLL_SECONDS`."""
        now = self._clock.now()
        times = self._times.setdefault((session_id, task_id), deque(maxlen=MAX_POLLS + 1))
        self._times.move_to_end((session_id, task_id))
        if len(self._times) > REMEMBERED:
            self._times.popitem(last=False)
        times.append(now)
        return len(times) > MAX_POLLS and times[0] >= now - POLL_SECONDS

    def forget(self, session_id: SessionId, task_id: str) -> None:
        """Drop the counts of a task whose id is no longer valid."""
        self._times.pop((session_id, task_id), None)


After = tuple[tuple[RunId, str], ...]
"""The runs that a task depends on, each with its task id."""


class SubagentTool(DialectTool):
    """The `subagent` tool; each action returns the answer to the orchestrator, or raises `CodedRefusal`.

    Actions of one reply take effect in their order: an agent is defined, a task spawned with it, another depends on it.
    """

    ordered = True

    def __init__(self, dialect_context: DialectContext, settings: SpecSettings) -> None:
        self._dialect_context = dialect_context
        self._supervisor = dialect_context.supervisor
        self._settings = settings
        self._extensions = settings.on
        self._has_budget = settings.has_budget
        self._agent_store = AgentStore(dialect_context)
        self._polls = StatusPolls(dialect_context.clock)
        self.spec: ToolSpec = requests.spec_of(settings.on)
        self._models = tuple(dict.fromkeys(agent.model for agent in dialect_context.agents if agent.model))
        self._names = tuple(agent.name for agent in dialect_context.agents)
        self.waits = "wait" in settings.on

    def spec_for(self, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        return requests.spec_of(self._extensions, self._agent_store.tools(policy), self._models, self._names)

    def prepare(self, arguments: str) -> PreparedCall:
        """Parse the request; only the action `wait` waits for other runs."""
        try:
            request = requests.parse(arguments, self._extensions)
        except CodedRefusal as refusal:
            request = refusal.with_traceback(None)
        run = partial(self._run, request)
        return PreparedCall(arguments, CallRisk(self.risk), run, waits=isinstance(request, WaitForTasks))

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        return await self.prepare(arguments).run(context)

    async def _run(self, request: SubagentRequest | CodedRefusal, context: CallContext) -> ToolResult:
        try:
            if context.depth > 0:  # a run that another dialect started may have inherited the tool
                raise answers.only_for_the_orchestrator()
            if isinstance(request, CodedRefusal):
                raise request
            return ToolResult(compact_json(await self._answer(request, context)))
        except CodedRefusal as refusal:
            # The model is expected to ask for a result too early now and then; that is no failure.
            return ToolResult(compact_json(refusal.answer), failed=refusal.code != "TASK_NOT_READY")

    async def _answer(self, request: SubagentRequest, context: CallContext) -> JsonObject:
        match request:
            case requests.ListAgents():
                return await self._agent_store.list(context)
            case requests.Define() | requests.Extend() | requests.Redefine():
                return await self._agent_store.define(request, context)
            case Spawn():
                return await self._spawn(request, context)
            case requests.GetStatus():
                return await self._status(request, context)
            case requests.Collect():
                return await self._collect(request, context)
            case requests.CancelTask():
                return await self._cancel(request, context)
            case requests.GetProgress():
                return await self._progress(request, context)
            case WaitForTasks():
                return await self._wait(request, context)
            case _:
                assert_never(request)

    # ---- spawn ------------------------------------------------------------------------------------------------------

    async def _spawn(self, request: Spawn, context: CallContext) -> JsonObject:
        try:
            task = await self._spawned(request, context)
        except CodedRefusal as refusal:
            self._log("spawn", context, agent=request.agent, error=refusal.code)
            raise
        self._log("spawn", context, task, task=request.task)
        return answers.spawned(task)

    async def _spawned(self, request: Spawn, context: CallContext) -> Task:
        # A task with dependencies is pending at first, even if they are over: the same call, entered again after a
        # crash, answers the same.
        pending = bool(request.depends_on)
        begun = await self._dialect_context.begun(context)
        if begun is not None and begun.handle is not None:
            return Task(task_id=begun.handle.name, agent=begun.agent, pending=pending)
        requests.check_task(request.task)
        agent, origin = await self._agent_store.find(request.agent, context)
        after, must_wait = await self._dependencies(request.depends_on, context)
        spawn_request = await self._spawn_request(agent, origin, request, after, context)
        if not must_wait:  # a task that has to wait for others takes no running slot
            spawn_request = replace(spawn_request, max_running=self._settings.max_running)
        try:
            started = await self._dialect_context.spawn(spawn_request, context)
        except TooManyRunning as refused:
            raise answers.too_many_running(self._settings.max_running) from refused
        except SessionClosed as refused:
            closed = session_archived if refused.state == "archived" else session_not_found
            raise closed(context.session_id) from refused
        assert started.handle is not None
        return Task(task_id=started.handle.name, agent=agent.name, pending=pending)

    async def _dependencies(self, task_ids: tuple[str, ...], context: CallContext) -> tuple[After, bool]:
        """The runs of these tasks, and whether one of them has not ended yet."""
        after: list[tuple[RunId, str]] = []
        must_wait = False
        for task_id in task_ids:
            found = await self._find(task_id, context)
            if found is None:
                raise answers.not_found(task_id)
            task, run_id = found
            if task.outcome is None and self._supervisor.live(run_id) is None:
                raise CodedRefusal(
                    "INVALID_REQUEST", f"Task {task_id!r} is not worked on by this process; wait for it first."
                )
            must_wait = must_wait or task.outcome is None
            after.append((run_id, task_id))
        return tuple(after), must_wait

    async def _spawn_request(
        self, agent: Agent, origin: str, request: Spawn, after: After, context: CallContext
    ) -> SpawnRequest:
        known = self._agent_store.tools(context.policy)
        offered = tuple(name for name in agent.tools if name in known)
        policy, windows = self._dialect_context.grant(origin, context.policy)
        return SpawnRequest(
            agent=agent.name,
            run_spec=self._dialect_context.run_spec_for(
                self._dialect_context.run_spec_of(context.run_id),
                agent=agent.name,
                system=answers.subagent_text(agent.system_prompt, offered, self._extensions, depends=bool(after)),
                offered=offered,
                model=agent.model,
                fallback=agent.fallback,
            ),
            task=request.task,
            limits=_limits(agent, request),
            policy=policy,
            windows=(*windows, *await self._budget(context)),
            lifecycle=Lifecycle(on_parent_end="cancel", crash_fails=True),
            dialect=NAME,
            handle_space=HANDLE_SPACE,
            handle_format=HANDLE_FORMAT,
            max_depth=1,
            after=after,
        )

    async def _budget(self, context: CallContext) -> tuple[Window, ...]:
        """The budget that all subagents of the session share, if the settings have one."""
        if not self._has_budget:
            return ()
        session = await self._supervisor.stored.session(context.session_id)
        if session is None:
            raise session_not_found(context.session_id)
        return (self._settings.budget_of(session),)

    # ---- status, progress and wait ----------------------------------------------------------------------------------

    async def _status(self, request: requests.GetStatus, context: CallContext) -> JsonObject:
        task, _ = await self._logged("status", request.task_id, context)
        answer = answers.status(task)
        is_storm = self._polls.is_storm(context.session_id, task.task_id)
        if "hint" in self._extensions and task.is_interrupted:
            answer["hint"] = answers.INTERRUPTED
        elif "hint" in self._extensions and is_storm:
            answer["hint"] = answers.hint(MAX_POLLS, POLL_SECONDS, can_wait="wait" in self._extensions)
        return answer

    async def _progress(self, request: requests.GetProgress, context: CallContext) -> JsonObject:
        """The latest entries of a task: from memory while this process drives it, else from the store."""
        task, run_id = await self._logged("progress", request.task_id, context)
        live = self._supervisor.live(run_id)
        if live is not None:
            return answers.progress(task, live.run, "".join(live.partial))
        try:
            return answers.progress(task, await self._supervisor.replay(run_id))
        except UnknownName:  # cancelled before its run was accepted
            return answers.progress(task, None)

    async def _wait(self, request: WaitForTasks, context: CallContext) -> JsonObject:
        """Return when enough of these tasks have ended, or at the timeout; entered again, the timeout starts anew."""
        run_ids: dict[str, RunId] = {}
        for task_id in request.task_ids:
            found = await self._find(task_id, context)
            if found is None:
                raise self._unknown("wait", task_id, context)
            run_ids[task_id] = found[1]
        self._supervisor.proceed(context)
        if request.timeout_ms and request.needed:
            await self._supervisor.wait(
                tuple(run_ids.values()), count=request.needed, timeout=request.timeout_ms / 1000
            )
        seen = [await self._task(task_id, run_id) for task_id, run_id in run_ids.items()]
        tasks = [task for task in seen if task is not None]
        for task in tasks:
            self._log("wait", context, task)
        return answers.waited(tasks, request.needed)

    # ---- collect and cancel -----------------------------------------------------------------------------------------

    async def _collect(self, request: requests.Collect, context: CallContext) -> JsonObject:
        found = await self._find(request.task_id, context)
        if found is not None and found[0].outcome is None:
            self._log("collect", context, found[0], error="TASK_NOT_READY")
            raise answers.not_ready(found[0])
        task, _ = await self._retired("collect", request.task_id, context)
        answer = answers.collected(task)
        self._log("collect", context, task, result=answer["result"])
        return answer

    async def _cancel(self, request: requests.CancelTask, context: CallContext) -> JsonObject:
        """Stop a task and return its partial result; a task that has ended is collected."""
        # The id is retired before the run is stopped, so that no other call sees the task end or collects it.
        task, run_id = await self._retired("cancel", request.task_id, context)
        if task.outcome is None:
            await self._supervisor.cancel(run_id, note=CANCELLED)
            await self._supervisor.wait((run_id,))
            task = await self._task(request.task_id, run_id) or task
        answer = answers.cancelled(task)
        self._log("cancel", context, task, status=str(answer["status"]), result=answer["result"])
        return answer

    async def _retired(self, action: str, task_id: str, context: CallContext) -> tuple[Task, RunId]:
        """The task and its run, after its id was made invalid; of two calls for the same task one succeeds.

        The same call, entered again after a crash, succeeds again, although the id is invalid by then.
        """
        handles = self._supervisor.handles
        run_id = await handles.retire(context.session_id, HANDLE_SPACE, task_id, key=context.key)
        task = None if run_id is None else await self._task(task_id, run_id)
        if run_id is None or task is None:
            raise self._unknown(action, task_id, context)
        self._polls.forget(context.session_id, task_id)
        return task, run_id

    # ---- tasks ------------------------------------------------------------------------------------------------------

    async def _find(self, task_id: str, context: CallContext) -> tuple[Task, RunId] | None:
        run_id = await self._supervisor.handles.find(context.session_id, HANDLE_SPACE, task_id)
        task = None if run_id is None else await self._task(task_id, run_id)
        return None if run_id is None or task is None else (task, run_id)

    async def _logged(self, action: str, task_id: str, context: CallContext) -> tuple[Task, RunId]:
        """A task and its run, after the action was logged; raises `CodedRefusal` if there is none."""
        found = await self._find(task_id, context)
        if found is None:
            raise self._unknown(action, task_id, context)
        self._log(action, context, found[0])
        return found

    async def _task(self, task_id: str, run_id: RunId) -> Task | None:
        view = await self._supervisor.look(run_id)
        if view is None:
            return None
        # The view reports a wait for dependencies a moment after the run was accepted; the live run does at once.
        live = self._supervisor.live(run_id)
        return Task(
            task_id=task_id,
            agent=view.agent,
            turns_used=view.turns,
            outcome=None if view.outcome is None else self.task_outcome(view.outcome),
            pending=view.waiting_for == "dependency" if live is None else live.is_pending,
            is_interrupted=view.state == "interrupted",
        )

    def task_outcome(self, outcome: Outcome) -> Outcome:
        """The outcome of a task: a run that was stopped by the session's budget has used up its tokens."""
        limit = outcome.limit
        if outcome.reason != "window" or limit is None or not self._settings.is_budget(limit):
            return outcome
        return replace(outcome, reason="max_tokens", limit=LimitMet("max_tokens", limit.used, limit.limit))

    def _unknown(self, action: str, task_id: str, context: CallContext) -> CodedRefusal:
        refusal = answers.not_found(task_id)
        self._log(action, context, task_id=task_id, error=refusal.code)
        return refusal

    def _log(
        self,
        action: str,
        context: CallContext,
        task: Task | None = None,
        /,
        *,
        task_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        error: str | None = None,
        **payloads: object,
    ) -> None:
        if not log.isEnabledFor(logging.INFO):
            return
        facts = line(
            session_id=context.session_id,
            task_id=task.task_id if task else task_id,
            agent=task.agent if task else agent,
            action=action,
            status=status or (task.status if task else None),
            turns_used=task.turns_used if task and action != "spawn" else None,
            error=error,
            timestamp=rfc3339(self._dialect_context.clock.now()),
        )
        log.info("%s", with_payloads(facts, **payloads))


def _limits(agent: Agent, request: Spawn) -> Limits:
    """The limits of the agent and of the request, whichever is narrower."""
    limits = agent.limits_with(agent.max_turns)
    return replace(
        limits,
        max_input_tokens=_least(limits.max_input_tokens, request.max_input_tokens),
        max_output_tokens=_least(limits.max_output_tokens, request.max_output_tokens),
    )


def _least(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


class Defined(Struct, frozen=True, kw_only=True):
    """A stored agent; `number` keeps the order in which agents were defined, `version` counts its definitions.

    `origin` is the application's agent that it extends, directly or not: its policy and windows apply here too.
    """

    number: int
    agent: Agent
    version: int = 1
    origin: str = ""


def space_of(session_id: SessionId) -> str:
    """The namespace of a session's defined agents."""
    return f"agents/{session_id}"


def define(
    request: requests.Definition | requests.Redefine,
    key_value: Mapping[str, bytes],
    *,
    registered: Sequence[Agent],
    tools: Sequence[str],
) -> Decision:
    """The change that a definition makes to the namespace, and its answer; a refusal is an answer too.

    An agent that was defined before can be redefined, the application's own agents cannot. `tools` is the registry of
    tools that an agent can be given.
    """
    definition = request.definition if isinstance(request, requests.Redefine) else request
    name, known = definition.name, agents_of(registered, key_value)
    try:
        agent = _drafted(definition, known, tools)
        if isinstance(request, requests.Redefine):
            if name not in key_value or _is_registered(name, registered):
                raise CodedRefusal("AGENT_NOT_FOUND", f"No agent of this name was defined here: {name!r}")
        elif name in known:
            raise CodedRefusal("AGENT_ALREADY_EXISTS", f"Agent already registered: {name!r}")
    except CodedRefusal as refusal:
        return Decision(encoded(refusal.answer))
    origin = _origin(definition, registered, key_value)
    defined = Defined(number=len(key_value) + 1, agent=agent, origin=origin)
    answer: JsonObject = {"defined": name, "description": agent.description}
    if isinstance(request, requests.Redefine):
        before = _decoded(key_value[name])
        defined = replace(before, agent=agent, version=before.version + 1, origin=origin)
        answer = {"redefined": name, "description": agent.description, "version": defined.version}
    return Decision(encoded(answer), {name: msgspec.json.encode(defined)})


def agents_of(registered: Sequence[Agent], key_value: Mapping[str, bytes]) -> dict[str, Agent]:
    """Every agent of the session by name: first the registered ones, then the defined ones in their order.

    All are returned as `spec` uses them: without the delegation tool, and with turns within its bounds. A name that the
    application registers after it was defined means the application's agent.
    """
    defined = sorted(map(_decoded, key_value.values()), key=lambda stored: stored.number)
    agents: dict[str, Agent] = {}
    for agent in (*registered, *(stored.agent for stored in defined)):
        agents.setdefault(agent.name, _as_used(agent))
    return agents


def origin_of(name: str, registered: Sequence[Agent], key_value: Mapping[str, bytes]) -> str:
    """The agent whose policy and windows apply to this one: itself, or the application's agent that it extends."""
    if _is_registered(name, registered) or name not in key_value:
        return name
    return _decoded(key_value[name]).origin or name


def agent_named(agents: Mapping[str, Agent], name: str) -> Agent:
    """The agent of that name; raises `CodedRefusal` if there is none."""
    if name not in agents:
        raise CodedRefusal("AGENT_NOT_FOUND", f"Unknown agent: {name!r}")
    return agents[name]


def listing(agents: Mapping[str, Agent], shown_model: Callable[[str], str]) -> JsonObject:
    """The answer to `list_agents`; `shown_model` returns the printed name of an agent's model."""
    return {
        "agents": [
            {
                "name": agent.name,
                "description": agent.description,
                "model": shown_model(agent.model),
                "max_turns": agent.max_turns,
                "tools": agent.tools,
            }
            for agent in agents.values()
        ]
    }


def _drafted(request: requests.Definition, known: Mapping[str, Agent], tools: Sequence[str]) -> Agent:
    """The agent that a definition describes; raises `CodedRefusal` if it is not valid."""
    match request:
        case requests.Define():
            requests.check_definition(request, tools)
            return msgspec.convert(request, Agent, from_attributes=True)
        case requests.Extend():
            requests.check_agent_name(request.name)
            agent = _extended(agent_named(known, request.extends), request)
            requests.check_prompt(agent.system_prompt)
            # Inherited tools were checked when they were defined, and are cut to the policy with every task.
            requests.check_tools(request.tools or (), tools)
            return agent


def _extended(base: Agent, request: requests.Extend) -> Agent:
    prompt = base.system_prompt if request.system_prompt is None else request.system_prompt
    parts = (prompt, request.system_prompt_append)
    optional = {name: getattr(request, name) for name in ("description", "tools", "model", "max_turns")}
    return replace(
        base,
        name=request.name,
        system_prompt="\n\n".join(part for part in parts if part),
        fallback=base.fallback if request.model is None else (),  # a fallback belongs to its model
        policy=None,  # the current policy of its origin applies
        **{name: value for name, value in optional.items() if value is not None},
    )


def _origin(request: requests.Definition, registered: Sequence[Agent], key_value: Mapping[str, bytes]) -> str:
    if not isinstance(request, requests.Extend):
        return ""
    origin = origin_of(request.extends, registered, key_value)
    return origin if _is_registered(origin, registered) else ""


def _is_registered(name: str, registered: Sequence[Agent]) -> bool:
    return any(agent.name == name for agent in registered)


def _decoded(stored: bytes) -> Defined:
    return msgspec.json.decode(stored, type=Defined)


def _as_used(agent: Agent) -> Agent:
    return replace(agent, tools=requests.without_delegation(agent.tools), max_turns=requests.clamped(agent.max_turns))


class AgentStore:
    """The actions on agents, which are in the dialect context (registered) and in the store (defined)."""

    def __init__(self, dialect_context: DialectContext) -> None:
        self._dialect_context = dialect_context

    async def list(self, context: CallContext) -> JsonObject:
        """The answer to `list_agents`."""
        caller = self._dialect_context.run_spec_of(context.run_id)
        agents = agents_of(self._dialect_context.agents, await self._key_value(context))
        return listing(agents, lambda model: self._dialect_context.resolve(model, caller)[1] if model else caller.model)

    async def define(self, request: requests.Definition | requests.Redefine, context: CallContext) -> JsonObject:
        """The answer to `define` and `redefine`."""
        tools = self.tools(context.policy)
        written = await self._dialect_context.key_value.change(
            space_of(context.session_id),
            lambda key_value: define(request, key_value, registered=self._dialect_context.agents, tools=tools),
            key=context.key,
            session_id=context.session_id,
        )
        match written:
            case bytes():
                return decoded(written)
            case NamespaceClosed(why="session_archived"):
                raise session_archived(context.session_id)
            case _:
                raise session_not_found(context.session_id)

    async def find(self, name: str, context: CallContext) -> tuple[Agent, str]:
        """An agent, and the name of the one whose policy and windows apply to it; raises `CodedRefusal`."""
        key_value = await self._key_value(context)
        agent = agent_named(agents_of(self._dialect_context.agents, key_value), name)
        return agent, origin_of(name, self._dialect_context.agents, key_value)

    def tools(self, policy: Policy) -> tuple[str, ...]:
        """The application's tools and `shared_context`, as far as the orchestrator's policy allows them."""
        allowed = self._dialect_context.tools_within(policy)
        return (*allowed, *((SHARED_CONTEXT,) if allows(policy, SHARED_CONTEXT) else ()))

    async def _key_value(self, context: CallContext) -> Mapping[str, bytes]:
        return await self._dialect_context.key_value.look(space_of(context.session_id))
