"""Two real processes on one file: the second looks, sends, cancels and approves, or takes over what the first lost."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import retinue
from retinue.core.commands import RunQuery
from retinue.core.events import CallReturned, Event, MailTaken, RunAdopted, RunEnded
from tests.engine.owner import open_here
from tests.internals import engine_of

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(sys.platform == "win32", reason="processes are stopped and continued by signals"),
]

PATIENCE = 30.0


class Owner:
    """The other process: what it is told to do, and what it tells."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    async def hears(self, **news: object) -> dict[str, Any]:
        """Its next line that says so; an Ellipsis stands for anything."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while line := await self.process.stdout.readline():
                told = msgspec.json.decode(line, type=dict[str, Any])
                if all(key in told and value in (..., told[key]) for key, value in news.items()):
                    return told
        raise AssertionError(f"it ended without a word about {news}")


@asynccontextmanager
async def owner(home: Path) -> AsyncGenerator[Owner]:
    """A process that drives runs in that folder."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.engine.owner", str(home)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        there = Owner(process)
        await there.hears(ready=True)
        yield there
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def other(home: Path, **options: object) -> AsyncGenerator[retinue.Retinue]:
    """This process, as one that has the same tools and whose looking takes no time."""
    async with open_here(str(home), None, **options) as opened:
        yield opened


def log(r: retinue.Retinue, agent: str) -> list[Event]:
    """The stored events of an agent's one run."""
    store = engine_of(r).store
    (row,) = [row for row in store.runs(RunQuery()) if row.agent == agent]
    return [event for _, event in store.events(row.run_id)]


async def test_a_second_process_sees_the_runs_of_the_first_and_their_ends(tmp_path: Path) -> None:
    async with owner(tmp_path) as there, other(tmp_path) as r:
        there.tell("start dig")
        await there.hears(looking=...)

        views = {view.agent: (view.state, view.waiting_for) for view in await r.list(everyone=True)}
        assert views == {"main": ("waiting", "child"), "digger": ("working", None)}
        (root,) = await r.list()
        seen: list[str] = []
        async for event in r.events(root.run_id):
            seen.append(type(event).__name__)
            if seen == ["RunAccepted", "ReplyReceived"]:
                there.tell("release")
        assert seen == ["RunAccepted", "ReplyReceived", "CallReturned", "ReplyReceived", "RunEnded"]
        outcome = await r.handle(root.run_id).wait(timeout=PATIENCE)

        assert (outcome.result, outcome.text) == ("completed", "done")
        assert await there.hears(ended=root.run_id) == {"ended": root.run_id, "result": "completed", "text": "done"}
        assert not any(isinstance(event, RunAdopted) for event in log(r, "main") + log(r, "digger"))


async def test_a_second_process_sends_a_message_to_a_run_of_the_first(tmp_path: Path) -> None:
    async with owner(tmp_path) as there, other(tmp_path) as r:
        there.tell("start chat")
        run_id: str = (await there.hears(event="ExchangeEnded"))["run"]
        assert (await r.handle(run_id).look()).state == "idle"

        await r.send(run_id, "how are you?")
        await there.hears(event="ExchangeEnded")
        closed = await r.handle(run_id).close()

        assert (closed.text, closed.exchanges) == ("I am fine", 2)
        taken = [item for event in log(r, "main") if isinstance(event, MailTaken) for item in event.items]
        assert [getattr(item, "text", "(close)") for item in taken] == ["how are you?", "(close)"]


async def test_a_second_process_cancels_a_tree_within_a_second(tmp_path: Path) -> None:
    async with owner(tmp_path) as there, other(tmp_path) as r:
        there.tell("start dig")
        digger: str = (await there.hears(looking=...))["looking"]
        (root,) = await r.list()

        assert set(await r.cancel(root.run_id, note="enough")) == {root.run_id, digger}
        ended = await there.hears(ended=root.run_id)

        assert ended["result"] == "cancelled"
        for run_id in (root.run_id, digger):
            assert (await r.handle(run_id).wait(timeout=PATIENCE)).error == "enough"
            row = await r.supervisor.stored.run(run_id)
            assert row is not None
            assert row.cancelled_at is not None
            assert row.progress.ended_at is not None
            assert row.progress.ended_at - row.cancelled_at < 1.0


async def test_a_second_process_approves_a_parked_call_of_the_first(tmp_path: Path) -> None:
    async with owner(tmp_path) as there, other(tmp_path) as r:
        there.tell("start press")
        await there.hears(event="CallParked")
        (question,) = await r.approvals()
        assert (question.tool, (await r.handle(question.run_id).look()).waiting_for) == ("press", "approval")

        await r.approve(question.id)

        assert (await there.hears(ended=question.run_id))["text"] == "done"
        assert [event.text for event in log(r, "main") if isinstance(event, CallReturned)] == ["pressed"]
        assert await r.approvals() == []


async def test_a_process_suspended_beyond_its_lease_is_fenced_and_its_tree_finished(
    tmp_path: Path,
) -> None:
    async with owner(tmp_path) as there:
        there.tell("start dig")
        await there.hears(looking=...)
        there.process.send_signal(signal.SIGSTOP)

        async with other(tmp_path, lease=0.5, adopt=True) as r:
            (root,) = await r.list()
            outcome = await r.handle(root.run_id).wait(timeout=PATIENCE)
            logs = log(r, "main"), log(r, "digger")

            there.process.send_signal(signal.SIGCONT)
            there.tell("release")
            lost = await there.hears(lost=root.run_id)
            there.tell(f"try {root.run_id}")
            refused = await there.hears(errors=...)
            assert there.process.stdin is not None
            there.process.stdin.close()
            async with asyncio.timeout(PATIENCE):
                await there.process.wait()

            assert (outcome.result, outcome.text) == ("completed", "done")
            assert [[type(event) for event in events].count(RunAdopted) for events in logs] == [1, 1]
            assert [isinstance(events[-1], RunEnded) for events in logs] == [True, True]
            assert lost == {"lost": root.run_id, "error": "Fenced"}
            assert refused == {"errors": ["Fenced", "Fenced", "Fenced"]}
            assert there.process.returncode == 0, "it goes quietly, and leaves what is not its own any more"
            assert (log(r, "main"), log(r, "digger")) == logs
            assert len(await r.list(everyone=True)) == 2
