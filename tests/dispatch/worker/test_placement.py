"""Trees that are spread over workers: placed children, their limits, mail, cancellation and ends."""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.app.handle import RunHandle
from retinue.core.commands import RunQuery, RunRow
from retinue.core.events import CallReturned, RunAccepted, RunAdopted, TreeEvent
from retinue.dispatch.worker import WorkerOptions
from retinue.providers.scripted import Script, ScriptedProvider, calls, says, together
from tests.dispatch.worker.stage import LONG, PATIENCE, RunningWorker, at, until, worker
from tests.internals import engine_of

pytestmark = [pytest.mark.real_time, LONG]

CHILDREN = 5
AGENTS = (
    retinue.Agent(name="lead", description="Leads."),
    retinue.Agent(name="digger", description="Digs.", placement="anywhere"),
    retinue.Agent(name="trainer", description="Trains.", tags=("gpu",)),
)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder for a SQLite store, or the address of a PostgreSQL store."""
    return str(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def lines(*turns: Any, children: int = CHILDREN) -> Script:
    """A lead that starts diggers in one turn and then answers."""
    first = turns[0] if turns else together(*(delegates(number) for number in range(children)))
    script = Script().play("lead", first, *(turns[1:] or (says("all done"),)))
    for number in range(children):
        script.play("digger", says(f"gold {number}"), task=f"dig {number}")
    return script.play("trainer", says("trained"))


def delegates(number: int, agent: str = "digger", **arguments: object) -> Any:
    return calls("run_agent", task=f"dig {number}", agent=agent, **arguments)


def client(place: str) -> retinue.Retinue:
    return retinue.open(provider=ScriptedProvider(Script()), agents=AGENTS, dialects=("native",), **at(place))


async def workers(
    stack: AsyncExitStack, place: str, number: int, script: Script, **options: Any
) -> list[RunningWorker]:
    """Some workers, all of which have opened the store."""
    each_options = WorkerOptions(**options)
    found = [
        await stack.enter_async_context(worker(place, script, options=each_options, agents=AGENTS))
        for _ in range(number)
    ]
    await until(lambda: all(each.reports for each in found))
    return found


def rows_of(r: retinue.Retinue) -> dict[str, RunRow]:
    """The rows of the store by the tasks of their runs."""
    store = engine_of(r).store
    rows = store.runs(RunQuery())
    return {accepted_of(r, row.run_id).task: row for row in rows}


def accepted_of(r: retinue.Retinue, run_id: str) -> RunAccepted:
    event = engine_of(r).store.events(run_id)[0][1]
    assert isinstance(event, RunAccepted)
    return event


def drivers_of(r: retinue.Retinue, run_id: str) -> list[str]:
    """The drivers that adopted a run, in their order."""
    return [event.driver_id for _, event in engine_of(r).store.events(run_id) if isinstance(event, RunAdopted)]


async def test_children_of_an_agent_that_can_be_anywhere_are_spread(place: str) -> None:
    async with AsyncExitStack() as stack, client(place) as r:
        found = await workers(stack, place, 3, lines())
        run = await r.spawn("lead them", agent="lead", detached=True)
        outcome = await run.wait(timeout=PATIENCE)

        assert (outcome.result, outcome.text) == ("completed", "all done")
        asked = Counter((one.path, one.turn) for each in found for one in each.provider.asked)
        assert set(asked.values()) == {1}, "no reply was requested twice"
        assert len(asked) == CHILDREN + 2
        rows = rows_of(r)
        assert {row.progress.phase for row in rows.values()} == {"ended"}
        for number in range(CHILDREN):
            assert len(drivers_of(r, rows[f"dig {number}"].run_id)) == 1, "it was accepted without a driver"


async def test_hundreds_of_children_are_taken_in_groups_and_each_once(place: str) -> None:
    number = 300
    shared = asyncio.Event()

    @retinue.tool(kind="pure", timeout=None)
    async def look() -> str:
        """Look when every worker has a share."""
        await shared.wait()
        return "seen"

    agents = (retinue.Agent(name="lead"), retinue.Agent(name="digger", tools=("look",), placement="anywhere"))
    script = Script().play("lead", together(*(delegates(each) for each in range(number))), says("all done"))
    script.play("digger", calls("look"), says("gold"))
    opening: dict[str, Any] = {
        "agents": agents,
        "tools": (look,),
        "options": WorkerOptions(max_runs=120),
        "dialect_settings": {"native": retinue.NativeSettings(max_running=number)},
    }
    async with AsyncExitStack() as stack, client(place) as r:
        found = [await stack.enter_async_context(worker(place, script, **opening)) for _ in range(3)]
        await until(lambda: all(each.reports for each in found))
        run = await r.spawn("lead them", agent="lead", detached=True)
        await until(lambda: all(any(one.agent == "digger" for one in each.provider.asked) for each in found))
        shared.set()
        outcome = await run.wait(timeout=PATIENCE)

        assert (outcome.result, outcome.text) == ("completed", "all done")
        asked = Counter((one.path, one.turn) for each in found for one in each.provider.asked)
        assert set(asked.values()) == {1}
        assert len(asked) == 2 * number + 2


async def read_all(r: retinue.Retinue, run: RunHandle) -> list[TreeEvent]:
    return [item async for item in r.events(run, tree=True)]


async def test_a_reader_of_a_spread_tree_has_the_events_of_all_workers(place: str) -> None:
    async with AsyncExitStack() as stack, client(place) as r:
        # None is taken for dead on a busy machine: its reader would end with it.
        opened = [worker(place, lines(), agents=AGENTS) for _ in range(3)]
        found = [await stack.enter_async_context(each) for each in opened]
        await until(lambda: all(each.reports for each in found))
        run = await r.spawn("lead them", agent="lead", detached=True)
        await until(lambda: any(one.agent == "lead" for each in found for one in each.provider.asked))
        seen = await asyncio.gather(*(read_all(each.retinue, run) for each in found))
        await run.wait(timeout=PATIENCE)
        logs = {row.run_id: engine_of(r).store.events(row.run_id) for row in rows_of(r).values()}

    assert len(logs) == CHILDREN + 1
    for items in seen:
        read = sorted((item.run, item.seq) for item in items if item.seq)
        assert read == sorted((run_id, seq) for run_id, events in logs.items() for seq, _ in events)


async def test_a_tree_reader_has_the_end_of_a_child_taken_between_two_polls(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = lines(delegates(0, agent="trainer"))
    is_held, release, seen = asyncio.Event(), asyncio.Event(), list[TreeEvent]()
    async with AsyncExitStack() as stack, client(place) as r:
        (plain,) = await workers(stack, place, 1, script)
        stored = plain.retinue.supervisor.stored
        lengths_of = stored.log_lengths

        async def held(root_id: str) -> dict[str, int]:
            lengths = await lengths_of(root_id)
            if any(item.parent is not None for item in seen):  # the child is known, and has no driver yet
                is_held.set()
                await release.wait()
            return lengths

        async def read() -> None:
            async for item in plain.retinue.events(run, tree=True):
                seen.append(item)

        monkeypatch.setattr(stored, "log_lengths", held)
        run = await r.spawn("lead them", agent="lead", detached=True)
        await until(lambda: bool(plain.provider.asked))
        reading = asyncio.create_task(read())
        await until(is_held.is_set)
        await workers(stack, place, 1, script, tags=frozenset({"gpu"}))
        assert (await run.wait(timeout=PATIENCE)).text == "all done"
        release.set()
        await asyncio.wait_for(reading, PATIENCE)
        logs = {row.run_id: engine_of(r).store.events(row.run_id) for row in rows_of(r).values()}

    assert len(logs) == 2
    read_numbers = sorted((item.run, item.seq) for item in seen if item.seq)
    assert read_numbers == sorted((run_id, seq) for run_id, events in logs.items() for seq, _ in events)


async def test_a_child_goes_to_a_worker_with_its_tags(place: str) -> None:
    script = lines(delegates(0, agent="trainer"))
    async with AsyncExitStack() as stack, client(place) as r:
        (plain,) = await workers(stack, place, 1, script)
        run = await r.spawn("lead them", agent="lead", detached=True)
        await until(lambda: len(rows_of(r)) == 2)
        child = rows_of(r)["dig 0"]
        assert (await r.handle(child.run_id).look()).state == "queued"
        (able,) = await workers(stack, place, 1, script, tags=frozenset({"gpu"}))

        assert (await run.wait(timeout=PATIENCE)).text == "all done"
        assert [one.agent for one in able.provider.asked] == ["trainer"]
        assert [one.agent for one in plain.provider.asked] == ["lead", "lead"]


@pytest.mark.parametrize("tree", [False, True])
async def test_a_reader_of_a_child_that_no_worker_has_taken_waits_for_one(place: str, tree: bool) -> None:
    script = lines(delegates(0, agent="trainer"))
    seen = list[str]()

    async def read(r: retinue.Retinue, run_id: str) -> None:
        if tree:
            async for item in r.events(run_id, tree=True):
                seen.append(type(item.event).__name__)
        else:
            async for event in r.events(run_id):
                seen.append(type(event).__name__)

    async with AsyncExitStack() as stack, client(place) as r:
        await workers(stack, place, 1, script)
        run = await r.spawn("lead them", agent="lead", detached=True)
        await until(lambda: len(rows_of(r)) == 2)
        reading = asyncio.create_task(read(r, rows_of(r)["dig 0"].run_id))
        await until(lambda: bool(seen))
        await workers(stack, place, 1, script, tags=frozenset({"gpu"}))
        await run.wait(timeout=PATIENCE)
        await asyncio.wait_for(reading, PATIENCE)

    assert (seen[0], seen[-1]) == ("RunAccepted", "RunEnded")


async def test_the_limits_of_a_placed_child_are_reserved_from_its_parent(place: str) -> None:
    async with AsyncExitStack() as stack, client(place) as r:
        await workers(stack, place, 2, lines(children=2))
        limits = retinue.Limits(max_turns=9, max_tokens=100_000)
        run = await r.spawn("lead them", agent="lead", detached=True, limits=limits)
        assert (await run.wait(timeout=PATIENCE)).text == "all done"

        rows = rows_of(r)
        first, second = (accepted_of(r, rows[f"dig {number}"].run_id) for number in range(2))
        assert first.reserved
        assert second.reserved
        assert first.limits.max_tokens is not None
        assert second.limits.max_tokens is not None
        assert 100_000 // 20 < second.limits.max_tokens < first.limits.max_tokens <= 100_000 // 10


async def test_a_fan_out_beyond_the_runs_of_a_worker_is_left_to_others(place: str) -> None:
    children, at_work, release = 8, Counter[str](), asyncio.Event()

    def look_of(name: str) -> Any:
        @retinue.tool(name="look", kind="pure", timeout=None)
        async def look() -> str:
            """Look."""
            at_work[name] += 1
            await release.wait()
            return "seen"

        return look

    agents = (*AGENTS, retinue.Agent(name="scout", description="Looks.", tools=("look",)))
    parts = [delegates(number, agent="scout") for number in range(children)]
    script = Script().play("lead", together(*parts), says("seen"))
    for number in range(children):
        script.play("scout", calls("look"), says("seen"), task=f"dig {number}")
    async with AsyncExitStack() as stack, client(place) as r:
        for name in ("one", "other"):
            options = WorkerOptions(max_runs=3)
            opened = worker(place, script, options=options, agents=agents, tools=(look_of(name),))
            await stack.enter_async_context(opened)
        run = await r.spawn("lead them", agent="lead", detached=True)
        await until(lambda: at_work["one"] >= 3 and at_work["other"] >= 3)
        release.set()
        assert (await run.wait(timeout=PATIENCE)).text == "seen"
        placed = [row for task, row in rows_of(r).items() if task != "lead them" and drivers_of(r, row.run_id)]
        assert len(placed) >= 3


async def test_the_number_of_running_children_of_a_tree_counts_placed_ones(place: str) -> None:
    hold = asyncio.Event()

    @retinue.tool(kind="pure", timeout=None)
    async def look() -> str:
        """Look."""
        await hold.wait()
        return "seen"

    agents = (retinue.Agent(name="lead"), retinue.Agent(name="digger", tools=("look",), placement="anywhere"))
    script = Script().play("lead", together(*(delegates(number) for number in range(12))), says("all done"))
    for number in range(12):
        script.play("digger", calls("look"), says("gold"), task=f"dig {number}")
    async with AsyncExitStack() as stack, client(place) as r:
        opened = [worker(place, script, agents=agents, tools=(look,)) for _ in range(2)]
        found = [await stack.enter_async_context(each) for each in opened]
        run = await r.spawn("lead them", agent="lead", detached=True)
        await until(lambda: sum(len(each.provider.asked) for each in found) == 1 + 8)
        hold.set()
        assert (await run.wait(timeout=PATIENCE)).text == "all done"
        assert len(rows_of(r)) == 1 + 8, "the other four were refused"


async def test_a_cancel_reaches_children_on_other_workers(place: str) -> None:
    @retinue.tool(kind="pure", timeout=None)
    async def look() -> str:
        """Look for ever."""
        await asyncio.Event().wait()
        return "seen"

    agents = (retinue.Agent(name="lead"), retinue.Agent(name="digger", tools=("look",), placement="anywhere"))
    script = Script().play("lead", together(delegates(0), delegates(1)), says("never"))
    for number in range(2):
        script.play("digger", calls("look"), task=f"dig {number}")
    async with AsyncExitStack() as stack, client(place) as r:
        opened = [worker(place, script, agents=agents, tools=(look,)) for _ in range(2)]
        found = [await stack.enter_async_context(each) for each in opened]
        run = await r.spawn("lead them", agent="lead", detached=True)
        await until(lambda: sum(len(each.provider.asked) for each in found) == 3)
        assert len(await r.cancel(run.run_id, note="enough")) == 3
        async with asyncio.timeout(PATIENCE):
            for row in rows_of(r).values():
                assert (await r.handle(row.run_id).wait()).result == "cancelled"


async def test_a_parent_that_is_taken_over_finds_its_placed_children(place: str) -> None:
    hold = asyncio.Event()

    @retinue.tool(kind="pure", timeout=None)
    async def look() -> str:
        """Look."""
        await hold.wait()
        return "seen"

    agents = (retinue.Agent(name="lead"), retinue.Agent(name="digger", tools=("look",), tags=("gpu",)))
    script = Script().play("lead", delegates(0), says("all done")).play("digger", calls("look"), says("gold"))
    async with client(place) as r:
        run = await r.spawn("lead them", agent="lead", detached=True)
        options = WorkerOptions(tags=frozenset({"gpu"}))
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(worker(place, script, agents=agents, tools=(look,)))
            await until(lambda: len(first.provider.asked) == 1)
            other = await stack.enter_async_context(
                worker(place, script, options=options, agents=agents, tools=(look,))
            )
            await until(lambda: len(other.provider.asked) == 1)
            first.stop.set()
            await until(lambda: first.reports[-1] == "worker: stopped")
            second = await stack.enter_async_context(worker(place, script, agents=agents, tools=(look,)))
            await until(lambda: any("taken over" in line for line in (*second.reports, *other.reports)))
            hold.set()
            assert (await run.wait(timeout=PATIENCE)).text == "all done"
            asked = Counter((one.path, one.turn) for each in (first, other, second) for one in each.provider.asked)
            assert set(asked.values()) == {1}


async def test_a_tree_whose_tools_work_in_a_folder_is_driven_on_its_machine(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes").write_text("gold")
    monkeypatch.chdir(tmp_path)
    agents = (
        retinue.Agent(name="lead", tools=("file_read",)),
        retinue.Agent(name="digger", tools=("file_read",), placement="anywhere"),
    )
    script = Script().play("lead", delegates(0), says("all done"))
    script.play("digger", calls("file_read", path="notes"), says("read"), task="dig 0")
    opening: dict[str, Any] = {"dialects": ("native",), "agents": agents, "store": postgres_url}
    async with AsyncExitStack() as stack:
        monkeypatch.setattr(platform, "node", lambda: "here")
        r = await stack.enter_async_context(retinue.open(provider=ScriptedProvider(Script()), **opening))
        monkeypatch.setattr(platform, "node", lambda: "elsewhere")
        other = await stack.enter_async_context(worker(postgres_url, script, agents=agents))
        run = await r.spawn("lead them", agent="lead", detached=True)
        await until(lambda: len(other.reports) == 2)
        assert other.reports[1] == (
            f"left alone: run {run.run_id} cannot be continued here: this worker has no tag host:here"
        )
        monkeypatch.setattr(platform, "node", lambda: "here")
        (tmp_path / "of worker").mkdir()
        monkeypatch.chdir(tmp_path / "of worker")
        same = await stack.enter_async_context(worker(postgres_url, script, agents=agents))
        assert (await run.wait(timeout=PATIENCE)).text == "all done"
        assert (other.provider.asked, len(same.provider.asked)) == ([], 4)
        events = engine_of(r).store.events(rows_of(r)["dig 0"].run_id)
        assert any("gold" in event.text for _, event in events if isinstance(event, CallReturned))
        assert {engine_of(r).store.run_spec(row.run_spec).tags for row in rows_of(r).values()} == {("host:here",)}


async def test_a_tree_without_tools_for_folders_is_driven_anywhere(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "here")
    async with client(postgres_url) as r:
        monkeypatch.setattr(platform, "node", lambda: "elsewhere")
        async with worker(postgres_url, Script().play("main", says("done"))):
            run = await r.spawn("task", detached=True)
            assert (await run.wait(timeout=PATIENCE)).text == "done"
