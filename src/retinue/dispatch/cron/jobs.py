"""Cron jobs, claims and the history of executions as data, and how they are stored.

Everything here is pure. The table is one key-value namespace, and every change of it is one decision about all of its
entries, so that of two processes with the same intention one succeeds. Each job's history has its own namespace.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.config.precedence import Flags
from retinue.core.commands import Decision
from retinue.core.errors import BadInput
from retinue.core.text import rfc3339
from retinue.dispatch.cron.schedule import UNITS, At, Cron, Every, Schedule, next_due

SPACE = "cron"
"""The key-value namespace of jobs and claims."""

Missed: TypeAlias = Literal["once", "skip"]
"""What happens to due moments without a daemon: one execution for all of them, or none."""

MISSED: tuple[Missed, ...] = ("once", "skip")

_JOB, _CLAIM = "job/", "claim/"


class AgentWork(Struct, frozen=True, kw_only=True, tag="agent", tag_field="type"):
    """A prompt for an agent of the settings."""

    agent: str
    prompt: str
    uses_memory: bool = True


class ShellWork(Struct, frozen=True, kw_only=True, tag="shell", tag_field="type"):
    """A command for the sandbox, under the policy of an agent, or the default policy."""

    command: str
    agent: str = ""


JobWork: TypeAlias = AgentWork | ShellWork


class JobPlace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a job was added: folder, settings file and model flags. Never a key, only the name of its variable."""

    workspace: str = ""
    config: str = ""
    model: str | None = None
    provider: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    no_sandbox: bool = False

    @property
    def flags(self) -> Flags:
        """The model flags that the job was added with."""
        return Flags(model=self.model, provider=self.provider, base_url=self.base_url, api_key_env=self.api_key_env)


class Job(Struct, frozen=True, kw_only=True):
    """Work with a schedule. `creation_id` distinguishes the job from an earlier one of the same name.

    `next_run` is the next due moment that is not claimed yet; None if there is none.
    """

    name: str
    creation_id: str = msgspec.field(name="born")
    schedule: Schedule
    work: JobWork
    place: JobPlace = JobPlace()
    tz: str | None = None
    missed: Missed = "once"
    paused: bool = False
    next_run: float | None = None
    last_run: float | None = None
    last_status: str | None = None


class ClaimOwner(Struct, frozen=True):
    """The process that a claim belongs to; empty for a released claim."""

    host: str = ""
    process: str = ""


class Claim(Struct, frozen=True, kw_only=True):
    """The right of one process to execute a job for one due moment.

    It is `claimed` until the executing process marks it `started`. A process that takes it over from a dead one
    increments `attempt`; a process with an older number has lost it.
    """

    name: str
    creation_id: str = msgspec.field(name="born")
    due: float
    owner: ClaimOwner
    attempt: int = 1
    state: Literal["claimed", "started"] = "claimed"
    crashes: int = 0
    counted: bool = False
    """Whether it was charged as an action already."""
    beat: int = 0
    by_hand: bool = False
    """Whether a person asked for it, at the moment `due`; the schedule does not know of it."""

    @property
    def key(self) -> str:
        """The idempotency key of its run; the same for every process that executes it."""
        return f"cron/{self.name}/{self.creation_id}/{self.due!r}"

    @property
    def session_id(self) -> str:
        """The session of its run; the same for every process, too."""
        return f"cron-{uuid.uuid5(uuid.NAMESPACE_OID, self.key)}"

    @property
    def place(self) -> str:
        """Its name among the stored entries."""
        return f"{self.name}/{self.creation_id}"


@dataclass(frozen=True, slots=True)
class JobTable:
    """All jobs by name, and all claims by place."""

    jobs: Mapping[str, Job] = field(default_factory=dict[str, Job])
    claims: Mapping[str, Claim] = field(default_factory=dict[str, Claim])

    def job_of(self, claim: Claim) -> Job | None:
        """The job of a claim, unless it was removed or replaced."""
        job = self.jobs.get(claim.name)
        return job if job is not None and job.creation_id == claim.creation_id else None

    def claim_of(self, job: Job) -> Claim | None:
        """The claim under which a job is executed now."""
        return self.claims.get(f"{job.name}/{job.creation_id}")

    def with_job(self, job: Job) -> JobTable:
        return JobTable({**self.jobs, job.name: job}, self.claims)

    def with_claim(self, claim: Claim) -> JobTable:
        return JobTable(self.jobs, {**self.claims, claim.place: claim})

    def without_claim(self, claim: Claim) -> JobTable:
        return JobTable(self.jobs, {place: each for place, each in self.claims.items() if place != claim.place})


def read(key_value: Mapping[str, bytes]) -> JobTable:
    """The table from its stored entries."""
    jobs = (msgspec.json.decode(value, type=Job) for name, value in key_value.items() if name.startswith(_JOB))
    claims = (msgspec.json.decode(value, type=Claim) for name, value in key_value.items() if name.startswith(_CLAIM))
    return JobTable({job.name: job for job in jobs}, {claim.place: claim for claim in claims})


