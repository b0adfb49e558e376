"""May this run be started? Depth, counts, rights and room are checked here, and refused with facts."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.agent import Brief
from retinue.core.budget import Window
from retinue.core.errors import DepthExceeded, TooManyRunning, TreeCancelled
from retinue.core.events import RunAccepted
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.policy import Policy, Risk, Verdict, inherit, verdict
from retinue.core.profiles import Rules
from retinue.core.run import HistoryRef, Limits, Manner
from retinue.engine.context import Parts
from retinue.engine.live_run import Driven


class Spawn(Struct, frozen=True, kw_only=True):
    """A wish for a run, as a dialect or a program says it.

    `policy` is what the child asks for (None: all that its parent has). One that is `independent` is not bound by its
    parent's rights but by what the operator wrote down for its agent: who hands a task to another agent asks for this.
    `windows` are limits on stretches of time besides those of the runs above it. `max_depth` and `max_running` are the
    asker's rules; the latter counts running runs with a handle in `handle_space` of the session.
    """

    agent: str
    brief: Brief
    task: str
    limits: Limits = Limits()
    policy: Policy | None = None
    independent: bool = False
    manner: Manner = Manner()
    label: str = ""
    dialect: str = ""
    handle_space: str | None = None
    handle_format: str = "{}"
    max_depth: int | None = None
    max_running: int | None = None
    carved: bool = False
    inherits: HistoryRef | None = None
    windows: tuple[Window, ...] = ()
    after: tuple[tuple[RunId, str], ...] = ()
    """Runs that have to complete first, with the names by which the run knows them."""
    check: Callable[[], None] | None = None
    """Rules of the asker's own, which raise what they refuse; nothing happens between them and the birth."""


def admit(
    wish: Spawn,
    *,
    run_id: RunId,
    session_id: SessionId,
    parent: Driven | None,
    running: int,
    key: Key | None,
    parts: Parts,
) -> tuple[RunAccepted, Brief]:
    """The acceptance of a run that may be started; raises the refusal of one that may not."""
    depth = 0
    path = "root"
    ceiling = parts.rules.ceiling_of(wish.brief.identity or wish.agent)
    root_id = run_id
    if parent is not None:
        above = parent.run.accepted
        if parent.cancelled or parent.run.outcome is not None:
            raise TreeCancelled(above.run_id)
        if wish.max_depth is not None and above.depth >= wish.max_depth:
            raise DepthExceeded(depth=above.depth, max_depth=wish.max_depth)
        depth = above.depth + 1
        path = f"{above.path}/{wish.agent}/{parent.births + 1}"
        if not wish.independent:
            ceiling = parent.run.policy
        root_id = above.root_id
    if wish.max_running is not None and running >= wish.max_running:
        raise TooManyRunning(running=running, limit=wish.max_running)
    policy = inherit(ceiling, wish.policy)
    brief = remembering(visible(wish.brief, policy), wish.agent, parts.rules)
    accepted = RunAccepted(
        at=parts.clock.now(),
        run_id=run_id,
        session_id=session_id,
        root_id=root_id,
        parent_id=parent.run_id if parent else None,
        depth=depth,
        path=path,
        key=key,
        agent=wish.agent,
        brief=brief.digest(),
        task=wish.task,
        policy=policy,
        independent=wish.independent,
        limits=wish.limits,
        manner=wish.manner,
        inherits=wish.inherits,
        label=wish.label,
        dialect=wish.dialect,
        carved=wish.carved,
        windows=wish.windows,
        after=wish.after,
    )
    return accepted, brief


def visible(brief: Brief, policy: Policy) -> Brief:
    """A tool that the policy takes away altogether is not shown either."""
    if policy.tool_ceiling is None and not policy.excluded_tools:
        return brief
    kept = tuple(
        name for name in brief.offered if verdict(policy, tool=name, risk=Risk.LOW).verdict is not Verdict.REFUSE
    )
    return brief if kept == brief.offered else replace(brief, offered=kept)


def remembering(brief: Brief, agent: str, rules: Rules) -> Brief:
    """A brief that was made under other settings gives no memory to read that those of today take away."""
    if not brief.memory_from:
        return brief
    kept = rules.still_readable(brief.identity or agent, brief.memory_from)
    return brief if kept == brief.memory_from else replace(brief, memory_from=kept)
