"""The loop of a run (ask `next_step`, act, record the facts, repeat), and the executor of all loops of a process.

Memory is ahead of the store, never beside it: decisions are queued in the journal in the order in which they are made.
In the deadline of a run, times that it waits for a person or has no driver do not count: `core/state.py` sums them up
from the stored events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeAlias, assert_never

from msgspec.structs import replace

from retinue.core.agent import RunSpec
from retinue.core.budget import Amount, added
from retinue.core.commands import CancelTree, Post, RunQuery, RunRow, Unread
from retinue.core.compaction import ContextOverflow
from retinue.core.errors import StoreError, UnknownName
from retinue.core.events import AdviceGiven, ExchangeEnded, RepairAsked, RunAccepted, RunEnded, RunLeft, WrapUpAsked
from retinue.core.ids import RunId
from retinue.core.inbox import Cancel, ChildEnded, Deadline, DependencyEnded, Input, Item
from retinue.core.limit_text import short_limit_text
from retinue.core.log_context import begin_run_log, logger
from retinue.core.policy import Policy
from retinue.core.run import EndReason, Exchange, Outcome, WaitingFor
from retinue.core.state import Run
from retinue.core.step import (
    MODEL,
    Advise,
    AlreadyEnded,
    CallModel,
    Compact,
    EndExchange,
    EndRun,
    Repair,
    RunTools,
    TakeInbox,
    Wait,
    WaitsFor,
    WrapUp,
    next_step,
)
from retinue.core.text import cut
from retinue.core.workspace import WorkspaceUnavailable, is_address, place_of
from retinue.engine.compaction import compact_history
from retinue.engine.context import EngineContext
from retinue.engine.foreign_errors import repr_of
from retinue.engine.journal_writer import CommitFuture
from retinue.engine.live_run import LiveRun, RunWork, ToolSet, are_payloads_logged, log_first_payload
from retinue.engine.model_call import ask
from retinue.engine.registry import EndedRun, PlacedRun, RunRegistry
from retinue.engine.run_view import view_of_row
from retinue.engine.store_access import Replay
from retinue.engine.tool_calls import cut_place, perform_call, request_approvals


def arm_deadline(live: LiveRun, engine: EngineContext) -> None:
    """Deliver a `Deadline` when the run's time is up; the time it waits for a person or a driver is not counted."""
    seconds = live.run.accepted.limits.timeout
    if seconds is None:
        return
    loop = asyncio.get_running_loop()

    def check() -> None:
        run = live.run
        now = engine.clock.now()
        thinking = max(0.0, now - run.parked_since) if run.parked_since is not None else 0.0
        began, parked = run.accepted.at, run.parked_seconds
        if run.accepted.lifecycle.per_input:
            began, parked = run.exchange_at, run.parked_seconds - run.parked_before
            if not run.in_exchange:
                return  # the next exchange sets the timer again
        left = began + seconds + parked + thinking - now
        if left <= 0.001:
            live.deliver(Deadline(key="deadline", seconds=seconds))
        else:
            live.deadline = loop.call_later(max(left, 1.0) if thinking else left, check)

    disarm_deadline(live)
    check()


def disarm_deadline(live: LiveRun) -> None:
    if live.deadline is not None:
        live.deadline.cancel()


async def pause_deadline(live: LiveRun, engine: EngineContext) -> None:
    """Pause the time limit of a run until it is adopted; also if it has not started to work."""
    run = live.run
    if run.accepted.limits.timeout is None or run.outcome is not None or engine.journal.broken is not None:
        return
    try:
        if live.acceptance is None or live.apply_acceptance(await live.acceptance.wait()):
            live.record(RunLeft(at=engine.clock.now()))
    except StoreError:
        pass  # the journal has reported the error already


log = logger("retinue.engine")

MAX_TOOL_SETS = 256
"""Sets of tools that are kept for later runs: models can name agents, and each name has a set of its own."""

MANY_PLACED = 64
SETTLE_INTERVAL = 0.2
"""Seconds between two looks for the ends of placed runs, if there are more than `MANY_PLACED`."""

WRAP_UP = (
    "You have reached the {what} of this task. Do not call any tools. "
    "Give your final answer now, from what you have, and say what is left undone."
)

