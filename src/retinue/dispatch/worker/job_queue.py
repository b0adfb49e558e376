"""The queue of runs that wait for a worker, on procrastinate: it hands each waiting unit to one worker at a time.

The store alone decides which worker drives a run. The queue is made from it: every worker enqueues the runs without a
driver that it sees and can drive, once each, and takes one when a job is handed to it. So a job that is lost, delivered
twice or late drives nothing twice and loses nothing, and a queue that cannot be reached only costs speed. Its tables
are in the schema of the store, and are made with it (`store.postgres.queue_tables`); each capability has a queue of its
own, from which only workers with that capability fetch.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from retinue.core.agent import RunSpec
from retinue.core.commands import RunRow
from retinue.core.ids import RunId
from retinue.core.log_context import logger
from retinue.core.workspace import is_address, is_worktree

if TYPE_CHECKING:
    from procrastinate import App
    from procrastinate.jobs import Job
    from procrastinate.types import JSONValue
    from psycopg import AsyncConnection

    from retinue.store.postgres import PostgresAddress

log = logger("retinue.worker")

TASK: Final = "retinue.drive"
PREFIX: Final = "retinue-"
CONNECTION_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 0.2
"""Seconds to unregister from the queue, and again to close its connections: a worker that stops has little time."""

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Seconds between two attempts to reach the queue; twice as many after each failure that comes soon after the last."""

DEEPEST: Final = 1000
"""Depths below this one have a priority of their own."""

TAKEOVER_PRIORITY: Final = 1_000_000
"""Added for runs that were driven before: what was begun is finished first."""


class Needs(Struct, frozen=True, omit_defaults=True):
    """What a worker must have to drive a unit: providers, tools with their dialects, tags, and its workspaces."""

    providers: tuple[str, ...]
    tools: tuple[str, ...]
    dialects: tuple[str, ...]
    tags: tuple[str, ...]
    workspaces: tuple[str, ...] = ()
    """Addresses that a worker fetches only if its settings allow it, and whether there are worktrees, which need git;
    older versions do not know them."""

    @property
    def queue(self) -> str:
        """The name of the queue of all units with the same needs."""
        return PREFIX + hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def needs_of(specs: Collection[RunSpec]) -> Needs:
    """The needs of runs with these specs.

    >>> needs_of([RunSpec(agent="a", provider="house", tags=("gpu",)), RunSpec(agent="b", provider="house")])
    Needs(providers=('house',), tools=(), dialects=(), tags=('gpu',), workspaces=())
    """
    return Needs(
        tuple(sorted({spec.provider for spec in specs})),
        tuple(sorted({name for spec in specs for name in spec.offered})),
        tuple(sorted({name for spec in specs for name in spec.dialects})),
        tuple(sorted({tag for spec in specs for tag in spec.tags})),
        tuple(sorted({need for spec in specs if (need := _need_of(spec.workspace))})),
    )


def _need_of(workspace: str) -> str:
    """What a worker needs for a workspace; empty for a folder, which is where a tag says, as worktrees are."""
    return "worktree" if is_worktree(workspace) else workspace if is_address(workspace) else ""


def priority_of(*, depth: int, is_takeover: bool, priority: int = 0) -> int:
    """The priority of a job: what was begun before goes first, then by the priority of the tree, then the deepest.

    >>> priority_of(depth=0, is_takeover=False), priority_of(depth=2, is_takeover=False)
    (0, 2)
    >>> priority_of(depth=0, is_takeover=False, priority=1) > priority_of(depth=9, is_takeover=False)
    True
    """
    return min(depth, DEEPEST - 1) + DEEPEST * priority + (TAKEOVER_PRIORITY if is_takeover else 0)


class QueueUnavailable(Exception):
    """The queue cannot be reached; runs are taken without it meanwhile."""


