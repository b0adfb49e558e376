"""The time in which no process drives a run does not count toward its deadline, after a crash as after a clean stop."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import retinue
from retinue.core.commands import Write, WriteResult
from retinue.core.errors import StoreUnavailable
from retinue.core.events import RunAdopted, RunEnded, RunLeft
from retinue.core.ids import DriverId
from retinue.core.run import Limits
from retinue.engine.driver_table import SIGNS_OF_LIFE
from retinue.providers.scripted import calls, hangs, says
from retinue.testing.harness import Harness
from tests.engine.delegation import delegates, with_delegation
from tests.engine.driver_program import open_here
from tests.engine.memory_stores import SharedMemory
from tests.engine.test_two_processes import PATIENCE, driver_program
from tests.internals import engine_of

BEAT = 10.0 / 3
"""Seconds between two heartbeats."""


def seconds_after_adoption(harness: Harness, run_id: str) -> float:
    """The time from the adoption of a run to its end."""
    events = harness.events(run_id)
    (adopted,) = [event for event in events if isinstance(event, RunAdopted)]
    assert isinstance(events[-1], RunEnded)
    return events[-1].at - adopted.at


async def test_a_deadline_stands_still_from_the_last_heartbeat_of_a_crashed_driver() -> None:
    harness = Harness(store=SharedMemory(), dialects=())
    harness.script("main", hangs())
    await harness.open()
    handle = await harness.retinue.spawn("go", limits=Limits(timeout=10))
    await asyncio.sleep(4.0)  # one heartbeat has passed
    await harness.kill()
    await asyncio.sleep(3600.0)
    await harness.open(adopt=True)
    outcome = await harness.retinue.handle(handle.run_id).wait()
    await harness.close()

    assert outcome.result == "timed_out"
    assert seconds_after_adoption(harness, handle.run_id) == pytest.approx(10.0 - BEAT, abs=0.01)
    assert any(isinstance(event, RunLeft) for event in harness.events(handle.run_id))


async def test_a_run_that_is_younger_than_the_last_heartbeat_keeps_its_whole_time() -> None:
    harness = Harness(store=SharedMemory(), dialects=())
    harness.script("main", hangs())
    await harness.open()
    await asyncio.sleep(3.0)
    handle = await harness.retinue.spawn("go", limits=Limits(timeout=10))
    await harness.kill()
    await asyncio.sleep(3600.0)
    await harness.open(adopt=True)
    await harness.retinue.handle(handle.run_id).wait()
    await harness.close()

    assert seconds_after_adoption(harness, handle.run_id) == pytest.approx(10.0, abs=0.01)


async def test_the_deadline_of_a_child_stands_still_and_its_waiting_parent_goes_on() -> None:
    harness, _ = with_delegation(store=SharedMemory())
    harness.script("main", delegates("dig", task="dig", limits=Limits(timeout=10)), says("done"))
    harness.script("dig", hangs())
    await harness.open()
    handle = await harness.retinue.spawn("go", limits=Limits(timeout=20))
    await asyncio.sleep(4.0)
    for _ in range(2):  # a second crash before the first heartbeat of the second driver
        await harness.kill()
        await asyncio.sleep(3600.0)
        await harness.open(adopt=True)
    outcome = await harness.retinue.handle(handle.run_id).wait()
    child = await harness.retinue.handle(harness.run_of("dig")).wait()
    await harness.close()

    assert (outcome.result, outcome.text, child.result) == ("completed", "done", "timed_out")
    events = harness.events(harness.run_of("dig"))
    assert events[-1].at - max(event.at for event in events if isinstance(event, RunAdopted)) == pytest.approx(
        10.0 - BEAT, abs=0.01
    )


async def test_the_time_of_an_approval_and_of_a_crash_are_counted_once() -> None:
    @retinue.tool
    async def press() -> str:
        """Press the button."""
        return "pressed"

    policy = retinue.Policy(always_ask=("press",))
    harness = Harness(store=SharedMemory(), dialects=(), tools=[press], policy=policy, approvals="wait")
    harness.script("main", calls("press"), hangs())
    await harness.open()
    handle = await harness.retinue.spawn("go", limits=Limits(timeout=10))
    await asyncio.sleep(4.0)
    await harness.kill()
    await asyncio.sleep(3600.0)
    await harness.open(adopt=True)
    await asyncio.sleep(5.0)
    (question,) = await harness.retinue.approvals()
    await harness.retinue.approve(question)
    approved_at = harness.retinue.supervisor.clock.now()
    outcome = await harness.retinue.handle(handle.run_id).wait()
    await harness.close()

    assert outcome.result == "timed_out"
    assert harness.events(handle.run_id)[-1].at - approved_at == pytest.approx(10.0, abs=0.01)


class Refusing(SharedMemory):
    """A store that refuses while `is_full`."""

    is_full = False

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        if self.is_full:
            raise StoreUnavailable("the disk is full")
        return super().commit(driver_id, writes, durable=durable)


async def test_the_time_in_which_the_store_refuses_does_not_count() -> None:
    store = Refusing()
    harness = Harness(store=store, dialects=())
    harness.script("main", hangs())
    await harness.open()
    handle = await harness.retinue.spawn("go", limits=Limits(timeout=10))
    await asyncio.sleep(4.0)
    store.is_full = True
    await asyncio.sleep(3600.0)
    store.is_full = False
    await asyncio.sleep(BEAT)
    outcome = await harness.retinue.handle(handle.run_id).wait()
    await harness.close()

    assert outcome.result == "timed_out"
    # The first heartbeat after 4 seconds was refused: the run was stopped then.
    assert seconds_after_adoption(harness, handle.run_id) == pytest.approx(10.0 - 2 * BEAT, abs=0.01)


class LaterClock:
    """The clock of this machine, an hour ahead."""

    def now(self) -> float:
        return time.time() + 3600.0


@pytest.mark.real_time
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
async def test_a_run_of_a_killed_process_is_continued_by_another_an_hour_later(tmp_path: Path) -> None:
    async with driver_program(str(tmp_path)) as program:
        program.send("start dig 60")
        await program.next_report(looking=...)
        program.process.send_signal(signal.SIGKILL)
        await program.process.wait()

        async with open_here(str(tmp_path), None, adopt=True, clock=LaterClock()) as r:
            (root,) = await r.list()
            outcome = await r.handle(root.run_id).wait(timeout=PATIENCE)
            await engine_of(r).journal.flush()
            assert list(engine_of(r).store.key_value(SIGNS_OF_LIFE)) == [r.supervisor.driver_id]

    assert (outcome.result, outcome.text) == ("completed", "done")
