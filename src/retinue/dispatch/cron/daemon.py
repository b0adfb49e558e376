"""The loop that starts jobs when they are due, and takes over what a process that is gone has left.

How a job is carried out is the business of whoever hands in `launch`. Several daemons may work on one store: every
decision is made by the store, one at a time.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias

from retinue.core.errors import StoreError
from retinue.core.ports import Clock
from retinue.core.text import rfc3339
from retinue.dispatch.cron import claims
from retinue.dispatch.cron.claims import Verdicts
from retinue.dispatch.cron.history import HistoryEntry
from retinue.dispatch.cron.jobs import Claim, Owner, Table
from retinue.dispatch.cron.table import CronTable
from retinue.engine import is_gone, this_host

log = logging.getLogger("retinue.cron")

Launch: TypeAlias = Callable[[Claim], Awaitable[str]]
"""Carries out a claim in a process of its own, and waits for its end; what went wrong if it never began."""

POLL = 0.5
"""Seconds after which a daemon looks again, for jobs that others have added or finished."""

LEASE = 60.0
"""Seconds after which a process of another host that does not stir is taken for gone."""

GONE = "the process that did it is gone; it may have been done in part, and is not done again"
GIVEN_UP = f"given up: {claims.MOST_CRASHES} processes went in the middle of it"


class Daemon:
    """Starts what is due, for as long as `run` runs."""

    def __init__(self, cron_table: CronTable, clock: Clock, owner: Owner, launch: Launch, *, most: int) -> None:
        self._crontab = cron_table
        self._clock = clock
        self._owner = owner
        self._launch = launch
        self._most = most
        self._stopping = False
        self._stirred = asyncio.Event()
        self._at_work: set[asyncio.Task[None]] = set()
        self._watch = Watch()

    def stop(self) -> None:
        """Start nothing more; `run` then waits for those who carry out the last jobs."""
        self._stopping = True
        self._stirred.set()

    async def run(self) -> None:
        """Start jobs as they are due, until told to stop."""
        try:
            while not self._stopping:
                self._stirred.clear()
                await self._pause(await self._looked(None))
        finally:
            await self._last_ones()

    async def run_once(self) -> None:
        """Start what is due by now, take over what others left, and wait for the end of all that."""
        by = self._clock.now()
        while not self._stopping:
            self._stirred.clear()
            wait = await self._looked(by)
            if not self._at_work and not claims.is_due(await self._crontab.table(), by):
                break
            await self._pause(wait)
        await self._last_ones()

    async def _last_ones(self) -> None:
        while self._at_work:
            await asyncio.wait(set(self._at_work))

    async def _looked(self, by: float | None) -> float:
        try:
            return await self._look(by)
        except StoreError as error:
            log.warning("%s", error)  # it may be back in a moment: the disk is full, somebody holds a lock
            return POLL

    async def _look(self, by: float | None) -> float:
        """Do what there is to do by a moment, or by now; for how long there is nothing more."""
        table = await self._crontab.table()
        if gone := claims.gone_among(table, self._watch.over(table)):
            await self._obey(await self._crontab.take_over(gone, owner=self._owner))
            table = await self._crontab.table()
        now = self._clock.now() if by is None else by
        if claims.is_due(table, now):
            await self._obey(await self._crontab.claim_due(now=now, owner=self._owner, most=self._most))
            return POLL  # what is due and was not claimed waits for somebody to finish
        due = claims.next_moment(table)
        return POLL if due is None or by is not None else min(POLL, max(0.0, due - now))

    async def _obey(self, verdicts: Verdicts) -> None:
        # First of all: a claim that nobody carries out would wait for us to be gone.
        self._begin(verdicts.claims)
        for claim in verdicts.interrupted:
            await self._ended_without_us(claim, "interrupted", GONE)
        for claim in verdicts.given_up:
            await self._ended_without_us(claim, "failed", GIVEN_UP)
        for each in verdicts.overlooked:
            log.warning("job %s was due at %s, and nobody was there", each.name, rfc3339(each.due))
            await self._crontab.remember(HistoryEntry(name=each.name, due=each.due, status="missed"))

    def _begin(self, claimed: Sequence[Claim]) -> None:
        for claim in claimed:
            task = asyncio.ensure_future(self._carry_out(claim))
            self._at_work.add(task)
            task.add_done_callback(self._at_work.discard)

    async def _ended_without_us(self, claim: Claim, status: Literal["interrupted", "failed"], why: str) -> None:
        log.warning("job %s of %s: %s", claim.name, rfc3339(claim.due), why)
        at = self._clock.now()
        await self._crontab.remember(
            HistoryEntry(name=claim.name, due=claim.due, ended_at=at, status=status, error=why)
        )

    async def _carry_out(self, claim: Claim) -> None:
        try:
            wrong = await self._launch(claim)
            # Being told to stop, it may have gone before it began: then the next daemon takes it over.
            if wrong and not self._stopping:
                verdicts = await self._crontab.begin_again(claim)
                self._begin(verdicts.claims)
                for each in verdicts.given_up:
                    await self._ended_without_us(each, "failed", f"it could not be started: {wrong}")
        except StoreError as error:
            log.warning("job %s: %s", claim.name, error)
        except Exception:
            log.exception("job %s: a bug", claim.name)
        finally:
            self._stirred.set()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
        except TimeoutError:
            pass


class Watch:
    """Tells which processes are gone: those of this host for certain, others when they have not stirred for long."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[int, float]] = {}

    def over(self, table: Table) -> Callable[[Owner], bool]:
        """Look at all claims; whether an owner of one of them is gone."""
        now = asyncio.get_running_loop().time()
        seen: dict[tuple[str, int], tuple[int, float]] = {}
        still: set[Owner] = set()
        for claim in table.claims.values():
            known = claim.place, claim.attempt
            beat, since = self._seen.get(known, (claim.beat, now))
            seen[known] = (claim.beat, now if beat != claim.beat else since)
            if now - seen[known][1] >= LEASE:
                still.add(claim.owner)
        self._seen = seen

        def gone(owner: Owner) -> bool:
            if owner.host == this_host() and sys.platform != "win32":
                return is_gone(owner.host, owner.process)
            return owner in still

        return gone


def is_left(owner: Owner) -> bool:
    """Whether a claim has no process any more: none has taken it, or the one that did has certainly ended."""
    return not owner.process or is_gone(owner.host, owner.process)
