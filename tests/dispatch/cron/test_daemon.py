"""The daemon's loop in virtual time: starting due jobs, and taking over claims of dead processes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from retinue.core.commands import Change, Decide, WriteResult
from retinue.core.ids import Key, SessionId
from retinue.dispatch.cron.claims import MAX_CRASHES, NO_OWNER
from retinue.dispatch.cron.daemon import GONE, LEASE, NOTHING_DONE, POLL, Daemon
from retinue.dispatch.cron.jobs import AgentWork, Claim, ClaimOwner, HistoryEntry, Job, JobWork, ShellWork, entry_of
from retinue.dispatch.cron.schedule import Every
from retinue.dispatch.cron.table import CronTable
from retinue.engine import this_host, this_process
from retinue.store.memory.store import MemoryStore
from retinue.testing.virtual_time import VirtualClock

HERE = ClaimOwner(this_host(), this_process())
ELSEWHERE = ClaimOwner("elsewhere", "1")
ASK = AgentWork(agent="dig", prompt="Dig.")


class DirectKeyValue:
    """Key-value access to a store without an engine."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    async def look(self, space: str) -> Mapping[str, bytes]:
        return self.store.key_value(space)

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        (answer,) = self.store.commit(None, [Change(space=space, decide=decide, key=key, session_id=session_id)])
        return answer


class DaemonHarness:
    """A daemon whose jobs take no time, and the times at which it started them."""

    def __init__(self, error: str = "") -> None:
        self.clock = VirtualClock()
        self.begin = self.clock.now()
        self.cron_table = CronTable(DirectKeyValue())
        self.daemon = Daemon(self.cron_table, self.clock, HERE, self.launch, max_running=4)
        self.started: list[tuple[str, float, int]] = []
        self._error = error

    async def launch(self, claim: Claim) -> str:
        self.started.append((claim.name, self.clock.now() - self.begin, claim.attempt))
        if self._error:
            return self._error
        await self.cron_table.start(claim, owner=HERE, now=self.clock.now())
        await self.cron_table.finish(claim, "ok")
        return ""

    async def add(self, name: str, seconds: int, work: JobWork = ASK) -> None:
        due = self.begin + seconds
        schedule = Every(seconds * 1000, since=self.begin)
        await self.cron_table.add(Job(name=name, creation_id="1", schedule=schedule, work=work, next_run=due))

    async def run_for(self, seconds: float) -> None:
        running = asyncio.ensure_future(self.daemon.run())
        await asyncio.sleep(seconds)
        self.daemon.stop()
        await running


async def test_an_execution_by_hand_is_taken_over_by_a_daemon_with_the_same_entry() -> None:
    harness = DaemonHarness()
    await harness.add("a", 1000)
    before = (await harness.cron_table.table()).jobs["a"]
    claim = await harness.cron_table.claim_now(before, now=harness.clock.now(), owner=NO_OWNER)
    assert claim is not None
    await harness.cron_table.remember(entry_of(claim, owner=ELSEWHERE))

    await harness.daemon.run_once()

    table = await harness.cron_table.table()
    assert harness.started == [("a", 0.0, 2)]
    assert (table.claims, table.jobs["a"].next_run) == ({}, before.next_run)
    (entry,) = await harness.cron_table.history("a")
    assert (entry.due, entry.started_at) == (None, harness.begin)


async def test_a_process_that_does_not_find_the_job_is_no_success() -> None:
    harness = DaemonHarness()
    await harness.add("a", 1000)

    async def nothing(claim: Claim) -> str:
        harness.started.append((claim.name, 0.0, claim.attempt))
        return ""

    daemon = Daemon(harness.cron_table, harness.clock, HERE, nothing, max_running=0)
    await daemon.run_now("a")
    await daemon.finish()

    (entry,) = await harness.cron_table.history("a")
    assert len(harness.started) == MAX_CRASHES
    assert (entry.status, entry.error) == ("failed", f"it could not be started: {NOTHING_DONE}")
    assert (await harness.cron_table.table()).claims == {}


async def test_jobs_are_started_at_their_moments() -> None:
    harness = DaemonHarness()
    await harness.add("a", 3)
    await harness.add("b", 5)

    await harness.run_for(10.1)

    assert [(name, round(at, 3)) for name, at, _ in harness.started] == [
        ("a", 3.0),
        ("b", 5.0),
        ("a", 6.0),
        ("a", 9.0),
        ("b", 10.0),
    ]


async def test_a_remote_process_without_heartbeat_counts_as_dead() -> None:
    harness = DaemonHarness()
    for name, work in (("a", ASK), ("s", ShellWork(command="ls"))):
        await harness.add(name, 3600, work)
    claims = (await harness.cron_table.claim_due(now=harness.begin + 3600, owner=ELSEWHERE, max_running=2)).claims
    for claim in claims:
        await harness.cron_table.start(claim, owner=ELSEWHERE, now=harness.begin)

    await harness.run_for(LEASE - 2 * POLL)
    assert harness.started == []
    harness.daemon = Daemon(harness.cron_table, harness.clock, HERE, harness.launch, max_running=4)
    await harness.run_for(LEASE + 2 * POLL)

    assert [(name, attempt) for name, _, attempt in harness.started] == [("a", 2)]
    (entry,) = await harness.cron_table.history("s")
    assert (entry.status, entry.error) == ("interrupted", GONE)


async def test_a_remote_process_with_heartbeat_is_left_alone() -> None:
    harness = DaemonHarness()
    await harness.add("a", 3600)
    (claim,) = (await harness.cron_table.claim_due(now=harness.begin + 3600, owner=ELSEWHERE, max_running=2)).claims
    running = asyncio.ensure_future(harness.daemon.run())
    for _ in range(8):
        await asyncio.sleep(LEASE / 2)
        assert await harness.cron_table.beat(claim)
    harness.daemon.stop()
    await running

    assert harness.started == []


async def test_a_job_that_cannot_be_started_is_retried_and_then_failed() -> None:
    harness = DaemonHarness(error="no memory left")
    await harness.add("a", 1)

    await harness.run_for(1.2)

    assert [attempt for _, _, attempt in harness.started] == list(range(1, MAX_CRASHES + 1))
    (entry,) = await harness.cron_table.history("a")
    due = harness.begin + 1
    assert entry == HistoryEntry(
        name="a", due=due, ended_at=entry.ended_at, status="failed", error="it could not be started: no memory left"
    )
    assert (await harness.cron_table.job("a")).last_status == "failed"


async def test_run_once_executes_due_jobs_and_returns() -> None:
    harness = DaemonHarness()
    await harness.add("a", 1)
    await harness.add("b", 50)
    await asyncio.sleep(10)

    await harness.daemon.run_once()

    assert [name for name, _, _ in harness.started] == ["a"]
