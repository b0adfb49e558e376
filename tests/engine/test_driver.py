"""Drivers: heartbeats, watching other drivers, adoption, and inbox items from other processes."""

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
from retinue.core.commands import DriverRow, Heartbeat, RunQuery, Write, WriteResult
from retinue.core.errors import Fenced, NotAdoptable, RunIsOver, StoreError, StoreUnavailable
from retinue.core.events import Event, MailTaken, RunAdopted
from retinue.core.ids import DriverId, RunId
from retinue.core.inbox import Item
from retinue.core.messages import Delta
from retinue.core.ports import Store
from retinue.core.run import Lifecycle, Limits
from retinue.core.usage import Usage
from retinue.engine.driver_table import identity_of, this_host, this_process
from retinue.providers.scripted import Script, ScriptedProvider, calls, hangs, says, together
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness
from tests.engine.delegation import Delegate, delegates
from tests.internals import engine_of

LEASE = 10.0


class Process(Harness):
    """A retinue that stands for a process; unused lines of its script are left for the next one."""

    async def __aexit__(self, *_: object) -> None:
        if self._retinue is not None:
            await self.close()


class Host:
    """Several retinues on one file, as if each were a process; all their models play the same script."""

    def __init__(self, path: Path) -> None:
        self.provider = ScriptedProvider(Script())
        self.path = path
        self.stores: list[SqliteStore] = []
        self.store = self.another_store()
        """For reading from outside."""

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
        """A process whose tool `look` awaits the function `look`."""

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
        """Driver and phase of each run, by agent."""
        return {row.agent: (row.driver_id, row.progress.phase) for row in self.store.runs(RunQuery())}

    def run_of(self, agent: str) -> RunId:
        (row,) = [row for row in self.store.runs(RunQuery()) if row.agent == agent]
        return row.run_id

    def events(self, agent: str) -> list[Event]:
        return [event for _, event in self.store.events(self.run_of(agent))]


@pytest.fixture
def host(tmp_path: Path) -> Generator[Host]:
    with closing(Host(tmp_path / "r.db")) as host:
        yield host


def driver_of(harness: Harness) -> DriverId:
    driver_id = harness.retinue.supervisor.driver_id
    assert driver_id is not None
    return driver_id


def stop_heartbeat(process: Harness) -> None:
    """Stop the heartbeat of a process, as on a machine that is suspended and resumed."""
    for heart in process.retinue.driver._tasks:
        heart.cancel()


async def until(condition: Callable[[], bool], *, within: float) -> float:
    """Wait in virtual time until `condition` holds; returns the seconds that took."""
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


def a_tree(host: Host) -> None:
    """`main` delegates to `digger`, which calls `look`."""
    host.script("main", delegates("digger", lifecycle=Lifecycle(awaited=True)), says("done"))
    host.script("digger", together(says("Let me look."), calls("look")), says("gold"))


# ---- register and leave ---------------------------------------------------------------------------------------------


async def test_an_open_driver_is_listed_and_its_heartbeat_grows(host: Host) -> None:
    async with host.process() as harness:
        me = DriverRow(driver_id=driver_of(harness), host=this_host(), process=this_process())
        assert host.store.drivers() == [me]

        await asyncio.sleep(LEASE * 2 + 1)

        assert host.store.drivers() == [replace(me, beat=6)], "three beats in every lease"
    assert host.store.drivers() == []


async def test_an_unshared_store_needs_no_heartbeat(host: Host) -> None:
    store = MemoryStore()
    async with host.process(store=store) as harness:
        await asyncio.sleep(1000)

        assert [(row.driver_id, row.beat) for row in store.drivers()] == [(driver_of(harness), 0)]


async def test_a_clean_shutdown_releases_unfinished_runs_for_adoption(
    host: Host,
) -> None:
    a_tree(host)
    async with host.process(look=a_minute) as first:
        await first.retinue.spawn("dig")
        await asyncio.sleep(1)
    assert host.rows() == {"main": (None, "working"), "digger": (None, "working")}

    async with host.process() as second:
        handle = await second.retinue.resume(host.run_of("main"))

        assert (await handle.wait()).text == "done"


