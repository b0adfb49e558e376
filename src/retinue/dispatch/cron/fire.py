"""Doing a job, by hand or for a daemon, and keeping what became of it."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from retinue.app.open import open_read_only
from retinue.cli.event_loop import INTERRUPTED, interrupts
from retinue.cli.follow import tell, tell_interrupted
from retinue.cli.output.approval_prompt import approver_for
from retinue.cli.output.format import clean
from retinue.cli.output.terminal import answer, answer_json, say
from retinue.core.commands import Charge
from retinue.core.errors import BadInput, RetinueError
from retinue.dispatch.cron.daemon import LEASE
from retinue.dispatch.cron.execute import Doing, Done, do
from retinue.dispatch.cron.history import HistoryEntry
from retinue.dispatch.cron.jobs import AgentWork, Claim, Job, Owner
from retinue.dispatch.cron.table import CronTable
from retinue.engine import this_host, this_process

log = logging.getLogger("retinue.cron")

PUT_OFF = "it was stopped, and goes on with the next daemon"


def myself() -> Owner:
    """This process, as others may look for it."""
    return Owner(this_host(), this_process())


@dataclass(frozen=True, slots=True)
class Entry:
    """What a job's log says about one time that it is done: written when it begins, and again as more is known."""

    cron_table: CronTable
    firing: HistoryEntry

    async def begun(self) -> None:
        """It begins."""
        await self.cron_table.remember(self.firing)

    async def running(self, run_id: str) -> None:
        """This is its agent's run."""
        await self.cron_table.remember(replace(self.firing, run_id=run_id))

    async def ended(self, done: Done) -> None:
        """This became of it."""
        await self.cron_table.remember(
            replace(
                self.firing,
                ended_at=time.time(),
                status=done.status,
                error=done.error,
                output=done.output,
                run_id=done.run_id,
            )
        )


# ---- by hand ---------------------------------------------------------------------------------------------------------


async def by_hand(name: str, *, json: bool, quiet: bool, verbose: bool) -> int:
    """Do a job here and now, and print what comes of it; the exit code."""
    with interrupts() as asked_to_stop:
        async with open_read_only() as client:
            cron_table = CronTable(client.key_value)
            job = await cron_table.job(name)
            session = str(uuid.uuid4())
            entry = Entry(cron_table, HistoryEntry(name=name, due=None, started_at=time.time(), owner=myself()))

            async def begin(charges: Sequence[Charge]) -> bool:
                await cron_table.charge(charges)
                await entry.begun()
                return True

            doing = Doing(
                job=job,
                key=f"cron/{job.name}/{job.born}/{session}",
                session_id=f"cron-{session}",
                client=client,
                asked_to_stop=asked_to_stop,
                begin=begin,
                running=entry.running,
                approver=lambda settings: approver_for(settings.approvals, yes=False),
                quiet=quiet or json,
                verbose=verbose,
            )
            try:
                done = await do(doing)
                assert done is not None  # nobody can take it away
            except RetinueError as error:
                await _keep(entry, job, Done(status="failed", error=str(error)))
                if isinstance(error, BadInput):
                    raise
                done = Done(status="failed", error=str(error))
            else:
                await _keep(entry, job, done)
    return _tell(job, done, json=json, quiet=quiet)


async def _keep(entry: Entry, job: Job, done: Done) -> None:
    await entry.ended(done)
    await entry.cron_table.note(job, started=entry.firing.started_at or time.time(), status=done.status)


def _tell(job: Job, done: Done, *, json: bool, quiet: bool) -> int:
    if done.outcome is not None:
        return tell(done.run_id, done.outcome, form="json" if json else "bare" if quiet else "text")
    if done.status == "interrupted" and done.run_id:
        return tell_interrupted(done.run_id)
    if json:
        answer_json({"name": job.name, "status": done.status, "output": done.output, "error": done.error or None})
    elif done.status == "ok":
        answer(done.output)
    else:
        say(clean(done.output or done.error))
    return 0 if done.status == "ok" else INTERRUPTED if done.status == "interrupted" else 1


# ---- for a daemon ----------------------------------------------------------------------------------------------------


async def claimed(name: str, born: str, attempt: int) -> int:
    """Carry out what a daemon has claimed for us, unless it is another's by now; the exit code."""
    with interrupts() as asked_to_stop:
        async with open_read_only() as client:
            cron_table = CronTable(client.key_value)
            table = await cron_table.table()
            claim = table.claims.get(f"{name}/{born}")
            if claim is None or claim.attempt != attempt or claim.state != "claimed":
                return 0
            job = table.job_of(claim)
            if job is None:  # it was removed since
                await cron_table.finish(claim, "interrupted")
                return 0
            me = myself()
            entry = Entry(cron_table, HistoryEntry(name=name, due=claim.due, started_at=time.time(), owner=me))

            async def begin(charges: Sequence[Charge]) -> bool:
                if not await cron_table.start(claim, owner=me, now=time.time(), charges=charges):
                    return False
                await entry.begun()
                return True

            doing = Doing(
                job=job,
                key=claim.key,
                session_id=claim.session_id,
                client=client,
                asked_to_stop=asked_to_stop,
                begin=begin,
                running=entry.running,
                approver=lambda settings: settings.approvals,
                counted=claim.counted,
            )
            beating = asyncio.ensure_future(_beat(cron_table, claim, asked_to_stop))
            try:
                done = await _done(doing)
            finally:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
            if done is None:
                return 0
            return await _settle(entry, job, claim, done)


async def _done(doing: Doing) -> Done | None:
    try:
        return await do(doing)
    except RetinueError as error:
        log.warning("job %s: %s", doing.job.name, error)
        return Done(status="failed", error=str(error))
    except Exception as bug:
        log.exception("job %s: a bug", doing.job.name)
        return Done(status="failed", error=f"this is a bug in retinue: {type(bug).__name__}: {bug}")


async def _settle(entry: Entry, job: Job, claim: Claim, done: Done) -> int:
    if done.status == "interrupted" and isinstance(job.work, AgentWork):
        if await entry.cron_table.release(claim):
            await entry.ended(Done(status="interrupted", error=PUT_OFF, run_id=done.run_id))
        return INTERRUPTED
    # What became of it goes first: whoever takes the claim over would call it interrupted.
    await entry.ended(done)
    await entry.cron_table.finish(claim, done.status)
    return 0 if done.status == "ok" else 1


async def _beat(cron_table: CronTable, claim: Claim, asked_to_stop: asyncio.Event) -> None:
    """Show others that we are alive; stop when they did not believe it."""
    while True:
        await asyncio.sleep(LEASE / 4)
        if not await cron_table.beat(claim):
            log.warning("job %s was taken over by another process", claim.name)
            asked_to_stop.set()
