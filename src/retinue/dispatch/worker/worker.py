"""The worker: takes trees without a driver that it can drive, drives them, and hands them over when it stops.

Which runs belong to it the store alone decides: every write of a run checks its driver. Everything here only chooses
what to ask the store for, and may be told of the same run twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.app.retinue import Retinue
from retinue.app.run_spec import LaunchConfig
from retinue.core.agent import RunSpec
from retinue.core.commands import RunQuery, RunRow
from retinue.core.errors import (
    Fenced,
    NotAdoptable,
    RetinueError,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    UnknownFormat,
)
from retinue.core.events import RunAccepted, RunLeft
from retinue.core.ids import RunId
from retinue.core.log_context import line, logger
from retinue.core.run import MCP_HOST, Outcome
from retinue.core.text import plural
from retinue.core.workspace import WorkspaceUnavailable
from retinue.dispatch.worker.health import HealthServer
from retinue.dispatch.worker.job_queue import JobQueue, QueueUnavailable, needs_of, runs_of
from retinue.dispatch.worker.schedules import Schedules
from retinue.dispatch.worker.table import WorkerFacts, add_worker, remove_worker
from retinue.engine import Approver, LiveView
from retinue.version import __version__

if TYPE_CHECKING:
    from procrastinate.jobs import Job

    from retinue.store.postgres import PostgresAddress

log = logger("retinue.worker")

LOOK_INTERVAL = 1.0
"""Seconds between two looks at the store, if no notification comes before."""

LEAST_PAUSE = 0.02
"""Seconds between two looks at least."""

STOP_SECONDS = 8.0
"""Seconds after a stop in which calls in progress may end."""

LEAVE_SECONDS = 9.0
"""Seconds after a stop in which workspaces are handed back; then the runs are given to other workers without that."""

STOP_WITHIN = 9.5
"""Seconds after a stop in which the worker has left, whatever still hangs."""

LAST_LOOK_SECONDS = 1.0
"""Seconds after a stop in which a look may end that is in progress."""

BATCH = 16
"""Placed children of one tree that are taken together."""

ENQUEUED_AT_ONCE = 500
"""Units that are enqueued at one look; the others follow when these are taken."""

QUEUE_SECONDS = 1.0
"""Seconds that a unit waits for its job, before a worker with room takes it without one."""

LONGEST_QUEUE_SECONDS = 10.0
"""The same while the queue has other jobs."""

MAX_QUEUES = 1000
"""Names of queues that a worker keeps: each workspace with an address has one."""

PAGE = 256
"""New placed children that are read at one look; the others follow when these are taken."""

FULL_SECONDS = 0.5
"""Seconds before another tree is tried, if the store may have as many at work as its limit says."""

LOOK_AGAIN_SECONDS = 60.0
"""Seconds after which a worker looks again for what its machine lacked, such as a folder that was not mounted."""

CHILDREN = "-children"
"""The end of the names of queues of placed children, for which there is room of another kind than for roots."""

SERVING = "retinue-worker"
"""The name of the task of a worker."""

REOPEN_SECONDS = 1.0
"""Seconds before a worker that was declared dead opens the store again."""


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """How a worker works: trees at once, its tags, runs at work at once, and whether it leaves when nothing waits."""

    concurrency: int = 8
    tags: frozenset[str] = frozenset()
    max_runs: int = 256
    max_trees: int | None = None
    drain: bool = False
    health: tuple[str, int] | None = None


class RunUnit(Struct, frozen=True):
    """Runs of a tree that are taken together: one whose parent is driven elsewhere or has ended, and all below it."""

    top: RunRow
    rows: tuple[RunRow, ...]

    @property
    def is_root(self) -> bool:
        return self.top.parent_id is None

    @property
    def key(self) -> tuple[RunId, int]:
        """Another one for each time that it is without a driver."""
        return self.top.run_id, self.top.seq

    @property
    def is_takeover(self) -> bool:
        """Whether another process has driven one of the runs before."""
        return any(row.seq > 1 for row in self.rows)


def units_of(rows: Sequence[RunRow]) -> list[RunUnit]:
    """Runs without a driver, grouped into what is taken together, the oldest first."""
    known = {row.run_id: row for row in rows}
    members: dict[RunId, list[RunRow]] = {}
    for row in sorted(rows, key=lambda row: (row.depth, row.accepted_at, row.run_id)):
        top = row
        while top.parent_id is not None and top.parent_id in known:
            top = known[top.parent_id]
        members.setdefault(top.run_id, []).append(row)
    units = [RunUnit(known[top_id], tuple(each)) for top_id, each in members.items()]
    return sorted(units, key=lambda unit: (unit.top.accepted_at, unit.top.run_id))


def batches(units: Sequence[RunUnit]) -> list[list[RunUnit]]:
    """Units as they are taken: roots one by one, the oldest first, and placed children in small groups of one tree.

    Placed children come first, because their parents wait. Their order is random: workers then rarely want the same.
    """
    placed: dict[RunId, list[RunUnit]] = {}
    for unit in units:
        if not unit.is_root:
            placed.setdefault(unit.top.root_id, []).append(unit)
    groups: list[list[RunUnit]] = []
    for tree in placed.values():
        random.shuffle(tree)
        groups += [tree[first : first + BATCH] for first in range(0, len(tree), BATCH)]
    return [*groups, *([unit] for unit in units if unit.is_root)]


def is_new_child(row: RunRow) -> bool:
    """Whether a run was placed for another worker and no process has driven it: nothing is below it."""
    return row.progress.phase == "placed" and row.seq == 1


def groups(units: Sequence[RunUnit]) -> list[list[RunUnit]]:
    """Units as they are enqueued: new children of one tree with the same run spec are one job, all others single.

    Of few children each is a job, so that they are spread over workers.
    """
    alike: dict[tuple[RunId, str], list[RunUnit]] = {}
    found: list[list[RunUnit]] = []
    for unit in units:
        if is_new_child(unit.top) and not unit.is_root:
            alike.setdefault((unit.top.root_id, unit.top.run_spec), []).append(unit)
        else:
            found.append([unit])
    for children in alike.values():
        size = min(BATCH, 1 + len(children) // 8)
        found += [children[first : first + size] for first in range(0, len(children), size)]
    return found


def counted_trees(live: Collection[LiveView]) -> frozenset[RunId]:
    """The roots of the trees at work; one of which every run waits, and one run for an approval, is not counted."""
    at_work: set[RunId] = set()
    waiting: set[RunId] = set()
    approval: set[RunId] = set()
    for each in live:
        root_id = each.run.accepted.root_id
        if each.waiting_for == "approval":
            approval.add(root_id)
        elif each.waiting_for is None and each.state != "idle":
            at_work.add(root_id)
        elif each.state != "idle":
            waiting.add(root_id)
    return frozenset(at_work | (waiting - approval))


class WorkerCounts(Struct):
    """Numbers of a worker since its start, for metrics."""

    taken: int = 0
    takeovers: int = 0
    finished: int = 0
    waiting: int = 0


class Worker:
    """Takes and drives trees in an open retinue; `report` gets a line when one is taken, refused or handed over."""

    def __init__(
        self,
        retinue: Retinue,
        options: WorkerOptions,
        counts: WorkerCounts,
        report: Callable[[str], None],
        queue: JobQueue | None = None,
        schedules: Schedules | None = None,
    ) -> None:
        self._retinue = retinue
        self._schedules = schedules
        self._supervisor = retinue.supervisor
        self._options = options
        self._counts = counts
        self._report = report
        self._refused: dict[RunId, int] = {}
        """Runs that cannot be driven here, with the number of their last event."""
        self._reported: dict[RunId, str] = {}
        """The reasons that were reported for these runs."""
        self._passing: tuple[set[RunId], set[str]] = (set(), set())
        """The refused runs and the queues that cannot be served whose obstacle may have gone."""
        self._looked_again_at = asyncio.get_running_loop().time()
        self._queue = queue
        self._jobs: dict[RunId, Job] = {}
        """The jobs of units that are driven here, by their top runs."""
        self._served: dict[str, None] = {}
        self._unserved: dict[str, str] = {}
        """The queues of units that can be driven here, and those that cannot, with the reason."""
        self._specs: dict[str, RunSpec] = {}
        self._placed: set[RunId] = set()
        """Runs that were accepted here for other workers, and are to be enqueued."""
        self._known_needs: set[frozenset[str]] = set()
        """The run specs of units whose queue is known here."""
        self._seen: dict[tuple[RunId, int], float] = {}
        """Since when each unit has been waiting for its job."""
        self._marking_since: float | None = None
        self._older: dict[RunId, bool] = {}
        """Trees from before drivers marked what they leave, and whether they were left then."""
        self._full_since = -FULL_SECONDS
        self._served_at = 0.0
        """When the queue last had a job for this worker, by the time of the loop."""
        self._read_seconds = 0.0
        """How long the last look read the store."""
        self._stopped_at: float | None = None
        """When a stop came during a look, by the time of the loop."""
        self._woken = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Take and drive trees until `stop` is set, until this driver is declared dead, or until nothing is left."""
        supervisor = self._supervisor
        supervisor.on_change(self._woken.set)
        supervisor.on_end(self._ended)
        supervisor.on_placed(self._note_placed)
        driver_id = supervisor.driver_id
        assert driver_id is not None
        facts = WorkerFacts(
            version=__version__, tags=tuple(sorted(self._options.tags)), concurrency=self._options.concurrency
        )
        await add_worker(supervisor.key_value, driver_id, facts, await supervisor.drivers.living())
        starting_jobs = None if self._schedules is None else asyncio.create_task(self._schedules.run())
        clock = asyncio.get_running_loop().time
        try:
            while not stop.is_set() and not supervisor.is_fenced:
                is_idle = await self._look_until(stop)
                if is_idle and self._options.drain:
                    break
                await self._pause(stop)
        finally:
            stopped_at = clock() if self._stopped_at is None else self._stopped_at
            self._retinue.driver.leave_by = stopped_at + LEAVE_SECONDS
            if self._schedules is not None and starting_jobs is not None:
                self._schedules.stop()
                await asyncio.wait({starting_jobs}, timeout=stopped_at + STOP_SECONDS - clock())
                starting_jobs.cancel()
                await asyncio.gather(starting_jobs, return_exceptions=True)
            if not supervisor.is_fenced:
                await self._finish_calls(stopped_at + STOP_SECONDS)
                with suppress(StoreError, TimeoutError):  # its row says that it has left, too
                    async with asyncio.timeout_at(self._retinue.driver.leave_by):
                        await remove_worker(supervisor.key_value, driver_id)

    async def _look_until(self, stop: asyncio.Event) -> bool:
        """A look, which is cancelled soon after a stop: a store that does not answer holds it up for long."""
        look = asyncio.ensure_future(self._look_safely())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({look, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                self._stopped_at = asyncio.get_running_loop().time()
                await asyncio.wait({look}, timeout=LAST_LOOK_SECONDS)
            return look.done() and look.result()
        finally:
            for task in (look, stopping):
                task.cancel()
            await asyncio.gather(look, stopping, return_exceptions=True)

    def _note_placed(self, run_id: RunId) -> None:
        self._placed.add(run_id)
        self._woken.set()

    def _ended(self, accepted: RunAccepted, _: Outcome) -> None:
        if accepted.parent_id is None:
            self._counts.finished += 1
        self._woken.set()

    async def _pause(self, stop: asyncio.Event) -> None:
        """Wait until another process has written or a run has ended here, or for a moment.

        The longer the last look read, the longer is the pause: a store with many waiting runs is not read all the time.
        What was enqueued and taken meanwhile does not count: there may be more of it.
        """
        stopped = asyncio.ensure_future(stop.wait())
        woken = asyncio.ensure_future(self._woken.wait())
        await asyncio.wait({stopped}, timeout=min(LOOK_INTERVAL, max(LEAST_PAUSE, 4 * self._read_seconds)))
        await asyncio.wait({stopped, woken}, timeout=LOOK_INTERVAL, return_when=asyncio.FIRST_COMPLETED)
        for each in (stopped, woken):
            each.cancel()
        self._woken.clear()

    async def _look_safely(self) -> bool:
        try:
            return await self._look()
        except StoreError as error:
            log.warning("%s", error)  # it may be temporary: a restart of the server, a full disk
        return False

    async def _look(self) -> bool:
        """Take what waits, as far as there is room; whether nothing is left to do."""
        clock = asyncio.get_running_loop().time
        began = clock()
        if began - self._looked_again_at >= LOOK_AGAIN_SECONDS:
            self._looked_again_at = began
            self._forget_passing()
        await self._supervisor.drivers.reap()
        rows = await self._waiting_rows()
        interrupted = await self._interrupted(rows)
        self._read_seconds = clock() - began
        wanted = [unit for unit in units_of(rows) if self._is_wanted(unit, interrupted)]
        waiting = [unit for unit in wanted if await self._is_readable(unit)]
        priorities = {unit.top.run_spec: (await self._spec(unit.top.run_spec)).priority for unit in waiting}
        waiting.sort(key=lambda unit: -priorities[unit.top.run_spec])
        if self._queue is not None:
            try:
                left = await self._take_from_queue(self._queue, waiting)
            except QueueUnavailable:
                left = await self._take_directly(waiting)
        else:
            left = await self._take_directly(waiting)
        self._counts.waiting = left
        return not left and not counted_trees(self._supervisor.live_runs())

    async def _waiting_rows(self) -> list[RunRow]:
        """Runs without a driver: all that are no new placed children, some of these, and those placed here."""
        waiting = RunQuery(unfinished_only=True, undriven_only=True)
        read = self._supervisor.stored.runs
        rows = await read(replace(waiting, except_phase="placed"))
        rows += await read(replace(waiting, phase="placed", limit=PAGE))
        if self._queue is not None and self._placed:
            own = tuple(islice(self._placed, ENQUEUED_AT_ONCE))
            rows += await read(replace(waiting, run_ids=own))
            self._placed.difference_update(set(own) - {row.run_id for row in rows})
        return list({row.run_id: row for row in rows}.values())

    async def _take_directly(self, waiting: Sequence[RunUnit]) -> int:
        """Take what there is room for, without a queue; how many units are left."""
        left = 0
        for tree in batches(waiting):
            if self._has_room(tree[0]):
                await self._take(tree)
            else:
                left += len(tree)
        return left

    async def _take_from_queue(self, queue: JobQueue, waiting: Sequence[RunUnit]) -> int:
        """Enqueue what waits, and take what the queue hands to this worker; how many units are left."""
        for run_id in await queue.maintain(self._jobs):
            await self._supervisor.cancel(run_id, note="its job was aborted")
        await self._finish_jobs(queue)
        units = {unit.top.run_id: unit for unit in waiting}
        for group in groups([unit for unit in waiting if self._enqueues(unit)][:ENQUEUED_AT_ONCE]):
            name = await self._queue_of(group[0])
            if name is not None:
                priority = (await self._spec(group[0].top.run_spec)).priority
                tops = [unit.top for unit in group]
                await queue.enqueue(tops, name, is_takeover=group[0].is_takeover, priority=priority)
            self._placed.difference_update(unit.top.run_id for unit in group)
        while units and (jobs := await self._fetched(queue, units)):
            self._served_at = asyncio.get_running_loop().time()
            for tree in batches([unit for _, found in jobs for unit in found]):
                await self._take(tree)
            for job, found in jobs:
                taken = [unit.top.run_id for unit in found if self._supervisor.live(unit.top.run_id) is not None]
                self._jobs.update(dict.fromkeys(taken, job))
                if not taken and self._is_store_full and any(unit.is_root for unit in found):
                    await queue.give_back(job)
                elif not taken:
                    await queue.finish(job)  # its runs have other drivers, have ended, or were left alone
        return await self._take_late(units)

    def _enqueues(self, unit: RunUnit) -> bool:
        """Whether this worker enqueues a unit: a new child is enqueued by the worker that placed it."""
        if unit.is_root or unit.is_takeover or unit.top.run_id in self._placed:
            return True
        specs = frozenset(row.run_spec for row in unit.rows)
        return specs not in self._known_needs and not self._known_needs.add(specs)

    async def _fetched(self, queue: JobQueue, units: dict[RunId, RunUnit]) -> list[tuple[Job, list[RunUnit]]]:
        """Some jobs that are handed to this worker, as far as there is room, with what they are about."""
        jobs: list[tuple[Job, list[RunUnit]]] = []
        fetched: set[RunId] = set()  # two workers may have enqueued the same run in different groups
        while len(fetched) < BATCH and (served := self._served_queues(len(fetched))):
            job = await queue.fetch(served)
            if job is None:
                break
            new = [run_id for run_id in runs_of(job) if run_id not in fetched]
            known = [unit for run_id in new if (unit := units.pop(run_id, None)) is not None]
            rest = set(new) - {unit.top.run_id for unit in known}
            found = [*known, *(await self._waiting_units(rest) if rest else ())]
            jobs.append((job, found))
            fetched.update(unit.top.run_id for unit in found)
        return jobs

    async def _take_late(self, units: dict[RunId, RunUnit]) -> int:
        """Take units whose job has not come for a while, perhaps lost with its worker; how many are left.

        While jobs come they are only late: then a unit waits longer.
        """
        now = asyncio.get_running_loop().time()
        self._seen = {unit.key: self._seen.get(unit.key, now) for unit in units.values()}
        patience = QUEUE_SECONDS if now - self._served_at > QUEUE_SECONDS else LONGEST_QUEUE_SECONDS
        late = [unit for unit in units.values() if now - self._seen[unit.key] >= patience]
        return len(units) - len(late) + await self._take_directly(late)

    def _served_queues(self, fetched: int) -> list[str]:
        """The queues from which a unit may be fetched now: those that this worker serves and has room for."""
        live = self._supervisor.live_runs()
        roots = len(counted_trees(live)) + fetched < self._options.concurrency and not self._is_store_full
        children = sum(each.waiting_for is None for each in live) + fetched < self._options.max_runs
        return [name for name in self._served if (children if name.endswith(CHILDREN) else roots)]

    async def _queue_of(self, unit: RunUnit) -> str | None:
        """The queue of a unit; None if no unit with its needs can be driven here, and it is left alone."""
        specs = {row.run_spec: await self._spec(row.run_spec) for row in unit.rows}
        name = needs_of(tuple(specs.values())).queue + ("" if unit.is_root else CHILDREN)
        if name not in self._served and name not in self._unserved:
            try:
                for spec in specs.values():
                    self._retinue.load_dialects(spec.dialects)
                await self._retinue.driver.check_runs(unit.rows)
            except (StoreUnavailable, Fenced):
                raise
            except RetinueError as obstacle:
                self._unserved[name] = obstacle.reason if isinstance(obstacle, NotAdoptable) else str(obstacle)
                if _may_pass(obstacle):
                    self._passing[1].add(name)
            else:
                self._served[name] = None
            for names in (self._served, self._unserved):
                if len(names) > MAX_QUEUES:  # one that is forgotten is found again with its next unit
                    del names[next(iter(names))]
        if (reason := self._unserved.get(name)) is not None:
            self._leave_alone(unit.top, NotAdoptable(unit.top.run_id, reason), may_pass=name in self._passing[1])
            return None
        return name

    async def _spec(self, digest: str) -> RunSpec:
        if digest not in self._specs:
            self._specs[digest] = await self._supervisor.stored.run_spec(digest)
        return self._specs[digest]

    async def _is_readable(self, unit: RunUnit) -> bool:
        """Whether formats and run specs of a unit are known here; a unit of a newer version is left alone."""
        try:
            self._retinue.driver.check_formats(unit.rows)
            for row in unit.rows:
                await self._spec(row.run_spec)
        except (NotAdoptable, UnknownFormat, StoreCorrupt) as obstacle:
            self._leave_alone(unit.top, obstacle)
            return False
        return True

    async def _waiting_units(self, run_ids: Collection[RunId]) -> list[RunUnit]:
        """The units of runs without a driver, as they stand now."""
        waiting = RunQuery(unfinished_only=True, undriven_only=True)
        rows = await self._supervisor.stored.runs(replace(waiting, run_ids=tuple(run_ids)))
        for root_id in {row.root_id for row in rows if not is_new_child(row)}:
            rows += await self._supervisor.stored.runs(replace(waiting, root_id=root_id))
        rows = list({row.run_id: row for row in rows}.values())
        interrupted = await self._interrupted(rows)
        return [each for each in units_of(rows) if each.top.run_id in run_ids and self._is_wanted(each, interrupted)]

    async def _finish_jobs(self, queue: JobQueue) -> None:
        """Finish the jobs of units that need no place here any more: they have ended, or wait for an approval."""
        counted = counted_trees(self._supervisor.live_runs())
        done: dict[int | None, Job] = {}
        for run_id, job in tuple(self._jobs.items()):
            live = self._supervisor.live(run_id)
            if live is None or live.run.accepted.root_id not in counted:
                del self._jobs[run_id]
                done[job.id] = job
        needed = {job.id for job in self._jobs.values()}
        for job_id, job in done.items():
            if job_id not in needed:
                await queue.finish(job)

    async def _interrupted(self, rows: Sequence[RunRow]) -> frozenset[RunId]:
        """The roots of trees that are left to a person: marked ones, and those from before there were marks.

        Such a tree was begun, and its driver has left it, before the first driver that marks trees came to the store.
        """
        if not rows:
            return frozenset()
        marked = await self._supervisor.drivers.interrupted()
        if self._marking_since is None:
            self._marking_since = await self._supervisor.drivers.marking_since()
        for row in rows:
            if row.accepted_at < self._marking_since and row.root_id not in self._older:
                self._older[row.root_id] = await self._left_before_marks(row.root_id, self._marking_since)
        return marked | {root_id for root_id, was_left in self._older.items() if was_left}

    async def _left_before_marks(self, root_id: RunId, since: float) -> bool:
        if (await self._supervisor.row(root_id)).progress.phase == "ended":
            return False  # what runs in the background is left by no person
        try:
            begun = [event for _, event in await self._supervisor.stored.events(root_id)]
        except UnknownFormat:
            return False  # a newer version has driven it, which marks what it leaves
        driven = [event.at for event in begun if not isinstance(event, RunAccepted | RunLeft)]
        return bool(driven) and max(driven) < since

    def _is_wanted(self, unit: RunUnit, interrupted: frozenset[RunId]) -> bool:
        top = unit.top
        if top.root_id in interrupted or self._refused.get(top.run_id) == top.seq:
            return False
        # A chat waits for its person, and a tree of an MCP host for the next server.
        return top.progress.phase != "idle" and top.label != MCP_HOST

    def _has_room(self, unit: RunUnit) -> bool:
        live = self._supervisor.live_runs()
        if unit.is_root:
            return len(counted_trees(live)) < self._options.concurrency and not self._is_store_full
        return sum(each.waiting_for is None for each in live) < self._options.max_runs

    async def _take(self, units: Sequence[RunUnit]) -> bool:
        """Adopt the runs of units of one tree, if they can be driven here and no other worker was faster."""
        top, rows = units[0].top, [row for unit in units for row in unit.rows]
        try:
            for digest in {row.run_spec for row in rows}:
                self._retinue.load_dialects((await self._supervisor.stored.run_spec(digest)).dialects)
            if top.root_id == top.run_id or self._supervisor.live(top.root_id) is None:
                self._supervisor.use_approver(top.root_id, await self._approver(top.root_id))
            adopted = await self._retinue.driver.adopt_runs(rows)
        except (StoreUnavailable, Fenced):
            raise
        except RetinueError as obstacle:
            if len(units) > 1:  # one of them is the obstacle, and the others may have none
                return any([await self._take((unit,)) for unit in units])
            self._leave_alone(top, obstacle, may_pass=_may_pass(obstacle))
            return False
        for unit in units:
            if unit.top.run_id in adopted:
                self._note_taken(unit)
        if not adopted and units[0].is_root and self._options.max_trees is not None:
            self._full_since = asyncio.get_running_loop().time()
        return bool(adopted)

    def _forget_passing(self) -> None:
        """Look again at runs that were left alone for want of something that the machine may have by now."""
        runs, queues = self._passing
        for run_id in runs:
            self._refused.pop(run_id, None)
        for name in queues:
            self._unserved.pop(name, None)
        runs.clear()
        queues.clear()

    def _leave_alone(self, top: RunRow, obstacle: RetinueError, *, may_pass: bool = False) -> None:
        """Leave a unit to other workers until it has changed, or for a while if the obstacle may pass; say why once."""
        self._refused[top.run_id] = top.seq
        if may_pass:
            self._passing[0].add(top.run_id)
        refusal = obstacle if isinstance(obstacle, NotAdoptable) else NotAdoptable(top.run_id, str(obstacle))
        log.info("%s", line(event="not_taken", run_id=top.run_id, reason=refusal))
        if self._reported.get(top.run_id) != refusal.reason:
            self._reported[top.run_id] = refusal.reason
            self._report(f"left alone: {refusal}")

    @property
    def _is_store_full(self) -> bool:
        """Whether a tree was refused a moment ago, perhaps because as many as may be are at work in the store."""
        return asyncio.get_running_loop().time() - self._full_since < FULL_SECONDS

    def _note_taken(self, unit: RunUnit) -> None:
        is_takeover = unit.is_takeover
        self._counts.taken += 1
        self._counts.takeovers += is_takeover
        run_id = unit.top.run_id
        log.info("%s", line(event="taken", run_id=run_id, root_id=unit.top.root_id, takeover=is_takeover))
        self._report(f"run {run_id}: {'taken over' if is_takeover else 'taken'}")

    async def _approver(self, root_id: RunId) -> Approver:
        """How calls of a tree that need approval are answered: as its launch says, else by a person."""
        root = await self._supervisor.row(root_id)
        text = (await self._supervisor.stored.run_spec(root.run_spec)).launch_config
        config = LaunchConfig()
        if text:
            with suppress(msgspec.DecodeError):  # written by a newer version
                config = msgspec.json.decode(text, type=LaunchConfig)
        match config.detached or config.approvals:
            case "yes":
                return lambda _: True
            case "deny":
                return "deny"
            case _:
                return "wait"

    async def _finish_calls(self, deadline: float) -> None:
        """Start no further call, and wait for those in progress, until a time of the loop."""
        driver = self._retinue.driver
        driver.drain()
        trees = {each.run.accepted.root_id for each in self._supervisor.live_runs()}
        if trees:
            self._report(f"worker: stopping; {plural(len(trees), 'tree')} left to other workers")
        while driver.calls_in_progress and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 the gate has no event for it
            await asyncio.sleep(LEAST_PAUSE)


async def serve(
    make: Callable[[], Retinue],
    options: WorkerOptions,
    stop: asyncio.Event,
    report: Callable[[str], None],
    *,
    jobs: PostgresAddress | None = None,
    schedules: Callable[[Retinue], Schedules] | None = None,
) -> bool:
    """Drive trees of the store until `stop` is set; with `drain`, until nothing is left.

    Returns within `STOP_WITHIN` seconds after a stop: False if something still hangs then. Its runs go to other workers
    after the lease, as those of a worker that died, and the process should end at once.

    With `schedules` the worker also starts the jobs of `retinue cron` that are due.

    `jobs` is the address of a PostgreSQL store: the workers then share a queue of jobs, if its package is installed.

    A worker that other workers declared dead, because it was suspended or cut off, begins again as a new driver.
    """
    serving = asyncio.create_task(_serve(make, options, stop, report, jobs, schedules), name=SERVING)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({serving}, timeout=STOP_WITHIN)
    except asyncio.CancelledError:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        raise
    finally:
        stopping.cancel()
    if serving.done():
        serving.result()
    else:
        serving.cancel()
        report("worker: not stopped in time; other workers take its runs over after the lease")
    return serving.done()


async def _serve(
    make: Callable[[], Retinue],
    options: WorkerOptions,
    stop: asyncio.Event,
    report: Callable[[str], None],
    jobs: PostgresAddress | None,
    schedules: Callable[[Retinue], Schedules] | None,
) -> None:
    counts = WorkerCounts()
    opened = False
    async with HealthServer(options.health, counts) as health:
        if options.health is not None:
            report(f"worker: health and metrics at http://{_url_host(options.health[0])}:{health.port}")
        while not stop.is_set():
            try:
                async with make() as retinue, _queue_for(jobs, retinue.driver.lease) as queue:
                    tags = f", tags: {', '.join(sorted(options.tags))}" if options.tags else ""
                    report(f"worker {retinue.supervisor.driver_id}: up to {plural(options.concurrency, 'tree')}{tags}")
                    opened = True
                    health.watch(retinue)
                    made = None if schedules is None else schedules(retinue)
                    await Worker(retinue, options, counts, report, queue, made).run(stop)
                    is_fenced = retinue.supervisor.is_fenced
            except (StoreUnavailable, Fenced) as error:
                if not opened:
                    raise
                log.warning("%s", error)
                is_fenced = True
            finally:
                health.watch(None)
            if not is_fenced:
                break
            if not stop.is_set():
                report("worker: other workers took over its runs; it begins again")
                with suppress(TimeoutError):
                    async with asyncio.timeout(REOPEN_SECONDS):
                        await stop.wait()
    report("worker: stopped")


def _may_pass(obstacle: RetinueError) -> bool:
    """Whether what a run needs may be here later: a folder is mounted, or git is installed."""
    return isinstance(obstacle.__cause__, WorkspaceUnavailable)


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@asynccontextmanager
async def _queue_for(address: PostgresAddress | None, lease: float) -> AsyncGenerator[JobQueue | None]:
    """The queue of jobs of a store; None if it is not in PostgreSQL, or the package for it is not installed."""
    if address is None or find_spec("procrastinate") is None:
        yield None
        return
    async with JobQueue(address, lease=lease) as queue:
        yield queue
