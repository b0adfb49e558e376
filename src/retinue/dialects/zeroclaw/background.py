"""Keeps the files of background tasks true: the store says how a task stands, and its file follows.

A task's file is written when it starts, when it ends, when this process takes it over and when it lays it down. What
happened while nobody was looking is caught up with when the next process opens, and before anyone is answered from a
file.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.commands import RunQuery, RunRow
from retinue.core.errors import RetinueError
from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.core.run import Outcome
from retinue.core.state import Run
from retinue.core.text import rfc3339
from retinue.dialects.context import DialectContext
from retinue.dialects.zeroclaw.result_files import Result, Results
from retinue.dialects.zeroclaw.texts import BY_PARENT, BY_USER, Target, interrupted

log = logging.getLogger("retinue.zeroclaw")

SPACE = "zeroclaw"
"""The space of the handles of background tasks: who has one is such a task."""

ATTEMPTS = 3
"""How often a file is written again because others were at work on the same task."""

KEY = "[key]"

_VENDORS_KEYS = re.compile(r"\b(?:sk-[\w-]{20,}|gsk_\w{20,}|xai-\w{20,}|AIza[\w-]{30,})", re.ASCII)
"""What nothing but a key looks like; the text is somebody's result, and must not suffer from a guess."""


class _Stand(Struct, frozen=True):
    """How the store says that a task stands; `here` when this process drives it."""

    row: RunRow
    is_alive: bool
    here: bool

    @property
    def is_over(self) -> bool:
        """Whether nothing about it can change any more."""
        return self.row.progress.outcome is not None

    @property
    def facts(self) -> tuple[bool, bool, bool]:
        """All of it that a file depends on."""
        return self.is_over, self.row.cancelled_at is not None, self.is_alive


