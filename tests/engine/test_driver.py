"""Processes that drive runs: they beat, they watch each other, and only those that are told to take over."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import retinue
from retinue.core.commands import DriverRow, Heartbeat, RunQuery, Write, Written
from retinue.core.errors import Fenced, NotAdoptable, RunIsOver, StoreError, StoreUnavailable
from retinue.core.events import Event, MailTaken, RunAdopted
from retinue.core.ids import DriverId, RunId
from retinue.core.inbox import Item
from retinue.core.messages import Delta
from retinue.core.ports import Store
from retinue.core.run import Lifecycle, Limits
from retinue.core.usage import Usage
from retinue.engine.process_identity import describe, this_host, this_process
from retinue.providers.scripted import Script, ScriptedProvider, calls, hangs, says, together
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness
from tests.engine.delegation import Delegate, delegates

LEASE = 10.0


class Process(Harness):
    """A retinue that plays a process; lines that it leaves unasked are for the next one."""

    async def __aexit__(self, *_: object) -> None:
        if self._retinue is not None:
            await self.close()


class DialectContext:
    """Several retinues on one file, as if each were a process; all their models play the same script."""

    def __init__(self, path: Path) -> None:
        self.provider = ScriptedProvider(Script())
        self.path = path
        self.stores: list[SqliteStore] = []
        self.store = self.another_store()
        """For looking from outside."""

    def another_store(self, *, threaded: bool = False) -> SqliteStore:
        self.stores.append(SqliteStore(self.path, threaded=threaded))
        return self.stores[-1]

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def script(self, agent: str, *lines: Any) -> None:
        self.provider.script.play(agent, *lines)

    def process(
        self,
        *,
        look: Callable[[], Any] | None = None,
        tools: Sequence[Any] = (),
        store: Store | None = None,
        lease: float = LEASE,
        **options: Any,
    ) -> Process:
        """A process whose `look` tool answers what `look` does, at once or after a while."""

        @retinue.tool(name="look", kind="pure")
        async def looks() -> str:
            """Look."""
            if look is not None:
                await look()
            return "seen"

        delegate = Delegate()
        process = Process(
            store=store if store is not None else self.another_store(),
            tools=(delegate, looks, *tools),
            dialects=(),
            provider=self.provider,
            lease=lease,
            **options,
        )
        delegate.retinue = lambda: process.retinue
        return process

    def rows(self) -> dict[str, tuple[DriverId | None, str]]:
        """Every run by its agent: who drives it, and its phase."""
        return {row.agent: (row.driver_id, row.progress.phase) for row in self.store.runs(RunQuery())}

    def run_of(self, agent: str) -> RunId:
        (row,) = [row for row in self.store.runs(RunQuery()) if row.agent == agent]
        return row.run_id

    def events(self, agent: str) -> list[Event]:
        return [event for _, event in self.store.events(self.run_of(agent))]


@pytest.fixture
def dialect_context(tmp_path: Path) -> Generator[DialectContext]:
    with closing(DialectContext(tmp_path / "r.db")) as dialect_context:
        yield dialect_context


def driver_of(harness: Harness) -> DriverId:
    driver_id = harness.retinue.supervisor.engine.journal.driver_id
    assert driver_id is not None
    return driver_id


def stop_the_heart(process: Harness) -> None:
    """Let a process go on without its heartbeat, as one does whose machine is stopped and continued."""
    for heart in process.retinue._driver._tasks:
        heart.cancel()


async def until(condition: Callable[[], bool], *, within: float) -> float:
    """Wait, in held time, until something is so; the seconds that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < within, f"not within {within:g} s"
        await asyncio.sleep(0.05)
    return loop.time() - began


async def a_minute() -> None:
    await asyncio.sleep(60)


async def an_hour() -> None:
    await asyncio.sleep(3600)


def a_tree(dialect_context: DialectContext) -> None:
    """`main` delegates to `digger`, who looks."""
    dialect_context.script("main", delegates("digger", lifecycle=Lifecycle(awaited=True)), says("done"))
    dialect_context.script("digger", together(says("Let me look."), calls("look")), says("gold"))


# ---- coming and going -----------------------------------------------------------------------------------------------


