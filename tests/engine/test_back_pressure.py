"""The journal's queue is bounded: runs wait before they record more, and go on when the writer has caught up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

import retinue
from retinue.core.commands import Write, WriteResult
from retinue.core.errors import StoreError, StoreUnavailable
from retinue.core.events import ReplyReceived
from retinue.core.ids import DriverId
from retinue.engine import journal_writer as journal_module
from retinue.engine.journal_writer import BASE_SIZE, Journal
from retinue.providers.scripted import Script, ScriptedProvider, calls, says
from retinue.store.memory.store import MemoryStore
from retinue.testing.harness import Harness
from tests.engine.memory_stores import SharedMemory
from tests.engine.test_journal_writer import note
from tests.internals import engine_of

REPLY = "x" * 50_000
BOUND = 175_000
"""Room for three replies; the fourth is queued while there is room, and then the queue is full."""
RUNS = 10


class HeldStore(SharedMemory):
    """A store whose commits wait until it is released; it can refuse then."""

    blocking = True

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.released.set()
        self.refuse: StoreError | None = None

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        assert self.released.wait(60), "the test never released the store"
        if self.refuse is not None:
            raise self.refuse
        return super().commit(driver_id, writes, durable=durable)


class Scene:
    """Runs that have all received a long reply while the store is held."""

    def __init__(self, harness: Harness, store: HeldStore, handles: list[retinue.RunHandle]) -> None:
        self.harness = harness
        self.store = store
        self.handles = handles
        self.journal: Journal = engine_of(harness.retinue).journal

    def recorded(self) -> list[bool]:
        """For each run, whether its second reply was recorded."""
        lives = [self.harness.retinue.supervisor.live(handle.run_id) for handle in self.handles]
        return [live is not None and live.run.turns == 2 for live in lives]


async def settle() -> None:
    """Run all ready tasks; virtual time is paused while a thread works."""
    for _ in range(100):
        await asyncio.sleep(0)


@asynccontextmanager
async def full_queue(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Scene]:
    """The scene; the store is released when the block is left."""
    monkeypatch.setattr(journal_module, "MAX_QUEUED_BYTES", BOUND)
    answers, all_waiting, waiting = asyncio.Event(), asyncio.Event(), 0

    @retinue.tool(kind="pure")
    async def pause() -> str:
        """Wait."""
        nonlocal waiting
        waiting += 1
        if waiting == RUNS:
            all_waiting.set()
        await answers.wait()
        return ""

    script = Script()
    for number in range(RUNS):
        script.play("main", calls("pause"), says(REPLY), task=f"task {number}.")
    store = HeldStore()
    harness = Harness(store=store, dialects=(), tools=[pause], provider=ScriptedProvider(script))
    await harness.open()
    handles = [await harness.retinue.spawn(f"task {number}.") for number in range(RUNS)]
    await all_waiting.wait()
    await engine_of(harness.retinue).journal.flush()
    store.released.clear()
    answers.set()
    await settle()
    try:
        yield Scene(harness, store, handles)
    finally:
        store.released.set()
        await asyncio.wait_for(harness.close(), 10)


async def test_runs_stop_recording_at_the_bound_and_go_on_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async with full_queue(monkeypatch) as scene:
        assert scene.recorded() == [True] * 4 + [False] * (RUNS - 4)
        assert BOUND <= scene.journal.queued_bytes < BOUND + len(REPLY)

        scene.store.released.set()
        outcomes = [await handle.wait() for handle in scene.handles]

        assert [outcome.text for outcome in outcomes] == [REPLY] * RUNS
        await scene.journal.flush()
        assert scene.journal.queued_bytes == 0


async def test_a_run_that_waits_for_the_journal_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with full_queue(monkeypatch) as scene:
        last = scene.handles[-1]
        cancelling = asyncio.create_task(last.cancel(note="enough"))
        await settle()
        live = scene.harness.retinue.supervisor.live(last.run_id)
        assert live is not None
        # Its reply was paid for and is kept; the run itself ends once the store can say so.
        assert live.run.turns == 2

        scene.store.released.set()
        assert await cancelling == (last.run_id,)
        outcome = await last.wait()
        others = [await handle.wait() for handle in scene.handles[:-1]]

        assert (outcome.result, outcome.error, outcome.turns) == ("cancelled", "enough", 2)
        assert {other.result for other in others} == {"completed"}


async def test_a_store_that_refuses_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with full_queue(monkeypatch) as scene:
        waits = [asyncio.create_task(handle.wait()) for handle in scene.handles]
        scene.store.refuse = StoreUnavailable("the disk is full")
        scene.store.released.set()
        errors = await asyncio.gather(*waits, return_exceptions=True)

        assert {type(error) for error in errors} == {StoreUnavailable}
        assert scene.journal.queued_bytes == 0
        scene.store.refuse = None


async def test_a_process_leaves_while_its_runs_wait_for_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    async with full_queue(monkeypatch) as scene:
        closing = asyncio.create_task(scene.harness.close())
        await settle()
        scene.store.released.set()
        await asyncio.wait_for(closing, 10)
        replies = [
            sum(isinstance(event, ReplyReceived) for event in scene.harness.events(handle.run_id))
            for handle in scene.handles
        ]
        await scene.harness.open(adopt=True)
        outcomes = [await scene.harness.retinue.handle(handle.run_id).wait() for handle in scene.handles]

        assert replies == [2] * RUNS  # no reply that was received is asked for again
        assert {outcome.text for outcome in outcomes} == {REPLY}


async def test_a_write_larger_than_the_bound_passes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_QUEUED_BYTES", 10_000)

    class Slow(MemoryStore):
        blocking = True

    async with Harness(store=Slow(), dialects=()) as r:
        r.script("main", says(REPLY))
        outcome = await r.run("go")

    assert outcome.text == REPLY


async def test_waiters_are_served_in_order_and_a_cancelled_one_passes_its_turn_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "MAX_QUEUED_BYTES", BASE_SIZE)
    store = HeldStore()
    journal = Journal(store)
    served: list[int] = []

    async def record(number: int) -> None:
        if journal.is_full:
            await journal.room()
        served.append(number)
        journal.write(note(str(number)))

    store.released.clear()
    tasks = [asyncio.create_task(record(number)) for number in range(6)]
    await settle()
    assert served == [0]
    tasks[2].cancel()
    store.released.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    await journal.close()

    assert served == [0, 1, 3, 4, 5]
