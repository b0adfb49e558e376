"""A run that this process drives: its folded state, its inbox, the calls in flight, and its subscribers.

What the events cannot rebuild is kept here and is lost in a crash. Recording is synchronous: state, journal and readers
change together, so that no other task sees half an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from retinue.core.agent import ToolSpec, ValidatedOutput
from retinue.core.budget import Amount
from retinue.core.commands import Accepted, Charge, Phase, Progress, Record, WriteResult
from retinue.core.compaction import CHARACTERS_PER_TOKEN, ContextOverflow, characters, total_tokens
from retinue.core.errors import BadInput, StoreError
from retinue.core.events import AgentChanged, CallReturned, Event, HistoryCompacted, MailTaken, RunEnded
from retinue.core.ids import Key, RunId
from retinue.core.inbox import URGENT, Item
from retinue.core.log_context import RunFields, line, logger, logs_payloads, run_log, with_payloads
from retinue.core.messages import Delta, DiscardDelta, StartDelta, TextDelta, ToolCall
from retinue.core.policy import Policy, PolicyDecision, Risk, needs_no_approval, verdict
from retinue.core.ports import PreparedCall, Provider, Spawner, Tool, Tracing, own_tools_of, window_of
from retinue.core.run import LimitMet, State, WaitingFor
from retinue.core.state import Run, apply
from retinue.core.step import MODEL, StepInput, answer_to_validate
from retinue.engine.budgets import InputEstimate
from retinue.engine.context import EngineContext
from retinue.engine.foreign_errors import is_recordable, repr_of
from retinue.engine.journal_writer import CommitFuture
from retinue.engine.run_view import Pause, RunView

if TYPE_CHECKING:
    from retinue.core.server_tools import ServerToolSpec

CatchUp = Callable[[int], Awaitable[list[tuple[int, Event]]]]
"""Reads from the store the events after a sequence number."""


class ReaderQueue:
    """The queue of one reader; `seq` is the number of the last event it has read.

    A reader that has lost a delta gets no more deltas of that attempt: what it gets of an attempt is always a prefix.
    That the attempt was discarded is not lost with them.
    """

    __slots__ = ("_capacity", "_error", "_lagging", "_queue", "_ready", "_skips_deltas", "seq")

    def __init__(self, seq: int, capacity: int) -> None:
        self.seq = seq
        self._capacity = capacity
        self._queue: deque[tuple[int, Event | Delta]] = deque()
        self._ready = asyncio.Event()
        self._lagging = False
        self._skips_deltas = False
        self._error: StoreError | None = None

    def offer(self, seq: int, what: Event | Delta) -> None:
        """Queue an event, or a delta (`seq` 0), if there is room."""
        if seq == 0 and type(what) is not DiscardDelta:
            self._skips_deltas = (
                self._lagging
                or len(self._queue) >= self._capacity
                or (self._skips_deltas and not isinstance(what, StartDelta))
            )
            if self._skips_deltas:
                return
        elif len(self._queue) >= self._capacity:
            self._queue = deque(item for item in self._queue if item[0])  # drop the deltas
        if self._lagging or len(self._queue) >= self._capacity:
            self._lagging = True  # full even without deltas: the rest is read from the store
        else:
            self._skips_deltas = False  # deltas after an event or a discarded attempt belong to a new attempt
            self._queue.append((seq, what))
        self._ready.set()

    def stop(self, error: StoreError) -> None:
        """Nothing more will be offered, although the run has not ended."""
        self._error = error
        self._ready.set()

    def _drop_read(self) -> None:
        """Drop the events that were read from the store, and the deltas before them."""
        known = [place for place, (seq, _) in enumerate(self._queue) if 0 < seq <= self.seq]
        for _ in range(known[-1] + 1 if known else 0):
            self._queue.popleft()

    async def read(self, catch_up: CatchUp) -> AsyncIterator[Event | Delta]:
        """Events and deltas until the run has ended, each event once and in order. Raises the error of `stop`."""
        while True:
            # Cleared before the store is read: what is recorded during that read may be missing from its answer.
            self._lagging = False
            for seq, event in await catch_up(self.seq):
                self.seq = seq
                yield event
                if isinstance(event, RunEnded):
                    return
            self._drop_read()
            while not self._lagging or self._queue:
                while self._queue:
                    seq, what = self._queue.popleft()
                    if seq and seq <= self.seq:
                        continue
                    self.seq = seq or self.seq
                    yield what
                    if isinstance(what, RunEnded):
                        return
                if self._lagging:
                    break
                if self._error is not None:
                    raise self._error
                self._ready.clear()
                await self._ready.wait()


class Listener(Protocol):
    """Receives the events (`seq` from 1) and deltas (`seq` 0) of one run; it neither raises nor blocks."""

    def offer(self, seq: int, what: Event | Delta) -> None: ...
    def stop(self, error: StoreError) -> None:
        """Nothing more will be offered, although the run has not ended."""


class Subscriptions:
    """The readers of one run; costs nothing while there are none."""

    __slots__ = ("_capacity", "_error", "_has_deltas", "_readers", "has_readers")

    def __init__(self, capacity: int) -> None:
        self.has_readers = False
        self._has_deltas = False
        """Whether deltas were published since the last event."""
        self._capacity = capacity
        self._readers: list[Listener] | None = None
        self._error: StoreError | None = None

    def publish_event(self, seq: int, event: Event) -> None:
        self._has_deltas = False
        if self._readers:
            for reader in self._readers:
                reader.offer(seq, event)

    def publish_delta(self, delta: Delta) -> None:
        self._has_deltas = True
        if self._readers:
            for reader in self._readers:
                reader.offer(0, delta)

    def publish_discard(self) -> None:
        """Take back the deltas since the last event, if there are any."""
        if self._has_deltas:
            self.publish_delta(DiscardDelta())
            self._has_deltas = False

    def join(self, seq: int) -> ReaderQueue:
        """A new reader that has read the events up to `seq`."""
        reader = ReaderQueue(seq, self._capacity)
        self.add(reader)
        return reader

    def add(self, reader: Listener) -> None:
        if self._error is not None:
            reader.stop(self._error)
        self._readers = [*(self._readers or ()), reader]
        self.has_readers = True

    def leave(self, reader: Listener) -> None:
        self._readers = [other for other in self._readers or () if other is not reader] or None
        self.has_readers = self._readers is not None

    def stop(self, error: StoreError) -> None:
        """The run is no longer driven here, without having ended: all readers get `error`."""
        self._error = error
        for reader in self._readers or ():
            reader.stop(error)


log = logger("retinue.engine")

GRACE = 0.05
"""Seconds that cancelled calls have to stop, before they are abandoned and reported as not stopped."""


RunWork: TypeAlias = Coroutine[None, None, None]
NextWork: TypeAlias = "Callable[[LiveRun, EngineContext], tuple[int, RunWork] | None]"
"""The next call for a task that has finished one; None when the loop has to decide."""


MAX_DECISIONS = 1000
"""Decisions about calls that are kept for each set of tools."""


class ToolSet:
    """The tools of a run, looked up once for all runs with the same tools, dialects, policy and agent."""

    __slots__ = ("_decisions", "_policy", "server_tools", "specs", "tools")

    def __init__(
        self, offered: tuple[str, ...], dialects: tuple[str, ...], policy: Policy, agent: str, engine: EngineContext
    ) -> None:
        looked_up = {name: engine.toolbox.find(name, dialects) for name in offered}
        found = {name: tool for name, tool in looked_up.items() if tool is not None}
        self.server_tools: tuple[ServerToolSpec, ...] = tuple(
            tool.server
            for name, tool in found.items()
            if tool.server is not None and needs_no_approval(policy, name, tool.risk, acts=tool.acts)
        )
        self.tools: dict[str, Tool] = {name: tool for name, tool in found.items() if tool.server is None}
        self.specs: tuple[ToolSpec, ...] = tuple(
            tool.spec_for_agent(agent, offered, policy) for tool in self.tools.values()
        )
        self._policy = policy
        self._decisions: dict[tuple[str, Risk, bool], PolicyDecision] = {}

    def decision(self, tool: str, risk: Risk, acts: bool) -> PolicyDecision:
        """The policy's decision about a call, made once for all calls of that kind."""
        kind = (tool, risk, acts)
        known = self._decisions.get(kind)
        if known is None:
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions.clear()  # models can name tools of an agent program
            known = self._decisions[kind] = verdict(self._policy, tool=tool, risk=risk, acts=acts)
        return known


