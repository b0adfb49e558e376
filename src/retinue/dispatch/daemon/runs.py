"""The runs that a daemon continues: detached runs, and background runs whose root has ended.

They are continued once no process drives them, each tree by a process of its own, `retinue runs resume`. A run that was
started in the foreground and interrupted is left to the person who started it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from retinue.app.launch.resume import open_log, resume_command
from retinue.app.read_only import ReadOnlyClient
from retinue.app.run_spec import DetachedApprovals
from retinue.config.store import StoreSettings
from retinue.core.commands import RunQuery
from retinue.core.errors import RetinueError, StoreError
from retinue.core.ids import RunId
from retinue.core.log_context import line, logger
from retinue.dispatch.processes import Processes
from retinue.engine import RunView

log = logger("retinue.daemon")

POLL = 1.0
"""Seconds between two looks at the store, which other processes change."""

GRACE = 3.0
"""Seconds after the start of a tree in which it is left to the process that `retinue run --detach` starts."""

FIRST_DELAY = 5.0
LONGEST_DELAY = 300.0
"""Seconds before a tree is tried again whose process ended without finishing it; doubled each time."""

MAX_ATTEMPTS = 5
"""Processes that are started for a tree before the daemon gives it up."""


class UnfinishedTree(Struct, frozen=True, kw_only=True):
    """An unfinished tree that a daemon keeps going."""

    root_id: RunId
    approvals: DetachedApprovals
    started_at: float
    is_driven: bool
    """Whether a living process drives a run of it."""


class KeptTrees:
    """Reads from the store which unfinished trees a daemon keeps going.

    `approvals` is how calls that need approval are handled in trees that do not say it themselves.
    """

    def __init__(self, client: ReadOnlyClient, *, approvals: DetachedApprovals) -> None:
        self._client = client
        self._approvals: DetachedApprovals = approvals
        self._detached: dict[RunId, DetachedApprovals] = {}

    async def read(self) -> list[UnfinishedTree]:
        """The trees as they stand now, oldest first."""
        trees: dict[RunId, list[RunView]] = {}
        for view in reversed(await self._client.supervisor.list(RunQuery(unfinished_only=True))):
            trees.setdefault(view.root_id, []).append(view)
        self._detached = {root_id: known for root_id, known in self._detached.items() if root_id in trees}
        kept: list[UnfinishedTree] = []
        for root_id, views in trees.items():
            root = next((view for view in views if view.run_id == root_id), None)
            # An ended root has left background runs behind.
            approvals = self._approvals if root is None else await self._approvals_of(root_id)
            if approvals:
                kept.append(
                    UnfinishedTree(
                        root_id=root_id,
                        approvals=approvals,
                        started_at=min(view.started_at for view in views),
                        is_driven=any(view.state != "interrupted" for view in views),
                    )
                )
        return kept

    async def _approvals_of(self, root_id: RunId) -> DetachedApprovals:
        """How a detached run handles calls that need approval; empty for a run that is not detached."""
        if root_id not in self._detached:
            try:
                config = await self._client.launch_config(root_id)
            except StoreError:
                raise
            except (RetinueError, msgspec.DecodeError) as error:  # pruned meanwhile, or written by a newer version
                log.warning("run %s: %s", root_id, error)
                config = None
            self._detached[root_id] = "" if config is None else config.detached
        return self._detached[root_id]


ReadTrees: TypeAlias = Callable[[], Awaitable[Sequence[UnfinishedTree]]]
LaunchTree: TypeAlias = Callable[[UnfinishedTree], Awaitable[None]]
"""Continues a tree, and returns when its process has ended."""


class Attempts(NamedTuple):
    """How often a tree was continued, and the time of the loop at which it may be continued again."""

    number: int = 0
    not_before: float = 0.0


class RunsDaemon:
    """Continues trees that no process drives, for as long as `run` runs.

    `now` is the wall clock, for the age of trees; `report` gets a line when a tree is tried again or given up.
    """

    def __init__(
        self,
        read_trees: ReadTrees,
        launch: LaunchTree,
        report: Callable[[str], None],
        now: Callable[[], float],
        *,
        max_running: int,
    ) -> None:
        self._read_trees = read_trees
        self._launch = launch
        self._report = report
        self._now = now
        self._max_running = max_running
        self._stopping = asyncio.Event()
        self._at_work: dict[RunId, asyncio.Task[None]] = {}
        self._attempts: dict[RunId, Attempts] = {}

    def stop(self) -> None:
        """Start nothing more; `run` then waits for the current processes."""
        self._stopping.set()

    async def run(self) -> None:
        """Continue trees as they are found, until `stop`."""
        while not self._stopping.is_set():
            try:
                self._begin(await self._read_trees())
            except StoreError as error:
                log.warning("%s", error)  # it may be temporary: a full disk, a lock
            except Exception:
                log.exception("unexpected error while looking for runs to continue")
            try:
                async with asyncio.timeout(POLL):
                    await self._stopping.wait()
            except TimeoutError:
                pass
        while self._at_work:
            await asyncio.wait(set(self._at_work.values()))

    def _begin(self, trees: Sequence[UnfinishedTree]) -> None:
        known = {tree.root_id for tree in trees}
        self._attempts = {root_id: each for root_id, each in self._attempts.items() if root_id in known}
        now = asyncio.get_running_loop().time()
        for tree in trees:
            if len(self._at_work) >= self._max_running:
                return
            if tree.is_driven or tree.root_id in self._at_work or self._now() - tree.started_at < GRACE:
                continue
            attempts = self._attempts.get(tree.root_id, Attempts())
            if attempts.number == MAX_ATTEMPTS:
                self._give_up(tree.root_id)
            elif attempts.number < MAX_ATTEMPTS and now >= attempts.not_before:
                delay = min(LONGEST_DELAY, FIRST_DELAY * 2**attempts.number)
                self._attempts[tree.root_id] = Attempts(attempts.number + 1, now + delay)
                self._at_work[tree.root_id] = asyncio.ensure_future(self._continue(tree))

    def _give_up(self, root_id: RunId) -> None:
        self._attempts[root_id] = Attempts(MAX_ATTEMPTS + 1)
        log.warning("%s", line(event="run_given_up", run_id=root_id, attempts=MAX_ATTEMPTS))
        self._report(
            f"run {root_id}: given up after {MAX_ATTEMPTS} attempts; go on with: retinue runs resume {root_id}"
        )

    async def _continue(self, tree: UnfinishedTree) -> None:
        try:
            await self._launch(tree)
        except Exception:
            log.exception("run %s: unexpected error while continuing it", tree.root_id)
        finally:
            del self._at_work[tree.root_id]


def make_launch(processes: Processes, report: Callable[[str], None], limits: StoreSettings) -> LaunchTree:
    """A function that continues a tree in a process of its own; `report` gets a line per start and end."""

    async def launch(tree: UnfinishedTree) -> None:
        root_id = tree.root_id
        log_path, output, environment = open_log(root_id, limits)

        def started() -> None:
            report(f"run {root_id}: continued (its output: {log_path})")
            log.info("%s", line(event="run_continued", run_id=root_id))

        try:
            command = resume_command(root_id, tree.approvals)
            code = await processes.run(*command, started=started, output=output, environment=environment)
        except OSError as error:
            report(f"run {root_id}: not continued: {error}")
            log.warning("%s", line(event="run_not_continued", run_id=root_id, error=error))
            return
        finally:
            os.close(output)
        report(f"run {root_id}: {'done' if code == 0 else f'ended with exit code {code}'}")
        log.info("%s", line(event="run_ended", run_id=root_id, exit_code=code))

    return launch
