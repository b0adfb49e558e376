"""What all runs of a process share: the engine's parts, handed to whoever needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from retinue.core.ids import DriverId
from retinue.core.policy import Policy
from retinue.core.ports import Clock, Ids, Judge, Providers, Store, Toolbox
from retinue.core.run import Approval
from retinue.engine.accounts import Accounts
from retinue.engine.gate import Gates
from retinue.engine.journal import Journal

Approver: TypeAlias = Callable[[Approval], Awaitable[bool] | bool] | Literal["wait", "deny"]
"""Who answers when a call needs a person: a callback, whoever answers later, or nobody."""


@dataclass(slots=True, kw_only=True)
class Parts:
    """The engine's parts; one set per process."""

    store: Store
    journal: Journal
    accounts: Accounts
    gates: Gates
    toolbox: Toolbox
    providers: Providers
    clock: Clock
    ids: Ids
    ceiling: Policy
    judge: Judge
    approver: Approver = "deny"
    living: Callable[[], Awaitable[frozenset[DriverId]]] | None = None
    """Asks which drivers are alive, as far as can be seen from here."""
    bury: Callable[[], Awaitable[None]] | None = None
    """Declares drivers dead whose process is gone, so that what they drove is nobody's."""
    errands: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    """Small tasks that belong to no run; stopped with the process."""
