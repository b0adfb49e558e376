"""Decisions about jobs and claims; no job is executed twice, whichever process dies at any time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from retinue.core.errors import BadInput
from retinue.dispatch.cron import claims, jobs
from retinue.dispatch.cron.claims import GRACE, MAX_CRASHES, NO_OWNER, SkippedMoments, Verdicts
from retinue.dispatch.cron.jobs import AgentWork, Claim, ClaimOwner, Job, JobTable, JobWork, Missed, ShellWork
from retinue.dispatch.cron.schedule import At, Every, Schedule

OFTEN = Every(10_000)
HERE = ClaimOwner("host", "1")
THERE = ClaimOwner("host", "2")
ASK = AgentWork(agent="dig", prompt="Dig.")
RUN = ShellWork(command="ls")


def job(
    name: str = "a",
    *,
    work: JobWork = ASK,
    schedule: Schedule = OFTEN,
    due: float | None = 10.0,
    missed: Missed = "once",
) -> Job:
    return Job(name=name, creation_id=f"{name}1", schedule=schedule, work=work, next_run=due, missed=missed)


def table(*known: Job) -> JobTable:
    return JobTable({each.name: each for each in known})


def claimed(
    before: JobTable, now: float, *, owner: ClaimOwner = HERE, max_running: int = 4
) -> tuple[JobTable, Verdicts]:
    return claims.claim_due(before, now=now, owner=owner, max_running=max_running)


# ---- due moments -----------------------------------------------------------------------------------------------------


def test_a_job_is_claimed_by_hand_only_while_it_is_not_executed() -> None:
    before = table(job(due=100.0))
    after, first = claims.claim_now(before, before.jobs["a"], now=7.0, owner=HERE)
    again, second = claims.claim_now(after, before.jobs["a"], now=8.0, owner=THERE)
    over, _ = claims.finish(*claimed_as(after, first), "ok")
    _, third = claims.claim_now(over, before.jobs["a"], now=9.0, owner=HERE)
    removed, none = claims.claim_now(table(), before.jobs["a"], now=9.0, owner=HERE)

    claim = Claim(name="a", creation_id="a1", due=7.0, owner=HERE, by_hand=True)
    assert (first, second, again) == (Verdicts(claims=(claim,)), Verdicts(), after)
    assert (third.claims[0].due, over.jobs["a"].next_run) == (9.0, 100.0)
    assert (removed, none) == (table(), Verdicts())


def test_a_claim_that_is_over_does_not_touch_the_one_of_the_next_moment() -> None:
    after, first = claimed(table(job(due=10.0)), 10.0)
    over, _ = claims.finish(*claimed_as(after, first), "ok")
    again, second = claimed(over, 20.0)

    assert [claim.due for claim in (*first.claims, *second.claims)] == [10.0, 20.0]
    assert claims.begin_again(again, first.claims[0]) == (again, Verdicts())
    assert claims.beat(again, first.claims[0]) == (again, False)
    assert claims.finish(again, first.claims[0], "failed") == (again, False)


def test_a_job_that_is_executed_by_hand_is_not_due_meanwhile() -> None:
    before = table(job(due=10.0))
    after, _ = claims.claim_now(before, before.jobs["a"], now=7.0, owner=HERE)

    assert claimed(after, 10.0) == (after, Verdicts())
    assert not claims.is_due(after, 10.0)


def claimed_as(after: JobTable, verdicts: Verdicts) -> tuple[JobTable, Claim]:
    return after, verdicts.claims[0]


def test_a_due_job_is_claimed_once_and_is_due_again_later() -> None:
    before = table(job())

    after, verdicts = claimed(before, 12.0)
    again, nothing = claimed(after, 12.0, owner=THERE)

    claim = Claim(name="a", creation_id="a1", due=10.0, owner=HERE)
    assert verdicts == Verdicts(claims=(claim,))
    assert after == JobTable({"a": replace(job(), next_run=20.0)}, {"a/a1": claim})
    assert (again, nothing) == (after, Verdicts())


def test_nothing_is_claimed_before_it_is_due_or_while_it_is_paused() -> None:
    for before in (table(job(due=12.1)), table(replace(job(), paused=True)), table(job(due=None))):
        assert claimed(before, 12.0) == (before, Verdicts())
        assert not claims.is_due(before, 12.0)


@pytest.mark.parametrize("schedule", [Every(10_000), At(10.0)])
def test_missed_moments_are_executed_once(schedule: Schedule) -> None:
    after, verdicts = claimed(table(job(schedule=schedule)), 10_005.0)

    assert [claim.due for claim in verdicts.claims] == [10.0]
    assert after.jobs["a"].next_run == (10_010.0 if isinstance(schedule, Every) else None)


def test_missed_moments_are_skipped_with_missed_skip() -> None:
    hourly = job(schedule=Every(3_600_000), due=3600.0, missed="skip")

    after, verdicts = claimed(table(hourly), 3 * 3600 + GRACE + 1)
    assert verdicts == Verdicts(skipped=(SkippedMoments("a", 3600.0),))
    assert after == table(replace(hourly, next_run=4 * 3600.0))

    _, late = claimed(table(hourly), 3600 + GRACE)
    assert [claim.due for claim in late.claims] == [3600.0]
    _, latest = claimed(table(hourly), 3 * 3600 + GRACE - 1)
    assert [claim.due for claim in latest.claims] == [3 * 3600.0]


def test_a_claimed_job_is_not_due() -> None:
    after, _ = claimed(table(job()), 10.0)

    assert claimed(after, 25.0) == (after, Verdicts())
    assert claims.next_moment(after) is None

    done, ours = claims.finish(after, after.claims["a/a1"], "ok")
    assert ours
    assert [claim.due for claim in claimed(done, 25.0)[1].claims] == [20.0]


def test_claims_are_limited_and_the_longest_overdue_come_first() -> None:
    before = table(job("a", due=9.0), job("b", due=7.0), job("c", due=8.0))

    after, verdicts = claimed(before, 10.0, max_running=2)

    assert [claim.name for claim in verdicts.claims] == ["b", "c"]
    assert claims.is_due(after, 10.0)
    assert claimed(after, 10.0, max_running=2, owner=THERE) == (after, Verdicts())


# ---- execution -------------------------------------------------------------------------------------------------------


def test_only_the_holder_of_a_claim_starts_it_and_only_once() -> None:
    after, verdicts = claimed(table(job()), 10.0)
    (claim,) = verdicts.claims
    moved, again = claims.take_over(after, [claim], owner=THERE)

    assert claims.start(moved, claim, owner=HERE, now=11.0) == (moved, False)
    begun, ours = claims.start(moved, again.claims[0], owner=THERE, now=11.0)
    assert ours
    assert begun.jobs["a"].last_run == 11.0
    assert claims.start(begun, again.claims[0], owner=THERE, now=12.0) == (begun, False)


def test_a_lost_claim_changes_nothing() -> None:
    after, verdicts = claimed(table(job()), 10.0)
    (claim,) = verdicts.claims
    moved, _ = claims.take_over(after, [claim], owner=THERE)

    for outdated in (
        claims.finish(moved, claim, "ok"),
        claims.beat(moved, claim),
        claims.release(moved, claim),
    ):
        assert outdated == (moved, False)
    assert claims.begin_again(moved, claim) == (moved, Verdicts())


def test_a_process_with_heartbeat_is_not_taken_over() -> None:
    after, verdicts = claimed(table(job()), 10.0)
    beaten, ours = claims.beat(after, verdicts.claims[0])

    assert ours
    assert claims.take_over(beaten, verdicts.claims, owner=THERE) == (beaten, Verdicts())


def begun(work: JobWork) -> tuple[JobTable, Claim]:
    after, verdicts = claimed(table(job(work=work)), 10.0)
    after, _ = claims.start(after, verdicts.claims[0], owner=HERE, now=11.0)
    return after, after.claims["a/a1"]


def test_a_started_command_is_not_repeated() -> None:
    before, claim = begun(RUN)

    after, verdicts = claims.take_over(before, [claim], owner=THERE)

    assert verdicts == Verdicts(interrupted=(claim,))
    assert (after.claims, after.jobs["a"].last_status) == ({}, "interrupted")


def test_an_agents_claim_keeps_its_key_until_too_many_crashes() -> None:
    before, claim = begun(ASK)
    key, session = claim.key, claim.session_id

    for attempt in range(2, MAX_CRASHES + 1):
        before, verdicts = claims.take_over(before, [claim], owner=THERE)
        (claim,) = verdicts.claims
        assert (claim.key, claim.session_id, claim.attempt, claim.counted) == (key, session, attempt, True)
        before, _ = claims.start(before, claim, owner=HERE, now=12.0)
        claim = before.claims["a/a1"]
    after, verdicts = claims.take_over(before, [claim], owner=THERE)

    assert verdicts == Verdicts(given_up=(claim,))
    assert (after.claims, after.jobs["a"].last_status) == ({}, "failed")


def test_a_released_claim_is_taken_over_without_counting_a_crash() -> None:
    before, claim = begun(ASK)
    released, _ = claims.release(before, claim)

    (gone,) = claims.gone_among(released, lambda owner: False)
    _, verdicts = claims.take_over(released, [gone], owner=THERE)

    assert gone.owner == NO_OWNER
    assert [(again.attempt, again.crashes) for again in verdicts.claims] == [(2, 0)]


def test_an_unstarted_claim_is_renewed_until_too_many_crashes() -> None:
    before, verdicts = claimed(table(job(work=RUN)), 10.0)
    (claim,) = verdicts.claims

    for attempt in range(2, MAX_CRASHES + 1):
        before, verdicts = claims.begin_again(before, claim)
        (claim,) = verdicts.claims
        assert (claim.attempt, claim.owner) == (attempt, HERE)
    after, verdicts = claims.begin_again(before, claim)
    assert verdicts == Verdicts(given_up=(claim,))
    assert (after.claims, after.jobs["a"].last_status) == ({}, "failed")

    working, held = begun(ASK)
    assert claims.begin_again(working, held) == (working, Verdicts())


def test_a_removed_job_is_not_taken_over_and_its_successor_does_not_wait_for_it() -> None:
    before, claim = begun(ASK)
    without = jobs.remove(before, "a")
    anew = jobs.add(without, replace(job(), creation_id="a2"))

    assert [each.creation_id for each in claimed(anew, 10.0)[1].claims] == ["a2"]
    after, verdicts = claims.take_over(anew, [claim], owner=THERE)
    assert verdicts == Verdicts(interrupted=(claim,))
    assert after == table(replace(job(), creation_id="a2"))


# ---- changes by users -----------------------------------------------------------------------------------------------


def test_a_job_name_is_unique_unless_replaced() -> None:
    before = table(job())

    with pytest.raises(BadInput, match="a job named 'a' exists: use --replace to replace it"):
        jobs.add(before, job(work=RUN))
    assert jobs.add(before, job(work=RUN), instead=True) == table(job(work=RUN))


def test_moments_during_a_pause_are_skipped() -> None:
    paused = jobs.pause(table(job()), "a")

    assert claimed(paused, 50.0) == (paused, Verdicts())
    assert jobs.resume(paused, "a", now=55.0) == table(job(due=60.0))
    assert jobs.resume(table(job()), "a", now=55.0) == table(job())

    once = job(schedule=At(10.0))
    assert jobs.resume(jobs.pause(table(once), "a"), "a", now=55.0) == table(once)


def test_a_table_is_read_as_it_was_written() -> None:
    before, _ = begun(RUN)

    assert jobs.read(jobs.table_entries(before)) == before


# ---- dying daemons --------------------------------------------------------------------------------------------------


@dataclass
class Child:
    """A process that executes a claim; it may die before each step."""

    claim: Claim
    owner: ClaimOwner
    steps: Iterator[None] = field(default_factory=lambda: iter(()))


class Simulation:
    """A simulation of two daemons, their children and a store; deaths are noticed at once."""

    def __init__(self, names: list[str]) -> None:
        self.table = table(*(job(name, work=RUN if name.startswith("s") else ASK) for name in names))
        self.now = 10.0
        self.alive: set[ClaimOwner] = set()
        self.daemons: dict[int, ClaimOwner] = {}
        self.children: list[Child] = []
        self.started = 0
        self.claimed: set[str] = set()
        self.acted: Counter[str] = Counter()
        self.runs: set[str] = set()
        self.finished: Counter[str] = Counter()

    def process(self) -> ClaimOwner:
        self.started += 1
        owner = ClaimOwner("host", str(self.started))
        self.alive.add(owner)
        return owner

    def look(self, which: int) -> None:
        """One look of a daemon at the table."""
        if which not in self.daemons:
            self.daemons[which] = self.process()
        daemon = self.daemons[which]
        gone = claims.gone_among(self.table, lambda owner: owner not in self.alive)
        self.table, taken = claims.take_over(self.table, gone, owner=daemon)
        self.table, due = claims.claim_due(self.table, now=self.now, owner=daemon, max_running=3)
        self.launch((*taken.claims, *due.claims))

    def launch(self, claimed: Sequence[Claim]) -> None:
        for claim in claimed:
            self.claimed.add(claim.key)
            child = Child(claim, self.process())
            child.steps = self.execute(child)
            self.children.append(child)

    def execute(self, child: Child) -> Iterator[None]:
        yield
        self.table, ours = claims.start(self.table, child.claim, owner=child.owner, now=self.now)
        if not ours:
            return
        yield
        if child.claim.name.startswith("s"):
            self.acted[child.claim.key] += 1
        else:
            self.runs.add(child.claim.key)  # the engine: the same key is the same run
        yield
        self.table, ours = claims.finish(self.table, child.claim, "ok")
        self.finished[child.claim.key] += ours

    def step(self, child: Child) -> None:
        if next(child.steps, self) is self:
            self.kill_child(child)

    def kill_child(self, child: Child) -> None:
        """Its daemon, if alive, notices."""
        self.children.remove(child)
        self.alive.discard(child.owner)
        if child.claim.owner in self.alive:
            self.table, verdicts = claims.begin_again(self.table, child.claim)
            self.launch(verdicts.claims)

    def kill_daemon(self, which: int, *, launched: int) -> None:
        """Of its last claims only `launched` were started."""
        if which in self.daemons:
            self.alive.discard(self.daemons.pop(which))
            unlaunched = [child for child in self.children if child.claim.owner not in self.alive][launched:]
            for child in unlaunched:
                self.kill_child(child)

    def settle(self) -> None:
        """Run without further deaths until all claims are finished."""
        for _ in range(200):
            if not self.children and not self.table.claims:
                return
            for child in tuple(self.children):
                self.step(child)
            self.look(0)
        raise AssertionError(f"this never ends: {self.table}")


@given(st.integers(0, 2**32), st.integers(2, 5))
def test_after_any_crashes_a_command_ran_at_most_once_and_an_agent_once(seed: int, many: int) -> None:
    chance = random.Random(seed)
    simulation = Simulation([f"{kind}{number}" for number in range(many) for kind in "sa"])
    deaths = MAX_CRASHES - 1
    for _ in range(80):
        match chance.randrange(8):
            case 0 | 1:
                simulation.look(chance.randrange(2))
            case 2 | 3 | 4 | 5 if simulation.children:
                simulation.step(chance.choice(simulation.children))
            case 6 if deaths:
                deaths -= 1
                if simulation.children and chance.random() < 0.5:
                    simulation.kill_child(chance.choice(simulation.children))
                else:
                    simulation.kill_daemon(chance.randrange(2), launched=chance.randrange(3))
            case _:
                simulation.now += chance.choice((0.0, 1.0, 7.0))
    simulation.settle()

    commands = {key for key in simulation.claimed if key.startswith("cron/s")}
    assert simulation.claimed
    assert set(simulation.acted) <= commands
    assert not simulation.acted or max(simulation.acted.values()) == 1
    assert simulation.runs == simulation.claimed - commands
    assert {key: times for key, times in simulation.finished.items() if key in simulation.runs and times != 1} == {}
    assert set(simulation.finished) >= simulation.runs
