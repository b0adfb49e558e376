"""`delegate`: a task for another agent with its own rights, awaited, in the background, or for several agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as other
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import Agent, RunSpec, ToolSpec
from retinue.core.commands import RunRow
from retinue.core.errors import Refused
from retinue.core.ids import RunId
from retinue.core.policy import Policy, RuntimeProfile, intersect, windows_of
from retinue.core.ports import CallContext, ToolResult
from retinue.core.run import Lifecycle, Limits
from retinue.core.state import Run
from retinue.core.text import rfc3339
from retinue.dialects.base import DialectTool
from retinue.dialects.context import DialectContext
from retinue.dialects.error_codes import CallRefused
from retinue.dialects.zeroclaw import NAME, answers, requests
from retinue.dialects.zeroclaw.answers import BY_USER, DelegateAnswer, DelegateTarget
from retinue.dialects.zeroclaw.background import SPACE, Background
from retinue.dialects.zeroclaw.requests import DELEGATE, Handover
from retinue.dialects.zeroclaw.result_files import ResultFolder, TaskResult, pretty
from retinue.dialects.zeroclaw.spawn import check_may_act, log_start, spend
from retinue.engine import SpawnRequest

PLAIN_SECONDS = 120.0
"""Default time limit of a target that answers once."""

AGENTIC_SECONDS = 300.0
"""Default time limit of a target that works with tools."""

STOP_SECONDS = 5.0
"""Seconds that `cancel_task` waits for a task to stop."""


class Begun(Struct, frozen=True):
    """A run that works on a delegated task, and its target."""

    run_id: RunId
    target: DelegateTarget


class DelegateTool(DialectTool):
    """Delegates tasks to other agents, and manages those in the background."""

    waits = True

    def __init__(self, dialect_context: DialectContext, background: Background) -> None:
        self._dialect_context = dialect_context
        self._supervisor = dialect_context.supervisor
        self._background = background
        self._names = tuple(agent.name for agent in dialect_context.agents)
        self.spec: ToolSpec = requests.delegate_spec(self._names)

    def spec_for_agent(self, agent: str, offered: tuple[str, ...], policy: Policy) -> ToolSpec:
        return requests.delegate_spec(self._names, caller=agent)

    def why_hidden(self, context: CallContext) -> str:
        return answers.hidden(DELEGATE, context.identity)

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        try:
            request = requests.parse(arguments)
            match request:
                case Handover():
                    return await self._hand_over(request, context)
                case requests.Parallel():
                    return await self._fan_out(request, context)
                case requests.CheckResult(task_id=task_id, shown=shown):
                    return await self._check_result(task_id, shown, context)
                case requests.ListResults():
                    return await self._list(context)
                case requests.CancelTask(task_id=task_id, shown=shown):
                    return await self._cancel(task_id, shown, context)
                case requests.Await(task_ids=task_ids, seconds=seconds):
                    return await self._await(task_ids, seconds, context)
                case _:
                    assert_never(request)
        except CallRefused as refusal:
            return ToolResult(str(refusal), failed=True)

    async def _hand_over(self, request: Handover, context: CallContext) -> ToolResult:
        row = await self._dialect_context.begun(context)
        if row is None:
            if request.agent not in self._names or request.agent == context.identity:
                raise answers.unknown_agent(request.agent, self._names)
            self._check_caller(context)
        begun = await self._begin(request, context, row)
        if request.background:
            await self._background.begun(begun.run_id)
            return ToolResult(answers.started(request.agent, begun.run_id))
        answer = await self._answer(begun)
        return ToolResult(answer.output) if answer.error is None else ToolResult(answer.error, failed=True)

    async def _fan_out(self, request: requests.Parallel, context: CallContext) -> ToolResult:
        each = [other(context, key=f"{context.key}/{place}") for place in range(len(request.agents))]
        rows = [await self._dialect_context.begun(one) for one in each]
        if not any(rows):
            for agent in request.agents:
                if agent not in self._names or agent == context.identity:
                    raise answers.unknown_in_list(agent, self._names)
            self._check_caller(context)
        begun: list[Begun | DelegateAnswer] = []
        for agent, one, row in zip(request.agents, each, rows, strict=True):
            try:
                begun.append(await self._begin(Handover(agent, request.task), one, row))
            except CallRefused as refusal:
                begun.append(DelegateAnswer(error=str(refusal)))
        given = [await self._answer(one) if isinstance(one, Begun) else one for one in begun]
        text = answers.fanned_out(list(zip(request.agents, given, strict=True)))
        if any(answer.error is not None for answer in given):
            return ToolResult(f"{text}\nError: {answers.PARALLEL_FAILED}", failed=True)
        return ToolResult(text)

    def _check_caller(self, context: CallContext) -> None:
        """Check the caller's own profile: its delegation depth, and whether it may act."""
        deepest = self._runtime(context.identity).max_delegation_depth
        if context.depth >= deepest:
            raise answers.too_deep(context.depth, deepest)
        check_may_act(context, DELEGATE)

    async def _begin(self, request: Handover, context: CallContext, row: RunRow | None) -> Begun:
        """The run that works on the task: the one that this call started before a crash, or a new one."""
        if row is not None:
            run = await self._supervisor.replay(row.run_id)
            return Begun(
                row.run_id, DelegateTarget.of(run.run_spec, run.accepted.limits, self._dialect_context.families)
            )
        try:
            spawn_request = await self._spawn_request(request, context)
            if complaint := self._dialect_context.families.complaint(spawn_request.run_spec.provider):
                raise answers.no_provider(spawn_request.run_spec.provider, request.agent, complaint)
            if request.background:
                _check_folder(self._background.folder(context.workspace))
            await spend(self._supervisor, context)
            run = await self._dialect_context.spawn(spawn_request, context)
            log_start(self._supervisor, run.run_id, "delegate_started", context)
        except CallRefused:
            raise
        except Refused as refused:
            raise answers.failed(request.agent, refused) from refused
        return Begun(
            run.run_id, DelegateTarget.of(spawn_request.run_spec, spawn_request.limits, self._dialect_context.families)
        )

    async def _spawn_request(self, request: Handover, context: CallContext) -> SpawnRequest:
        agent = self._dialect_context.known(request.agent)
        if agent is None:  # the settings changed after a crash
            raise answers.unknown_agent(request.agent, self._names)
        policy, independent = await self._grants(agent, context)
        given = self._supervisor.rules.policy_for(agent.name)
        return SpawnRequest(
            agent=agent.name,
            run_spec=self._run_spec(agent, context),
            task=request.task,
            limits=_limits(agent),
            policy=policy,
            independent=independent,
            windows=() if given is None else windows_of(agent.name, policy or given),
            lifecycle=Lifecycle(
                awaited=not request.background, on_parent_end="keep" if request.background else "cancel"
            ),
            dialect=NAME,
            handle_space=SPACE if request.background else None,
            handle_format="background-{}",
        )

    async def _grants(self, agent: Agent, context: CallContext) -> tuple[Policy | None, bool]:
        """The policy of the target, and whether its own profile alone bounds it; a caller cannot change either."""
        if not await self._is_bound_by_caller(agent, context):
            return None, True
        return intersect(self._supervisor.rules.ceiling_of(agent.name), context.policy), False

    async def _is_bound_by_caller(self, target: Agent, context: CallContext) -> bool:
        """Whether the caller's profile bounds its targets, or that of a run whose policy bounds the caller's.

        So a chain of targets cannot leave the policy of the first caller. Where the caller's profile leaves it open, a
        target has the rights of its own risk profile; one without such a profile has no rights beyond the caller's.
        """
        ceiling = self._runtime(context.identity).delegation_ceiling
        if ceiling == "caller" or (ceiling is None and target.policy is None):
            return True
        run = await self._run(context.run_id)
        while not run.accepted.independent and run.accepted.parent_id is not None:
            run = await self._run(run.accepted.parent_id)
            if self._runtime(run.run_spec.identity or run.accepted.agent).delegation_ceiling == "caller":
                return True
        return False

    async def _run(self, run_id: RunId) -> Run:
        live = self._supervisor.live(run_id)
        return await self._supervisor.replay(run_id) if live is None else live.run

    def _run_spec(self, agent: Agent, context: CallContext) -> RunSpec:
        tools = agent.tools if agent.tools or agent.no_tools else tuple(self._dialect_context.tool_names)
        offered = tuple(dict.fromkeys((*tools, requests.SPAWN, DELEGATE))) if agent.runtime.agentic else ()
        return self._dialect_context.run_spec_for(
            self._dialect_context.run_spec_of(context.run_id),
            agent=agent.name,
            system=agent.system_prompt,
            offered=offered,
            model=agent.model,
            fallback=agent.fallback,
        )

    def _runtime(self, alias: str) -> RuntimeProfile:
        known = self._dialect_context.known(alias)
        return RuntimeProfile() if known is None else known.runtime

    async def _answer(self, begun: Begun) -> DelegateAnswer:
        outcome = (await self._supervisor.wait([begun.run_id]))[begun.run_id]
        return begun.target.answer(outcome)

    async def _check_result(self, task_id: str, shown: str, context: CallContext) -> ToolResult:
        result = await self._background.result(task_id, self._background.folder(context.workspace))
        if result is None:
            raise answers.no_result(shown)
        return ToolResult(result.text, failed=result.status != "Completed")

    async def _list(self, context: CallContext) -> ToolResult:
        results = await self._background.all(self._background.folder(context.workspace))
        if not results:
            return ToolResult(answers.NO_RESULTS)
        return ToolResult(pretty([_summary(result) for result in results]))

    async def _cancel(self, task_id: str, shown: str, context: CallContext) -> ToolResult:
        results = self._background.folder(context.workspace)
        result = await self._background.result(task_id, results)
        if result is None:
            raise answers.no_task(shown)
        if result.status == "Running":
            await self._stop(result, results)
            stopped = await self._background.result(task_id, results)
            result = stopped if stopped is not None else result
        elif not (context.again and result.error == BY_USER):  # cancelled by this call before a crash
            raise answers.not_running(shown, result.status)
        if result.status not in ("Running", "Cancelled"):  # it ended at the same time
            raise answers.not_running(shown, result.status)
        return ToolResult(answers.cancelling(shown))

    async def _stop(self, result: TaskResult, results: ResultFolder) -> None:
        # A file is not trusted: another program could have written the id of any run into it.
        if await self._background.knows(result.task_id):
            await self._supervisor.cancel(result.task_id, note=BY_USER)
            await self._supervisor.wait([result.task_id], timeout=STOP_SECONDS)
        else:  # a file of another program, whose task this process cannot stop
            finished_at = rfc3339(self._dialect_context.clock.now())
            results.write(replace(result, status="Cancelled", error=BY_USER, finished_at=finished_at))

    async def _await(self, task_ids: Sequence[str], seconds: float, context: CallContext) -> ToolResult:
        results = self._background.folder(context.workspace)
        found = {task_id: await self._background.result(task_id, results) for task_id in task_ids}
        running = [task_id for task_id, result in found.items() if result is not None and result.status == "Running"]
        known = [task_id for task_id in running if await self._background.knows(task_id)]
        if known:
            await self._supervisor.wait(known, timeout=seconds)
            found |= {task_id: await self._background.result(task_id, results) for task_id in known}
        return ToolResult(pretty(_gathered(found)))


