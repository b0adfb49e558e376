"""The verbs: spawn, fork, wait, send, cancel, look. Whoever wants something of a run asks here, and nowhere else.

A verb that is called from a tool carries a key; the same verb with the same key answers as it did the first time. What
the supervisor knows in memory is always ahead of the disk, never beside it: its decisions are queued in the journal in
the order in which it made them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from retinue.core.commands import Accept, Accepted, CancelTree, NotCreated, Post, RunQuery, RunRow, WriteResult
from retinue.core.errors import Fenced, RunIsOver, SessionClosed, StoreError, TooManyRunning, TreeCancelled, UnknownName
from retinue.core.events import Event, ResultCollected, RunAccepted, RunEnded, RunLeft
from retinue.core.history import History
from retinue.core.ids import Key, RunId, SessionId
from retinue.core.inbox import Cancel, DependencyEnded, Item
from retinue.core.messages import Delta
from retinue.core.ports import CallContext
from retinue.core.run import EndReason, Exchange, HandleRef, HistoryRef, Outcome
from retinue.core.state import Run
from retinue.engine.admission import SpawnRequest, admit
from retinue.engine.context import EngineContext
from retinue.engine.journal import CommitFuture
from retinue.engine.key_value import Handles
from retinue.engine.live_run import LiveRun, ToolSet
from retinue.engine.loop import Posts, drive, handover
from retinue.engine.registry import RunRegistry
from retinue.engine.replay import Replay
from retinue.engine.run_view import RunView, of_live_run, of_row


class Started(Struct, frozen=True):
    """A run that was accepted; `existed` when the key named one that was there already."""

    run_id: RunId
    handle: HandleRef | None = None
    existed: bool = False


class Supervisor:
    """All runs of this process, and the verbs on every run that the store knows: those that act, wait and look."""

    def __init__(self, engine: EngineContext) -> None:
        self.engine = engine
        self.registry = RunRegistry()
        self._replay = Replay(engine, self.registry)
        self.handles = Handles(engine)
        self._tool_sets: dict[tuple[tuple[str, ...], tuple[str, ...]], ToolSet] = {}

    # Starting

    async def spawn(
        self,
        spawn_request: SpawnRequest,
        *,
        session_id: SessionId,
        caller: CallContext | None = None,
        key: Key | None = None,
    ) -> Started:
        """Start a run, under the caller's if a run calls. The same key gives the same run.

        Raises a `Refused` with the rule that says no. A caller from outside, and one who needs a handle, hears of
        the run once it is on disk; a run that blocks on its child goes on at once.
        """
        self.check_open()
        if key is not None and (known := await self._known(key, caller)) is not None:
            return known
        try:
            return await self._spawned(spawn_request, session_id, caller, key)
        except _NoPlaceElsewhere:
            if self.engine.declare_dead is None:
                raise
            await self.engine.declare_dead()  # a process that is gone takes no place any more
        return await self._spawned(spawn_request, session_id, caller, key)

    async def _spawned(
        self, spawn_request: SpawnRequest, session_id: SessionId, caller: CallContext | None, key: Key | None
    ) -> Started:
        inherited = await self.inherited(spawn_request.inherits)
        if spawn_request.windows:
            await self.engine.accounts.learn(spawn_request.windows)
        past = {
            run_id: await self._past(run_id) for run_id, _ in spawn_request.after if run_id not in self.registry.live
        }
        parent = self._parent(caller)
        # No await from here until the run is on the roster: two spawns at once see each other's count.
        if spawn_request.check is not None:
            spawn_request.check()
        running = (
            self.registry.running(session_id, spawn_request.handle_space)
            if spawn_request.handle_space is not None
            else 0
        )
        accepted, run_spec = admit(
            spawn_request,
            run_id=self.engine.ids.new(),
            session_id=session_id,
            parent=parent,
            running=running,
            key=key,
            engine=self.engine,
        )
        self.engine.accounts.open(accepted)
        commit_future = self.engine.journal.write(
            Accept(
                accepted=accepted,
                run_spec=run_spec,
                driver_id=self.engine.journal.driver_id,
                handle_space=spawn_request.handle_space,
                handle_format=spawn_request.handle_format,
                max_running=spawn_request.max_running,
            )
        )
        live = self.take_up(Run(accepted, run_spec, inherited), commit_future)
        self.start(live, handle_space=spawn_request.handle_space)
        self._await_others(accepted, past)
        if key is not None and parent is not None:
            parent.children_by_key[key] = accepted.run_id
        if caller is None or spawn_request.handle_space is not None:
            answers = await commit_future.wait()
            if isinstance(answers[0], NotCreated):
                if key is not None and parent is not None:
                    parent.children_by_key.pop(key, None)
                await _let_go(live)
            return self._answered(accepted, answers)
        return Started(accepted.run_id)

    async def _past(self, run_id: RunId) -> tuple[RunAccepted, Outcome]:
        """A run that is over, which another waits for."""
        run = await self.replay(run_id)
        if run.outcome is None:
            raise UnknownName("run", run_id)
        return run.accepted, run.outcome

    async def await_others_again(self, live: LiveRun) -> None:
        """The same after a crash, for what a run that was taken over has not heard of yet."""
        accepted = live.run.accepted
        heard = {*live.run.dependencies, *(item.run_id for item in live.inbox if isinstance(item, DependencyEnded))}
        missing = tuple((run_id, name) for run_id, name in accepted.after if run_id not in heard)
        past = {run_id: await self._past(run_id) for run_id, _ in missing if run_id not in self.registry.live}
        self._await_others(replace(accepted, after=missing), past)

    def _await_others(self, accepted: RunAccepted, past: Mapping[RunId, tuple[RunAccepted, Outcome]]) -> None:
        """Let a run hear of the ends of those that it waits for, the past ones at once."""
        for run_id, name in accepted.after:
            if (alive := self.registry.live.get(run_id)) is not None:
                alive.dependents.append((accepted.run_id, name))
                continue
            ended = self.registry.ended.get(run_id)
            known = past.get(run_id) or (ended and ended.accepted and (ended.accepted, ended.outcome))
            assert known  # it was alive a moment ago, or it was looked up
            item = handover(*known, name, self.engine)
            self.registry.live[accepted.run_id].deliver(item)
            self.engine.journal.write(Post(run_id=accepted.run_id, item=item))

    async def accept(self, spawn_request: SpawnRequest, *, session_id: SessionId) -> Started:
        """Let a root run exist that nobody drives yet; it begins when somebody adopts it."""
        self.check_open()
        accepted, run_spec = admit(
            spawn_request,
            run_id=self.engine.ids.new(),
            session_id=session_id,
            parent=None,
            running=0,
            key=None,
            engine=self.engine,
        )
        acceptance = Accept(accepted=accepted, run_spec=run_spec, driver_id=None)
        return self._answered(accepted, await self.engine.journal.commit(acceptance))

    def take_up(self, run: Run, acceptance: CommitFuture | None = None) -> LiveRun:
        """A folded run, ready to be driven here."""
        tools = run.run_spec.offered, run.run_spec.dialects
        tool_set = self._tool_sets.get(tools)
        if tool_set is None:
            tool_set = self._tool_sets[tools] = ToolSet(*tools, self.engine)
        return LiveRun(run, tool_set, self.engine, acceptance)

    def start(self, live: LiveRun, *, handle_space: str | None) -> None:
        """Put a run on the roster and work on it."""
        self.registry.add(live, handle_space)
        live.task = asyncio.get_running_loop().create_task(self._drive(live), name=f"run {live.run_id}")

    async def _drive(self, live: LiveRun) -> None:
        try:
            await drive(live, self.engine, self)
        except StoreError:
            pass  # the journal has told everyone already; the run stays as the store knows it
        finally:
            if live.run.outcome is None:
                await live.stop()

    def _answered(self, accepted: RunAccepted, answers: list[WriteResult]) -> Started:
        (answer,) = answers
        if isinstance(answer, NotCreated):
            if answer.why == "cancelled":
                raise TreeCancelled(answer.name)
            if answer.why == "too_many":  # others are at work in the same session
                raise _NoPlaceElsewhere(running=int(answer.name), limit=int(answer.name))
            raise SessionClosed(accepted.session_id, "archived" if answer.why == "session_archived" else "deleted")
        assert isinstance(answer, Accepted)
        if answer.handle is not None:
            self.handles.learn(accepted.session_id, answer.handle.space, answer.handle.name, answer.run_id)
        return Started(answer.run_id, answer.handle, answer.existed)

    async def _known(self, key: Key, caller: CallContext | None) -> Started | None:
        """The run that this key has made already, in this life or in an earlier one."""
        parent = self.registry.live.get(caller.run_id) if caller is not None else None
        run_id = parent.children_by_key.get(key) if parent is not None else None
        if run_id is not None and (view := await self.look(run_id)) is not None:
            return Started(run_id, view.handle, existed=True)
        if caller is None or caller.again:
            row = await self.engine.journal.read(self.engine.store.run_by_key, key)
            if row is not None:
                return Started(row.run_id, row.handle, existed=True)
        return None

    def _parent(self, caller: CallContext | None) -> LiveRun | None:
        if caller is None:
            return None
        parent = self.registry.live.get(caller.run_id)
        if parent is None:
            raise TreeCancelled(caller.run_id)
        return parent

    # Reading

    def has_read(self, reader: RunId, run_id: RunId) -> None:
        """A live run has read how a child of its ended: the end is no news to it any more."""
        live = self.registry.live.get(reader)
        if live is not None and live.run.outcome is None and run_id not in live.run.seen:
            live.record(ResultCollected(at=self.engine.clock.now(), key=f"read/{run_id}", run_id=run_id))

    # Histories

    def fork_point(self, run_id: RunId, *, last_turns: int | None = None) -> HistoryRef:
        """Where a fork of a live run would begin: here and now."""
        live = self.registry.live.get(run_id)
        if live is None:
            raise UnknownName("live run", run_id)
        return HistoryRef(run_id, live.run.seq, last_turns)

    # Telling

    async def post(self, run_id: RunId, item: Item, *, outside: bool = False) -> bool:
        """Put an item into a run's inbox; False if that key was there already. Raises for a run that is over or
        unknown.

        A caller from outside hears of it once it is on disk.
        """
        self.check_open()
        live = self.registry.live.get(run_id)
        if live is not None:
            new = live.deliver(item)
            if live.run.accepted.lifecycle.keep_alive:
                self.registry.hold(live)
            commit_future = self.engine.journal.write(Post(run_id=run_id, item=item))
            if outside:
                await commit_future.wait()
            return new
        if run_id in self.registry.ended:
            raise RunIsOver(run_id, self.registry.ended[run_id].outcome.result)
        (answer,) = await self.engine.journal.commit(Post(run_id=run_id, item=item))
        if answer == "unknown":
            raise UnknownName("run", run_id)
        if answer == "ended":
            outcome = await self.outcome(run_id)
            raise RunIsOver(run_id, outcome.result if outcome else "ended")
        return answer == "posted"

    async def cancel(self, run_id: RunId, *, reason: EndReason = "cancelled", note: str = "") -> tuple[RunId, ...]:
        """Cancel a run and all below it; the ids of those that were neither over nor cancelled before."""
        self.check_open()
        if run_id not in self.registry.live and self.engine.declare_dead is not None:
            await (
                self.engine.declare_dead()
            )  # a run whose process is gone is ended here and now, not when somebody adopts it
        commit_future = self._cancel(run_id, reason, note)
        (answer,) = await commit_future.wait()
        if answer is None:
            raise UnknownName("run", run_id)
        assert isinstance(answer, tuple)
        for concerned in answer:
            # Also those that memory does not know to be below: what an ended run has left behind.
            if (live := self.registry.live.get(concerned)) is not None:
                live.deliver(_cancel_item(reason, note))
        return answer

    def _cancel(self, run_id: RunId, reason: EndReason, note: str) -> CommitFuture:
        item = _cancel_item(reason, note)
        # Queued before any run hears of it: on disk the cancel stands before the ends it causes.
        commit_future = self.engine.journal.write(CancelTree(run_id=run_id, item=item, at=self.engine.clock.now()))
        for live in tuple(self.registry.subtree(run_id)):
            live.deliver(item)
        return commit_future

    # Views

    async def replay(self, run_id: RunId) -> Run:
        """A run as its stored events tell it, whoever drives it; starts nothing."""
        return await self._replay.run(run_id)

    async def inherited(self, inherits: HistoryRef | None) -> History | None:
        """The history that a run with this inheritance begins with."""
        return await self._replay.history(inherits)

    async def acceptance(self, run_id: RunId) -> RunAccepted | None:
        """How a run came to be; None if there is none, or nothing is kept of it."""
        if (live := self.here(run_id)) is not None:
            return live.run.accepted
        events = await self.engine.journal.read(self.engine.store.events, run_id)
        return events[0][1] if events and isinstance(events[0][1], RunAccepted) else None

    async def origins(self, root_id: RunId) -> tuple[RunId, ...]:
        """The roots of the trees whose conversation this one goes on with, the latest first."""
        found: list[RunId] = []
        accepted = await self.acceptance(root_id)
        while accepted is not None and accepted.inherits is not None:
            accepted = await self.acceptance(accepted.inherits.run_id)
            if accepted is not None and accepted.root_id not in (root_id, *found[-1:]):
                found.append(accepted.root_id)
        return tuple(found)

    async def look(self, run_id: RunId) -> RunView | None:
        """A run as it stands now, or None if there is none."""
        if (live := self.here(run_id)) is not None:
            return of_live_run(live)
        if (ended := self.registry.ended.get(run_id)) is not None:
            return ended.view
        row = await self.engine.journal.read(self.engine.store.run, run_id)
        return None if row is None else of_row(row, alive=await self._is_driven(row))

    async def list(self, query: RunQuery) -> list[RunView]:
        """Runs as they stand now, newest first; looking starts nothing."""
        rows = await self.engine.journal.read(self.engine.store.runs, query)
        awaited = {row.parent_id for row in rows if row.awaited and row.progress.phase != "ended"}
        living = await self.engine.living() if self.engine.living is not None else frozenset[str]()
        return [
            of_live_run(live)
            if (live := self.here(row.run_id)) is not None
            else of_row(row, alive=row.driver_id in living, has_awaited_child=row.run_id in awaited)
            for row in rows
        ]

    async def events(self, run_id: RunId, *, after: int = 0) -> AsyncIterator[Event | Delta]:
        """What happens in a run, from its beginning until its end, with deltas while it streams here.

        Of a run that another process drives, whatever it stores; of one that nobody drives, what is stored.
        """
        live = self.here(run_id)
        if live is None:
            async for event in self._events_elsewhere(run_id, after):
                yield event
            return

        async def catch_up(told: int) -> list[tuple[int, Event]]:
            events = await self.engine.journal.read(self.engine.store.events, run_id, told)
            outcome = live.run.outcome
            if not events and outcome is not None and told < live.run.seq:  # its messages were not to be kept
                return [(live.run.seq, RunEnded(at=self.engine.clock.now(), outcome=outcome))]
            return events

        reader = live.subscriptions.join(after)
        try:
            async for what in reader.read(catch_up):
                if isinstance(what, RunEnded) and live.last_write is not None:
                    await live.last_write.wait()  # like every waiter, a reader hears of an end once it is on disk
                yield what
        finally:
            live.subscriptions.leave(reader)

    async def _events_elsewhere(self, run_id: RunId, after: int) -> AsyncIterator[Event]:
        with self.registry.watch((run_id,)) as watch:
            while True:
                row = await self.row(run_id)
                for seq, event in await self.engine.journal.read(self.engine.store.events, run_id, after):
                    after = seq
                    yield event
                    if isinstance(event, RunEnded):
                        return
                if row.progress.phase == "ended" or not await self._is_driven(row):
                    return
                await watch.news()

    def here(self, run_id: RunId) -> LiveRun | None:
        """The run, if it is driven here; a process that was declared dead drives nothing any more."""
        return None if isinstance(self.engine.journal.broken, Fenced) else self.registry.live.get(run_id)

    async def row(self, run_id: RunId) -> RunRow:
        """What the store lists of a run; raises for one that is not there."""
        row = await self.engine.journal.read(self.engine.store.run, run_id)
        if row is None:
            raise UnknownName("run", run_id)
        return row

    async def _is_driven(self, row: RunRow) -> bool:
        return self.engine.living is not None and row.driver_id in await self.engine.living()

    def check_open(self) -> None:
        """Raise why nothing more is heard or written here, if that is so."""
        if self.engine.journal.broken is not None:
            raise self.engine.journal.broken

    # Waiting

    async def wait(
        self, run_ids: Sequence[RunId], *, count: int | None = None, timeout: float | None = None, outside: bool = False
    ) -> dict[RunId, Outcome]:
        """How these runs ended: all of them, or the first `count`, or those that did within `timeout` seconds.

        A caller from outside hears of an end once it is on disk. The order is that of the ends.
        """
        needed = len(set(run_ids)) if count is None else min(count, len(set(run_ids)))
        ended: dict[RunId, tuple[float, Outcome]] = {}
        with self.registry.watch(run_ids) as watch:
            try:
                with self.engine.deadlines.within(timeout):
                    news = list(dict.fromkeys(run_ids))
                    while True:
                        for run_id in news:
                            if run_id not in ended and (end := await self._end(run_id, outside=outside)):
                                ended[run_id] = end
                        if len(ended) >= needed:
                            break
                        self.check_open()
                        news = await watch.news()
            except TimeoutError:
                pass
        # Some may have ended before anyone waited: then the news are in the order of the asking.
        first = sorted(ended.items(), key=lambda item: item[1][0])[:needed]
        return {run_id: outcome for run_id, (_, outcome) in first}

    async def outcome(self, run_id: RunId, *, outside: bool = False) -> Outcome | None:
        """How a run ended, or None if it has not."""
        end = await self._end(run_id, outside=outside)
        return None if end is None else end[1]

    async def _end(self, run_id: RunId, *, outside: bool) -> tuple[float, Outcome] | None:
        """When and how a run ended."""
        if self.here(run_id) is not None:
            return None
        if (ended := self.registry.ended.get(run_id)) is not None:
            if outside and ended.commit_future is not None:
                await ended.commit_future.wait()
            return ended.view.ended_at or 0.0, ended.outcome
        progress = (await self.row(run_id)).progress
        return None if progress.outcome is None else (progress.ended_at or 0.0, progress.outcome)

    async def exchange(self, run_id: RunId, number: int, *, outside: bool = False) -> Exchange:
        """The answer to a run's `number`-th input, counted from 1; of a run that ended before, how it ended.

        A caller from outside hears of it once it is on disk.
        """
        with self.registry.watch((run_id,)) as watch:
            while True:
                live = self.here(run_id)
                if live is not None and len(live.run.exchanges) >= number:
                    if outside and live.last_write is not None:
                        await live.last_write.wait()
                    return live.run.exchanges[number - 1]
                if live is None and (known := await self._exchange_elsewhere(run_id, number)) is not None:
                    return known
                self.check_open()
                await watch.news()

    async def reply_to(self, run_id: RunId, key: Key, *, outside: bool = False) -> Exchange:
        """The answer to the input that was posted with this key; of a run that ended before it, how it ended."""
        with self.registry.watch((run_id,)) as watch:
            while True:
                live = self.here(run_id)
                run = live.run if live is not None else await self.replay(run_id)
                if (number := run.inputs.get(key)) is not None:
                    return await self.exchange(run_id, number, outside=outside)
                if run.outcome is not None:
                    return _as_exchange(run.outcome)
                self.check_open()
                await watch.news()

    async def _exchange_elsewhere(self, run_id: RunId, number: int) -> Exchange | None:
        """An exchange of a run that is over, or that another process drives."""
        if (outcome := await self.outcome(run_id)) is not None:
            return await self._past_exchange(run_id, number, outcome)
        exchanges = (await self.replay(run_id)).exchanges
        return exchanges[number - 1] if len(exchanges) >= number else None

    async def _past_exchange(self, run_id: RunId, number: int, outcome: Outcome) -> Exchange:
        ended = self.registry.ended.get(run_id)
        if ended is None or ended.exchanges >= number:  # a run that was never born has no events to recall
            run = await self.replay(run_id)
            if len(run.exchanges) >= number:
                return run.exchanges[number - 1]
        return _as_exchange(outcome)

    # What the loop tells

    def could_begin(self, live: LiveRun) -> None:
        """A run wants a place."""
        self.registry.ask_for_place(live)

    def exchange_ended(self, live: LiveRun) -> None:
        """A run that stays has answered."""
        self.registry.hold(live)
        self.registry.tell(live.run_id)

    def ended(self, live: LiveRun, outcome: Outcome, posts: Posts) -> None:
        """A run is over: its account is closed, its children hear of it, its waiters wake."""
        accepted = live.run.accepted
        self.engine.accounts.close(accepted.run_id)
        for run_id, item in posts:
            if (listener := self.registry.live.get(run_id)) is not None:
                listener.deliver(item)
        for child_id in tuple(live.children):
            child = self.registry.live.get(child_id)
            # One that is being stopped already needs no second cancel, and neither does what is below it.
            if child is not None and not child.cancelled and child.run.accepted.lifecycle.on_parent_end != "keep":
                self._cancel(child_id, "parent_ended", "its parent has ended")
        self.registry.remove(live, outcome, self.engine.clock.now())
        for tell in self.engine.on_end:
            tell(accepted, outcome, live.last_write)

    # Stopping

    async def stop_all(self, why: StoreError, *, leaving: bool = False) -> None:
        """Stop working, without ending anything: the runs stay as the store knows them and can be resumed."""
        # Not those that are started meanwhile: they are driven already, and must not be driven twice.
        stopped = tuple(self.registry.live.values())
        tasks = [live.task for live in stopped if live.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for live in stopped:
            if live.deadline is not None:
                live.deadline.cancel()
            if leaving:
                await self._leave(live)
            self.engine.accounts.close(live.run_id)
            self.registry.lose(live)
            live.subscriptions.stop(why)

    async def _leave(self, live: LiveRun) -> None:
        """Let no time pass for a run from now on, if its time is limited: also for one that has not begun to work."""
        run = live.run
        if run.accepted.limits.seconds is None or run.outcome is not None or self.engine.journal.broken is not None:
            return
        try:
            if live.acceptance is None or live.hear_acceptance(await live.acceptance.wait()):
                live.record(RunLeft(at=self.engine.clock.now()))
        except StoreError:
            pass  # the journal has told everyone already

    def broke(self, error: StoreError) -> None:
        """The journal is broken: whoever waits hears why, and nobody works on."""
        for live in tuple(self.registry.live.values()):
            if live.task is not None:
                live.task.cancel()
            live.subscriptions.stop(error)
        self.registry.fail(error)


class _NoPlaceElsewhere(TooManyRunning):
    """So the store says, which counts the runs of all processes."""


async def _let_go(live: LiveRun) -> None:
    """Be done with a run that the store refused, whatever it was to wait for, so that it takes nobody's place."""
    live.deliver(_cancel_item("cancelled", ""))
    if live.task is not None:
        await asyncio.wait((live.task,))


def _cancel_item(reason: EndReason, note: str) -> Cancel:
    """A run is cancelled once: every cancel has the same key."""
    return Cancel(key="cancel", reason=reason, note=note)


def _as_exchange(outcome: Outcome) -> Exchange:
    """What whoever still waits for an answer hears of a run that is over."""
    return Exchange(
        result=outcome.result, reason=outcome.reason, text=outcome.text, error=outcome.error, limit=outcome.limit
    )
