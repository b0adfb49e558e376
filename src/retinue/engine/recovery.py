"""Taking over a tree of runs: read what the store knows, rebuild accounts and states, and go on.

A tree is taken as a whole or not at all, and only by a process that has every tool and provider its runs need.
"""

from __future__ import annotations

import logging

from msgspec.structs import replace

from retinue.core.budget import Amount, Window
from retinue.core.commands import Adopt, RunQuery, RunRow
from retinue.core.errors import BadInput, NotAdoptable, StoreError
from retinue.core.events import FORMAT, RunAdopted
from retinue.core.ids import DriverId, RandomIds, RunId
from retinue.core.policy import Policy, intersect
from retinue.core.profiles import ACTIONS, narrowed_windows, windows_of
from retinue.core.state import Run
from retinue.engine.admission import remembering
from retinue.engine.live_run import LiveRun, ToolSet
from retinue.engine.registry import Ended
from retinue.engine.run_view import of_row
from retinue.engine.supervisor import Supervisor

log = logging.getLogger("retinue.engine")

REMEMBERED_OF_A_TREE = 256
"""Runs of a tree that were over before it was taken over and are remembered; older ones are read from the store."""


class Recovery:
    """How this driver comes to drive runs that it did not start."""

    def __init__(self, supervisor: Supervisor, driver_id: DriverId) -> None:
        self._supervisor = supervisor
        self._engine = supervisor.engine
        self._driver_id = driver_id

    async def adopt(self, root_id: RunId | None = None) -> list[RunId]:
        """Adopt trees that nobody drives; with `root_id` that one, and raise what keeps it from being adopted."""
        query = RunQuery(unfinished_only=True, undriven_only=True, root_id=root_id)
        rows = await self._engine.journal.read(self._engine.store.runs, query)
        adopted: list[RunId] = []
        for root in dict.fromkeys(row.root_id for row in reversed(rows)):
            tree = [row for row in rows if row.root_id == root]
            try:
                adopted += await self._adopt_tree(tree)
            except (NotAdoptable, StoreError) as obstacle:
                if root_id is not None or self._engine.journal.broken is not None:
                    raise
                log.warning("%s", obstacle)
        return adopted

    async def take_back(self) -> list[RunId]:
        """Go on with this driver's own runs from what the store knows, after its memory was thrown away."""
        query = RunQuery(unfinished_only=True, driver_id=self._driver_id)
        rows = await self._engine.journal.read(self._engine.store.runs, query)
        lost = [
            row for row in rows if row.run_id not in self._supervisor.registry.live
        ]  # others were started meanwhile
        for root in dict.fromkeys(row.root_id for row in reversed(lost)):
            await self._go_on([row for row in lost if row.root_id == root])
        return [row.run_id for row in lost]

    async def _adopt_tree(self, rows: list[RunRow]) -> list[RunId]:
        for row in rows:
            await self._check(row)
        ids = tuple(row.run_id for row in rows)
        (answer,) = await self._engine.journal.commit(Adopt(driver_id=self._driver_id, run_ids=ids))
        mine = set(answer) if isinstance(answer, tuple) else set[RunId]()
        await self._go_on([row for row in rows if row.run_id in mine])
        return [run_id for run_id in ids if run_id in mine]

    async def _check(self, row: RunRow) -> None:
        """Raise what this process lacks to drive a run."""
        if row.format > FORMAT:
            raise NotAdoptable(row.run_id, f"its events have format {row.format}; this retinue knows up to {FORMAT}")
        run_spec = await self._engine.journal.read(self._engine.store.run_spec, row.run_spec)
        try:
            provider = self._engine.providers.find(run_spec.provider)
        except BadInput as wrong:
            raise NotAdoptable(row.run_id, str(wrong)) from wrong
        if provider is None:
            raise NotAdoptable(row.run_id, f"no provider named {run_spec.provider!r} here")
        missing = ToolSet(run_spec.offered, run_spec.dialects, self._engine).missing(run_spec.offered)
        if missing:
            raise NotAdoptable(row.run_id, f"no tool named {', '.join(missing)} here")
        await self._supervisor.replay(row.run_id)  # what cannot be read is not claimed either

    async def _go_on(self, rows: list[RunRow]) -> None:
        """Rebuild a tree from the root down, then let every run of it go on."""
        if not rows:
            return
        everyone = await self._engine.journal.read(self._engine.store.runs, RunQuery(root_id=rows[0].root_id))
        ended = {row.run_id: row for row in everyone if row.progress.phase == "ended"}
        if isinstance(self._engine.ids, RandomIds):
            self._engine.ids.follow(max(row.run_id for row in everyone))
        taken: list[LiveRun] = []
        policies: dict[RunId, Policy] = {}
        for row in sorted(rows, key=lambda row: (row.depth, row.accepted_at, row.run_id)):
            run = await self._supervisor.replay(row.run_id)
            above = _living_ancestor(row, ended)
            run.policy = await self.policy_of_today(run, policies)
            run.run_spec = remembering(run.run_spec, run.accepted.agent, self._engine.rules)
            windows = self._windows_of_today(run)
            await self._engine.accounts.learn(windows)
            live = self._supervisor.take_up(run)
            live.above = above
            self._engine.accounts.open(replace(run.accepted, windows=windows), above=above)
            for item in await self._engine.journal.read(self._engine.store.inbox, row.run_id):
                live.deliver(item)
            taken.append(live)
        # All accounts are open by now: what was carved for a child stays its own, whatever its parent has used since.
        for live in taken:
            spent = Amount.of(live.run.usage, live.run.cost, turns=0)
            self._engine.accounts.recharge(live.run_id, spent)
        self._charge_the_ended(ended)
        self._remember(ended)
        for live in taken:
            handle = live.run.accepted.handle
            live.record(RunAdopted(at=self._engine.clock.now(), driver_id=self._driver_id))
            self._supervisor.start(live, handle_space=handle.space if handle else None)
        for live in taken:
            await self._supervisor.await_others_again(live)
        for live in taken:
            live.children_created = sum(1 for row in everyone if row.parent_id == live.run_id)
        await self._end_orphans(taken, ended)
        for tell in self._engine.on_adopt:
            await tell([live.run for live in taken])

    async def policy_of_today(self, run: Run, known: dict[RunId, Policy]) -> Policy:
        """What a run was allowed, cut by the settings of today for its agent and for those above it, ended ones too.

        `known` are the policies that were found out already; it learns those that are found out on the way.
        """
        line = [run]
        while (above := _bound_by(line[-1])) is not None and above not in known:
            line.append(await self._supervisor.replay(above))
        for each in reversed(line):
            agent = each.run_spec.identity or each.accepted.agent
            above = _bound_by(each)
            today = self._engine.rules.ceiling_of(agent) if above is None else self._engine.rules.agents.get(agent)
            policy = each.policy if today is None else intersect(each.policy, today)
            for other in _also_bound_as(each):
                if (theirs := self._engine.rules.agents.get(other)) is not None:
                    policy = intersect(policy, theirs)
            known[each.run_id] = policy if above is None else intersect(policy, known[above])
        return known[run.run_id]

    def _windows_of_today(self, run: Run) -> tuple[Window, ...]:
        """A run's windows under its policy of today, and those of a policy that was written down only since."""
        windows = {window.name: window for window in narrowed_windows(run.accepted.windows, run.policy)}
        agent = run.run_spec.identity or run.accepted.agent
        rules = self._engine.rules
        given = rules.policy_for(agent) if _bound_by(run) is None else rules.agents.get(agent)
        if given is not None:
            for window in windows_of(agent, run.policy):
                windows.setdefault(window.name, window)
        return tuple(windows.values())

    def _remember(self, ended: dict[RunId, RunRow]) -> None:
        """Who ended before us is known as if it had ended here."""
        registry = self._supervisor.registry
        latest = sorted(ended.values(), key=lambda row: (row.progress.ended_at or 0.0, row.run_id))
        for row in latest[-REMEMBERED_OF_A_TREE:]:
            outcome = row.progress.outcome
            if outcome is not None and row.run_id not in registry.ended:
                registry.remember(Ended(None, of_row(row, alive=False), None, outcome.exchanges))

    def _charge_the_ended(self, ended: dict[RunId, RunRow]) -> None:
        """What ended descendants used was used by everyone above them."""
        for row in ended.values():
            if (above := _living_ancestor(row, ended)) is not None:
                spent = Amount.of(row.progress.usage, row.progress.cost, turns=0)
                self._engine.accounts.recharge(above, spent)

    async def _end_orphans(self, taken: list[LiveRun], ended: dict[RunId, RunRow]) -> None:
        """A crash between a parent's end and the cancel of its children leaves them to us."""
        for live in taken:
            accepted = live.run.accepted
            if accepted.parent_id in ended and accepted.lifecycle.on_parent_end != "keep":
                await self._supervisor.cancel(accepted.run_id, reason="parent_ended", note="its parent has ended")


def _bound_by(run: Run) -> RunId | None:
    """The run whose rights bound this one's; None for a root, and for one that took over under rights of its own."""
    return None if run.accepted.independent else run.accepted.parent_id


def _also_bound_as(run: Run) -> set[str]:
    """Agents whose windows a child was given: it works for somebody else, and extends one of them."""
    if run.accepted.parent_id is None:
        return set()  # a fork draws on the windows of all who stood above the other
    names = (window.name for window in run.accepted.windows)
    return {name.removeprefix(ACTIONS) for name in names if name.startswith(ACTIONS)}


def _living_ancestor(row: RunRow, ended: dict[RunId, RunRow]) -> RunId | None:
    """Who stands above a run, when those in between have ended."""
    parent_id = row.parent_id
    while parent_id in ended:
        parent_id = ended[parent_id].parent_id
    return parent_id
