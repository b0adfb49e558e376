"""Live readers: they may lag, they lose deltas first, and they never miss an event."""

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
from retinue.engine.subscriptions import CatchUp, Reader, Subscriptions
from retinue.providers.scripted import calls, hangs, says, streams
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness

CAPACITY = Tuning().reader_capacity
END = RunEnded(at=0.0, outcome=Outcome(result="completed", reason="answered"))


class Log:
    """A run's driver and its store in one: what is recorded is stored and told."""

    def __init__(self) -> None:
        self.feed = Subscriptions(CAPACITY)
        self.stored: list[tuple[int, Event]] = []
        self.asked: list[int] = []
        self.slow = False

    def record(self, event: Event | None = None) -> int:
        """Let something happen; its number."""
        seq = len(self.stored) + 1
        event = event or MailTaken(at=float(seq), items=())
        self.stored.append((seq, event))
        self.feed.publish_event(seq, event)
        return seq

    def say(self, *texts: str) -> None:
        """Let something stream."""
        for text in texts:
            self.feed.publish_delta(TextDelta(text))

    async def catch_up(self, told: int) -> list[tuple[int, Event]]:
        """What is stored after `told`; a slow store answers what it knew when it was asked."""
        self.asked.append(told)
        answer = self.stored[told:]
        if self.slow:
            await asyncio.sleep(1)
        return answer


def number(what: Event | Delta) -> int | str:
    """Events by their number, deltas by their text."""
    return what.text if isinstance(what, TextDelta) else int(getattr(what, "at", 0)) if what is not END else "end"


async def heard(reader: Reader, catch_up: CatchUp) -> list[int | str]:
    return [number(what) async for what in reader.read(catch_up)]


async def take(stream: AsyncIterator[Event | Delta], count: int) -> list[int | str]:
    return [number(await anext(stream)) for _ in range(count)]


async def test_a_reader_gets_stored_and_new_events_in_order() -> None:
    log = Log()
    log.record()
    log.record()
    reading = asyncio.create_task(heard(log.feed.join(0), log.catch_up))
    await asyncio.sleep(1)
    log.say("a", "b")
    log.record()
    log.say("c")
    log.record(END)

    assert await reading == [1, 2, "a", "b", 3, "c", "end"]


async def test_a_reader_continues_after_the_given_event() -> None:
    log = Log()
    for _ in range(4):
        log.record()
    log.record(END)

    assert await heard(log.feed.join(3), log.catch_up) == [4, "end"]


async def test_an_event_recorded_during_the_store_read_is_delivered_once() -> None:
    log = Log()
    log.record()
    reader = log.feed.join(0)
    log.record()  # told to the reader, and in the store before it asks
    log.slow = True
    reading = asyncio.create_task(heard(reader, log.catch_up))
    await asyncio.sleep(0.5)
    log.record()  # told while the store is being asked, which does not know it yet
    log.record(END)

    assert await reading == [1, 2, 3, "end"]


async def test_deltas_before_a_stored_event_are_not_delivered_after_it() -> None:
    log = Log()
    reader = log.feed.join(0)
    log.say("streamed before ")
    log.record()
    log.say("streamed after")
    log.record(END)
    log.stored.pop()  # not on disk yet

    assert await heard(reader, log.catch_up) == [1, "streamed after", "end"]


async def test_a_lagging_reader_loses_deltas_and_no_event() -> None:
    log = Log()
    stream = log.feed.join(0).read(log.catch_up)
    log.record()
    assert await take(stream, 1) == [1]

    log.say(*(str(n) for n in range(CAPACITY * 2)))
    log.record()
    log.say("fresh")
    log.record(END)

    assert [number(what) async for what in stream] == [2, "fresh", "end"]
    assert log.asked == [0], "it was not so far behind that the store had to be asked"


