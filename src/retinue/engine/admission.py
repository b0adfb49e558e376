"""Admission of runs: check depth, counts and policy of a new run; apply current settings to a stored one."""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import RunSpec
from retinue.core.attachments import Attachment
from retinue.core.budget import Window
from retinue.core.commands import RunLimit
from retinue.core.errors import DepthExceeded, TooManyRunning, TreeCancelled
from retinue.core.events import RunAccepted
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.policy import (
    ACTIONS,
    Policy,
    Rules,
    allows,
    anchored,
    inherit,
    intersect,
    narrowed_windows,
    windows_of,
    with_anchors,
    within_tools,
)
from retinue.core.run import HistoryRef, Lifecycle, Limits
from retinue.core.state import Run
from retinue.core.workspace import is_address
from retinue.engine.context import EngineContext
from retinue.engine.live_run import LiveRun
from retinue.engine.store_access import Replay


class SpawnRequest(Struct, frozen=True, kw_only=True):
    """A request for a run, by a dialect or a program.

    `policy` is what the child asks for (None: all that its parent has). An `independent` run is not bound by its
    parent's policy but by the settings of its agent; dialects that delegate to another agent set it. `windows` are
    limits per period, in addition to those of the runs above. `max_depth` and `max_running` are rules of the caller;
    `max_running` counts the running runs of the session with a handle in `handle_space`. `limit` is checked by the
    store where other processes drive runs of its trees, too; where all are here, the caller has to, with `check`.
    """

    agent: str
    run_spec: RunSpec
    task: str
    limits: Limits = Limits()
    policy: Policy | None = None
    independent: bool = False
    lifecycle: Lifecycle = Lifecycle()
    label: str = ""
    dialect: str = ""
    handle_space: str | None = None
    handle_format: str = "{}"
    max_depth: int | None = None
    max_running: int | None = None
    limit: RunLimit | None = None
    reserved: bool = False
    inherits: HistoryRef | None = None
    windows: tuple[Window, ...] = ()
    after: tuple[tuple[RunId, str], ...] = ()
    """Runs that have to complete first, each with the name under which the new run reads its result."""
    attachments: tuple[Attachment, ...] = ()
    stays_here: bool = False
    """Whether the run has to be driven by the process of its parent, which reaches into it."""
    check: Callable[[], None] | None = None
    """Further rules of the caller: raises a refusal. It is called without an await before the run is registered."""


def admit(
    spawn_request: SpawnRequest,
    *,
    run_id: RunId,
    session_id: SessionId,
    parent: LiveRun | None,
    running: int,
    key: Key | None,
    engine: EngineContext,
) -> tuple[RunAccepted, RunSpec]:
    """The acceptance of a run that may be started, and its run spec; raises a `Refused` for one that may not."""
    depth = 0
    path = "root"
    ceiling = engine.rules.ceiling_of(spawn_request.run_spec.identity or spawn_request.agent)
    grant = spawn_request.policy
    root_id = run_id
    tool_ceiling = spawn_request.run_spec.tool_ceiling
    if parent is not None:
        above = parent.run.accepted
        if parent.cancelled or parent.run.outcome is not None:
            raise TreeCancelled(above.run_id)
        if spawn_request.max_depth is not None and above.depth >= spawn_request.max_depth:
            raise DepthExceeded(depth=above.depth, max_depth=spawn_request.max_depth)
        depth = above.depth + 1
        path = f"{above.path}/{spawn_request.agent}/{parent.children_created + 1}"
        if not spawn_request.independent:
            ceiling = _anchored(parent.run.policy, parent.run.run_spec)
            grant = grant and with_anchors(grant, ceiling)
        root_id = above.root_id
        spawn_request = _in_the_same_workspace(spawn_request, parent.run.run_spec, engine.rules)
        tool_ceiling = parent.run.run_spec.tool_ceiling
    if spawn_request.max_running is not None and running >= spawn_request.max_running:
        raise TooManyRunning(running=running, limit=spawn_request.max_running)
    # An independent run is bound by the tools of its tree, too.
    policy = within_tools(_anchored(inherit(ceiling, grant), spawn_request.run_spec), tool_ceiling)
    policy = engine.rules.restricted(policy, spawn_request.run_spec.identity or spawn_request.agent)
    run_spec = spawn_request.run_spec
    if run_spec.tool_ceiling != tool_ceiling:
        run_spec = replace(run_spec, tool_ceiling=tool_ceiling)
    run_spec = with_visible_tools(run_spec, policy)
    tags = tuple(
        dict.fromkeys(
            (
                *(parent.run.run_spec.tags if parent else ()),
                *tags_of(spawn_request, engine.rules),
                *tags_of_folder(run_spec, engine.rules),
            )
        )
    )
    priority = run_spec.priority if parent is None else parent.run.run_spec.priority
    if (tags, priority) != (run_spec.tags, run_spec.priority):
        run_spec = replace(run_spec, tags=tags, priority=priority)
    run_spec = with_readable_memory(run_spec, spawn_request.agent, engine.rules)
    accepted = RunAccepted(
        at=engine.clock.now(),
        run_id=run_id,
        session_id=session_id,
        root_id=root_id,
        parent_id=parent.run_id if parent else None,
        depth=depth,
        path=path,
        key=key,
        agent=spawn_request.agent,
        run_spec=run_spec.digest(),
        task=spawn_request.task,
        policy=policy,
        independent=spawn_request.independent,
        limits=spawn_request.limits,
        lifecycle=spawn_request.lifecycle,
        inherits=spawn_request.inherits,
        label=spawn_request.label,
        dialect=spawn_request.dialect,
        reserved=spawn_request.reserved,
        windows=spawn_request.windows,
        after=spawn_request.after,
        attachments=spawn_request.attachments,
        trace=_trace(parent, engine),
    )
    return accepted, run_spec


