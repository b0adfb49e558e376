"""Two real processes on one store: the second reads, sends, cancels and approves, or adopts the runs of the first."""

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
from retinue.core.errors import RunIsOver
from retinue.core.events import CallReturned, Event, MailTaken, RunAdopted, RunEnded
from tests.conftest import STRESS
from tests.engine.driver_program import WORDS, open_here
from tests.internals import engine_of

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(sys.platform == "win32", reason="processes are stopped and continued by signals"),
]

PATIENCE = 30.0
ROUNDS = 500 if STRESS else 10


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder for a SQLite store, or the address of a PostgreSQL store."""
    return str(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgres_url")


class DriverProgram:
    """The other process, with its commands and reports."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    async def next_report(self, **fields: object) -> dict[str, Any]:
        """The next report with these fields; an Ellipsis matches any value."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while line := await self.process.stdout.readline():
                report = msgspec.json.decode(line, type=dict[str, Any])
                if all(key in report and value in (..., report[key]) for key, value in fields.items()):
                    return report
        raise AssertionError(f"it ended without a report of {fields}")


@asynccontextmanager
async def driver_program(place: str) -> AsyncGenerator[DriverProgram]:
    """A process that drives runs in the store at this place."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.engine.driver_program", place),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        program = DriverProgram(process)
        await program.next_report(ready=True)
        yield program
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def other(place: str, **options: object) -> AsyncGenerator[retinue.Retinue]:
    """A retinue of this process with the same tools, in which `look` returns at once."""
    async with open_here(place, None, **options) as opened:
        yield opened


def log(r: retinue.Retinue, agent: str) -> list[Event]:
    """The stored events of an agent's one run."""
    store = engine_of(r).store
    (row,) = [row for row in store.runs(RunQuery()) if row.agent == agent]
    return [event for _, event in store.events(row.run_id)]


async def test_a_second_process_sees_the_runs_of_the_first_and_their_ends(place: str) -> None:
    async with driver_program(place) as program, other(place) as r:
        program.send("start dig")
        await program.next_report(looking=...)

        views = {view.agent: (view.state, view.waiting_for) for view in await r.list(everyone=True)}
        assert views == {"main": ("waiting", "child"), "digger": ("working", None)}
        (root,) = await r.list()
        seen: list[str] = []
        async for event in r.events(root.run_id):
            seen.append(type(event).__name__)
            if seen == ["RunAccepted", "ReplyReceived"]:
                program.send("release")
        assert seen == ["RunAccepted", "ReplyReceived", "CallReturned", "ReplyReceived", "RunEnded"]
        outcome = await r.handle(root.run_id).wait(timeout=PATIENCE)

        assert (outcome.result, outcome.text) == ("completed", "done")
        assert await program.next_report(ended=root.run_id) == {
            "ended": root.run_id,
            "result": "completed",
            "text": "done",
        }
        assert not any(isinstance(event, RunAdopted) for event in log(r, "main") + log(r, "digger"))


async def test_a_second_process_sends_a_message_to_a_run_of_the_first(place: str) -> None:
    async with driver_program(place) as program, other(place) as r:
        program.send("start chat")
        run_id: str = (await program.next_report(event="ExchangeEnded"))["run"]
        assert (await r.handle(run_id).look()).state == "idle"

        await r.send(run_id, "how are you?")
        await program.next_report(event="ExchangeEnded")
        closed = await r.handle(run_id).close()

        assert (closed.text, closed.exchanges) == ("I am fine", 2)
        taken = [item for event in log(r, "main") if isinstance(event, MailTaken) for item in event.items]
        assert [getattr(item, "text", "(close)") for item in taken] == ["how are you?", "(close)"]


async def test_words_and_cancels_in_the_last_moment_of_a_run_are_read_or_refused(place: str) -> None:
    async with driver_program(place) as program, other(place) as r:
        for number in range(ROUNDS):
            program.send("start quick")
            run_id: str = (await program.next_report(started=...))["started"]
            is_cancel = number % 2 == 1
            if is_cancel:
                is_accepted = run_id in await r.cancel(run_id, note="enough")
            else:
                try:
                    await r.send(run_id, WORDS)
                    is_accepted = True
                except RunIsOver:
                    is_accepted = False
            ended = await program.next_report(ended=run_id)

            if is_cancel:
                assert ended["result"] == ("cancelled" if is_accepted else "completed"), number
            else:
                assert ended["text"] == ("read" if is_accepted else "unread"), number


async def test_a_second_process_cancels_a_tree_soon(place: str) -> None:
    async with driver_program(place) as program, other(place) as r:
        program.send("start dig")
        digger: str = (await program.next_report(looking=...))["looking"]
        (root,) = await r.list()

        assert set(await r.cancel(root.run_id, note="enough")) == {root.run_id, digger}
        ended = await program.next_report(ended=root.run_id)

        assert ended["result"] == "cancelled"
        for run_id in (root.run_id, digger):
            assert (await r.handle(run_id).wait(timeout=PATIENCE)).error == "enough"
            row = await r.supervisor.stored.run(run_id)
            assert row is not None
            assert row.cancelled_at is not None
            assert row.progress.ended_at is not None
            assert row.progress.ended_at - row.cancelled_at < 30, "it does not wait for the tool"


async def test_a_second_process_approves_a_parked_call_of_the_first(place: str) -> None:
    async with driver_program(place) as program, other(place) as r:
        program.send("start press")
        await program.next_report(event="CallParked")
        (question,) = await r.approvals()
        assert (question.tool, (await r.handle(question.run_id).look()).waiting_for) == ("press", "approval")

        await r.approve(question.id)

        assert (await program.next_report(ended=question.run_id))["text"] == "done"
        assert [event.text for event in log(r, "main") if isinstance(event, CallReturned)] == ["pressed"]
        assert await r.approvals() == []


async def test_a_process_suspended_beyond_its_lease_is_fenced_and_its_tree_finished(
    place: str,
) -> None:
    async with driver_program(place) as program:
        program.send("start dig")
        await program.next_report(looking=...)
        program.process.send_signal(signal.SIGSTOP)

        async with other(place, lease=0.5, adopt=True) as r:
            (root,) = await r.list()
            outcome = await r.handle(root.run_id).wait(timeout=PATIENCE)
            logs = log(r, "main"), log(r, "digger")

            program.process.send_signal(signal.SIGCONT)
            program.send("release")
            lost = await program.next_report(lost=root.run_id)
            program.send(f"try {root.run_id}")
            refused = await program.next_report(errors=...)
            assert program.process.stdin is not None
            program.process.stdin.close()
            async with asyncio.timeout(PATIENCE):
                await program.process.wait()

            assert (outcome.result, outcome.text) == ("completed", "done")
            assert [[type(event) for event in events].count(RunAdopted) for events in logs] == [1, 1]
            assert [isinstance(events[-1], RunEnded) for events in logs] == [True, True]
            assert lost == {"lost": root.run_id, "error": "Fenced"}
            assert refused == {"errors": ["Fenced", "Fenced", "Fenced"]}
            assert program.process.returncode == 0, "it goes quietly, and leaves what is not its own any more"
            assert (log(r, "main"), log(r, "digger")) == logs
            assert len(await r.list(everyone=True)) == 2
