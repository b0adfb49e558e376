"""What another process posts while a run ends is read by the run, or refused because the run has ended.

Every test posts from outside before the n-th commit of the run's driver, for every n until the run has ended by then.
Virtual time stands still, so no poll of the inbox comes between.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec import Struct

import retinue
from retinue.core.commands import CancelTree, Post, Record, RunQuery, Write, WriteResult
from retinue.core.errors import RunIsOver
from retinue.core.events import MailTaken
from retinue.core.ids import DriverId, RunId
from retinue.core.inbox import Cancel, Input, TextMessage
from retinue.core.ports import Request
from retinue.core.run import Outcome
from retinue.engine.tool_calls import answer_to
from retinue.providers.scripted import Line, LineFunction, Script, ScriptedProvider, calls, says
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness
from tests.engine.delegation import delegates, with_delegation
from tests.engine.memory_stores import SharedMemory

WORDS = "Also name the day."

Store = MemoryStore | SqliteStore
Outside = Callable[[RunId], Write]


class Attempt(Struct):
    """A write from outside before commit number `before`; `answer` is None until it was made."""

    outside: Outside
    before: int
    agent: str = "main"
    parked: bool = False
    """Whether to wait until a call of the run is parked."""
    commits: int = 0
    answer: WriteResult = None

    def interfere(self, store: Store, commit: Callable[[Sequence[Write]], list[WriteResult]]) -> None:
        self.commits += 1
        if self.commits == self.before:
            rows = [row for row in store.runs(RunQuery()) if row.agent == self.agent]
            is_due = any(row.progress.phase in ("parked", "ended") or not self.parked for row in rows)
            (self.answer,) = commit([self.outside(rows[0].run_id)]) if is_due else ("unknown",)


class MemoryInterrupted(SharedMemory):
    """A shared store in memory with one write from outside."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__()
        self._attempt = attempt

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        self._attempt.interfere(self, lambda outside: super(MemoryInterrupted, self).commit(None, outside))
        return super().commit(driver_id, writes, durable=durable)


class SqliteInterrupted(SqliteStore):
    """A SQLite store with one write from outside, by a connection of its own."""

    def __init__(self, path: Path, attempt: Attempt) -> None:
        super().__init__(path, threaded=False)
        self._attempt = attempt
        self._outside = SqliteStore(path, threaded=False)

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        self._attempt.interfere(self, lambda outside: self._outside.commit(None, outside))
        return super().commit(driver_id, writes, durable=durable)

    def close(self) -> None:
        self._outside.close()
        super().close()


@pytest.fixture(params=["memory", "sqlite"])
def store_with(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Attempt], Store]:
    """Makes a store with a write from outside."""

    def make(attempt: Attempt) -> Store:
        if request.param == "memory":
            return MemoryInterrupted(attempt)
        return SqliteInterrupted(tmp_path / f"{attempt.agent}-{attempt.before}" / "retinue.db", attempt)

    return make


def taken(harness: Harness, run_id: RunId) -> list[str]:
    """The keys of the items that a run has taken."""
    events = (event for event in harness.events(run_id) if isinstance(event, MailTaken))
    return [item.key for event in events for item in event.items]


def report(request: Request) -> Line:
    """Say whether the words from outside were read."""
    return says("read" if any(WORDS in message.text for message in request.messages) else "unread")


async def run_once(
    store: Store, lines: Sequence[Line | LineFunction], tools: Sequence[object] = ()
) -> tuple[Outcome, list[str]]:
    script = Script().play("main", *lines)
    harness = Harness(store=store, dialects=(), provider=ScriptedProvider(script), tools=tools)  # type: ignore[arg-type]  tools of any form
    await harness.open()
    outcome = await harness.run("go")
    items = taken(harness, harness.run_of("main"))
    await harness.close()
    store.close()
    return outcome, items


