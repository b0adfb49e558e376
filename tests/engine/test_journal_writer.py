"""The journal: order, group commit, durability, and refusals of the store."""

import asyncio
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

import pytest

import retinue
from retinue.core.commands import (
    Change,
    Decision,
    DeclareDead,
    DriverRow,
    Heartbeat,
    RegisterDriver,
    Write,
    WriteResult,
)
from retinue.core.errors import Fenced, StoreError, StoreUnavailable
from retinue.core.ids import DriverId
from retinue.core.ports import Store
from retinue.engine.journal_writer import COMMIT_DELAY, MAX_INLINE_WRITES, Journal
from retinue.providers.scripted import calls, says, together
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness
from tests.internals import engine_of

SPACE = "notes"


class RecordingStore(MemoryStore):
    """Records its commits, each as the names that were put; can be made to refuse or to block one."""

    def __init__(self, *, blocking: bool = True) -> None:
        super().__init__()
        self._blocking = blocking
        self.batches: list[list[str]] = []
        self.durable: list[bool] = []
        self.refuse: StoreError | None = None
        self.held = threading.Event()
        self.held.set()

    @property
    def blocking(self) -> bool:
        return self._blocking

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        assert self.held.wait(10), "the test never let go of the store"
        if self.refuse is not None:
            raise self.refuse
        answers = super().commit(driver_id, writes, durable=durable)
        self.batches.append([_name(write) for write in writes])
        self.durable.append(durable)
        return answers


def _name(write: Write) -> str:
    return write.key or "" if isinstance(write, Change) else type(write).__name__


def note(name: str) -> Change:
    """A write that puts a name into a namespace, and answers how many were there before."""

    def decide(key_value: Mapping[str, bytes]) -> Decision:
        return Decision(answer=str(len(key_value)).encode(), puts={name: b""})

    return Change(space=SPACE, decide=decide, key=name)


def raising_change(name: str = "bug") -> Change:
    """A write whose decision raises an unexpected error."""

    def decide(key_value: Mapping[str, bytes]) -> Decision:
        raise ZeroDivisionError(name)

    return Change(space=SPACE, decide=decide, key=name)