class Background:
    """The background tasks that this process knows of, and their files."""

    def __init__(self, dialect_context: DialectContext) -> None:
        self._dialect_context = dialect_context
        self._supervisor = supervisor = dialect_context.supervisor
        self._at_work: set[RunId] = set()
        """Tasks driven here whose file does not tell their end yet."""
        self._one_at_a_time = asyncio.Lock()
        self._has_caught_up = False
        self._places: dict[RunId, Results] = {}
        supervisor.on_register(self._catch_up)
        supervisor.on_adopt(self._taken_over)
        supervisor.on_end(self._ended)
        supervisor.on_leave(self._lay_down)

    # What is asked for

    async def begun(self, run_id: RunId) -> None:
        """A task was started here: its file says so from now on."""
        self._at_work.add(run_id)
        await self._told(run_id)

    async def result(self, task_id: str, results: Results) -> Result | None:
        """What a file of this folder says, after the store was asked; None if nobody knows such a task there."""
        await self._catch_up()
        row = await self._row(task_id)
        if row is None:
            return results.read(task_id)  # of another store, perhaps, or of another program
        if (await self._place(row)).workspace != results.workspace:
            return None
        return await self._told(task_id)

    async def knows(self, task_id: str) -> bool:
        """Whether there is such a task, here or in the store."""
        live = self._supervisor.live(task_id)
        return _is_background(live.run.accepted) if live is not None else await self._row(task_id) is not None

    async def everything(self, results: Results) -> list[Result]:
        """All results of a folder, the oldest first."""
        await self._catch_up()
        for row in await self._supervisor.stored.runs(RunQuery(handle_space=SPACE)):
            if (await self._place(row)).workspace == results.workspace:
                await self._told(row.run_id)
        return results.everything()

    # What happens

    async def _catch_up(self) -> None:
        """Make every file say what the store says, whatever happened since it was written; once in a process's life."""
        if self._has_caught_up:
            return
        self._has_caught_up = True
        rows = await self._supervisor.stored.runs(RunQuery(handle_space=SPACE))
        swept: set[str] = set()
        for row in rows:
            try:
                place = await self._place(row)
                if place.workspace not in swept:
                    swept.add(place.workspace)
                    place.sweep()
                if not _tells_the_end(place.read(row.run_id), row):
                    await self._told(row.run_id)
            except RetinueError as error:  # one that was pruned meanwhile, say: no reason not to open
                log.warning("the result of task %s is not written: %s", row.run_id, error)

    async def _taken_over(self, runs: Sequence[Run]) -> None:
        for run in runs:
            if _is_background(run.accepted):
                await self.begun(run.run_id)

    def _ended(self, accepted: RunAccepted, outcome: Outcome) -> None:
        if _is_background(accepted):
            self._at_work.add(accepted.run_id)  # until its file tells the end, also if this process is leaving
            self._supervisor.start_background(self._tell_the_end(accepted.run_id))

    async def _tell_the_end(self, run_id: RunId) -> None:
        try:
            await self._told(run_id)  # as the store has it by then: a file never says more than is known after a crash
        except RetinueError as error:
            log.warning("the result of task %s is not written: %s", run_id, error)

    async def _lay_down(self) -> None:
        """This process is leaving: what it still has in its hands is nobody's from now on."""
        if self._supervisor.is_fenced:
            return  # others have these tasks already
        for run_id in sorted(self._at_work):
            try:
                await self._told(run_id, leaving=True)
            except RetinueError as error:
                log.warning("the result of task %s is not written: %s", run_id, error)

    # The file

    async def _told(self, run_id: RunId, *, leaving: bool = False) -> Result | None:
        """The file of a task, after it was made to say what the store says."""
        async with self._one_at_a_time:
            result: Result | None = None
            for _ in range(ATTEMPTS):
                stand, result = await self._tell(run_id, leaving=leaving)
                # Others may have ended it or taken it over since the store was asked: then the file would be wrong.
                if stand.is_over or leaving or stand.facts == (await self._stand(run_id)).facts:
                    break
            return result

    async def _tell(self, run_id: RunId, *, leaving: bool) -> tuple[_Stand, Result]:
        place = await self._place(await self._supervisor.row(run_id))
        # The file before the store: a file that tells an end, and a store that knows of none, is a file that is wrong.
        seen = place.read(run_id)
        stand = await self._stand(run_id)
        result = await self._result(stand, seen, leaving=leaving)
        try:
            if seen != result:
                place.write(result, new=seen is None and not stand.here and not stand.is_over)
        except OSError as error:
            log.warning("the result of task %s cannot be written: %s", run_id, error.strerror or error)
        else:
            if stand.is_over or leaving:
                self._at_work.discard(run_id)
        return stand, result

    async def _result(self, stand: _Stand, seen: Result | None, *, leaving: bool) -> Result:
        row = stand.row
        base = Result(task_id=row.run_id, agent=row.agent, status="Running", started_at=rfc3339(row.accepted_at))
        outcome, cancelled_at = row.progress.outcome, row.cancelled_at
        if outcome is None and cancelled_at is None:
            if stand.is_alive and not leaving:
                return base
            error = interrupted(row.run_id)
            known = seen.finished_at if seen is not None and seen.error == error else None
            finished_at = known or rfc3339(self._supervisor.clock.now())
            return replace(base, status="Failed", error=error, finished_at=finished_at)
        finished_at = rfc3339(row.progress.ended_at or cancelled_at or row.accepted_at)
        if outcome is None or outcome.result == "cancelled":
            return replace(base, status="Cancelled", error=await self._who_cancelled(row), finished_at=finished_at)
        run = await self._supervisor.replay(row.run_id)
        answer = Target.of(run.run_spec, run.accepted.limits, self._dialect_context.families).answer(outcome)
        if answer.error is not None:
            return replace(base, status="Failed", error=self._bare(answer.error), finished_at=finished_at)
        return replace(base, status="Completed", output=self._bare(answer.output), finished_at=finished_at)

    async def _who_cancelled(self, row: RunRow) -> str:
        outcome = row.progress.outcome
        if outcome is not None and outcome.error == BY_USER:
            return BY_USER
        above = row.parent_id
        while above is not None and (parent := await self._any_row(above)) is not None:
            if parent.cancelled_at is not None and parent.cancelled_at == row.cancelled_at:
                return BY_PARENT  # a tree is cancelled as one, in one moment
            above = parent.parent_id
        return BY_USER

    def _bare(self, text: str) -> str:
        """The text without keys: a file outlives the process, and is read by whoever can see the folder."""
        for secret in self._dialect_context.families.secrets():
            text = text.replace(secret, KEY)
        return _VENDORS_KEYS.sub(KEY, text)

    # The store

    async def _stand(self, run_id: RunId) -> _Stand:
        row = await self._supervisor.row(run_id)
        here = self._supervisor.live(run_id) is not None
        if here or row.progress.outcome is not None:
            return _Stand(row, here, here)
        return _Stand(row, await self._supervisor.is_driven(row), here)

    async def _row(self, run_id: RunId) -> RunRow | None:
        row = await self._any_row(run_id)
        return row if row is not None and row.handle is not None and row.handle.space == SPACE else None

    async def _any_row(self, run_id: RunId) -> RunRow | None:
        return await self._supervisor.stored.run(run_id)

    async def _place(self, row: RunRow) -> Results:
        """The folder of whoever started the task."""
        starter = row.parent_id or row.run_id
        if starter not in self._places:
            parent = await self._any_row(starter)
            run_spec = await self._supervisor.stored.run_spec((parent or row).run_spec)
            self._places[starter] = Results(run_spec.workspace)
        return self._places[starter]


def _is_background(accepted: RunAccepted) -> bool:
    return accepted.handle is not None and accepted.handle.space == SPACE


def _tells_the_end(seen: Result | None, row: RunRow) -> bool:
    """Whether a file was written after the task's end; looked at closely only when somebody asks for the result."""
    ended_at, outcome = row.progress.ended_at, row.progress.outcome
    if seen is None or ended_at is None or outcome is None:
        return False
    names = {"completed": "Completed", "cancelled": "Cancelled"}
    return seen.status == names.get(outcome.result, "Failed") and seen.finished_at == rfc3339(ended_at)
