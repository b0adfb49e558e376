"""Claims on due moments: one process gets a claim, and another may take it over if that process dies.

Everything here is pure, and each function is one decision: a job's next moment advances in the same step in which the
claim is made. An agent's run is taken over repeatedly, because it continues where it stopped; a command that had
started is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from retinue.dispatch.cron.jobs import AgentWork, Claim, ClaimOwner, Job, JobTable
from retinue.dispatch.cron.schedule import next_due

GRACE = 60.0
"""Seconds that an execution may be late before its moment counts as missed."""

MAX_CRASHES = 5
"""Crashes during one claim after which it is given up."""

NO_OWNER = ClaimOwner()


Wanted: TypeAlias = Callable[[Job], bool]
"""Whether a process executes a job; it leaves the claims of others alone."""


def every_job(_: Job) -> bool:
    """What a daemon executes."""
    return True


class SkippedMoments(Struct, frozen=True):
    """Missed moments of a job, from `due` on, that are skipped."""

    name: str
    due: float


class Verdicts(Struct, frozen=True, kw_only=True):
    """The results of a decision: claims to execute now, claims that are not repeated, and skipped moments."""

    claims: tuple[Claim, ...] = ()
    interrupted: tuple[Claim, ...] = ()
    given_up: tuple[Claim, ...] = ()
    skipped: tuple[SkippedMoments, ...] = ()


def is_due(table: JobTable, now: float, wanted: Wanted = every_job) -> bool:
    """Whether a job can be claimed now."""
    return any(_is_due(table, job, now) and wanted(job) for job in table.jobs.values())


def next_moment(table: JobTable, wanted: Wanted = every_job) -> float | None:
    """The next due moment of all jobs without a claim."""
    moments = [
        job.next_run
        for job in table.jobs.values()
        if job.next_run is not None and not job.paused and table.claim_of(job) is None and wanted(job)
    ]
    return min(moments, default=None)


def _is_due(table: JobTable, job: Job, now: float) -> bool:
    return not job.paused and job.next_run is not None and job.next_run <= now and table.claim_of(job) is None


def claim_due(
    table: JobTable, *, now: float, owner: ClaimOwner, max_running: int, wanted: Wanted = every_job
) -> tuple[JobTable, Verdicts]:
    """Claim due jobs, the longest overdue first, while fewer than `max_running` are claimed.

    However many moments of a job have passed, it is claimed once. A job with a claim is not due: the moments that pass
    meanwhile count as missed.
    """
    claims: list[Claim] = []
    skipped: list[SkippedMoments] = []
    for job in sorted(table.jobs.values(), key=lambda job: (job.next_run or 0.0, job.name)):
        if not _is_due(table, job, now) or job.next_run is None or not wanted(job):
            continue
        due = _moment(job, job.next_run, now)
        if due is not None and len(table.claims) >= max_running:
            continue
        table = table.with_job(replace(job, next_run=next_due(job.schedule, now)))
        if due is None:
            skipped.append(SkippedMoments(job.name, job.next_run))
            continue
        claim = Claim(name=job.name, creation_id=job.creation_id, due=due, owner=owner)
        table = table.with_claim(claim)
        claims.append(claim)
    return table, Verdicts(claims=tuple(claims), skipped=tuple(skipped))


def _moment(job: Job, first: float, now: float) -> float | None:
    """The moment for which a job is executed now; None if all passed moments are skipped."""
    if job.missed == "once" or now - first <= GRACE:
        return first
    recent = next_due(job.schedule, now - GRACE)
    return recent if recent is not None and recent <= now else None


def claim_now(table: JobTable, job: Job, *, now: float, owner: ClaimOwner) -> tuple[JobTable, Verdicts]:
    """Claim a job because a person asks for it; its schedule stays.

    Nothing is claimed while a process executes the job, or if the job was removed or replaced.
    """
    known = table.jobs.get(job.name)
    if known is None or known.creation_id != job.creation_id or table.claim_of(known) is not None:
        return table, Verdicts()
    claim = Claim(name=job.name, creation_id=job.creation_id, due=now, owner=owner, by_hand=True)
    return table.with_claim(claim), Verdicts(claims=(claim,))


def take_over(table: JobTable, gone: Sequence[Claim], *, owner: ClaimOwner) -> tuple[JobTable, Verdicts]:
    """Take over the claims of dead processes."""
    claims: list[Claim] = []
    interrupted: list[Claim] = []
    given_up: list[Claim] = []
    for old in gone:
        claim = table.claims.get(old.place)
        if claim is None or (claim.attempt, claim.owner, claim.beat) != (old.attempt, old.owner, old.beat):
            continue  # another process was faster, or the owner is alive after all
        job = table.job_of(claim)
        begun = claim.state == "started"
        crashes = claim.crashes + (begun and claim.owner != NO_OWNER)
        if job is None or (begun and not isinstance(job.work, AgentWork)):
            interrupted.append(claim)
            table = _over(table, claim, "interrupted")
        elif crashes >= MAX_CRASHES:
            given_up.append(claim)
            table = _over(table, claim, "failed")
        else:
            again = replace(claim, owner=owner, attempt=claim.attempt + 1, state="claimed", crashes=crashes)
            table = table.with_claim(again)
            claims.append(again)
    return table, Verdicts(claims=tuple(claims), interrupted=tuple(interrupted), given_up=tuple(given_up))


def start(table: JobTable, claim: Claim, *, owner: ClaimOwner, now: float) -> tuple[JobTable, bool]:
    """Mark a claim as started by `owner`; False if it is lost, and then the job must not be executed."""
    held = _held(table, claim)
    if held is None or held.state != "claimed":
        return table, False
    table = table.with_claim(replace(held, owner=owner, state="started", counted=True))
    job = table.job_of(claim)
    return (table if job is None else table.with_job(replace(job, last_run=now))), True


def beat(table: JobTable, claim: Claim) -> tuple[JobTable, bool]:
    """Renew a claim; False if it is lost."""
    held = _held(table, claim)
    return (table, False) if held is None else (table.with_claim(replace(held, beat=held.beat + 1)), True)


def release(table: JobTable, claim: Claim) -> tuple[JobTable, bool]:
    """Give a claim up without an owner, for the next process to take over; False if it is lost."""
    held = _held(table, claim)
    return (table, False) if held is None else (table.with_claim(replace(held, owner=NO_OWNER)), True)


def finish(table: JobTable, claim: Claim, status: str) -> tuple[JobTable, bool]:
    """End a claim; False if it is lost, and then nothing changes."""
    held = _held(table, claim)
    return (table, False) if held is None else (_over(table, held, status), True)


def begin_again(table: JobTable, claim: Claim) -> tuple[JobTable, Verdicts]:
    """Claim a job again whose process ended before it started, up to the maximum of crashes.

    Nothing changes if it has started, or if the claim is lost.
    """
    held = _held(table, claim)
    if held is None or held.state != "claimed":
        return table, Verdicts()
    crashes = held.crashes + 1
    if crashes >= MAX_CRASHES:
        return _over(table, held, "failed"), Verdicts(given_up=(held,))
    again = replace(held, attempt=held.attempt + 1, crashes=crashes)
    return table.with_claim(again), Verdicts(claims=(again,))


def note(table: JobTable, job: Job, *, started: float, status: str) -> JobTable:
    """The table with the status of an execution on request."""
    now = table.jobs.get(job.name)
    if now is None or now.creation_id != job.creation_id:
        return table
    return table.with_job(replace(now, last_run=started, last_status=status))


def gone_among(table: JobTable, is_gone: Callable[[ClaimOwner], bool], wanted: Wanted = every_job) -> list[Claim]:
    """The claims on wanted or removed jobs without an owner, or whose owner is dead by `is_gone`."""
    gone = [claim for claim in table.claims.values() if claim.owner == NO_OWNER or is_gone(claim.owner)]
    return [claim for claim in gone if (job := table.job_of(claim)) is None or wanted(job)]


def _held(table: JobTable, claim: Claim) -> Claim | None:
    held = table.claims.get(claim.place)
    return held if held is not None and (held.due, held.attempt) == (claim.due, claim.attempt) else None


def _over(table: JobTable, claim: Claim, status: str) -> JobTable:
    table = table.without_claim(claim)
    job = table.job_of(claim)
    return table if job is None else table.with_job(replace(job, last_status=status))
