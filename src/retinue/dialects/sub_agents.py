"""Sub-agents that work for their caller or as a configured agent, fresh or with their caller's conversation.

Dialects whose children are named by id start and continue them here, and count those that run.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import Agent, Output, RunSpec
from retinue.core.commands import RunLimit
from retinue.core.errors import TooManyRunning
from retinue.core.ids import Key, RunId
from retinue.core.model_options import Effort
from retinue.core.policy import Policy, intersect
from retinue.core.ports import CallContext
from retinue.core.run import HistoryRef, Lifecycle, Limits
from retinue.core.text import name_list
from retinue.core.workspace import BRANCHES, is_worktree
from retinue.dialects.context import DialectContext, WorktreeChanges
from retinue.dialects.error_codes import CallRefused
from retinue.dialects.named_runs import NamedRun, NamedRuns
from retinue.engine import RunView, SpawnRequest

GENERAL = "general"
"""The name of a sub-agent that is none of the configured agents."""

Inherited: TypeAlias = "int | Literal['none', 'all']"
"""How much of the caller's conversation a child begins with: nothing, everything, or so many of the last turns."""


class ChildRules(Struct, frozen=True, kw_only=True):
    """What is the same for all children of a dialect."""

    dialect: str
    tool_names: tuple[str, ...]
    """The dialect's own tools."""
    max_depth: int
    max_running: int
    max_turns: int
    """Turns of a child where neither the call nor its agent sets a limit."""
    too_many: str
    """What to do where no more may run: the end of a refusal."""
    last_tools: tuple[str, ...] = ()
    """Those of its tools that a child at the greatest depth has, too."""


class ChildRequest(Struct, frozen=True, kw_only=True):
    """What a call asks for; `system` is the system text of a child that does not continue the caller's conversation."""

    task: str
    system: str
    agent: Agent | None = None
    general_name: str = GENERAL
    inherited: Inherited = "none"
    tools: tuple[str, ...] | None = None
    policy: Policy | None = None
    """The policy of a child that is no configured agent; None for the caller's."""
    model: str = ""
    effort: Effort | None = None
    service_tier: str = ""
    output: Output | None = None
    limits: Limits = Limits()
    label: str = ""
    lifecycle: Lifecycle = Lifecycle()
    apart: bool = False
    """Whether the child works in a git worktree of its own."""

    @property
    def is_fork(self) -> bool:
        """Whether the child continues the caller's conversation as the same agent."""
        return self.inherited != "none" and self.agent is None


class PlannedChild(Struct, frozen=True):
    """A run to start, and for a child with the caller's conversation whether it shares the provider's cache."""

    spawn_request: SpawnRequest
    cache: str


