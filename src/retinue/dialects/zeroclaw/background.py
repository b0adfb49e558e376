"""Synchronizes the result files of background tasks with the store.

A task's file is written when the task starts and ends, and when this process adopts or leaves it. Changes that other
processes made are written when a process opens the store, and before a request is answered from a file.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.commands import RunQuery, RunRow
from retinue.core.errors import RetinueError
from retinue.core.events import RunAccepted
from retinue.core.ids import RunId
from retinue.core.log_context import logger
from retinue.core.run import Outcome
from retinue.core.state import Run
from retinue.core.text import rfc3339
from retinue.dialects.context import DialectContext
from retinue.dialects.zeroclaw.answers import BY_PARENT, BY_USER, DelegateTarget, interrupted
from retinue.dialects.zeroclaw.result_files import ResultFolder, TaskResult

log = logger("retinue.zeroclaw")

SPACE = "zeroclaw"
"""The space of the handles of background tasks; a run with such a handle is one."""

ATTEMPTS = 3
"""How often a file is written again because another process changed the task."""

KEY = "[key]"

_VENDORS_KEYS = re.compile(r"\b(?:sk-[\w-]{20,}|gsk_\w{20,}|xai-\w{20,}|AIza[\w-]{30,})", re.ASCII)
"""Only forms that are certainly keys: a result must not be damaged by a guess."""


class _TaskState(Struct, frozen=True):
    """The stored state of a task; `here` if this process drives it."""

    row: RunRow
    is_alive: bool
    here: bool

    @property
    def is_over(self) -> bool:
        return self.row.progress.outcome is not None

    @property
    def facts(self) -> tuple[bool, bool, bool]:
        """What the content of a file depends on."""
        return self.is_over, self.row.cancelled_at is not None, self.is_alive


class Background:
    """The background tasks that this process drives, and their files."""

    def __init__(self, dialect_context: DialectContext) -> None:
        self._dialect_context = dialect_context
        self._supervisor = supervisor = dialect_context.supervisor
        self._driven: set[RunId] = set()
        """Tasks of this process whose file does not have their end yet."""
        self._lock = asyncio.Lock()
        self._has_caught_up = False
        self._folders: dict[RunId, ResultFolder] = {}
        supervisor.on_register(self._catch_up)
        supervisor.on_adopt(self._adopted)
        supervisor.on_end(self._ended)
        supervisor.on_leave(self._leave)

    def folder(self, workspace: str) -> ResultFolder:
        """The folder with the results of a workspace."""
        return ResultFolder(workspace, self._dialect_context.workspaces)

    async def begun(self, run_id: RunId) -> None:
        """Write the file of a task that this process drives."""
        self._driven.add(run_id)
        await self._synced(run_id)

    async def result(self, task_id: str, results: ResultFolder) -> TaskResult | None:
        """The result of a task of this folder, after its file was synchronized; None if there is no such task."""
        await self._catch_up()
        row = await self._row(task_id)
        if row is None:
            return results.read(task_id)  # a file of another store or program
        if (await self._folder_of(row)).workspace != results.workspace:
            return None
        return await self._synced(task_id)

    async def knows(self, task_id: str) -> bool:
        """Whether a background task of this id is live or in the store."""
        live = self._supervisor.live(task_id)
        return _is_background(live.run.accepted) if live is not None else await self._row(task_id) is not None

    async def all(self, results: ResultFolder) -> list[TaskResult]:
        """All results of a folder, oldest first."""
        await self._catch_up()
        for row in await self._supervisor.stored.runs(RunQuery(handle_space=SPACE)):
            if (await self._folder_of(row)).workspace == results.workspace:
                await self._synced(row.run_id)
        return results.all()

    async def _catch_up(self) -> None:
        """Synchronize every file, once per process."""
        if self._has_caught_up:
            return
        self._has_caught_up = True
        rows = await self._supervisor.stored.runs(RunQuery(handle_space=SPACE))
        swept: set[str] = set()
        for row in rows:
            try:
                folder = await self._folder_of(row)
                if folder.workspace not in swept:
                    swept.add(folder.workspace)
                    folder.sweep()
                if not _has_end(folder.read(row.run_id), row):
                    await self._synced(row.run_id)
            except RetinueError as error:  # such as a run that was pruned meanwhile; the store is opened all the same
                log.warning("the result of task %s is not written: %s", row.run_id, error)

    async def _adopted(self, runs: Sequence[Run]) -> None:
        for run in runs:
            if _is_background(run.accepted):
                await self.begun(run.run_id)

    def _ended(self, accepted: RunAccepted, outcome: Outcome) -> None:
        if _is_background(accepted):
            self._driven.add(accepted.run_id)  # until its file has the end, also if this process is leaving
            # Written from the store, so that a file never has more than is known after a crash.
            self._supervisor.start_background(self._sync_or_log(accepted.run_id))

    async def _sync_or_log(self, run_id: RunId, *, leaving: bool = False) -> None:
        try:
            await self._synced(run_id, leaving=leaving)
        except RetinueError as error:
            log.warning("the result of task %s is not written: %s", run_id, error)

    async def _leave(self) -> None:
        """Mark the tasks of this process as interrupted: it stops driving them."""
        if self._supervisor.is_fenced:
            return  # another process has adopted these tasks
        for run_id in sorted(self._driven):
            await self._sync_or_log(run_id, leaving=True)

    async def _synced(self, run_id: RunId, *, leaving: bool = False) -> TaskResult | None:
        """The result of a task, after its file was synchronized."""
        async with self._lock:
            result: TaskResult | None = None
            for _ in range(ATTEMPTS):
                state, result = await self._sync(run_id, leaving=leaving)
                # Another process may have ended or adopted the task since the store was read.
                if state.is_over or leaving or state.facts == (await self._state(run_id)).facts:
                    break
            return result

    async def _sync(self, run_id: RunId, *, leaving: bool) -> tuple[_TaskState, TaskResult]:
        folder = await self._folder_of(await self._supervisor.row(run_id))
        # The file is read before the store: a file with an end that the store does not have is wrong.
        seen = folder.read(run_id)
        state = await self._state(run_id)
        result = await self._result(state, seen, leaving=leaving)
        try:
            if seen != result:
                folder.write(result, new=seen is None and not state.here and not state.is_over)
        except OSError as error:
            log.warning("the result of task %s cannot be written: %s", run_id, error.strerror or error)
        else:
            if state.is_over or leaving:
                self._driven.discard(run_id)
        return state, result

    async def _result(self, state: _TaskState, seen: TaskResult | None, *, leaving: bool) -> TaskResult:
        row = state.row
        base = TaskResult(task_id=row.run_id, agent=row.agent, status="Running", started_at=rfc3339(row.accepted_at))
        outcome, cancelled_at = row.progress.outcome, row.cancelled_at
        if outcome is None and cancelled_at is None:
            if state.is_alive and not leaving:
                return base
            error = interrupted(row.run_id)
            known = seen.finished_at if seen is not None and seen.error == error else None
            finished_at = known or rfc3339(self._supervisor.clock.now())
            return replace(base, status="Failed", error=error, finished_at=finished_at)
        finished_at = rfc3339(row.progress.ended_at or cancelled_at or row.accepted_at)
        if outcome is None or outcome.result == "cancelled":
            return replace(base, status="Cancelled", error=await self._who_cancelled(row), finished_at=finished_at)
        run = await self._supervisor.replay(row.run_id)
        answer = DelegateTarget.of(run.run_spec, run.accepted.limits, self._dialect_context.families).answer(outcome)
        if answer.error is not None:
            return replace(base, status="Failed", error=self._redacted(answer.error), finished_at=finished_at)
        return replace(base, status="Completed", output=self._redacted(answer.output), finished_at=finished_at)

    async def _who_cancelled(self, row: RunRow) -> str:
        outcome = row.progress.outcome
        if outcome is not None and outcome.error == BY_USER:
            return BY_USER
        above = row.parent_id
        while above is not None and (parent := await self._any_row(above)) is not None:
            if parent.cancelled_at is not None and parent.cancelled_at == row.cancelled_at:
                return BY_PARENT  # a whole tree is cancelled at the same time
            above = parent.parent_id
        return BY_USER

    def _redacted(self, text: str) -> str:
        """The text without keys: a file outlives the process, and other users may read the folder."""
        for secret in self._dialect_context.families.secrets():
            text = text.replace(secret, KEY)
        return _VENDORS_KEYS.sub(KEY, text)

    async def _state(self, run_id: RunId) -> _TaskState:
        row = await self._supervisor.row(run_id)
        here = self._supervisor.live(run_id) is not None
        if here or row.progress.outcome is not None:
            return _TaskState(row, here, here)
        return _TaskState(row, await self._supervisor.is_driven(row), here)

    async def _row(self, run_id: RunId) -> RunRow | None:
        row = await self._any_row(run_id)
        return row if row is not None and row.handle is not None and row.handle.space == SPACE else None

    async def _any_row(self, run_id: RunId) -> RunRow | None:
        return await self._supervisor.stored.run(run_id)

    async def _folder_of(self, row: RunRow) -> ResultFolder:
        """The folder in the workspace of the run that started the task."""
        starter = row.parent_id or row.run_id
        if starter not in self._folders:
            parent = await self._any_row(starter)
            run_spec = await self._supervisor.stored.run_spec((parent or row).run_spec)
            self._folders[starter] = self.folder(run_spec.workspace)
        return self._folders[starter]


def _is_background(accepted: RunAccepted) -> bool:
    return accepted.handle is not None and accepted.handle.space == SPACE


def _has_end(seen: TaskResult | None, row: RunRow) -> bool:
    """Whether a file was written after the task's end; its text is compared only when the result is requested."""
    ended_at, outcome = row.progress.ended_at, row.progress.outcome
    if seen is None or ended_at is None or outcome is None:
        return False
    names = {"completed": "Completed", "cancelled": "Cancelled"}
    return seen.status == names.get(outcome.result, "Failed") and seen.finished_at == rfc3339(ended_at)
