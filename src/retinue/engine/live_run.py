"""A run in this process's hands: its folded state, its mail, and what is in flight for it.

Whatever the state cannot rebuild lives here and is worth nothing after a crash. Recording is synchronous: state,
journal and readers move together, so no other task ever sees half an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TypeAlias

from msgspec.structs import replace

from retinue.core.agent import ToolSpec, ValidatedOutput
from retinue.core.commands import Accepted, Charge, Phase, Progress, Record, WriteResult
from retinue.core.compaction import CHARACTERS_PER_TOKEN, ContextOverflow, characters, total
from retinue.core.errors import StoreError
from retinue.core.events import CallReturned, Event, HistoryCompacted, MailTaken
from retinue.core.ids import Key, RunId
from retinue.core.inbox import URGENT, Item
from retinue.core.messages import Delta, TextDelta
from retinue.core.ports import HasCompanion, Provider, Tool
from retinue.core.run import LimitMet, State, WaitingFor
from retinue.core.state import Run, apply
from retinue.core.step import MODEL, StepInput, answer_to_validate
from retinue.engine.context import EngineContext
from retinue.engine.foreign_errors import in_code, is_its_own_doing
from retinue.engine.journal import CommitFuture
from retinue.engine.subscriptions import Subscriptions

log = logging.getLogger("retinue.engine")

GRACE = 0.05
"""Seconds that something in flight has to stop when it is told to, before it is left behind and reported."""


Work: TypeAlias = Coroutine[None, None, None]
Follows: TypeAlias = "Callable[[LiveRun, EngineContext], tuple[int, Work] | None]"
"""What a task that has done its work goes on with; None when the loop has to decide."""


class ToolSet:
    """The tools of a brief, looked up once for all runs that share it."""

    __slots__ = ("specs", "tools")

    def __init__(self, offered: tuple[str, ...], dialects: tuple[str, ...], engine: EngineContext) -> None:
        found = {name: engine.toolbox.find(name, dialects) for name in offered}
        self.tools: dict[str, Tool] = {name: tool for name, tool in found.items() if tool is not None}
        for name in {tool.companion: None for tool in self.tools.values() if isinstance(tool, HasCompanion)}:
            if name and name not in self.tools and (companion := engine.toolbox.find(name, dialects)) is not None:
                self.tools[name] = companion
        self.specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in self.tools.values())

    def missing(self, offered: tuple[str, ...]) -> list[str]:
        """Names that were offered and that this process does not have."""
        return [name for name in offered if name not in self.tools]


class LiveRun:
    """One live run."""

    __slots__ = (
        "_counted",
        "_engine",
        "_known",
        "_size",
        "_stopping",
        "_validated",
        "_wake",
        "_windows",
        "above",
        "acceptance",
        "busy",
        "cancelled",
        "children",
        "children_by_key",
        "children_created",
        "deadline",
        "dependents",
        "fixed",
        "held",
        "inbox",
        "last_write",
        "left_alone",
        "memo",
        "overflow",
        "partial",
        "run",
        "spent",
        "subscriptions",
        "task",
        "tool_set",
        "trouble",
        "waits",
    )

    def __init__(
        self, run: Run, tool_set: ToolSet, engine: EngineContext, acceptance: CommitFuture | None = None
    ) -> None:
        self.run = run
        self.tool_set = tool_set
        self.acceptance = acceptance
        """The ticket of its acceptance, until it is known to be on disk."""
        self.last_write: CommitFuture | None = acceptance
        self.inbox: list[Item] = []
        self.busy: dict[int, asyncio.Task[None]] = {}
        self.above: RunId | None = run.accepted.parent_id
        """Its parent, or the nearest ancestor that was alive when its parent ended."""
        self.children: dict[RunId, bool] = {}
        """Living children, those of ended children too, and whether this run's end has to wait for them."""
        self.children_created = 0
        self.children_by_key: dict[Key, RunId] = {}
        """Children by the key that made them, ended ones too: the same key means the same child."""
        self.dependents: list[tuple[RunId, str]] = []
        """Runs that wait for this one before they begin, and the names by which they know it."""
        self.held = False
        """That it has to wait for a place when those that it waits for are over; the roster gives places."""
        self.cancelled = False
        self.spent: LimitMet | None = None
        self.overflow: ContextOverflow | None = None
        """That the history has to be made shorter before the model is asked again."""
        self.left_alone = 0
        """The event after which nothing in the history was found worth shortening: it is sent as it is."""
        self.partial: list[str] = []
        self.memo: dict[str, object] = {}
        self.subscriptions = Subscriptions()
        self.task: asyncio.Task[None] | None = None
        self.trouble: Exception | None = None
        """What escaped from something in flight; the loop raises it instead of starting the same thing again."""
        self.deadline: asyncio.TimerHandle | None = None
        self.waits: WaitingFor | None = None
        self._validated: tuple[str, ValidatedOutput] | None = None
        self._known: set[Key] = set()
        self._wake: asyncio.Future[None] | None = None
        self._stopping = False
        self._windows: dict[tuple[str, str], int | None] = {}
        self._counted = 0
        self.fixed = len(run.run_spec.system) + sum(
            len(spec.parameters) + len(spec.description) for spec in tool_set.specs
        )
        """The characters that go with every question, besides the history."""
        if run.run_spec.output is not None:
            self.fixed += len(run.run_spec.output.schema)
        self._size = self.fixed
        self._engine = engine

    @property
    def run_id(self) -> RunId:
        """The run's name."""
        return self.run.accepted.run_id

    @property
    def state(self) -> State:
        """Where the run stands, for people."""
        if self.run.outcome is not None:
            return "ended"
        if not self.run.in_exchange:
            return "idle"
        if self.waits is not None:
            return "waiting"
        return "working" if self.run.turns or self.busy else "queued"

    def step_input(self) -> StepInput:
        """What surrounds the run now."""
        waited_for = sum(self.children.values()) if self.children else 0
        validated = self._judgment() if self.run.run_spec.output is not None else None
        return StepInput(self.inbox, self.busy.keys(), waited_for, self.spent, validated, self.overflow, self.held)

    @property
    def is_pending(self) -> bool:
        """Whether it has not begun yet, because it waits for other runs or for a place."""
        return self.held or self.run.is_pending

    def _judgment(self) -> ValidatedOutput | None:
        """The verdict on the run's answer; asked for once, however often the loop looks at the situation."""
        text, output = answer_to_validate(self.run), self.run.run_spec.output
        if text is None or output is None:
            return None
        if self._validated is None or self._validated[0] is not text:
            self._validated = text, self._engine.validate_output(output, text)
        return self._validated[1]

    # Mail

    def deliver(self, item: Item) -> bool:
        """Put an item where the loop sees it; the same key twice is one item."""
        if item.key in self._known or item.key in self.run.taken or self.run.outcome is not None:
            return False
        self._known.add(item.key)
        self.inbox.append(item)
        if isinstance(item, URGENT):
            self.cancelled = True
        self.wake()
        return True

    def take(self, items: tuple[Item, ...]) -> CommitFuture:
        """Items leave the inbox and become part of the run, in one transaction."""
        self.drop(items)
        now = self._engine.clock.now()
        return self.record(MailTaken(at=now, items=items), taken=tuple(item.key for item in items))

    def drop(self, items: tuple[Item, ...]) -> None:
        """Items leave the inbox in memory."""
        gone = {item.key for item in items}
        self.inbox = [item for item in self.inbox if item.key not in gone]

    # Recording

    def record(
        self,
        event: Event,
        *,
        taken: tuple[Key, ...] = (),
        posts: tuple[tuple[RunId, Item], ...] = (),
        charges: tuple[Charge, ...] = (),
    ) -> CommitFuture:
        """Let an event have happened: in the state, in the journal, for readers."""
        run = self.run
        seq = run.seq + 1
        apply(run, seq, event)
        if type(event) is HistoryCompacted:
            self._forget_history()
        # A call's return moves nothing in the row, unless somebody was asked about a call.
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
            )
        )
        self.subscriptions.tell(seq, event)
        return self.last_write

    def _forget_history(self) -> None:
        """What was counted and encoded is not the history any more, even where it is as long and ends the same."""
        self.memo = {}
        self._counted, self._size = 0, self.fixed

    def progress(self, at: float) -> Progress:
        """The moving part of the run's row."""
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

    # Birth

    def hear_acceptance(self, answers: list[WriteResult]) -> bool:
        """Hear what the store said to the run's acceptance: the handle it was given, or that it does not exist."""
        self.acceptance = None
        (answer,) = answers
        if not isinstance(answer, Accepted) or answer.existed:
            return False
        if answer.handle is not None:
            self.run.accepted = replace(self.run.accepted, handle=answer.handle)
        return True

    # What is in flight

    def start(self, index: int, work: Work, follows: Follows) -> None:
        """Begin a call, or with MODEL the question to the model; `follows` says what the same task does after it."""
        self.busy[index] = asyncio.get_running_loop().create_task(self._carry(index, work, follows))

    async def _carry(self, index: int, work: Work, follows: Follows) -> None:
        task = asyncio.current_task()
        assert task is not None
        ticks = self._engine.ticks
        round = ticks.current()
        try:
            await work
            while not self._stopping:
                del self.busy[index]
                if index != MODEL and not self.run.open:
                    # Between turns others have theirs, even if nobody here ever waits. Who is not waited for lets them
                    # go first in any case: a cancel or a word of its caller may come in this very moment.
                    if ticks.current() == round or not self.run.accepted.lifecycle.awaited:
                        await asyncio.sleep(0)
                    round = ticks.current()
                following = None if self._stopping else follows(self, self._engine)
                if following is None:
                    break
                index, work = following
                self.busy[index] = task
                await work
        except BaseException as error:
            if not is_its_own_doing(error, (task,)):
                raise
            if not self._stopping:
                self.trouble = error if isinstance(error, Exception) else RuntimeError(f"{in_code(error)} was raised")
            elif not isinstance(error, StoreError):
                log.exception("while %s was being stopped", self.run.accepted.path)
        finally:
            if self.busy.get(index) is task:
                del self.busy[index]
            self.wake()

    def wake(self) -> None:
        """Something happened: ask again what to do next."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def wait(self, what_for: WaitingFor | None = None) -> None:
        """Sleep until something happens; meanwhile the run is said to wait for that."""
        self._wake = asyncio.get_running_loop().create_future()
        self.waits = what_for
        try:
            await self._wake
        finally:
            self._wake = self.waits = None

    async def stop(self) -> tuple[str, ...]:
        """Stop what is in flight; the names of what would not stop in time."""
        self._stopping = True
        if not self.busy:
            return ()
        stubborn = [self._name(index) for index in self.busy if not self._stoppable(index)]
        tasks = dict(self.busy)
        for task in tasks.values():
            task.cancel()
        _, pending = await asyncio.wait(tasks.values(), timeout=GRACE)
        stubborn += [self._name(index) for index, task in tasks.items() if task in pending]
        self.busy.clear()
        return tuple(dict.fromkeys(stubborn))

    def _name(self, index: int) -> str:
        return "model" if index == MODEL else self.run.open[index].call.name if index < len(self.run.open) else "call"

    def _stoppable(self, index: int) -> bool:
        tool = self.tool_set.tools.get(self._name(index))
        return index == MODEL or tool is None or tool.stoppable

    @property
    def stopping(self) -> bool:
        """Whether results that still come in are too late."""
        return self._stopping

    # Streams

    def publish(self, delta: Delta) -> None:
        """A few more characters from the model."""
        if type(delta) is TextDelta:
            self.partial.append(delta.text)
        if self.subscriptions.has_readers:
            self.subscriptions.stream(delta)

    def expected_input(self) -> int:
        """About how many tokens the next question holds; counts each message once."""
        history = self.run.history
        for message in history[self._counted :]:
            self._size += characters(message)
        self._counted = len(history)
        return self._size // CHARACTERS_PER_TOKEN + 1

    def context(self) -> int:
        """How many tokens the next question holds: what the vendor counted last, and about what came after."""
        run = self.run
        if not run.context:
            return self.expected_input()
        return run.context + total(run.history[run.counted_messages :]) // CHARACTERS_PER_TOKEN + 1

    def window(self, name: str, model: str, provider: Provider) -> int | None:
        """How many tokens a model can read and write at once, if its provider knows; asked once."""
        known = (name, model)
        if known not in self._windows:
            window: Callable[[str], int | None] | None = getattr(
                provider, "window", None
            )  # isinstance() takes too long
            self._windows[known] = None if window is None else window(model)
        return self._windows[known]
