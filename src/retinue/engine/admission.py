"""May this run be started? Depth, counts, rights and room are checked here, and refused with facts."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import RunSpec
from retinue.core.budget import Window
from retinue.core.errors import DepthExceeded, TooManyRunning, TreeCancelled
from retinue.core.events import RunAccepted
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.policy import Policy, Risk, Verdict, inherit, verdict
from retinue.core.profiles import Rules
from retinue.core.run import HistoryRef, Lifecycle, Limits
from retinue.engine.context import EngineContext
from retinue.engine.live_run import LiveRun


class SpawnRequest(Struct, frozen=True, kw_only=True):
    """A wish for a run, as a dialect or a program says it.

    `policy` is what the child asks for (None: all that its parent has). One that is `independent` is not bound by its
    parent's rights but by what the operator wrote down for its agent: who hands a task to another agent asks for this.
    `windows` are limits on stretches of time besides those of the runs above it. `max_depth` and `max_running` are the
    asker's rules; the latter counts running runs with a handle in `handle_space` of the session.
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
    reserved: bool = False
    inherits: HistoryRef | None = None
    windows: tuple[Window, ...] = ()
    after: tuple[tuple[RunId, str], ...] = ()
    """Runs that have to complete first, with the names by which the run knows them."""
    check: Callable[[], None] | None = None
    """Rules of the asker's own, which raise what they refuse; nothing happens between them and the birth."""


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
    """The acceptance of a run that may be started; raises the refusal of one that may not."""
    depth = 0
    path = "root"
    ceiling = engine.rules.ceiling_of(spawn_request.run_spec.identity or spawn_request.agent)
    root_id = run_id
    if parent is not None:
        above = parent.run.accepted
        if parent.cancelled or parent.run.outcome is not None:
            raise TreeCancelled(above.run_id)
        if spawn_request.max_depth is not None and above.depth >= spawn_request.max_depth:
            raise DepthExceeded(depth=above.depth, max_depth=spawn_request.max_depth)
        depth = above.depth + 1
        path = f"{above.path}/{spawn_request.agent}/{parent.children_created + 1}"
        if not spawn_request.independent:
            ceiling = parent.run.policy
        root_id = above.root_id
    if spawn_request.max_running is not None and running >= spawn_request.max_running:
        raise TooManyRunning(running=running, limit=spawn_request.max_running)
    policy = inherit(ceiling, spawn_request.policy)
    run_spec = remembering(visible(spawn_request.run_spec, policy), spawn_request.agent, engine.rules)
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
    )
    return accepted, run_spec


def visible(run_spec: RunSpec, policy: Policy) -> RunSpec:
    """A tool that the policy takes away altogether is not shown either."""
    if policy.tool_ceiling is None and not policy.excluded_tools:
        return run_spec
    kept = tuple(
        name for name in run_spec.offered if verdict(policy, tool=name, risk=Risk.LOW).verdict is not Verdict.REFUSE
    )
    return run_spec if kept == run_spec.offered else replace(run_spec, offered=kept)


def remembering(run_spec: RunSpec, agent: str, rules: Rules) -> RunSpec:
    """A brief that was made under other settings gives no memory to read that those of today take away."""
    if not run_spec.memory_from:
        return run_spec
    kept = rules.readable_memories(run_spec.identity or agent, run_spec.memory_from)
    return run_spec if kept == run_spec.memory_from else replace(run_spec, memory_from=kept)
