"""The tasks of an orchestrator: started, looked at, waited for, cancelled and collected.

A task is a run and its id a handle; what is kept here is only how often somebody asks.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque

from msgspec.structs import replace

from retinue.core.agent import Agent
from retinue.core.budget import Window
from retinue.core.errors import SessionClosed, TooManyRunning, UnknownName
from retinue.core.ids import RunId, SessionId
from retinue.core.ports import CallContext, Clock
from retinue.core.run import Lifecycle, LimitMet, Limits, Outcome
from retinue.dialects.arguments import Coded, JsonObject
from retinue.dialects.context import DialectContext
from retinue.dialects.log_format import line, with_payloads
from retinue.dialects.shared_context import session_archived, session_not_found
from retinue.dialects.spec import NAME, prompts, results
from retinue.dialects.spec.agents import AgentStore
from retinue.dialects.spec.progress import progress
from retinue.dialects.spec.requests import Cancel, Collect, Progress, Spawn, Status, Wait, check_task
from retinue.dialects.spec.results import CANCELLED, HANDLE_FORMAT, HANDLE_SPACE, Task
from retinue.dialects.spec.settings import SpecSettings
from retinue.dialects.text import rfc3339
from retinue.engine import SpawnRequest

LIMIT = 10
SECONDS = 10.0
REMEMBERED = 10_000
"""Tasks whose questions are counted; of more, those that were not asked about for the longest time are forgotten."""


class Polls:
    """When each task was asked about lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked: OrderedDict[tuple[SessionId, str], deque[float]] = OrderedDict()

    def is_storm(self, session_id: SessionId, task_id: str) -> bool:
        """Count one question; whether there were more than there should be within some seconds."""
        now = self._clock.now()
        asked = self._asked.setdefault((session_id, task_id), deque(maxlen=LIMIT + 1))
        self._asked.move_to_end((session_id, task_id))
        if len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        asked.append(now)
        return len(asked) > LIMIT and asked[0] >= now - SECONDS

    def forget(self, session_id: SessionId, task_id: str) -> None:
        """Nobody can ask about the task any more."""
        self._asked.pop((session_id, task_id), None)


log = logging.getLogger("retinue.spec")


