"""Who does a job for a due moment: one process gets it, and if that process goes, another may take it over.

Everything here is pure, and each function is one decision: a job's next moment moves on in the same step in which the
claim is made. What an agent is asked is taken over as often as it takes, because its run goes on where it stopped; a
command that had begun is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from retinue.dispatch.cron.jobs import AgentWork, Claim, Job, Owner, Table
from retinue.dispatch.cron.schedule import next_due

GRACE = 60.0
"""Seconds that a job may be late without having missed its moment."""

MOST_CRASHES = 5
"""How often a process may go in the middle of the same work before it is given up."""

NOBODY = Owner()


class Overlooked(Struct, frozen=True):
    """Moments of a job, from `due` on, at which nobody was there, and which are not made up for."""

    name: str
    due: float


class Verdicts(Struct, frozen=True, kw_only=True):
    """What a decision came to: claims to be carried out now, work that is not done again, and missed moments."""

    claims: tuple[Claim, ...] = ()
    interrupted: tuple[Claim, ...] = ()
    given_up: tuple[Claim, ...] = ()
    overlooked: tuple[Overlooked, ...] = ()


def is_due(table: Table, now: float) -> bool:
    """Whether there is a job to be claimed now."""
    return any(_is_due(table, job, now) for job in table.jobs.values())


def next_moment(table: Table) -> float | None:
    """When the next job is due that nobody is doing."""
    moments = [
        job.next_run
        for job in table.jobs.values()
        if job.next_run is not None and not job.paused and table.claim_of(job) is None
    ]
    return min(moments, default=None)


def _is_due(table: Table, job: Job, now: float) -> bool:
    return not job.paused and job.next_run is not None and job.next_run <= now and table.claim_of(job) is None


def claim_due(table: Table, *, now: float, owner: Owner, most: int) -> tuple[Table, Verdicts]:
    """Claim what is due, the longest overdue first, as long as no more than `most` jobs are at work.

    However many moments have passed since a job was last due, it is claimed once. A job that is still being done is
    not due: what it misses meanwhile is treated as if nobody had been there.
    """
    claims: list[Claim] = []
    overlooked: list[Overlooked] = []
    for job in sorted(table.jobs.values(), key=lambda job: (job.next_run or 0.0, job.name)):
        if not _is_due(table, job, now) or job.next_run is None:
            continue
        due = _moment(job, job.next_run, now)
        if due is not None and len(table.claims) >= most:
            continue
        table = table.with_job(replace(job, next_run=next_due(job.schedule, now)))
        if due is None:
            overlooked.append(Overlooked(job.name, job.next_run))
            continue
        claim = Claim(name=job.name, born=job.born, due=due, owner=owner)
        table = table.with_claim(claim)
        claims.append(claim)
    return table, Verdicts(claims=tuple(claims), overlooked=tuple(overlooked))


def _moment(job: Job, first: float, now: float) -> float | None:
    """The moment for which a job is done now; None if all that have passed are to be left out."""
    if job.missed == "once" or now - first <= GRACE:
        return first
    recent = next_due(job.schedule, now - GRACE)
    return recent if recent is not None and recent <= now else None


def take_over(table: Table, gone: Sequence[Claim], *, owner: Owner) -> tuple[Table, Verdicts]:
    """Claim what was claimed by processes that are gone, as they left it."""
    claims: list[Claim] = []
    interrupted: list[Claim] = []
    given_up: list[Claim] = []
    for old in gone:
        claim = table.claims.get(old.place)
        if claim is None or (claim.attempt, claim.owner, claim.beat) != (old.attempt, old.owner, old.beat):
            continue  # somebody was faster, or it has stirred after all
        job = table.job_of(claim)
        begun = claim.state == "started"
        crashes = claim.crashes + (begun and claim.owner != NOBODY)
        if job is None or (begun and not isinstance(job.work, AgentWork)):
            interrupted.append(claim)
            table = _over(table, claim, "interrupted")
        elif crashes >= MOST_CRASHES:
            given_up.append(claim)
            table = _over(table, claim, "failed")
        else:
            again = replace(claim, owner=owner, attempt=claim.attempt + 1, state="claimed", crashes=crashes)
            table = table.with_claim(again)
            claims.append(again)
    return table, Verdicts(claims=tuple(claims), interrupted=tuple(interrupted), given_up=tuple(given_up))


def start(table: Table, claim: Claim, *, owner: Owner, now: float) -> tuple[Table, bool]:
    """The process `owner` is about to do what was claimed; False if the claim is another's by now: then it must not."""
    held = _held(table, claim)
    if held is None or held.state != "claimed":
        return table, False
    table = table.with_claim(replace(held, owner=owner, state="started", counted=True))
    job = table.job_of(claim)
    return (table if job is None else table.with_job(replace(job, last_run=now))), True


def beat(table: Table, claim: Claim) -> tuple[Table, bool]:
    """Whoever does it is alive; False if the claim is another's by now."""
    held = _held(table, claim)
    return (table, False) if held is None else (table.with_claim(replace(held, beat=held.beat + 1)), True)


def release(table: Table, claim: Claim) -> tuple[Table, bool]:
    """Whoever did it stops in good order: the claim is nobody's, and the next process takes it over."""
    held = _held(table, claim)
    return (table, False) if held is None else (table.with_claim(replace(held, owner=NOBODY)), True)


def finish(table: Table, claim: Claim, status: str) -> tuple[Table, bool]:
    """It is over; False if the claim is another's by now, and then nothing changes."""
    held = _held(table, claim)
    return (table, False) if held is None else (_over(table, held, status), True)


def begin_again(table: Table, claim: Claim) -> tuple[Table, Verdicts]:
    """Whoever was to do it has gone without beginning: claim it anew, unless that happens every time.

    Nothing changes if it has begun, or if the claim is another's by now.
    """
    held = _held(table, claim)
    if held is None or held.state != "claimed":
        return table, Verdicts()
    crashes = held.crashes + 1
    if crashes >= MOST_CRASHES:
        return _over(table, held, "failed"), Verdicts(given_up=(held,))
    again = replace(held, attempt=held.attempt + 1, crashes=crashes)
    return table.with_claim(again), Verdicts(claims=(again,))


def note(table: Table, job: Job, *, started: float, status: str) -> Table:
    """A job was done by hand."""
    now = table.jobs.get(job.name)
    if now is None or now.born != job.born:
        return table
    return table.with_job(replace(now, last_run=started, last_status=status))


def gone_among(table: Table, is_gone: Callable[[Owner], bool]) -> list[Claim]:
    """The claims whose process is gone, as far as anyone can tell."""
    return [claim for claim in table.claims.values() if claim.owner == NOBODY or is_gone(claim.owner)]


def _held(table: Table, claim: Claim) -> Claim | None:
    held = table.claims.get(claim.place)
    return held if held is not None and held.attempt == claim.attempt else None


def _over(table: Table, claim: Claim, status: str) -> Table:
    table = table.without_claim(claim)
    job = table.job_of(claim)
    return table if job is None else table.with_job(replace(job, last_status=status))
