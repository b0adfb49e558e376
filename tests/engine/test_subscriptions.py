"""Live readers may lag: they lose deltas first and never miss an event."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import retinue
from retinue.core.errors import StoreUnavailable
from retinue.core.events import Event, MailTaken, RunEnded
from retinue.core.messages import Delta, StartDelta, TextDelta
from retinue.core.run import Outcome
from retinue.engine import Tuning
from retinue.engine.live_run import CatchUp, ReaderQueue, Subscriptions
from retinue.providers.scripted import calls, hangs, says, streams
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness

CAPACITY = Tuning().reader_capacity
END = RunEnded(at=0.0, outcome=Outcome(result="completed", reason="answered"))


class RecordedRun:
    """Records events of a run, stores them and publishes them."""

    def __init__(self) -> None:
        self.feed = Subscriptions(CAPACITY)
        self.stored: list[tuple[int, Event]] = []
        self.asked: list[int] = []
        self.slow = False

    def record(self, event: Event | None = None) -> int:
        """Record an event; returns its number."""
        seq = len(self.stored) + 1
        event = event or MailTaken(at=float(seq), items=())
        self.stored.append((seq, event))
        self.feed.publish_event(seq, event)
        return seq

    def stream(self, *texts: str) -> None:
        """Publish deltas."""
        for text in texts:
            self.feed.publish_delta(TextDelta(text))

    async def catch_up(self, after: int) -> list[tuple[int, Event]]:
        """Stored events after `after`; a slow store answers as of the time of the query."""
        self.asked.append(after)
        answer = self.stored[after:]
        if self.slow:
            await asyncio.sleep(1)
        return answer


def number(what: Event | Delta) -> int | str:
    """The number of an event, or the text of a delta."""
    return what.text if isinstance(what, TextDelta) else int(getattr(what, "at", 0)) if what is not END else "end"


async def heard(reader: ReaderQueue, catch_up: CatchUp) -> list[int | str]:
    return [number(what) async for what in reader.read(catch_up)]


async def take(stream: AsyncIterator[Event | Delta], count: int) -> list[int | str]:
    return [number(await anext(stream)) for _ in range(count)]


async def test_a_reader_gets_stored_and_new_events_in_order() -> None:
    log = RecordedRun()
    log.record()
    log.record()
    reading = asyncio.create_task(heard(log.feed.join(0), log.catch_up))
    await asyncio.sleep(1)
    log.stream("a", "b")
    log.record()
    log.stream("c")
    log.record(END)

    assert await reading == [1, 2, "a", "b", 3, "c", "end"]


async def test_a_reader_continues_after_the_given_event() -> None:
    log = RecordedRun()
    for _ in range(4):
        log.record()
    log.record(END)

    assert await heard(log.feed.join(3), log.catch_up) == [4, "end"]


async def test_an_event_recorded_during_the_store_read_is_delivered_once() -> None:
    log = RecordedRun()
    log.record()
    reader = log.feed.join(0)
    log.record()  # published, and stored before the reader queries
    log.slow = True
    reading = asyncio.create_task(heard(reader, log.catch_up))
    await asyncio.sleep(0.5)
    log.record()  # published during the query, which does not include it yet
    log.record(END)

    assert await reading == [1, 2, 3, "end"]


async def test_deltas_before_a_stored_event_are_not_delivered_after_it() -> None:
    log = RecordedRun()
    reader = log.feed.join(0)
    log.stream("streamed before ")
    log.record()
    log.stream("streamed after")
    log.record(END)
    log.stored.pop()  # not on disk yet

    assert await heard(reader, log.catch_up) == [1, "streamed after", "end"]


async def test_a_lagging_reader_loses_deltas_and_no_event() -> None:
    log = RecordedRun()
    stream = log.feed.join(0).read(log.catch_up)
    log.record()
    assert await take(stream, 1) == [1]

    log.stream(*(str(n) for n in range(CAPACITY * 2)))
    log.record()
    log.stream("fresh")
    log.record(END)

    assert [number(what) async for what in stream] == [2, "fresh", "end"]
    assert log.asked == [0], "it was not so far behind that the store had to be asked"


async def test_a_reader_that_lost_a_delta_gets_no_more_of_that_attempt() -> None:
    log = RecordedRun()
    stream = log.feed.join(0).read(log.catch_up)
    log.record()
    assert await take(stream, 1) == [1]

    log.feed.publish_delta(StartDelta("first"))
    log.stream(*(str(n) for n in range(CAPACITY)))
    assert await anext(stream) == StartDelta("first")
    # The first item and the event that was just read had a place in the queue as well.
    assert await take(stream, CAPACITY - 2) == [str(n) for n in range(CAPACITY - 2)]
    log.stream("after the gap")
    log.feed.publish_delta(StartDelta("second"))
    log.stream("from the beginning")
    log.record()
    log.stream("of the next reply")
    log.record(END)

    assert await anext(stream) == StartDelta("second")
    assert [number(what) async for what in stream] == ["from the beginning", 2, "of the next reply", "end"]


async def test_an_attempt_during_catch_up_is_delivered_from_its_start_or_not_at_all() -> None:
    log = RecordedRun()
    stream = log.feed.join(0).read(log.catch_up)
    log.record()
    assert await take(stream, 1) == [1]
    for _ in range(CAPACITY + 1):
        log.record()
    log.stream("lost")
    assert await take(stream, CAPACITY + 1) == list(range(2, CAPACITY + 3))
    reading = asyncio.create_task(heard_rest(stream))
    await asyncio.sleep(1)
    log.stream("the rest of it")
    log.record()
    log.stream("something new")
    log.record(END)

    assert await reading == [CAPACITY + 3, "something new", "end"]


async def heard_rest(stream: AsyncIterator[Event | Delta]) -> list[int | str]:
    return [number(what) async for what in stream]


async def test_a_reader_that_is_too_far_behind_catches_up_from_the_store() -> None:
    log = RecordedRun()
    stream = log.feed.join(0).read(log.catch_up)
    log.record()
    assert await take(stream, 1) == [1]
    for _ in range(CAPACITY * 3):
        log.stream("lost")
        log.record()
    log.record(END)

    assert [number(what) async for what in stream] == [*range(2, CAPACITY * 3 + 2), "end"]
    assert log.asked == [0, CAPACITY], "what was queued first, and the rest from the store, once"


async def test_events_during_catch_up_are_not_lost() -> None:
    log = RecordedRun()
    stream = log.feed.join(0).read(log.catch_up)
    log.record()
    assert await take(stream, 1) == [1]
    for _ in range(CAPACITY + 10):
        log.record()
    assert await take(stream, CAPACITY + 5) == list(range(2, CAPACITY + 7))
    # Now it reads the stored events slowly; meanwhile the run continues and ends.
    log.record()
    log.record(END)

    async with asyncio.timeout(10):
        assert [number(what) async for what in stream] == [*range(CAPACITY + 7, CAPACITY + 13), "end"]


@given(st.lists(st.sampled_from(["event", "delta", "read"]), max_size=60), st.booleans())
async def test_every_event_is_delivered_once_and_in_order_in_any_interleaving(doings: list[str], slow: bool) -> None:
    log = RecordedRun()
    log.slow = slow
    got: list[int | str] = []
    steps = asyncio.Semaphore(0)

    async def read() -> None:
        async for what in log.feed.join(0).read(log.catch_up):
            got.append(number(what))
            await steps.acquire()

    reading = asyncio.create_task(read())
    for doing in doings:
        match doing:
            case "event":
                for _ in range(CAPACITY // 4):
                    log.record()
            case "delta":
                log.stream(*["~"] * (CAPACITY // 3))
            case _:
                for _ in range(CAPACITY // 2):
                    steps.release()
                await asyncio.sleep(2)
    log.record(END)
    for _ in range(100 * CAPACITY):
        steps.release()
    async with asyncio.timeout(1000):
        await reading

    assert [what for what in got if what != "~"] == [*range(1, len(log.stored)), "end"]


async def test_a_reader_that_leaves_is_removed() -> None:
    log = RecordedRun()
    reader = log.feed.join(0)
    staying = log.feed.join(0)

    log.feed.leave(reader)
    log.feed.leave(reader)
    log.record(END)

    assert await heard(staying, log.catch_up) == ["end"]
    log.feed.leave(staying)
    log.stream("without a reader")


async def test_a_reader_gets_the_queued_events_and_then_the_error() -> None:
    log = RecordedRun()
    closed = StoreUnavailable("no space left")
    stream = log.feed.join(0).read(log.catch_up)
    log.record()
    assert await take(stream, 1) == [1]
    log.record()
    log.feed.stop(closed)

    assert await take(stream, 1) == [2]
    with pytest.raises(StoreUnavailable, match="no space left"):
        await anext(stream)
    late = log.feed.join(0).read(log.catch_up)
    assert await take(late, 2) == [1, 2]
    with pytest.raises(StoreUnavailable):
        await anext(late)


async def test_a_waiting_reader_is_woken_at_once() -> None:
    log = RecordedRun()
    reading = asyncio.create_task(heard(log.feed.join(0), log.catch_up))
    await asyncio.sleep(1)

    log.feed.stop(StoreUnavailable("no space left"))

    with pytest.raises(StoreUnavailable):
        await reading


# ---- through the front door -----------------------------------------------------------------------------------------


@retinue.tool(kind="pure", polls=True)
async def look() -> str:
    """Look."""
    await asyncio.sleep(1)
    return "seen"


@pytest.fixture(params=["memory", "sqlite", "sqlite in a thread"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore | SqliteStore:
    """All stores."""
    if request.param == "memory":
        return MemoryStore()
    return SqliteStore(tmp_path / "r.db", threaded=request.param != "sqlite")


async def test_a_watched_run_yields_events_and_deltas_until_its_end(stored: MemoryStore | SqliteStore) -> None:
    async with Harness(store=stored, tools=[look], dialects=()) as harness:
        harness.script("main", calls("look"), streams("It is ", "here.", every=1.0))
        handle = await harness.retinue.spawn("where is it?")

        seen = [what async for what in handle.events()]

        assert [what for what in seen if not isinstance(what, Delta)] == harness.events(handle.run_id)
        assert [what.text for what in seen if isinstance(what, TextDelta)] == ["It is ", "here."]
        assert isinstance(seen[-1], RunEnded)
        assert [what async for what in handle.events()] == harness.events(handle.run_id), "and again, from the store"
    stored.close()


async def test_a_watcher_gets_an_error_when_the_retinue_is_closed(stored: MemoryStore | SqliteStore) -> None:
    harness = Harness(store=stored, dialects=())
    await harness.open()
    harness.script("main", hangs("Hm."))
    handle = await harness.retinue.spawn("think")
    seen: list[Event | Delta] = []

    async def watch() -> None:
        async for what in handle.events():
            seen.append(what)  # noqa: PERF401 it ends with an error, and what came before it counts

    watching = asyncio.create_task(watch())
    await asyncio.sleep(1)
    await harness.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        await watching
    assert seen == [*harness.events(handle.run_id), TextDelta("Hm.")]
    stored.close()


async def test_a_late_and_slow_reader_misses_no_event(stored: MemoryStore | SqliteStore) -> None:
    async with Harness(store=stored, tools=[look], dialects=()) as harness:
        harness.script("main", *[calls("look")] * 40, says("done"))
        handle = await harness.retinue.spawn("look", limits=retinue.Limits(max_turns=100))
        await asyncio.sleep(10.5)
        seen: list[Event | Delta] = []

        async for what in handle.events():
            seen.append(what)
            await asyncio.sleep(0.7)

        assert [what for what in seen if not isinstance(what, Delta)] == harness.events(handle.run_id)
    stored.close()
