"""What all runs of a process share: the engine's parts, handed to whoever needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from retinue.core.events import RunAccepted
from retinue.core.ids import DriverId
from retinue.core.ports import Clock, Ids, OutputValidator, Providers, Store, Toolbox
from retinue.core.profiles import Rules
from retinue.core.run import Approval, Outcome
from retinue.core.state import Run
from retinue.engine.budgets import Accounts
from retinue.engine.journal import CommitFuture, Journal
from retinue.engine.rate_limiter import RateLimiters
from retinue.engine.timeouts import Deadlines, LoopTicks

Approver: TypeAlias = Callable[[Approval], Awaitable[bool] | bool] | Literal["wait", "deny"]
"""Who answers when a call needs a person: a callback, whoever answers later, or nobody."""


class OutcomeTexts(Protocol):
    """How the end of a run is told to others, in the words of whoever started it."""

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str:
        """What a parent's model reads of a child that announces its end."""
        ...

    def handover(self, accepted: RunAccepted, outcome: Outcome) -> tuple[bool, str]:
        """Whether a run did what others wait for, and its result or the reason."""
        ...


class PlainOutcomeTexts:
    """The words where nobody has others."""

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str:
        """The run's name and result, its task, and what it said."""
        name = accepted.label or accepted.path
        return f"[{name} {outcome.result}] Task: {accepted.task[:200]}\n{outcome.text or outcome.error}"

    def handover(self, accepted: RunAccepted, outcome: Outcome) -> tuple[bool, str]:
        """The whole answer, or the error."""
        return (True, outcome.text) if outcome.ok else (False, outcome.error or outcome.result)


@dataclass(slots=True, kw_only=True)
class EngineContext:
    """The engine's parts; one set per process."""

    store: Store
    journal: Journal
    accounts: Accounts
    rate_limiters: RateLimiters
    toolbox: Toolbox
    providers: Providers
    clock: Clock
    ids: Ids
    rules: Rules
    validate_output: OutputValidator
    approver: Approver = "deny"
    words: OutcomeTexts = field(default_factory=PlainOutcomeTexts)
    deadlines: Deadlines = field(default_factory=Deadlines)
    ticks: LoopTicks = field(default_factory=LoopTicks)
    living: Callable[[], Awaitable[frozenset[DriverId]]] | None = None
    """Asks which drivers are alive, as far as can be seen from here."""
    declare_dead: Callable[[], Awaitable[None]] | None = None
    """Declares drivers dead whose process is gone, so that what they drove is nobody's."""
    on_end: list[Callable[[RunAccepted, Outcome, CommitFuture | None], None]] = field(
        default_factory=list[Callable[[RunAccepted, Outcome, CommitFuture | None], None]]
    )
    """Told of every run that ends here, with the ticket of its end; they never raise, and wait for nobody."""
    on_register: list[Callable[[], Awaitable[None]]] = field(default_factory=list[Callable[[], Awaitable[None]]])
    """Done once this process drives runs, and has taken over those that it was to take over."""
    on_adopt: list[Callable[[Sequence[Run]], Awaitable[None]]] = field(
        default_factory=list[Callable[[Sequence[Run]], Awaitable[None]]]
    )
    """Told of runs that this process goes on with, in the place of another or after it had to lay them down."""
    on_leave: list[Callable[[], Awaitable[None]]] = field(default_factory=list[Callable[[], Awaitable[None]]])
    """Done when this process has stopped working, and its unfinished runs are still its own; they do not raise."""
    errands: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    """Small tasks that belong to no run; stopped with the process."""
