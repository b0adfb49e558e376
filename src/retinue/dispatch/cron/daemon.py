"""The cron daemon: claims jobs when they are due, takes over the claims of dead processes, and starts executions.

Each execution is a process of its own, `retinue cron fire`. Several daemons may use one store: every decision is one
transaction.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

from retinue.core.errors import Refused, StoreError
from retinue.core.ids import SystemClock
from retinue.core.log_context import logger
from retinue.core.ports import Clock
from retinue.core.text import rfc3339
from retinue.dispatch.cron import claims
from retinue.dispatch.cron.claims import Verdicts, Wanted
from retinue.dispatch.cron.jobs import Claim, ClaimOwner, HistoryEntry, JobTable, entry_of
from retinue.dispatch.cron.table import CronTable
from retinue.dispatch.processes import Processes, supervise
from retinue.engine import is_gone, this_host, this_process

log = logger("retinue.cron")

LaunchJob: TypeAlias = Callable[[Claim], Awaitable[str]]
"""Executes a claim and waits for the end; the error if it failed."""

POLL = 0.5
"""Seconds between two looks at the table, which other processes change."""

LEASE = 60.0
"""Seconds without a heartbeat after which a process of another host counts as dead."""

GONE = "its process died; the job may be partly done, and is not repeated"
NOTHING_DONE = "its process found no such job in the store"
GIVEN_UP = f"given up: its process died {claims.MAX_CRASHES} times"


class AtWork(Refused):
    """A job that is executed already: it is not started twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the job {name!r} is being executed, and is not started twice")
        self.name = name


def this_owner() -> ClaimOwner:
    """This process as the owner of claims."""
    return ClaimOwner(this_host(), this_process())


async def serve(
    cron_table: CronTable, stop: asyncio.Event, report: Callable[[str], None], *, max_running: int, once: bool
) -> None:
    """Execute jobs when due until `stop` is set, with `once` those due now; `report` gets a line per start and end."""
    processes = Processes()
    daemon = job_daemon(cron_table, processes, report, max_running=max_running)
    await supervise(stop, processes, work=[(daemon, daemon.run_once() if once else daemon.run())])


@asynccontextmanager
async def jobs_on_request(
    cron_table: CronTable, report: Callable[[str], None]
) -> AsyncGenerator[Callable[[str], Awaitable[Claim]]]:
    """`Daemon.run_now` for the length of the block; processes that work at its end are stopped as by a daemon."""
    processes = Processes()
    daemon = job_daemon(cron_table, processes, report, max_running=0)
    try:
        yield daemon.run_now
    finally:
        daemon.stop()
        await processes.stop()
        await daemon.finish()


def job_daemon(
    cron_table: CronTable, processes: Processes, report: Callable[[str], None], *, max_running: int
) -> Daemon:
    """A daemon that executes each claim in a process of its own; `report` gets a line per start and end."""

    async def launch(claim: Claim) -> str:
        def started() -> None:
            report(f"{claim.name}: started ({'by hand' if claim.by_hand else f'due {rfc3339(claim.due)}'})")

        try:
            code = await processes.run(
                "cron", "fire", claim.name, claim.creation_id, str(claim.attempt), started=started
            )
        except OSError as error:
            return str(error)
        report(f"{claim.name}: {'done' if code == 0 else f'ended with exit code {code}'}")
        return "" if code == 0 else f"its process ended with exit code {code}"

    return Daemon(cron_table, SystemClock(), this_owner(), launch, max_running=max_running)


