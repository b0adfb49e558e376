"""The daemon's loop on held time: it starts jobs at their moment, and takes over what others leave."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from retinue.core.commands import Change, Decide, WriteResult
from retinue.core.ids import Key, SessionId
from retinue.dispatch.cron.claims import MOST_CRASHES
from retinue.dispatch.cron.daemon import GONE, LEASE, POLL, Daemon
from retinue.dispatch.cron.jobs import AgentWork, Claim, HistoryEntry, Job, Owner, ShellWork, Work
from retinue.dispatch.cron.schedule import Every
from retinue.dispatch.cron.table import CronTable
from retinue.engine import this_host, this_process
from retinue.store.memory.store import MemoryStore
from retinue.testing.virtual_time import VirtualClock

HERE = Owner(this_host(), this_process())
ELSEWHERE = Owner("elsewhere", "1")
ASK = AgentWork(agent="dig", prompt="Dig.")


class DirectShelf:
    """A shelf in a store, with nobody in between."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    async def look(self, space: str) -> Mapping[str, bytes]:
        return self.store.key_value(space)

    async def change(
        self, space: str, decide: Decide, *, key: Key | None = None, session_id: SessionId | None = None
    ) -> WriteResult:
        (answer,) = self.store.commit(None, [Change(space=space, decide=decide, key=key, session_id=session_id)])
        return answer


class Stage:
    """A daemon whose jobs take no time, and the moments at which it started them."""

    def __init__(self, wrong: str = "") -> None:
        self.clock = VirtualClock()
        self.begin = self.clock.now()
        self.cron_table = CronTable(DirectShelf())
        self.daemon = Daemon(self.cron_table, self.clock, HERE, self.launch, most=4)
        self.started: list[tuple[str, float, int]] = []
        self._wrong = wrong

    async def launch(self, claim: Claim) -> str:
        self.started.append((claim.name, self.clock.now() - self.begin, claim.attempt))
        if self._wrong:
            return self._wrong
        await self.cron_table.start(claim, owner=HERE, now=self.clock.now())
        await self.cron_table.finish(claim, "ok")
        return ""

    async def add(self, name: str, seconds: int, work: Work = ASK) -> None:
        due = self.begin + seconds
        schedule = Every(seconds * 1000, since=self.begin)
        await self.cron_table.add(Job(name=name, born="1", schedule=schedule, work=work, next_run=due))

    async def run_for(self, seconds: float) -> None:
        running = asyncio.ensure_future(self.daemon.run())
        await asyncio.sleep(seconds)
        self.daemon.stop()
        await running


async def test_jobs_are_started_at_their_moments() -> None:
    stage = Stage()
    await stage.add("a", 3)
    await stage.add("b", 5)

    await stage.run_for(10.1)

    assert [(name, round(at, 3)) for name, at, _ in stage.started] == [
        ("a", 3.0),
        ("b", 5.0),
        ("a", 6.0),
        ("a", 9.0),
        ("b", 10.0),
    ]


async def test_a_process_of_another_machine_is_gone_once_it_has_not_stirred_for_long() -> None:
    stage = Stage()
    for name, work in (("a", ASK), ("s", ShellWork(command="ls"))):
        await stage.add(name, 3600, work)
    claims = (await stage.cron_table.claim_due(now=stage.begin + 3600, owner=ELSEWHERE, most=2)).claims
    for claim in claims:
        await stage.cron_table.start(claim, owner=ELSEWHERE, now=stage.begin)

    await stage.run_for(LEASE - 2 * POLL)
    assert stage.started == []
    stage.daemon = Daemon(stage.cron_table, stage.clock, HERE, stage.launch, most=4)
    await stage.run_for(LEASE + 2 * POLL)

    assert [(name, attempt) for name, _, attempt in stage.started] == [("a", 2)]
    (told,) = await stage.cron_table.firings("s")
    assert (told.status, told.error) == ("interrupted", GONE)


async def test_a_process_of_another_machine_that_stirs_is_left_alone() -> None:
    stage = Stage()
    await stage.add("a", 3600)
    (claim,) = (await stage.cron_table.claim_due(now=stage.begin + 3600, owner=ELSEWHERE, most=2)).claims
    running = asyncio.ensure_future(stage.daemon.run())
    for _ in range(8):
        await asyncio.sleep(LEASE / 2)
        assert await stage.cron_table.beat(claim)
    stage.daemon.stop()
    await running

    assert stage.started == []


async def test_what_cannot_be_started_is_tried_a_few_times_and_then_told() -> None:
    stage = Stage(wrong="no memory left")
    await stage.add("a", 1)

    await stage.run_for(1.2)

    assert [attempt for _, _, attempt in stage.started] == list(range(1, MOST_CRASHES + 1))
    (told,) = await stage.cron_table.firings("a")
    due = stage.begin + 1
    assert told == HistoryEntry(
        name="a", due=due, ended_at=told.ended_at, status="failed", error="it could not be started: no memory left"
    )
    assert (await stage.cron_table.job("a")).last_status == "failed"


async def test_once_does_what_is_due_by_now_and_leaves() -> None:
    stage = Stage()
    await stage.add("a", 1)
    await stage.add("b", 50)
    await asyncio.sleep(10)

    await stage.daemon.run_once()

    assert [name for name, _, _ in stage.started] == ["a"]
