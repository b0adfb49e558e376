"""Retention of subagents' messages after the end of their tree: they are dropped, kept, or also copied.

The trees whose retention is still to be applied are in a key-value namespace of the store, from before the first
subagent starts; what a crash interrupts is done by the next process that drives runs.
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

log = logging.getLogger("retinue.tools.subagent")

SPACE = "xzatoma-trees"
"""The namespace: the root of each tree whose retention is to be applied, and its rule."""
DROP = b""
"""The rule that drops the messages of a tree; any other is the path of a database that they are copied to."""


def copy(logs: Sequence[Sequence[Event]], run_specs: Mapping[str, RunSpec], path: Path) -> None:
    """Copy whole runs, parents first, into the store at `path`, which keeps the runs that it has already."""
    from retinue.store.sqlite import SqliteStore

    path.parent.mkdir(parents=True, exist_ok=True)
    store = SqliteStore(path)
    try:
        accepts: list[Write] = []
        records: list[Write] = []
        for accepted, *events in logs:
            if isinstance(accepted, RunAccepted) and store.run(accepted.run_id) is None:
                accepts.append(OpenSession(session_id=accepted.session_id, at=accepted.at))
                # No run is accepted below one that has ended, so all events follow. Keys and handles are not copied.
                copied = replace(accepted, key=None, handle=None)
                accepts.append(Accept(accepted=copied, run_spec=run_specs[accepted.run_spec], driver_id=None))
                records.append(Record(run_id=accepted.run_id, seq=2, events=tuple(events)))
        if accepts:
            store.commit(None, [*accepts, *records])
    finally:
        store.close()


class Retention:
    """Applies the retention of the trees in which this process has subagents."""

    def __init__(self, dialect_context: DialectContext, settings: XzatomaSettings) -> None:
        self._supervisor = supervisor = dialect_context.supervisor
        self._key_value = supervisor.key_value
        self._rule = _rule(settings)
        self._trees: dict[RunId, bytes] = {}
        self._copying: set[asyncio.Task[None]] = set()
        supervisor.on_register(self._catch_up)
        supervisor.on_adopt(self._adopted)
        supervisor.on_end(self._ended)
        supervisor.on_leave(self._finish)

    def expect(self, root_id: RunId) -> None:
        """Remember a tree in which a subagent is about to start."""
        if self._rule is not None and root_id not in self._trees:
            self._trees[root_id] = self._rule
            self._key_value.queue_change(SPACE, _put(root_id, self._rule))

    def _ended(self, accepted: RunAccepted, outcome: Outcome) -> None:
        for root_id in self._needed_by(accepted):
            if root_id in self._trees and not self._is_needed(root_id):
                self._apply(root_id, self._trees.pop(root_id))

    def _is_needed(self, root_id: RunId) -> bool:
        """Whether a live run needs the messages of the tree."""
        return any(root_id in self._needed_by(live.run.accepted) for live in self._supervisor.live_runs())

    def _needed_by(self, accepted: RunAccepted) -> tuple[RunId, ...]:
        """The trees whose messages a run needs: its own, and that of the run whose history it inherits."""
        if accepted.inherits is None:
            return (accepted.root_id,)
        origin = accepted.inherits.run_id
        if (live := self._supervisor.live(origin)) is not None:
            return accepted.root_id, live.run.accepted.root_id
        if (ended := self._supervisor.ended(origin)) is not None:
            return accepted.root_id, ended.root_id
        return (accepted.root_id,)

    async def _catch_up(self) -> None:
        """Apply the retention of trees that ended before this process started."""
        for root_id, rule in (await self._key_value.look(SPACE)).items():
            rows = await self._rows(root_id)
            if all(row.progress.phase == "ended" for row in rows) and not self._is_needed(root_id):
                self._apply(root_id, rule)

    async def _adopted(self, runs: Sequence[Run]) -> None:
        known = await self._key_value.look(SPACE)
        roots = {run.accepted.root_id for run in runs}
        self._trees |= {root_id: rule for root_id, rule in known.items() if root_id in roots}

    def _apply(self, root_id: RunId, rule: bytes) -> None:
        if rule == DROP:
            # A crash between the two writes is harmless: the next process drops the events again.
            self._supervisor.drop_events(root_id, NAME)
            self._key_value.queue_change(SPACE, _drop(root_id))
            return
        task = asyncio.get_running_loop().create_task(self._copy(root_id, Path(rule.decode())), name="retinue-copies")
        self._copying.add(task)
        task.add_done_callback(self._copying.discard)

    async def _copy(self, root_id: RunId, path: Path) -> None:
        try:
            rows = [row for row in await self._rows(root_id) if row.dialect == NAME and row.parent_id is not None]
            stored = self._supervisor.stored
            logs = [await stored.events(row.run_id) for row in reversed(rows)]
            run_specs = {row.run_spec: await stored.run_spec(row.run_spec) for row in rows}
            await asyncio.to_thread(copy, [[event for _, event in log] for log in logs], run_specs, path)
            await self._key_value.change(SPACE, _drop(root_id))
        except (RetinueError, OSError) as error:  # the copy is optional: no run fails because of it
            log.warning("the conversations below run %s could not be copied to %s: %s", root_id, path, error)

    async def _finish(self) -> None:
        await asyncio.gather(*self._copying, return_exceptions=True)

    async def _rows(self, root_id: RunId) -> list[RunRow]:
        return await self._supervisor.stored.runs(RunQuery(root_id=root_id))


def _rule(settings: XzatomaSettings) -> bytes | None:
    """The retention rule of the settings; None if the messages stay in the store."""
    if not settings.persistence_enabled:
        return DROP
    if settings.persistence_path is None:
        return None
    return str(Path(settings.persistence_path).expanduser().absolute()).encode()


def _put(root_id: RunId, rule: bytes) -> Decide:
    return lambda key_value: Decision(b"", puts={root_id: rule})


def _drop(root_id: RunId) -> Decide:
    return lambda key_value: Decision(b"", drops=(root_id,))
