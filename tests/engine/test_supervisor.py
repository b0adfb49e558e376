"""The facade of the engine: views of live and ended runs, what is left of limits, callbacks, and drivers."""

import asyncio

import pytest

from retinue.core.agent import Agent
from retinue.core.budget import UNLIMITED, Caps
from retinue.core.commands import RunQuery
from retinue.core.errors import Fenced, TreeCancelled
from retinue.core.events import RunAccepted
from retinue.core.run import Limits, Outcome
from retinue.core.usage import Usage
from retinue.providers.scripted import Script, ScriptedProvider, calls, hangs, says, together
from retinue.testing.harness import Harness
from tests.engine.delegation import delegates, with_delegation
from tests.engine.memory_stores import SharedMemory
from tests.internals import engine_of


async def test_live_runs_have_their_state_and_ended_runs_are_views() -> None:
    r, _ = with_delegation(provider=ScriptedProvider(Script(), latency=1.0))
    async with r:
        r.script("main", delegates("dig"), hangs())
        r.script("dig", says("42"))
        root = await r.retinue.spawn("go")
        await asyncio.sleep(1.5)
        supervisor = r.retinue.supervisor
        child_id = r.run_of("dig")
        live, child = supervisor.live(root.run_id), supervisor.live(child_id)
        assert live is not None
        assert child is not None

        assert [each.run_id for each in supervisor.live_runs()] == [root.run_id, child_id]
        assert [each.run_id for each in supervisor.subtree(root.run_id)] == [root.run_id, child_id]
        assert [each.run_id for each in supervisor.subtree(child_id)] == [child_id]
        assert (list(live.children), list(live.in_flight), live.cancelled, live.inbox) == ([child_id], [0], False, [])
        assert (live.run.run_spec.agent, live.is_pending, child.partial) == ("main", False, [])
        assert live.view() == await supervisor.look(root.run_id)
        assert supervisor.ended(child_id) is None

        await supervisor.wait([child_id])
        ended = supervisor.ended(child_id)
        assert ended is not None
        assert ended == await supervisor.look(child_id)
        assert (ended.state, ended.outcome and ended.outcome.text) == ("ended", "42")
        assert supervisor.live(child_id) is None
        assert supervisor.ended_in(root.run_id, "") == {child_id: ended}
        await asyncio.sleep(2)
        await root.cancel()
        await root.wait()
        assert [view.run_id for view in supervisor.recent_ends()] == [root.run_id, child_id]


async def test_left_excludes_the_call_in_flight_and_unspent_includes_it() -> None:
    async with Harness(dialects=(), provider=ScriptedProvider(Script(), latency=1.0)) as r:
        r.script("main", together(calls("nothing"), says("", usage=Usage(10, 5))), hangs())
        limited = await r.retinue.spawn("go", limits=Limits(max_tokens=1000))
        r.script("main", hangs(), task="free")
        free = await r.retinue.spawn("free")
        await asyncio.sleep(2.5)
        supervisor = r.retinue.supervisor
        left = supervisor.left(limited.run_id).tokens

        assert supervisor.unspent(limited.run_id) == Caps(tokens=985)
        assert left is not None
        assert left < 985
        assert supervisor.left(free.run_id) == supervisor.unspent(free.run_id) == UNLIMITED
        assert not supervisor.counts_actions(limited.run_id)


async def test_callbacks_are_called_when_a_run_ends_and_when_the_process_leaves() -> None:
    happened: list[object] = []

    async def left() -> None:
        happened.append("left")

    def ended(accepted: RunAccepted, outcome: Outcome) -> None:
        happened.append((accepted.task, outcome.text))

    r = Harness(dialects=())
    r.script("main", says("done"))
    await r.open()
    supervisor = r.retinue.supervisor
    supervisor.on_end(ended)
    supervisor.on_leave(left)
    await r.run("go")
    await r.close()

    assert happened == [("go", "done"), "left"]


async def test_a_background_task_is_cancelled_when_the_process_leaves() -> None:
    happened: list[str] = []

    async def wait(seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            happened.append("done")
        except asyncio.CancelledError:
            happened.append("cancelled")
            raise

    async with Harness(dialects=()) as r:
        r.retinue.supervisor.start_background(wait(1))
        r.retinue.supervisor.start_background(wait(100))
        await asyncio.sleep(2)
        assert happened == ["done"]

    assert happened == ["done", "cancelled"]


async def test_an_action_of_a_run_that_is_not_live_is_refused() -> None:
    async with Harness(dialects=()) as r:
        with pytest.raises(TreeCancelled):
            await r.retinue.supervisor.take_action("nowhere")


async def test_a_driver_that_is_declared_dead_is_fenced_and_drives_nothing() -> None:
    store = SharedMemory()
    first, second = Harness(store=store, dialects=()), Harness(store=store, dialects=())
    await first.open()
    await second.open()
    first.script("main", hangs())
    run = await first.retinue.spawn("go")
    mine, drivers = first.retinue.supervisor, second.retinue.supervisor.drivers
    assert mine.driver_id is not None
    row = await drivers.find(mine.driver_id)
    assert row is not None
    assert await drivers.living() == {mine.driver_id, second.retinue.supervisor.driver_id}

    assert not await drivers.declare_dead(mine.driver_id, beat=row.beat + 1), "it has moved on since"
    assert not mine.is_fenced
    assert await drivers.declare_dead(mine.driver_id, beat=row.beat)
    with pytest.raises(Fenced):
        await mine.open_session("another")

    assert mine.is_fenced
    assert mine.live(run.run_id) is None
    assert await drivers.living() == {second.retinue.supervisor.driver_id}
    assert [view.state for view in await second.retinue.list()] == ["interrupted"]
    await first.close()
    await second.close()


async def test_closing_twice_closes_once() -> None:
    r = Harness(dialects=())
    await r.open()
    supervisor, journal = r.retinue.supervisor, engine_of(r.retinue).journal
    await r.close()
    closed = journal.broken

    await supervisor.close()

    assert closed is not None
    assert journal.broken is closed


async def test_stored_runs_include_what_is_queued() -> None:
    r, _ = with_delegation()
    async with r:
        r.script("main", says("done"))
        outcome = await r.run("go")
        stored = r.retinue.supervisor.stored
        (row,) = await stored.runs(RunQuery())

        assert (await stored.run(row.run_id), await stored.run("nowhere")) == (row, None)
        assert [event for _, event in await stored.events(row.run_id)] == r.events(row.run_id)
        assert (await stored.run_spec(row.run_spec)).agent == "main"
        assert row.progress.outcome == outcome
        assert await stored.inbox(row.run_id) == []
        assert [each.session_id for each in await stored.sessions()] == ["session"]


async def test_agents_without_end_keep_no_tools_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.engine.loop.MAX_TOOL_SETS", 2)
    agents = [Agent(name=f"dig{number}") for number in range(5)]
    async with Harness(agents=agents) as r:
        for agent in agents:
            r.script(agent.name, says("42"))
            outcome = await r.retinue.run("go", agent=agent.name)
            assert outcome.text == "42"
        kept = r.retinue.supervisor._executor._tool_sets

    assert [agent for *_, agent in kept] == ["dig3", "dig4"]