class JobQueue:
    """The queue of a store, and this worker's place in it; an async context manager.

    `timeout` is the number of seconds to wait for a connection, before runs are taken without the queue.
    """

    def __init__(self, address: PostgresAddress, *, lease: float, timeout: float = CONNECTION_SECONDS) -> None:
        self._address = address
        self._lease = lease
        self._timeout = timeout
        self._app: App | None = None
        self._worker_id: int | None = None
        self._known: set[tuple[RunId, int]] = set()
        """Runs that were enqueued, with the numbers of their last events; cleared now and then."""
        self._beat_at = 0.0
        self._failure: str = ""
        """Why the queue could not be reached at last."""
        self._pause, self._retry_at = FIRST_PAUSE, -LONGEST_PAUSE
        """For how long it is not tried again after that, and until when."""

    async def __aenter__(self) -> JobQueue:
        return self

    async def __aexit__(self, *_: object) -> None:
        app, self._app = self._app, None
        if app is not None:
            with suppress(Exception):  # the server may be gone: others notice by the missing heartbeat
                async with asyncio.timeout(CLOSE_SECONDS):
                    if self._worker_id is not None:
                        await app.job_manager.unregister_worker(self._worker_id)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await app.close_async()

    async def enqueue(self, rows: Sequence[RunRow], queue: str, *, is_takeover: bool, priority: int = 0) -> None:
        """Enqueue the top runs of units as one job, without those that are waiting in the queue already."""
        from procrastinate.exceptions import AlreadyEnqueued

        rows = [row for row in rows if (row.run_id, row.seq) not in self._known]
        if not rows:
            return
        first = rows[0].run_id
        others: list[JSONValue] = [row.run_id for row in rows[1:]]
        priority = priority_of(depth=rows[0].depth, is_takeover=is_takeover, priority=priority)
        app = await self._connected()
        deferrer = app.configure_task(TASK, queue=queue, priority=priority, queueing_lock=f"{queue}/{first}")
        with suppress(AlreadyEnqueued), self._translated():
            await deferrer.defer_async(run_id=first, others=others)
        self._known.update((row.run_id, row.seq) for row in rows)

    async def fetch(self, queues: Sequence[str]) -> Job | None:
        """The next job of these queues, the one of the highest priority first; it is this worker's from now on."""
        if not queues:
            return None
        app = await self._connected()
        with self._translated():
            return await app.job_manager.fetch_job(queues=list(queues), worker_id=self._worker_id or 0)

    async def give_back(self, job: Job) -> None:
        """Let the job wait again, for this worker or another one."""
        from procrastinate.exceptions import UniqueViolation

        app = await self._connected()
        with self._translated():
            try:
                await app.job_manager.retry_job(job)
            except UniqueViolation:  # its runs were enqueued again meanwhile
                await self.finish(job)

    async def finish(self, job: Job) -> None:
        """Remove a job whose unit was driven, or needs no driver any more; another worker may have done it already."""
        import psycopg
        from procrastinate.exceptions import ConnectorException
        from procrastinate.jobs import Status

        app = await self._connected()
        with self._translated():
            try:
                await app.job_manager.finish_job(job=job, status=Status.SUCCEEDED, delete_job=True)
            except ConnectorException as error:
                # The job went to another worker, because a heartbeat of this one was late: there is none any more.
                if not isinstance(error.__cause__, psycopg.errors.RaiseException):
                    raise

    async def maintain(self, held: Mapping[RunId, Job]) -> list[RunId]:
        """Send a heartbeat, and give the jobs of dead workers to others; the held runs whose job is to be aborted."""
        now = asyncio.get_running_loop().time()
        if now - self._beat_at < self._lease / 3:
            return []
        self._beat_at = now
        self._known.clear()
        app = await self._connected()
        manager = app.job_manager
        with self._translated():
            await manager.update_heartbeat(self._worker_id or 0)
            for job in await manager.get_stalled_jobs(seconds_since_heartbeat=self._lease):
                await self.give_back(job)
            await manager.prune_stalled_workers(self._lease * 10)
            if not held:
                return []
            aborted = set(await manager.list_jobs_to_abort_async())
        return [run_id for run_id, job in held.items() if job.id in aborted]

    async def _connected(self) -> App:
        if asyncio.get_running_loop().time() < self._retry_at:
            raise QueueUnavailable(self._failure)
        if self._app is not None:
            return self._app
        from procrastinate import App, PsycopgConnector

        with self._translated():
            connector = PsycopgConnector(
                conninfo=self._address.connection_string,
                configure=self._choose_schema,
                min_size=1,
                max_size=2,
                timeout=self._timeout,
            )
            app = App(connector=connector)
            try:
                async with asyncio.timeout(self._timeout):
                    await app.open_async()
                    self._worker_id = await app.job_manager.register_worker()
            except BaseException:
                with suppress(Exception):
                    await app.close_async()
                raise
        self._app = app
        return app

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Turn the errors of procrastinate and psycopg into `QueueUnavailable`, and note how long to do without it."""
        import psycopg
        from procrastinate.exceptions import AlreadyEnqueued, ConnectorException

        try:
            yield
        except AlreadyEnqueued:
            raise
        except (ConnectorException, psycopg.Error, TimeoutError) as error:
            cause = error.__cause__ or error
            reason = str(cause).strip() or "it does not answer"
            if isinstance(cause, psycopg.errors.UndefinedFunction | psycopg.errors.UndefinedTable):
                reason = f"{self._address} has no tables for it: open the store once as its owner, with retinue[worker]"
            self._failed(reason)
            raise QueueUnavailable(reason) from error

    def _failed(self, reason: str) -> None:
        """Do without the queue for a while: an attempt may take seconds, in which no run is taken."""
        now = asyncio.get_running_loop().time()
        failed_again = now - self._retry_at < LONGEST_PAUSE
        if not failed_again or reason != self._failure:
            log.warning("the queue of jobs cannot be reached, runs are taken without it: %s", reason)
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if failed_again else FIRST_PAUSE
        self._failure, self._retry_at = reason, now + self._pause

    async def _choose_schema(self, connection: AsyncConnection[Any]) -> None:
        await connection.execute("SELECT set_config('search_path', %s, false)", (self._address.schema,))
        await connection.commit()


def runs_of(job: Job) -> tuple[RunId, ...]:
    """The runs of a job: the top runs of the units that are taken together."""
    others = job.task_kwargs.get("others")
    return tuple(map(str, (job.task_kwargs.get("run_id", ""), *(others if isinstance(others, list) else ()))))