async def test_a_driver_is_on_the_list_while_it_is_open_and_its_counter_grows(dialect_context: DialectContext) -> None:
    async with dialect_context.process() as harness:
        me = DriverRow(driver_id=driver_of(harness), host=this_host(), process=this_process())
        assert dialect_context.store.drivers() == [me]

        await asyncio.sleep(LEASE * 2 + 1)

        assert dialect_context.store.drivers() == [replace(me, beat=6)], "three beats in every lease"
    assert dialect_context.store.drivers() == []


async def test_a_store_that_nobody_shares_needs_no_heart(dialect_context: DialectContext) -> None:
    store = MemoryStore()
    async with dialect_context.process(store=store) as harness:
        await asyncio.sleep(1000)

        assert [(row.driver_id, row.beat) for row in store.drivers()] == [(driver_of(harness), 0)]


async def test_leaving_in_good_order_sets_unfinished_runs_free_and_another_goes_on_with_them(
    dialect_context: DialectContext,
) -> None:
    a_tree(dialect_context)
    async with dialect_context.process(look=a_minute) as first:
        await first.retinue.spawn("dig")
        await asyncio.sleep(1)
    assert dialect_context.rows() == {"main": (None, "working"), "digger": (None, "working")}

    async with dialect_context.process() as second:
        handle = await second.retinue.resume(dialect_context.run_of("main"))

        assert (await handle.wait()).text == "done"


async def test_whoever_waits_for_a_run_hears_that_its_retinue_was_closed(dialect_context: DialectContext) -> None:
    dialect_context.script("main", calls("look"))
    harness = dialect_context.process(look=a_minute)
    await harness.open()
    handle = await harness.retinue.spawn("look")
    waiting = asyncio.create_task(handle.wait())
    await asyncio.sleep(1)

    await harness.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        await waiting
    with pytest.raises(StoreUnavailable, match="closed"):
        await handle.cancel()
    assert dialect_context.rows() == {"main": (None, "working")}


# ---- looking --------------------------------------------------------------------------------------------------------


async def interrupted_tree(dialect_context: DialectContext) -> None:
    """A tree whose process was killed while the child looked."""
    a_tree(dialect_context)
    harness = dialect_context.process(look=a_minute)
    await harness.open()
    await harness.retinue.spawn("dig")
    await asyncio.sleep(1)
    await harness.kill()


async def test_looking_at_interrupted_runs_starts_nothing(dialect_context: DialectContext) -> None:
    await interrupted_tree(dialect_context)
    before = (
        dialect_context.rows(),
        dialect_context.events("main"),
        dialect_context.events("digger"),
        list(dialect_context.provider.asked),
    )
    async with dialect_context.process() as second:
        r = second.retinue
        root = dialect_context.run_of("main")

        assert {view.agent: view.state for view in await r.list(everyone=True)} == {
            "main": "interrupted",
            "digger": "interrupted",
        }
        assert len(await r.tree(root)) == 2
        assert (await r.handle(root).look()).state == "interrupted"
        assert await r.approvals() == []
        assert [event async for event in r.events(root)] == dialect_context.events("main")
        with pytest.raises(TimeoutError):
            await r.handle(root).wait(timeout=1000)

        assert (
            dialect_context.rows(),
            dialect_context.events("main"),
            dialect_context.events("digger"),
            dialect_context.provider.asked,
        ) == before
        assert dialect_context.rows() == {"main": (None, "working"), "digger": (None, "working")}


async def test_an_interrupted_run_shows_how_far_it_had_come_and_what_it_had_said(
    dialect_context: DialectContext,
) -> None:
    await interrupted_tree(dialect_context)
    async with dialect_context.process() as second:
        view = await second.retinue.handle(dialect_context.run_of("digger")).look()
        run = await second.retinue.supervisor.replay(view.run_id)

        assert (view.state, view.turns, view.outcome, view.ended_at) == ("interrupted", 1, None, None)
        assert view.usage == run.usage != Usage()
        assert (run.text, run.outcome) == ("Let me look.", None)