async def run_ready_tasks() -> None:
    """Run the ready tasks without time passing; virtual time is paused while a thread works."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture(params=[False, True], ids=["at once", "in a thread"])
def store(request: pytest.FixtureRequest) -> RecordingStore:
    return RecordingStore(blocking=request.param)


def names(store: Store) -> list[str]:
    return list(store.key_value(SPACE))


# ---- order and group commit -----------------------------------------------------------------------------------------


async def test_writes_are_committed_in_the_order_in_which_they_were_queued(store: RecordingStore) -> None:
    journal = Journal(store)
    tickets = [journal.write(note(str(number))) for number in range(20)]

    answers = [await commit_future.wait() for commit_future in reversed(tickets)]

    assert [name for batch in store.batches for name in batch] == [str(number) for number in range(20)]
    assert answers == [[str(number).encode()] for number in reversed(range(20))]
    await journal.close()


async def test_each_commit_future_gets_the_answers_of_its_own_writes() -> None:
    store = RecordingStore()
    journal = Journal(store)

    answers = await asyncio.gather(
        journal.commit(note("a")), journal.commit(), journal.commit(note("b"), note("c")), journal.commit(note("a"))
    )

    assert answers == [[b"0"], [], [b"1", b"2"], [b"0"]]
    assert store.batches == [["a", "b", "c", "a"]]
    assert journal.commits == 1
    await journal.close()


async def test_writes_queued_during_a_commit_share_the_next_one() -> None:
    store = RecordingStore()
    journal = Journal(store)
    store.held.clear()
    first = asyncio.create_task(journal.commit(note("first")))
    await run_ready_tasks()

    for number in range(5):
        journal.write(note(f"later {number}"))
    last = journal.write(note("last"))
    assert not last.is_done
    store.held.set()
    await last.wait()

    assert store.batches == [["first"], [*(f"later {number}" for number in range(5)), "last"]]
    assert await first == [b"0"]
    await journal.close()


async def test_a_write_without_a_waiter_is_delayed_to_share_a_commit() -> None:
    store = RecordingStore()
    journal = Journal(store)
    first = journal.write(note("a"))
    await asyncio.sleep(COMMIT_DELAY * 0.9)
    second = journal.write(note("b"))
    assert (store.batches, first.is_done) == ([], False)

    await asyncio.sleep(COMMIT_DELAY * 0.2)

    assert (store.batches, first.is_done, second.is_done) == ([["a", "b"]], True, True)
    assert journal.awaited == 0
    await journal.close()


async def test_a_waiter_is_not_delayed() -> None:
    store = RecordingStore()
    journal = Journal(store)
    began = asyncio.get_running_loop().time()
    journal.write(note("a"))

    await journal.commit(note("b"))

    assert asyncio.get_running_loop().time() == began
    assert (store.batches, journal.awaited) == ([["a", "b"]], 1)
    await journal.close()


async def test_concurrent_waiters_share_one_commit() -> None:
    store = RecordingStore()
    journal = Journal(store)

    await asyncio.gather(*(journal.commit(note(str(number))) for number in range(100)))

    assert [len(batch) for batch in store.batches] == [100]
    await journal.close()


async def test_a_nonblocking_store_has_answered_when_write_returns() -> None:
    store = RecordingStore(blocking=False)
    journal = Journal(store)

    commit_future = journal.write(note("a"))

    assert commit_future.is_done
    assert (await commit_future.wait(), journal.awaited) == ([b"0"], 0)
    await journal.close()


class PromptStore(RecordingStore):
    """A store with `commit_at_once`, which fails while it is busy; counts its successes."""

    def __init__(self) -> None:
        super().__init__()
        self.is_busy = False
        self.at_once = 0

    def commit_at_once(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult] | None:
        if self.is_busy:
            return None
        self.at_once += 1
        return self.commit(driver_id, writes, durable=durable)


async def test_few_writes_are_committed_on_the_loop_if_the_store_can() -> None:
    store = PromptStore()
    journal = Journal(store)

    assert await journal.commit(note("a"), note("b")) == [b"0", b"1"]
    assert (store.at_once, journal.commits) == (1, 1)

    store.is_busy = True
    assert await journal.commit(note("c")) == [b"2"]
    store.is_busy = False
    many = [note(f"n{number}") for number in range(MAX_INLINE_WRITES + 1)]
    assert len(await journal.commit(*many)) == MAX_INLINE_WRITES + 1

    assert (store.at_once, journal.commits) == (1, 3)
    await journal.close()


async def test_a_lone_caller_has_its_answer_at_once_and_several_share_a_commit() -> None:
    store = PromptStore()
    journal = Journal(store)

    async def commit_together(name: str) -> list[int]:
        before = len(store.batches)
        await asyncio.gather(*(journal.commit(note(f"{name} {number}")) for number in range(10)))
        return [len(batch) for batch in store.batches[before:]]

    alone = journal.commit(note("a"))
    with pytest.raises(StopIteration) as answered:
        alone.send(None)
    assert answered.value.value == [b"0"]

    await asyncio.sleep(0)
    assert await commit_together("first") == [1, 9]  # the first one cannot know of the others
    assert await commit_together("second") == [10]
    await journal.commit(note("b"))
    assert await commit_together("third") == [1, 9]
    await journal.close()


async def test_a_refusal_on_the_loop_breaks_the_journal() -> None:
    store = PromptStore()
    journal = Journal(store)
    store.refuse = StoreUnavailable("full")

    with pytest.raises(StoreUnavailable, match="full"):
        await journal.commit(note("a"))

    assert (store.at_once, store.batches, journal.broken) == (1, [], store.refuse)
    await journal.close()


async def test_a_cancelled_waiter_does_not_affect_the_commit() -> None:
    store = RecordingStore()
    journal = Journal(store)
    store.held.clear()
    commit_future = journal.write(note("a"))
    impatient = asyncio.create_task(commit_future.wait())
    patient = asyncio.create_task(commit_future.wait())
    await run_ready_tasks()

    impatient.cancel()
    store.held.set()

    assert await patient == [b"0"]
    assert impatient.cancelled()
    await journal.close()


# ---- durability -----------------------------------------------------------------------------------------------------


async def test_a_late_waiter_gets_a_synced_commit_in_durable_mode(store: RecordingStore) -> None:
    journal = Journal(store, durable=True)
    commit_future = journal.write(note("a"))
    await asyncio.sleep(COMMIT_DELAY * 2)

    await commit_future.wait()

    assert (store.batches, store.durable) == ([["a"]], [True])
    await journal.close()


async def test_without_durable_nothing_is_synced(store: RecordingStore) -> None:
    journal = Journal(store)

    await journal.commit(note("a"))

    assert store.durable == [False]
    await journal.close()


# ---- reading --------------------------------------------------------------------------------------------------------


async def test_a_read_sees_everything_that_was_queued_before_it(store: RecordingStore) -> None:
    journal = Journal(store)
    journal.write(note("a"))
    await asyncio.sleep(0)
    journal.write(note("b"))

    assert list(await journal.read(store.key_value, SPACE)) == ["a", "b"]
    await journal.close()


async def test_a_read_during_a_commit_waits_for_it() -> None:
    store = RecordingStore()
    journal = Journal(store)
    store.held.clear()
    journal.write(note("a"))
    journal.commit_soon()
    await run_ready_tasks()
    reading = asyncio.create_task(journal.read(store.key_value, SPACE))
    await run_ready_tasks()
    assert not reading.done()

    store.held.set()

    assert list(await reading) == ["a"]
    await journal.close()


async def test_a_peek_does_not_wait_for_writes() -> None:
    store = RecordingStore()
    journal = Journal(store)
    journal.write(note("a"))

    assert (await journal.peek(store.key_value, SPACE), journal.awaited) == ({}, 0)
    await journal.close()


# ---- refusals -------------------------------------------------------------------------------------------------------

FULL = StoreUnavailable("no space left on device")


async def test_a_refusal_breaks_the_journal_and_is_reported_once(store: RecordingStore) -> None:
    told: list[StoreError] = []
    journal = Journal(store, on_broken=told.append)
    store.refuse = FULL

    tickets = [journal.write(note("a")), journal.write(note("b"))]
    for commit_future in tickets:
        with pytest.raises(StoreUnavailable, match="no space left"):
            await commit_future.wait()

    assert (journal.broken, told, names(store)) == (FULL, [FULL], [])
    await journal.close()


async def test_writes_behind_a_refused_write_never_reach_the_store() -> None:
    store = RecordingStore()
    journal = Journal(store)
    store.refuse = FULL
    store.held.clear()
    cause = asyncio.create_task(journal.commit(note("cause")))
    await run_ready_tasks()
    effect = journal.write(note("effect"))
    store.held.set()
    with pytest.raises(StoreUnavailable):
        await cause
    store.refuse = None

    later = journal.write(note("later"))
    await asyncio.sleep(1)

    assert (effect.is_done, later.is_done) == (True, True)
    for commit_future in (effect, later):
        with pytest.raises(StoreUnavailable):
            await commit_future.wait()
    assert names(store) == []
    await journal.close()


async def test_a_read_raises_the_refusal_of_earlier_writes() -> None:
    store = RecordingStore()
    journal = Journal(store)
    store.refuse = FULL
    store.held.clear()
    journal.write(note("a"))
    journal.commit_soon()
    await run_ready_tasks()
    reading = asyncio.create_task(journal.read(store.key_value, SPACE))
    await run_ready_tasks()

    store.held.set()

    with pytest.raises(StoreUnavailable):
        await reading
    assert await journal.read(store.key_value, SPACE) == {}, "a broken journal can still be read"
    await journal.close()


async def test_a_broken_journal_reopens_after_a_successful_probe(store: RecordingStore) -> None:
    journal = Journal(store)
    journal.driver_id = "d"
    await journal.commit(RegisterDriver(driver=DriverRow(driver_id="d", host="h", process="1")))
    store.refuse = FULL
    with pytest.raises(StoreUnavailable):
        await journal.commit(note("lost"))
    worse = store.refuse = StoreUnavailable("still no space")

    assert await journal.reopen(Heartbeat(driver_id="d")) is False
    assert journal.broken is worse
    store.refuse = None
    assert await journal.reopen(Heartbeat(driver_id="d")) is True

    assert journal.broken is None
    await journal.commit(note("kept"))
    assert names(store) == ["kept"]
    await journal.close()


async def test_an_unbroken_journal_is_not_reopened(store: RecordingStore) -> None:
    journal = Journal(store)

    assert await journal.reopen(note("probe")) is True

    assert store.batches == []
    await journal.close()


async def test_a_fenced_journal_never_reopens(store: RecordingStore) -> None:
    journal = Journal(store)
    journal.driver_id = "d"
    await journal.commit(RegisterDriver(driver=DriverRow(driver_id="d", host="h", process="1")))
    store.commit(None, [DeclareDead(driver_id="d")])

    with pytest.raises(Fenced):
        await journal.commit(note("a"))

    assert await journal.reopen(Heartbeat(driver_id="d")) is False
    assert isinstance(journal.broken, Fenced)
    await journal.close()


async def test_a_raising_decision_fails_alone_in_its_shared_commit(store: RecordingStore) -> None:
    journal = Journal(store)

    async def attempt(write: Write) -> list[WriteResult] | str:
        try:
            return await journal.commit(write)
        except ZeroDivisionError as bug:
            return str(bug)

    answers = await asyncio.gather(
        *map(attempt, (note("a"), raising_change("one"), note("b"), raising_change("two"), note("c")))
    )

    assert answers == [[b"0"], "one", [b"1"], "two", [b"2"]]
    assert (journal.broken, names(store)) == (None, ["a", "b", "c"])
    await journal.close()


async def test_a_read_after_a_raising_decision_sees_the_other_writes() -> None:
    store = RecordingStore()
    journal = Journal(store)
    journal.write(note("a"))
    bug = journal.write(raising_change())

    assert list(await journal.read(store.key_value, SPACE)) == ["a"]
    with pytest.raises(ZeroDivisionError):
        await bug.wait()
    await journal.close()


# ---- closing --------------------------------------------------------------------------------------------------------


async def test_close_commits_queued_writes(store: RecordingStore) -> None:
    journal = Journal(store)
    commit_future = journal.write(note("a"))

    await journal.close()

    assert (names(store), commit_future.is_done) == (["a"], True)


@pytest.mark.parametrize("under_way", [False, True], ids=["queued", "under way"])
async def test_close_raises_the_refusal_of_the_last_writes(under_way: bool) -> None:
    store = RecordingStore()
    store.refuse = FULL
    journal = Journal(store)
    store.held.clear()
    journal.write(note("a"))
    if under_way:
        journal.commit_soon()
        await run_ready_tasks()
    closing = asyncio.create_task(journal.close())
    await run_ready_tasks()

    store.held.set()

    with pytest.raises(StoreUnavailable):
        await closing


async def test_a_closed_journal_refuses_writes(store: RecordingStore) -> None:
    journal = Journal(store)
    await journal.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        await journal.commit(note("late"))

    assert names(store) == []


# ---- commits of a turn ----------------------------------------------------------------------------------------------

TURNS = 10

MakeStore = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite", "sqlite in a thread"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Store]:
    """All stores."""
    if request.param == "memory":
        yield MemoryStore()
    else:
        file = SqliteStore(tmp_path / "r.db", threaded=request.param != "sqlite")
        yield file
        file.close()


@retinue.tool(kind="pure", polls=True)
async def look(at: int) -> str:
    """Look at something."""
    return f"saw {at}"


@retinue.tool(polls=True)
async def press(button: int) -> str:
    """Press a button, which cannot be taken back."""
    return f"pressed {button}"


@pytest.mark.parametrize("width", [0, 1, 3])
async def test_a_turn_with_k_calls_stores_one_event_and_k_more(any_store: Store, width: int) -> None:
    async with Harness(store=any_store, tools=[look], dialects=()) as harness:
        looking = [together(says("hm"), *(calls("look", at=n) for n in range(width))) for _ in range(TURNS)]
        harness.script("main", *(looking if width else ()), says("done"))
        turns = TURNS if width else 0
        before = harness.written

        outcome = await harness.run("look around")

        beginning, last_reply, end = 1, 1, 1
        assert (outcome.text, outcome.turns) == ("done", turns + 1)
        assert len(harness.events(harness.run_of("main"))) == beginning + turns * (1 + width) + last_reply + end
        # Each event is one write, and there is no write without an event.
        assert harness.written - before == beginning + turns * (1 + width) + last_reply + end


async def test_a_run_without_effects_waits_only_for_its_acceptance_and_end(any_store: Store) -> None:
    async with Harness(store=any_store, tools=[look], dialects=()) as harness:
        harness.script("main", *[calls("look", at=1)] * TURNS, says("done"))
        journal = engine_of(harness.retinue).journal
        before = journal.awaited

        await harness.run("look around")

        # The acceptance is awaited by the caller and by the run itself, in the same commit.
        assert journal.awaited - before == (3 if any_store.blocking else 0)


@pytest.mark.parametrize("width", [1, 3])
async def test_a_turn_with_effects_waits_for_one_commit(any_store: Store, width: int) -> None:
    async with Harness(store=any_store, tools=[press], dialects=()) as harness:
        pressing = together(*(calls("press", button=n) for n in range(width)))
        harness.script("main", *[pressing] * TURNS, says("done"))
        journal = engine_of(harness.retinue).journal
        awaited, commits = journal.awaited, journal.commits

        await harness.run("press them")

        if any_store.blocking:
            assert journal.awaited - awaited <= TURNS * width + 3
            assert journal.commits - commits <= TURNS + 2
        else:
            assert journal.awaited - awaited == 0


async def test_a_hundred_runs_at_once_share_their_commits(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "r.db")
    async with Harness(store=store, tools=[press], dialects=()) as harness:
        harness.script("main", calls("press", button=1), calls("press", button=2), says("done"))
        journal = engine_of(harness.retinue).journal
        before = journal.commits

        outcomes = await asyncio.gather(*(harness.run(f"press {number}") for number in range(100)))

        assert [outcome.text for outcome in outcomes] == ["done"] * 100
        # Accepted, two turns with effects, ended: about four commits for all, and not four hundred.
        assert journal.commits - before <= 20
    store.close()
