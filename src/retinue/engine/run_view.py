"""Runs as code outside the engine sees them: `RunView`, a value, and `LiveView`, a live run to read from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from retinue.core.agent import ToolSpec
from retinue.core.commands import RunRow
from retinue.core.ids import RunId, SessionId
from retinue.core.inbox import Item
from retinue.core.ports import PreparedCall
from retinue.core.run import HandleRef, Outcome, State, WaitingFor
from retinue.core.state import Run
from retinue.core.usage import NO_USAGE, Usage


class RunView(Struct, frozen=True, kw_only=True):
    """The state of one run at one moment; `Retinue.list`, `Retinue.tree` and `RunHandle.look` return it.

    The run may be live in this process or in another one, interrupted, or ended. `depth` is 0 for a root run, `path`
    the names of the agents from the root to the run. `cost` is in nanodollars, None if unknown; times are Unix seconds.
    `task` is the first input of the run, empty if its events were deleted.

    >>> import asyncio, retinue
    >>> from retinue.testing import Script, ScriptedProvider, says
    >>> async def main() -> None:
    ...     model = ScriptedProvider(Script().play("main", says("Four.")))
    ...     async with retinue.open(provider=model, home=retinue.MEMORY) as r:
    ...         await r.run("What is two and two?")
    ...         (view,) = await r.list()
    ...         print(view.agent, view.state, view.turns, view.outcome.text)
    >>> asyncio.run(main())
    main ended 1 Four.
    """

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
    estimated: Usage = NO_USAGE
    estimated_cost: int = 0
    started_at: float
    ended_at: float | None = None
    task: str = ""


class Pause(Struct, frozen=True, kw_only=True):
    """A pause before the next attempt of a model call: its end by the loop's clock, and the error before it."""

    until: float
    error: str


class LiveView(Protocol):
    """A run that this process drives. Read it at once: it changes with every event, and must not be changed.

    `run` is the folded state, `inbox` has the untaken items, `in_flight` the indices of the calls in progress (`MODEL`
    is the model call), `partial` the text streamed in the current attempt. `children` are the live children, those of
    ended children included. `folder` is the folder of its workspace, if that is not the one of its run spec.
    `tool_specs` are the offered tools. A pending run waits for other runs or for a slot; a cancelled one has been asked
    to stop.
    """

    @property
    def run(self) -> Run: ...
    @property
    def run_id(self) -> RunId: ...
    @property
    def folder(self) -> str: ...
    @property
    def state(self) -> State: ...
    @property
    def waiting_for(self) -> WaitingFor | None: ...
    @property
    def is_pending(self) -> bool: ...
    @property
    def cancelled(self) -> bool: ...
    @property
    def inbox(self) -> Sequence[Item]: ...
    @property
    def in_flight(self) -> Collection[int]: ...
    @property
    def partial(self) -> Sequence[str]: ...
    @property
    def pause(self) -> Pause | None: ...
    @property
    def children(self) -> Collection[RunId]: ...
    @property
    def tool_specs(self) -> Sequence[ToolSpec]: ...
    def prepared(self, index: int) -> PreparedCall | None:
        """An open call with its arguments read; None if the run has no such tool."""
        ...

    def view(self) -> RunView:
        """The run as a value."""
        ...


def view_of_row(row: RunRow, *, alive: bool, has_awaited_child: bool = False) -> RunView:
    """A run that this process does not drive; `alive` says whether its driver is."""
    progress = row.progress
    state: State
    waiting: WaitingFor | None = None
    if progress.phase == "ended":
        state = "ended"
    elif progress.phase == "placed":
        state = "queued"
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
        state = "working"  # also before the first reply: a driver starts its runs at once
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
        estimated=NO_USAGE if progress.outcome is None else progress.outcome.estimated,
        estimated_cost=0 if progress.outcome is None else progress.outcome.estimated_cost,
        started_at=row.accepted_at,
        ended_at=progress.ended_at,
    )