async def test_the_runs_of_a_process_that_is_gone_are_shown_as_interrupted_before_anyone_buries_it(
    dialect_context: DialectContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_tree(dialect_context)
    first = await gone_process(dialect_context, monkeypatch)
    async with dialect_context.process() as second:
        assert {view.state for view in await second.retinue.list(everyone=True)} == {"interrupted"}
        assert (await second.retinue.handle(dialect_context.run_of("main")).look()).state == "interrupted"
        assert dialect_context.rows()["main"][0] == driver_of(first), "looking does not bury anyone"
        await first.kill()


# ---- taking over ----------------------------------------------------------------------------------------------------


async def test_a_process_adopts_only_when_it_is_told_to(dialect_context: DialectContext) -> None:
    await interrupted_tree(dialect_context)
    async with dialect_context.process():
        await asyncio.sleep(10 * LEASE)
        assert dialect_context.rows()["main"] == (None, "working")

    async with dialect_context.process(adopt=True) as third:
        assert (await third.retinue.handle(dialect_context.run_of("main")).wait()).text == "done"
        assert [event.driver_id for event in dialect_context.events("main") if isinstance(event, RunAdopted)] == [
            driver_of(third)
        ]


async def test_an_adopted_run_goes_on_where_it_was_and_asks_nothing_twice(dialect_context: DialectContext) -> None:
    await interrupted_tree(dialect_context)
    async with dialect_context.process(adopt=True) as second:
        await second.retinue.handle(dialect_context.run_of("main")).wait()

    asked = [(each.agent, each.turn) for each in dialect_context.provider.asked]
    assert asked == [("main", 1), ("digger", 1), ("digger", 2), ("main", 2)]


async def test_one_tree_is_resumed_and_the_others_stay_interrupted(dialect_context: DialectContext) -> None:
    dialect_context.script("main", calls("look"), says("done"))
    first = dialect_context.process(look=a_minute)
    await first.open()
    one, other = [(await first.retinue.spawn(task)).run_id for task in ("one", "other")]
    await asyncio.sleep(1)
    await first.kill()

    async with dialect_context.process() as second:
        resumed = await second.retinue.resume(one)

        assert (await resumed.wait()).text == "done"
        assert (await second.retinue.handle(other).look()).state == "interrupted"
        assert (await (await second.retinue.resume(one)).wait()).text == "done", "one that is over is simply returned"


async def test_resuming_any_run_of_a_tree_resumes_the_whole_tree(dialect_context: DialectContext) -> None:
    await interrupted_tree(dialect_context)
    async with dialect_context.process() as second:
        await second.retinue.resume(dialect_context.run_of("digger"))

        assert (await second.retinue.handle(dialect_context.run_of("main")).wait()).text == "done"


async def test_a_run_that_another_process_drives_cannot_be_resumed(dialect_context: DialectContext) -> None:
    dialect_context.script("main", calls("look"))
    async with dialect_context.process(look=a_minute) as first, dialect_context.process() as second:
        handle = await first.retinue.spawn("look")
        await asyncio.sleep(1)

        with pytest.raises(NotAdoptable, match="another process is driving it"):
            await second.retinue.resume(handle.run_id)


@pytest.mark.parametrize("who", ["main", "digger"])
async def test_a_tree_is_not_adopted_when_a_tool_of_one_of_its_runs_is_missing(
    dialect_context: DialectContext, who: str
) -> None:
    @retinue.tool(kind="pure")
    async def probe() -> str:
        """Probe."""
        return "probed"

    dialect_context.script("main", delegates("digger", tools=("probe",) if who == "digger" else ("look",)))
    dialect_context.script("digger", hangs())
    first = dialect_context.process(tools=[probe])
    await first.open()
    await first.retinue.spawn("dig", tools=["delegate", "probe"] if who == "main" else ["delegate"])
    await asyncio.sleep(1)
    await first.kill()

    async with dialect_context.process(adopt=True) as second:
        assert dialect_context.rows() == {"main": (None, "working"), "digger": (None, "queued")}
        with pytest.raises(NotAdoptable) as refused:
            await second.retinue.resume(dialect_context.run_of("main"))

        assert (refused.value.run_id, refused.value.reason) == (dialect_context.run_of(who), "no tool named probe here")
        assert dialect_context.rows() == {"main": (None, "working"), "digger": (None, "queued")}, "whole or not at all"


async def test_a_tree_is_not_adopted_when_its_provider_is_missing(dialect_context: DialectContext) -> None:
    await interrupted_tree(dialect_context)
    async with dialect_context.process(model="elsewhere:m") as second:
        with pytest.raises(NotAdoptable, match="no provider named 'custom' here"):
            await second.retinue.resume(dialect_context.run_of("main"))

        assert dialect_context.rows()["main"] == (None, "working")


async def test_a_tree_that_cannot_be_adopted_does_not_keep_others_from_being(
    dialect_context: DialectContext, caplog: pytest.LogCaptureFixture
) -> None:
    dialect_context.script("main", calls("look"), says("done"))
    dialect_context.script("special", calls("probe"))

    @retinue.tool(kind="pure")
    async def probe() -> str:
        """Probe."""
        await a_minute()
        return "probed"

    first = dialect_context.process(
        look=a_minute, tools=[probe], agents=[retinue.Agent(name="special", tools=("probe",))]
    )
    await first.open()
    await first.retinue.spawn("special task", agent="special")
    await first.retinue.spawn("look", tools=["look"])
    await asyncio.sleep(1)
    await first.kill()

    async with dialect_context.process(adopt=True) as second:
        assert (await second.retinue.handle(dialect_context.run_of("main")).wait()).text == "done"
        assert dialect_context.rows()["special"] == (None, "working")
    assert "no tool named probe here" in caplog.text


KEPT = Lifecycle(on_parent_end="keep")


async def test_a_carved_child_is_taken_over_although_its_parent_has_overspent_everything_since(
    dialect_context: DialectContext,
) -> None:
    dialect_context.script(
        "main",
        delegates("digger", reserved=True, limits=Limits(max_tokens=6000), wait=False, lifecycle=KEPT),
        together(calls("look"), says("", usage=Usage(12_000, 500))),
    )
    dialect_context.script("digger", calls("look"))
    first = dialect_context.process(look=a_minute)
    await first.open()
    await first.retinue.spawn("dig", limits=Limits(max_tokens=10_000))
    await asyncio.sleep(1)
    await first.kill()

    async with dialect_context.process(adopt=True) as second:
        ended = await second.retinue.wait(dialect_context.run_of("main"), dialect_context.run_of("digger"))

        assert [outcome.reason for outcome in ended.values()] == ["max_tokens", "max_tokens"]


# ---- the dead -------------------------------------------------------------------------------------------------------


async def gone_process(dialect_context: DialectContext, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A process that works on a tree, and that the operating system does not know any more."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "input()", stdin=subprocess.PIPE)
    process = describe(child.pid)
    child.kill()
    await child.wait()
    with monkeypatch.context() as patch:
        patch.setattr("retinue.engine.driver.this_process", lambda: process)
        first = dialect_context.process(look=a_minute)
        await first.open()
    await first.retinue.spawn("dig")
    await asyncio.sleep(1)
    return first


async def test_a_driver_whose_process_is_gone_is_buried_at_once(
    dialect_context: DialectContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_tree(dialect_context)
    first = await gone_process(dialect_context, monkeypatch)
    began = asyncio.get_running_loop().time()

    async with dialect_context.process(adopt=True) as second:
        assert dialect_context.rows() == {
            "main": (driver_of(second), "working"),
            "digger": (driver_of(second), "working"),
        }
        assert asyncio.get_running_loop().time() == began
        assert (await second.retinue.handle(dialect_context.run_of("main")).wait()).text == "done"
        await first.kill()


async def test_a_driver_that_beats_is_left_alone(dialect_context: DialectContext) -> None:
    a_tree(dialect_context)
    async with (
        dialect_context.process(look=lambda: asyncio.sleep(20 * LEASE)) as first,
        dialect_context.process(adopt=True),
    ):
        handle = await first.retinue.spawn("dig")

        assert (await handle.wait()).text == "done"
        assert [event for event in dialect_context.events("main") if isinstance(event, RunAdopted)] == []


async def test_a_driver_whose_counter_stands_still_for_a_lease_is_buried_by_the_watchers_own_clock(
    dialect_context: DialectContext,
) -> None:
    a_tree(dialect_context)
    first = dialect_context.process(look=an_hour)
    await first.open()
    stop_the_heart(first)
    await first.retinue.spawn("dig")
    await asyncio.sleep(50)

    async with dialect_context.process(adopt=True) as second:
        await asyncio.sleep(LEASE - 0.1)
        assert dialect_context.rows()["main"][0] == driver_of(first), "nobody has watched it for a whole lease"
        await until(lambda: dialect_context.rows()["main"][0] == driver_of(second), within=LEASE + 1)

        assert (await second.retinue.handle(dialect_context.run_of("main")).wait()).text == "done"
        await first.kill()


async def test_a_driver_whose_heart_stops_later_is_buried_later_and_leaves_quietly(
    dialect_context: DialectContext, caplog: pytest.LogCaptureFixture
) -> None:
    a_tree(dialect_context)
    async with dialect_context.process(look=an_hour) as first, dialect_context.process(adopt=True) as second:
        buried = driver_of(first)
        await first.retinue.spawn("dig")
        await asyncio.sleep(10 * LEASE)
        assert dialect_context.rows()["main"][0] == driver_of(first)

        stop_the_heart(first)

        await until(lambda: dialect_context.rows()["main"][0] == driver_of(second), within=2 * LEASE + 1)
        assert (await second.retinue.handle(dialect_context.run_of("main")).wait()).text == "done"
    assert f"driver {buried} was declared dead" in caplog.text


async def test_a_heart_goes_on_beating_whatever_happens_in_it(
    dialect_context: DialectContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = dialect_context.another_store()
    async with dialect_context.process(store=store) as harness:
        commit = store.commit

        def buggy(driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False) -> list[Written]:
            monkeypatch.setattr(store, "commit", commit)
            raise ZeroDivisionError

        monkeypatch.setattr(store, "commit", buggy)
        await asyncio.sleep(LEASE * 2 + 1)

        assert [(row.driver_id, row.beat) for row in dialect_context.store.drivers()] == [(driver_of(harness), 5)]
    assert "ZeroDivisionError" in caplog.text


async def test_a_buried_driver_gets_no_write_accepted_for_parent_or_child_and_says_so(
    dialect_context: DialectContext,
) -> None:
    a_tree(dialect_context)
    first = dialect_context.process(look=a_minute)
    await first.open()
    stop_the_heart(first)
    handle = await first.retinue.spawn("dig")
    waiting = asyncio.create_task(handle.wait())
    watching = asyncio.create_task(collect(handle.events()))
    await asyncio.sleep(1)

    async with dialect_context.process(adopt=True) as second:
        await second.retinue.handle(dialect_context.run_of("main")).wait()
        logs = dialect_context.events("main"), dialect_context.events("digger")
        assert not waiting.done(), "it has no reason to write yet, so it does not know"
        await asyncio.sleep(60)  # its tool comes back, and it tries to write that

        for task in (waiting, watching):
            with pytest.raises(Fenced, match=driver_of(first)):
                await task
        with pytest.raises(Fenced):
            await first.run("again")
        with pytest.raises(Fenced):
            await handle.cancel()
        assert (await handle.wait()).text == "done", "what the store knows can still be read"
        assert (await handle.look()).state == "ended"
        assert (dialect_context.events("main"), dialect_context.events("digger")) == logs
        await asyncio.sleep(1000)
        assert (dialect_context.events("main"), dialect_context.events("digger")) == logs
        await first.close()
        assert (dialect_context.events("main"), dialect_context.events("digger")) == logs


async def collect(events: AsyncIterator[Event | Delta]) -> list[Event | Delta]:
    return [event async for event in events]


async def test_whoever_asks_a_buried_driver_for_a_run_that_goes_on_elsewhere_is_not_left_waiting(
    dialect_context: DialectContext,
) -> None:
    a_tree(dialect_context)
    first = dialect_context.process(look=a_minute)
    await first.open()
    stop_the_heart(first)
    handle = await first.retinue.spawn("dig")
    await asyncio.sleep(1)
    async with dialect_context.process(look=an_hour, adopt=True) as second:
        await until(lambda: dialect_context.rows()["main"][0] == driver_of(second), within=2 * LEASE)
        with pytest.raises(Fenced):
            await handle.send("hello")

        with pytest.raises(Fenced):
            await handle.wait()
        with pytest.raises(Fenced):
            await handle.answer(1)
        assert (await handle.look()).state == "working", "as the store has it: somebody else drives it"
        assert {view.state for view in await first.retinue.list(everyone=True)} == {"working", "waiting"}
        await first.close()
        await second.retinue.handle(handle.run_id).wait()


# ---- from another process -------------------------------------------------------------------------------------------


async def test_words_from_another_process_are_read_at_the_next_turn(dialect_context: DialectContext) -> None:
    dialect_context.script("main", calls("look"), calls("look"), says("done"))
    async with dialect_context.process(look=lambda: asyncio.sleep(1)) as owner, dialect_context.process() as other:
        handle = await owner.retinue.spawn("look")
        await asyncio.sleep(0.1)

        await other.retinue.send(handle.run_id, "look left", key="k")
        await other.retinue.send(handle.run_id, "look left", key="k")
        await handle.wait()

        taken = [event.items for event in dialect_context.events("main") if isinstance(event, MailTaken)]
        assert [[getattr(item, "text", "") for item in items] for items in taken] == [["look left"]]
        with pytest.raises(RunIsOver):
            await other.retinue.send(handle.run_id, "too late")


async def test_an_idle_run_hears_another_process_within_a_second(dialect_context: DialectContext) -> None:
    dialect_context.script("main", says("hello"), says("I am fine"))
    async with dialect_context.process() as owner, dialect_context.process() as other:
        handle = await owner.retinue.spawn("hi", keep_alive=True)
        await handle.answer(1)
        await asyncio.sleep(100.1)
        began = asyncio.get_running_loop().time()

        await other.retinue.send(handle.run_id, "how are you?")

        assert (await handle.answer(2)).text == "I am fine"
        assert asyncio.get_running_loop().time() - began <= 1
        await handle.close()


async def test_a_cancel_from_another_process_stops_the_whole_tree_within_a_second(
    dialect_context: DialectContext,
) -> None:
    a_tree(dialect_context)
    async with dialect_context.process(look=a_minute) as owner, dialect_context.process() as other:
        handle = await owner.retinue.spawn("dig")
        await asyncio.sleep(5.1)
        began = asyncio.get_running_loop().time()

        concerned = await other.retinue.cancel(handle.run_id, note="not needed any more")
        outcome = await handle.wait()

        assert asyncio.get_running_loop().time() - began <= 1
        assert set(concerned) == {dialect_context.run_of("main"), dialect_context.run_of("digger")}
        assert (outcome.result, outcome.error) == ("cancelled", "not needed any more")
        await until(lambda: dialect_context.rows()["digger"][1] == "ended", within=1)


async def test_an_approval_from_another_process_lets_the_call_go_on_within_a_second(
    dialect_context: DialectContext,
) -> None:
    @retinue.tool
    async def press() -> str:
        """Press the button."""
        return "pressed"

    dialect_context.script("main", calls("press"), says("done"))
    asking = retinue.Policy(always_ask=("press",))
    async with (
        dialect_context.process(tools=[press], policy=asking, approvals="wait") as owner,
        dialect_context.process(tools=[press]) as other,
    ):
        handle = await owner.retinue.spawn("press it")
        await asyncio.sleep(1000.1)
        assert (await other.retinue.handle(handle.run_id).look()).waiting_for == "approval"
        (question,) = await other.retinue.approvals()
        began = asyncio.get_running_loop().time()

        await other.retinue.approve(question.id)
        await other.retinue.approve(question)

        assert (await handle.wait()).text == "done"
        assert asyncio.get_running_loop().time() - began <= 1
        assert owner.results("main") == ["pressed"]
        assert await other.retinue.approvals() == []


async def test_another_process_can_wait_for_a_run_and_sees_where_it_stands(dialect_context: DialectContext) -> None:
    a_tree(dialect_context)
    async with dialect_context.process(look=a_minute) as owner, dialect_context.process() as other:
        handle = await owner.retinue.spawn("dig")
        waiting = asyncio.create_task(other.retinue.handle(handle.run_id).wait())
        await asyncio.sleep(1)
        views = {view.agent: (view.state, view.waiting_for) for view in await other.retinue.list(everyone=True)}
        assert views == {"main": ("waiting", "child"), "digger": ("working", None)}

        ended = await handle.wait()
        began = asyncio.get_running_loop().time()

        assert await waiting == ended
        assert asyncio.get_running_loop().time() - began <= 1


class ForgetfulReader:
    """A store that cannot be read once, just when there is mail."""

    def __init__(self, inner: SqliteStore) -> None:
        self.inner = inner
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def inbox_for(self, driver_id: DriverId) -> list[tuple[RunId, Item]]:
        if (inbox := self.inner.inbox_for(driver_id)) and not self.failed:
            self.failed += 1
            raise StoreUnavailable("disk I/O error")
        return inbox


async def test_mail_that_could_not_be_read_the_first_time_is_read_the_second(dialect_context: DialectContext) -> None:
    dialect_context.script("main", calls("look"))
    store: Any = ForgetfulReader(dialect_context.another_store())
    async with dialect_context.process(look=a_minute, store=store) as owner:
        handle = await owner.retinue.spawn("look")
        await asyncio.sleep(1.1)  # between two looks for mail

        async with dialect_context.process() as other:
            await other.retinue.cancel(handle.run_id)
        outcome = await handle.wait(timeout=1)

        assert (outcome.result, store.failed) == ("cancelled", 1)


# ---- a full disk ----------------------------------------------------------------------------------------------------


class FullDisk:
    """A store on a disk that is full for a while; `before` is told of each write that it accepts."""

    def __init__(self, inner: SqliteStore) -> None:
        self.inner = inner
        self.full = False
        self.refused = 0
        self.accepted: Callable[[Sequence[Write]], None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False) -> list[Written]:
        if self.full:
            self.refused += 1
            raise StoreUnavailable("no space left on device")
        answers = self.inner.commit(driver_id, writes, durable=durable)
        if self.accepted is not None:
            self.accepted(writes)
        return answers


@pytest.mark.parametrize("threaded", [False, True], ids=["at once", "in a thread"])
async def test_a_full_disk_stops_runs_where_they_are_and_they_go_on_by_themselves_when_there_is_room(
    dialect_context: DialectContext, threaded: bool
) -> None:
    a_tree(dialect_context)
    disk: Any = FullDisk(dialect_context.another_store(threaded=threaded))
    async with dialect_context.process(look=lambda: asyncio.sleep(5), store=disk) as harness:
        handle = await harness.retinue.spawn("dig")
        waiting, watching = asyncio.create_task(handle.wait()), asyncio.create_task(collect(handle.events()))
        await asyncio.sleep(1)
        disk.full = True
        await asyncio.sleep(5)

        for task in (waiting, watching):
            with pytest.raises(StoreUnavailable, match="no space left on device"):
                await task
        logs = dialect_context.events("main"), dialect_context.events("digger")
        asked = list(dialect_context.provider.asked)
        for refused in (harness.run("another"), handle.send("hello"), handle.cancel(), handle.wait()):
            with pytest.raises(StoreUnavailable, match="no space left on device") as reason:
                await refused
            assert reason.value.reason == "no space left on device"
        await asyncio.sleep(100)
        assert (dialect_context.events("main"), dialect_context.events("digger")) == logs
        assert dialect_context.provider.asked == asked, "nobody works on while nothing can be kept"

        disk.full = False
        await until(lambda: harness.retinue.supervisor.engine.journal.broken is None, within=LEASE)
        outcome = await handle.wait()

        assert (outcome.text, outcome.result) == ("done", "completed")
        assert await harness.retinue.list() == [await handle.look()], "what was refused has left nothing behind"
        asked_of = [(each.agent, each.turn) for each in dialect_context.provider.asked]
        assert asked_of == [("main", 1), ("digger", 1), ("digger", 2), ("main", 2)]


async def test_a_disk_that_fills_up_again_stops_the_runs_again(dialect_context: DialectContext) -> None:
    a_tree(dialect_context)
    disk: Any = FullDisk(dialect_context.another_store())
    async with dialect_context.process(look=lambda: asyncio.sleep(5), store=disk) as harness:
        handle = await harness.retinue.spawn("dig")
        for _ in range(3):
            await asyncio.sleep(1)
            disk.full = True
            with pytest.raises(StoreUnavailable):
                await handle.wait()
            disk.full = False
            await until(lambda: harness.retinue.supervisor.engine.journal.broken is None, within=LEASE)

        assert (await handle.wait()).text == "done"


async def test_a_disk_without_room_for_more_than_a_heartbeat_is_tried_again(dialect_context: DialectContext) -> None:
    a_tree(dialect_context)
    disk: Any = FullDisk(dialect_context.another_store())
    async with dialect_context.process(look=lambda: asyncio.sleep(5), store=disk) as harness:
        handle = await harness.retinue.spawn("dig")
        await asyncio.sleep(1)
        disk.full = True
        await asyncio.sleep(20)

        def full_again(writes: Sequence[Write]) -> None:
            disk.full = isinstance(writes[0], Heartbeat)
            disk.accepted = None

        disk.accepted, disk.full = full_again, False
        await until(lambda: disk.full, within=LEASE)
        await asyncio.sleep(20)
        assert dialect_context.rows()["main"][1] == "working"
        disk.full = False
        await until(lambda: harness.retinue.supervisor.engine.journal.broken is None, within=LEASE)

        assert (await handle.wait()).text == "done"


async def test_a_run_that_is_started_in_the_moment_of_recovery_is_driven_once(dialect_context: DialectContext) -> None:
    a_tree(dialect_context)
    dialect_context.script("quick", calls("look"), says("quick"))
    disk: Any = FullDisk(dialect_context.another_store())
    quick = retinue.Agent(name="quick", tools=("look",))
    async with dialect_context.process(look=lambda: asyncio.sleep(5), store=disk, agents=[quick]) as harness:
        handle = await harness.retinue.spawn("dig")
        await asyncio.sleep(1)
        disk.full = True
        await asyncio.sleep(20)
        started: list[asyncio.Task[retinue.Outcome]] = []

        def there_is_room(writes: Sequence[Write]) -> None:
            disk.accepted = None
            started.append(asyncio.get_running_loop().create_task(harness.run("now", agent="quick")))

        disk.accepted, disk.full = there_is_room, False
        await until(lambda: bool(started), within=LEASE)

        assert ((await started[0]).text, (await handle.wait()).text) == ("quick", "done")
        assert not any(isinstance(event, RunAdopted) for event in dialect_context.events("quick"))
        (before,) = dialect_context.store.drivers()
        await asyncio.sleep(LEASE)
        (after,) = dialect_context.store.drivers()
        assert (after.beat - before.beat, harness.retinue.supervisor.engine.journal.broken) == (3, None)


class UnreadableOnce(FullDisk):
    """A store that can be written again before it can be read."""

    unreadable = False

    def runs(self, query: RunQuery) -> list[Any]:
        if self.unreadable:
            raise StoreUnavailable("disk I/O error")
        return self.inner.runs(query)


async def test_runs_that_could_not_be_read_when_the_disk_had_room_go_on_a_little_later(
    dialect_context: DialectContext,
) -> None:
    a_tree(dialect_context)
    disk: Any = UnreadableOnce(dialect_context.another_store())
    async with dialect_context.process(look=lambda: asyncio.sleep(5), store=disk) as harness:
        handle = await harness.retinue.spawn("dig")
        await asyncio.sleep(1)
        disk.full = True
        await asyncio.sleep(20)
        disk.full, disk.unreadable = False, True
        await asyncio.sleep(20)
        disk.unreadable = False

        assert (await handle.wait(timeout=20)).text == "done"


async def test_a_store_that_refuses_the_first_write_is_an_error_of_opening(dialect_context: DialectContext) -> None:
    disk: Any = FullDisk(dialect_context.another_store())
    disk.full = True

    with pytest.raises(StoreError, match="no space left on device"):
        async with dialect_context.process(store=disk):
            pass