class Daemon:
    """Claims due jobs that are wanted and executes them with `launch`, for as long as `run` runs."""

    def __init__(
        self,
        cron_table: CronTable,
        clock: Clock,
        owner: ClaimOwner,
        launch: LaunchJob,
        *,
        max_running: int,
        wanted: Wanted = claims.every_job,
    ) -> None:
        self._wanted = wanted
        self._cron_table = cron_table
        self._clock = clock
        self._owner = owner
        self._launch = launch
        self._max_running = max_running
        self._stopping = False
        self._changed = asyncio.Event()
        self._at_work: set[asyncio.Task[None]] = set()
        self._watch = OwnerWatch()

    def stop(self) -> None:
        """Start nothing more; `run` then waits for the current executions."""
        self._stopping = True
        self._changed.set()

    async def run(self) -> None:
        """Execute jobs as they are due, until `stop`."""
        try:
            while not self._stopping:
                self._changed.clear()
                await self._pause(await self._look_safely(None))
        finally:
            await self.finish()

    async def run_once(self) -> None:
        """Execute what is due now, take over the claims of dead processes, and wait for the end of all that."""
        by = self._clock.now()
        while not self._stopping:
            self._changed.clear()
            wait = await self._look_safely(by)
            if not self._at_work and not claims.is_due(await self._cron_table.table(), by, self._wanted):
                break
            await self._pause(wait)
        await self.finish()

    async def run_now(self, name: str) -> Claim:
        """Begin to execute a job because a person asks for it, under the same rules as one that is due.

        Its schedule stays. Raises `UnknownName`, and `AtWork` if a process executes the job already.
        """
        job = await self._cron_table.job(name)
        claim = await self._cron_table.claim_now(job, now=self._clock.now(), owner=self._owner)
        if claim is None:
            raise AtWork(name)
        self._begin((claim,))
        return claim

    async def finish(self) -> None:
        """Wait for the current executions."""
        while self._at_work:
            await asyncio.wait(set(self._at_work))

    async def _look_safely(self, by: float | None) -> float:
        try:
            return await self._look(by)
        except StoreError as error:
            log.warning("%s", error)  # it may be temporary: a full disk, a lock
            return POLL

    async def _look(self, by: float | None) -> float:
        """Handle what is due at `by`, or now; the seconds until the next look."""
        table = await self._cron_table.table()
        if gone := claims.gone_among(table, self._watch.over(table), self._wanted):
            await self._apply(await self._cron_table.take_over(gone, owner=self._owner))
            table = await self._cron_table.table()
        now = self._clock.now() if by is None else by
        if claims.is_due(table, now, self._wanted):
            await self._apply(
                await self._cron_table.claim_due(
                    now=now, owner=self._owner, max_running=self._max_running, wanted=self._wanted
                )
            )
            return POLL  # due jobs that were not claimed wait for another to finish
        due = claims.next_moment(table, self._wanted)
        return POLL if due is None or by is not None else min(POLL, max(0.0, due - now))

    async def _apply(self, verdicts: Verdicts) -> None:
        # First: an unexecuted claim would wait until this process is dead.
        self._begin(verdicts.claims)
        for claim in verdicts.interrupted:
            await self._record_end(claim, "interrupted", GONE)
        for claim in verdicts.given_up:
            await self._record_end(claim, "failed", GIVEN_UP)
        for each in verdicts.skipped:
            log.warning("job %s was due at %s, and no daemon ran: skipped", each.name, rfc3339(each.due))
            await self._cron_table.remember(HistoryEntry(name=each.name, due=each.due, status="missed"))

    def _begin(self, claimed: Sequence[Claim]) -> None:
        for claim in claimed:
            task = asyncio.ensure_future(self._execute(claim))
            self._at_work.add(task)
            task.add_done_callback(self._at_work.discard)

    async def _record_end(self, claim: Claim, status: Literal["interrupted", "failed"], why: str) -> None:
        log.warning("job %s of %s: %s", claim.name, rfc3339(claim.due), why)
        at = self._clock.now()
        await self._cron_table.remember(entry_of(claim, ended_at=at, status=status, error=why))

    async def _execute(self, claim: Claim) -> None:
        try:
            error = await self._launch(claim)
            # A stopped process may have ended before it started the claim: the next daemon takes that over.
            if not self._stopping:
                verdicts = await self._cron_table.begin_again(claim)
                self._begin(verdicts.claims)
                for each in verdicts.given_up:
                    await self._record_end(each, "failed", f"it could not be started: {error or NOTHING_DONE}")
        except StoreError as unstored:
            log.warning("job %s: %s", claim.name, unstored)
        except Exception:
            log.exception("job %s: unexpected error while executing it", claim.name)
        finally:
            self._changed.set()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass


class OwnerWatch:
    """Detects dead processes: on this host by their process id, on others by missing heartbeats."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[int, float]] = {}

    def over(self, table: JobTable) -> Callable[[ClaimOwner], bool]:
        """Look at all claims; returns a function that decides whether the owner of one of them is dead."""
        now = asyncio.get_running_loop().time()
        seen: dict[tuple[str, int], tuple[int, float]] = {}
        silent: set[ClaimOwner] = set()
        for claim in table.claims.values():
            known = claim.place, claim.attempt
            beat, since = self._seen.get(known, (claim.beat, now))
            seen[known] = (claim.beat, now if beat != claim.beat else since)
            if now - seen[known][1] >= LEASE:
                silent.add(claim.owner)
        self._seen = seen

        def gone(owner: ClaimOwner) -> bool:
            if owner.host == this_host() and sys.platform != "win32":
                return is_gone(owner.host, owner.process)
            return owner in silent

        return gone


def is_left(owner: ClaimOwner) -> bool:
    """Whether a claim has no process any more: none has taken it, or the one that did has certainly ended."""
    return not owner.process or is_gone(owner.host, owner.process)
