"""Adoption of trees of runs: rebuild their states and budgets from the store, and continue them.

A tree is adopted as a whole or not at all, and only by a process that has every tool and provider that its runs need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from retinue.core.budget import Amount
from retinue.core.commands import Adopt, RunQuery, RunRow
from retinue.core.errors import BadInput, NotAdoptable, StoreError
from retinue.core.events import FORMAT, RunAdopted, RunLeft
from retinue.core.ids import DriverId, RandomIds, RunId
from retinue.core.log_context import logger
from retinue.core.policy import Policy
from retinue.core.state import Run
from retinue.engine.admission import current_policy, current_windows, with_readable_memory
from retinue.engine.context import EngineContext
from retinue.engine.live_run import LiveRun
from retinue.engine.loop import Executor
from retinue.engine.registry import EndedRun, RunRegistry
from retinue.engine.run_view import view_of_row
from retinue.engine.stored import Replay

log = logger("retinue.engine")

REMEMBERED_IN_TREE = 256
"""Runs that ended before their tree was adopted and are remembered; older ones are read from the store."""


class Recovery:
    """Continues runs that this driver did not start, or had to stop."""

    def __init__(
        self, engine: EngineContext, registry: RunRegistry, executor: Executor, replay: Replay, driver_id: DriverId
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._executor = executor
        self._replay = replay
        self._driver_id = driver_id

    async def adopt(self, root_id: RunId | None = None) -> list[RunId]:
        """Adopt trees without a driver; the ids of their runs. With `root_id` that tree, or raise if it cannot be."""
        query = RunQuery(unfinished_only=True, undriven_only=True, root_id=root_id)
        rows = await self._engine.journal.read(self._engine.store.runs, query)
        adopted: list[RunId] = []
        for tree in _trees(rows):
            try:
                adopted += await self._adopt_tree(tree)
            except (NotAdoptable, StoreError) as obstacle:
                if root_id is not None or self._engine.journal.broken is not None:
                    raise
                log.warning("%s", obstacle)
        return adopted

    async def resume_own(self, *, stopped_at: float | None = None) -> list[RunId]:
        """Continue this driver's own runs from what the store knows; their time stood still since `stopped_at`."""
        query = RunQuery(unfinished_only=True, driver_id=self._driver_id)
        rows = await self._engine.journal.read(self._engine.store.runs, query)
        stopped = [row for row in rows if row.run_id not in self._registry.live]  # others were started meanwhile
        for tree in _trees(stopped):
            await self._continue_tree(tree, await self._replay.runs([row.run_id for row in tree]), stopped_at)
        return [row.run_id for row in stopped]

    async def _adopt_tree(self, rows: list[RunRow]) -> list[RunId]:
        checked = set[str]()
        for row in rows:
            await self._check(row, checked)
        ids = tuple(row.run_id for row in rows)
        runs = await self._replay.runs(ids)  # a run that cannot be read is not claimed either
        (answer,) = await self._engine.journal.commit(Adopt(driver_id=self._driver_id, run_ids=ids))
        mine = set(answer) if isinstance(answer, tuple) else set[RunId]()
        await self._continue_tree([row for row in rows if row.run_id in mine], runs)
        return [run_id for run_id in ids if run_id in mine]

    async def _check(self, row: RunRow, checked: set[str]) -> None:
        """Raise if a run cannot be continued here; `checked` are the run specs that can."""
        if row.format > FORMAT:
            raise NotAdoptable(row.run_id, f"its events have format {row.format}; this retinue knows up to {FORMAT}")
        if row.run_spec in checked:
            return
        run_spec = await self._engine.journal.read(self._engine.store.run_spec, row.run_spec)
        try:
            provider = self._engine.providers.find(run_spec.provider)
        except BadInput as wrong:
            raise NotAdoptable(row.run_id, str(wrong)) from wrong
        if provider is None:
            raise NotAdoptable(row.run_id, f"no provider named {run_spec.provider!r} here")
        found = {name: self._engine.toolbox.find(name, run_spec.dialects) for name in run_spec.offered}
        missing = [name for name, tool in found.items() if tool is None]
        if missing:
            raise NotAdoptable(row.run_id, f"no tool named {', '.join(missing)} here")
        checked.add(row.run_spec)

    async def _continue_tree(self, rows: list[RunRow], runs: dict[RunId, Run], stopped_at: float | None = None) -> None:
        """Rebuild a tree from the root down, then start all its runs; `runs` are as they were read before."""
        if not rows:
            return
        tree = await self._engine.journal.read(self._engine.store.runs, RunQuery(root_id=rows[0].root_id))
        ended = {row.run_id: row for row in tree if row.progress.phase == "ended"}
        lengths = {row.run_id: row.seq for row in tree}
        store = self._engine.store
        inboxes = await self._engine.journal.read(lambda: {row.run_id: store.inbox(row.run_id) for row in rows})
        if isinstance(self._engine.ids, RandomIds):
            self._engine.ids.follow(max(row.run_id for row in tree))
        continued: list[LiveRun] = []
        policies: dict[RunId, Policy] = {}
        for row in sorted(rows, key=lambda row: (row.depth, row.accepted_at, row.run_id)):
            run = runs[row.run_id]
            if run.seq != lengths[row.run_id]:  # another process has driven it meanwhile
                run = await self._replay.run(row.run_id)
            ancestor = _live_ancestor(row, ended)
            run.policy = await current_policy(run, policies, self._engine.rules, self._replay)
            run.run_spec = with_readable_memory(run.run_spec, run.accepted.agent, self._engine.rules)
            windows = current_windows(run, self._engine.rules)
            await self._engine.budgets.load_windows(windows)
            live = self._executor.prepare(run)
            live.ancestor = ancestor
            self._engine.budgets.open(replace(run.accepted, windows=windows), above=ancestor)
            for item in inboxes[row.run_id]:
                live.deliver(item)
            continued.append(live)
        # All accounts are open by now: what was reserved for a child stays reserved, whatever its parent has used.
        for live in continued:
            run = live.run
            spent = Amount.of(run.usage + run.estimated, (run.cost or 0) + run.estimated_cost, turns=0)
            self._engine.budgets.recharge(live.run_id, spent)
        self._charge_ended(ended)
        for live in continued:
            if (spent_before := live.run.spent_before) is not None:
                self._engine.budgets.credit(live.run_id, spent_before)
        self._remember(ended)
        for live in continued:
            handle = live.run.accepted.handle
            if stopped_at is not None:
                live.record(RunLeft(at=stopped_at))
            live.record(RunAdopted(at=self._engine.clock.now(), driver_id=self._driver_id))
            self._executor.start(live, handle_space=handle.space if handle else None)
        for live in continued:
            await self._executor.await_missing_dependencies(live)
        created = Counter(row.parent_id for row in tree)
        for live in continued:
            live.children_created = created[live.run_id]
        await self._cancel_orphans(continued, ended)
        for callback in self._engine.on_adopt:
            await callback([live.run for live in continued])

    def _remember(self, ended: dict[RunId, RunRow]) -> None:
        latest = sorted(ended.values(), key=lambda row: (row.progress.ended_at or 0.0, row.run_id))
        for row in latest[-REMEMBERED_IN_TREE:]:
            outcome = row.progress.outcome
            if outcome is not None and row.run_id not in self._registry.ended:
                self._registry.remember(EndedRun(None, view_of_row(row, alive=False), None, outcome.exchanges))

    def _charge_ended(self, ended: dict[RunId, RunRow]) -> None:
        """Charge what ended runs used to their live ancestors."""
        for row in ended.values():
            if (ancestor := _live_ancestor(row, ended)) is not None:
                spent = Amount.of(row.progress.usage, row.progress.cost, turns=0)
                self._engine.budgets.recharge(ancestor, spent)

    async def _cancel_orphans(self, continued: list[LiveRun], ended: dict[RunId, RunRow]) -> None:
        """Cancel children of ended parents: a crash may come between a parent's end and the cancel of its children."""
        for live in continued:
            accepted = live.run.accepted
            if accepted.parent_id in ended and accepted.lifecycle.on_parent_end != "keep":
                await self._executor.cancel(accepted.run_id, "parent_ended", "its parent has ended")


def _trees(rows: Sequence[RunRow]) -> Collection[list[RunRow]]:
    """Rows, newest first, by their trees, the oldest tree first."""
    trees: dict[RunId, list[RunRow]] = {row.root_id: [] for row in reversed(rows)}
    for row in rows:
        trees[row.root_id].append(row)
    return trees.values()


def _live_ancestor(row: RunRow, ended: dict[RunId, RunRow]) -> RunId | None:
    parent_id = row.parent_id
    while parent_id in ended:
        parent_id = ended[parent_id].parent_id
    return parent_id
