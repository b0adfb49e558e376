"""`spawn_subagent`: runs the calling agent again for a subtask, with a conversation of its own."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from retinue.core.agent import DEFAULT_AGENT, ToolSpec
from retinue.core.errors import Refused
from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.core.log_context import line, logger, run_log
from retinue.core.policy import NO_ACTIONS_LEFT, Autonomy
from retinue.core.ports import CallContext, ToolResult
from retinue.core.run import Lifecycle, Limits
from retinue.dialects.base import DialectTool
from retinue.dialects.context import DialectContext
from retinue.dialects.error_codes import CallRefused
from retinue.dialects.zeroclaw import NAME, answers
from retinue.dialects.zeroclaw.requests import SPAWN, prompt_of, spawn_spec
from retinue.engine import SpawnRequest, Supervisor

SUBAGENT = "subagent"
"""The label of every run that `spawn_subagent` starts, and the beginning of its session key in logs."""

log = logger("retinue.zeroclaw")


def check_may_act(context: CallContext, tool: str) -> None:
    """Refuse a read-only agent: starting another agent is an action."""
    if context.policy.autonomy == Autonomy.READONLY:
        raise CallRefused(answers.READ_ONLY.format(tool=tool))


async def spend(supervisor: Supervisor, context: CallContext) -> None:
    """Take one action from the caller's windows; every valid start of a run costs one."""
    if supervisor.live(context.run_id) is None:
        return
    if not await supervisor.take_action(context.run_id, context.key, again=context.again):
        raise CallRefused(NO_ACTIONS_LEFT)


class SpawnSubagentTool(DialectTool):
    """Starts a child that is like its caller but for the history, and waits for its final response."""

    waits = True

    def __init__(self, dialect_context: DialectContext) -> None:
        self.spec: ToolSpec = spawn_spec()
        self._dialect_context = dialect_context
        self._supervisor = dialect_context.supervisor

    def why_hidden(self, context: CallContext) -> str:
        """The refusal of a call by an agent whose profile excludes the tool; an empty prompt is refused first."""
        live = self._supervisor.live(context.run_id)
        try:
            if live is not None:
                prompt_of(live.run.open[context.index].call.arguments)
        except CallRefused as refusal:
            return str(refusal)
        return answers.hidden(SPAWN, context.identity)

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        try:
            return ToolResult(await self._output(arguments, context))
        except CallRefused as refusal:
            return ToolResult(str(refusal), failed=True)

    async def _output(self, arguments: str, context: CallContext) -> str:
        begun = await self._dialect_context.begun(context)
        run_id = begun.run_id if begun is not None else await self._begin(prompt_of(arguments), context)
        outcome = (await self._supervisor.wait([run_id]))[run_id]
        if outcome.result != "completed":
            raise CallRefused(f"subagent run failed: {answers.why(outcome)}")
        return outcome.text if outcome.text.strip() else answers.NO_OUTPUT

    async def _begin(self, prompt: str, context: CallContext) -> RunId:
        caller = self._supervisor.live(context.run_id)
        if caller is not None and is_subagent(caller.run.accepted):
            raise CallRefused(answers.NESTED_SUBAGENT)
        alias = context.identity
        if alias != DEFAULT_AGENT and self._dialect_context.known(alias) is None:
            raise CallRefused(answers.spawn_failed(answers.no_agent(alias)))
        check_may_act(context, SPAWN)
        await spend(self._supervisor, context)
        try:
            run_spec = self._dialect_context.run_spec_of(context.run_id)
            spawn_request = SpawnRequest(
                agent=context.agent,
                run_spec=self._dialect_context.run_spec_for(
                    run_spec, agent=run_spec.agent, system=run_spec.system, offered=context.offered, fallback=()
                ),
                task=prompt,
                limits=_limits(caller.run.accepted.limits if caller is not None else Limits()),
                lifecycle=Lifecycle(awaited=True),
                label=SUBAGENT,
                dialect=NAME,
            )
            started = await self._dialect_context.spawn(spawn_request, context)
        except Refused as refused:
            raise CallRefused(answers.spawn_failed(str(refused))) from refused
        log_start(self._supervisor, started.run_id, "subagent_started", context)
        return started.run_id


def is_subagent(accepted: RunAccepted) -> bool:
    """Whether a run was started by `spawn_subagent`, not by `delegate` or a scheduled job."""
    return accepted.dialect == NAME and accepted.label == SUBAGENT


def log_start(supervisor: Supervisor, run_id: RunId, event: str, context: CallContext) -> None:
    """Log the start of a run with the run's own fields, although its parent calls."""
    if log.isEnabledFor(logging.INFO):
        with run_log(supervisor.log_fields(run_id)):
            log.info("%s", line(event=event, parent=context.run_id))


def _limits(own: Limits) -> Limits:
    """The caller's limits without its time limit; tokens and money are shared by the tree anyway."""
    return replace(own, timeout=None, exchange_turns=None, wrap_up=False)
