"""Assembles the engine out of ports: store, tools, providers, clock, ids, rules."""

from __future__ import annotations

from retinue.core.ports import Clock, Ids, OutputValidator, Providers, Store, Toolbox
from retinue.core.profiles import Rules
from retinue.engine.budgets import Budgets
from retinue.engine.context import Approver, EngineContext, Tuning
from retinue.engine.driver import Driver
from retinue.engine.driver_table import DriverTable
from retinue.engine.executor import Executor
from retinue.engine.journal import Journal
from retinue.engine.key_value import Handles
from retinue.engine.rate_limiter import RateLimiters
from retinue.engine.registry import RunRegistry
from retinue.engine.replay import Replay
from retinue.engine.supervisor import Supervisor


def build_engine(
    store: Store,
    toolbox: Toolbox,
    providers: Providers,
    *,
    clock: Clock,
    ids: Ids,
    validate_output: OutputValidator,
    rules: Rules | None = None,
    approver: Approver = "deny",
    durable: bool = False,
    adopts: bool = False,
    lease: float = 10.0,
    tuning: Tuning | None = None,
) -> tuple[Supervisor, Driver]:
    """The supervisor and the driver of this process; the driver has to be registered before runs are started.

    With `durable`, every commit is synced to the disk. With `adopts`, the driver adopts runs whose driver is gone;
    `lease` is the number of seconds without a heartbeat after which other processes may declare it dead.
    """
    tuning = tuning or Tuning()
    journal = Journal(store, durable=durable, commit_delay=tuning.commit_delay)
    engine = EngineContext(
        store=store,
        journal=journal,
        budgets=Budgets(clock, journal, store),
        drivers=DriverTable(journal, store),
        rate_limiters=RateLimiters(),
        toolbox=toolbox,
        providers=providers,
        clock=clock,
        ids=ids,
        rules=rules or Rules(),
        validate_output=validate_output,
        approver=approver,
        tuning=tuning,
    )
    registry = RunRegistry(tuning.remembered_runs)
    replay = Replay(engine, registry)
    executor = Executor(engine, registry, replay)
    journal.on_broken = executor.journal_broken
    handles = Handles(engine)
    driver = Driver(engine, registry, executor, replay, handles, adopts=adopts, lease=lease)
    return Supervisor(engine, registry, executor, replay, handles), driver
