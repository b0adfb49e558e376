"""The dependencies that all runs of a process share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from retinue.core.events import CallReturned, Event, RunAccepted
from retinue.core.ids import RunId
from retinue.core.log_context import RunFields, line
from retinue.core.messages import ToolCall
from retinue.core.policy import Rules
from retinue.core.ports import (
    Clock,
    Ids,
    OutputValidator,
    Providers,
    Spawner,
    Store,
    Toolbox,
    Tracing,
    WorkspaceFolders,
)
from retinue.core.run import Approval, Outcome
from retinue.core.state import Run
from retinue.core.text import clean_line, quote_headers
from retinue.engine.budgets import Budgets
from retinue.engine.driver_table import DriverTable, RequestGate
from retinue.engine.hooks import NO_HOOKS, HookSet
from retinue.engine.journal_writer import COMMIT_DELAY, Journal
from retinue.engine.rate_limiter import RateLimiters
from retinue.engine.timeouts import LoopTicks, Timeouts

Approver: TypeAlias = Callable[[Approval], Awaitable[bool] | bool] | Literal["wait", "deny"]
"""Answers calls that need a person: a callback, `wait` for an answer through the inbox, or `deny` them all."""

OnEnd: TypeAlias = Callable[[RunAccepted, Outcome], None]
OnEvent: TypeAlias = Callable[[Run, Event], None]
OnCall: TypeAlias = Callable[[RunAccepted, ToolCall, CallReturned, bool], None]
"""Gets the run, the call, its result, and whether the call acts."""
OnAdopt: TypeAlias = Callable[[Sequence[Run]], Awaitable[None]]
Hook: TypeAlias = Callable[[], Awaitable[None]]


class Tuning(Struct, frozen=True, kw_only=True):
    """Sizes and pauses of the engine."""

    commit_delay: float = COMMIT_DELAY
    """Seconds that a write stays in memory to share a commit with others, while no caller waits for it."""
    first_pause: float = 0.5
    """Seconds before the second attempt of a model call; each further pause is twice as long."""
    reader_capacity: int = 1024
    """Items by which a reader of events may lag before deltas are dropped; one network read often has hundreds."""
    remembered_runs: int = 4096
    """Ended runs whose view is answered from memory; older ones are read from the store."""


class OutcomeTexts(Protocol):
    """Texts about the end of a run, for other runs."""

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str:
        """The message about the end of a child that announces it, for the parent's model."""
        ...

    def handover(self, accepted: RunAccepted, outcome: Outcome) -> tuple[bool, str]:
        """Whether a run succeeded for the runs that depend on it, and its result or the reason."""
        ...


NO_BRACKETS = {ord("["): "(", ord("]"): ")"}


class PlainOutcomeTexts:
    """The texts for runs whose dialect has none of its own."""

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str:
        name = clean_line(accepted.label or accepted.path).translate(NO_BRACKETS)
        text = quote_headers(outcome.text or outcome.error)
        return f"[{name} {outcome.result}] Task: {accepted.task[:200]}\n{text}"

    def handover(self, accepted: RunAccepted, outcome: Outcome) -> tuple[bool, str]:
        return (True, outcome.text) if outcome.ok else (False, outcome.error or outcome.result)


class WorkerRole(Struct, frozen=True, kw_only=True):
    """What a worker drives: runs whose tags it has, and new children while fewer than `max_runs` runs work here.

    It takes no tree while `max_trees` trees are at work in the whole store.
    """

    tags: frozenset[str] = frozenset()
    max_runs: int = 256
    max_trees: int | None = None


LogFields: TypeAlias = Callable[[Run], RunFields]


def plain_log_fields(run: Run) -> RunFields:
    """The fields with which the log lines of a run begin, if no dialect of the run has any."""
    return {"": line(run_id=run.accepted.run_id)}


@dataclass(slots=True, kw_only=True)
class EngineContext:
    """The dependencies of the engine; one instance per process."""

    store: Store
    journal: Journal
    budgets: Budgets
    drivers: DriverTable
    rate_limiters: RateLimiters
    gate: RequestGate
    toolbox: Toolbox
    providers: Providers
    clock: Clock
    ids: Ids
    rules: Rules
    validate_output: OutputValidator
    approver: Approver = "deny"
    hooks: HookSet = NO_HOOKS
    tracing: Tracing | None = None
    """Set if traces are made."""
    folders: WorkspaceFolders | None = None
    """Folders for trees whose workspace is fetched; None if this process fetches none."""
    spawner: Spawner | None = None
    """Starts runs for tools, `CallContext.spawn`."""
    approvers: dict[RunId, Approver] = field(default_factory=dict[RunId, "Approver"])
    """The approvers of single trees by their roots, in place of `approver`."""
    worker: WorkerRole | None = None
    """Set for a worker: which runs it drives itself."""
    tuning: Tuning = field(default_factory=Tuning)
    outcome_texts: OutcomeTexts = field(default_factory=PlainOutcomeTexts)
    log_fields: LogFields = plain_log_fields
    timeouts: Timeouts = field(default_factory=Timeouts)
    ticks: LoopTicks = field(default_factory=LoopTicks)
    on_end: list[OnEnd] = field(default_factory=list[OnEnd])
    """Called when a run ends here; they do not raise and do not block."""
    on_event: list[OnEvent] = field(default_factory=list[OnEvent])
    """Called with each event of a run here before it is applied to the run; they do not raise and do not block."""
    on_call: list[OnCall] = field(default_factory=list[OnCall])
    """Called when a call that acts, or that was refused, has returned here; they do not raise and do not block."""
    on_register: list[Hook] = field(default_factory=list[Hook])
    """Called once this process drives runs and has adopted those that it was to adopt."""
    on_adopt: list[OnAdopt] = field(default_factory=list[OnAdopt])
    """Called with runs that this process resumes: adopted ones, and its own after the store failed."""
    on_placed: list[Callable[[RunId], None]] = field(default_factory=list[Callable[[RunId], None]])
    """Called with each run that was accepted here without a driver; they do not raise and do not block."""
    on_change: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Called when another process may have written; they do not raise and do not block."""
    on_leave: list[Hook] = field(default_factory=list[Hook])
    """Called when all work has stopped, before the driver gives up its unfinished runs; they do not raise."""
    background_tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    """Small tasks that belong to no run; cancelled when the driver leaves."""

    def id_field(self, run: Run) -> str:
        """The run's id in front of the message of a log line; empty where the fields of its lines have the id."""
        run_id = run.accepted.run_id
        has_id = any(run_id in fields for fields in self.log_fields(run).values())
        return "" if has_id else f"{line(run_id=run_id)} "

    def start_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.background_tasks.add(task)
        task.add_done_callback(self.background_tasks.discard)