REPAIR = (
    "Your answer does not have the required form: {error}. "
    "Give the whole answer again as JSON of that form, and nothing else."
)

REPEATS = (
    "Your last {repeats} replies made the same calls and got the same results. Calling again will not change them. "
    "Do something else, or give your final answer from what you have."
)

SAME_RESULT = (
    "This result is the same as before: it is above. If it has the answer, give the answer now, in plain words."
)

SILENT = "You have not answered. The results of your calls are above. Give the answer now, in plain words."

CALL_FORM = (
    "Your last message looks like a tool call, but it is not one: {error}. Nothing was done. Your tools are: {tools}. "
    "If you need one of them, use the tool calls of this interface, or write exactly this and nothing else:\n"
    '<tool_call>\n{{"name": "TOOL", "arguments": {{"PARAMETER": "VALUE"}}}}\n</tool_call>\n'
    "If not, {answer}"
)

CUT = "Your reply was cut{where}, before it had an answer. Think less, and give your answer in few words."

NO_TOOLS = (
    "Your last message looks like a tool call, but you have no tools here, and nothing was done. Instead, {answer}"
)

ANSWER_TASK = 'answer this in plain words, without JSON: "{task}"'
ANSWER_RESULTS = "answer in plain words, without JSON, with what your calls have returned."

MAX_TASK_IN_ADVICE = 500
"""Characters of the task that an advice repeats: what a small model reads last, it does."""

Posts: TypeAlias = tuple[tuple[RunId, Item], ...]


async def drive(live: LiveRun, engine: EngineContext, executor: Executor) -> None:
    """Work on a run until it has ended; an unexpected error ends this run as failed and no other."""
    try:
        if is_address(live.run.run_spec.workspace) and not await _enter_workspace(live, engine, executor):
            return
        await _take_steps(live, engine, executor)
    except Exception as bug:
        if isinstance(bug, StoreError) and engine.journal.broken is not None:
            raise  # not a bug: the run stays as the store knows it
        log.exception("%sthe run ended by a bug", engine.id_field(live.run))
        failed = Exchange(result="failed", reason="bug", error=f"internal error: {repr_of(bug)}", text=live.run.text)
        while not await _end(live, EndRun(failed), engine, executor):
            pass  # items arrived that no loop will take; the next end knows them


async def _enter_workspace(live: LiveRun, engine: EngineContext, executor: Executor) -> bool:
    """Fetch the workspace of the tree; False if that is not possible, and the run has ended as failed."""
    accepted, workspace = live.run.accepted, live.run.run_spec.workspace
    if live.run.outcome is not None:
        return True
    try:
        if engine.folders is None:
            raise WorkspaceUnavailable(f"this process does not fetch workspaces, and the run needs {workspace}")
        place = place_of(workspace, accepted.root_id)
        live.folder = await engine.folders.fetch(place, workspace)
        is_worktree = place != accepted.root_id
        live.owns_folder = accepted.parent_id is None or (is_worktree and executor.is_first_in_its_workspace(live))
    except WorkspaceUnavailable as error:
        failed = Exchange(result="failed", reason="tool_error", error=str(error), text=live.run.text)
        while not await _end(live, EndRun(failed), engine, executor):
            pass  # items arrived that no loop will take; the next end knows them
        return False
    return True