def _limits(agent: Agent) -> Limits:
    """The limits of a target: its own, or those of its runtime profile where they are narrower."""
    runtime = agent.runtime
    default = (runtime.agentic_timeout_secs or AGENTIC_SECONDS) if runtime.agentic else PLAIN_SECONDS
    seconds = runtime.delegation_timeout_secs or default
    own = agent.limits.timeout
    return replace(
        agent.limits,
        max_turns=(agent.max_turns or runtime.max_tool_iterations) if runtime.agentic else 1,
        timeout=seconds if own is None else min(own, seconds),
        wrap_up=False,
    )


def _check_folder(results: ResultFolder) -> None:
    """Refuse a task whose result could not be written, before it starts."""
    try:
        results.prepare()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CallRefused(f"Results cannot be kept in {results.path}: {reason}") from error


def _summary(result: TaskResult) -> dict[str, object]:
    fields = ("task_id", "agent", "status", "started_at", "finished_at")
    return {field: getattr(result, field) for field in fields}


def _gathered(found: dict[str, TaskResult | None]) -> dict[str, object]:
    """The answer to `await`: the ids by the state of their tasks, and the results of those that have ended."""
    pending = [task_id for task_id, result in found.items() if result is not None and result.status == "Running"]
    over = [result for result in found.values() if result is not None and result.status != "Running"]
    return {
        "status": "timeout" if pending else "complete",
        "completed": [result.task_id for result in over if result.status == "Completed"],
        "pending": pending,
        "missing": [task_id for task_id, result in found.items() if result is None],
        "failed": [result.task_id for result in over if result.status != "Completed"],
        "results": over,
    }
