"""Executes the runs of this process: one asyncio task per live run; starts, ends, cancels and stops them.

What is known in memory is ahead of the store, never beside it: decisions are queued in the journal in the order in
which they are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from retinue.core.commands import CancelTree, Post
from retinue.core.errors import StoreError, UnknownName
from retinue.core.events import RunAccepted, RunLeft
from retinue.core.ids import RunId
from retinue.core.inbox import Cancel, DependencyEnded
from retinue.core.run import EndReason, Outcome
from retinue.core.state import Run
from retinue.engine.context import EngineContext
from retinue.engine.journal import CommitFuture
from retinue.engine.live_run import LiveRun, ToolSet
from retinue.engine.loop import Posts, drive, handover
from retinue.engine.registry import RunRegistry
from retinue.engine.replay import Replay


class Executor:
    """Drives live runs, and is the `Hooks` of their loops."""

    def __init__(self, engine: EngineContext, registry: RunRegistry, replay: Replay) -> None:
        self._engine = engine
        self._registry = registry
        self._replay = replay
        self._tool_sets: dict[tuple[tuple[str, ...], tuple[str, ...]], ToolSet] = {}

    # Starting

    def prepare(self, run: Run, acceptance: CommitFuture | None = None) -> LiveRun:
        """A live run for a folded run; it is not started yet."""
        tools = run.run_spec.offered, run.run_spec.dialects
        tool_set = self._tool_sets.get(tools)
        if tool_set is None:
            tool_set = self._tool_sets[tools] = ToolSet(*tools, self._engine)
        return LiveRun(run, tool_set, self._engine, acceptance)

    def start(self, live: LiveRun, *, handle_space: str | None) -> None:
        self._registry.add(live, handle_space)
        live.task = asyncio.get_running_loop().create_task(self._drive(live), name=f"run {live.run_id}")

    async def _drive(self, live: LiveRun) -> None:
        try:
            await drive(live, self._engine, self)
        except StoreError:
            pass  # the journal has reported the error already; the run stays as the store knows it
        finally:
            if live.run.outcome is None:
                await live.stop()

    async def discard(self, live: LiveRun) -> None:
        """End a run that the store did not create, so that it takes no slot; whatever it waits for."""
        live.deliver(_cancel_item("cancelled", ""))
        if live.task is not None:
            await asyncio.wait((live.task,))

    # Dependencies

    async def ended_dependencies(self, after: Sequence[tuple[RunId, str]]) -> dict[RunId, tuple[RunAccepted, Outcome]]:
        """The stored ends of those runs that are not live here; raises for one that has not ended."""
        return {run_id: await self._ended(run_id) for run_id, _ in after if run_id not in self._registry.live}

    async def _ended(self, run_id: RunId) -> tuple[RunAccepted, Outcome]:
        run = await self._replay.run(run_id)
        if run.outcome is None:
            raise UnknownName("run", run_id)
        return run.accepted, run.outcome

    def await_dependencies(self, accepted: RunAccepted, ended: Mapping[RunId, tuple[RunAccepted, Outcome]]) -> None:
        """Deliver to a run the ends of the runs that it depends on: of ended ones now, of live ones when they end."""
        for run_id, name in accepted.after:
            if (live := self._registry.live.get(run_id)) is not None:
                live.dependents.append((accepted.run_id, name))
                continue
            remembered = self._registry.ended.get(run_id)
            known = ended.get(run_id) or (
                remembered and remembered.accepted and (remembered.accepted, remembered.outcome)
            )
            assert known  # it was live a moment ago, or it was read from the store
            item = handover(*known, name, self._engine)
            self._registry.live[accepted.run_id].deliver(item)
            self._engine.journal.write(Post(run_id=accepted.run_id, item=item))

    async def await_missing_dependencies(self, live: LiveRun) -> None:
        """The same for an adopted run, for the dependencies whose end has not reached it yet."""
        accepted = live.run.accepted
        items = (item.run_id for item in live.inbox if isinstance(item, DependencyEnded))
        delivered = {*live.run.dependencies, *items}
        missing = tuple((run_id, name) for run_id, name in accepted.after if run_id not in delivered)
        ended = await self.ended_dependencies(missing)
        self.await_dependencies(replace(accepted, after=missing), ended)

    # Cancelling

    async def cancel(self, run_id: RunId, reason: EndReason, note: str) -> tuple[RunId, ...]:
        """Cancel a run and all below it; the ids of those that were neither ended nor cancelled before."""
        (answer,) = await self.queue_cancel(run_id, reason, note).wait()
        if answer is None:
            raise UnknownName("run", run_id)
        assert isinstance(answer, tuple)
        for concerned in answer:
            # Also runs that memory does not know to be below `run_id`: children of an ended run.
            if (live := self._registry.live.get(concerned)) is not None:
                live.deliver(_cancel_item(reason, note))
        return answer

    def queue_cancel(self, run_id: RunId, reason: EndReason, note: str) -> CommitFuture:
        """Cancel a run and all below it without waiting for the store."""
        item = _cancel_item(reason, note)
        # Queued before any run receives it: in the store the cancel stands before the ends that it causes.
        commit_future = self._engine.journal.write(CancelTree(run_id=run_id, item=item, at=self._engine.clock.now()))
        for live in tuple(self._registry.subtree(run_id)):
            live.deliver(item)
        return commit_future

    # Hooks of the loop

    def request_slot(self, live: LiveRun) -> None:
        self._registry.request_slot(live)

    def exchange_ended(self, live: LiveRun) -> None:
        self._registry.update_parent(live)
        self._registry.notify(live.run_id)

    def run_ended(self, live: LiveRun, outcome: Outcome, posts: Posts) -> None:
        """A run has ended: close its account, deliver its posts, cancel its children, notify those that wait."""
        accepted = live.run.accepted
        self._engine.budgets.close(accepted.run_id)
        for run_id, item in posts:
            if (receiver := self._registry.live.get(run_id)) is not None:
                receiver.deliver(item)
        for child_id in tuple(live.children):
            child = self._registry.live.get(child_id)
            # A child that is being stopped already needs no second cancel, and neither do the runs below it.
            if child is not None and not child.cancelled and child.run.accepted.lifecycle.on_parent_end != "keep":
                self.queue_cancel(child_id, "parent_ended", "its parent has ended")
        self._registry.remove(live, outcome, self._engine.clock.now())
        for callback in self._engine.on_end:
            callback(accepted, outcome)

    # Stopping

    async def stop_all(self, error: StoreError, *, leaving: bool = False) -> None:
        """Stop all work without ending any run: the runs stay as the store knows them and can be resumed."""
        # Not those that are started meanwhile: they are driven already, and must not be driven twice.
        stopped = tuple(self._registry.live.values())
        tasks = [live.task for live in stopped if live.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for live in stopped:
            if live.deadline is not None:
                live.deadline.cancel()
            if leaving:
                await self._record_leave(live)
            self._engine.budgets.close(live.run_id)
            self._registry.drop(live)
            live.subscriptions.stop(error)

    async def _record_leave(self, live: LiveRun) -> None:
        """Pause the time limit of a run until it is adopted; also if it has not started to work."""
        run = live.run
        if run.accepted.limits.seconds is None or run.outcome is not None or self._engine.journal.broken is not None:
            return
        try:
            if live.acceptance is None or live.apply_acceptance(await live.acceptance.wait()):
                live.record(RunLeft(at=self._engine.clock.now()))
        except StoreError:
            pass  # the journal has reported the error already

    def journal_broken(self, error: StoreError) -> None:
        """The store refused a commit: stop all work, and raise the error in everything that waits."""
        for live in tuple(self._registry.live.values()):
            if live.task is not None:
                live.task.cancel()
            live.subscriptions.stop(error)
        self._registry.fail(error)


def _cancel_item(reason: EndReason, note: str) -> Cancel:
    """A run is cancelled once: every cancel has the same key."""
    return Cancel(key="cancel", reason=reason, note=note)