class SubAgents:
    """Starts and continues the sub-agents of one dialect."""

    def __init__(self, dialect_context: DialectContext, rules: ChildRules) -> None:
        self._dialect_context = dialect_context
        self._supervisor = dialect_context.supervisor
        self._rules = rules
        self.runs = NamedRuns(dialect_context.supervisor, rules.dialect)

    def plan(self, request: ChildRequest, context: CallContext, *, key: Key | None = None) -> PlannedChild:
        """The run that a call asks for, under the key of the call or another one.

        Raises `CallRefused` with what is valid.
        """
        agent = request.agent
        caller = self._dialect_context.run_spec_of(context.run_id)
        system = caller.system if request.is_fork else request.system
        run_spec = self._run_spec(request, caller, system, self._offered(request, context))
        policy, windows = (
            (request.policy, ()) if agent is None else self._dialect_context.grant(agent.name, context.policy)
        )
        spawn_request = SpawnRequest(
            agent=run_spec.agent,
            run_spec=run_spec,
            task=request.task,
            limits=self._limits(request.limits, agent),
            policy=policy,
            windows=windows,
            lifecycle=request.lifecycle,
            label=request.label,
            inherits=self._history(request.inherited, context),
            dialect=self._rules.dialect,
            max_depth=self._rules.max_depth,
            check=lambda: self._check_running(context),
            limit=RunLimit(root_ids=(context.root_id,), dialect=self._rules.dialect, runs=self._rules.max_running),
        )
        if request.apart:
            key = context.key if key is None else key
            spawn_request = self._dialect_context.in_worktree(spawn_request, context, key)
        return PlannedChild(spawn_request, "" if request.inherited == "none" else _cache(run_spec, caller, request))

    async def continue_run(self, named: NamedRun, task: str, lifecycle: Lifecycle, context: CallContext) -> RunId:
        """Continue an ended run by a new one with its history, and with no more rights than it had."""
        origin = await self._supervisor.replay(named.view.run_id)
        policy = intersect(context.policy, await self._supervisor.current_policy(origin))
        spawn_request = SpawnRequest(
            agent=origin.accepted.agent,
            run_spec=origin.run_spec,
            task=task,
            limits=origin.accepted.limits,
            policy=policy,
            windows=self._supervisor.current_windows(origin),
            lifecycle=lifecycle,
            label=origin.accepted.label,
            inherits=HistoryRef(origin.run_id, origin.seq),
            dialect=self._rules.dialect,
            handle_space=self.runs.space_of(named.run_id),
            max_depth=self._rules.max_depth,
            stays_here=is_worktree(origin.run_spec.workspace),
        )
        return (await self._dialect_context.spawn(spawn_request, context)).run_id

    async def changes(self, view: RunView) -> WorktreeChanges | None:
        """What a child in a worktree of its own has handed back; None for any other, and for nothing."""
        if view.outcome is None or not any(f"@{BRANCHES}/wt-" in artifact for artifact in view.outcome.artifacts):
            return None
        run = await self._supervisor.replay(view.run_id)
        return await self._dialect_context.worktree_changes(run.run_spec.workspace)

    async def start(self, planned: PlannedChild, context: CallContext, *, key: Key | None = None) -> RunId:
        """Start a planned run, under the key of the call or another one.

        Raises `CallRefused` if too many are running, also for those that other processes drive.
        """
        try:
            return (await self._dialect_context.spawn(planned.spawn_request, context, key=key)).run_id
        except TooManyRunning as refused:
            raise self._too_many(refused.running) from refused

    def tools_of(self, agent: Agent | None, context: CallContext) -> tuple[str, ...]:
        """The tools that a child may have: those of its agent, else those of the caller."""
        allowed = self._dialect_context.tools_within(context.policy)
        named = context.offered if agent is None or not (agent.tools or agent.no_tools) else agent.tools
        return tuple(name for name in named if name in allowed)

    def turns_of(self, agent: Agent | None) -> int:
        """The most turns of a child."""
        return self._limits(Limits(), agent).max_turns or self._rules.max_turns

    def _check_running(self, context: CallContext) -> None:
        runs = self._supervisor.unfinished_in(context.root_id)
        running = sum(accepted.dialect == self._rules.dialect and accepted.depth > 0 for accepted in runs)
        if running >= self._rules.max_running:
            raise self._too_many(running)

    def _too_many(self, running: int) -> CallRefused:
        return CallRefused(f"{running} agents are running, which is the limit: {self._rules.too_many}")

    def _history(self, inherited: Inherited, context: CallContext) -> HistoryRef | None:
        if inherited == "none":
            return None
        last_turns = inherited if isinstance(inherited, int) else None
        return self._supervisor.fork_point(context.run_id, last_turns=last_turns)

    def _offered(self, request: ChildRequest, context: CallContext) -> tuple[str, ...]:
        """The tools of the child: those that the call names, else those of its agent, else those of the caller."""
        valid = self.tools_of(request.agent, context)
        chosen = valid if request.tools is None else tuple(dict.fromkeys(request.tools))
        if unknown := [name for name in chosen if name not in valid]:
            raise CallRefused(f"Unknown tool {unknown[0][:100]!r}. Valid: {name_list(valid)}.")
        own = self._rules.tool_names
        if request.is_fork and request.tools is None:  # the same tools in the same order, for the provider's cache
            return tuple(name for name in context.offered if name in valid or name in own)
        nests = context.depth + 1 < self._rules.max_depth
        return (*chosen, *(name for name in (own if nests else self._rules.last_tools) if name in context.offered))

    def _run_spec(self, request: ChildRequest, caller: RunSpec, system: str, offered: tuple[str, ...]) -> RunSpec:
        agent = request.agent
        # A general agent works for its caller, also if the settings have an agent of the same name.
        run_spec = self._dialect_context.run_spec_for(
            caller,
            agent=(caller.identity or caller.agent) if agent is None else agent.name,
            system=system,
            offered=offered,
            model=request.model or ("" if agent is None else agent.model),
            fallback=() if agent is None or request.model else agent.fallback,
        )
        if request.model and (complaint := self._dialect_context.families.complaint(run_spec.provider)):
            names = name_list(tuple(self._dialect_context.families.names()))
            raise CallRefused(f"The model {request.model[:100]!r} cannot be used: {complaint}. Providers: {names}.")
        if agent is None:
            run_spec = replace(run_spec, agent=request.general_name)
        if request.output is not None:
            run_spec = replace(run_spec, output=request.output)
        if request.effort is not None:
            run_spec = replace(run_spec, effort=request.effort)
        if request.service_tier:
            run_spec = replace(run_spec, options=replace(run_spec.options, service_tier=request.service_tier))
        return run_spec

    def _limits(self, asked: Limits, agent: Agent | None) -> Limits:
        """The limits of the agent and of the call, whichever is narrower; the last turn is set aside for an answer."""
        own = Limits() if agent is None else agent.limits_with(agent.max_turns)
        return replace(
            own,
            max_turns=_least(own.max_turns, asked.max_turns) or self._rules.max_turns,
            max_nanodollars=_least(own.max_nanodollars, asked.max_nanodollars),
            wrap_up=True,
        )


def is_apart(isolation: str | None) -> bool:
    """Whether a call asks for a worktree; raises `CallRefused` for another isolation.

    >>> is_apart(None), is_apart("worktree")
    (False, True)
    """
    if isolation not in (None, "", "none", "worktree"):
        raise CallRefused(f"Isolation {isolation[:100]!r} is not available. Valid: worktree; or leave isolation out.")
    return isolation == "worktree"


def _cache(run_spec: RunSpec, caller: RunSpec, request: ChildRequest) -> str:
    """Whether a fork shares the prompt cache of its parent, and if not, why."""
    if (run_spec.provider, run_spec.model) != (caller.provider, caller.model):
        return "lost: another model"
    if run_spec.system != caller.system:
        return "lost: another system prompt"
    if run_spec.offered != caller.offered:
        return "lost: other tools"
    if run_spec.output != caller.output:
        return "lost: another form of answer"
    return "shared" if request.inherited == "all" else "lost: a part of the conversation"


def _least(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)
