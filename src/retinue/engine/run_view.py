"""A run as others see it, whoever drives it: alive here, alive elsewhere, interrupted or ended."""

from __future__ import annotations

from msgspec import Struct

from retinue.core.commands import RunRow
from retinue.core.ids import RunId, SessionId
from retinue.core.run import HandleRef, Outcome, State, WaitingFor
from retinue.core.usage import Usage
from retinue.engine.live_run import LiveRun


class RunView(Struct, frozen=True, kw_only=True):
    """What a list, a status call or another process gets to see of a run."""

    run_id: RunId
    session_id: SessionId
    root_id: RunId
    parent_id: RunId | None
    depth: int
    path: str
    agent: str
    label: str
    dialect: str
    handle: HandleRef | None
    state: State
    waiting_for: WaitingFor | None = None
    outcome: Outcome | None = None
    turns: int = 0
    usage: Usage
    cost: int | None = 0
    started_at: float
    ended_at: float | None = None


def of_live_run(live: LiveRun, *, ended_at: float | None = None) -> RunView:
    """A run that is alive in this process."""
    run = live.run
    accepted = run.accepted
    return RunView(
        run_id=accepted.run_id,
        session_id=accepted.session_id,
        root_id=accepted.root_id,
        parent_id=accepted.parent_id,
        depth=accepted.depth,
        path=accepted.path,
        agent=accepted.agent,
        label=accepted.label,
        dialect=accepted.dialect,
        handle=accepted.handle,
        state=live.state,
        waiting_for=live.waits,
        outcome=run.outcome,
        turns=run.turns,
        usage=run.usage,
        cost=run.cost,
        started_at=accepted.at,
        ended_at=ended_at,
    )


def of_row(row: RunRow, *, alive: bool, has_awaited_child: bool = False) -> RunView:
    """A run that somebody else drives, or nobody."""
    progress = row.progress
    state: State
    waiting: WaitingFor | None = None
    if progress.phase == "ended":
        state = "ended"
    elif not alive:
        state = "interrupted"
    elif progress.phase == "pending":
        state, waiting = "waiting", "dependency"
    elif progress.phase == "parked":
        state, waiting = "waiting", "approval"
    elif progress.phase == "idle":
        state, waiting = "idle", "mail"
    elif has_awaited_child:
        state, waiting = "waiting", "child"
    else:
        state = "working"  # also before its first reply: whoever drives a run begins at once
    return RunView(
        run_id=row.run_id,
        session_id=row.session_id,
        root_id=row.root_id,
        parent_id=row.parent_id,
        depth=row.depth,
        path=row.path,
        agent=row.agent,
        label=row.label,
        dialect=row.dialect,
        handle=row.handle,
        state=state,
        waiting_for=waiting,
        outcome=progress.outcome,
        turns=progress.turns,
        usage=progress.usage,
        cost=progress.cost,
        started_at=row.accepted_at,
        ended_at=progress.ended_at,
    )
