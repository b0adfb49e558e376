"""Workers take runs without a driver, if they can drive them, and hand them over when they stop."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import aiohttp
import pytest

import retinue
from retinue.app.run_options import SpawnOptions
from retinue.core.commands import Decision, Phase, RunQuery
from retinue.core.errors import BadInput
from retinue.core.events import FORMAT, RunAdopted
from retinue.dispatch.worker import WorkerOptions, live_workers
from retinue.dispatch.worker import worker as worker_module
from retinue.engine.driver_table import INTERRUPTED, MARKING
from retinue.providers.scripted import Script, ScriptedProvider, calls, says
from tests.dispatch.worker.stage import LONG, PATIENCE, at, until, worker
from tests.internals import engine_of

pytestmark = [pytest.mark.real_time, LONG]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder for a SQLite store, or the address of a PostgreSQL store."""
    return str(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def client(place: str, lines: Script | None = None, **opening: Any) -> retinue.Retinue:
    """A process that submits runs."""
    return retinue.open(provider=ScriptedProvider(lines or Script()), dialects=(), **at(place), **opening)


async def test_a_detached_run_is_driven_by_a_worker(place: str) -> None:
    async with client(place) as r, worker(place, Script().play("main", says("Four."))) as running:
        run = await r.spawn("What is two and two?", detached=True)
        outcome = await run.wait(timeout=PATIENCE)
        assert (outcome.result, outcome.text) == ("completed", "Four.")
        assert running.reports[1] == f"run {run.run_id}: taken"


async def test_a_detached_run_is_started_once_by_its_key(place: str) -> None:
    async with client(place) as r, worker(place, Script().play("main", says("done"))) as running:
        first = await r.spawn("task", detached=True, key="k")
        again = await r.spawn("task", detached=True, key="k")
        assert first.run_id == again.run_id
        assert (await again.wait(timeout=PATIENCE)).text == "done"
        assert (await r.spawn("task", detached=True, key="k")).run_id == first.run_id
        assert len(running.provider.asked) == 1


async def test_of_two_workers_one_drives_a_run(place: str) -> None:
    lines = Script().play("main", *[says("done")] * 20)
    async with client(place) as r, worker(place, lines) as first, worker(place, lines) as second:
        runs = [await r.spawn(f"task {number}", detached=True) for number in range(10)]
        outcomes = await r.wait(*runs, timeout=PATIENCE)
        assert {outcome.text for outcome in outcomes.values()} == {"done"}
        assert len(outcomes) == 10
        assert len(first.provider.asked) + len(second.provider.asked) == 10
        store = engine_of(r).store
        adoptions = [sum(isinstance(event, RunAdopted) for _, event in store.events(run.run_id)) for run in runs]
        assert adoptions == [1] * 10


async def test_a_worker_takes_over_the_runs_of_a_dead_driver(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = asyncio.Event()

    @retinue.tool(kind="pure")
    async def look() -> str:
        """Look."""
        await hold.wait()
        return "seen"

    lines = Script().play("main", calls("look"), says("done"))
    async with client(place, lines, tools=(look,), lease=0.5) as dying:
        run = await dying.spawn("look")
        await until(lambda: len(engine_of(dying).store.events(run.run_id)) == 2)
        for task in dying.driver._tasks:  # as if the process were suspended
            task.cancel()
        await asyncio.gather(*dying.driver._tasks, return_exceptions=True)

        @retinue.tool(name="look", kind="pure")
        async def look_again() -> str:
            """Look."""
            return "seen"

        async with client(place) as r, worker(place, lines, tools=(look_again,), lease=0.5) as running:
            outcome = await r.handle(run.run_id).wait(timeout=PATIENCE)
            assert (outcome.result, outcome.text) == ("completed", "done")
            assert running.reports[1] == f"run {run.run_id}: taken over"
            assert [asked.turn for asked in running.provider.asked] == [2], "the first reply is not requested again"
            hold.set()


async def test_a_run_that_a_person_interrupted_is_left_to_them(place: str) -> None:
    release = asyncio.Event()

    @retinue.tool(kind="pure")
    async def look() -> str:
        """Look."""
        await release.wait()
        return "seen"

    lines = Script().play("main", calls("look"), says("done"), task="look").play("main", says("done"), task="other")
    async with client(place, lines, tools=(look,)) as stopped:
        run = await stopped.spawn("look")
        await until(lambda: len(engine_of(stopped).store.events(run.run_id)) == 2)
    release.set()
    async with client(place, lines, tools=(look,)) as r, worker(place, lines, tools=(look,)) as running:
        other = await r.spawn("other", detached=True)
        await other.wait(timeout=PATIENCE)
        assert (await r.handle(run.run_id).look()).state == "interrupted"
        await r.resume(run.run_id)
        assert (await r.handle(run.run_id).wait(timeout=PATIENCE)).text == "done"
        assert not any(run.run_id in line for line in running.reports)


async def test_a_run_that_was_interrupted_before_drivers_marked_that_is_left_to_a_person(place: str) -> None:
    hold = asyncio.Event()

    @retinue.tool(kind="pure", timeout=None)
    async def look() -> str:
        """Look."""
        await hold.wait()
        return "seen"

    @retinue.tool(name="look", kind="pure")
    async def look_again() -> str:
        """Look."""
        return "seen"

    lines = Script().play("main", calls("look"), says("done"), task="look")
    lines.play("main", says("done"), task="waiting").play("main", says("done"), task="other")
    async with client(place, lines, tools=(look,)) as older:
        run = await older.spawn("look")
        waiting = await older.spawn("waiting", detached=True)
        await until(lambda: len(engine_of(older).store.events(run.run_id)) == 2)
    async with client(place, tools=(look,)) as r:
        for space in (INTERRUPTED, MARKING):  # as an older version leaves a store
            await r.supervisor.key_value.change(space, lambda content: Decision(b"", drops=tuple(content)))
        async with worker(place, lines, tools=(look_again,)) as running:
            assert (await r.handle(waiting.run_id).wait(timeout=PATIENCE)).text == "done"
            await (await r.spawn("other", detached=True)).wait(timeout=PATIENCE)
            assert (await r.handle(run.run_id).look()).state == "interrupted"
            assert not any(run.run_id in line for line in running.reports)
        async with client(place, lines, tools=(look,), lease=0.5) as dying:
            await dying.resume(run.run_id)
            for task in dying.driver._tasks:  # as if the process were suspended
                task.cancel()
            await asyncio.gather(*dying.driver._tasks, return_exceptions=True)
            async with worker(place, lines, tools=(look_again,), lease=0.5):
                assert (await r.handle(run.run_id).wait(timeout=PATIENCE)).text == "done"
            hold.set()


async def test_a_worker_that_stops_hands_its_trees_over(place: str) -> None:
    release = asyncio.Event()

    @retinue.tool(kind="pure", timeout=None)
    async def look() -> str:
        """Look."""
        await release.wait()
        return "seen"

    lines = Script().play("main", calls("look"), says("done"))
    async with client(place, tools=(look,)) as r:
        async with worker(place, lines, tools=(look,)) as first:
            run = await r.spawn("look", detached=True, tools=["look"])
            await until(lambda: len(first.provider.asked) == 1)
            first.stop.set()
            await until(lambda: "worker: stopping; 1 tree left to other workers" in first.reports)
            release.set()  # the call in progress may end
        async with worker(place, lines, tools=(look,)) as second:
            assert (await run.wait(timeout=PATIENCE)).text == "done"
            assert [asked.turn for asked in second.provider.asked] == [2]


@pytest.mark.parametrize(
    "hanging",
    [
        "retinue.dispatch.worker.worker.Worker._look",
        "retinue.dispatch.worker.worker.remove_worker",
        "retinue.local.workspaces.FetchedWorkspaces.close",
    ],
    ids=["look", "list of workers", "hand-back"],
)
async def test_a_worker_hands_its_trees_over_whatever_hangs_while_it_stops(
    place: str, hanging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @retinue.tool(kind="pure", timeout=None)
    async def look() -> str:
        """Look for ever."""
        await asyncio.Event().wait()
        return "seen"

    for name, seconds in (("STOP_SECONDS", 0.2), ("LEAVE_SECONDS", 0.4), ("LAST_LOOK_SECONDS", 0.1)):
        monkeypatch.setattr(worker_module, name, seconds)
    monkeypatch.setattr(worker_module, "STOP_WITHIN", PATIENCE)  # for a busy machine
    release = asyncio.Event()

    async def hangs(*_: object) -> None:
        await release.wait()

    if hanging.endswith("close"):
        monkeypatch.setattr(hanging, hangs)
    lines = Script().play("main", calls("look"), says("done"))
    async with client(place, tools=(look,)) as r:
        async with worker(place, lines, tools=(look,)) as running:
            run = await r.spawn("look", detached=True, tools=["look"])
            await until(lambda: len(running.provider.asked) == 1)
            monkeypatch.setattr(hanging, hangs)
            if hanging.endswith("_look"):
                running.retinue.supervisor._engine.on_change[-1]()  # the next look begins, and hangs
        assert running.reports[-1] == "worker: stopped"
        row = engine_of(r).store.run(run.run_id)
        assert row is not None
        assert (row.driver_id, row.progress.phase) == (None, "working")
        release.set()


async def test_a_worker_that_cannot_leave_is_given_up_at_the_deadline(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "STOP_WITHIN", 0.2)
    async with client(place) as r, worker(place, Script().play("main", says("done"))) as running:
        run = await r.spawn("task", detached=True)
        assert (await run.wait(timeout=PATIENCE)).text == "done"
        leave = running.retinue.driver.leave

        async def leave_and_hang() -> None:
            await leave()
            await asyncio.Event().wait()

        monkeypatch.setattr(running.retinue.driver, "leave", leave_and_hang)
        running.stop.set()
        await until(lambda: running.reports[-1].startswith("worker: not stopped in time"))
        for task in asyncio.all_tasks():
            if task.get_name() == worker_module.SERVING:
                await asyncio.gather(task, return_exceptions=True)  # what the process would leave behind


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        ({"tags": ("gpu",)}, "this worker has no tag gpu"),
        ({"tools": ("look",)}, "no tool named look here"),
        ({"model": "other:fake-1"}, "no provider named 'other' here"),
    ],
    ids=["tag", "tool", "provider"],
)
async def test_a_worker_leaves_runs_alone_that_it_cannot_drive(
    tmp_path: Path, lacking: SpawnOptions, reason: str
) -> None:
    @retinue.tool
    async def look() -> str:
        """Look."""
        return "seen"

    lines = Script().play("main", says("done"), says("done"))
    submits = client(str(tmp_path), tools=(look,), providers={"other": ScriptedProvider(lines)})
    able: dict[str, Any] = {"tools": (look,), "providers": {"other": ScriptedProvider(lines)}}
    async with submits as r, worker(str(tmp_path), lines) as running:
        options: SpawnOptions = {"detached": True, "tools": (), **lacking}
        run = await r.spawn("task", **options)
        await until(lambda: len(running.reports) > 1)
        assert running.reports[1] == f"left alone: run {run.run_id} cannot be continued here: {reason}"
        assert (await run.look()).state == "interrupted"
        async with worker(str(tmp_path), lines, options=WorkerOptions(tags=frozenset({"gpu"})), **able):
            assert (await run.wait(timeout=PATIENCE)).text == "done"
        assert running.provider.asked == []


async def test_a_worker_leaves_runs_alone_whose_workspace_it_may_not_fetch(place: str, tmp_path: Path) -> None:
    team = tmp_path / "team"
    team.mkdir()
    (team / "notes").write_text("gold")
    address = f"shared://{team}"
    lines = Script().play("main", calls("file_read", path="notes"), says("done"))
    allowed = retinue.ToolOptions(workspaces=(f"shared://{tmp_path}/*",))
    reading: dict[str, Any] = {"tools": ("file_read",)}
    async with client(place, **reading) as r, worker(place, lines, **reading) as running:
        run = await r.spawn("task", detached=True, workspace=address)
        await until(lambda: len(running.reports) > 1)
        assert running.reports[1] == (
            f"left alone: run {run.run_id} cannot be continued here: the workspace {address} is not fetched by this "
            "process: add a pattern for it to [tools] workspaces"
        )
        assert (await run.look()).state == "interrupted"
        async with worker(place, lines, tool_options=allowed, **reading) as able:
            outcome = await run.wait(timeout=PATIENCE)
            assert (outcome.result, outcome.text) == ("completed", "done")
            assert (running.provider.asked, len(able.provider.asked)) == ([], 2)


async def test_a_worker_leaves_runs_alone_whose_shared_folder_its_machine_does_not_have(tmp_path: Path) -> None:
    allowed = retinue.ToolOptions(workspaces=("shared://*",))
    async with client(str(tmp_path)) as r, worker(str(tmp_path), Script(), tool_options=allowed) as running:
        run = await r.spawn("task", detached=True, workspace=f"shared://{tmp_path}/not mounted")
        await until(lambda: len(running.reports) > 1)
        assert running.reports[1].endswith(f"the shared folder {tmp_path}/not mounted does not exist on this machine")
        assert (await run.look()).state == "interrupted"


async def test_a_worker_takes_runs_whose_shared_folder_is_mounted_later(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LOOK_AGAIN_SECONDS", 0.1)
    folder = tmp_path / "mounted later"
    lines = Script().play("main", says("done"))
    allowed = retinue.ToolOptions(workspaces=("shared://*",))
    async with client(place) as r, worker(place, lines, tool_options=allowed) as running:
        run = await r.spawn("task", detached=True, workspace=f"shared://{folder}")
        await until(lambda: len(running.reports) > 1)
        folder.mkdir()
        assert (await run.wait(timeout=PATIENCE)).text == "done"
        assert sum("left alone" in line for line in running.reports) == 1


async def test_a_worker_leaves_runs_of_a_newer_format_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(str(tmp_path)) as r:
        await r.spawn("task", detached=True)
        monkeypatch.setattr("retinue.engine.driver.FORMAT", FORMAT - 1)
        async with worker(str(tmp_path), Script()) as running:
            await until(lambda: len(running.reports) == 2)
            assert f"its events have format {FORMAT}; this retinue knows up to {FORMAT - 1}" in running.reports[1]


async def test_concurrency_counts_trees_at_work_and_none_that_waits_for_an_approval(tmp_path: Path) -> None:
    at_work: list[str] = []
    most = Counter[str]()
    release = asyncio.Event()

    @retinue.tool(kind="pure", timeout=None)
    async def look(what: str) -> str:
        """Look."""
        at_work.append(what)
        most["trees"] = max(most["trees"], len(at_work))
        await release.wait()
        at_work.remove(what)
        return "seen"

    @retinue.tool
    async def press() -> str:
        """Press the button; needs an approval."""
        return "pressed"

    lines = Script()
    for number in range(6):
        lines.play("main", calls("look", what=str(number)), says("done"), task=f"look {number}")
    for number in range(3):
        lines.play("main", calls("press"), says("done"), task=f"press {number}")
    opening: dict[str, Any] = {"tools": (look, press), "policy": retinue.Policy(always_ask=("press",))}
    options = WorkerOptions(concurrency=2)
    async with client(str(tmp_path), **opening) as r, worker(str(tmp_path), lines, options=options, **opening):
        parked = [await r.spawn(f"press {number}", detached=True) for number in range(3)]
        looking = [await r.spawn(f"look {number}", detached=True) for number in range(6)]

        async def are_parked() -> bool:
            return len(await r.approvals()) == 3

        await until(are_parked)
        await until(lambda: len(at_work) == 2)
        waiting = engine_of(r).store.runs(RunQuery(unfinished_only=True, undriven_only=True))
        assert {row.run_id for row in waiting} < {run.run_id for run in looking}
        assert len(waiting) == 4
        release.set()
        assert len(await r.wait(*looking, timeout=PATIENCE)) == 6
        assert most["trees"] == 2
        for question in await r.approvals():
            await r.approve(question)
        assert len(await r.wait(*parked, timeout=PATIENCE)) == 3


async def test_the_trees_at_work_in_a_store_are_bounded_over_all_workers(place: str) -> None:
    at_work: list[str] = []
    most = Counter[str]()

    @retinue.tool(kind="pure")
    async def look(what: str) -> str:
        """Look."""
        at_work.append(what)
        most["trees"] = max(most["trees"], len(at_work))
        await asyncio.sleep(0.05)
        at_work.remove(what)
        return "seen"

    lines = Script()
    for number in range(8):
        lines.play("main", calls("look", what=str(number)), says("done"), task=f"look {number}")
    options = WorkerOptions(max_trees=2)
    async with AsyncExitStack() as stack, client(place, tools=(look,)) as r:
        for _ in range(3):
            await stack.enter_async_context(worker(place, lines, options=options, tools=(look,)))
        runs = [await r.spawn(f"look {number}", detached=True) for number in range(8)]
        outcomes = await r.wait(*runs, timeout=PATIENCE)
        assert [outcome.text for outcome in outcomes.values()] == ["done"] * 8
        assert most["trees"] <= 2


async def test_waiting_trees_of_a_higher_priority_are_taken_first(place: str) -> None:
    lines = Script()
    for name in ("low", "usual", "high", "begun"):
        lines.play("main", says("done"), task=name)
    async with client(place) as r:
        runs = {
            name: await r.spawn(name, detached=True, priority=priority)
            for name, priority in (("low", -5), ("usual", 0), ("high", 5))
        }
        async with worker(place, lines, options=WorkerOptions(concurrency=1)):
            await r.wait(*runs.values(), timeout=PATIENCE)
        store = engine_of(r).store
        began = {
            name: next(e.at for _, e in store.events(run.run_id) if isinstance(e, RunAdopted))
            for name, run in runs.items()
        }
        assert sorted(began, key=began.__getitem__) == ["high", "usual", "low"]
        with pytest.raises(BadInput, match="priority: found 101; expected -100 to 100"):
            await r.spawn("too high", detached=True, priority=101)


async def test_a_worker_with_drain_leaves_when_nothing_waits(tmp_path: Path) -> None:
    async with client(str(tmp_path)) as r:
        runs = [await r.spawn(f"task {number}", detached=True) for number in range(5)]
        lines = Script().play("main", *[says("done")] * 5)
        options = WorkerOptions(concurrency=1, drain=True)
        async with worker(str(tmp_path), lines, options=options) as running:
            await until(lambda: "worker: stopped" in running.reports)
        assert [(await run.look()).state for run in runs] == ["ended"] * 5


async def test_a_worker_that_was_declared_dead_begins_again(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "REOPEN_SECONDS", 0.01)
    async with client(place) as r, worker(place, Script().play("main", says("done"))) as running:
        await until(lambda: len(running.reports) == 1)
        first = running.retinue.supervisor.driver_id
        assert first is not None
        await r.supervisor.drivers.declare_dead(first)
        run = await r.spawn("task", detached=True)
        assert (await run.wait(timeout=PATIENCE)).text == "done"
        assert len(running.opened) == 2
        assert "worker: other workers took over its runs; it begins again" in running.reports


async def test_the_living_workers_of_a_store_are_listed(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = asyncio.Event()

    @retinue.tool(kind="pure")
    async def look() -> str:
        """Look."""
        await hold.wait()
        return "seen"

    lines = Script().play("main", calls("look"), says("done"))
    options = WorkerOptions(tags=frozenset({"gpu", "eu"}))
    async with client(place, tools=(look,)) as r:
        assert await live_workers(r.supervisor) == []
        async with worker(place, lines, options=options, tools=(look,)) as running:
            run = await r.spawn("look", detached=True)
            await until(lambda: len(running.provider.asked) == 1)
            (found,) = await live_workers(r.supervisor)
            assert found.driver_id == running.retinue.supervisor.driver_id
            assert (found.version, found.tags, found.runs) == (retinue.__version__, ("eu", "gpu"), (run.run_id,))
            monkeypatch.setattr(r.supervisor, "clock", SimpleNamespace(now=lambda: found.last_beat + 1000.0))
            (late,) = await live_workers(r.supervisor)
            assert late.lag == found.last_beat + 1000.0 - late.last_beat
            hold.set()
            await run.wait(timeout=PATIENCE)
        assert await live_workers(r.supervisor) == []


async def test_health_readiness_and_metrics_are_served(tmp_path: Path) -> None:
    options = WorkerOptions(health=("127.0.0.1", 0))
    lines = Script().play("main", says("done"))
    async with client(str(tmp_path)) as r, worker(str(tmp_path), lines, options=options) as running:
        run = await r.spawn("task", detached=True)
        await run.wait(timeout=PATIENCE)
        address = running.reports[0].removeprefix("worker: health and metrics at ")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{address}/healthz") as response:
                assert (response.status, await response.text()) == (200, "ok\n")
            async with session.get(f"{address}/readyz") as response:
                assert (response.status, await response.text()) == (200, "ready\n")
            async with session.get(f"{address}/metrics") as response:
                metrics = await response.text()
        values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
        assert (values["retinue_trees_taken_total"], values["retinue_queue_depth"]) == ("1", "0")
        states = {state for state in get_args(Phase) if state != "ended"}
        assert {name: values[name] for name in values if name.startswith("retinue_runs{")} == {
            f'retinue_runs{{state="{state}"}}': "0" for state in states
        }
        commits = values["retinue_commit_seconds_count"]
        assert commits == values['retinue_commit_seconds_bucket{le="+Inf"}'] != "0"
        assert len(await r.supervisor.stored.runs(RunQuery())) == 1