def _trace(parent: LiveRun | None, engine: EngineContext) -> str:
    if parent is not None:
        return parent.run.accepted.trace
    return "" if engine.tracing is None else engine.tracing.context_of_caller()


def _in_the_same_workspace(spawn_request: SpawnRequest, parent: RunSpec, rules: Rules) -> SpawnRequest:
    """The request of a child whose agent has no workspace of its own: it works in that of its parent.

    That differs from the current folder if the parent's is fetched, or if a worker on its machine drives it.
    """
    run_spec = spawn_request.run_spec
    if run_spec.workspace == parent.workspace:
        return spawn_request
    is_kept = is_address(parent.workspace) or bool(rules.machine and rules.machine in parent.tags)
    if not is_kept or run_spec.workspace not in ("", os.getcwd()):
        return spawn_request
    return replace(spawn_request, run_spec=replace(run_spec, workspace=parent.workspace))


def tags_of_folder(run_spec: RunSpec, rules: Rules) -> tuple[str, ...]:
    """The tag of this machine, if the tools of a run work in one of its folders, and other machines have others."""
    if not rules.machine or is_address(run_spec.workspace) or rules.folder_tools.isdisjoint(run_spec.offered):
        return ()
    return (rules.machine,)


def tags_of(spawn_request: SpawnRequest, rules: Rules) -> tuple[str, ...]:
    """The tags that a worker must have for a run: its own and those of its agent."""
    run_spec = spawn_request.run_spec
    return (*run_spec.tags, *rules.tags.get(run_spec.identity or spawn_request.agent, ()))


def _anchored(policy: Policy, run_spec: RunSpec) -> Policy:
    workspace = run_spec.workspace
    if any(path.startswith("..") or "/.." in path for path in policy.forbidden_paths):
        workspace = os.path.realpath(workspace)  # the folder above a link is not the one above the folder it leads to
    return anchored(policy, workspace)


def with_visible_tools(run_spec: RunSpec, policy: Policy) -> RunSpec:
    """The run spec without the tools that the policy refuses for every call."""
    if policy.tool_ceiling is None and not policy.excluded_tools:
        return run_spec
    kept = tuple(name for name in run_spec.offered if allows(policy, name))
    return run_spec if kept == run_spec.offered else replace(run_spec, offered=kept)


def with_readable_memory(run_spec: RunSpec, agent: str, rules: Rules) -> RunSpec:
    """The run spec without the memories that the current settings do not let its agent read any more."""
    if not run_spec.memory_from:
        return run_spec
    kept = rules.readable_memories(run_spec.identity or agent, run_spec.memory_from)
    return run_spec if kept == run_spec.memory_from else replace(run_spec, memory_from=kept)


async def current_policy(run: Run, known: dict[RunId, Policy], rules: Rules, replay: Replay) -> Policy:
    """The policy of a run, narrowed by the current settings of its agent and of the runs above it, ended ones too.

    `known` holds policies that were computed before; those that are computed here are added to it.
    """
    line = [run]
    while (above := _bound_by(line[-1])) is not None and above not in known:
        line.append(await replay.run(above))
    for each in reversed(line):
        agent = each.run_spec.identity or each.accepted.agent
        above = _bound_by(each)
        current = rules.ceiling_of(agent) if above is None else rules.agents.get(agent)
        policy = each.policy if current is None else intersect(each.policy, current)
        for other in _extended_agents(each):
            if (theirs := rules.agents.get(other)) is not None:
                policy = intersect(policy, theirs)
        policy = rules.restricted(_anchored(policy, each.run_spec), agent)
        known[each.run_id] = policy if above is None else intersect(policy, known[above])
    return known[run.run_id]


def current_windows(run: Run, rules: Rules) -> tuple[Window, ...]:
    """The windows of a run under its current policy, and those of a policy that its agent was given since."""
    windows = {window.name: window for window in narrowed_windows(run.accepted.windows, run.policy)}
    agent = run.run_spec.identity or run.accepted.agent
    given = rules.policy_for(agent) if _bound_by(run) is None else rules.agents.get(agent)
    if given is not None:
        for window in windows_of(agent, run.policy):
            windows.setdefault(window.name, window)
    return tuple(windows.values())


def _bound_by(run: Run) -> RunId | None:
    """The run whose policy bounds this one's; None for a root and for an independent run."""
    return None if run.accepted.independent else run.accepted.parent_id


def _extended_agents(run: Run) -> set[str]:
    """Agents that a child's agent extends: their action windows were given to the child."""
    if run.accepted.parent_id is None:
        return set()  # a fork draws on the windows of all runs above its origin
    names = (window.name for window in run.accepted.windows)
    return {name.removeprefix(ACTIONS) for name in names if name.startswith(ACTIONS)}
