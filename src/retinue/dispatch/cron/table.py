"""The table of jobs as processes use it: each verb is one decision, in one transaction of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from retinue.core.commands import Charge, Decision
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ports import KeyValue
from retinue.dispatch.cron import claims, history, jobs
from retinue.dispatch.cron.claims import Verdicts
from retinue.dispatch.cron.history import HistoryEntry
from retinue.dispatch.cron.jobs import SPACE, Claim, Job, Owner, Table

T = TypeVar("T")


class CronTable:
    """Jobs, claims and what became of them, in the store that a process has open."""

    def __init__(self, key_value: KeyValue) -> None:
        self._key_value = key_value

    async def table(self) -> Table:
        """All jobs and claims as they stand."""
        return jobs.read(await self._key_value.look(SPACE))

    async def job(self, name: str) -> Job:
        """The job of that name."""
        table = await self.table()
        if name not in table.jobs:
            raise UnknownName("job", name, tuple(sorted(table.jobs)))
        return table.jobs[name]

    # What people do

    async def add(self, job: Job, *, instead: bool = False) -> None:
        """Add a job, or put it in the place of another."""
        await self._decide_or_refuse(lambda table: jobs.add(table, job, instead=instead))

    async def remove(self, name: str) -> None:
        """Remove a job, and what is remembered of it."""
        await self._change_job(name, lambda table: jobs.remove(table, name))
        await self._key_value.change(history.space_of(name), lambda key_value: Decision(b"", drops=tuple(key_value)))

    async def pause(self, name: str) -> None:
        """Let a job not be due for the time being."""
        await self._change_job(name, lambda table: jobs.pause(table, name))

    async def resume(self, name: str, *, now: float) -> None:
        """Let a job be due again."""
        await self._change_job(name, lambda table: jobs.resume(table, name, now=now))

    # What processes do

    async def claim_due(self, *, now: float, owner: Owner, most: int) -> Verdicts:
        """Claim what is due; see `claims.claim_due`."""
        return await self._decide(lambda table: claims.claim_due(table, now=now, owner=owner, most=most), Verdicts)

    async def take_over(self, gone: Sequence[Claim], *, owner: Owner) -> Verdicts:
        """Claim what others left; see `claims.take_over`."""
        return await self._decide(lambda table: claims.take_over(table, gone, owner=owner), Verdicts)

    async def start(self, claim: Claim, *, owner: Owner, now: float, charges: Sequence[Charge] = ()) -> bool:
        """Begin with what was claimed, if it is still ours; `charges` count the first time."""

        def decide(key_value: Mapping[str, bytes]) -> Decision:
            before = jobs.read(key_value)
            after, ours = claims.start(before, claim, owner=owner, now=now)
            first = ours and not before.claims[claim.place].counted
            return _decision(key_value, after, msgspec.json.encode(ours), tuple(charges) if first else ())

        return _answer(await self._key_value.change(SPACE, decide), bool)

    async def beat(self, claim: Claim) -> bool:
        """Say that we are alive; False if the claim is another's by now."""
        return await self._decide(lambda table: claims.beat(table, claim), bool)

    async def release(self, claim: Claim) -> bool:
        """Leave a claim to whoever comes next."""
        return await self._decide(lambda table: claims.release(table, claim), bool)

    async def finish(self, claim: Claim, status: str) -> bool:
        """Say that it is over; False if the claim is another's by now."""
        return await self._decide(lambda table: claims.finish(table, claim, status), bool)

    async def begin_again(self, claim: Claim) -> Verdicts:
        """Claim anew what could not be started; see `claims.begin_again`."""
        return await self._decide(lambda table: claims.begin_again(table, claim), Verdicts)

    async def charge(self, charges: Sequence[Charge]) -> None:
        """Count an action that no claim counts."""
        await self._key_value.change(SPACE, lambda _: Decision(b"", charges=tuple(charges)))

    async def note(self, job: Job, *, started: float, status: str) -> None:
        """Say that a job was done by hand."""
        await self._decide(lambda table: (claims.note(table, job, started=started, status=status), True), bool)

    # What is remembered

    async def remember(self, firing: HistoryEntry) -> None:
        """Keep what became of a job, or how far it has come; of one that was removed, nothing."""
        if firing.name not in (await self.table()).jobs:
            return
        await self._key_value.change(
            history.space_of(firing.name), lambda key_value: history.remembered(key_value, firing)
        )

    async def firings(self, name: str) -> list[HistoryEntry]:
        """What became of a job, the latest first."""
        return history.read(await self._key_value.look(history.space_of(name)))

    async def _change_job(self, name: str, change: Callable[[Table], Table]) -> None:
        def on_a_job(table: Table) -> Table:
            if name not in table.jobs:
                raise UnknownName("job", name, tuple(sorted(table.jobs)))
            return change(table)

        await self._decide_or_refuse(on_a_job)

    async def _decide_or_refuse(self, change: Callable[[Table], Table]) -> None:
        """Make a change that may be refused; a refusal travels as the answer, since a store makes no exceptions."""

        refusals: list[BadInput] = []

        def decide(key_value: Mapping[str, bytes]) -> Decision:
            refusals.clear()
            try:
                return _decision(key_value, change(jobs.read(key_value)), b"")
            except BadInput as refusal:
                refusals.append(refusal)
                return Decision(b"")

        await self._key_value.change(SPACE, decide)
        if refusals:
            raise refusals[0]

    async def _decide(self, change: Callable[[Table], tuple[Table, T]], kind: type[T]) -> T:
        def decide(key_value: Mapping[str, bytes]) -> Decision:
            after, answer = change(jobs.read(key_value))
            return _decision(key_value, after, msgspec.json.encode(answer))

        return _answer(await self._key_value.change(SPACE, decide), kind)


def _decision(
    key_value: Mapping[str, bytes], after: Table, answer: bytes, charges: tuple[Charge, ...] = ()
) -> Decision:
    """What is different on the shelf, and the answer."""
    wanted = jobs.written(after)
    puts = {name: value for name, value in wanted.items() if key_value.get(name) != value}
    return Decision(answer, puts=puts, drops=tuple(name for name in key_value if name not in wanted), charges=charges)


def _answer(written: object, kind: type[T]) -> T:
    assert isinstance(written, bytes)  # the shelf belongs to no session that could be closed
    return msgspec.json.decode(written, type=kind)