async def test_a_waiter_gets_an_error_when_the_retinue_is_closed(host: Host) -> None:
    host.script("main", calls("look"))
    harness = host.process(look=a_minute)
    await harness.open()
    handle = await harness.retinue.spawn("look")
    waiting = asyncio.create_task(handle.wait())
    await asyncio.sleep(1)

    await harness.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        await waiting
    with pytest.raises(StoreUnavailable, match="closed"):
        await handle.cancel()
    assert host.rows() == {"main": (None, "working")}


# ---- reading --------------------------------------------------------------------------------------------------------


async def interrupted_tree(host: Host) -> None:
    """A tree whose process was killed during a call of the child."""
    a_tree(host)
    harness = host.process(look=a_minute)
    await harness.open()
    await harness.retinue.spawn("dig")
    await asyncio.sleep(1)
    await harness.kill()


async def test_reading_interrupted_runs_starts_nothing(host: Host) -> None:
    await interrupted_tree(host)
    before = (
        host.rows(),
        host.events("main"),
        host.events("digger"),
        list(host.provider.asked),
    )
    async with host.process() as second:
        r = second.retinue
        root = host.run_of("main")

        assert {view.agent: view.state for view in await r.list(everyone=True)} == {
            "main": "interrupted",
            "digger": "interrupted",
        }
        assert len(await r.tree(root)) == 2
        assert (await r.handle(root).look()).state == "interrupted"
        assert await r.approvals() == []
        assert [event async for event in r.events(root)] == host.events("main")
        with pytest.raises(TimeoutError):
            await r.handle(root).wait(timeout=1000)

        assert (
            host.rows(),
            host.events("main"),
            host.events("digger"),
            host.provider.asked,
        ) == before
        assert host.rows() == {"main": (None, "working"), "digger": (None, "working")}


async def test_an_interrupted_run_shows_its_progress_and_text(
    host: Host,
) -> None:
    await interrupted_tree(host)
    async with host.process() as second:
        view = await second.retinue.handle(host.run_of("digger")).look()
        run = await second.retinue.supervisor.replay(view.run_id)

        assert (view.state, view.turns, view.outcome, view.ended_at) == ("interrupted", 1, None, None)
        assert view.usage == run.usage != Usage()
        assert (run.text, run.outcome) == ("Let me look.", None)