async def test_words_before_any_commit_are_read_or_refused(store_with: Callable[[Attempt], Store]) -> None:
    answers: list[WriteResult] = []
    while not answers or answers[-1] is not None:
        words = TextMessage(key="words", text=WORDS)
        attempt = Attempt(lambda run_id: Post(run_id=run_id, item=words), len(answers) + 1)  # noqa: B023  used at once
        outcome, items = await run_once(store_with(attempt), [report, report])

        is_read = attempt.answer == "posted"
        assert (outcome.text, "words" in items) == ("read" if is_read else "unread", is_read), attempt
        answers.append(attempt.answer)

    assert answers[-2] == "ended"
    assert answers.count("posted") >= 2


async def test_a_cancel_before_any_commit_ends_the_run_or_is_refused(store_with: Callable[[Attempt], Store]) -> None:
    answers: list[WriteResult] = []
    while not answers or answers[-1] is not None:
        cancel = Cancel(key="cancel", note="enough")
        attempt = Attempt(lambda run_id: CancelTree(run_id=run_id, item=cancel, at=1.0), len(answers) + 1)  # noqa: B023
        outcome, _ = await run_once(store_with(attempt), [says("done")])

        if isinstance(attempt.answer, tuple) and attempt.answer:
            assert (outcome.result, outcome.error) == ("cancelled", "enough"), attempt
        else:
            assert (outcome.result, outcome.text) == ("completed", "done"), attempt
        answers.append(attempt.answer)

    assert answers[-2] == ()
    assert sum(isinstance(answer, tuple) and bool(answer) for answer in answers) >= 2


async def test_input_before_any_commit_of_a_closing_run_is_answered_or_refused(
    store_with: Callable[[Attempt], Store],
) -> None:
    answers: list[WriteResult] = []
    while not answers or answers[-1] is not None:
        more = Input(key="more", text=WORDS)
        attempt = Attempt(lambda run_id: Post(run_id=run_id, item=more), len(answers) + 1)  # noqa: B023
        store = store_with(attempt)
        script = Script().play("main", says("hello"), report)
        harness = Harness(store=store, dialects=(), provider=ScriptedProvider(script))
        await harness.open()
        handle = await harness.retinue.spawn("go", keep_alive=True)
        await harness.retinue.supervisor.exchange(handle.run_id, 1)
        outcome = await handle.close()
        items = taken(harness, handle.run_id)
        await harness.close()
        store.close()

        is_read = attempt.answer == "posted"
        assert (outcome.text, outcome.exchanges) == (("read", 2) if is_read else ("hello", 1)), attempt
        assert ("more" in items) == is_read
        answers.append(attempt.answer)

    assert answers[-2] == "ended"
    assert answers.count("posted") >= 3


async def test_an_approval_before_any_commit_of_a_waiting_run_is_taken(store_with: Callable[[Attempt], Store]) -> None:
    @retinue.tool
    async def press() -> str:
        """Press the button."""
        return "pressed"

    question = retinue.Approval(run_id="", path="main", turn=1, index=0, tool="press", arguments="{}", reason="always")
    answers: list[WriteResult] = []
    while not answers or answers[-1] is not None:
        attempt = Attempt(lambda run_id: Post(run_id=run_id, item=answer_to(question, allow=True)), len(answers) + 1)
        attempt.parked = True
        store = store_with(attempt)
        harness = Harness(
            store=store,
            dialects=(),
            provider=ScriptedProvider(Script().play("main", calls("press"), says("done"))),
            tools=[press],
            policy=retinue.Policy(always_ask=("press",)),
            approvals="wait",
        )
        await harness.open()
        handle = await harness.retinue.spawn("go")
        await asyncio.sleep(5.0)
        if attempt.answer != "posted":
            for open_question in await harness.retinue.approvals():
                await harness.retinue.approve(open_question)
        outcome = await handle.wait()
        items = taken(harness, handle.run_id)
        await harness.close()
        store.close()

        assert (outcome.text, items) == ("done", ["answer/1/0"]), attempt
        answers.append(attempt.answer)

    assert answers.count("posted") >= 1
    assert answers[-2] in ("duplicate", "ended")