async def _take_steps(live: LiveRun, engine: EngineContext, executor: Executor) -> None:
    arm_deadline(live, engine)
    _request_compaction(live)
    while True:
        if live.error is not None:
            raise live.error
        step = next_step(live.run, live.step_input())
        match step:
            case CallModel():
                if live.acceptance is not None and not await _is_accepted(live):
                    await _end(live, _cancelled_before_start(), engine, executor)
                    return
                live.start(MODEL, ask(live, step, engine), _next_work)
            case Compact():
                live.start(MODEL, compact_history(live, step, engine), _next_work)
            case RunTools(indices=indices):
                for index in indices:
                    live.start(index, perform_call(live, index, engine), _next_work)
            case Wait(why="dependency") if live.needs_slot and not live.run.is_pending:
                executor.request_slot(live)
                if live.needs_slot:
                    await live.wait("dependency")
            case Wait(why=why):
                await live.wait(_waiting_for(live, why, engine))
            case TakeInbox(items=items):
                _take(live, items, engine)
            case WrapUp(limit=limit):
                live.limit_met = None
                what = f"limit ({short_limit_text(limit)})"
                live.record(WrapUpAsked(at=engine.clock.now(), limit=limit, text=WRAP_UP.format(what=what)))
            case Repair(error=error, is_cut=is_cut):
                text = CUT.format(where=cut_place(live.run)) if is_cut else REPAIR.format(error=error)
                live.record(RepairAsked(at=engine.clock.now(), error=error, text=text))
            case Advise():
                text = _advice(step, live)
                live.record(AdviceGiven(at=engine.clock.now(), about=step.about, text=text))
            case EndExchange(exchange=exchange):
                live.record(ExchangeEnded(at=engine.clock.now(), exchange=exchange))
                live.limit_met = None
                live.partial.clear()
                executor.exchange_ended(live)
            case EndRun():
                if await _end(live, step, engine, executor):
                    return
                arm_deadline(live, engine)
            case AlreadyEnded():
                return
            case _:
                assert_never(step)


def _advice(step: Advise, live: LiveRun) -> str:
    """What the model is told about its calls."""
    run = live.run
    if step.about == "repeats":
        return (
            SAME_RESULT if live.run.is_same_result and live.run.writes_calls else REPEATS.format(repeats=step.repeats)
        )
    run = live.run
    if not step.error:
        return SILENT
    if run.last_calls:
        answer = ANSWER_RESULTS
    else:
        answer = ANSWER_TASK.format(task=cut(run.latest_input or run.accepted.task, MAX_TASK_IN_ADVICE, "...").text)
    if not live.tool_set.tools:
        return NO_TOOLS.format(answer=answer)
    return CALL_FORM.format(error=step.error, tools=", ".join(live.tool_set.tools), answer=answer)


def _request_compaction(live: LiveRun) -> None:
    """Let a run that has not begun compact the history that it inherits, if its caller wants that."""
    inherits = live.run.accepted.inherits
    if inherits is not None and inherits.compact and not (live.run.turns or live.run.compactions):
        live.overflow = ContextOverflow(asked=True)


def _take(live: LiveRun, items: tuple[Item, ...], engine: EngineContext) -> None:
    """Take inbox items. Where limits apply to each input, an input renews them, and each exchange has its own time."""
    run = live.run
    was_idle = not run.in_exchange
    per_input = run.accepted.lifecycle.per_input
    renews = per_input and any(isinstance(item, Input) for item in items)
    live.take(items, spent_before=engine.budgets.renew(run.accepted, run.spent_before) if renews else None)
    if per_input and was_idle and run.in_exchange:
        arm_deadline(live, engine)


def _next_work(live: LiveRun, engine: EngineContext) -> tuple[int, RunWork] | None:
    """The next model or tool call, if the task of the last one can go on with it: a step like any other, but without
    waking the loop and without a new task. Most turns of most runs are of this kind.
    """
    if live.waiting_for is not None:
        return None  # the loop has set what the run waits for, and has to reset it
    match next_step(live.run, live.step_input()):
        case CallModel() as step:
            return MODEL, ask(live, step, engine)
        case Compact() as step:
            return MODEL, compact_history(live, step, engine)
        case RunTools(indices=(index,)) if not _waits(live, index):
            return index, perform_call(live, index, engine)
        case _:
            return None


def _waiting_for(live: LiveRun, why: WaitsFor, engine: EngineContext) -> WaitingFor | None:
    """What a run waits for, for display; None while a call of its own is at work."""
    if why in ("calls", "approval"):
        # Also while other calls are in flight: a person may take as long as they do.
        request_approvals(live, engine)
    if why == "model":
        return None
    if why == "calls":
        return "child" if all(_waits(live, index) for index in live.in_flight) else None
    return why


def _waits(live: LiveRun, index: int) -> bool:
    call = live.prepared(index)
    return call is not None and call.waits


async def _is_accepted(live: LiveRun) -> bool:
    """Whether the store has accepted the run; no model is called before that is on disk."""
    assert live.acceptance is not None
    return live.apply_acceptance(await live.acceptance.wait())


def _cancelled_before_start() -> EndRun:
    error = "cancelled before it could begin"
    return EndRun(Exchange(result="cancelled", reason="cancelled", error=error))


