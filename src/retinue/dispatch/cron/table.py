"""The table of jobs in the store: each method is one decision, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from retinue.core.commands import CallLimit, Charge, Decision, WindowFull
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ports import KeyValue
from retinue.dispatch.cron import claims, jobs
from retinue.dispatch.cron.claims import Verdicts, Wanted
from retinue.dispatch.cron.jobs import SPACE, Claim, ClaimOwner, HistoryEntry, Job, JobTable

T = TypeVar("T")


class CronTable:
    """Jobs, claims and histories in an open store; the methods are named after the functions of `jobs` and `claims`."""

    def __init__(self, key_value: KeyValue) -> None:
        self._key_value = key_value

    async def table(self) -> JobTable:
        return jobs.read(await self._key_value.look(SPACE))

    async def job(self, name: str) -> Job:
        table = await self.table()
        if name not in table.jobs:
            raise UnknownName("job", name, tuple(sorted(table.jobs)))
        return table.jobs[name]

    # Changes by users

    async def add(self, job: Job, *, instead: bool = False) -> None:
        await self._decide_or_refuse(lambda table: jobs.add(table, job, instead=instead))

    async def remove(self, name: str) -> None:
        """Remove a job and its history."""
        await self._change_job(name, lambda table: jobs.remove(table, name))
        await self._key_value.change(jobs.history_space(name), lambda key_value: Decision(b"", drops=tuple(key_value)))

    async def pause(self, name: str) -> None:
        await self._change_job(name, lambda table: jobs.pause(table, name))

    async def resume(self, name: str, *, now: float) -> None:
        await self._change_job(name, lambda table: jobs.resume(table, name, now=now))

    # Changes by daemons and executions

    async def claim_due(
        self, *, now: float, owner: ClaimOwner, max_running: int, wanted: Wanted = claims.every_job
    ) -> Verdicts:
        return await self._decide(
            lambda table: claims.claim_due(table, now=now, owner=owner, max_running=max_running, wanted=wanted),
            Verdicts,
        )

    async def claim_now(self, job: Job, *, now: float, owner: ClaimOwner) -> Claim | None:
        """Claim a job because a person asks for it; None if it is being executed or was removed."""
        verdicts = await self._decide(lambda table: claims.claim_now(table, job, now=now, owner=owner), Verdicts)
        return next(iter(verdicts.claims), None)

    async def take_over(self, gone: Sequence[Claim], *, owner: ClaimOwner) -> Verdicts:
        return await self._decide(lambda table: claims.take_over(table, gone, owner=owner), Verdicts)

    async def start(
        self,
        claim: Claim,
        *,
        owner: ClaimOwner,
        now: float,
        charges: Sequence[Charge] = (),
        within: Sequence[CallLimit] = (),
    ) -> bool | WindowFull:
        """Start a claim unless it is lost or a window is full; `charges` are made the first time."""

        def decide(key_value: Mapping[str, bytes]) -> Decision:
            before = jobs.read(key_value)
            after, ours = claims.start(before, claim, owner=owner, now=now)
            first = ours and not before.claims[claim.place].counted
            decision = _decision(key_value, after, msgspec.json.encode(ours))
            return replace(decision, charges=tuple(charges), within=tuple(within)) if first else decision

        answer = await self._key_value.change(SPACE, decide)
        return answer if isinstance(answer, WindowFull) else _answer(answer, bool)

    async def beat(self, claim: Claim) -> bool:
        return await self._decide(lambda table: claims.beat(table, claim), bool)

    async def release(self, claim: Claim) -> bool:
        return await self._decide(lambda table: claims.release(table, claim), bool)

    async def finish(self, claim: Claim, status: str) -> bool:
        return await self._decide(lambda table: claims.finish(table, claim, status), bool)

    async def begin_again(self, claim: Claim) -> Verdicts:
        return await self._decide(lambda table: claims.begin_again(table, claim), Verdicts)

    async def charge(self, charges: Sequence[Charge], within: Sequence[CallLimit]) -> WindowFull | None:
        """Charge an action of an execution without a claim; the window that is full, if one is."""
        decision = Decision(b"", charges=tuple(charges), within=tuple(within))
        answer = await self._key_value.change(SPACE, lambda _: decision)
        return answer if isinstance(answer, WindowFull) else None

    async def note(self, job: Job, *, started: float, status: str) -> None:
        await self._decide(lambda table: (claims.note(table, job, started=started, status=status), True), bool)

    # History

    async def remember(self, entry: HistoryEntry) -> None:
        """Store a history entry, unless its job was removed."""
        if entry.name not in (await self.table()).jobs:
            return
        await self._key_value.change(
            jobs.history_space(entry.name), lambda key_value: jobs.entry_decision(key_value, entry)
        )

    async def history(self, name: str) -> list[HistoryEntry]:
        """The history of a job, the latest first."""
        return jobs.read_history(await self._key_value.look(jobs.history_space(name)))

    async def _change_job(self, name: str, change: Callable[[JobTable], JobTable]) -> None:
        def on_a_job(table: JobTable) -> JobTable:
            if name not in table.jobs:
                raise UnknownName("job", name, tuple(sorted(table.jobs)))
            return change(table)

        await self._decide_or_refuse(on_a_job)

    async def _decide_or_refuse(self, change: Callable[[JobTable], JobTable]) -> None:
        """Make a change that may raise `BadInput`; raised here, because a decision must not raise in the store."""
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

    async def _decide(self, change: Callable[[JobTable], tuple[JobTable, T]], kind: type[T]) -> T:
        def decide(key_value: Mapping[str, bytes]) -> Decision:
            after, answer = change(jobs.read(key_value))
            return _decision(key_value, after, msgspec.json.encode(answer))

        return _answer(await self._key_value.change(SPACE, decide), kind)


def _decision(key_value: Mapping[str, bytes], after: JobTable, answer: bytes) -> Decision:
    """The entries that differ, and the answer."""
    wanted = jobs.table_entries(after)
    puts = {name: value for name, value in wanted.items() if key_value.get(name) != value}
    return Decision(answer, puts=puts, drops=tuple(name for name in key_value if name not in wanted))


def _answer(written: object, kind: type[T]) -> T:
    assert isinstance(written, bytes)  # the namespace belongs to no session that could be closed
    return msgspec.json.decode(written, type=kind)
