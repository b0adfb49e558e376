"""The queue of jobs: one worker gets a job, those of dead workers go to others, and the store decides which drives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest
from procrastinate import App
from procrastinate.exceptions import ConnectorException

import retinue
from retinue.core.commands import RunQuery, RunRow
from retinue.core.events import RunAdopted
from retinue.core.ids import Key
from retinue.core.workspace import WorkspaceUnavailable, worktree_of
from retinue.dispatch.worker import job_queue
from retinue.dispatch.worker.job_queue import JobQueue, QueueUnavailable, runs_of
from retinue.providers.scripted import Script, ScriptedProvider, says
from retinue.store.postgres import PostgresAddress, parse_address
from tests.dispatch.worker.stage import LONG, PATIENCE, until, worker
from tests.internals import engine_of

pytestmark = [pytest.mark.real_time, LONG]


async def waiting_rows(r: retinue.Retinue, number: int) -> list[RunRow]:
    """The rows of new runs without a driver, oldest first."""
    for each in range(number):
        await r.spawn(f"task {each}", detached=True)
    return list(reversed(engine_of(r).store.runs(RunQuery(undriven_only=True))))


def client(url: str) -> retinue.Retinue:
    return retinue.open(provider=ScriptedProvider(Script()), dialects=(), store=url)


def queue_of(address: PostgresAddress, lease: float = 60.0) -> JobQueue:
    """The place of a worker in the queue, which waits for a slow server."""
    return JobQueue(address, lease=lease, timeout=60.0)


def adoptions(r: retinue.Retinue, run_id: str) -> int:
    return sum(isinstance(event, RunAdopted) for _, event in engine_of(r).store.events(run_id))


def jobs_left(address: PostgresAddress) -> int:
    with psycopg.connect(address.connection_string) as connection:
        (count,) = connection.execute(
            f"SELECT count(*) FROM {address.schema}.procrastinate_jobs".encode()
        ).fetchone() or (0,)
    return int(count)


async def test_a_run_is_queued_once_and_handed_to_one_worker(postgres_url: str) -> None:
    address = parse_address(postgres_url)
    async with client(postgres_url) as r, queue_of(address) as first, queue_of(address) as second:
        (row,) = await waiting_rows(r, 1)
        for queue in (first, second, first):
            await queue.enqueue([row], "a", is_takeover=False)
        job = await first.fetch(["b", "a"])
        assert job is not None
        assert runs_of(job) == (row.run_id,)
        assert await second.fetch(["a"]) is None
        await first.finish(job)
        await first.finish(job)
        assert jobs_left(address) == 0


async def test_several_runs_are_one_job(postgres_url: str) -> None:
    address = parse_address(postgres_url)
    async with client(postgres_url) as r, queue_of(address) as queue:
        rows = await waiting_rows(r, 3)
        await queue.enqueue(rows[:1], "a", is_takeover=False)
        await queue.enqueue(rows, "a", is_takeover=False)
        jobs = [await queue.fetch(["a"]) for _ in range(3)]
        assert [None if job is None else runs_of(job) for job in jobs] == [
            (rows[0].run_id,),
            (rows[1].run_id, rows[2].run_id),
            None,
        ]


async def test_a_worker_fetches_from_its_queues_alone_and_by_priority(postgres_url: str) -> None:
    address = parse_address(postgres_url)
    async with client(postgres_url) as r, queue_of(address) as queue:
        new, begun, other = await waiting_rows(r, 3)
        await queue.enqueue([new], "a", is_takeover=False)
        await queue.enqueue([begun], "a", is_takeover=True)
        await queue.enqueue([other], "b", is_takeover=True)
        fetched = [await queue.fetch(["a"]) for _ in range(3)]
        assert [None if job is None else runs_of(job) for job in fetched] == [(begun.run_id,), (new.run_id,), None]


async def test_the_jobs_of_a_dead_worker_go_to_another(postgres_url: str) -> None:
    address = parse_address(postgres_url)
    async with client(postgres_url) as r, queue_of(address, lease=0.2) as dead, queue_of(address, lease=0.2) as other:
        (row,) = await waiting_rows(r, 1)
        await dead.enqueue([row], "a", is_takeover=False)
        assert await dead.fetch(["a"]) is not None
        async with asyncio.timeout(PATIENCE):
            while True:
                await other.maintain({})
                if (job := await other.fetch(["a"])) is not None:
                    break
                await asyncio.sleep(0.05)
        assert runs_of(job) == (row.run_id,)


async def test_a_job_whose_runs_were_enqueued_again_is_given_back_without_a_second_one(postgres_url: str) -> None:
    address = parse_address(postgres_url)
    async with client(postgres_url) as r, queue_of(address) as queue, queue_of(address) as other:
        rows = await waiting_rows(r, 1)
        await queue.enqueue(rows, "a", is_takeover=False)
        job = await queue.fetch(["a"])
        assert job is not None
        await other.enqueue(rows, "a", is_takeover=False)
        await queue.give_back(job)
        assert jobs_left(address) == 1
        assert await other.fetch(["a"]) is not None


async def test_an_aborted_job_is_reported_to_its_worker(postgres_url: str) -> None:
    address = parse_address(postgres_url)
    async with client(postgres_url) as r, queue_of(address) as queue:
        (row,) = await waiting_rows(r, 1)
        await queue.enqueue([row], "a", is_takeover=False)
        job = await queue.fetch(["a"])
        assert job is not None
        assert job.id is not None
        assert queue._app is not None
        await queue._app.job_manager.cancel_job_by_id_async(job.id, abort=True)
        queue._beat_at = -1000.0
        assert await queue.maintain({row.run_id: job}) == [row.run_id]


async def test_a_job_that_is_delivered_twice_drives_nothing_twice(postgres_url: str) -> None:
    address = parse_address(postgres_url)
    lines = Script().play("main", *[says("done")] * 8)
    async with client(postgres_url) as r, queue_of(address) as extra:
        rows = await waiting_rows(r, 4)
        async with worker(postgres_url, lines) as first, worker(postgres_url, lines) as second:
            for row in rows:
                for name in ("a", "b"):  # jobs that no worker asked for
                    await extra.enqueue([row], name, is_takeover=False)
                    extra._known.clear()
            outcomes = await r.wait(*(row.run_id for row in rows), timeout=PATIENCE)
            assert len(outcomes) == 4
            assert len(first.provider.asked) + len(second.provider.asked) == 4
        assert [adoptions(r, row.run_id) for row in rows] == [1] * 4


async def test_runs_are_taken_without_a_queue_that_cannot_be_reached(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[float] = []

    async def refuse(app: App) -> None:
        attempts.append(asyncio.get_running_loop().time())
        raise ConnectorException("no server")

    monkeypatch.setattr(App, "open_async", refuse)
    monkeypatch.setattr(job_queue, "FIRST_PAUSE", 600.0)
    async with client(postgres_url) as r, worker(postgres_url, Script().play("main", says("done"), says("done"))):
        for _ in range(2):
            run = await r.spawn("task", detached=True)
            assert (await run.wait(timeout=PATIENCE)).text == "done"
    assert len(attempts) == 1, "it is not tried again at each look"
    assert caplog.text.count("the queue of jobs cannot be reached") == 1


async def test_a_queue_that_failed_is_tried_again_after_longer_and_longer_pauses(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "FIRST_PAUSE", 0.1)
    address = parse_address(postgres_url)
    pauses: list[float] = []
    async with queue_of(address) as queue:  # no store was opened in this schema
        for _ in range(3):
            with pytest.raises(QueueUnavailable, match="open the store once as its owner"):
                await queue.fetch(["a"])
            pauses.append(queue._pause)
            await asyncio.sleep(max(0.0, queue._retry_at - asyncio.get_running_loop().time()))
        async with client(postgres_url):
            assert await queue.fetch(["a"]) is None
    assert pauses == [0.1, 0.2, 0.4]


async def test_a_queue_that_failed_is_not_tried_during_the_pause(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "FIRST_PAUSE", 3600.0)
    async with queue_of(parse_address(postgres_url)) as queue:
        with pytest.raises(QueueUnavailable, match="open the store once as its owner"):
            await queue.fetch(["a"])
        async with client(postgres_url):  # the tables are there now
            with pytest.raises(QueueUnavailable, match="open the store once as its owner"):
                await queue.fetch(["a"])


async def test_a_machine_without_git_leaves_worktrees_alone_and_drives_other_runs(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_git(*_: object) -> None:
        raise WorkspaceUnavailable("git is not installed")

    monkeypatch.setattr("retinue.local.workspaces.FetchedWorkspaces.git", property(no_git))
    async with client(postgres_url) as r, worker(postgres_url, Script().play("main", says("done"))) as running:
        apart = await r.spawn("task", detached=True, workspace=worktree_of(Key("key"), str(tmp_path)))
        await until(lambda: len(running.reports) > 1)
        run = await r.spawn("task", detached=True)
        assert (await run.wait(timeout=PATIENCE)).text == "done"
        assert running.reports[1].endswith("git is not installed")
        assert (await apart.look()).state == "interrupted"


async def test_the_jobs_of_ended_trees_are_removed(postgres_url: str) -> None:
    address = parse_address(postgres_url)
    async with client(postgres_url) as r:
        rows = await waiting_rows(r, 3)
        async with worker(postgres_url, Script().play("main", *[says("done")] * 3)) as running:
            await r.wait(*(row.run_id for row in rows), timeout=PATIENCE)
            await until(lambda: jobs_left(address) == 0)
            assert len(running.reports) == 4
