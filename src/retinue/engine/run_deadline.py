"""The deadline of a run, `Limits.seconds`: its timer, and the times that do not count.

Times that a run waits for a person or has no driver do not count: `core/state.py` sums them up from the stored events.
"""

from __future__ import annotations

import asyncio

from retinue.core.errors import StoreError
from retinue.core.events import RunLeft
from retinue.core.inbox import Deadline
from retinue.engine.context import EngineContext
from retinue.engine.live_run import LiveRun


def arm_deadline(live: LiveRun, engine: EngineContext) -> None:
    """Deliver a `Deadline` when the run's time is up; the time it waits for a person or a driver is not counted."""
    seconds = live.run.accepted.limits.seconds
    if seconds is None:
        return
    loop = asyncio.get_running_loop()

    def check() -> None:
        run = live.run
        now = engine.clock.now()
        thinking = max(0.0, now - run.parked_since) if run.parked_since is not None else 0.0
        began, parked = run.accepted.at, run.parked_seconds
        if run.accepted.lifecycle.per_input:
            began, parked = run.exchange_at, run.parked_seconds - run.parked_before
            if not run.in_exchange:
                return  # the next exchange sets the timer again
        left = began + seconds + parked + thinking - now
        if left <= 0.001:
            live.deliver(Deadline(key="deadline", seconds=seconds))
        else:
            live.deadline = loop.call_later(max(left, 1.0) if thinking else left, check)

    disarm_deadline(live)
    check()


def disarm_deadline(live: LiveRun) -> None:
    if live.deadline is not None:
        live.deadline.cancel()


async def pause_deadline(live: LiveRun, engine: EngineContext) -> None:
    """Pause the time limit of a run until it is adopted; also if it has not started to work."""
    run = live.run
    if run.accepted.limits.seconds is None or run.outcome is not None or engine.journal.broken is not None:
        return
    try:
        if live.acceptance is None or live.apply_acceptance(await live.acceptance.wait()):
            live.record(RunLeft(at=engine.clock.now()))
    except StoreError:
        pass  # the journal has reported the error already