async def test_words_to_a_child_before_any_commit_are_read_or_refused(store_with: Callable[[Attempt], Store]) -> None:
    answers: list[WriteResult] = []
    while not answers or answers[-1] is not None:
        words = TextMessage(key="words", text=WORDS)
        attempt = Attempt(lambda run_id: Post(run_id=run_id, item=words), len(answers) + 1, agent="dig")  # noqa: B023
        store = store_with(attempt)
        harness, _ = with_delegation(store=store)
        harness.script("main", delegates("dig", task="dig"), says("done"))
        harness.script("dig", report, report)
        await harness.open()
        outcome = await harness.run("go")
        dug = await harness.retinue.handle(harness.run_of("dig")).wait()
        items = taken(harness, harness.run_of("dig"))
        await harness.close()
        store.close()

        is_read = attempt.answer == "posted"
        assert (outcome.text, dug.text, "words" in items) == ("done", "read" if is_read else "unread", is_read), attempt
        answers.append(attempt.answer)

    assert "ended" in answers
    assert "posted" in answers


class HeldEnd(SharedMemory):
    """A store in memory that stops before it commits an end, until it is released; `unread` is posted meanwhile."""

    blocking = True

    def __init__(self, unread: TextMessage | None) -> None:
        super().__init__()
        self.reached, self.released = threading.Event(), threading.Event()
        self._unread = unread

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        end = next((write for write in writes if isinstance(write, Record) and write.known is not None), None)
        if end is not None and not self.reached.is_set():
            self.reached.set()
            assert self.released.wait(30), "the test never released the store"
            if self._unread is not None:
                super().commit(None, [Post(run_id=end.run_id, item=self._unread)])
        return super().commit(driver_id, writes, durable=durable)


@pytest.mark.parametrize("is_refused", [False, True], ids=["accepted", "refused"])
async def test_a_post_of_this_process_waits_while_the_end_is_written(is_refused: bool) -> None:
    store = HeldEnd(TextMessage(key="outside", text="from outside") if is_refused else None)
    harness = Harness(
        store=store, dialects=(), provider=ScriptedProvider(Script().play("main", report, report, report))
    )
    await harness.open()
    handle = await harness.retinue.spawn("go")
    await asyncio.to_thread(store.reached.wait, 30)
    post = harness.retinue.supervisor.post(handle.run_id, TextMessage(key="words", text=WORDS))
    posting = asyncio.create_task(post)
    await asyncio.sleep(0)
    assert not posting.done()
    store.released.set()
    (answer,) = await asyncio.gather(posting, return_exceptions=True)
    outcome = await handle.wait()
    items = taken(harness, handle.run_id)
    await harness.close()

    if is_refused:
        assert (answer, outcome.text, items) == (True, "read", ["outside", "words"])
    else:
        assert isinstance(answer, RunIsOver)
        assert (outcome.text, items) == ("unread", [])


@pytest.mark.parametrize("is_refused", [False, True], ids=["accepted", "refused"])
async def test_a_process_that_leaves_while_an_end_is_written(is_refused: bool) -> None:
    store = HeldEnd(TextMessage(key="outside", text=WORDS) if is_refused else None)
    harness = Harness(
        store=store, dialects=(), provider=ScriptedProvider(Script().play("main", report, report, report))
    )
    await harness.open()
    handle = await harness.retinue.spawn("go", limits=retinue.Limits(timeout=60))
    await asyncio.to_thread(store.reached.wait, 30)
    closing = asyncio.create_task(harness.close())
    await asyncio.sleep(0)
    store.released.set()
    await closing
    row = store.run(handle.run_id)
    assert row is not None
    assert row.progress.phase == ("working" if is_refused else "ended")
    await harness.open(adopt=True)
    outcome = await harness.retinue.handle(handle.run_id).wait()
    await harness.close()

    assert outcome.text == ("read" if is_refused else "unread")