def table_entries(table: JobTable) -> dict[str, bytes]:
    """The table as entries to store."""
    jobs = {f"{_JOB}{name}": msgspec.json.encode(job) for name, job in table.jobs.items()}
    return jobs | {f"{_CLAIM}{place}": msgspec.json.encode(claim) for place, claim in table.claims.items()}


# ---- changes by users ------------------------------------------------------------------------------------------------


def add(table: JobTable, job: Job, *, instead: bool = False) -> JobTable:
    """The table with a new job; with `instead` it replaces one of that name."""
    if job.name in table.jobs and not instead:
        raise BadInput(f"a job named {job.name!r} exists: use --replace to replace it")
    return table.with_job(job)


def remove(table: JobTable, name: str) -> JobTable:
    """The table without a job; a current execution goes on."""
    return JobTable({each: job for each, job in table.jobs.items() if each != name}, table.claims)


def pause(table: JobTable, name: str) -> JobTable:
    return table.with_job(replace(table.jobs[name], paused=True))


def resume(table: JobTable, name: str, *, now: float) -> JobTable:
    """The table with the job resumed; moments that passed meanwhile are skipped.

    The single moment of an `At` is kept, or the job would never be executed.
    """
    job = table.jobs[name]
    if not job.paused:
        return table
    due = job.next_run if isinstance(job.schedule, At) else next_due(job.schedule, now)
    return table.with_job(replace(job, paused=False, next_run=due))


def schedule_text(schedule: Schedule) -> str:
    """A schedule in the notation of the flags.

    >>> schedule_text(Every(300_000)), schedule_text(Cron("0 9 * * mon")), schedule_text(At(0.0))
    ('5m', '0 9 * * mon', '1970-01-01T00:00:00Z')
    """
    match schedule:
        case Cron(expr=expr):
            return expr
        case At(at=at):
            return rfc3339(at)
        case Every(every_ms=every):
            unit = next(unit for unit in ("d", "h", "m", "s") if every % (UNITS[unit] * 1000) == 0)
            return f"{every // (UNITS[unit] * 1000)}{unit}"
        case _:
            assert_never(schedule)


# ---- history ---------------------------------------------------------------------------------------------------------

KEPT = 100
"""Entries that are kept for each job."""

MAX_OUTPUT = 4000
"""Characters of a command's output that are kept."""

JobStatus: TypeAlias = Literal["running", "ok", "failed", "interrupted", "missed"]


class HistoryEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One execution of a job, or a `missed` moment. `due` is None for an execution on request."""

    name: str
    due: float | None
    started_at: float | None = None
    ended_at: float | None = None
    status: JobStatus = "running"
    run_id: str = ""
    error: str = ""
    output: str = ""
    owner: ClaimOwner = ClaimOwner()

    @property
    def at(self) -> float:
        """The moment that identifies it among the entries of its job."""
        return self.due if self.due is not None else self.started_at or 0.0

    @property
    def place(self) -> str:
        """Its name in the namespace; names sort by moment."""
        return f"{self.at:020.6f}/{'due' if self.due is not None else 'by hand'}"


def entry_of(
    claim: Claim,
    *,
    started_at: float | None = None,
    ended_at: float | None = None,
    status: JobStatus = "running",
    error: str = "",
    owner: ClaimOwner | None = None,
) -> HistoryEntry:
    """The entry of a claim: the same one for every process that executes it."""
    return HistoryEntry(
        name=claim.name,
        due=None if claim.by_hand else claim.due,
        started_at=claim.due if claim.by_hand else started_at,
        ended_at=ended_at,
        status=status,
        error=error,
        owner=owner or ClaimOwner(),
    )


def history_space(name: str) -> str:
    """The namespace of a job's history."""
    return f"cron-log:{name}"


def read_history(key_value: Mapping[str, bytes]) -> list[HistoryEntry]:
    """Entries, the latest first."""
    return [msgspec.json.decode(key_value[place], type=HistoryEntry) for place in sorted(key_value, reverse=True)]


def entry_decision(key_value: Mapping[str, bytes], entry: HistoryEntry) -> Decision:
    """Store an entry and drop the oldest; `interrupted`, a guess of another process, replaces no known result."""
    known = key_value.get(entry.place)
    if known is not None and entry.status == "interrupted":
        before = msgspec.json.decode(known, type=HistoryEntry)
        if before.status != "running":
            return Decision(b"")
        entry = msgspec.structs.replace(entry, started_at=before.started_at, run_id=before.run_id)
    places = sorted({*key_value, entry.place})
    return Decision(b"", puts={entry.place: msgspec.json.encode(entry)}, drops=tuple(places[:-KEPT]))
