"""What becomes of subagents' messages when their tree has ended in `xzatoma`: they are dropped, kept, or copied too.

Which trees are still to be dealt with stands on a shelf of the store, from before the first subagent is born until it
is done: what a crash interrupts is caught up with by the next process that drives runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from retinue.core.agent import RunSpec
from retinue.core.commands import Accept, Decide, Decision, OpenSession, Record, RunQuery, RunRow, Write
from retinue.core.errors import RetinueError
from retinue.core.events import Event, RunAccepted
from retinue.core.ids import RunId
from retinue.core.run import Outcome
from retinue.core.state import Run
from retinue.dialects.context import DialectContext
from retinue.dialects.xzatoma import NAME
from retinue.dialects.xzatoma.settings import XzatomaSettings


def copy(logs: Sequence[Sequence[Event]], briefs: Mapping[str, RunSpec], path: Path) -> None:
    """Put whole runs, parents first, into the store at `path`; those that are there already stay as they are."""
    from retinue.store.sqlite import SqliteStore

    path.parent.mkdir(parents=True, exist_ok=True)
    store = SqliteStore(path)
    try:
        children_created: list[Write] = []
        lives: list[Write] = []
        for accepted, *events in logs:
            if isinstance(accepted, RunAccepted) and store.run(accepted.run_id) is None:
                children_created.append(OpenSession(session_id=accepted.session_id, at=accepted.at))
                # Nobody is born under one who has ended, so all births come first. Keys and handles stay behind.
                copied = replace(accepted, key=None, handle=None)
                children_created.append(Accept(accepted=copied, run_spec=briefs[accepted.run_spec], driver_id=None))
                lives.append(Record(run_id=accepted.run_id, seq=2, events=tuple(events)))
        if children_created:
            store.commit(None, [*children_created, *lives])
    finally:
        store.close()


log = logging.getLogger("retinue.tools.subagent")

SPACE = "xzatoma-trees"
"""The shelf: the root of each tree that is to be dealt with, and how."""
DROP = b""
"""Drop its messages; anything else is the path of a database to copy them to."""


class Keeping:
    """Sees to the messages of the trees in which this process has subagents."""

    def __init__(self, dialect_context: DialectContext, settings: XzatomaSettings) -> None:
        self._supervisor = supervisor = dialect_context.supervisor
        self._key_value = supervisor.key_value
        self._how = _how(settings)
        self._trees: dict[RunId, bytes] = {}
        self._copying: set[asyncio.Task[None]] = set()
        supervisor.on_register(self._catch_up)
        supervisor.on_adopt(self._adopted)
        supervisor.on_end(self._ended)
        supervisor.on_leave(self._finish)

    def expect(self, root_id: RunId) -> None:
        """A subagent is about to be born in this tree."""
        if self._how is not None and root_id not in self._trees:
            self._trees[root_id] = self._how
            self._key_value.queue_change(SPACE, _put(root_id, self._how))

    def _ended(self, accepted: RunAccepted, outcome: Outcome) -> None:
        for root_id in self._needed_by(accepted):
            if root_id in self._trees and not self._is_alive(root_id):
                self._deal_with(root_id, self._trees.pop(root_id))

    def _is_alive(self, root_id: RunId) -> bool:
        """Whether somebody in the tree is at work, or began with words of somebody in it and is."""
        return any(root_id in self._needed_by(each.run.accepted) for each in self._supervisor.live_runs())

    def _needed_by(self, accepted: RunAccepted) -> tuple[RunId, ...]:
        """The trees that a run needs the messages of: its own, and that of the run whose history it began with."""
        if accepted.inherits is None:
            return (accepted.root_id,)
        origin = accepted.inherits.run_id
        if (live := self._supervisor.live(origin)) is not None:
            return accepted.root_id, live.run.accepted.root_id
        if (ended := self._supervisor.ended(origin)) is not None:
            return accepted.root_id, ended.root_id
        return (accepted.root_id,)

    async def _catch_up(self) -> None:
        """Deal with trees that ended while nobody was there to."""
        for root_id, how in (await self._key_value.look(SPACE)).items():
            rows = await self._rows(root_id)
            if all(row.progress.phase == "ended" for row in rows) and not self._is_alive(root_id):
                self._deal_with(root_id, how)

    async def _adopted(self, runs: Sequence[Run]) -> None:
        known = await self._key_value.look(SPACE)
        roots = {run.accepted.root_id for run in runs}
        self._trees |= {root_id: how for root_id, how in known.items() if root_id in roots}

    def _deal_with(self, root_id: RunId, how: bytes) -> None:
        if how == DROP:
            # A crash between the two writes is harmless: the next process drops the events again.
            self._supervisor.drop_events(root_id, NAME)
            self._key_value.queue_change(SPACE, _drop(root_id))
            return
        task = asyncio.get_running_loop().create_task(self._copy(root_id, Path(how.decode())), name="retinue-copies")
        self._copying.add(task)
        task.add_done_callback(self._copying.discard)

    async def _copy(self, root_id: RunId, path: Path) -> None:
        try:
            rows = [row for row in await self._rows(root_id) if row.dialect == NAME and row.parent_id is not None]
            stored = self._supervisor.stored
            logs = [await stored.events(row.run_id) for row in reversed(rows)]
            briefs = {row.run_spec: await stored.run_spec(row.run_spec) for row in rows}
            await asyncio.to_thread(copy, [[event for _, event in log] for log in logs], briefs, path)
            await self._key_value.change(SPACE, _drop(root_id))
        except (RetinueError, OSError) as error:  # the copy is a convenience: nothing fails for it
            log.warning("the conversations below run %s could not be copied to %s: %s", root_id, path, error)

    async def _finish(self) -> None:
        await asyncio.gather(*self._copying, return_exceptions=True)

    async def _rows(self, root_id: RunId) -> list[RunRow]:
        return await self._supervisor.stored.runs(RunQuery(root_id=root_id))


def _how(settings: XzatomaSettings) -> bytes | None:
    """What is to become of the messages; None when they just stay where they are."""
    if not settings.persistence_enabled:
        return DROP
    if settings.persistence_path is None:
        return None
    return str(Path(settings.persistence_path).expanduser().absolute()).encode()


def _put(root_id: RunId, how: bytes) -> Decide:
    return lambda key_value: Decision(b"", puts={root_id: how})


def _drop(root_id: RunId) -> Decide:
    return lambda key_value: Decision(b"", drops=(root_id,))