async def _end(live: LiveRun, end: EndRun, engine: EngineContext, executor: Executor) -> bool:
    """Stop the calls in flight, then record how the run ended; nothing is recorded after that.

    False if another process has posted items that were not read: they are in the inbox now, and the run goes on.
    """
    unstopped = await live.stop()
    accepted = live.acceptance is None or await _is_accepted(live)
    partial = "".join(live.partial)
    exchange = replace(end.exchange, text=partial) if partial else end.exchange
    outcome = live.run.outcome_as(exchange, unstopped=unstopped)
    place = place_of(live.run.run_spec.workspace, live.run_id) if live.owns_folder else ""
    if place and engine.folders is not None:
        # Before the end is recorded: after a crash it is done again, and a caller that waits finds the result.
        result = await engine.folders.hand_back(place)
        outcome = outcome if result is None else replace(outcome, artifacts=(*outcome.artifacts, result))
    disarm_deadline(live)
    if not accepted and live.refusal_is_raised:
        executor.drop(live)
        return True
    if not accepted or end == _cancelled_before_start():
        executor.run_ended(live, outcome, ())
        return True
    event = RunEnded(at=engine.clock.now(), outcome=outcome)
    posts = (*_announcement(live, outcome, engine), *_handovers(live, outcome, engine))
    if not engine.store.shared:  # every item comes through this process
        live.drop(end.taken)
        live.record(event, taken=tuple(item.key for item in end.taken), posts=posts)
        executor.run_ended(live, outcome, posts)
        is_ended = True
    else:
        await live.queue_end(event, taken=end.taken, posts=posts).commit_future.wait()
        is_ended = executor.settle_end(live)
    if is_ended and place and engine.folders is not None:
        engine.folders.release(place)
    return is_ended


def _announcement(live: LiveRun, outcome: Outcome, engine: EngineContext) -> Posts:
    accepted = live.run.accepted
    if accepted.parent_id is None or not accepted.lifecycle.announce:
        return ()
    notice = engine.outcome_texts.notice(accepted, outcome)
    item = ChildEnded(key=f"ended/{accepted.run_id}", run_id=accepted.run_id, result=outcome.result, notice=notice)
    return ((accepted.parent_id, item),)


def _handovers(live: LiveRun, outcome: Outcome, engine: EngineContext) -> Posts:
    if not live.dependents:
        return ()
    return tuple((waiting, handover(live.run.accepted, outcome, name, engine)) for waiting, name in live.dependents)


def handover(accepted: RunAccepted, outcome: Outcome, name: str, engine: EngineContext) -> DependencyEnded:
    """The end of a run, as an item for a run that depends on it under that name."""
    ok, text = engine.outcome_texts.handover(accepted, outcome)
    key = f"dependency/{accepted.run_id}"
    return DependencyEnded(key=key, run_id=accepted.run_id, name=name, ok=ok, text=text)


