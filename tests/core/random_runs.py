"""Random run simulations: follow `next_step` and choose the outcome of each step at random.

Nothing here awaits or stores. `Simulation` keeps a log like a driver, loses at each crash what a driver would lose, and
fails as soon as a step violates an invariant.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TypeAlias, assert_never

from retinue.core.agent import Output, RunSpec, ValidatedOutput
from retinue.core.compaction import ContextOverflow
from retinue.core.events import (
    AdviceGiven,
    AgentChanged,
    CallParked,
    CallReturned,
    Event,
    ExchangeEnded,
    HistoryCompacted,
    MailTaken,
    RepairAsked,
    ReplyReceived,
    ResultCollected,
    RunAccepted,
    RunAdopted,
    RunEnded,
    RunLeft,
    TurnFailed,
    WrapUpAsked,
)
from retinue.core.inbox import URGENT, ApprovalAnswer, Cancel, ChildEnded, Close, Deadline, Input, Item, TextMessage
from retinue.core.messages import AssistantMessage, Message, Reply, Stop, ToolCall, ToolMessage, UserMessage
from retinue.core.policy import Policy
from retinue.core.run import Lifecycle, LimitMet, Limits
from retinue.core.state import NOT_MADE, NOT_OFFERED, UNFINISHED, History, Run, apply, fold
from retinue.core.step import (
    MAX_REPAIRS,
    MODEL,
    Advise,
    AlreadyEnded,
    CallModel,
    Compact,
    EndExchange,
    EndRun,
    Repair,
    RunTools,
    Step,
    StepInput,
    TakeInbox,
    Wait,
    WrapUp,
    answer_to_validate,
    next_step,
)
from retinue.core.usage import Usage

Log: TypeAlias = list[tuple[int, Event]]

RUN_SPEC = RunSpec(agent="worker")
SPEC_WITH_OUTPUT = RunSpec(agent="worker", output=Output())
_OTHER = {RUN_SPEC: RunSpec(agent="other"), SPEC_WITH_OUTPUT: RunSpec(agent="other", output=Output())}
NO_RESULT = (NOT_MADE, NOT_OFFERED, UNFINISHED)
"""Placeholder results of calls whose turn ended before they returned."""

TOO_LONG = 3000
"""Steps after which a run counts as endless; the longest of thousands of simulations needs a tenth of this."""


def acceptance(*, limits: Limits | None = None, lifecycle: Lifecycle | None = None, task: str = "task") -> RunAccepted:
    """The first event of a run."""
    return RunAccepted(
        at=0.0,
        run_id="run",
        session_id="session",
        root_id="run",
        run_spec=RUN_SPEC.digest(),
        task=task,
        policy=Policy(),
        limits=limits or Limits(),
        lifecycle=lifecycle or Lifecycle(),
    )


def snapshot(run: Run) -> dict[str, object]:
    """The complete state of a run as one comparable value."""
    state: dict[str, object] = {name: getattr(run, name) for name in Run.__slots__}
    calls = [{name: getattr(call, name) for name in call.__slots__} for call in run.open]
    state.update(history=list(run.history), open=calls, exchanges=list(run.exchanges))
    last = [(call.call, call.result) for call in run.last_calls]
    state.update(last_calls=last, seen=set(run.seen), taken=set(run.taken))
    return state


def validated(run: Run) -> ValidatedOutput | None:
    """Validation of an answer in the simulation: answers with an even number are valid."""
    text = answer_to_validate(run)
    if text is None:
        return None
    number = text.removeprefix("says ").removesuffix(".")
    return ValidatedOutput(int(number)) if number.isdigit() and int(number) % 2 == 0 else ValidatedOutput(error="odd")


class Simulation:
    """One run with its environment, until it has ended."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.overflows = Random(seed)
        self.limits = Limits(
            max_turns=random.choice([*[None] * 6, 0, 1, 2, 3, 5, 8, 12, 20, 30]),
            exchange_turns=random.choice([*[None] * 5, 1, 2, 3, 5, 8]),
            max_calls=random.choice([*[None] * 6, 0, 2, 5, 10, 20]),
            wrap_up=random.random() < 0.5,
        )
        self.lifecycle = Lifecycle(keep_alive=random.random() < 0.5, crash_fails=random.random() < 0.3)
        self.inherited = _inherited_history(random)
        self.log: Log = [(1, acceptance(limits=self.limits, lifecycle=self.lifecycle))]
        self.run_spec = random.choice([RUN_SPEC, RUN_SPEC, SPEC_WITH_OUTPUT])
        self.run = fold(self.log, self.run_spec, self.inherited)
        self.at = 0.0
        self.inbox: list[Item] = []
        self.busy: set[int] = set()
        self.children = 0
        self.spent: LimitMet | None = None
        self.overflow: ContextOverflow | None = None
        self.is_chatty = random.random() < 0.5
        self.is_stuck = self.overflows.random() < 0.15
        """Whether the model repeats one call, with one result."""
        self.is_brittle = random.random() < 0.5
        self.steps: list[Step] = []
        self.compacted: list[Message] = []
        self.wrap_ups: list[int] = []
        """The exchange in which each wrap-up was requested."""
        self.performed: Counter[tuple[int, int]] = Counter()
        self.crashes = 0
        self._numbers = 0

    def finish(self) -> Simulation:
        """Simulate until the run has ended."""
        while self.run.outcome is None:
            assert len(self.steps) < TOO_LONG, f"does not end: {self.steps[-5:]}"
            self._random_events()
            self.act(self.next_step())
        assert self.next_step() == AlreadyEnded()
        return self

    def next_step(self) -> Step:
        """The next step; checks that computing it changes nothing."""
        verdict = validated(self.run)
        given = StepInput(
            inbox=tuple(self.inbox),
            busy=frozenset(self.busy),
            children=self.children,
            spent=self.spent,
            validated=verdict,
            overflow=self.overflow,
            repeats=self.run.repeats,
        )
        before = snapshot(self.run)
        step = next_step(self.run, given)
        assert next_step(self.run, given) == step
        assert snapshot(self.run) == before
        self.steps.append(step)
        if self.run.outcome is None and any(isinstance(item, URGENT) for item in self.inbox):
            assert isinstance(step, EndRun)
            assert step.exchange.result in ("cancelled", "timed_out")
        return step

    def act(self, step: Step) -> None:
        """Carry out a step."""
        match step:
            case TakeInbox(items=items):
                assert items
                self.record(MailTaken(at=self.at, items=items))
                self.inbox = [item for item in self.inbox if item not in items]
            case CallModel():
                self._ask(step)
            case Compact(overflow=overflow):
                assert overflow == self.overflow
                assert not self.busy
                self.overflow = None
                self._compact()
            case RunTools(indices=indices):
                self._perform(indices)
            case WrapUp(limit=limit):
                assert self.limits.wrap_up
                assert not self.busy
                self.spent = None
                self.wrap_ups.append(len(self.run.exchanges))
                self.record(WrapUpAsked(at=self.at, limit=limit, text=self._new("wrap up")))
            case Repair(error=error, is_cut=is_cut):
                assert is_cut or self.run_spec.output is not None
                assert not self.busy
                assert self.run.wrap_up_limit is None
                assert self.run.repairs < MAX_REPAIRS
                self.record(RepairAsked(at=self.at, error=error, text=self._new("repair")))
            case Advise(about=about):
                assert not self.busy
                assert about not in self.run.advised
                assert self.run.wrap_up_limit is None
                self.record(AdviceGiven(at=self.at, about=about, text=self._new("advice")))
            case Wait(why=why):
                self._wait(why)
            case EndExchange(exchange=exchange):
                assert self.lifecycle.keep_alive
                assert not self.busy
                self.spent = None
                self.record(ExchangeEnded(at=self.at, exchange=exchange))
            case EndRun(exchange=exchange, taken=taken):
                self.busy.clear()
                self.inbox = [item for item in self.inbox if item not in taken]
                self.record(RunEnded(at=self.at, outcome=self.run.outcome_as(exchange)))
            case AlreadyEnded():
                raise AssertionError("AlreadyEnded before the end of the run")
            case _:
                assert_never(step)

    def record(self, event: Event) -> None:
        """Append an event to the log and apply it."""
        seq = self.run.seq + 1
        self.log.append((seq, event))
        apply(self.run, seq, event)
        self.at += self.random.choice([0.0, 0.5, 10.0])

    # What the run waits for

    def _ask(self, step: CallModel) -> None:
        assert MODEL not in self.busy
        assert not self.run.open
        assert not isinstance(self.run.history[-1], AssistantMessage), "the model has already replied to this history"
        assert_every_call_has_one_result(self.run.history)
        assert step.wrap_up == (self.run.wrap_up_limit is not None)
        assert not (step.wrap_up and step.tools)
        assert self.limits.max_turns is None or self.run.turns < self.limits.max_turns
        assert self.limits.exchange_turns is None or self.run.exchange_turns < self.limits.exchange_turns
        if self.random.random() < 0.01:
            self.spent = LimitMet(self.random.choice(["max_tokens", "max_cost", "window"]), 9, 10)
            return
        if self.overflows.random() < 0.01:
            self.overflow = ContextOverflow(error="too long")
            return
        self.busy.add(MODEL)

    def _perform(self, indices: tuple[int, ...]) -> None:
        assert indices
        assert self.run.tools_on
        assert self.run.wrap_up_limit is None
        assert not self.busy.intersection(indices)
        assert self.limits.max_calls is None or self.run.calls_made + len(indices) <= self.limits.max_calls
        for index in indices:
            call = self.run.open[index]
            assert call.result is None
            assert call.parked_at is None or call.answer is not None
            self.performed[self.run.turns, index] += 1
        self.busy.update(indices)

    def _wait(self, why: str) -> None:
        run, random = self.run, self.random
        match why:
            case "model":
                self.busy.remove(MODEL)
                self.record(self._reply())
            case "calls":
                index = random.choice(sorted(self.busy))
                self.busy.remove(index)
                self.record(self._result(index))
            case "approval":
                assert not self.busy
                waiting = [call.index for call in run.open if call.awaits_approval]
                assert waiting == [call.index for call in run.open if call.result is None]
                self._post_answer(run.turns, random.choice(waiting))
            case "child":
                assert self.children
                self._end_child()
            case _:
                assert why == "mail"
                assert self.lifecycle.keep_alive
                assert not run.in_exchange
                assert not run.closing
                kinds = (self._input, self._message, self._close)
                self.inbox.append(random.choices(kinds, (4, 4, 1))[0]())

    def _reply(self) -> ReplyReceived | TurnFailed:
        random = self.random
        turn = self.run.turns + 1
        if random.random() < 0.01:
            partial = random.choice(["", "half a"])
            return TurnFailed(at=self.at, turn=turn, fault="cut", error="the line was cut", partial=partial)
        count = random.choice([0, 0, 1, 1, 1, 2, 3])
        ids = [random.choice(["", "same", self._new("id")]) for _ in range(count)]
        text = random.choice(["", " ", self._new("says")])
        ends: list[Stop] = ["end", "length", "refusal"]
        stop = random.choices(ends, (8, 1, 1))[0]
        is_cut = stop == "length" and count > 0
        texts = ["{}"] * (count - is_cut) + ['{"path": "a'] * is_cut
        message = AssistantMessage(text, tuple(ToolCall("tool", each, id) for each, id in zip(texts, ids, strict=True)))
        if self.is_stuck and random.random() < 0.9:
            count, is_cut, message = 1, False, AssistantMessage(text, (ToolCall("tool"),))
        stop = stop if is_cut or not count else "calls"
        usage = random.choice([None, Usage(input=3, output=2)])
        error = "no such tool" if count == 0 and self.overflows.random() < 0.1 else ""
        reply = Reply(message, usage=usage, cost=random.choice([None, 7, 7]), stop=stop, call_error=error)
        if count == 0 and random.random() < 0.2:
            self.children += 1
        return ReplyReceived(at=self.at, turn=turn, reply=reply)

    def _result(self, index: int) -> CallReturned | CallParked:
        random, turn = self.random, self.run.turns
        call = self.run.open[index]
        if call.parked_at is None and random.random() < 0.25:
            return CallParked(at=self.at, turn=turn, index=index, tool="tool")
        failed = random.random() < 0.2
        crashed = failed and random.random() < 0.1
        text = "stuck" if self.is_stuck else self._new("result")
        return CallReturned(at=self.at, turn=turn, index=index, text=text, failed=failed, crashed=crashed)

    # What may happen at any time

    def _random_events(self) -> None:
        random = self.random
        if self.run.open and self.overflows.random() < 0.005:  # a call that hands the run over to another agent
            self.record(AgentChanged(at=self.at, agent="other", run_spec=_OTHER[self.run_spec], policy=Policy()))
        if self.is_brittle and random.random() < 0.05:
            self._crash()
        if random.random() < 0.02:
            self.record(ResultCollected(at=self.at, key=self._new("key"), run_id=f"child {random.randrange(5)}"))
        if random.random() < 0.03:
            self._compact()
        if self.children and random.random() < 0.1:
            self._end_child()
        if self.is_chatty and random.random() < 0.15:
            self._post_random_item()

    def _crash(self) -> None:
        """The process stops; its successor has only the stored log and the inbox."""
        again = fold(self.log, self.run_spec, self.inherited)
        assert snapshot(again) == snapshot(self.run)
        self.run = again
        self.busy.clear()
        self.spent = self.overflow = None
        self.crashes += 1
        if self.crashes % 2:
            self.record(RunLeft(at=self.at))
        self.record(RunAdopted(at=self.at, driver_id=f"driver {self.crashes}"))

    def _compact(self) -> None:
        """Replace the beginning of the conversation by a summary, up to a message that the model has answered."""
        history = self.run.history
        answered = max((i for i, message in enumerate(history) if isinstance(message, AssistantMessage)), default=0)
        cuts = [i for i in range(answered) if isinstance(history[i], UserMessage)]
        if cuts:
            count = self.random.choice(cuts)
            self.compacted += history[:count]
            summary = UserMessage(self._new("summary"), "engine")
            self.record(HistoryCompacted(at=self.at, replaced=count, messages=(summary,)))

    def _end_child(self) -> None:
        self.children -= 1
        self.inbox.append(self._child_ended())

    def _post_random_item(self) -> None:
        random = self.random
        if random.random() < 0.05:
            self.inbox.append(random.choice([self._cancel, self._deadline])())
        elif random.random() < 0.2:
            self._post_answer(self.run.turns + random.randint(-1, 1), random.randint(-2, 3))
        else:
            kinds = (self._message, self._input, self._child_ended, self._close)
            self.inbox.append(random.choices(kinds, (8, 8, 8, 1))[0]())

    def _post_answer(self, turn: int, index: int) -> None:
        allow = self.random.random() < 0.5
        self.inbox.append(ApprovalAnswer(key=self._new("key"), turn=turn, index=index, allow=allow))

    def _message(self) -> TextMessage:
        return TextMessage(key=self._new("key"), text=self._new("words"))

    def _input(self) -> Input:
        return Input(key=self._new("key"), text=self._new("input"), tools=self.random.random() < 0.7)

    def _close(self) -> Close:
        return Close(key=self._new("key"))

    def _cancel(self) -> Cancel:
        return Cancel(key=self._new("key"), note=self.random.choice(["", "enough"]))

    def _deadline(self) -> Deadline:
        return Deadline(key="deadline", seconds=60)

    def _child_ended(self) -> ChildEnded:
        notice = self.random.choice(["", self._new("notice")])
        child = f"child {self.random.randrange(20)}"
        return ChildEnded(key=self._new("key"), run_id=child, result="completed", notice=notice)

    def _new(self, what: str) -> str:
        self._numbers += 1
        return f"{what} {self._numbers}."

    # Views of the log

    def texts_taken(self) -> list[str]:
        """The texts taken from the inbox, in order, without notices of children whose result was read before."""
        texts: list[str] = []
        seen: set[str] = set()
        for _, event in self.log:
            if isinstance(event, ResultCollected):
                seen.add(event.run_id)
            if isinstance(event, MailTaken):
                for item in event.items:
                    if isinstance(item, (TextMessage, Input)):
                        texts.append(item.text)
                    if isinstance(item, ChildEnded):
                        if item.notice and item.run_id not in seen:
                            texts.append(item.notice)
                        seen.add(item.run_id)
        return texts

    def full_conversation(self) -> list[Message]:
        """The whole conversation, with the compacted messages instead of their summaries."""
        return [message for message in (*self.compacted, *self.run.history) if not message.text.startswith("summary")]


def assert_every_call_has_one_result(messages: History | list[Message]) -> None:
    """Each reply is directly followed by one result per call, in the order of the calls."""
    expected: list[ToolCall] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert expected, f"a result without a call: {message}"
            call = expected.pop(0)
            assert (message.name, message.call_id) == (call.name, call.id)
        else:
            assert not expected, f"calls without a result: {expected}"
            if isinstance(message, AssistantMessage):
                expected = list(message.calls)
    assert not expected, f"calls without a result: {expected}"


def results_of(log: Log) -> list[str | None]:
    """The results of all calls in a log, in the order of the calls; None for a call that never returned."""
    turns: list[list[str | None]] = []
    for _, event in log:
        if isinstance(event, ReplyReceived):
            turns.append([None] * len(event.reply.message.calls))
        if isinstance(event, CallReturned):
            assert turns[-1][event.index] is None, "returned twice"
            turns[-1][event.index] = event.text
    return [result for turn in turns for result in turn]


def _inherited_history(random: Random) -> History | None:
    if random.random() < 0.7:
        return None
    history = History()
    history.append(UserMessage("of old"))
    history.append(AssistantMessage("", (ToolCall("fork"),)))
    return history