class SpecLog:
    """Tells what was done or refused, and when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def tell(
        self,
        action: str,
        context: CallContext,
        seen: Task | None = None,
        *,
        task_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        error: str | None = None,
        **contents: object,
    ) -> None:
        """One line for an action, with what was seen of the task."""
        if not log.isEnabledFor(logging.INFO):
            return
        told = line(
            session_id=context.session_id,
            task_id=seen.task_id if seen else task_id,
            agent=seen.agent if seen else agent,
            action=action,
            status=status or (seen.status if seen else None),
            turns_used=seen.turns_used if seen and action != "spawn" else None,
            error=error,
            timestamp=rfc3339(self._clock.now()),
        )
        log.info("%s", with_payloads(told, **contents))


After = tuple[tuple[RunId, str], ...]


class Delegation:
    """The actions on tasks; each returns the answer to the orchestrator, or raises `Coded`."""

    def __init__(self, dialect_context: DialectContext, settings: SpecSettings, agent_store: AgentStore) -> None:
        self._dialect_context = dialect_context
        self._settings = settings
        self._agent_store = agent_store
        self._polls = Polls(dialect_context.clock)
        self._log = SpecLog(dialect_context.clock)

    # Starting

    async def spawn(self, request: Spawn, context: CallContext) -> JsonObject:
        """Start a task; returns at once."""
        try:
            task = await self._spawned(request, context)
        except Coded as refusal:
            self._log.tell("spawn", context, agent=request.agent, error=refusal.code)
            raise
        self._log.tell("spawn", context, task, task=request.task)
        return results.spawned(task)

    async def _spawned(self, request: Spawn, context: CallContext) -> Task:
        # What depends on others is pending when it is born, even if they are over: the same call, entered again after
        # a crash, answers the same.
        pending = bool(request.depends_on)
        begun = await self._dialect_context.begun(context)
        if begun is not None and begun.handle is not None:
            return Task(task_id=begun.handle.name, agent=begun.agent, pending=pending)
        check_task(request.task)
        agent, origin = await self._agent_store.find(request.agent, context)
        after, must_wait = await self._dependencies(request.depends_on, context)
        spawn_request = await self._spawn_request(agent, origin, request, after, context)
        try:
            started = await self._dialect_context.supervisor.spawn(
                # A task that has to wait for others takes nobody's place.
                spawn_request if must_wait else replace(spawn_request, max_running=self._settings.max_running),
                session_id=context.session_id,
                caller=context,
                key=context.key,
            )
        except TooManyRunning as refused:
            raise results.too_many_running(self._settings.max_running) from refused
        except SessionClosed as refused:
            closed = session_archived if refused.state == "archived" else session_not_found
            raise closed(context.session_id) from refused
        assert started.handle is not None
        return Task(task_id=started.handle.name, agent=agent.name, pending=pending)

    async def _dependencies(self, task_ids: tuple[str, ...], context: CallContext) -> tuple[After, bool]:
        """The runs behind these ids, and whether one of them is not over yet."""
        after: list[tuple[RunId, str]] = []
        must_wait = False
        for task_id in task_ids:
            run_id = await self._run_of(task_id, context)
            task = None if run_id is None else await self._seen(task_id, run_id)
            if run_id is None or task is None:
                raise results.not_found(task_id)
            if task.outcome is None and self._dialect_context.supervisor.live(run_id) is None:
                raise Coded("INVALID_REQUEST", f"Task {task_id!r} is not worked on by this process; wait for it first.")
            must_wait = must_wait or task.outcome is None
            after.append((run_id, task_id))
        return tuple(after), must_wait

    async def _spawn_request(
        self, agent: Agent, origin: str, request: Spawn, after: After, context: CallContext
    ) -> SpawnRequest:
        known = self._agent_store.tools(context)
        offered = tuple(name for name in agent.tools if name in known)
        policy, windows = self._dialect_context.grant(origin, context.policy)
        on = self._settings.on
        return SpawnRequest(
            agent=agent.name,
            run_spec=self._dialect_context.run_spec_for(
                self._dialect_context.run_spec_of(context.run_id),
                agent=agent.name,
                system=prompts.subagent_text(agent.system_prompt, offered, on, depends=bool(after)),
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
        """What all subagents of the session may use together, where that is limited."""
        if not self._settings.has_budget:
            return ()
        session = await self._dialect_context.supervisor.stored.session(context.session_id)
        if session is None:
            raise session_not_found(context.session_id)
        return (self._settings.budget_of(session),)

    # Looking

    async def status(self, request: Status, context: CallContext) -> JsonObject:
        """How far a task is, and a hint for those who ask too often."""
        task = await self._found("status", request.task_id, context)
        self._log.tell("status", context, task)
        answer = results.status(task)
        on = self._settings.on
        is_storm = self._polls.is_storm(context.session_id, task.task_id)
        if "hint" in on and task.is_interrupted:
            answer["hint"] = results.INTERRUPTED
        elif "hint" in on and is_storm:
            answer["hint"] = results.hint(LIMIT, SECONDS, can_wait="wait" in on)
        return answer

    async def progress(self, request: Progress, context: CallContext) -> JsonObject:
        """What a task did lately: from memory while it is alive here, else from the store."""
        task = await self._found("progress", request.task_id, context)
        self._log.tell("progress", context, task)
        run_id = await self._run_of(request.task_id, context)
        live = None if run_id is None else self._dialect_context.supervisor.live(run_id)
        if live is not None:
            return progress(task, live.run, "".join(live.partial))
        try:
            return progress(task, None if run_id is None else await self._dialect_context.supervisor.replay(run_id))
        except UnknownName:  # it was cancelled before it came to be
            return progress(task, None)

    async def wait(self, request: Wait, context: CallContext) -> JsonObject:
        """Come back when enough of these tasks are over, or the time is; entered again, the time begins anew."""
        run_ids: dict[str, RunId] = {}
        for task_id in request.task_ids:
            run_id = await self._run_of(task_id, context)
            if run_id is None or await self._seen(task_id, run_id) is None:
                raise self._unknown("wait", task_id, context)
            run_ids[task_id] = run_id
        if request.timeout_ms and request.needed:
            waiting = tuple(run_ids.values())
            await self._dialect_context.supervisor.wait(
                waiting, count=request.needed, timeout=request.timeout_ms / 1000
            )
        seen = [await self._seen(task_id, run_id) for task_id, run_id in run_ids.items()]
        tasks = [task for task in seen if task is not None]
        for task in tasks:
            self._log.tell("wait", context, task)
        return results.waited(tasks, request.needed)

    # Ending

    async def collect(self, request: Collect, context: CallContext) -> JsonObject:
        """Take the result of a task that is over."""
        run_id = await self._run_of(request.task_id, context)
        task = None if run_id is None else await self._seen(request.task_id, run_id)
        if task is not None and task.outcome is None:
            self._log.tell("collect", context, task, error="TASK_NOT_READY")
            raise results.not_ready(task)
        task, _ = await self._taken("collect", request.task_id, context)
        answer = results.collected(task)
        self._log.tell("collect", context, task, result=answer["result"])
        return answer

    async def cancel(self, request: Cancel, context: CallContext) -> JsonObject:
        """Stop a task and take what it has; one that is over is collected."""
        # Taken before it is stopped: nobody else may see it end, or collect it, in between.
        task, run_id = await self._taken("cancel", request.task_id, context)
        if task.outcome is None:
            await self._dialect_context.supervisor.cancel(run_id, note=CANCELLED)
            await self._dialect_context.supervisor.wait((run_id,))
            task = await self._seen(request.task_id, run_id) or task
        answer = results.cancelled(task)
        self._log.tell("cancel", context, task, status=str(answer["status"]), result=answer["result"])
        return answer

    async def _taken(self, action: str, task_id: str, context: CallContext) -> tuple[Task, RunId]:
        # Of two who take the same task one gets it. The same call, entered again after a crash, gets it again,
        # although the id leads nowhere any more.
        handles = self._dialect_context.supervisor.handles
        run_id = await handles.retire(context.session_id, HANDLE_SPACE, task_id, key=context.key)
        task = None if run_id is None else await self._seen(task_id, run_id)
        if run_id is None or task is None:
            raise self._unknown(action, task_id, context)
        self._polls.forget(context.session_id, task_id)
        return task, run_id

    # Handles

    async def _found(self, action: str, task_id: str, context: CallContext) -> Task:
        run_id = await self._run_of(task_id, context)
        task = None if run_id is None else await self._seen(task_id, run_id)
        if task is None:
            raise self._unknown(action, task_id, context)
        return task

    async def _run_of(self, task_id: str, context: CallContext) -> RunId | None:
        return await self._dialect_context.supervisor.handles.find(context.session_id, HANDLE_SPACE, task_id)

    async def _seen(self, task_id: str, run_id: RunId) -> Task | None:
        view = await self._dialect_context.supervisor.look(run_id)
        if view is None:
            return None
        # Its driver says what a run waits for a moment after its birth; its state tells at once.
        live = self._dialect_context.supervisor.live(run_id)
        pending = view.waiting_for == "dependency" if live is None else live.is_pending
        return Task(
            task_id=task_id,
            agent=view.agent,
            turns_used=view.turns,
            outcome=None if view.outcome is None else self.in_words(view.outcome),
            pending=pending,
            is_interrupted=view.state == "interrupted",
        )

    def in_words(self, outcome: Outcome) -> Outcome:
        """An outcome as tasks are told of it: whoever is stopped by the session's budget has spent tokens."""
        limit = outcome.limit
        if outcome.reason != "window" or limit is None or not self._settings.is_budget(limit):
            return outcome
        return replace(outcome, reason="max_tokens", limit=LimitMet("max_tokens", limit.used, limit.limit))

    def _unknown(self, action: str, task_id: str, context: CallContext) -> Coded:
        refusal = results.not_found(task_id)
        self._log.tell(action, context, task_id=task_id, error=refusal.code)
        return refusal


def _limits(agent: Agent, request: Spawn) -> Limits:
    """The agent's limits and what the task may use; the narrower of two holds."""
    limits = agent.limits_with(agent.max_turns)
    return replace(
        limits,
        max_input_tokens=_least(limits.max_input_tokens, request.max_input_tokens),
        max_output_tokens=_least(limits.max_output_tokens, request.max_output_tokens),
    )


def _least(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)