class Executor:
    """Starts, ends, cancels and stops the live runs of this process, each in an asyncio task."""

    def __init__(self, engine: EngineContext, registry: RunRegistry, replay: Replay) -> None:
        self._engine = engine
        self._registry = registry
        self._replay = replay
        self._tool_sets: dict[tuple[tuple[str, ...], tuple[str, ...], Policy, str], ToolSet] = {}
        self.stopped_at: float | None = None
        """When the store last refused a commit, so that all work stopped."""
        self._settled_at = 0.0
        """When it was last asked which placed runs have ended, by the time of the loop."""

    def prepare(self, run: Run, acceptance: CommitFuture | None = None) -> LiveRun:
        """A live run for a folded run; it is not started yet."""
        spec = run.run_spec
        tools = spec.offered, spec.dialects, run.policy, spec.identity or spec.agent
        tool_set = self._tool_sets.get(tools)
        if tool_set is None:
            if len(self._tool_sets) >= MAX_TOOL_SETS:
                del self._tool_sets[next(iter(self._tool_sets))]
            tool_set = self._tool_sets[tools] = ToolSet(*tools, self._engine)
        return LiveRun(run, tool_set, self._engine, acceptance)

    def start(self, live: LiveRun, *, handle_space: str | None) -> None:
        self._registry.add(live, handle_space)
        live.task = self._engine.timeouts.loop.create_task(self._drive(live), name=f"run {live.run_id}")

    async def _drive(self, live: LiveRun) -> None:
        begin_run_log(lambda: self._engine.log_fields(live.run))
        if live.run.seq == 1 and are_payloads_logged():
            log_first_payload(live.run, self._engine.log_fields(live.run))
        try:
            await drive(live, self._engine, self)
        except StoreError:
            pass  # the journal has reported the error already; the run stays as the store knows it
        finally:
            if live.run.outcome is None:
                await live.stop()

    def is_first_in_its_workspace(self, live: LiveRun) -> bool:
        """Whether a run ends the work in its fetched workspace: the run above it works elsewhere."""
        above = self._registry.live.get(live.run.accepted.parent_id or "")
        return above is None or above.run.run_spec.workspace != live.run.run_spec.workspace

    async def discard(self, live: LiveRun) -> None:
        """Stop a run that the store did not create, so that it takes no slot; whatever it waits for."""
        live.deliver(_cancel_item("cancelled", ""))
        if live.task is not None:
            await asyncio.wait((live.task,))

    async def ended_dependencies(self, after: Sequence[tuple[RunId, str]]) -> dict[RunId, tuple[RunAccepted, Outcome]]:
        """The stored ends of those runs that are not live here; raises for one that has not ended."""
        here = (self._registry.live, self._registry.placed)
        return {run_id: await self._ended(run_id) for run_id, _ in after if not any(run_id in each for each in here)}

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
            if (placed := self._registry.placed.get(run_id)) is not None:
                placed.dependents.append((accepted.run_id, name))
                continue
            remembered = self._registry.ended.get(run_id)
            known = ended.get(run_id) or (
                remembered and remembered.accepted and (remembered.accepted, remembered.outcome)
            )
            assert known  # it was live a moment ago, or it was read from the store
            self._hand_over(accepted.run_id, handover(*known, name, self._engine))

    def _hand_over(self, run_id: RunId, item: DependencyEnded) -> None:
        if (waiting := self._registry.live.get(run_id)) is not None:
            waiting.deliver(item)
            self._engine.journal.write(Post(run_id=run_id, item=item))

    async def await_missing_dependencies(self, live: LiveRun) -> None:
        """The same for an adopted run, for the dependencies whose end has not reached it yet."""
        accepted = live.run.accepted
        items = (item.run_id for item in live.inbox if isinstance(item, DependencyEnded))
        delivered = {*live.run.dependencies, *items}
        missing = tuple((run_id, name) for run_id, name in accepted.after if run_id not in delivered)
        ended = await self.ended_dependencies(missing)
        self.await_dependencies(replace(accepted, after=missing), ended)

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

    # Called by the loop

    def request_slot(self, live: LiveRun) -> None:
        """The dependencies of a run have ended; afterwards `live.needs_slot` says whether it has to wait for a slot."""
        self._registry.request_slot(live)

    def exchange_ended(self, live: LiveRun) -> None:
        self._registry.update_parent(live)
        self._registry.notify(live.run_id)

    def drop(self, live: LiveRun) -> None:
        """Leave nothing behind of a run that the store did not create."""
        self._engine.budgets.close(live.run_id)
        self._registry.drop(live)
        self._registry.release_ancestor(live)

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
            placed = self._registry.placed.get(child_id)
            if placed is not None and placed.accepted.lifecycle.on_parent_end != "keep":
                self.queue_cancel(child_id, "parent_ended", "its parent has ended")
        self._registry.remove(live, outcome, self._engine.clock.now())
        for callback in self._engine.on_end:
            callback(accepted, outcome)

    def place(self, accepted: RunAccepted, run_spec: RunSpec, ancestor: RunId | None) -> None:
        """Keep account of a child that another process drives, until it ends or is driven here."""
        self._registry.add_placed(PlacedRun(accepted, run_spec, ancestor))

    def take_back(self, run_id: RunId) -> PlacedRun | None:
        """Keep no account of a placed run any more, because it was not created, or is driven here from now on."""
        placed = self._registry.remove_placed(run_id)
        if placed is not None:
            self._engine.budgets.close(run_id)
        return placed

    async def settle_placed(self) -> bool:
        """Learn which placed runs have ended: charge what they used, and notify those that wait for them.

        With many of them it looks now and then only; False says that it has to be called again.
        """
        if not self._registry.placed:
            return True
        now = asyncio.get_running_loop().time()
        if len(self._registry.placed) > MANY_PLACED and now - self._settled_at < SETTLE_INTERVAL:
            return False
        self._settled_at = now
        store, peek = self._engine.store, self._engine.journal.peek
        query = RunQuery(run_ids=tuple(self._registry.placed), phase="ended")
        rows = await peek(store.runs, query)
        limited = {row.root_id for row in rows if self._engine.budgets.is_capped(row.run_id)}
        trees = {root_id: await peek(store.runs, RunQuery(root_id=root_id)) for root_id in limited}
        for row in rows:
            if row.root_id in trees:
                self._engine.budgets.recharge(row.run_id, _spent_below(row.run_id, trees[row.root_id]))
            placed, outcome = self.take_back(row.run_id), row.progress.outcome
            if placed is None:
                continue
            if outcome is None:
                what = "a newer version wrote its outcome; what waits for it goes on with a worker of that version"
                log.warning("run %s has ended: %s", row.run_id, what)
                continue
            view = view_of_row(row, alive=False)
            self._registry.remember(EndedRun(placed.accepted, view, None, outcome.exchanges))
            for waiting, name in placed.dependents:
                self._hand_over(waiting, handover(placed.accepted, outcome, name, self._engine))
            self._registry.notify(row.run_id)
        return True

    def settle_end(self, live: LiveRun) -> bool:
        """Whether the store has accepted the end of a run; if not, the run goes on with what it had not read."""
        end, live.ending = live.ending, None
        assert end is not None
        (answer,) = end.commit_future.answers
        if isinstance(answer, Unread):
            live.refuse_end(answer.items)
            return False
        live.apply_end(end)
        outcome, late = end.event.outcome, live.dependents[end.dependents :]
        self.run_ended(live, outcome, end.posts)
        for waiting, name in late:  # accepted while the end was being written
            self._hand_over(waiting, handover(live.run.accepted, outcome, name, self._engine))
        return True

    async def _is_ended(self, live: LiveRun) -> bool:
        """Whether a run ended although its task was cancelled: its end was queued before."""
        if live.ending is None:
            return False
        try:
            await live.ending.commit_future.wait()
        except StoreError:
            return False
        return self.settle_end(live)

    async def stop_all(self, error: StoreError, *, leaving: bool = False) -> None:
        """Stop all work without ending any run: the runs stay as the store knows them and can be resumed."""
        # Not those that are started meanwhile: they are driven already, and must not be driven twice.
        stopped = tuple(self._registry.live.values())
        tasks = [live.task for live in stopped if live.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for live in stopped:
            if await self._is_ended(live):
                continue
            disarm_deadline(live)
            if leaving:
                await pause_deadline(live, self._engine)
            self._engine.budgets.close(live.run_id)
            self._registry.drop(live)
            live.subscriptions.stop(error)
        ids = {live.run_id for live in stopped}
        for run_id in [run_id for run_id, placed in self._registry.placed.items() if placed.ancestor in ids]:
            self.take_back(run_id)

    def journal_broken(self, error: StoreError) -> None:
        """The store refused a commit: stop all work, and raise the error in everything that waits."""
        self.stopped_at = self._engine.clock.now()
        for live in tuple(self._registry.live.values()):
            if live.task is not None:
                live.task.cancel()
            live.subscriptions.stop(error)
        self._registry.fail(error)


def _spent_below(run_id: RunId, tree: Sequence[RunRow]) -> Amount:
    """What a run and all runs below it have used, by the rows of their tree."""
    below = {run_id}
    spent = Amount()
    for row in sorted(tree, key=lambda row: row.depth):
        if row.run_id in below or row.parent_id in below:
            below.add(row.run_id)
            spent = added(spent, Amount.of(row.progress.usage, row.progress.cost, turns=0))
    return spent


def _cancel_item(reason: EndReason, note: str) -> Cancel:
    """A run is cancelled once: every cancel has the same key."""
    return Cancel(key="cancel", reason=reason, note=note)