async def test_runs_of_a_dead_process_are_interrupted_before_it_is_declared_dead(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_tree(host)
    first = await gone_process(host, monkeypatch)
    async with host.process() as second:
        assert {view.state for view in await second.retinue.list(everyone=True)} == {"interrupted"}
        assert (await second.retinue.handle(host.run_of("main")).look()).state == "interrupted"
        assert host.rows()["main"][0] == driver_of(first), "a look declares no driver dead"
        await first.kill()


# ---- adoption -------------------------------------------------------------------------------------------------------


async def test_a_process_adopts_only_when_asked_to(host: Host) -> None:
    await interrupted_tree(host)
    async with host.process():
        await asyncio.sleep(10 * LEASE)
        assert host.rows()["main"] == (None, "working")

    async with host.process(adopt=True) as third:
        assert (await third.retinue.handle(host.run_of("main")).wait()).text == "done"
        assert [event.driver_id for event in host.events("main") if isinstance(event, RunAdopted)] == [driver_of(third)]


async def test_an_adopted_run_continues_and_repeats_no_model_call(host: Host) -> None:
    await interrupted_tree(host)
    async with host.process(adopt=True) as second:
        await second.retinue.handle(host.run_of("main")).wait()

    asked = [(each.agent, each.turn) for each in host.provider.asked]
    assert asked == [("main", 1), ("digger", 1), ("digger", 2), ("main", 2)]


async def test_a_run_that_is_given_twice_for_adoption_is_driven_once(host: Host) -> None:
    await interrupted_tree(host)
    async with host.process() as second:
        rows = host.store.runs(RunQuery(unfinished_only=True))
        adopted = await second.retinue.driver.adopt_runs([*rows, *rows])
        assert (await second.retinue.handle(host.run_of("main")).wait()).text == "done"

    assert sorted(adopted) == sorted(row.run_id for row in rows)
    assert sum(isinstance(event, RunAdopted) for event in host.events("main")) == 1
    asked = [(each.agent, each.turn) for each in host.provider.asked]
    assert asked == [("main", 1), ("digger", 1), ("digger", 2), ("main", 2)]


async def test_one_tree_is_resumed_and_the_others_stay_interrupted(host: Host) -> None:
    host.script("main", calls("look"), says("done"))
    first = host.process(look=a_minute)
    await first.open()
    one, other = [(await first.retinue.spawn(task)).run_id for task in ("one", "other")]
    await asyncio.sleep(1)
    await first.kill()

    async with host.process() as second:
        resumed = await second.retinue.resume(one)

        assert (await resumed.wait()).text == "done"
        assert (await second.retinue.handle(other).look()).state == "interrupted"
        assert (await (await second.retinue.resume(one)).wait()).text == "done", "one that is over is simply returned"


async def test_resuming_any_run_of_a_tree_resumes_the_whole_tree(host: Host) -> None:
    await interrupted_tree(host)
    async with host.process() as second:
        await second.retinue.resume(host.run_of("digger"))

        assert (await second.retinue.handle(host.run_of("main")).wait()).text == "done"


async def test_a_run_that_another_process_drives_cannot_be_resumed(host: Host) -> None:
    host.script("main", calls("look"))
    async with host.process(look=a_minute) as first, host.process() as second:
        handle = await first.retinue.spawn("look")
        await asyncio.sleep(1)

        with pytest.raises(NotAdoptable, match="another process is driving it"):
            await second.retinue.resume(handle.run_id)


@pytest.mark.parametrize("who", ["main", "digger"])
async def test_a_tree_is_not_adopted_when_a_tool_of_one_of_its_runs_is_missing(host: Host, who: str) -> None:
    @retinue.tool(kind="pure")
    async def probe() -> str:
        """Probe."""
        return "probed"

    host.script("main", delegates("digger", tools=("probe",) if who == "digger" else ("look",)))
    host.script("digger", hangs())
    first = host.process(tools=[probe])
    await first.open()
    await first.retinue.spawn("dig", tools=["delegate", "probe"] if who == "main" else ["delegate"], ceiling=False)
    await asyncio.sleep(1)
    await first.kill()

    async with host.process(adopt=True) as second:
        assert host.rows() == {"main": (None, "working"), "digger": (None, "queued")}
        with pytest.raises(NotAdoptable) as refused:
            await second.retinue.resume(host.run_of("main"))

        assert (refused.value.run_id, refused.value.reason) == (host.run_of(who), "no tool named probe here")
        assert host.rows() == {"main": (None, "working"), "digger": (None, "queued")}, "whole or not at all"


async def test_a_tree_is_not_adopted_when_its_provider_is_missing(host: Host) -> None:
    await interrupted_tree(host)
    async with host.process(model="elsewhere:m") as second:
        with pytest.raises(NotAdoptable, match="no provider named 'custom' here"):
            await second.retinue.resume(host.run_of("main"))

        assert host.rows()["main"] == (None, "working")


async def test_an_unadoptable_tree_does_not_prevent_other_adoptions(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.script("main", calls("look"), says("done"))
    host.script("special", calls("probe"))

    @retinue.tool(kind="pure")
    async def probe() -> str:
        """Probe."""
        await a_minute()
        return "probed"

    first = host.process(look=a_minute, tools=[probe], agents=[retinue.Agent(name="special", tools=("probe",))])
    await first.open()
    await first.retinue.spawn("special task", agent="special")
    await first.retinue.spawn("look", tools=["look"])
    await asyncio.sleep(1)
    await first.kill()

    async with host.process(adopt=True) as second:
        assert (await second.retinue.handle(host.run_of("main")).wait()).text == "done"
        assert host.rows()["special"] == (None, "working")
    assert "no tool named probe here" in caplog.text


KEPT = Lifecycle(on_parent_end="keep")


async def test_a_reserved_child_is_adopted_although_its_parent_has_overspent(
    host: Host,
) -> None:
    host.script(
        "main",
        delegates("digger", reserved=True, limits=Limits(max_tokens=6000), wait=False, lifecycle=KEPT),
        together(calls("look"), says("", usage=Usage(12_000, 500))),
    )
    host.script("digger", calls("look"))
    first = host.process(look=a_minute)
    await first.open()
    await first.retinue.spawn("dig", limits=Limits(max_tokens=10_000))
    await asyncio.sleep(1)
    await first.kill()

    async with host.process(adopt=True) as second:
        ended = await second.retinue.wait(host.run_of("main"), host.run_of("digger"))

        assert [outcome.reason for outcome in ended.values()] == ["max_tokens", "max_tokens"]


# ---- dead drivers ---------------------------------------------------------------------------------------------------


async def gone_process(host: Host, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A process that drives a tree, and that does not exist any more for the operating system."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "input()", stdin=subprocess.PIPE)
    process = identity_of(child.pid)
    child.kill()
    await child.wait()
    with monkeypatch.context() as patch:
        patch.setattr("retinue.engine.driver.this_process", lambda: process)
        first = host.process(look=a_minute)
        await first.open()
    await first.retinue.spawn("dig")
    await asyncio.sleep(1)
    return first


async def test_a_driver_whose_process_is_gone_is_declared_dead_at_once(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_tree(host)
    first = await gone_process(host, monkeypatch)
    began = asyncio.get_running_loop().time()

    async with host.process(adopt=True) as second:
        assert host.rows() == {
            "main": (driver_of(second), "working"),
            "digger": (driver_of(second), "working"),
        }
        assert asyncio.get_running_loop().time() == began
        assert (await second.retinue.handle(host.run_of("main")).wait()).text == "done"
        await first.kill()


async def test_a_driver_with_a_heartbeat_is_not_declared_dead(host: Host) -> None:
    a_tree(host)
    async with (
        host.process(look=lambda: asyncio.sleep(20 * LEASE)) as first,
        host.process(adopt=True),
    ):
        handle = await first.retinue.spawn("dig")

        assert (await handle.wait()).text == "done"
        assert [event for event in host.events("main") if isinstance(event, RunAdopted)] == []


async def test_a_driver_without_a_heartbeat_for_a_lease_is_declared_dead(
    host: Host,
) -> None:
    a_tree(host)
    first = host.process(look=an_hour)
    await first.open()
    stop_heartbeat(first)
    await first.retinue.spawn("dig")
    await asyncio.sleep(50)

    async with host.process(adopt=True) as second:
        await asyncio.sleep(LEASE - 0.1)
        assert host.rows()["main"][0] == driver_of(first), "it was not watched for a whole lease"
        await until(lambda: host.rows()["main"][0] == driver_of(second), within=LEASE + 1)

        assert (await second.retinue.handle(host.run_of("main")).wait()).text == "done"
        await first.kill()


async def test_a_driver_that_stops_later_is_declared_dead_later_and_leaves_quietly(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    a_tree(host)
    async with host.process(look=an_hour) as first, host.process(adopt=True) as second:
        buried = driver_of(first)
        await first.retinue.spawn("dig")
        await asyncio.sleep(10 * LEASE)
        assert host.rows()["main"][0] == driver_of(first)

        stop_heartbeat(first)

        await until(lambda: host.rows()["main"][0] == driver_of(second), within=2 * LEASE + 1)
        assert (await second.retinue.handle(host.run_of("main")).wait()).text == "done"
    assert f"driver {buried} was declared dead" in caplog.text


async def test_the_heartbeat_continues_after_errors(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = host.another_store()
    async with host.process(store=store) as harness:
        commit = store.commit

        def buggy(driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False) -> list[WriteResult]:
            monkeypatch.setattr(store, "commit", commit)
            raise ZeroDivisionError

        monkeypatch.setattr(store, "commit", buggy)
        await asyncio.sleep(LEASE * 2 + 1)

        assert [(row.driver_id, row.beat) for row in host.store.drivers()] == [(driver_of(harness), 5)]
    assert "ZeroDivisionError" in caplog.text


async def test_a_fenced_driver_cannot_write_and_reports_it(
    host: Host,
) -> None:
    a_tree(host)
    first = host.process(look=a_minute)
    await first.open()
    stop_heartbeat(first)
    handle = await first.retinue.spawn("dig")
    waiting = asyncio.create_task(handle.wait())
    watching = asyncio.create_task(collect(handle.events()))
    await asyncio.sleep(1)

    async with host.process(adopt=True) as second:
        await second.retinue.handle(host.run_of("main")).wait()
        logs = host.events("main"), host.events("digger")
        assert not waiting.done(), "it has no reason to write yet, so it does not know"
        await asyncio.sleep(60)  # its tool returns, and it tries to record that

        for task in (waiting, watching):
            with pytest.raises(Fenced, match=driver_of(first)):
                await task
        with pytest.raises(Fenced):
            await first.run("again")
        with pytest.raises(Fenced):
            await handle.cancel()
        assert (await handle.wait()).text == "done", "what the store knows can still be read"
        assert (await handle.look()).state == "ended"
        assert (host.events("main"), host.events("digger")) == logs
        await asyncio.sleep(1000)
        assert (host.events("main"), host.events("digger")) == logs
        await first.close()
        assert (host.events("main"), host.events("digger")) == logs


async def collect(events: AsyncIterator[Event | Delta]) -> list[Event | Delta]:
    return [event async for event in events]


async def test_a_fenced_driver_does_not_keep_callers_waiting(
    host: Host,
) -> None:
    a_tree(host)
    first = host.process(look=a_minute)
    await first.open()
    stop_heartbeat(first)
    handle = await first.retinue.spawn("dig")
    await asyncio.sleep(1)
    async with host.process(look=an_hour, adopt=True) as second:
        await until(lambda: host.rows()["main"][0] == driver_of(second), within=2 * LEASE)
        with pytest.raises(Fenced):
            await handle.send("hello")

        with pytest.raises(Fenced):
            await handle.wait()
        with pytest.raises(Fenced):
            await handle.answer(1)
        assert (await handle.look()).state == "waiting", "as stored: another process drives it, and its child"
        assert {view.state for view in await first.retinue.list(everyone=True)} == {"working", "waiting"}
        await first.close()
        await second.retinue.handle(handle.run_id).wait()


# ---- from another process -------------------------------------------------------------------------------------------


async def test_a_message_from_another_process_is_read_at_the_next_turn(host: Host) -> None:
    host.script("main", calls("look"), calls("look"), says("done"))
    async with host.process(look=lambda: asyncio.sleep(1)) as owner, host.process() as other:
        handle = await owner.retinue.spawn("look")
        await asyncio.sleep(0.1)

        await other.retinue.send(handle.run_id, "look left", key="k")
        await other.retinue.send(handle.run_id, "look left", key="k")
        await handle.wait()

        taken = [event.items for event in host.events("main") if isinstance(event, MailTaken)]
        assert [[getattr(item, "text", "") for item in items] for items in taken] == [["look left"]]
        with pytest.raises(RunIsOver):
            await other.retinue.send(handle.run_id, "too late")


async def test_an_idle_run_gets_input_of_another_process_within_a_second(host: Host) -> None:
    host.script("main", says("hello"), says("I am fine"))
    async with host.process() as owner, host.process() as other:
        handle = await owner.retinue.spawn("hi", keep_alive=True)
        await handle.answer(1)
        await asyncio.sleep(100.1)
        began = asyncio.get_running_loop().time()

        await other.retinue.send(handle.run_id, "how are you?")

        assert (await handle.answer(2)).text == "I am fine"
        assert asyncio.get_running_loop().time() - began <= 1
        await handle.close()


async def test_a_cancel_from_another_process_stops_the_whole_tree_within_a_second(
    host: Host,
) -> None:
    a_tree(host)
    async with host.process(look=a_minute) as owner, host.process() as other:
        handle = await owner.retinue.spawn("dig")
        await asyncio.sleep(5.1)
        began = asyncio.get_running_loop().time()

        concerned = await other.retinue.cancel(handle.run_id, note="not needed any more")
        outcome = await handle.wait()

        assert asyncio.get_running_loop().time() - began <= 1
        assert set(concerned) == {host.run_of("main"), host.run_of("digger")}
        assert (outcome.result, outcome.error) == ("cancelled", "not needed any more")
        await until(lambda: host.rows()["digger"][1] == "ended", within=1)


async def test_an_approval_from_another_process_starts_the_call_within_a_second(
    host: Host,
) -> None:
    @retinue.tool
    async def press() -> str:
        """Press the button."""
        return "pressed"

    host.script("main", calls("press"), says("done"))
    asking = retinue.Policy(always_ask=("press",))
    async with (
        host.process(tools=[press], policy=asking, approvals="wait") as owner,
        host.process(tools=[press]) as other,
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


async def test_another_process_can_wait_for_a_run_and_see_its_state(host: Host) -> None:
    a_tree(host)
    async with host.process(look=a_minute) as owner, host.process() as other:
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
    """A store whose inboxes cannot be read once."""

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


async def test_inbox_items_are_read_again_after_a_failed_read(host: Host) -> None:
    host.script("main", calls("look"))
    store: Any = ForgetfulReader(host.another_store())
    async with host.process(look=a_minute, store=store) as owner:
        handle = await owner.retinue.spawn("look")
        await asyncio.sleep(1.1)  # between two polls of the inboxes

        async with host.process() as other:
            await other.retinue.cancel(handle.run_id)
        outcome = await handle.wait(timeout=1)

        assert (outcome.result, store.failed) == ("cancelled", 1)


# ---- a full disk ----------------------------------------------------------------------------------------------------


class FullDisk:
    """A store on a disk that is full for a while; `before` is called for each accepted write."""

    def __init__(self, inner: SqliteStore) -> None:
        self.inner = inner
        self.full = False
        self.refused = 0
        self.accepted: Callable[[Sequence[Write]], None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(
        self, driver_id: DriverId | None, writes: Sequence[Write], *, durable: bool = False
    ) -> list[WriteResult]:
        if self.full:
            self.refused += 1
            raise StoreUnavailable("no space left on device")
        answers = self.inner.commit(driver_id, writes, durable=durable)
        if self.accepted is not None:
            self.accepted(writes)
        return answers


@pytest.mark.parametrize("threaded", [False, True], ids=["at once", "in a thread"])
async def test_a_full_disk_stops_runs_and_they_resume_when_there_is_room(host: Host, threaded: bool) -> None:
    a_tree(host)
    disk: Any = FullDisk(host.another_store(threaded=threaded))
    async with host.process(look=lambda: asyncio.sleep(5), store=disk) as harness:
        handle = await harness.retinue.spawn("dig")
        waiting, watching = asyncio.create_task(handle.wait()), asyncio.create_task(collect(handle.events()))
        await asyncio.sleep(1)
        disk.full = True
        await asyncio.sleep(5)

        for task in (waiting, watching):
            with pytest.raises(StoreUnavailable, match="no space left on device"):
                await task
        logs = host.events("main"), host.events("digger")
        asked = list(host.provider.asked)
        for refused in (harness.run("another"), handle.send("hello"), handle.cancel(), handle.wait()):
            with pytest.raises(StoreUnavailable, match="no space left on device") as reason:
                await refused
            assert reason.value.reason == "no space left on device"
        await asyncio.sleep(100)
        assert (host.events("main"), host.events("digger")) == logs
        assert host.provider.asked == asked, "no run continues while nothing can be stored"

        disk.full = False
        await until(lambda: engine_of(harness.retinue).journal.broken is None, within=LEASE)
        outcome = await handle.wait()

        assert (outcome.text, outcome.result) == ("done", "completed")
        assert await harness.retinue.list() == [await handle.look()], "what was refused has left nothing behind"
        asked_of = [(each.agent, each.turn) for each in host.provider.asked]
        assert asked_of == [("main", 1), ("digger", 1), ("digger", 2), ("main", 2)]


async def test_a_disk_that_fills_up_again_stops_the_runs_again(host: Host) -> None:
    a_tree(host)
    disk: Any = FullDisk(host.another_store())
    async with host.process(look=lambda: asyncio.sleep(5), store=disk) as harness:
        handle = await harness.retinue.spawn("dig")
        for _ in range(3):
            await asyncio.sleep(1)
            disk.full = True
            with pytest.raises(StoreUnavailable):
                await handle.wait()
            disk.full = False
            await until(lambda: engine_of(harness.retinue).journal.broken is None, within=LEASE)

        assert (await handle.wait()).text == "done"


async def test_a_disk_without_room_for_more_than_a_heartbeat_is_tried_again(host: Host) -> None:
    a_tree(host)
    disk: Any = FullDisk(host.another_store())
    async with host.process(look=lambda: asyncio.sleep(5), store=disk) as harness:
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
        assert host.rows()["main"][1] == "working"
        disk.full = False
        await until(lambda: engine_of(harness.retinue).journal.broken is None, within=LEASE)

        assert (await handle.wait()).text == "done"


async def test_a_run_started_during_recovery_is_driven_once(host: Host) -> None:
    a_tree(host)
    host.script("quick", calls("look"), says("quick"))
    disk: Any = FullDisk(host.another_store())
    quick = retinue.Agent(name="quick", tools=("look",))
    async with host.process(look=lambda: asyncio.sleep(5), store=disk, agents=[quick]) as harness:
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
        assert not any(isinstance(event, RunAdopted) for event in host.events("quick"))
        (before,) = host.store.drivers()
        await asyncio.sleep(LEASE)
        (after,) = host.store.drivers()
        assert (after.beat - before.beat, engine_of(harness.retinue).journal.broken) == (3, None)


class UnreadableOnce(FullDisk):
    """A store that accepts writes again before it can be read."""

    unreadable = False

    def runs(self, query: RunQuery) -> list[Any]:
        if self.unreadable:
            raise StoreUnavailable("disk I/O error")
        return self.inner.runs(query)


async def test_runs_that_could_not_be_read_at_recovery_resume_later(
    host: Host,
) -> None:
    a_tree(host)
    disk: Any = UnreadableOnce(host.another_store())
    async with host.process(look=lambda: asyncio.sleep(5), store=disk) as harness:
        handle = await harness.retinue.spawn("dig")
        await asyncio.sleep(1)
        disk.full = True
        await asyncio.sleep(20)
        disk.full, disk.unreadable = False, True
        await asyncio.sleep(20)
        disk.unreadable = False

        assert (await handle.wait(timeout=20)).text == "done"


async def test_a_store_that_refuses_the_first_write_fails_to_open(host: Host) -> None:
    disk: Any = FullDisk(host.another_store())
    disk.full = True

    with pytest.raises(StoreError, match="no space left on device"):
        async with host.process(store=disk):
            pass