async def test_a_reader_that_lost_a_delta_gets_no_more_of_that_attempt() -> None:
    log = Log()
    stream = log.feed.join(0).read(log.catch_up)
    log.record()
    assert await take(stream, 1) == [1]

    log.feed.publish_delta(StartDelta("first"))
    log.say(*(str(n) for n in range(CAPACITY)))
    assert await anext(stream) == StartDelta("first")
    # What it began with, and the event that it has just been told of, had a place as well.
    assert await take(stream, CAPACITY - 2) == [str(n) for n in range(CAPACITY - 2)]
    log.say("after the gap")
    log.feed.publish_delta(StartDelta("second"))
    log.say("from the beginning")
    log.record()
    log.say("of the next reply")
    log.record(END)

    assert await anext(stream) == StartDelta("second")
    assert [number(what) async for what in stream] == ["from the beginning", 2, "of the next reply", "end"]


async def test_an_attempt_during_catch_up_is_delivered_from_its_start_or_not_at_all() -> None:
    log = Log()
    stream = log.feed.join(0).read(log.catch_up)
    log.record()
    assert await take(stream, 1) == [1]
    for _ in range(CAPACITY + 1):
        log.record()
    log.say("lost")
    assert await take(stream, CAPACITY + 1) == list(range(2, CAPACITY + 3))
    reading = asyncio.create_task(heard_rest(stream))
    await asyncio.sleep(1)
    log.say("the rest of it")
    log.record()
    log.say("something new")
    log.record(END)

    assert await reading == [CAPACITY + 3, "something new", "end"]


async def heard_rest(stream: AsyncIterator[Event | Delta]) -> list[int | str]:
    return [number(what) async for what in stream]


async def test_a_reader_that_is_too_far_behind_catches_up_from_the_store() -> None:
    log = Log()
    stream = log.feed.join(0).read(log.catch_up)
    log.record()
    assert await take(stream, 1) == [1]
    for _ in range(CAPACITY * 3):
        log.say("lost")
        log.record()
    log.record(END)

    assert [number(what) async for what in stream] == [*range(2, CAPACITY * 3 + 2), "end"]
    assert log.asked == [0, CAPACITY], "what was queued first, and the rest from the store, once"


async def test_events_during_catch_up_are_not_lost() -> None:
    log = Log()
    stream = log.feed.join(0).read(log.catch_up)
    log.record()
    assert await take(stream, 1) == [1]
    for _ in range(CAPACITY + 10):
        log.record()
    assert await take(stream, CAPACITY + 5) == list(range(2, CAPACITY + 7))
    # Now it reads what the store told, slowly; meanwhile the run goes on, and ends.
    log.record()
    log.record(END)

    async with asyncio.timeout(10):
        assert [number(what) async for what in stream] == [*range(CAPACITY + 7, CAPACITY + 13), "end"]


@given(st.lists(st.sampled_from(["event", "delta", "read"]), max_size=60), st.booleans())
async def test_every_event_is_delivered_once_and_in_order_in_any_interleaving(doings: list[str], slow: bool) -> None:
    log = Log()
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
                log.say(*["~"] * (CAPACITY // 3))
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
    log = Log()
    reader = log.feed.join(0)
    staying = log.feed.join(0)

    log.feed.leave(reader)
    log.feed.leave(reader)
    log.record(END)

    assert await heard(staying, log.catch_up) == ["end"]
    log.feed.leave(staying)
    log.say("nobody hears this")


async def test_a_reader_gets_the_queued_events_and_then_the_error() -> None:
    log = Log()
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
    log = Log()
    reading = asyncio.create_task(heard(log.feed.join(0), log.catch_up))
    await asyncio.sleep(1)

    log.feed.stop(StoreUnavailable("no space left"))

    with pytest.raises(StoreUnavailable):
        await reading


# ---- through the front door -----------------------------------------------------------------------------------------


@retinue.tool(kind="pure")
async def look() -> str:
    """Look."""
    await asyncio.sleep(1)
    return "seen"


@pytest.fixture(params=["memory", "sqlite", "sqlite in a thread"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore | SqliteStore:
    """Every way to keep runs."""
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
