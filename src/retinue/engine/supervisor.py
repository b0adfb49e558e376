"""The facade of the engine: verbs on runs (spawn, post, cancel, wait) and views of them. Other packages use no other
part of the engine to work with runs.

A verb that is called from a tool carries a key; the same verb with the same key gives the same answer again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Container,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager

import msgspec
from msgspec import Struct

from retinue.core import commands
from retinue.core.agent import RunSpec, ToolSpec
from retinue.core.budget import Caps, Window
from retinue.core.errors import Fenced, RunIsOver, SessionClosed, TooManyRunning, TreeCancelled, UnknownName
from retinue.core.events import AgentChanged, Event, ResultCollected, RunAccepted, RunEnded, TreeEvent
from retinue.core.ids import DriverId, Key, RunId, SessionId
from retinue.core.inbox import ApprovalAnswer, Item
from retinue.core.log_context import RunFields
from retinue.core.messages import Delta
from retinue.core.policy import Policy, Rules, within_tools
from retinue.core.ports import (
    CallContext,
    Clock,
    HostedCall,
    Provider,
    PruneInSteps,
    PruneRequest,
    Spawner,
    Tool,
    ToolResult,
)
from retinue.core.run import CHAT, Approval, EndReason, Exchange, HandleRef, HistoryRef, Outcome
from retinue.core.state import Run
from retinue.core.step import READ_AT_TURN_BOUNDARY
from retinue.core.workspace import is_address
from retinue.engine.admission import (
    SpawnRequest,
    admit,
    current_policy,
    current_windows,
    with_readable_memory,
    with_visible_tools,
)
from retinue.engine.context import (
    Approver,
    EngineContext,
    Hook,
    LogFields,
    OnAdopt,
    OnCall,
    OnEnd,
    OnEvent,
    OutcomeTexts,
)
from retinue.engine.driver_table import DriverTable, this_host
from retinue.engine.hosted_calls import call_for_host
from retinue.engine.live_run import LiveRun, ToolSet
from retinue.engine.loop import Executor
from retinue.engine.registry import RunRegistry
from retinue.engine.run_view import LiveView, RunView, view_of_row
from retinue.engine.store_access import Handles, JournalKeyValue, OpenSessions, Replay, StoreReader
from retinue.engine.tool_calls import answer_to, take_action
from retinue.engine.tree_events import TreeReader

LOOKED_BELOW = 100
"""Runs of other processes in a list for which children are looked for that they wait for."""

AWAITED_OF = 50
"""Unfinished children, the newest ones, among which one is looked for that a run of another process waits for."""

PRUNE_PAUSE = 0.005
"""Seconds between two steps of a prune: processes that wait for the store look for it every two milliseconds."""

LONGEST_PRUNE_PAUSE = 1.0
"""A step that took longer is followed by a pause as long as it, up to this: a busy store has time for others."""


class StartedRun(Struct, frozen=True):
    """A run that was accepted; `existed` when the key belongs to a run that was there already."""

    run_id: RunId
    handle: HandleRef | None = None
    existed: bool = False


class Supervisor:
    """The runs of this process, and the verbs on every run in the store.

    `stored` queries the store, `key_value` reads and changes key-value namespaces, `handles` finds and retires the
    names of runs, `drivers` knows the processes that drive runs. With `durable`, a verb answers only once its effect is
    on disk; callers outside a run need that, tool calls do not, because their result is written after their effects.
    """

    def __init__(
        self,
        engine: EngineContext,
        registry: RunRegistry,
        executor: Executor,
        replay: Replay,
        handles: Handles,
        open_sessions: OpenSessions,
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._executor = executor
        self._replay = replay
        self._open_sessions = open_sessions
        self.stored = StoreReader(engine.journal, engine.store)
        self.key_value = JournalKeyValue(engine)
        self.handles = handles
        self.drivers: DriverTable = engine.drivers
        self.clock: Clock = engine.clock
        self.rules: Rules = engine.rules
        self._conversations: dict[RunId, tuple[RunId, ...]] = {}

    # Starting runs

    async def spawn(
        self,
        spawn_request: SpawnRequest,
        *,
        session_id: SessionId,
        caller: CallContext | None = None,
        key: Key | None = None,
        approver: Approver | None = None,
    ) -> StartedRun:
        """Start a run, below the caller's run if there is one. The same key gives the same run.

        `approver` answers the questions of the tree of a new root run, as `use_approver` does.

        Raises a `Refused` with the rule that forbids the run. Without a caller, or with a handle, the run is on disk
        when this returns; a run that blocks on its child does not wait for the disk.
        """
        self._check_open()
        if key is not None and (known := await self._known(key, caller)) is not None:
            return known
        try:
            return await self._spawn(spawn_request, session_id, caller, key, approver)
        except _TooManyInStore:
            await self.drivers.reap()  # runs that wait for a process that is gone may end, or do not count any more
        return await self._spawn(spawn_request, session_id, caller, key, approver)

    async def _spawn(
        self,
        spawn_request: SpawnRequest,
        session_id: SessionId,
        caller: CallContext | None,
        key: Key | None,
        approver: Approver | None,
    ) -> StartedRun:
        if caller is not None:  # a root run may read an archived session
            await self._open_sessions.check(session_id)
        inherited = await self._replay.history(spawn_request.inherits)
        if spawn_request.windows:
            await self._engine.budgets.load_windows(spawn_request.windows)
        ended = await self._executor.ended_dependencies(spawn_request.after)
        parent = self._parent(caller)
        # No await from here until the run is registered: of two spawns at the same time, each counts the other.
        if spawn_request.check is not None:
            spawn_request.check()
        space = spawn_request.handle_space
        accepted, run_spec = admit(
            spawn_request,
            run_id=self._engine.ids.new(),
            session_id=session_id,
            parent=parent,
            running=self._registry.running(session_id, space) if space is not None else 0,
            key=key,
            engine=self._engine,
        )
        if parent is not None and self._is_placed(spawn_request, run_spec):
            return await self._place(spawn_request, accepted, run_spec, parent, caller)
        self._engine.budgets.open(accepted)
        if approver is not None and parent is None:
            self.use_approver(accepted.root_id, approver)
        limit = self._limit_in_store(spawn_request.limit)
        commit_future = self._engine.journal.write(
            commands.Accept(
                accepted=accepted,
                run_spec=run_spec,
                driver_id=self._engine.journal.driver_id,
                handle_space=space,
                handle_format=spawn_request.handle_format,
                max_running=spawn_request.max_running,
                limit=limit,
            )
        )
        live = self._executor.prepare(Run(accepted, run_spec, inherited), commit_future)
        live.owns_tree = parent is None
        live.refusal_is_raised = caller is None or space is not None or limit is not None
        self._executor.start(live, handle_space=space)
        self._executor.await_dependencies(accepted, ended)
        if key is not None and parent is not None:
            parent.children_by_key[key] = accepted.run_id
        if caller is not None and caller.host is not None:
            caller.host.started.append(accepted.run_id)
        if caller is not None:
            self.proceed(caller)  # queries wait for what is queued: the next call finds the run
        if live.refusal_is_raised:
            answers = await commit_future.wait()
            if isinstance(answers[0], commands.NotCreated):
                if key is not None and parent is not None:
                    parent.children_by_key.pop(key, None)
                await self._executor.discard(live)
            return self._started(accepted, answers)
        return StartedRun(accepted.run_id)

    def _is_placed(self, spawn_request: SpawnRequest, run_spec: RunSpec) -> bool:
        """Whether a new child is left to another worker: its tags are not here, its agent says so, or there is no room.

        Runs that wait do not count, so that parents never keep the room that their children need.
        """
        worker = self._engine.worker
        if worker is None or not self._engine.store.shared or spawn_request.after or spawn_request.stays_here:
            return False
        if not worker.tags.issuperset(run_spec.tags):
            return True
        if (run_spec.identity or spawn_request.agent) in self.rules.anywhere:
            return True
        live = self._registry.live
        return len(live) > worker.max_runs and sum(each.waiting_for is None for each in live.values()) > worker.max_runs

    async def _place(
        self,
        spawn_request: SpawnRequest,
        accepted: RunAccepted,
        run_spec: RunSpec,
        parent: LiveRun,
        caller: CallContext | None,
    ) -> StartedRun:
        """Accept a child without a driver, for another worker to adopt."""
        accepted = self._engine.budgets.for_elsewhere(accepted)
        self._engine.budgets.open(accepted)
        if (root := self._registry.live.get(accepted.root_id)) is not None:
            root.owns_tree = False
        commit_future = self._engine.journal.write(
            commands.Accept(
                accepted=accepted,
                run_spec=run_spec,
                driver_id=None,
                handle_space=spawn_request.handle_space,
                handle_format=spawn_request.handle_format,
                max_running=spawn_request.max_running,
                limit=self._limit_in_store(spawn_request.limit),
            )
        )
        self._executor.place(accepted, run_spec, parent.run_id)
        if accepted.key is not None:
            parent.children_by_key[accepted.key] = accepted.run_id
        if caller is not None:
            if caller.host is not None:
                caller.host.started.append(accepted.run_id)
            self.proceed(caller)
        try:
            started = self._started(accepted, await commit_future.wait())
        except BaseException:
            self._executor.take_back(accepted.run_id)
            if accepted.key is not None:
                parent.children_by_key.pop(accepted.key, None)
            raise
        for callback in self._engine.on_placed:
            callback(accepted.run_id)
        return started

    def _limit_in_store(self, limit: commands.RunLimit | None) -> commands.RunLimit | None:
        """The limit, None if the caller has checked it: this process drives all unfinished runs of its trees."""
        if limit is None:
            return None
        roots = (self._registry.live.get(root_id) for root_id in limit.root_ids)
        return None if all(root is not None and root.owns_tree for root in roots) else limit

    async def accept(self, spawn_request: SpawnRequest, *, session_id: SessionId, key: Key | None = None) -> StartedRun:
        """Create a root run without a driver; it starts when a process adopts it. The same key gives the same run."""
        self._check_open()
        if key is not None and (known := await self._known(key, None)) is not None:
            return known
        accepted, run_spec = admit(
            spawn_request,
            run_id=self._engine.ids.new(),
            session_id=session_id,
            parent=None,
            running=0,
            key=key,
            engine=self._engine,
        )
        acceptance = commands.Accept(accepted=accepted, run_spec=run_spec, driver_id=None)
        started = self._started(accepted, await self._engine.journal.commit(acceptance))
        if not started.existed:
            for callback in self._engine.on_placed:
                callback(started.run_id)
        return started

    def _started(self, accepted: RunAccepted, answers: list[commands.WriteResult]) -> StartedRun:
        (answer,) = answers
        if isinstance(answer, commands.NotCreated):
            if answer.why == "cancelled":
                raise TreeCancelled(answer.name)
            if answer.why == "too_many":  # other processes work in the same session
                raise _TooManyInStore(running=int(answer.name), limit=int(answer.name))
            raise SessionClosed(accepted.session_id, "archived" if answer.why == "session_archived" else "deleted")
        assert isinstance(answer, commands.Accepted)
        if answer.handle is not None:
            self.handles.add(accepted.session_id, answer.handle.space, answer.handle.name, answer.run_id)
        return StartedRun(answer.run_id, answer.handle, answer.existed)

    async def _known(self, key: Key, caller: CallContext | None) -> StartedRun | None:
        parent = self._registry.live.get(caller.run_id) if caller is not None else None
        run_id = parent.children_by_key.get(key) if parent is not None else None
        if run_id is not None and (view := await self.look(run_id)) is not None:
            return StartedRun(run_id, view.handle, existed=True)
        if caller is None or caller.again:
            row = await self.stored.run_by_key(key)
            if row is not None:
                return StartedRun(row.run_id, row.handle, existed=True)
        return None

    def _parent(self, caller: CallContext | None) -> LiveRun | None:
        if caller is None:
            return None
        parent = self._registry.live.get(caller.run_id)
        if parent is None:
            raise TreeCancelled(caller.run_id)
        return parent

    def proceed(self, caller: CallContext) -> None:
        """Let the next ordered call of the caller's reply begin, before this one returns: it has taken effect."""
        live = self._registry.live.get(caller.run_id)
        if live is not None and live.run.turns == caller.turn:
            live.proceed(caller.index)

    def fork_point(self, run_id: RunId, *, last_turns: int | None = None) -> HistoryRef:
        """The current history of a live run, for a fork to inherit."""
        live = self._registry.live.get(run_id)
        if live is None:
            raise UnknownName("live run", run_id)
        return HistoryRef(run_id, live.run.seq, last_turns)

    def limit_running(self, handle_space: str, count: int) -> None:
        """Let a run with dependencies and a handle in that space start only while fewer runs of its session run."""
        self._registry.limit_running(handle_space, count)

    # Acting on runs

    async def post(self, run_id: RunId, item: Item, *, durable: bool = False) -> bool:
        """Put an item into a run's inbox; False if an item with its key is there already.

        Raises `RunIsOver` for an ended run and `UnknownName` for an unknown one.
        """
        self._check_open()
        live = await self._registered(run_id)
        if live is not None:
            new = live.deliver(item)
            self._registry.notify(run_id)
            if live.run.accepted.lifecycle.keep_alive:
                self._registry.update_parent(live)
            commit_future = self._engine.journal.write(commands.Post(run_id=run_id, item=item))
            if durable:
                await commit_future.wait()
            return new
        if run_id in self._registry.ended:
            raise RunIsOver(run_id, self._registry.ended[run_id].outcome.result)
        (answer,) = await self._engine.journal.commit(commands.Post(run_id=run_id, item=item))
        if answer == "unknown":
            raise UnknownName("run", run_id)
        if answer == "ended":
            outcome = await self.outcome(run_id)
            raise RunIsOver(run_id, outcome.result if outcome else "ended")
        return answer == "posted"

    async def _registered(self, run_id: RunId) -> LiveRun | None:
        """A live run; one that is about to end only if the store has not accepted its end."""
        live = self._registry.live.get(run_id)
        while live is not None and live.ending is not None:
            await live.ending.commit_future.wait_done()
            await asyncio.sleep(0)
            self._check_open()
            live = self._registry.live.get(run_id)
        return live

    async def cancel(self, run_id: RunId, *, reason: EndReason = "cancelled", note: str = "") -> tuple[RunId, ...]:
        """Cancel a run and all below it; the ids of those that were neither ended nor cancelled before."""
        self._check_open()
        if run_id not in self._registry.live:
            await self.drivers.reap()  # a run without a driver ends in the store at once, not when it is adopted
        return await self._executor.cancel(run_id, reason, note)

    async def take_action(self, run_id: RunId, key: Key | None = None, *, again: bool = False) -> bool:
        """Charge one action of a live run to its windows; False if they have none left.

        With the `key` of a call that is made `again` after a crash, an action that was charged before is not again.
        """
        live = self._registry.live.get(run_id)
        if live is None:
            raise TreeCancelled(run_id)
        return await take_action(live, self._engine, key, again=again)

    async def call_for_host(
        self, run_id: RunId, name: str, arguments: str, *, key: Key, host: HostedCall, again: bool = False
    ) -> ToolResult:
        """Make a tool call in the name of a live hosted run; the runs that it started are on disk when this returns.

        With `again`, the call may have been made before with the same key, and continues what it had begun then.
        """
        self._check_open()
        live = self._registry.live.get(run_id)
        if live is None:
            raise TreeCancelled(run_id)
        result = await call_for_host(live, name, arguments, key, host, self._engine, again=again)
        await self.stored.run(run_id)  # a query waits for all that is queued
        return result

    def mark_read(self, reader: RunId, run_id: RunId) -> None:
        """Record that a live run has read how a child of it ended, so that the end is not announced to it again."""
        live = self._registry.live.get(reader)
        if live is not None and live.run.outcome is None and live.ending is None and run_id not in live.run.seen:
            live.record(ResultCollected(at=self._engine.clock.now(), key=f"read/{run_id}", run_id=run_id))

    async def change_agent(
        self, run_id: RunId, run_spec: RunSpec, policy: Policy, windows: tuple[Window, ...] = ()
    ) -> None:
        """Let a live run go on as another agent, from its next turn on; it draws on the windows of that agent, too."""
        if windows:
            await self._engine.budgets.load_windows(windows)
        live = self._registry.live.get(run_id)
        if live is None or live.run.outcome is not None:
            raise TreeCancelled(run_id)
        if windows:
            self._engine.budgets.add_windows(run_id, windows)
        run_spec = with_visible_tools(run_spec, policy)
        live.record(AgentChanged(at=self._engine.clock.now(), agent=run_spec.agent, run_spec=run_spec, policy=policy))

    async def open_questions(self, run_id: RunId) -> list[Approval]:
        """The calls of a run that wait for a person and have no answer in the inbox."""
        if (live := self._driven(run_id)) is not None:
            return live.run.open_questions()
        run = await self.replay(run_id)
        answered = {
            (item.turn, item.index) for item in await self.stored.inbox(run_id) if isinstance(item, ApprovalAnswer)
        }
        return [each for each in run.open_questions() if (each.turn, each.index) not in answered]

    async def answer(self, question: Approval, *, allow: bool, note: str = "") -> bool:
        """Answer a question of a run; whether this was the first answer. Only the first one counts."""
        return await self.post(question.run_id, answer_to(question, allow=allow, note=note), durable=True)

    async def folder(self, run_id: RunId) -> str:
        """The folder of a run's workspace on this machine; empty if it is not known, or of another machine."""
        if (live := self._driven(run_id)) is not None:
            workspace = live.run.run_spec.workspace
            return live.folder or ("" if is_address(workspace) else workspace)
        driver = await self.drivers.find((await self.row(run_id)).driver_id)
        if driver is None or driver.host != this_host():
            return ""
        workspace = (await self.replay(run_id)).run_spec.workspace
        # A relative folder is one below the current folder of the process that drives the run.
        return workspace if os.path.isabs(workspace) else ""

    # Live and recently ended runs

    def live(self, run_id: RunId) -> LiveView | None:
        """A run that this process drives; None if another process has declared this one dead."""
        return self._driven(run_id)

    def _driven(self, run_id: RunId) -> LiveRun | None:
        return None if isinstance(self._engine.journal.broken, Fenced) else self._registry.live.get(run_id)

    def placed_spec(self, run_id: RunId) -> RunSpec | None:
        """The run spec of an unfinished child of a run of this process that another process drives."""
        placed = self._registry.placed.get(run_id)
        return None if placed is None else placed.run_spec

    def live_runs(self) -> Collection[LiveView]:
        """All live runs of this process, oldest first; a dynamic view, not to be iterated across an await."""
        return self._registry.live.values()

    def subtree(self, run_id: RunId) -> Iterator[LiveView]:
        """A live run and its live descendants, parents first."""
        return self._registry.subtree(run_id)

    def unfinished_in(self, root_id: RunId) -> Iterator[RunAccepted]:
        """The unfinished runs of a tree that this process drives, and their children that others drive for it."""
        for live in self._registry.subtree(root_id):
            yield live.run.accepted
            for child_id in live.children:
                if (placed := self._registry.placed.get(child_id)) is not None:
                    yield placed.accepted

    def ended(self, run_id: RunId) -> RunView | None:
        """A run that ended in this process recently."""
        ended = self._registry.ended.get(run_id)
        return None if ended is None else ended.view

    def ended_in(self, root_id: RunId, dialect: str) -> Mapping[RunId, RunView]:
        """The runs of a tree that a dialect started and that ended recently, in the order of their ends."""
        return self._registry.ended_in(root_id, dialect)

    def recent_ends(self) -> Iterator[RunView]:
        """The runs that ended in this process recently, latest end first."""
        return (ended.view for ended in reversed(self._registry.ended.values()))

    def limit_remembered(self, dialect: str, count: int) -> None:
        """Keep at most `count` ended runs of a dialect in memory for each tree."""
        self._registry.limit_remembered(dialect, count)

    # All runs

    async def look(self, run_id: RunId) -> RunView | None:
        """A run as it stands now, or None if it is unknown."""
        if (live := self._driven(run_id)) is not None:
            return live.view()
        if (ended := self._registry.ended.get(run_id)) is not None:
            return ended.view
        row = await self.stored.run(run_id)
        if row is None:
            return None
        view = view_of_row(row, alive=await self.is_driven(row))
        if view.state != "working":
            return view
        return view_of_row(row, alive=True, has_awaited_child=await self._has_awaited_child(run_id))

    async def _has_awaited_child(self, run_id: RunId) -> bool:
        below = commands.RunQuery(parent_id=run_id, unfinished_only=True, limit=AWAITED_OF)
        return any(child.awaited for child in await self.stored.runs(below))

    async def list(self, query: commands.RunQuery) -> list[RunView]:
        """Runs as they stand now, newest first."""
        rows = await self.stored.runs(query)
        awaited = {row.parent_id for row in rows if row.awaited and row.progress.phase != "ended"}
        living = await self.drivers.living()
        if query.root_id is None:  # children are not among these rows, or not all of them
            elsewhere = [
                row.run_id
                for row in rows
                if row.driver_id in living and row.progress.phase != "ended" and self._driven(row.run_id) is None
            ]
            for run_id in elsewhere[:LOOKED_BELOW]:
                if run_id not in awaited and await self._has_awaited_child(run_id):
                    awaited.add(run_id)
        return [
            live.view()
            if (live := self._driven(row.run_id)) is not None
            else view_of_row(row, alive=row.driver_id in living, has_awaited_child=row.run_id in awaited)
            for row in rows
        ]

    async def with_tasks(self, views: Sequence[RunView]) -> list[RunView]:
        """The views with the tasks of their runs; those of runs that this process drives have them already."""
        tasks = await self.stored.tasks([view.run_id for view in views if not view.task])
        return [
            msgspec.structs.replace(view, task=tasks[view.run_id]) if view.run_id in tasks else view for view in views
        ]

    async def row(self, run_id: RunId) -> commands.RunRow:
        """The stored row of a run; raises `UnknownName` if there is none."""
        row = await self.stored.run(run_id)
        if row is None:
            raise UnknownName("run", run_id)
        return row

    async def is_driven(self, row: commands.RunRow) -> bool:
        """Whether a process drives a run, or one is expected to adopt it."""
        if row.driver_id is None and row.progress.phase == "placed":
            return True
        return row.driver_id in await self.drivers.living()

    async def replay(self, run_id: RunId, *, upto: int | None = None) -> Run:
        """A run as its stored events describe it, all or those up to `upto`.

        Raises `UnknownName`, or `NotKept` if its events were dropped.
        """
        return await self._replay.run(run_id, upto=upto)

    async def acceptance(self, run_id: RunId) -> RunAccepted | None:
        """The acceptance of a run; None if the run is unknown or its events were dropped."""
        if (live := self._driven(run_id)) is not None:
            return live.run.accepted
        events = await self.stored.events(run_id)
        return events[0][1] if events and isinstance(events[0][1], RunAccepted) else None

    async def origins(self, root_id: RunId) -> tuple[RunId, ...]:
        """The roots of the trees whose history this tree continues, the latest first."""
        found: list[RunId] = []
        accepted = await self.acceptance(root_id)
        while accepted is not None and accepted.inherits is not None:
            accepted = await self.acceptance(accepted.inherits.run_id)
            if accepted is not None and accepted.root_id not in (root_id, *found[-1:]):
                found.append(accepted.root_id)
        return tuple(found)

    async def conversation(self, root_id: RunId) -> tuple[RunId, ...]:
        """The root runs of the chat that a root run belongs to, from the first one to this one; else this one alone."""
        unknown: list[RunId] = []
        root: RunId | None = root_id
        while root is not None and root not in self._conversations:
            unknown.append(root)
            root = await self._previous_of_chat(root)
        chain = () if root is None else self._conversations[root]
        for root in reversed(unknown):
            chain = (*chain, root)
            if len(chain) > 1:
                self._conversations[root] = chain
        return chain

    async def _previous_of_chat(self, root_id: RunId) -> RunId | None:
        accepted = await self.acceptance(root_id)
        if accepted is None or accepted.label != CHAT or accepted.inherits is None:
            return None
        origin = await self.acceptance(accepted.inherits.run_id)
        return origin.run_id if origin is not None and origin.label == CHAT and origin.parent_id is None else None

    async def events(self, run_id: RunId, *, after: int = 0) -> AsyncIterator[Event | Delta]:
        """The events of a run from its acceptance to its end, with deltas while it streams in this process.

        Follows a run that another process drives; of a run without a driver, yields the stored events and stops.
        """
        live = self._driven(run_id)
        if live is None:
            async for event in self._stored_events(run_id, after):
                yield event
            return

        joined: int | None = live.run.seq

        async def catch_up(seq: int) -> list[tuple[int, Event]]:
            nonlocal joined
            last, joined = joined, None
            events = await self.stored.events(run_id, seq)
            if last is not None and events:
                # Later ones are offered to the reader, with the deltas before them, which no store has.
                events = [each for each in events if each[0] <= last]
            outcome = live.run.outcome
            if not events and outcome is not None and seq < live.run.seq:  # its events were dropped at its end
                return [(live.run.seq, RunEnded(at=self._engine.clock.now(), outcome=outcome))]
            return events

        reader = live.subscriptions.join(after)
        try:
            async for what in reader.read(catch_up):
                if isinstance(what, RunEnded) and live.last_write is not None:
                    await live.last_write.wait()  # like every waiter, a reader gets an end once it is on disk
                yield what
        finally:
            live.subscriptions.leave(reader)

    async def tree_events(
        self,
        run_id: RunId,
        *,
        tree: bool = True,
        after: Mapping[RunId, int] | None = None,
        grace: float = 0.0,
        deltas_of: Container[RunId] | None = None,
    ) -> AsyncIterator[TreeEvent]:
        """The events of a run and, with `tree`, of all runs below it, wherever they are driven.

        The order within each run is kept, and an acceptance comes before everything of the runs below. `after` has the
        numbers of the last events that were read, by run. Ends when all these runs have ended, or have had no driver
        for `grace` seconds. Deltas are those of runs that stream in this process, of all or of those in `deltas_of`.
        """
        capacity = self._engine.tuning.reader_capacity
        reader = TreeReader(run_id, whole=tree, after=after or {}, capacity=capacity, deltas_of=deltas_of)
        with self._registry.tree_listener(reader):
            async for item in reader.read(self.stored, self.drivers, self._registry, grace=grace):
                yield item

    async def _stored_events(self, run_id: RunId, after: int) -> AsyncIterator[Event]:
        with self._registry.watch((run_id,)) as watch:
            while True:
                row = await self.row(run_id)
                for seq, event in await self.stored.events(run_id, after):
                    after = seq
                    yield event
                    if isinstance(event, RunEnded):
                        return
                if row.progress.phase == "ended":
                    return
                if await self.is_driven(row):
                    await watch.changed()
                    continue
                # The row was read before its drivers: another one may have gone on with the run, even to its end.
                latest = await self.row(run_id)
                if latest.seq <= after and latest.driver_id == row.driver_id:
                    return

    # Waiting

    async def wait(
        self, run_ids: Sequence[RunId], *, count: int | None = None, timeout: float | None = None, durable: bool = False
    ) -> dict[RunId, Outcome]:
        """How runs ended, in the order of their ends: all of them, the first `count`, or those within `timeout`."""
        needed = len(set(run_ids)) if count is None else min(count, len(set(run_ids)))
        ended: dict[RunId, tuple[float, Outcome]] = {}
        with self._registry.watch(run_ids, ends_only=True) as watch:
            try:
                with self._engine.timeouts.within(timeout):
                    changed = list(dict.fromkeys(run_ids))
                    while True:
                        for run_id in changed:
                            if run_id not in ended and (end := await self._end(run_id, durable=durable)):
                                ended[run_id] = end
                        if len(ended) >= needed:
                            break
                        self._check_open()
                        changed = await watch.changed()
            except TimeoutError:
                pass
        # Runs that had ended before the call were found in the order of `run_ids`.
        first = sorted(ended.items(), key=lambda item: item[1][0])[:needed]
        return {run_id: outcome for run_id, (_, outcome) in first}

    async def wait_for_mail(self, run_id: RunId, of: Sequence[RunId], *, timeout: float | None = None) -> bool:
        """Whether a live run has mail for its next turn, or one of the runs `of` has ended, within `timeout`.

        False at once if there is no mail and `of` is empty.
        """
        with self._registry.watch((run_id, *of), ends_only=True) as watch:
            try:
                with self._engine.timeouts.within(timeout):
                    while True:
                        live = self._registry.live.get(run_id)
                        if live is None or any(isinstance(item, READ_AT_TURN_BOUNDARY) for item in live.inbox):
                            return True
                        if not of:
                            return False
                        for other in of:
                            if await self._end(other, durable=False) is not None:
                                return True
                        self._check_open()
                        await watch.changed()
            except TimeoutError:
                return False

    async def outcome(self, run_id: RunId, *, durable: bool = False) -> Outcome | None:
        """How a run ended, or None if it has not."""
        end = await self._end(run_id, durable=durable)
        return None if end is None else end[1]

    async def _end(self, run_id: RunId, *, durable: bool) -> tuple[float, Outcome] | None:
        if self._driven(run_id) is not None:
            return None
        if (ended := self._registry.ended.get(run_id)) is not None:
            if durable and ended.commit_future is not None:
                await ended.commit_future.wait()
            return ended.view.ended_at or 0.0, ended.outcome
        if run_id in self._registry.placed:
            return None
        progress = (await self.row(run_id)).progress
        return None if progress.outcome is None else (progress.ended_at or 0.0, progress.outcome)

    async def exchange(self, run_id: RunId, number: int, *, durable: bool = False) -> Exchange:
        """The answer to a run's `number`-th input, counted from 1; the outcome of a run that ended before it."""
        with self._registry.watch((run_id,)) as watch:
            while True:
                live = self._driven(run_id)
                if live is not None and len(live.run.exchanges) >= number:
                    if durable and live.last_write is not None:
                        await live.last_write.wait()
                    return live.run.exchanges[number - 1]
                if live is None and (known := await self._stored_exchange(run_id, number)) is not None:
                    return known
                self._check_open()
                await watch.changed()

    async def reply_to(self, run_id: RunId, key: Key, *, durable: bool = False) -> Exchange:
        """The answer to the input that was posted with this key; the outcome of a run that ended before it."""
        with self._registry.watch((run_id,)) as watch:
            while True:
                live = self._driven(run_id)
                run = live.run if live is not None else await self.replay(run_id)
                if (number := run.inputs.get(key)) is not None:
                    return await self.exchange(run_id, number, durable=durable)
                if run.outcome is not None:
                    return _as_exchange(run.outcome)
                self._check_open()
                await watch.changed()

    async def _stored_exchange(self, run_id: RunId, number: int) -> Exchange | None:
        if (outcome := await self.outcome(run_id)) is not None:
            return await self._past_exchange(run_id, number, outcome)
        exchanges = (await self.replay(run_id)).exchanges
        return exchanges[number - 1] if len(exchanges) >= number else None

    async def _past_exchange(self, run_id: RunId, number: int, outcome: Outcome) -> Exchange:
        ended = self._registry.ended.get(run_id)
        if ended is None or ended.exchanges >= number:  # a run that was not accepted has no events to replay
            run = await self.replay(run_id)
            if len(run.exchanges) >= number:
                return run.exchanges[number - 1]
        return _as_exchange(outcome)

    # Limits and policies

    def left(self, run_id: RunId) -> Caps:
        """What a live run may still use; None for each amount that is not limited."""
        return self._engine.budgets.left(run_id)

    def unspent(self, run_id: RunId) -> Caps:
        """What a live run was given and has not spent; calls in flight are not deducted."""
        return self._engine.budgets.unspent(run_id)

    def counts_actions(self, run_id: RunId) -> bool:
        """Whether a window limits the number of a live run's actions."""
        return self._engine.budgets.counts_actions(run_id)

    async def current_policy(self, run: Run) -> Policy:
        """The policy of a stored run, narrowed by the current settings of its agent and of the runs above it."""
        return await current_policy(run, {}, self.rules, self._replay)

    def current_windows(self, run: Run) -> tuple[Window, ...]:
        """The windows of a stored run, with those of the agent that it was handed over to."""
        return current_windows(run, self.rules)

    def visible_tools(self, run_spec: RunSpec) -> tuple[ToolSpec, ...]:
        """The tools that a root run is shown: those offered that the policy of its agent does not exclude."""
        admitted = self.admitted(run_spec)
        policy = within_tools(self.rules.ceiling_of(run_spec.identity), run_spec.tool_ceiling)
        agent = run_spec.identity or run_spec.agent
        return ToolSet(admitted.offered, admitted.dialects, policy, agent, self._engine).specs

    def tools_of(self, run: Run) -> tuple[ToolSpec, ...]:
        """The tools that a run is shown, by its run spec and policy."""
        spec = run.run_spec
        agent = spec.identity or spec.agent
        return ToolSet(spec.offered, spec.dialects, run.policy, agent, self._engine).specs

    def find_tool(self, name: str, dialects: tuple[str, ...]) -> Tool | None:
        """The tool of that name, as a run with these dialects calls it."""
        return self._engine.toolbox.find(name, dialects)

    def find_provider(self, name: str) -> Provider | None:
        """The provider with this name."""
        return self._engine.providers.find(name)

    def admitted(self, run_spec: RunSpec) -> RunSpec:
        """The run spec that a root run has once it is admitted: without what the policy of its agent excludes."""
        visible = with_visible_tools(run_spec, self.rules.ceiling_of(run_spec.identity))
        return with_readable_memory(visible, run_spec.agent, self.rules)

    # Sessions and the store as a whole

    async def open_session(self, session_id: SessionId) -> bool:
        """Create a session unless it exists; whether it is new."""
        (new,) = await self._engine.journal.commit(
            commands.OpenSession(session_id=session_id, at=self._engine.clock.now())
        )
        return bool(new)

    async def archive_session(self, session_id: SessionId) -> bool:
        """Make a session read-only: a root run may read it, and starts no other run. Whether it existed."""
        (existed,) = await self._engine.journal.commit(commands.CloseSession(session_id=session_id, how="archive"))
        self._open_sessions.clear()
        return bool(existed)

    async def delete_session(self, session_id: SessionId) -> bool:
        """Delete a session with its key-value namespaces and handles; its runs stay. Whether it existed."""
        (existed,) = await self._engine.journal.commit(commands.CloseSession(session_id=session_id, how="delete"))
        self.handles.clear()
        self._open_sessions.clear()
        return bool(existed)

    async def prune(self, request: PruneRequest, *, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Remove trees of ended runs; how many runs were removed. Stops between two steps if `should_stop` says so.

        A store that can do so prunes in small steps, with pauses in which other writers go on.
        """
        journal, store = self._engine.journal, self._engine.store
        prune_in_steps: PruneInSteps | None = getattr(store, "prune_in_steps", None)
        if prune_in_steps is None:
            (removed,) = await journal.commit(commands.Prune(before=request.before))
            assert isinstance(removed, int)
            return removed
        total = 0
        steps = await journal.read(prune_in_steps, request)
        clock = asyncio.get_running_loop().time
        began = clock()
        while (removed := await journal.peek(next, steps, None)) is not None:
            total += removed
            if should_stop():
                break
            await asyncio.sleep(min(LONGEST_PRUNE_PAUSE, max(PRUNE_PAUSE, clock() - began)))
            began = clock()
        await journal.peek(steps.close)
        return total

    def drop_events(self, root_id: RunId, dialect: str) -> None:
        """Drop the events and inboxes of a dialect's runs below the root of an ended tree, without waiting."""
        self._engine.journal.write(commands.Forget(root_id=root_id, dialect=dialect))

    # This process

    @property
    def driver_id(self) -> DriverId | None:
        """The id of this process among the drivers; None before it has registered."""
        return self._engine.journal.driver_id

    @property
    def is_fenced(self) -> bool:
        """Whether another process has declared this one dead."""
        return isinstance(self._engine.journal.broken, Fenced)

    def new_id(self) -> str:
        return self._engine.ids.new()

    def start_background(self, work: Coroutine[None, None, None]) -> None:
        """Run a small task that belongs to no run; it is cancelled when this process leaves."""
        self._engine.start_background(work)

    def use_outcome_texts(self, texts: OutcomeTexts) -> None:
        """Set the texts about the ends of runs."""
        self._engine.outcome_texts = texts

    def use_spawner(self, spawner: Spawner) -> None:
        """Set what starts runs for tools, `CallContext.spawn`."""
        self._engine.spawner = spawner

    def use_log_fields(self, fields: LogFields) -> None:
        """Set the fields with which the log lines of a run begin."""
        self._engine.log_fields = fields

    def log_fields(self, run_id: RunId) -> RunFields:
        """The fields of the log lines of a live run; none for any other."""
        live = self.live(run_id)
        return {} if live is None else self._engine.log_fields(live.run)

    def on_end(self, callback: OnEnd) -> None:
        """Call `callback` when a run ends here; it must neither raise nor block."""
        self._engine.on_end.append(callback)

    def on_event(self, callback: OnEvent) -> None:
        """Call `callback` with each event of a run here before it is applied; it must neither raise nor block."""
        self._engine.on_event.append(callback)

    def on_register(self, callback: Hook) -> None:
        """Call `callback` once this process drives runs and has adopted those that it was to adopt."""
        self._engine.on_register.append(callback)

    def on_call(self, callback: OnCall) -> None:
        """Call `callback` with each call that acts or was refused; see `watch_calls`."""
        self._engine.on_call.append(callback)

    @contextmanager
    def watch_calls(self, callback: OnCall) -> Generator[None]:
        """Call `callback` with each call that acts or was refused, for as long as the block lasts.

        It gets the run's acceptance, the call, its result, and whether it acts. It must not raise and not block.
        """
        self._engine.on_call.append(callback)
        try:
            yield
        finally:
            self._engine.on_call.remove(callback)

    def on_adopt(self, callback: OnAdopt) -> None:
        """Call `callback` with runs that this process resumes: adopted ones, and its own after the store failed."""
        self._engine.on_adopt.append(callback)

    def on_placed(self, callback: Callable[[RunId], None]) -> None:
        """Call `callback` with each run that is accepted here without a driver; it must neither raise nor block."""
        self._engine.on_placed.append(callback)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` when another process may have written; it must neither raise nor block."""
        self._engine.on_change.append(callback)

    def use_approver(self, root_id: RunId, approver: Approver) -> None:
        """Answer the questions of one tree in another way than those of others."""
        self._engine.approvers[root_id] = approver

    def on_leave(self, callback: Hook) -> None:
        """Call `callback` when all work has stopped, before the unfinished runs are given up; it must not raise."""
        self._engine.on_leave.append(callback)

    async def close(self) -> None:
        try:
            await self._engine.journal.close()
        finally:
            self._engine.store.close()

    def _check_open(self) -> None:
        """Raise the error of a broken journal: nothing can be written or awaited any more."""
        if self._engine.journal.broken is not None:
            raise self._engine.journal.broken


class _TooManyInStore(TooManyRunning):
    """Refused by the store, which counts the runs of all processes."""


def _as_exchange(outcome: Outcome) -> Exchange:
    """The outcome of an ended run, as the exchange that a late waiter receives."""
    return Exchange(
        result=outcome.result, reason=outcome.reason, text=outcome.text, error=outcome.error, limit=outcome.limit
    )
