"""Runs of a newer version: an older worker leaves them alone, says so once, and drives the others."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import retinue
from retinue.core.checksum import checksum, event_checksum
from retinue.core.commands import Adopt, DriverRow, RegisterDriver, RunQuery
from retinue.core.events import MailTaken
from retinue.core.ids import RunId
from retinue.core.inbox import TextMessage
from retinue.dispatch.worker import WorkerOptions
from retinue.dispatch.worker import worker as worker_module
from retinue.providers.scripted import Script, ScriptedProvider, calls, says
from retinue.store.postgres import parse_address
from tests.dispatch.worker.stage import LONG, PATIENCE, RunningWorker, at, until, worker
from tests.internals import engine_of

pytestmark = [pytest.mark.real_time, LONG]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder for a SQLite store, or the address of a PostgreSQL store."""
    return str(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgres_url")


class NewerVersion:
    """Writes to a store what a newer version of retinue could write, below all code of this version."""

    def __init__(self, place: str) -> None:
        self._place = place

    def add_event(self, run_id: RunId, body: bytes) -> None:
        """Add an event to a run that has no driver."""
        ((no, seq),) = self._do("SELECT no, seq FROM runs WHERE run_id = ?", run_id)
        values: tuple[Any, ...] = (no, seq + 1, body)
        if self._is_sqlite:
            values += (event_checksum(run_id, seq + 1, body),)
            self._do("INSERT INTO events (run_no, seq, body, crc) VALUES (?, ?, ?, ?)", *values)
        else:
            self._do("INSERT INTO events (run_no, seq, body) VALUES (?, ?, ?)", *values)
        self._do("UPDATE runs SET seq = ? WHERE no = ?", seq + 1, no)

    def add_item(self, run_id: RunId, key: str, body: bytes) -> None:
        """Add an item to the inbox of a run."""
        ((no,),) = self._do("SELECT no FROM runs WHERE run_id = ?", run_id)
        if self._is_sqlite:
            values = (no, key, body, checksum(run_id, key, body))
            self._do("INSERT INTO mail (run_no, key, body, crc) VALUES (?, ?, ?, ?)", *values)
        else:
            self._do("INSERT INTO inbox (run_no, key, body) VALUES (?, ?, ?)", no, key, body)

    def raise_format(self, run_id: RunId) -> None:
        """Give a run the format of a newer version."""
        self._do("UPDATE runs SET format = format + 1 WHERE run_id = ?", run_id)

    def raise_format_of_run_spec(self, run_id: RunId) -> None:
        """Give the run spec of a run a higher format number, which its digest does not contain."""
        column = "brief" if self._is_sqlite else "run_spec"
        ((digest,),) = self._do(f"SELECT {column} FROM runs WHERE run_id = ?", run_id)
        ((body,),) = self._do("SELECT body FROM blobs WHERE digest = ?", digest)
        self._do("UPDATE blobs SET body = ? WHERE digest = ?", b"2" + bytes(body)[1:], digest)

    @property
    def _is_sqlite(self) -> bool:
        return not self._place.startswith("postgresql:")

    def _do(self, statement: str, *values: object) -> list[Any]:
        if self._is_sqlite:
            with closing(sqlite3.connect(Path(self._place) / "retinue.db", isolation_level=None)) as connection:
                return connection.execute(statement, values).fetchall()
        address = parse_address(self._place)
        with psycopg.connect(address.connection_string, autocommit=True) as connection:
            connection.execute(f'SET search_path TO "{address.schema}"'.encode())
            done = connection.execute(statement.replace("?", "%s").encode(), values)
            return [] if done.description is None else done.fetchall()


def client(place: str) -> retinue.Retinue:
    """A process that submits runs."""
    return retinue.open(provider=ScriptedProvider(Script()), dialects=(), **at(place))


EVENTS = {
    "event": (b'1{"type":"meditated","at":1.0}', "has 'meditated' at $.type, which this retinue does not know"),
    "value": (
        b'1{"type":"advice","at":1.0,"about":"the weather","text":""}',
        "has 'the weather' at $.about, which this retinue does not know",
    ),
    "format": (b'2{"type":"left","at":1.0}', "has format 2; this retinue knows up to 1: upgrade retinue to drive it"),
}


@pytest.mark.parametrize("kind", EVENTS)
async def test_a_worker_leaves_a_run_with_events_of_a_newer_version_alone_and_says_so_once(
    place: str, kind: str
) -> None:
    body, reason = EVENTS[kind]
    async with client(place) as r:
        newer = await r.spawn("of a newer version", detached=True)
        NewerVersion(place).add_event(newer.run_id, body)
        async with worker(place, Script().play("main", *[says("done")] * 3)) as running:
            await until(lambda: len(running.reports) > 1)
            assert running.reports[1].startswith(
                f"left alone: run {newer.run_id} cannot be continued here: event 2 of run {newer.run_id} {reason}"
            )
            await drive_others(r, running, 3)
        assert sum(newer.run_id in line for line in running.reports) == 1
        row = engine_of(r).store.run(newer.run_id)
        assert row is not None
        assert (row.driver_id, row.seq, row.progress.phase) == (None, 2, "queued")


async def test_a_worker_leaves_a_run_with_a_run_spec_of_a_newer_version_alone(place: str) -> None:
    async with client(place) as r:
        newer = await r.spawn("of a newer version", detached=True, priority=1)
        NewerVersion(place).raise_format_of_run_spec(newer.run_id)
        async with worker(place, Script().play("main", *[says("done")] * 3)) as running:
            await until(lambda: len(running.reports) > 1)
            assert running.reports[1] == (
                f"left alone: run {newer.run_id} cannot be continued here: "
                "a stored run spec has format 2; this retinue knows up to 1: upgrade retinue to drive it"
            )
            await drive_others(r, running, 3)
        assert sum(newer.run_id in line for line in running.reports) == 1
        assert (await newer.look()).state == "interrupted"


async def test_a_run_in_a_newer_format_does_not_change_how_others_with_its_needs_are_taken(
    postgres_url: str,
) -> None:
    at_work, release = list[str](), asyncio.Event()

    @retinue.tool(kind="pure", timeout=None)
    async def look(what: str) -> str:
        """Look."""
        at_work.append(what)
        await release.wait()
        return "seen"

    script = Script()
    for number in range(3):
        script.play("main", calls("look", what=str(number)), says("done"), task=f"look {number}")
    submitting = retinue.open(provider=ScriptedProvider(Script()), dialects=(), tools=(look,), **at(postgres_url))
    async with submitting as r:
        newer = await r.spawn("of a newer version", detached=True)
        NewerVersion(postgres_url).raise_format(newer.run_id)
        runs = [await r.spawn(f"look {number}", detached=True) for number in range(3)]
        async with worker(postgres_url, script, options=WorkerOptions(concurrency=1), tools=(look,)) as running:
            await until(lambda: len(at_work) == 1)
            later = await r.spawn("of a later look", detached=True, tags=("gpu",))
            await until(lambda: any(later.run_id in line for line in running.reports))
            undriven = engine_of(r).store.runs(RunQuery(unfinished_only=True, undriven_only=True))
            assert len(undriven) == 1 + 2 + 1, "no run is taken for which there is no room"
            release.set()
            assert len(await r.wait(*runs, timeout=PATIENCE)) == 3
        assert sum(newer.run_id in line for line in running.reports) == 1


async def drive_others(r: retinue.Retinue, running: RunningWorker, number: int) -> None:
    """Runs of this version, one after the other, so that the worker looks at what waits for each."""
    for _ in range(number):
        other = await r.spawn("of this version", detached=True)
        assert (await other.wait(timeout=PATIENCE)).text == "done"
    assert len(running.provider.asked) == number


async def test_a_run_of_a_newer_version_can_be_cancelled(place: str) -> None:
    async with client(place) as r:
        newer = await r.spawn("of a newer version", detached=True)
        NewerVersion(place).add_event(newer.run_id, EVENTS["event"][0])
        await r.cancel(newer.run_id)
        view = await newer.look()
        assert view.outcome is not None
        assert (view.outcome.result, view.outcome.reason) == ("cancelled", "cancelled")


async def test_an_item_of_a_newer_version_waits_in_the_inbox_and_others_are_read(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="retinue.store")
    hold = asyncio.Event()

    @retinue.tool(kind="pure", timeout=None)
    async def look() -> str:
        """Look."""
        await hold.wait()
        return "seen"

    lines = Script().play("main", calls("look"), says("done"))
    async with retinue.open(provider=ScriptedProvider(lines), dialects=(), tools=(look,), **at(place)) as driving:
        run = await driving.spawn("look")
        await until(lambda: len(engine_of(driving).store.events(run.run_id)) == 2)
        NewerVersion(place).add_item(run.run_id, "poem", b'1{"type":"poem","key":"poem"}')
        async with client(place) as r:
            await r.handle(run.run_id).send("and at the roof")
            live = driving.supervisor.live(run.run_id)
            assert live is not None
            await until(lambda: bool(live.inbox))
        hold.set()
        assert (await run.wait(timeout=PATIENCE)).text == "done"
        (taken,) = [event for _, event in engine_of(driving).store.events(run.run_id) if isinstance(event, MailTaken)]
        assert [item.text for item in taken.items if isinstance(item, TextMessage)] == ["and at the roof"]
    said = [record.getMessage() for record in caplog.records if "left in the inbox" in record.getMessage()]
    assert said == [
        f"left in the inbox: an item for run {run.run_id} has 'poem' at $.type, which this retinue does not know: "
        "a newer version wrote it; upgrade retinue to drive it"
    ]


async def test_a_tree_is_left_alone_while_a_child_of_a_newer_version_is_at_work_in_it(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "STOP_SECONDS", 0.0)
    hold = asyncio.Event()

    @retinue.tool(kind="pure", timeout=None)
    async def look() -> str:
        """Look."""
        await hold.wait()
        return "seen"

    agents = (
        retinue.Agent(name="lead", description="Leads."),
        retinue.Agent(name="digger", description="Digs.", tools=("look",), tags=("gpu",)),
    )
    script = Script().play("lead", calls("run_agent", task="dig", agent="digger"), says("all done"))
    script.play("digger", calls("look"), says("gold")).play("main", says("done"))
    opening: dict[str, Any] = {"agents": agents, "tools": (look,), "dialects": ("native",)}
    gpu = WorkerOptions(tags=frozenset({"gpu"}))
    submitting = retinue.open(provider=ScriptedProvider(Script()), **opening, **at(place))
    async with submitting as r, AsyncExitStack() as stack:
        run = await r.spawn("lead them", agent="lead", detached=True)
        async with worker(place, script, **opening) as first:
            await until(lambda: len(first.provider.asked) == 1)
            other = await stack.enter_async_context(worker(place, script, options=gpu, **opening))
            await until(lambda: len(other.provider.asked) == 1)
            other.stop.set()
            await until(lambda: other.reports[-1] == "worker: stopped")
        store = engine_of(r).store
        (child,) = store.runs(RunQuery(parent_id=run.run_id))
        newer = DriverRow(driver_id="newer", host="elsewhere", process="1", lease=1e6)
        store.commit(None, [RegisterDriver(driver=newer), Adopt(driver_id="newer", run_ids=(child.run_id,))])
        NewerVersion(place).add_event(child.run_id, EVENTS["event"][0])
        second = await stack.enter_async_context(worker(place, script, **opening))
        await until(lambda: len(second.reports) > 1)
        assert second.reports[1].startswith(f"left alone: run {run.run_id} cannot be continued here: event ")
        row = store.run(run.run_id)
        assert row is not None
        assert (row.driver_id, row.progress.phase) == (None, "working")
        hold.set()