class PendingEnd(NamedTuple):
    """An end of a run that the store has not answered: nothing else of the run is recorded meanwhile."""

    commit_future: CommitFuture
    event: RunEnded
    taken: tuple[Item, ...]
    posts: tuple[tuple[RunId, Item], ...]
    dependents: int
    """How many of the run's dependents have their item among the posts."""


class LiveRun:
    """One live run."""

    # fmt: off
    __slots__ = (
        "_context_windows", "_counted", "_delivered", "_engine", "_last_turn", "_prepared", "_size", "_stopping",
        "_turns", "_unstopped", "_validated", "_wake", "acceptance", "ancestor", "cancelled", "children",
        "children_by_key", "children_created", "deadline", "dependents", "ending", "error", "fixed_size", "folder",
        "in_flight", "inbox", "last_write", "limit_met", "memo", "needs_slot", "not_compactable_at", "overflow",
        "owns_folder", "owns_tree", "partial", "pause", "refusal_is_raised", "run", "subscriptions", "task", "tool_set",
        "waiting_for",
    )
    # fmt: on

    def __init__(
        self, run: Run, tool_set: ToolSet, engine: EngineContext, acceptance: CommitFuture | None = None
    ) -> None:
        self.run = run
        self.tool_set = tool_set
        self.acceptance = acceptance
        """The commit of its acceptance, until that is known to be on disk."""
        self.refusal_is_raised = False
        """Whether its spawn raises if the store does not create it, so that nothing is remembered of it."""
        self.last_write: CommitFuture | None = acceptance
        self.inbox: list[Item] = []
        self.in_flight: dict[int, asyncio.Task[None]] = {}
        """The tasks of the calls in progress, by index; `MODEL` is the model call."""
        self.ancestor: RunId | None = run.accepted.parent_id
        """Its parent, or the nearest ancestor that was alive when the parent ended."""
        self.children: dict[RunId, bool] = {}
        """Live children, those of ended children included, and whether the end of this run waits for them."""
        self.owns_tree = False
        """Whether it is a root run whose unfinished descendants are all live here, so that none must be looked for."""
        self.children_created = 0
        self.children_by_key: dict[Key, RunId] = {}
        """Children by the key of their spawn, ended ones too: the same key means the same child."""
        self.dependents: list[tuple[RunId, str]] = []
        """Runs that start only when this one has ended, each with the name under which it reads the result."""
        self.needs_slot = False
        """Whether it has to wait for a slot once its dependencies have ended; the registry grants slots."""
        self.cancelled = False
        self.limit_met: LimitMet | None = None
        self.overflow: ContextOverflow | None = None
        """Set when the history has to be compacted before the next model call."""
        self.not_compactable_at = 0
        """The number of the event after which the history could not be compacted further: it is sent as it is."""
        self.partial: list[str] = []
        self.pause: Pause | None = None
        self.memo: dict[str, object] = {}
        self.folder = ""
        """The folder of its workspace on this machine, if that is not the one of its run spec."""
        self.owns_folder = False
        """Whether that folder is handed back when this run ends."""
        self.subscriptions = Subscriptions(engine.tuning.reader_capacity)
        self.task: asyncio.Task[None] | None = None
        self.error: Exception | None = None
        """An unexpected error of a call in flight; the loop raises it instead of starting the same call again."""
        self.deadline: asyncio.TimerHandle | None = None
        self.ending: PendingEnd | None = None
        """The end of the run, until the store has answered whether it has read its whole inbox."""
        self.waiting_for: WaitingFor | None = None
        self._validated: tuple[str, ValidatedOutput] | None = None
        self._delivered: set[Key] = set()
        self._wake: asyncio.Future[None] | None = None
        self._stopping = False
        self._unstopped: tuple[str, ...] = ()
        self._context_windows: dict[tuple[str, str], int | None] = {}
        self._prepared: dict[int, tuple[ToolCall, PreparedCall]] = {}
        self._turns: dict[int, asyncio.Future[None]] = {}
        """The ordered calls in flight, by index; each is done when the next one may begin."""
        self._last_turn: asyncio.Future[None] | None = None
        self._counted = 0
        self.fixed_size = self._fixed_size()
        """The characters of every request besides the history."""
        self._size = self.fixed_size
        self._engine = engine

    def _fixed_size(self) -> int:
        spec = self.run.run_spec
        tools = sum(len(each.parameters) + len(each.description) for each in self.tool_set.specs)
        return len(spec.system) + tools + (0 if spec.output is None else len(spec.output.schema))

    @property
    def run_id(self) -> RunId:
        return self.run.accepted.run_id

    @property
    def spawner(self) -> Spawner | None:
        return self._engine.spawner

    def tool(self, name: str) -> Tool | None:
        """The tool of that name that the run may call: an offered one, or one of an agent program that answers it."""
        known = self.tool_set.tools.get(name)
        return self._own_tool(name) if known is None else known

    def _own_tool(self, name: str) -> Tool | None:
        spec = self.run.run_spec
        for each in (spec.provider, *(other for other, _ in spec.fallback)):
            with suppress(BadInput):  # a provider that cannot be used has no tools
                provider = self._engine.providers.find(each)
                if provider is not None and (tool := own_tools_of(provider).get(name)) is not None:
                    return self._engine.toolbox.wrapped(tool, spec.dialects)
        return None

    @property
    def tool_specs(self) -> Sequence[ToolSpec]:
        return self.tool_set.specs

    @property
    def state(self) -> State:
        if self.run.outcome is not None:
            return "ended"
        if not self.run.in_exchange:
            return "idle"
        if self.waiting_for is not None:
            return "waiting"
        return "working" if self.run.turns or self.in_flight else "queued"

    def view(self, *, ended_at: float | None = None) -> RunView:
        run = self.run
        accepted = run.accepted
        return RunView(
            run_id=accepted.run_id,
            session_id=accepted.session_id,
            root_id=accepted.root_id,
            parent_id=accepted.parent_id,
            depth=accepted.depth,
            path=accepted.path,
            agent=accepted.agent,
            label=accepted.label,
            dialect=accepted.dialect,
            handle=accepted.handle,
            state=self.state,
            waiting_for=self.waiting_for,
            outcome=run.outcome,
            turns=run.turns,
            usage=run.usage,
            cost=run.cost,
            estimated=run.estimated,
            estimated_cost=run.estimated_cost,
            started_at=accepted.at,
            ended_at=ended_at,
            task=accepted.task,
        )

    def step_input(self) -> StepInput:
        """What the next step depends on besides the state of the run."""
        waited_for = sum(self.children.values()) if self.children else 0
        if self.run.accepted.lifecycle.hosted:
            waited_for = len(self.children)  # its calls may have started children of every dialect
        validated = self._validate_answer() if self.run.run_spec.output is not None else None
        return StepInput(
            self.inbox,
            self.in_flight.keys(),
            waited_for,
            self.limit_met,
            validated,
            self.overflow,
            self.needs_slot,
            self._repeats() if self.run.repeats > 1 else 0,
        )

    def _repeats(self) -> int:
        """How often the last calls were made in a row, or 0 if one of them is meant to be repeated."""
        tools = (self.tool(call.call.name) for call in self.run.last_calls)
        return 0 if any(tool is not None and tool.polls for tool in tools) else self.run.repeats

    @property
    def is_pending(self) -> bool:
        return self.needs_slot or self.run.is_pending

    def _validate_answer(self) -> ValidatedOutput | None:
        """The validation of the run's answer; done once for each answer."""
        text, output = answer_to_validate(self.run), self.run.run_spec.output
        if text is None or output is None:
            return None
        if self._validated is None or self._validated[0] is not text:
            self._validated = text, self._engine.validate_output(output, text)
        return self._validated[1]

    def deliver(self, item: Item) -> bool:
        """Put an item into the inbox and wake the loop; False for a key that was delivered before."""
        if item.key in self._delivered or item.key in self.run.taken or self.run.outcome is not None:
            return False
        self._delivered.add(item.key)
        self.inbox.append(item)
        if isinstance(item, URGENT):
            self.cancelled = True
        self.wake()
        return True

    def take(self, items: tuple[Item, ...], *, spent_before: Amount | None = None) -> CommitFuture:
        self.drop(items)
        event = MailTaken(at=self._engine.clock.now(), items=items, spent_before=spent_before)
        return self.record(event, taken=tuple(item.key for item in items))

    def drop(self, items: tuple[Item, ...]) -> None:
        gone = {item.key for item in items}
        self.inbox = [item for item in self.inbox if item.key not in gone]

    def record(
        self,
        event: Event,
        *,
        taken: tuple[Key, ...] = (),
        posts: tuple[tuple[RunId, Item], ...] = (),
        charges: tuple[Charge, ...] = (),
    ) -> CommitFuture:
        """Apply an event to the state, queue it in the journal and publish it to readers."""
        run = self.run
        seq = run.seq + 1
        if self._engine.on_event:
            self._observe(event)
        apply(run, seq, event)
        if type(event) is HistoryCompacted:
            # What was counted and encoded is void, even if the new history has the same length and end.
            self.memo, self._counted, self._size = {}, 0, self.fixed_size
        elif type(event) is AgentChanged:
            spec = run.run_spec
            self.tool_set = ToolSet(spec.offered, spec.dialects, run.policy, spec.identity or spec.agent, self._engine)
            self.fixed_size = self._fixed_size()
            self.memo, self._counted, self._size = {}, 0, self.fixed_size
        # A returned call changes nothing in the row, unless a call of the reply was parked.
        moves = type(event) is not CallReturned or run.parked_since is not None
        self.last_write = self._engine.journal.write(
            Record(
                run_id=run.accepted.run_id,
                seq=seq,
                events=(event,),
                progress=self.progress(event.at) if moves else None,
                taken=taken,
                posts=posts,
                charges=charges,
            ),
            *(self._engine.budgets.settled_holds(self.run_id) if charges else ()),
        )
        self._publish(seq, event)
        return self.last_write

    def queue_end(
        self, event: RunEnded, *, taken: tuple[Item, ...], posts: tuple[tuple[RunId, Item], ...]
    ) -> PendingEnd:
        """Queue the end of the run; the store accepts it only if it has no item that this process has not read.

        Other processes may post until the end is on disk, so memory is not ahead of the store here: the run ends when
        `apply_end` is called.
        """
        record = Record(
            run_id=self.run_id,
            seq=self.run.seq + 1,
            events=(event,),
            taken=tuple(item.key for item in taken),
            posts=posts,
            known=tuple(item.key for item in self.inbox),
        )
        self.ending = PendingEnd(self._engine.journal.write(record), event, taken, posts, len(self.dependents))
        return self.ending

    def apply_end(self, end: PendingEnd) -> None:
        """Apply an end that the store has accepted."""
        self.drop(end.taken)
        self.last_write = end.commit_future
        seq = self.run.seq + 1
        if self._engine.on_event:
            self._observe(end.event)
        apply(self.run, seq, end.event)
        self._publish(seq, end.event)

    def refuse_end(self, unread: tuple[Item, ...]) -> None:
        """Go on with items that the store has and this process had not read."""
        self._stopping = False
        for item in unread:
            self.deliver(item)

    def _observe(self, event: Event) -> None:
        for callback in self._engine.on_event:
            callback(self.run, event)

    def _publish(self, seq: int, event: Event) -> None:
        self.subscriptions.publish_event(seq, event)
        if are_payloads_logged():
            log_payload(seq, event, self._engine.log_fields(self.run))

    def progress(self, at: float) -> Progress:
        run = self.run
        over = run.outcome is not None
        phase: Phase = (
            "ended"
            if over
            else "pending"
            if run.accepted.after and run.is_pending
            else "idle"
            if not run.in_exchange
            else "parked"
            if run.parked_since is not None and any(call.awaits_approval for call in run.open)
            else "working"
        )
        return Progress(
            phase=phase,
            turns=run.turns,
            usage=run.usage,
            cost=run.cost,
            outcome=run.outcome,
            ended_at=at if over else None,
        )

    def apply_acceptance(self, answers: list[WriteResult]) -> bool:
        """Apply the store's answer to the acceptance: the handle of the run. False if the run was not created."""
        self.acceptance = None
        (answer,) = answers
        if not isinstance(answer, Accepted) or answer.existed:
            return False
        if answer.handle is not None:
            self.run.accepted = replace(self.run.accepted, handle=answer.handle)
        return True

    # Calls in flight

    def start(self, index: int, work: RunWork, next_work: NextWork) -> None:
        """Start a tool call, or with MODEL the model call; the task continues with what `next_work` returns."""
        self.in_flight[index] = self._engine.timeouts.loop.create_task(self._perform(index, work, next_work))

    async def _perform(self, index: int, work: RunWork, next_work: NextWork) -> None:
        """Do the work, then what follows, until the loop has to decide: most turns need no second task."""
        task = asyncio.current_task(self._engine.timeouts.loop)
        assert task is not None
        ticks = self._engine.ticks
        tick = ticks.current()
        try:
            await work
            while not self._stopping:
                del self.in_flight[index]
                if index != MODEL and not self.run.open:
                    # Between two turns other tasks get to run, even if no call ever blocks. A run that is not awaited
                    # yields in any case: a cancel or a message of its caller may arrive at this moment.
                    if ticks.current() == tick or not self.run.accepted.lifecycle.awaited:
                        await asyncio.sleep(0)
                    tick = ticks.current()
                following = None if self._stopping else next_work(self, self._engine)
                if following is None:
                    break
                index, work = following
                self.in_flight[index] = task
                await work
        except BaseException as error:
            if not is_recordable(error, (task,)):
                raise
            if not self._stopping:
                self.error = error if isinstance(error, Exception) else RuntimeError(f"{repr_of(error)} was raised")
            elif not isinstance(error, StoreError):
                log.exception("while %s was being stopped", self.run.accepted.path)
        finally:
            if self.in_flight.get(index) is task:
                del self.in_flight[index]
            self.wake()

    def prepared(self, index: int) -> PreparedCall | None:
        """An open call with its arguments read, once per call; None if the run has no such tool."""
        call = self.run.open[index].call
        known = self._prepared.get(index)
        if known is not None and known[0] is call:
            return known[1]
        tool = self.tool(call.name)
        if tool is None:
            return None
        prepared = tool.prepare(call.arguments)
        self._prepared[index] = call, prepared
        return prepared

    def join_order(self, index: int) -> asyncio.Future[None] | None:
        """Queue an ordered call behind those that were started before; what it has to wait for, if anything."""
        previous = self._last_turn
        self._last_turn = self._turns[index] = asyncio.get_running_loop().create_future()
        return None if previous is None or previous.done() else previous

    def proceed(self, index: int) -> None:
        """Let the ordered call behind this one begin; without effect for any other call, and the second time."""
        turn = self._turns.pop(index, None) if self._turns else None
        if turn is not None and not turn.done():
            turn.set_result(None)

    def forget_prepared(self, index: int) -> None:
        self._prepared.pop(index, None)

    def wake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def wait(self, waiting_for: WaitingFor | None = None) -> None:
        """Sleep until `wake`; meanwhile the run is shown as waiting for that."""
        self._wake = self._engine.timeouts.loop.create_future()
        self.waiting_for = waiting_for
        try:
            await self._wake
        finally:
            self._wake = self.waiting_for = None

    async def stop(self) -> tuple[str, ...]:
        """Cancel the calls in flight; the names of those that did not stop in time."""
        self._stopping = True
        if not self.in_flight:
            return self._unstopped
        unstopped = [self._name(index) for index in self.in_flight if not self._is_stoppable(index)]
        tasks = dict(self.in_flight)
        for task in tasks.values():
            task.cancel()
        _, pending = await asyncio.wait(tasks.values(), timeout=GRACE)
        unstopped += [self._name(index) for index, task in tasks.items() if task in pending]
        self.in_flight.clear()
        self._unstopped = tuple(dict.fromkeys((*self._unstopped, *unstopped)))
        return self._unstopped

    def _name(self, index: int) -> str:
        return "model" if index == MODEL else self.run.open[index].call.name if index < len(self.run.open) else "call"

    def _is_stoppable(self, index: int) -> bool:
        tool = self.tool(self._name(index))
        return index == MODEL or tool is None or tool.stoppable

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def tracing(self) -> Tracing | None:
        """What makes traces in this process; None if nothing does."""
        return self._engine.tracing

    # Streaming and sizes

    def publish(self, delta: Delta) -> None:
        """Keep streamed text of the model, and publish the delta to readers."""
        if type(delta) is TextDelta:
            self.partial.append(delta.text)
        elif type(delta) is StartDelta:
            self.partial.clear()
        if self.subscriptions.has_readers:
            self.subscriptions.publish_delta(delta)

    def discard_attempt(self) -> None:
        """Take back what the current attempt has streamed: the model is called again."""
        self.partial.clear()
        self.subscriptions.publish_discard()

    def estimated_input(self) -> int:
        """An estimate of the tokens of the next request; counts each message once."""
        history = self.run.history
        for message in history[self._counted :]:
            self._size += characters(message)
        self._counted = len(history)
        return self._size // CHARACTERS_PER_TOKEN + 1

    def input_estimate(self) -> InputEstimate:
        """The input of the next model call; its least is the provider's last count, where that is lower.

        What the provider has counted may be in its cache, if it has reported a cache for this run.
        """
        run, tokens = self.run, self.estimated_input()
        cached = run.context if run.usage.cached or run.usage.written else 0
        return InputEstimate(tokens, min(tokens, self.context_tokens()), cached)

    def context_tokens(self) -> int:
        """The tokens of the next request: the provider's last count, and an estimate of what was added since."""
        run = self.run
        if not run.context:
            return self.estimated_input()
        return run.context + total_tokens(run.history[run.counted_messages :]) // CHARACTERS_PER_TOKEN + 1

    def context_window(self, name: str, model: str, provider: Provider) -> int | None:
        """The context window of a model in tokens, if its provider knows it; asked once."""
        known = (name, model)
        if known not in self._context_windows:
            self._context_windows[known] = window_of(provider, model)
        return self._context_windows[known]


# ---- contents of runs in the log, if the environment asks for them ---------------------------------------------------
# All that a model is sent and answers, tool arguments and results included, is in the events of its run, so that one
# line for each event has the contents whatever dialect, tool or front end is at work.

payload_log = logger("retinue.payloads")


def are_payloads_logged() -> bool:
    return payload_log.isEnabledFor(logging.INFO) and logs_payloads()


def log_first_payload(run: Run, fields: RunFields) -> None:
    """Log the task and the system prompt of a run that begins."""
    with run_log(fields):
        text = with_payloads(line(event="accepted"), system=run.run_spec.system, task=run.accepted.task)
        payload_log.info("%s", text)


def log_payload(seq: int, event: Event, fields: RunFields) -> None:
    """Log an event as it is stored, as JSON."""
    tag = type(event).__struct_config__.tag
    with run_log(fields):
        payload_log.info("%s payload=%s", line(event=tag, seq=seq), msgspec.json.encode(event).decode())
